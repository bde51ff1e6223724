"""The loaders of a fit, and how much of them is taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import attrs
import torch
from torch.utils.data import DataLoader

from camshaft.hooks_core.messages import must_be, warn_user
from camshaft.hooks_core.protocols import Strategy
from camshaft.loops.data.combined_loader import UNKNOWN, CombinedLoader, has_state, is_plain, is_stream
from camshaft.loops.data.loaders import (
    ReadAhead,
    as_one_loader,
    count_batches,
    in_order,
    is_open_ended,
    leaves_of,
    numbered,
    own_loaders,
    set_epoch,
    training_loader,
)
from camshaft.loops.data.resumable_loader import STATELESS_LOADERS, ResumableLoader, StatelessLoaders
from camshaft.loops.data.shared_loader import EvenLoader, agree_on_lengths, share_out, with_changed_loaders
from camshaft.loops.evaluation.loops import ValidationLoop
from camshaft.loops.fit.limits import FitLimits
from camshaft.loops.state.progress import FitProgress
from camshaft.loops.state.random_state import generators_of, isolated_randomness, random_state, restore_random_state
from camshaft.loops.state.run import Run
from camshaft.loops.validators import one_of


@attrs.define
class LoaderSettings:
    """Settings of the training loaders of a fit.

    Args:
        stateless_loaders: Treatment of a loader without a state by a resume inside an epoch; see `ResumableLoader`.
        use_distributed_sampler: Whether several processes share the training data out; see `share_out`.

    Raises:
        ValueError: If `stateless_loaders` is none of its values, also on setting it.
    """

    stateless_loaders: StatelessLoaders = attrs.field(default="refuse", validator=one_of(*STATELESS_LOADERS))
    use_distributed_sampler: bool = True


@attrs.define(eq=False, repr=False)
class FitData:
    """The loaders of a fit, and the batches of its epochs.

    Args:
        run: The run.
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
    # whether by a given loader, where the batches of `loader` are still to be made
    _is_replaced: bool | None = attrs.field(default=None, init=False)
    _awaited: tuple[dict[str, Any], int] | None = attrs.field(default=None, init=False)  # see `await_loader`
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
        is_checked = self._run.checkpoint is None and self.limits.num_sanity_val_steps != 0
        if not (self._run.draws_as_lightning and is_checked):
            self._load_validation()
            return
        with isolated_randomness():  # in Lightning the sanity check asks, which puts random numbers back
            restore_random_state(self.origin["random"])
            self._load_validation()

    def _load_training(self) -> None:
        limits = self.limits
        self._load_epoch = self._progress.current_epoch
        given = training_loader(self._run)
        if given is None:
            rule = "given, or provided by the data module or the module"
            raise ValueError(must_be("train loader", rule, None, "fit", "Pass a loader."))
        if given is not self._given:
            self.loader = self._shared(given)
            self._given = given
            self._make_batches()
        self._count_batches()
        if self.num_batches == 0 and limits.train_limit[0] != 0:
            warn_user("The training loader is empty: nothing will be trained. Check its dataset and `drop_last`.")

    def _make_batches(self) -> None:
        self.origin.pop("is_replaced", None)
        if self._is_replaced:
            self.origin["is_replaced"] = True
        self._is_replaced = None
        run, stateless = self._run, self._settings.stateless_loaders
        self.batches = TrainingBatches(
            self.loader, 0, stateless, run.strategy, draws_as_lightning=run.draws_as_lightning
        )
        if self._follows_samples:
            self.batches.follow_samples()

    def _count_batches(self) -> None:
        self.batches.count(*self.limits.train_limit)
        self.num_batches = self.batches.num_batches

    def replace(self, loader: Any) -> None:
        """Train on with another loader from the next epoch on, until loaders are asked for again. Collective.

        An epoch whose loaders have begun keeps them; see `Run.draws_as_lightning`. One that is resumed, and had such a
        loader, goes on with it at once.

        Args:
            loader: The loader, as it is, which is not shared out; None asks for it as at first.
        """
        self.loader = self._shared(training_loader(self._run)) if loader is None else as_one_loader(loader)
        self._given, self._is_replaced = None, loader is not None
        if self._awaited is not None:
            awaited, self._awaited = self._awaited, None
            self._follow_replacement()
            self.batches.load_state_dict(*awaited)

    def await_loader(self, state: dict[str, Any], num_done: int) -> None:
        """Let the loader that `replace` is given go on from a position; see `TrainingBatches.load_state_dict`."""
        self._awaited = state, num_done

    def check_awaited(self) -> None:
        """Raise `ValueError` if an epoch is to go on with a loader that was not given again."""
        if self._awaited is not None:
            rule = "replaced until `on_train_start`, as it was in the run of the checkpoint, to resume inside an epoch"
            action = "Replace it there, or resume from the end of an epoch."
            raise ValueError(must_be("train loader", rule, self.loader, "fit", action))

    def _follow_replacement(self) -> None:
        self._make_batches()
        self._count_batches()
        self._follow_loaders()

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
        has_validation = self._may_validate and self.num_batches > 0
        self.validation_interval = (
            self.limits.batches_between_validations(self.num_batches) if has_validation else float("inf")
        )
        leaves = [leaf for loader in (self.loader, *self._validation.loaders) for leaf in leaves_of(loader)]
        self.generators = list(dict.fromkeys(generator for leaf in leaves for generator in generators_of(leaf)))

    def _moment(self) -> dict[str, Any]:
        return {"progress": {**self._progress.state_dict(), "elapsed_seconds": 0.0}, "random": random_state()}

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

    def loader_anew(self) -> Any:
        """Return a training loader as the hook gives it now, for a trial; `reload_if_asked` then gives it to the fit.

        It is asked for with the random numbers of the first time, so it splits the same data in the same way. The
        caller puts random numbers back. Collective with several processes. Hooks: train_dataloader.

        Raises:
            ValueError: If the training loader was passed to fit, or there is none.
        """
        hook = self._run.hooks.train_dataloader
        if self._run.loaders.get("train") is not None or hook is None:
            rule = "provided by `train_dataloader` of the data module or the module, to be asked for again"
            action = "Define `train_dataloader` and pass no training loader to fit."
            raise ValueError(must_be("train loader", rule, self._run.loaders.get("train"), "fit", action))
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
        """Ask for all loaders again if `loader_anew` was called, as they came the first time. Hooks: as `load`.

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
            self._is_replaced = None
            self._load_training()
            self._follow_loaders()
            if self._run.draws_as_lightning:
                self._draw_begin()
        elif self._is_replaced is not None and not self.batches.has_begun:
            self._follow_replacement()

    def begin_if_early(self, *, is_read: bool = True) -> None:
        """Begin the first epoch's training loaders before `on_train_start`; see `Run.draws_as_lightning`.

        Args:
            is_read: Whether anything is trained.
        """
        run, limits, epoch = self._run, self.limits, self._progress.current_epoch
        if not run.draws_as_lightning or self.num_batches == 0:
            return
        is_resumed = run.checkpoint is not None
        if epoch == 0 and is_read and not is_resumed:
            self._begin_in_vain()
            set_epoch(self.loader, epoch, of_datasets=False)
            self.batches.begin()
        elif not is_resumed:
            self._draw_begin()
        # a resumed run leaves the sanity check out, and restores the random numbers of after it
        is_begun = limits.validates_in(epoch) or (is_resumed and limits.num_sanity_val_steps)
        if is_read and self._may_validate and is_begun:
            self._validation.begin_in_vain()

    def _draw_begin(self) -> None:
        """Draw what loaders draw when they begin, which Lightning lets them do twice; see `Run.draws_as_lightning`."""
        self._begin_in_vain()
        begun = []
        for leaf in leaves_of(self.loader):
            is_plain_loader, num_workers = is_plain(leaf), getattr(leaf, "num_workers", 0)
            if not isinstance(leaf, DataLoader) or (num_workers == 0 and (is_plain_loader or not has_state(leaf))):
                begun.append(iter(leaf))
            elif is_plain_loader:
                # What `iter` draws there before the first batch, but no workers are started.
                if not leaf.persistent_workers:
                    torch.empty((), dtype=torch.int64).random_(generator=leaf.generator)
                indices = leaf.sampler if leaf.batch_sampler is None else leaf.batch_sampler
                for _ in islice(() if is_stream(leaf) else indices, num_workers * (leaf.prefetch_factor or 0)):
                    pass
        if self.num_batches == UNKNOWN:  # a batch is read ahead
            for iterator in begun:
                next(iterator, None)

    def _begin_in_vain(self) -> None:
        """Begin loaders that are not torch's, as Lightning does to see whether they can be."""
        for leaf in own_loaders([self.loader]):
            iter(leaf)

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
        self.batches = TrainingBatches((), 0)
        self._given = None

    def _shared(self, given: Any) -> Any:
        """Return this process's share of the training loader that was given."""
        loader = as_one_loader(given)
        loader = in_order(loader, "train") if self.limits.overfit_batches else loader
        strategy = self._run.strategy
        if self._settings.use_distributed_sampler:
            loader = share_out(loader, strategy, stage="train")
        return with_changed_loaders(loader, strategy)

    def _ask_validation(self) -> bool:
        """Get the validation loaders. Returns whether there is anything to validate."""
        run, validation, limits = self._run, self._validation, self.limits
        has_step = run.hooks.validation_step is not None
        overfit = limits.train_limit if limits.overfit_batches and has_step else None
        has_batches = validation.load(run, overfit) if has_step or run.loaders.get("validate") is not None else False
        if has_step and not validation.loaders:
            warn_user(
                "There is a `validation_step` but no validation loader: validation is left out. Pass a loader, or "
                "limit_val_batches=0 if none is wanted."
            )
        if validation.loaders and not has_step:
            warn_user(
                "There is a validation loader but no `validation_step`: validation is left out. Define the step, or "
                "pass no loader."
            )
        return has_step and has_batches


