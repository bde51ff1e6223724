"""The loaders of a fit, and how much of them is taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import attrs
import torch

from camshaft.hooks_core.protocols import Strategy
from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.loops.data.combined_loader import CombinedLoader, length_of
from camshaft.loops.data.loaders import (
    ReadAhead,
    as_one_loader,
    count_batches,
    in_order,
    is_open_ended,
    leaves_of,
    numbered,
    set_epoch,
    training_loader,
)
from camshaft.loops.data.rest_of_order import Resharing
from camshaft.loops.data.resumable_loader import STATELESS_LOADERS, ResumableLoader, StatelessLoaders
from camshaft.loops.data.samplers import shares_of
from camshaft.loops.data.shared_loader import EvenLoader, agree_on_lengths, share_out, with_changed_loaders
from camshaft.loops.evaluation.loops import ValidationLoop
from camshaft.loops.evaluation.sanity_check import isolated_check
from camshaft.loops.fit.limits import FitLimits
from camshaft.loops.state.progress import FitProgress
from camshaft.loops.state.random_state import generators_of, isolated_randomness, random_state, restore_random_state
from camshaft.loops.state.run import Run
from camshaft.loops.validators import one_of


@attrs.define
class LoaderSettings:
    """Settings of the training loaders of a fit.

    Args:
        stateless_loaders: "refuse" or "fast_forward"; what a resume inside an epoch does with a training loader that
            has no state, or does not restore it exactly: raise, or read and drop the batches that were used.
        use_distributed_sampler: Share samples among processes; if true, each `DataLoader` is replaced by this process's
            share; if false, every process takes its loaders as they are.

    Raises:
        ValueError: If `stateless_loaders` is none of its values, also on setting it.
    """

    stateless_loaders: StatelessLoaders = attrs.field(default="refuse", validator=one_of(*STATELESS_LOADERS))
    use_distributed_sampler: bool = True


Numbered = tuple[int, Any, bool]
"""Index of a batch in its epoch, the batch, and whether it is the last."""


@attrs.frozen
class _Epoch:
    """The length of an epoch.

    Attributes:
        num_batches: Its batches; infinite if unknown.
        is_limited: Whether there would be more without a limit.
        is_reshared: Whether another number of processes began it.
    """

    num_batches: int | float
    is_limited: bool = False
    is_reshared: bool = False


class TrainingBatches:
    """Gives the batches of each training epoch, and can go on inside one.

    Args:
        loader: A loader, or a combination of several.
        num_batches: Number of batches of an epoch; infinite takes all there are.
        stateless: Treatment of loaders without a state; see `ResumableLoader`.
        strategy: Connects the processes, in all of which epochs end at the same batch; None stands for one process.

    Attributes:
        step_ratio: Samples of a step of all processes of the run that is resumed, by those of one of now.
    """

    numbered = staticmethod(numbered)

    def __init__(
        self,
        loader: Any,
        num_batches: int | float,
        stateless: StatelessLoaders = "refuse",
        strategy: Strategy | None = None,
    ) -> None:
        self._strategy = None if strategy is None or strategy.num_data_ranks == 1 else strategy
        self._shares = (range(1), 1) if strategy is None else shares_of(strategy)
        self._leaves: list[Any] = []  # each a `ResumableLoader`; with several processes an `EvenLoader`
        self._loader = self._resumable(loader, stateless)
        self._epochs = self._running = _Epoch(num_batches)
        self.step_ratio = 1.0
        self._is_first_process = strategy is None or strategy.global_rank == 0
        self._ahead = ReadAhead()
        self._knows_samples = False
        self._first = 0
        self._epoch: Iterator[Numbered] = iter(())

    def __iter__(self) -> Iterator[Numbered]:
        """Iterate over an epoch, or its rest after a resume: each batch with its index and whether it is the last."""
        first, self._first = self._first, 0
        self._epoch = self.numbered(self._loader, self.num_batches, first, self._ahead)
        return self._epoch

    def count(self, limit: int | float, argument: str) -> None:
        """Count the batches to take of the loader in each epoch, the same in all processes. Collective with several.

        Args:
            limit: An int is a number of batches of each process, a float a share of its batches.
            argument: Name of the argument that the limit was given by, for errors.

        Raises:
            ValueError: As `count_batches`, or if the processes have loaders that do not fit together.
        """
        if self._strategy is not None:
            agree_on_lengths(self._leaves, self._strategy)
        num_batches = count_batches(self._loader, limit, argument)
        self._epochs = self._running = _Epoch(num_batches, is_limited=num_batches < length_of(self._loader))

    @property
    def num_batches(self) -> int | float:
        """Number of batches of the epoch that runs; of a resumed one, with those before the resume."""
        return self._running.num_batches

    @num_batches.setter
    def num_batches(self, value: int | float) -> None:
        self._epochs = self._running = attrs.evolve(self._running, num_batches=value)

    def end_epoch(self) -> None:
        """End the epoch, also if batches of it are left; the next iteration begins anew."""
        self._epoch = iter(())
        self._running = self._epochs
        self._loader.end_iteration()
        self._ahead.clear()

    def stop_workers(self) -> None:
        """End the loaders' worker processes after an error; see `ResumableLoader.stop_workers`."""
        for leaf in self._leaves:
            leaf.stop_workers()

    def follow_samples(self) -> None:
        """Record the samples of each batch, from the next iteration on, where all loaders know them."""
        knows = [leaf.follow_samples() for leaf in self._leaves]
        self._knows_samples = all(knows) and not is_open_ended(self._loader)

    def take_samples(self) -> Any:
        """Return the dataset indices of the newest batch's samples, in order; see `FitData.follow_samples`."""
        samples = [leaf.take_samples() for leaf in self._leaves if self._knows_samples]
        return samples if samples and isinstance(self._loader, CombinedLoader) else next(iter(samples), None)

    def state_dict(self) -> dict[str, Any]:
        """Return the position, as tensors and plain values if the loaders' states (and a batch read ahead) are."""
        for leaf in self._leaves:
            leaf.is_ahead = self._ahead.is_filled
        state = {"loader": self._loader.state_dict(), "read_ahead": self._ahead.state_dict()}
        return {**state, **attrs.asdict(self._running), "division": self._division, "num_workers": self._num_workers}

    @property
    def _division(self) -> list[Any]:
        """Return the number of shares and the sizes of batches, which divide an epoch into batches."""
        return [self._shares[1], *[leaf.batch_size for leaf in self._leaves]]

    @property
    def _num_workers(self) -> list[int]:
        return [leaf.num_workers for leaf in self._leaves]

    def load_state_dict(self, state: dict[str, Any], num_done: int) -> None:
        """Let the next iteration go on from a position; no random numbers are drawn.

        Args:
            state: The result of `state_dict`, of any process if it was taken with another number of them.
            num_done: Batches of the epoch that are done; 0 between epochs.

        Raises:
            ValueError: If epochs had another number of batches when the state was taken inside one by as many
                processes, or a loader cannot go on there.
        """
        saved = _Epoch(*[state.get(name, False) for name in ("num_batches", "is_limited", "is_reshared")])
        before, now = state["division"], self._division
        if len(before) != len(now) or ("mode" in state["loader"]) != isinstance(self._loader, CombinedLoader):
            if num_done:
                rule, action = f"as many as in the checkpoint ({len(before) - 1})", "Resume from the end of an epoch."
                raise ValueError(must_be("train loaders", rule, len(now) - 1, "fit", action))
            return  # what other loaders keep beyond an epoch is nothing to these
        num_left = int(saved.num_batches) - num_done if saved.is_limited else None
        of_leaves = zip(self._leaves, before[1:], state.get("num_workers", self._num_workers), strict=True)
        for leaf, batch_size, num_workers in of_leaves:
            leaf.resharing, leaf.gives_again = None, False
            if before[0] != now[0] or leaf.is_read_otherwise(batch_size if num_done else None, num_workers):
                leaf.resharing = Resharing(before[0], num_left)
        is_reshared = num_done > 0 and any(leaf.resharing is not None for leaf in self._leaves)
        if num_done and saved.num_batches != self.num_batches and not (is_reshared or saved.is_reshared):
            rule = f"of {saved.num_batches} batches an epoch, as in the checkpoint, to resume inside an epoch"
            action = "Give the same data and limits, or resume from the end of an epoch."
            raise ValueError(must_be("train loader", rule, self.num_batches, "fit", action))
        self._loader.load_state_dict(state["loader"])
        self._ahead.load_state_dict(state["read_ahead"], is_same_data=before == now)
        if any(leaf.gives_again for leaf in self._leaves):
            self._ahead.clear()
        self._first = num_done
        if is_reshared:
            sizes = [(one or 1, other or 1) for one, other in zip(before[1:], now[1:], strict=True)]
            limits = [-(-(num_left or 0) * before[0] * one // (now[0] * other)) for one, other in sizes]
            left = self._loader.num_left
            left = left if num_left is None else min(left, max(limits))
            self._running = _Epoch(num_done + left, is_limited=saved.is_limited, is_reshared=True)
        elif num_done:
            self._running = saved
        self._compare_steps(before, now)

    def _compare_steps(self, before: list[Any], now: list[Any]) -> None:
        """Note how many samples a step of all processes had before, and warn if it has others now."""
        if before[0] == now[0]:
            return
        knows = None not in (*before[1:], *now[1:])
        sizes = [of_run[0] * (sum(of_run[1:]) if knows else 1) for of_run in (before, now)]
        self.step_ratio = sizes[0] / sizes[1]
        if sizes[0] != sizes[1] and self._is_first_process:
            what = "samples" if knows else "batches"
            warn_user(
                f"{now[0]} in place of {before[0]} processes go on, so a step of all takes {sizes[1]} {what} in place "
                f"of {sizes[0]}. Change `batch_size` or `accumulate_grad_batches` to keep the {what} of an update."
            )

    def _resumable(self, loader: Any, stateless: StatelessLoaders) -> Any:
        if isinstance(loader, CombinedLoader):
            return loader.with_loaders(lambda leaf: self._resumable(leaf, stateless))
        shared = self._strategy
        leaf = ResumableLoader(loader, stateless) if shared is None else EvenLoader(loader, shared, stateless)
        leaf.shares = self._shares
        self._leaves.append(leaf)
        return leaf


@attrs.define(eq=False, repr=False)
class FitData:
    """The loaders of a fit, and the batches of its epochs.

    Args:
        limits: Part of the loaders to take, and how often to ask for them.
        validation: The loop that gets the validation loaders.
        progress: The counters of the fit.
        settings: Settings of the training loaders.

    Attributes:
        loader: The training loader, as it was given, or this process's share of it; a `CombinedLoader` if several were;
            None before it was asked for.
        batches: The batches of the training epochs.
        num_batches: Batches of a training epoch, the same in all processes; infinite if unknown.
        limits: Limits of the fit; other ones count the next time that loaders are asked for.
        has_validation_batches: Whether the validation loaders of now give any.
        validation_interval: Number of batches between validations; infinity stands for the end of the epoch.
        generators: The loaders' own generators, from which they draw their order.
        origin: The progress and the random numbers with which the training loader was asked for, and likewise the
            validation loaders, as "validation".
    """

    batches_class: ClassVar[type[TrainingBatches]] = TrainingBatches

    _run: Run
    limits: FitLimits
    _validation: ValidationLoop
    _progress: FitProgress
    _settings: LoaderSettings
    loader: Any = attrs.field(default=None, init=False)
    batches: TrainingBatches = attrs.field(factory=lambda: TrainingBatches((), 0), init=False)
    num_batches: int | float = attrs.field(default=0, init=False)
    has_validation_batches: bool = attrs.field(default=False, init=False)
    validation_interval: int | float = attrs.field(default=float("inf"), init=False)
    generators: list[torch.Generator] = attrs.field(factory=list, init=False)
    origin: dict[str, Any] = attrs.field(factory=dict, init=False)
    _given: Any = attrs.field(default=None, init=False)
    _load_epoch: int = attrs.field(default=0, init=False)  # in which the training loader was asked for
    # in which those of validation were, if it was due there
    _validation_epoch: int | None = attrs.field(default=None, init=False)
    _is_reload_asked: bool = attrs.field(default=False, init=False)
    _follows_samples: bool = attrs.field(default=False, init=False)
    _may_validate: bool = attrs.field(default=False, init=False)
    _is_validation_left_out: bool = attrs.field(default=False, init=False)

    @property
    def validates(self) -> bool:
        """True if there is anything to validate, or may be once the loaders are asked for again.

        It is false as soon as validation is limited to no batches.
        """
        return self._may_validate and self._validation.limit_batches != 0

    def load(self) -> None:
        """Ask for the loaders. A training loader that is the same as before keeps its workers and its state.

        Collective with several processes. Hooks: train_dataloader, val_dataloader.

        Raises:
            ValueError: If there is no training loader, validation is asked for at an impossible interval, or several
                processes cannot share a loader out.
            TypeError: If something is no loader, or a sampler that is to be shared out does not tell its length.
        """
        self.origin = self._moment()
        self._load_training()
        self._load_validation()

    def _load_training(self) -> None:
        limits = self.limits
        self._load_epoch = self._progress.current_epoch
        given = training_loader(self._run)
        if given is None:
            rule = "given, or provided by the data module or the module"
            raise ValueError(must_be("train loader", rule, None, "fit", "Pass a loader."))
        if given is not self._given:
            self.loader, self._given = self._shared(given), given
            self._make_batches()
        self.batches.count(*limits.train_limit)
        self.num_batches = self.batches.num_batches
        if self.num_batches == 0 and limits.train_limit[0] != 0:
            warn_user("The training loader is empty: nothing will be trained. Check its dataset and `drop_last`.")

    def _make_batches(self) -> None:
        if self._run.logical is not None:
            from camshaft.loops.data.logical_loader import LogicalBatches, check_shared

            check_shared(self._settings.use_distributed_sampler, "fit")
            self.batches = LogicalBatches(self.loader, self._run)
        else:
            self.batches = self.batches_class(self.loader, 0, self._settings.stateless_loaders, self._run.strategy)
        if self._follows_samples:
            self.batches.follow_samples()

    def go_on(self, state: dict[str, Any], num_done: int) -> None:
        """Let the first epoch go on from the position in a checkpoint.

        Args:
            state: The entry "fit" of the checkpoint.
            num_done: Batches of the epoch that are done; 0 between epochs.

        Raises:
            ValueError: As `TrainingBatches.load_state_dict`.
        """
        self.batches.load_state_dict(state["batches"], num_done)
        self._follow_epoch()

    def end_epoch(self) -> None:
        """End the epoch; the next one is a whole one."""
        self.batches.end_epoch()
        self._follow_epoch()

    def _follow_epoch(self) -> None:
        """Take the number of batches of the epoch, which is another one if other processes began it."""
        if self.num_batches != self.batches.num_batches:
            self.num_batches = self.batches.num_batches
            if isinstance(self.limits.val_check_interval, float):
                self._follow_loaders()

    def set_epoch(self) -> None:
        """Tell the training loader which epoch begins; see `set_epoch`."""
        set_epoch(self.loader, self._progress.current_epoch)

    def isolated(self) -> AbstractContextManager[None]:
        """Return the context of the sanity check, which restores what that changes; see `isolated_check`."""
        return isolated_check(self._run, self._validation, self.generators)

    def _load_validation(self) -> None:
        limits, epoch, validation = self.limits, self._progress.current_epoch, self._validation
        self.origin["validation"] = self._moment()
        self._validation_epoch = epoch if limits.validates_in(epoch) else None
        self._is_validation_left_out = validation.limit_batches == 0
        if self._is_validation_left_out:  # loaders that are not used are not asked for
            validation.loaders, validation.given_loaders, validation.num_batches = [], None, []
            self.has_validation_batches = False
        else:
            self.has_validation_batches = self._ask_validation()
        may_change = limits.reload_dataloaders_every_n_epochs > 0 and bool(self._validation.loaders)
        self._may_validate = self._run.hooks.validation_step is not None and (self.has_validation_batches or may_change)
        self._follow_loaders()

    def _follow_loaders(self) -> None:
        """Take the interval of validation and the generators from the loaders of now."""
        self.validation_interval = float("inf")
        if self._may_validate and self.num_batches > 0:
            self.validation_interval = self.limits.batches_between_validations(self.num_batches)
        leaves = [leaf for loader in (self.loader, *self._validation.loaders) for leaf in leaves_of(loader)]
        self.generators = list(dict.fromkeys(generator for leaf in leaves for generator in generators_of(leaf)))

    def _moment(self) -> dict[str, Any]:
        logical = self._run.logical
        numbers = random_state() if logical is None else logical.common_numbers()
        return {"progress": {**self._progress.state_dict(), "elapsed_seconds": 0.0}, "random": numbers}

    def load_as(self, origin: dict[str, Any]) -> None:
        """Ask for the loaders as the run did that is resumed: in the same epoch, with the same random numbers.

        So a data module that splits its data at random, or by the epoch, gives what it gave then. Afterwards progress
        is as before. Hooks: as `load`.

        Args:
            origin: The `origin` of that run.
        """
        before = self._progress.state_dict()
        try:
            self._go_back_to(origin)
            self.origin = self._moment()
            self._load_training()
            self._go_back_to(origin.get("validation", origin))
            self._load_validation()
        finally:
            self._progress.load_state_dict(before)
            self._run.epoch = self._progress.current_epoch

    def _go_back_to(self, moment: dict[str, Any]) -> None:
        self._progress.load_state_dict(moment["progress"])
        self._run.epoch = self._progress.current_epoch
        restore_random_state(moment["random"])

    def reload_for_trial(self) -> Any:
        """Return a training loader as the hook gives it now, for a trial; `reload_if_asked` then gives it to the fit.

        It is asked for with the random numbers of the first time, so it splits the same data in the same way. The
        caller puts random numbers back. Collective with several processes. Hooks: train_dataloader.

        Raises:
            ValueError: If the training loader was passed to fit, or there is none.
        """
        passed = self._run.loaders.get("train")
        if passed is not None or self._run.hooks.train_dataloader is None:
            rule = "provided by `train_dataloader` of the data module or the module, to be asked for again"
            action = "Define `train_dataloader` and pass no training loader to fit."
            raise ValueError(must_be("train loader", rule, passed, "fit", action))
        self._is_reload_asked = True
        restore_random_state(self.origin["random"])
        return self._shared(training_loader(self._run))

    def follow_samples(self) -> Callable[[], Any]:
        """Record which samples the training batches hold, from the next iteration over them on.

        To be called in `on_fit_start`, before a resumed epoch goes on. It costs a fraction of a microsecond per batch.

        Returns:
            A function that returns, once for each batch, the dataset indices of the samples of the one that was given
            last, in their order; for a `CombinedLoader` a list with those of each of its loaders, None for one that
            gave nothing. It returns None if they are unknown: of streams, and of loaders or samplers with an own state.
        """
        self._follows_samples = True
        self.batches.follow_samples()
        return lambda: self.batches.take_samples()

    def reload_if_asked(self) -> None:
        """Ask for all loaders again if `reload_for_trial` was called, as they came the first time. Hooks: as `load`.

        Random numbers go on as if the loaders had not been asked for again. Collective with several processes.
        """
        if self._is_reload_asked:
            self._is_reload_asked = False
            with isolated_randomness():
                self.load_as(self.origin)

    def reload_if_due(self) -> None:
        """Ask for the training loader again before an epoch that is to have a new one. Hooks: train_dataloader."""
        # also if a resumed run has just asked: this one draws the random numbers of the run that was not stopped
        if self._is_due(self._load_epoch):
            self.origin |= self._moment()
            self._load_training()
            self._follow_loaders()

    def prepare_first_epoch(self, *, is_read: bool = True) -> None:
        """Do what comes before `on_train_start`: nothing, unless a subclass begins its loaders there.

        Args:
            is_read: Whether anything is trained.
        """

    def reload_validation_if_due(self) -> None:
        """Ask for the validation loaders again before a validation that is to have new ones. Hooks: val_dataloader."""
        if self._is_due(self._validation_epoch):
            self._load_validation()

    def follow_validation_limit(self) -> None:
        """Ask for the validation loaders if there were to be none until now. Collective. Hooks: val_dataloader."""
        if self._is_validation_left_out and self._validation.limit_batches != 0:
            self._load_validation()

    def _is_due(self, last_epoch: int | None) -> bool:
        """Return whether loaders are to be asked for again that were asked for in an epoch, or in none that counts."""
        every = self.limits.reload_dataloaders_every_n_epochs
        return every > 0 and (last_epoch is None or self._progress.current_epoch - last_epoch >= every)

    def release(self) -> None:
        """Drop the batches, with the loader's worker processes; the numbers of batches stay."""
        self.batches = self.batches_class((), 0)
        self._given = None

    def _shared(self, given: Any) -> Any:
        """Return this process's share of the training loader that was given."""
        loader = as_one_loader(given)
        loader = in_order(loader, "train") if self.limits.overfit_batches else loader
        strategy = self._run.strategy
        if self._settings.use_distributed_sampler and self._run.logical is None:
            loader = share_out(loader, strategy, stage="train")
        return with_changed_loaders(loader, strategy)

    def _ask_validation(self) -> bool:
        """Get the validation loaders. Returns whether there is anything to validate."""
        run, validation, limits = self._run, self._validation, self.limits
        has_step = run.hooks.validation_step is not None
        overfit = limits.train_limit if limits.overfit_batches and has_step else None
        has_batches = validation.load(run, overfit) if has_step or run.loaders.get("validate") is not None else False
        if has_step != bool(validation.loaders):
            there, missing = "validation loader", "`validation_step`: validation is left out. Define it"
            if has_step:
                there, missing = "`validation_step`", "validation loader: validation is left out. Pass one"
            warn_user(f"There is a {there} but no {missing}, or pass limit_val_batches=0.")
        return has_step and has_batches
