"""Loops with the private names of Lightning's, and the entry of checkpoints in which Lightning keeps its loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from operator import attrgetter
from typing import Any, ClassVar

import attrs
import torch

import camshaft.loops as loops
from camshaft.compat.checkpoints.format import ReleaseAdapter
from camshaft.compat.loaders import LightningFitData, numbered, own_loaders
from camshaft.compat.names.stand_ins import MissingNameError
from camshaft.compat.names.utilities.combined_loader import CombinedLoader
from camshaft.compat.private_parts import OwnFirst, settable
from camshaft.compat.private_progress import BatchProgressView, EpochProgressView, UpdateProgressView
from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.loops import Counters, FitProgress, Run
from camshaft.loops.data.loaders import count_batches
from camshaft.trainer.results import print_results


class LoopLoaders(CombinedLoader):
    """The loaders of a loop, as Lightning's `_combined_loader` has them.

    Args:
        loop: The loop, whose loaders are replaced by those that are assigned to `flattened`.
        iterables: The loaders, or a collection of them.
        mode: The mode in which they are combined.
    """

    def __init__(self, loop: Any, iterables: Any, mode: Any) -> None:
        super().__init__(iterables, mode)
        self._loop = loop

    def _replace(self, flattened: list[Any]) -> None:
        CombinedLoader.flattened.fset(self, flattened)  # type: ignore[attr-defined]
        self._loop._combined_loader = CombinedLoader(self._iterables, self._mode)

    flattened = property(lambda self: list(self._flattened), _replace)
    """The loaders in their order; assign a list of as many to use those from the next epoch on."""


def _goes_on_inside(loop: Any) -> bool:
    run, progress = loop.trainer.current_run, FitProgress()
    if run is None or run.verb != "fit" or run.checkpoint is None:
        return False
    progress.load_state_dict(run.checkpoint["loops"]["fit"])
    return progress.is_inside_epoch and progress.current_epoch == loop.trainer.fit_loop.progress.current_epoch


class _LoopNames:
    """Names of Lightning's loops. The trainer gives a loop `trainer` and `_data_source`, past the loop's own check."""

    trainer: Any
    _data_source: Any
    _results = property(attrgetter("trainer._results"))
    restarting = OwnFirst(_goes_on_inside, "True in an epoch that a checkpoint goes on with.")


def _limit(name: str, doc: str) -> Any:
    """Return a property for one of the limits of a loop, which is checked when it is set."""

    def set_(loop: FitLoop, value: Any) -> None:
        loop.limits = loop.limits.with_number(name, value)

    return property(attrgetter(f"limits.{name}"), set_, doc=doc)


class FitLoop(_LoopNames, loops.FitLoop):
    """`camshaft.loops.FitLoop` with the names of Lightning's. An own subclass can be defined, but not made.

    Raises:
        MissingNameError: If it is made of a subclass.
    """

    data_class: ClassVar[Any] = LightningFitData
    data: Any

    min_epochs: Any = _limit("min_epochs", "Minimum number of epochs.")
    max_steps: Any = _limit("max_steps", "Maximum number of updates; -1 if there is no limit.")
    min_steps: Any = _limit("min_steps", "Minimum number of updates.")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if type(self) is not FitLoop:
            advice = "Training loops are not to be replaced. Write a callback, or a loop with `camshaft.loops`."
            raise MissingNameError(f"lightning.pytorch.loops.{type(self).__name__}", advice)
        super().__init__(*args, **kwargs)

    @property
    def _combined_loader(self) -> CombinedLoader | None:
        mode = getattr(self.loader, "mode", "max_size_cycle")
        return None if self.loader is None else LoopLoaders(self, self.given_loader, mode)

    @_combined_loader.setter
    def _combined_loader(self, loaders: Any) -> None:
        if loaders is None:  # to be asked for again by `setup_data`
            vars(self)["_asks_again"] = True
        else:
            has_own = hasattr(type(loaders), "as_combined_loader")
            self._replace_loader(loaders.as_combined_loader() if has_own else loaders)

    def setup_data(self) -> None:
        """Ask for the training loader again if `_combined_loader` was set to None; in a fit it is there otherwise.

        Raises:
            RuntimeError: Before the fit has asked for its loaders.
        """
        if vars(self).pop("_asks_again", False) or self.loader is None:
            self._replace_loader(None)

    def _replace_loader(self, loader: Any) -> None:
        """Train on with another training loader, from the next epoch on; see `LightningFitData.replace`."""
        if self.data is None or self.loader is None:
            action = "Return it from `train_dataloader`."
            raise RuntimeError(must_be("train loader", "replaced from `on_fit_start` on", loader, "FitLoop", action))
        self.data.replace(loader)

    epoch_loop = property(lambda loop: loop)
    """The loop itself; in Lightning one of its own, with limits in steps and validation."""
    epoch_progress = property(lambda loop: EpochProgressView(loop.progress))
    """Counters of epochs; setting them before a fit lets that one begin there."""

    @property
    def batch_progress(self) -> BatchProgressView:
        """Counters of training batches."""
        return BatchProgressView(self.progress.batches, self.progress.earlier_batches, self.is_last_batch)

    automatic_optimization = property(lambda loop: UpdateProgressView(loop.progress, not loop._is_manual))
    """Counters of automatic updates; the update itself is the business of `optimization`."""
    manual_optimization = property(lambda loop: UpdateProgressView(loop.progress, loop._is_manual or loop._fit is None))
    """Counters of updates of a module that optimizes by hand."""
    global_step = property(attrgetter("progress.global_step"))
    """Number of updates so far."""
    val_loop = settable("validation", "The loop that validates; another one can be set, made of `_EvaluationLoop`.")

    @property
    def _is_manual(self) -> bool:
        """True if the latest fit's module optimizes by hand."""
        return self._fit is not None and not getattr(self._fit._run.module, "automatic_optimization", True)

    @property
    def batch_idx(self) -> int:
        """Index of the training batch in its epoch; between epochs that of the last one, and -1 before the first."""
        return self.progress.batches.ready - 1 if self.progress.is_inside_epoch else self.progress.last_batch_idx

    total_batch_idx = property(lambda self: self.progress.earlier_batches.ready + self.progress.batches.ready - 1)
    """Index of the training batch among those of all epochs; -1 before the first."""

    @property
    def done(self) -> bool:
        """True if a limit is reached or training is to stop, so that no further epoch begins."""
        return self._stopping.is_done() or (self.loader is not None and self.num_batches == 0)

    @property
    def max_batches(self) -> int | float:
        """Batches of a training epoch. A number that is set counts from the next epoch on, until loaders are asked for.

        Raises:
            RuntimeError: On setting it before the fit has asked for its loaders.
        """
        return self.num_batches

    @max_batches.setter
    def max_batches(self, value: int | float) -> None:
        if self.data is None or self.loader is None:
            action = "Set `limit_train_batches` of the trainer, or this in `on_train_start`."
            raise RuntimeError(must_be("max_batches", "set when the loaders are there", value, "FitLoop", action))
        self.data.num_batches = self.data.batches.num_batches = value

    @property
    def _batches_that_stepped(self) -> int:
        """Number of updates as loggers count them; that of the batch counts when the batch is over."""
        epoch = None if self._fit is None else self._fit.epoch
        is_inside = epoch is not None and self.trainer.current_run.batch_idx is not None
        step = epoch.step_before if epoch is not None and is_inside else self.progress.global_step
        return step + self.progress.logged_steps_ahead

    @_batches_that_stepped.setter
    def _batches_that_stepped(self, value: int) -> None:
        self.progress.logged_steps_ahead += value - self._batches_that_stepped

    def state_dict(self, run: Run | None = None) -> dict[str, Any]:
        """Return the state that a checkpoint keeps of a run; without one, the entry of Lightning's checkpoints."""
        return loops_of_lightning(self)["fit_loop"] if run is None else super().state_dict(run)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on after the epochs and updates in the entry of a Lightning checkpoint, in the next fit."""
        self.progress.global_step = max(*_steps_in(state))
        self.progress.current_epoch = _completed(state["epoch_progress"]["current"])


class _OfEvaluation(_LoopNames, loops.EvaluationLoop):
    """The counters of a loop of evaluation, and its loaders as Lightning begins them: before the start hook."""

    _earlier_batches: Counters  # of the runs before
    _new_loaders: list[Any]  # to be begun in vain
    _begun: Iterator[Any] | None

    def __init__(self, **settings: Any) -> None:
        self._earlier_batches, self._new_loaders, self._begun = Counters(), [], None
        super().__init__(**settings)

    batch_progress = property(lambda loop: BatchProgressView(loop.progress, loop._earlier_batches))
    """Counters of batches in the current or last run (`current`) and in all runs (`total`)."""
    max_batches = property(attrgetter("num_batches"))
    """Number of batches to take of each loader."""

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Restore the counters of batches afterwards, for passes that leave no trace."""
        counts = self._earlier_batches.state_dict()
        with super().uncounted():
            yield
        self._earlier_batches.load_state_dict(counts)

    def ask_for_loaders(self, run: Run) -> tuple[Any, list[Any]]:
        """Return the loaders of the stage; see `camshaft.loops.EvaluationLoop.ask_for_loaders`."""
        source, given = super().ask_for_loaders(run)
        self._new_loaders = own_loaders(given)
        return source, given

    def begin_in_vain(self) -> None:
        """Begin new loaders that are not torch's, as Lightning does to see whether they can be."""
        while self._new_loaders:
            iter(self._new_loaders.pop(0))

    def run_epoch(self, run: Run, *args: Any, **kwargs: Any) -> Any:
        """Run every loader once; see `camshaft.loops.EvaluationLoop.run_epoch`."""
        self._earlier_batches.add(self.progress)
        self.progress.reset()
        return super().run_epoch(run, *args, **kwargs)

    def before_start(self, run: Run, *, has_rounds: bool) -> None:
        """Begin the first loader."""
        self.begin_in_vain()
        self._begun = self.begin_loader(run, self.loaders[0], has_rounds=has_rounds, of_datasets=False)

    def iterate_loader(
        self, run: Run, dataloader_idx: int, num_batches: int | float, *, has_rounds: bool
    ) -> Iterator[tuple[int, Any, bool]]:
        """Return the batches of a loader, each with its index and whether it is the last."""
        iterator, self._begun = self._begun, None
        loader = self.loaders[dataloader_idx]
        if iterator is None:
            iterator = self.begin_loader(run, loader, has_rounds=has_rounds, of_datasets=False)
        return numbered(loader, num_batches, iterator=iterator)


