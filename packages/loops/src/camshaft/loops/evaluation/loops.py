"""Validation, test and prediction: loops over batches without gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import torch
from torch import Tensor, nn

from camshaft.hooks_core.protocols import Strategy
from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.hooks_core.support.transfer import move_to_device
from camshaft.loops.data.loaders import (
    as_given,
    batch_mover,
    evaluation_loaders,
    has_own_sampler,
    in_order,
    leaves_of,
    numbered,
    set_epoch,
)
from camshaft.loops.data.shared_loader import (
    agree_on_rounds,
    count_share,
    in_rounds,
    prepare_orders,
    share_out,
    with_changed_loaders,
)
from camshaft.loops.state.progress import Counters
from camshaft.loops.state.run import Run
from camshaft.loops.validators import check_batch_limit

if TYPE_CHECKING:
    from camshaft.loops.data.logical_loader import LogicalLoader


@attrs.frozen(eq=False, repr=False)
class StageHooks:
    """The hooks of one stage under common names: its step, and the hooks `on_<stage>_...`.

    Each attribute calls the hook of its name; see `on_validation_start` and the like. `model_eval` and `model_train`
    are None where nobody implements them.
    """

    step: Callable[[Any, int, int], Any]
    model_eval: Callable[[], None] | None
    start: Callable[[], None]
    epoch_start: Callable[[], None]
    batch_start: Callable[[Any, int, int], None]
    batch_end: Callable[[Any, Any, int, int], None]
    epoch_end: Callable[[], None]
    end: Callable[[], None]
    model_train: Callable[[], None] | None


def _check_limit(loop: EvaluationLoop, attribute: attrs.Attribute[Any], limit: int | float) -> None:
    check_batch_limit(loop.limit_argument, limit)


@attrs.define(eq=False, repr=False, kw_only=True)
class EvaluationLoop:
    """Runs every batch of one or several loaders, one loader after the other, without gradients.

    With several processes each runs its share of the batches, so that every sample counts once; hooks of batches are
    called for a process's own batches, those of the epoch in all of them.

    Args:
        limit_batches: Part of each loader to take: an int is a number of batches of each process, a float a share
            of all batches.
        inference_mode: Whether to run under `torch.inference_mode`, else under `torch.no_grad`, as always inside fit.
        use_distributed_sampler: Whether several processes share the data out; see `share_out`.

    Attributes:
        limit_argument: Name of the argument that `limit_batches` was given by, for errors.
        loaders: The loaders of the current or last run; with several processes, this process's shares of them.
        given_loaders: The same in the structure in which they were given: one loader or a collection; None without any.
        num_batches: Number of batches to take of each.
        progress: The batches of the current or last run, those of all loaders together.

    Raises:
        ValueError: If the limit is negative, or a share above 1.
    """

    stage: ClassVar[str]
    hook_prefix: ClassVar[str]
    required: ClassVar[tuple[str, ...]] = ()
    defers_saves: ClassVar[bool] = False

    limit_batches: int | float = attrs.field(default=1.0, validator=_check_limit)
    inference_mode: bool = True
    use_distributed_sampler: bool = True
    limit_argument: str = attrs.field(default="limit_batches", init=False)
    loaders: list[Iterable[Any]] = attrs.field(factory=list, init=False)
    given_loaders: Any = attrs.field(default=None, init=False)
    num_batches: list[int | float] = attrs.field(factory=list, init=False)
    progress: Counters = attrs.field(factory=Counters, init=False)
    _shares: list[LogicalLoader] = attrs.field(factory=list, init=False)  # with logical ranks
    # the loaders as they were given, and the limits
    _counted: tuple[list[Any], list[tuple[int | float, str]]] = attrs.field(factory=lambda: ([], []), init=False)

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Restore the counters of batches afterwards, for passes that leave no trace."""
        counts = self.progress.state_dict()
        try:
            yield
        finally:
            self.progress.load_state_dict(counts)

    def stage_hooks(self, run: Run) -> StageHooks:
        """Return the hooks that this loop calls: those that its `hook_prefix` names."""
        hooks = run.hooks.for_loaders(len(self.loaders))
        names = [field for field in attrs.fields_dict(StageHooks) if field != "step"]
        named = {name: getattr(hooks, f"on_{self.hook_prefix}_{name}") for name in names}
        return StageHooks(step=self.step(run, getattr(hooks, f"{self.hook_prefix}_step")), **named)

    def step(self, run: Run, hook: Callable[..., Any] | None) -> Callable[[Any, int, int], Any]:
        """Return the function that gets each batch, given the hook of the stage's step."""
        assert hook is not None
        return hook

    def collect(self, outputs: Any, dataloader_idx: int) -> None:
        """Keep what a step returned, if this loop returns it.

        Args:
            outputs: What the step returned.
            dataloader_idx: Index of the loader.
        """

    def result(self, metrics: list[dict[str, float]]) -> Any:
        """Return the result of the loop, given the logged values per loader."""
        return metrics

    def load(self, run: Run, overfit: tuple[int | float, str] | None = None) -> bool:
        """Get the loaders. Collective with several processes.

        Args:
            overfit: A further limit, and the argument that it was given by: so much is taken at most, in the order of
                the dataset.

        Returns:
            Whether any process has batches to run.
        """
        strategy, limits = run.strategy, [(self.limit_batches, self.limit_argument)]
        source, given = self.ask_for_loaders(run)
        if overfit is not None:
            given = [in_order(loader, self.stage) for loader in given]
            limits.append(overfit)
        self.loaders, self._counted = given, (given, limits)
        if run.logical is not None:
            from camshaft.loops.data.logical_loader import check_shared

            check_shared(self.use_distributed_sampler, self.stage)
            self.given_loaders = source
            self._count(run)
            return any(self.num_batches)
        if self.use_distributed_sampler:
            self.loaders = [share_out(loader, strategy, stage=self.stage) for loader in given]
        self.loaders = [with_changed_loaders(loader, strategy) for loader in self.loaders]
        self.given_loaders = as_given(source, self.loaders)
        self._count(run)
        has_batches = any(self.num_batches)
        return has_batches if strategy.num_data_ranks == 1 else any(strategy.all_gather(has_batches))

    def _count(self, run: Run) -> None:
        """Count the batches to take of each loader."""
        given, limits = self._counted
        if run.logical is not None:
            from camshaft.loops.data.logical_loader import evaluation_shares

            self._shares = evaluation_shares(given, limits, run, self.stage)
            self.num_batches = list(map(len, self._shares))
            return
        pairs = zip(given, self.loaders, strict=True)
        self.num_batches = [min(count_share(*pair, *limit, run.strategy) for limit in limits) for pair in pairs]

    def ask_for_loaders(self, run: Run) -> tuple[Any, list[Iterable[Any]]]:
        """Return the loaders of the stage, as they were given and one by one in order; see `evaluation_loaders`."""
        return evaluation_loaders(run, self.stage)

    def run(self, run: Run) -> Any:
        """Run the stage as a verb of its own. Collective. With a limit of 0 no loader is asked for.

        Returns:
            The verb's result.

        Raises:
            ValueError: If there is no loader.
        """
        if self.limit_batches == 0:
            self.loaders, self.given_loaders, self.num_batches = [], None, []
            return self.result([])
        has_batches = self.load(run)
        if not self.loaders:
            rule = "given, or provided by the data module or the module"
            raise ValueError(must_be(f"{self.stage} loaders", rule, None, run.verb, "Pass a loader."))
        return self.run_epoch(run) if has_batches else self.result([])

    def run_epoch(self, run: Run, num_batches: list[int | float] | None = None, *, is_trial: bool = False) -> Any:
        """Run every loader once. Collective.

        Hooks: on_<stage>_model_eval, _start, _epoch_start, the transfer hooks, _batch_start, the step, _batch_end,
        _epoch_end, _end, _model_train.

        Args:
            num_batches: Number of batches to take of each loader; None takes that of the limit.
            is_trial: Whether logged values reach hooks alone, as in the sanity check; the caller then ends it
                with `run.metrics.discard()`.

        Returns:
            The loop's result.
        """
        hooks = self.stage_hooks(run)
        for loader in self.loaders:
            set_epoch(loader, run.epoch, of_datasets=False)
        if any(has_own_sampler(leaf) for loader in self.loaders for leaf in leaves_of(loader)):
            self._count(run)
        run.num_loaders = len(self.loaders)
        outer_stage, outer_batch_idx = run.stage, run.batch_idx
        run.stage, run.batch_idx = self.stage, None
        modes = ModuleModes(run.module)
        try:
            (hooks.model_eval or run.module.eval)()
            # a tensor of inference mode that the module kept could not be trained with afterwards
            with torch.inference_mode() if self.inference_mode and run.verb != "fit" else torch.no_grad():
                logged = self._run_loaders(run, hooks, num_batches or self.num_batches, is_trial)
            (hooks.model_train or modes.restore)()
        except BaseException:
            modes.restore()  # also of submodules that were added after the run had begun
            raise
        run.stage, run.batch_idx = outer_stage, outer_batch_idx
        return self.result(logged)

    def _run_loaders(
        self, run: Run, hooks: StageHooks, num_batches: list[int | float], is_trial: bool
    ) -> list[dict[str, float]]:
        """Run every loader once. Returns the logged values, per loader."""
        metrics, rounds = run.metrics, num_batches
        has_rounds = run.strategy.num_data_ranks > 1 and run.logical is None
        if has_rounds:
            rounds = agree_on_rounds(self.loaders, num_batches, run.strategy, self.stage)
        self.progress.reset()
        if metrics is not None:
            metrics.start_epoch(self.stage, len(self.loaders), is_trial=is_trial)
        self.before_start(run, has_rounds=has_rounds)
        hooks.start()
        hooks.epoch_start()
        for dataloader_idx, (num_own, num_rounds) in enumerate(zip(num_batches, rounds, strict=True)):
            batches = self.iterate_loader(run, dataloader_idx, num_own, has_rounds=has_rounds)
            if has_rounds:
                batches = in_rounds(batches, num_rounds, run.strategy)
            self._run_batches(run, hooks, batches, dataloader_idx)
        run.batch_idx = None
        if metrics is not None:
            metrics.moment = "epoch"
        hooks.epoch_end()
        logged: list[dict[str, float]] = [{} for _ in self.loaders]
        if metrics is not None:
            if not is_trial:
                logged = metrics.end_epoch()
            metrics.moment = None
        hooks.end()
        return logged

    def before_start(self, run: Run, *, has_rounds: bool) -> None:
        """Do what comes before the stage's start hook: nothing, unless a subclass begins its loaders there.

        Args:
            run: The run.
            has_rounds: Whether the processes take the batches in rounds; then it is collective.
        """

    def iterate_loader(
        self, run: Run, dataloader_idx: int, num_batches: int | float, *, has_rounds: bool
    ) -> Iterator[tuple[int, Any, bool]]:
        """Begin a loader, and return its batches, each with its index and whether it is the last.

        Args:
            run: The run.
            dataloader_idx: Index of the loader.
            num_batches: Number of batches to take.
            has_rounds: Whether the processes take the batches in rounds; then it is collective.
        """
        loader = self.loaders[dataloader_idx]
        if run.logical is not None:
            from camshaft.loops.data.logical_loader import batches_in_ranks

            set_epoch(loader, run.epoch, of_samplers=False)
            return batches_in_ranks(self._shares[dataloader_idx], num_batches, run, dataloader_idx, self.progress)
        return numbered(loader, num_batches, iterator=self.begin_loader(run, loader, has_rounds=has_rounds))

    def begin_loader(self, run: Run, loader: Any, *, has_rounds: bool, of_datasets: bool = True) -> Iterator[Any]:
        """Tell datasets the epoch and begin a loader; see `set_epoch` and `iterate_loader`."""
        set_epoch(loader, run.epoch, of_datasets=of_datasets, of_samplers=False)
        if has_rounds:
            prepare_orders(loader, run.strategy)
        return iter(loader)

    def _run_batches(
        self, run: Run, hooks: StageHooks, batches: Iterator[tuple[int, Any, bool]], dataloader_idx: int
    ) -> None:
        metrics, move, progress = run.metrics, batch_mover(run), self.progress
        if metrics is not None:
            metrics.moment = "batch"
            metrics.dataloader_idx = dataloader_idx
        for batch_idx, batch, _ in batches:
            run.batch_idx = batch_idx
            progress.ready += 1
            if move is not None:
                batch = move(batch, dataloader_idx)
            if metrics is not None:
                metrics.batch = batch
            hooks.batch_start(batch, batch_idx, dataloader_idx)
            progress.started += 1
            outputs = hooks.step(batch, batch_idx, dataloader_idx)
            progress.processed += 1
            hooks.batch_end(outputs, batch, batch_idx, dataloader_idx)
            progress.completed += 1
            self.collect(outputs, dataloader_idx)