Numbered = tuple[int, Any, bool]


class TrainingBatches:
    """Gives the batches of each training epoch, and can go on inside one.

    Args:
        loader: A loader, or a combination of several.
        num_batches: Number of batches of an epoch; infinite takes all there are.
        stateless: Treatment of loaders without a state; see `ResumableLoader`.
        strategy: Connects the processes, in all of which epochs end at the same batch; None stands for one process.
        draws_as_lightning: As for `numbered`.

    Attributes:
        has_begun: Whether `begin` has begun the loaders of the next iteration.
    """

    def __init__(
        self,
        loader: Any,
        num_batches: int | float,
        stateless: StatelessLoaders = "refuse",
        strategy: Strategy | None = None,
        *,
        draws_as_lightning: bool = False,
    ) -> None:
        self._draws_as_lightning = draws_as_lightning
        self._strategy = None if strategy is None or strategy.num_data_ranks == 1 else strategy
        self._even: list[EvenLoader] = []
        self._leaves: list[ResumableLoader] = []
        self._loader = self._resumable(loader, stateless)
        self.num_batches = num_batches
        self._ahead = ReadAhead()
        self._knows_samples = False
        self._first = 0
        self._epoch: Iterator[Numbered] = iter(())
        self.has_begun = False

    def __iter__(self) -> Iterator[Numbered]:
        """Iterate over an epoch, or its rest after a resume: each batch with its index and whether it is the last."""
        self.has_begun = False
        first, self._first = self._first, 0
        self._epoch = numbered(
            self._loader, self.num_batches, first, self._ahead, draws_as_lightning=self._draws_as_lightning
        )
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
            agree_on_lengths(self._even, self._strategy)
        self.num_batches = count_batches(self._loader, limit, argument)

    def begin(self) -> None:
        """Begin the loaders, which draw random numbers for that; the next iteration is this one."""
        self.has_begun = True
        is_sequential = isinstance(self._loader, CombinedLoader) and self._loader.mode == "sequential"
        for leaf in self._leaves[:1] if is_sequential else self._leaves:
            leaf.begin()

    def end_epoch(self) -> None:
        """End the epoch, also if batches of it are left; the next iteration begins anew."""
        self._epoch = iter(())
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
        if not self._knows_samples:
            return None
        if not isinstance(self._loader, CombinedLoader):
            return self._leaves[0].take_samples()
        return [leaf.take_samples() for leaf in self._leaves]

    def state_dict(self) -> dict[str, Any]:
        """Return the position, as tensors and plain values if the loaders' states (and a batch read ahead) are."""
        return {
            "loader": self._loader.state_dict(),
            "read_ahead": self._ahead.state_dict(),
            "num_batches": self.num_batches,
            "division": self._division,
        }

    @property
    def _division(self) -> list[Any]:
        """Return what divides an epoch into batches: the number of processes, and sizes of batches."""
        sizes = [getattr(leaf.loader, "batch_size", None) for leaf in self._leaves]
        return [1 if self._strategy is None else self._strategy.num_data_ranks, *sizes]

    def load_state_dict(self, state: dict[str, Any], num_done: int) -> None:
        """Let the next iteration go on from a position; no random numbers are drawn.

        Args:
            state: The result of `state_dict`.
            num_done: Batches of the epoch that are done; 0 between epochs.

        Raises:
            ValueError: If epochs had another number of batches when the state was taken inside one, or a loader cannot
                go on there.
        """
        if num_done and state["num_batches"] != self.num_batches:
            rule = f"of {state['num_batches']} batches an epoch, as in the checkpoint, to resume inside an epoch"
            action = "Give the same data and limits, or resume from the end of an epoch."
            raise ValueError(must_be("train loader", rule, self.num_batches, "fit", action))
        self._loader.load_state_dict(state["loader"])
        is_same_data = state["division"] == self._division
        self._ahead.load_state_dict(state["read_ahead"], is_same_data=is_same_data)
        self._first = num_done

    def _resumable(self, loader: Any, stateless: StatelessLoaders) -> Any:
        if isinstance(loader, CombinedLoader):
            return loader.with_loaders(lambda leaf: self._resumable(leaf, stateless))
        if self._strategy is None:
            self._leaves.append(ResumableLoader(loader, stateless))
        else:
            self._even.append(EvenLoader(loader, self._strategy, stateless))
            self._leaves.append(self._even[-1])
        return self._leaves[-1]
