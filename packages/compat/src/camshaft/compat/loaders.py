"""Loaders of a fit as Lightning handles them: when they begin, what that draws, and others in their place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import Any, ClassVar

import attrs
import torch
from torch.utils.data import DataLoader

from camshaft.compat.eras.releases import LEAVES_SAMPLERS, behaviour_in
from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.loops import CombinedLoader
from camshaft.loops.data.combined_loader import UNKNOWN, has_state, is_plain, is_stream, length_of, read_promised
from camshaft.loops.data.fit_data import FitData, TrainingBatches
from camshaft.loops.data.loaders import (
    ReadAhead,
    as_one_loader,
    is_open_ended,
    leaves_of,
    name_of,
    read_ahead,
    training_loader,
)
from camshaft.loops.state.random_state import isolated_randomness, restore_random_state


def own_loaders(loaders: Iterable[Any]) -> list[Any]:
    """Return the loaders, and those of combinations, that are no `DataLoader`."""
    return [leaf for loader in loaders for leaf in leaves_of(loader) if not isinstance(leaf, DataLoader)]


def numbered(
    loader: Any,
    num_batches: int | float,
    first: int = 0,
    ahead: ReadAhead | None = None,
    *,
    iterator: Any = None,
    ends_samplers: bool = False,
) -> Iterator[tuple[int, Any, bool]]:
    """Iterate over a loader's batches as `numbered` of camshaft-loops does, but for lengths, which may be estimates.

    Of a stream nothing is read ahead if its length or a limit is known: where
    it ends sooner, no batch is the last, which a warning says of a loader that is no stream.

    Args:
        loader, num_batches, first, ahead, iterator: As there.
        ends_samplers: Whether samplers come to their end with the last batch, or stay where that was.

    Raises:
        RuntimeError: If an epoch has fewer batches than all of the run that was resumed.
    """
    may_end_early, ahead = is_open_ended(loader) or length_of(loader) == UNKNOWN, ahead or ReadAhead()
    if ahead.is_filled or (may_end_early and num_batches == UNKNOWN):
        yield from read_ahead(loader, iterator, num_batches, first, ahead)
        return
    batch_idx = first - 1
    batches = read_promised(loader, num_batches, first, iterator, ends_samplers=ends_samplers)
    for batch_idx, batch in enumerate(batches, first):
        if batch_idx + 1 == num_batches:
            ahead.note(num_batches)
        yield batch_idx, batch, batch_idx + 1 == num_batches
    num_read = batch_idx + 1
    if num_read < num_batches:
        ahead.end_epoch(num_read, loader)
        if not may_end_early:
            warn_user(
                f"{name_of(loader)} tells that it has {num_batches} batches and has given {num_read}: the epoch ends "
                "there, without the validation that is due at its last batch. Let `__len__` tell how many there are.",
                of_rank=True,
            )


class FitBatches(TrainingBatches):
    """The batches of training epochs, whose loaders may begin before the epoch does.

    Attributes:
        has_begun: Whether the loaders of the next iteration have begun.
        awaits_loader: Whether the epoch is to go on with a loader that was not given yet.
        ends_samplers: Whether samplers come to their end in each epoch, and so draw from their own generators.
    """

    ends_samplers = False
    has_begun = False
    awaits_loader = False

    def numbered(self, *args: Any) -> Iterator[tuple[int, Any, bool]]:  # type: ignore[override]  # static there
        """Iterate over a loader's batches; see `numbered` of this module."""
        return numbered(*args, ends_samplers=self.ends_samplers)

    def begin(self) -> None:
        """Begin the loaders, which draw random numbers for that; the next iteration is this one."""
        self.has_begun = True
        is_sequential = isinstance(self._loader, CombinedLoader) and self._loader.mode == "sequential"
        for leaf in self._leaves[:1] if is_sequential else self._leaves:
            leaf.begin()

    def __iter__(self) -> Iterator[tuple[int, Any, bool]]:
        """Iterate over an epoch, as `TrainingBatches`.

        Raises:
            ValueError: If it is to go on with a loader that was not given again.
        """
        if self.awaits_loader:
            rule = "replaced until `on_train_start`, as it was in the run of the checkpoint, to resume inside an epoch"
            action = "Replace it there, or resume from the end of an epoch."
            raise ValueError(must_be("train loader", rule, name_of(self._loader), "fit", action))
        self.has_begun = False
        return super().__iter__()