class EvaluationLoop(_OfEvaluation):
    """`camshaft.loops.EvaluationLoop` with the names and the constructor of Lightning's, as a base class.

    A subclass may override `_print_results`. It is set in place of a loop of a trainer, which uses it: its
    `validate_loop`, `test_loop` or `fit_loop.epoch_loop.val_loop`. Other methods that it overrides are not called,
    which a warning says once when it runs.

    Args:
        trainer: The trainer; the settings are those of its own loop.
        trainer_fn: The verb: fit, validate or test.
        stage: The stage: validation, or test.
        verbose: Whether results are printed.
        inference_mode: As of `camshaft.loops.EvaluationLoop`.
        settings: Further arguments of that.
    """

    verbose: bool
    _left_out: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__module__ == __name__:
            return
        own = {name for name in vars(cls) if name in _NOT_CALLED}
        cls._left_out = cls._left_out | own
        for name in own & vars(loops.EvaluationLoop).keys():
            delattr(cls, name)  # it means something else here

    def __init__(
        self,
        trainer: Any = None,
        trainer_fn: Any = None,
        stage: Any = None,
        verbose: bool = True,
        inference_mode: bool = True,
        **settings: Any,
    ) -> None:
        vars(self)["verbose"] = verbose
        if trainer is not None:
            of_trainer = trainer.test_loop if stage == "test" else trainer.validate_loop
            if trainer_fn == "fit":
                of_trainer = trainer.fit_loop.validation
            for name in ("trainer", "_data_source", "stage", "hook_prefix", "required"):
                vars(self)[name] = getattr(of_trainer, name)
            settings = {name: getattr(of_trainer, name) for name in ("limit_batches", "use_distributed_sampler")}
        super().__init__(inference_mode=inference_mode, **settings)
        if trainer is not None:
            self.limit_argument = of_trainer.limit_argument

    @staticmethod
    def _print_results(results: list[dict[str, Any]], stage: str) -> None:
        """Print the results of each loader."""
        print_results([{name: float(value) for name, value in one.items()} for one in results], stage)

    prints_itself = property(lambda self: type(self)._print_results is not EvaluationLoop._print_results)
    """True if a subclass overrides `_print_results`."""

    def print_logged(self, results: list[dict[str, float]]) -> None:
        """Print results by `_print_results`, which gets tensors."""
        if self.verbose:
            as_tensors = [{name: torch.tensor(value) for name, value in one.items()} for one in results]
            self._print_results(as_tensors, self.stage)

    def run_epoch(self, run: Run, *args: Any, **kwargs: Any) -> Any:
        """Run every loader once; see `camshaft.loops.EvaluationLoop.run_epoch`."""
        if self._left_out:
            warn_user(
                f"{type(self).__qualname__}: {', '.join(sorted(self._left_out))} is not called. Write a callback, or a "
                "hook of the module."
            )
            type(self)._left_out = frozenset()
        return super().run_epoch(run, *args, **kwargs)

    @property
    def _combined_loader(self) -> CombinedLoader | None:
        given = self.given_loaders
        return None if given is None else LoopLoaders(self, given, "sequential")

    @_combined_loader.setter
    def _combined_loader(self, loaders: Any) -> None:
        if loaders is None:  # to be asked for again by `setup_data`
            self.loaders, self.given_loaders, self.num_batches = [], None, []
            return
        self.loaders, self.given_loaders = list(loaders.flattened), loaders.iterables
        limit = self.limit_batches, self.limit_argument
        self.num_batches = [count_batches(loader, *limit) for loader in self.loaders]

    def setup_data(self) -> None:
        """Ask for the loaders, unless they are there."""
        if not self.loaders:
            self.load(self.trainer.current_run)

    num_dataloaders = property(lambda loop: len(loop.loaders))
    """Number of loaders."""


