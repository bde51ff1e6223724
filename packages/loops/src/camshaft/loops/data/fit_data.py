"""The loaders of a fit, and how much of them is taken."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import attrs
import torch

from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.loops.data.loaders import (
    as_one_loader,
    has_own_sampler,
    in_order,
    leaves_of,
    set_epoch,
    training_loader,
)
from camshaft.loops.data.resumable_loader import STATELESS_LOADERS, StatelessLoaders
from camshaft.loops.data.samplers import common_randomness
from camshaft.loops.data.shared_loader import share_out, with_changed_loaders
from camshaft.loops.data.training_batches import TrainingBatches as TrainingBatches
from camshaft.loops.data.training_batches import Watch
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
    _watches: list[Watch] = attrs.field(factory=list, init=False)
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
            before = self.batches
            self._make_batches()
            self.batches.count_on(before)
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
        self.batches.watches = self._watches
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
            if isinstance(self.limits.val_check_interval, float) and self.num_batches != float("inf"):
                self._follow_loaders()  # else it is a share of a whole epoch

    def set_epoch(self, *, of_datasets: bool = True) -> None:
        """Tell the training loader which epoch begins, and count its batches if their number may differ by epoch.

        Collective in the latter case, with several processes.
        """
        epoch = self._progress.current_epoch
        set_epoch(self.loader, epoch, of_datasets=of_datasets)
        of_draws = not self.limits.overfit_batches  # else each epoch has the same draws
        self.batches.set_epoch(epoch, of_draws=of_draws, of_datasets=of_datasets)
        if any(map(has_own_sampler, leaves_of(self.loader))):
            self.batches.count(*self.limits.train_limit)
            self._follow_epoch()

    def isolated(self) -> AbstractContextManager[None]:
        """Return the context of the sanity check, which restores what that changes; see `isolated_check`."""
        return isolated_check(self._run, self._validation, self.generators)

    def isolated_from_stop(self) -> AbstractContextManager[None]:
        """Return the context of a validation before a stop: a run that is resumed goes on without it."""
        return isolated_randomness(self.generators)

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

    def watch_data(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        """Call functions around the wait for each training batch, from the next iteration on.

        To be called in `on_fit_start`. Without it waiting costs nothing more.

        Args:
            before: Called before a batch is asked for.
            after: Called once it is there, also if it was the last or an error came in its place.
        """
        self._watches.append((before, after))

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
            with self._alike():
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
            with self._alike():
                self._load_validation()

    def follow_validation_limit(self) -> None:
        """Ask for the validation loaders if there were to be none until now. Collective. Hooks: val_dataloader."""
        if self._is_validation_left_out and self._validation.limit_batches != 0:
            self._load_validation()

    def _alike(self) -> AbstractContextManager[None]:
        """Return a context in which all processes that share data out draw alike, as a data module that splits it."""
        shares = self._settings.use_distributed_sampler and self._run.logical is None
        strategy = self._run.strategy
        return common_randomness(strategy) if shares and strategy.world_size > 1 else nullcontext()

    def _is_due(self, last_epoch: int | None) -> bool:
        """Return whether loaders are to be asked for again that were asked for in an epoch, or in none that counts."""
        every = self.limits.reload_dataloaders_every_n_epochs
        return every > 0 and (last_epoch is None or self._progress.current_epoch - last_epoch >= every)

    def release(self) -> None:
        """Drop the batches, with the loader's worker processes; the numbers of batches stay."""
        self.batches = self.batches_class((), 0)
        self._given = None
        self._watches.clear()

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