@attrs.define(eq=False, repr=False)
class LightningFitData(FitData):
    """The loaders of a fit, which draw the random numbers that they draw in Lightning.

    The first epoch's training loaders begin before `on_train_start`. A loader that is asked for after the first epoch
    begins twice, and one that is no `DataLoader` once more when it is first used. Validation loaders are asked for with
    the random numbers of before the training loader was, if a sanity check follows, which then restores the global
    random numbers alone, and no state of callbacks, data and metrics. Samplers alone are told the epoch.
    """

    batches_class: ClassVar[type[TrainingBatches]] = FitBatches
    batches: FitBatches = attrs.field(factory=lambda: FitBatches((), 0), init=False)
    # whether by a given loader, where the batches of `loader` are still to be made
    _is_replaced: bool | None = attrs.field(default=None, init=False)
    _awaited: tuple[dict[str, Any], int] | None = attrs.field(default=None, init=False)

    def load(self) -> None:
        """Ask for the loaders; see `FitData.load`."""
        if self._run.checkpoint is not None or self.limits.num_sanity_val_steps == 0:
            super().load()
            return
        self.origin = self._moment()
        self._load_training()
        with isolated_randomness():
            restore_random_state(self.origin["random"])
            self._load_validation()

    def replace(self, loader: Any) -> None:
        """Train on with another loader from the next epoch on, until loaders are asked for again. Collective.

        An epoch whose loaders have begun keeps them. One that is resumed, and had such a loader, goes on with it at
        once.

        Args:
            loader: The loader, as it is, which is not shared out; None asks for it as at first.
        """
        self.loader = self._shared(training_loader(self._run)) if loader is None else as_one_loader(loader)
        self._given, self._is_replaced = None, loader is not None
        if self._awaited is not None:
            (batches, num_done), self._awaited = self._awaited, None
            self._follow_replacement()
            super().go_on({"batches": batches}, num_done)

    def _make_batches(self) -> None:
        self.origin.pop("is_replaced", None)
        if self._is_replaced:
            self.origin["is_replaced"] = True
        self._is_replaced = None
        super()._make_batches()
        if isinstance(self.batches, FitBatches):  # which have no logical ranks
            self.batches.ends_samplers = behaviour_in(self._run).since < LEAVES_SAMPLERS

    def _follow_replacement(self) -> None:
        self._make_batches()
        self.batches.count(*self.limits.train_limit)
        self.num_batches = self.batches.num_batches
        self._follow_loaders()

    def go_on(self, state: dict[str, Any], num_done: int) -> None:
        """Let the first epoch go on from a checkpoint, or await the loader that was given in the run of that."""
        if not state.get("loaders", {}).get("is_replaced"):
            super().go_on(state, num_done)
        elif num_done:
            self._awaited = state["batches"], num_done
            self.batches.awaits_loader = True

    def set_epoch(self, *, of_datasets: bool = False) -> None:
        """Tell the samplers of the training loader which epoch begins."""
        super().set_epoch(of_datasets=of_datasets)

    def isolated(self) -> AbstractContextManager[None]:
        """Return the context of the sanity check, which restores the global random numbers."""
        return isolated_randomness()

    def isolated_from_stop(self) -> AbstractContextManager[None]:
        """Return the context of a validation before a stop, which draws the run's random numbers in Lightning."""
        return nullcontext()

    def reload_if_due(self) -> None:
        """Ask for the training loader again if it is due, or follow one that was given. Hooks: train_dataloader."""
        if self._is_due(self._load_epoch):
            self._is_replaced = None
            super().reload_if_due()
            self._draw_begin()
        elif self._is_replaced is not None and not self.batches.has_begun:
            self._follow_replacement()

    def prepare_first_epoch(self, *, is_read: bool = True) -> None:
        """Begin the first epoch's training loaders before `on_train_start`."""
        run, limits, epoch = self._run, self.limits, self._progress.current_epoch
        if self.num_batches == 0:
            return
        is_resumed = run.checkpoint is not None
        if epoch == 0 and is_read and not is_resumed:
            self._begin_in_vain()
            self.batches.begin()
        elif not is_resumed:
            self._draw_begin()
        # a resumed run leaves the sanity check out, and restores the random numbers of after it
        is_begun = limits.validates_in(epoch) or (is_resumed and limits.num_sanity_val_steps)
        validation: Any = self._validation
        if is_read and self._may_validate and is_begun and hasattr(validation, "begin_in_vain"):
            validation.begin_in_vain()

    def _draw_begin(self) -> None:
        """Draw what loaders draw when they begin, which Lightning lets them do twice."""
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