@attrs.define(eq=False, repr=False)
class ValidationLoop(EvaluationLoop):
    """Validation, as a verb or inside fit. Its result is the logged values, a dictionary per loader."""

    stage: ClassVar[str] = "validate"
    hook_prefix: ClassVar[str] = "validation"
    limit_argument: str = attrs.field(default="limit_val_batches", init=False)
    required: ClassVar[tuple[str, ...]] = ("validation_step",)


@attrs.define(eq=False, repr=False)
class TestLoop(EvaluationLoop):
    """Test. Its result is the logged values, a dictionary per loader."""

    __test__: ClassVar[bool] = False  # not a test class for pytest, in spite of its name

    stage: ClassVar[str] = "test"
    hook_prefix: ClassVar[str] = "test"
    limit_argument: str = attrs.field(default="limit_test_batches", init=False)
    required: ClassVar[tuple[str, ...]] = ("test_step",)


@attrs.define(eq=False, repr=False, kw_only=True)
class PredictLoop(EvaluationLoop):
    """Prediction. Its result is the predictions on the CPU: a list for one loader, a list of lists for several.

    A module without `predict_step` is called with the batch, as a step: through the strategy's `wrap_step`.

    With several processes each returns the predictions of its own batches, or those of all if they are gathered.

    Args:
        limit_batches: As in `EvaluationLoop`.
        inference_mode: As in `EvaluationLoop`.
        use_distributed_sampler: As in `EvaluationLoop`.
        gather: Whether every process returns the predictions of all processes, in the order in which one process makes
            them: that of the dataset, if the loader does not shuffle. They all have to fit into the memory of each.
            Of loaders that were not shared out, that is the first batches of all processes, then the second ones.

    Attributes:
        gather: The same; it counts when the predictions are returned.
        return_predictions: Whether there is a result at all; false keeps no predictions.
        epoch_batch_indices: Indices of samples for each batch, by loader, where a callback that writes predictions at
            the end follows them; else empty.
    """

    stage: ClassVar[str] = "predict"
    hook_prefix: ClassVar[str] = "predict"
    limit_argument: str = attrs.field(default="limit_predict_batches", init=False)

    gather: bool = False
    return_predictions: bool = attrs.field(default=True, init=False)
    epoch_batch_indices: list[list[Any]] = attrs.field(factory=list, init=False)
    _has_warned: bool = attrs.field(default=False, init=False)
    _predictions: list[list[Any]] = attrs.field(factory=list, init=False)
    _strategy: Strategy | None = attrs.field(default=None, init=False)
    _num_ranks: int = attrs.field(default=1, init=False)  # logical ones of this process

    @property
    def predictions(self) -> list[Any]:
        """Predictions of this process so far, or of the last run, as the result has them; empty if none are kept."""
        return self._predictions[0] if len(self._predictions) == 1 == len(self.loaders) else self._predictions

    def step(self, run: Run, hook: Callable[..., Any] | None) -> Callable[[Any, int, int], Any]:
        """Return `predict_step`, or else the function that calls the module.

        Raises:
            TypeError: If the module defines neither `predict_step` nor `forward`.
        """
        module = run.module
        if hook is None and type(module).forward is nn.Module.forward:
            rule, action = "defined, or else `forward`, to predict", "Define one of the two."
            raise TypeError(must_be("predict_step", rule, None, type(module).__qualname__, action))

        def call_module(batch: Any, batch_idx: int, dataloader_idx: int) -> Any:
            return module(batch)

        return hook or run.strategy.wrap_step(call_module)

    def run(self, run: Run) -> Any:
        """Predict. Collective. Returns the predictions, or None if `return_predictions` is false."""
        self._predictions, self._strategy, self.epoch_batch_indices = [], run.strategy, []
        run.predictions = self._predictions
        self._num_ranks = 1 if run.logical is None else len(run.logical.own)
        result = super().run(run)
        run.predictions = []
        return result

    def collect(self, outputs: Any, dataloader_idx: int) -> None:
        """Keep a prediction on the CPU."""
        if outputs is None and not self._has_warned:
            self._has_warned = True
            warn_user("`predict_step` returned None. Return the prediction, unless it is kept elsewhere.")
        if self.return_predictions:
            self._predictions += [[] for _ in range(dataloader_idx + 1 - len(self._predictions))]
            if not (isinstance(outputs, Tensor) and outputs.is_cpu):
                outputs = move_to_device(outputs, torch.device("cpu"))
            self._predictions[dataloader_idx].append(outputs)

    def result(self, metrics: list[dict[str, float]]) -> Any:
        """Return the predictions."""
        predictions = self._predictions
        if not self.return_predictions:
            return None
        predictions += [[] for _ in self.loaders[len(predictions) :]]
        strategy, self._strategy = self._strategy, None
        if self.gather and strategy is not None and strategy.num_data_ranks > 1:
            predictions = _gathered(predictions, strategy, self._num_ranks)
        return predictions[0] if len(predictions) == 1 else predictions


def _gathered(predictions: list[list[Any]], strategy: Strategy, num_ranks: int) -> list[list[Any]]:
    """Return the predictions of all processes, some batches of each in turn, as they were shared out. Collective."""
    by_rank = dict(strategy.all_gather((strategy.data_rank, predictions)))

    def by_ranks(of_loader: list[Any]) -> list[list[Any]]:
        return [of_loader[first : first + num_ranks] for first in range(0, len(of_loader), num_ranks)]

    of_ranks = [list(map(by_ranks, by_rank[rank])) for rank in sorted(by_rank)]
    in_turn = [zip_longest(*of_loader, fillvalue=()) for of_loader in zip(*of_ranks, strict=True)]
    return [[one for turn in turns for some in turn for one in some] for turns in in_turn]


class ModuleModes:
    """The train/eval modes of a module and of its submodules.

    Args:
        module: The module, as it is now.
    """

    def __init__(self, module: nn.Module) -> None:
        self._modes = [(submodule, submodule.training) for submodule in module.modules()]

    def restore(self) -> None:
        """Give every submodule its mode back; one that was added since keeps its own."""
        for submodule, training in self._modes:
            submodule.training = training