_OF_LIGHTNING = """
    run reset setup_data teardown on_run_start on_run_end advance done skip increment_progress_to_evaluation_end
    _evaluation_step _store_dataloader_outputs _on_before_fetch _on_after_fetch _on_evaluation_start
    _on_evaluation_model_eval _on_evaluation_model_train _on_evaluation_end _on_evaluation_epoch_start
    _on_evaluation_epoch_end _build_kwargs _build_step_args_from_hook_kwargs _verify_dataloader_idx_requirement
    _get_keys _find_value"""
_NOT_CALLED = frozenset(_OF_LIGHTNING.split())
"""Methods of Lightning's evaluation loop that nothing calls here."""


class ValidationLoop(EvaluationLoop, loops.ValidationLoop):
    """`camshaft.loops.ValidationLoop` with the names of Lightning's."""


class TestLoop(EvaluationLoop, loops.TestLoop):
    """`camshaft.loops.TestLoop` with the names of Lightning's."""


class PredictLoop(_OfEvaluation, loops.PredictLoop):
    """`camshaft.loops.PredictLoop` with the names of Lightning's."""


LOOPS = (FitLoop, ValidationLoop, TestLoop, PredictLoop)


# checkpoints


def loops_of_lightning(loop: Any) -> dict[str, Any]:
    """Return the entry "loops" of Lightning's checkpoints, by what is known of a fit.

    At the end of an epoch it is the one that Lightning saves there: the epoch is processed, but not yet completed.

    Args:
        loop: The loop that trains.
    """
    progress, acc = loop.progress, loop.accumulate_grad_batches
    ahead = getattr(progress, "logged_steps_ahead", 0)  # camshaft-loops 0.1 has none
    epochs, batches = attrs.evolve(progress.epochs), attrs.evolve(progress.batches)
    earlier, is_last = attrs.evolve(progress.earlier_batches), loop.is_last_batch
    if loop.current_epoch < progress.current_epoch:  # it has ended, and its checkpoints are written
        num = progress.last_batch_idx + 1
        batches, is_last = Counters(num, num, num, num), True
        epochs.completed -= 1
        earlier = Counters(*[count - num for count in earlier.state_dict().values()])
    evaluated, before = loop.validation.progress, loop.validation._earlier_batches
    in_epoch = -(-batches.processed // acc) if is_last else batches.processed // acc
    automatic, by_hand = (
        _pair(view.total.completed, in_epoch if view.total.completed else 0)
        for view in (loop.automatic_optimization, loop.manual_optimization)
    )
    of_optimizers = {"optimizer": {"step": automatic, "zero_grad": deepcopy(automatic)}}
    return {
        "fit_loop": {
            "state_dict": {},
            "epoch_loop.state_dict": {"_batches_that_stepped": progress.global_step + ahead},
            "epoch_loop.batch_progress": {**_progress(batches, earlier), "is_last_batch": is_last},
            "epoch_loop.scheduler_progress": _pair(0, 0),
            "epoch_loop.automatic_optimization.state_dict": {},
            "epoch_loop.automatic_optimization.optim_progress": of_optimizers,
            "epoch_loop.manual_optimization.state_dict": {},
            "epoch_loop.manual_optimization.optim_step_progress": by_hand,
            # the names of 1.5 to 1.9, for the same values
            "epoch_loop.batch_loop.optimizer_loop.optim_progress": of_optimizers,
            "epoch_loop.batch_loop.manual_loop.optim_step_progress": by_hand,
            "epoch_loop.val_loop.state_dict": {},
            "epoch_loop.val_loop.batch_progress": {**_progress(evaluated, before), "is_last_batch": False},
            "epoch_progress": _progress(epochs),
        }
    }


def _progress(current: Counters, earlier: Counters | None = None) -> dict[str, Any]:
    total = attrs.evolve(current)
    if earlier is not None:
        total.add(earlier)
    return {"total": total.state_dict(), "current": current.state_dict()}


def _pair(total: int, current: int) -> dict[str, Any]:
    return {name: {"ready": num, "completed": num} for name, num in (("total", total), ("current", current))}


def _steps_in(fit: Mapping[str, Any]) -> tuple[int, int]:
    """Return the numbers of updates of automatic and of manual optimization."""
    of_optimizers = fit["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]["step"]
    by_hand = fit["epoch_loop.manual_optimization.optim_step_progress"]
    return int(of_optimizers["total"]["completed"]), int(by_hand["total"]["completed"])


def _completed(epochs: Mapping[str, int]) -> int:
    """Return the number of epochs that are over, which Lightning takes from those that were processed."""
    return int(epochs["processed"])


def follow_hooks(run: Run) -> None:
    """Let a fit follow what is changed in a checkpoint's entry of Lightning's loops; an adapter of a run."""

    def follow(on_load_checkpoint: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
        def call(checkpoint: dict[str, Any]) -> None:
            on_load_checkpoint(checkpoint)
            if not isinstance(run.checkpoint_adapter, ReleaseAdapter):
                follow_changes(checkpoint)

        return call

    if run.verb == "fit":
        run.hooks.wrap("on_load_checkpoint", follow)


def follow_changes(checkpoint: dict[str, Any]) -> None:
    """Let a checkpoint of ours say what was changed in its entry of Lightning's loops since it was made.

    That are the number of epochs, of updates, and of updates as loggers count them, and whether the epoch begins anew.

    Args:
        checkpoint: The checkpoint, whose own entry is changed.
    """
    fit = checkpoint.get("loops", {}).get("fit_loop")
    if not isinstance(fit, Mapping):
        return
    progress = FitProgress()
    progress.load_state_dict(checkpoint["loops"]["fit"])
    was = (progress.current_epoch, progress.global_step, progress.logged_steps_ahead, progress.batches.ready)
    batches = fit["epoch_loop.batch_progress"]["current"]
    num_epochs = _completed(fit["epoch_progress"]["current"])
    progress.global_step = max(*_steps_in(fit))
    progress.logged_steps_ahead = int(fit["epoch_loop.state_dict"]["_batches_that_stepped"]) - progress.global_step
    if num_epochs != progress.current_epoch or (progress.is_inside_epoch and not batches["ready"]):
        progress.end_epoch()
        progress.current_epoch = num_epochs
    elif progress.is_inside_epoch and batches["ready"] != progress.batches.ready:
        rule = f"{progress.batches.ready}, where the data goes on, or 0 to begin the epoch anew"
        action = "Leave it, and let the loader go on by its own state."
        where = 'checkpoint["loops"]["fit_loop"]'
        raise ValueError(must_be("epoch_loop.batch_progress.current.ready", rule, batches["ready"], where, action))
    now = (progress.current_epoch, progress.global_step, progress.logged_steps_ahead, progress.batches.ready)
    if now != was:
        checkpoint["loops"]["fit"] = progress.state_dict()
