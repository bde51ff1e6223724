"""The batches of training epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs

from camshaft.hooks_core.protocols import Strategy
from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.loops.data.combined_loader import CombinedLoader, combinations_of, draws_of, length_of
from camshaft.loops.data.loaders import ReadAhead, count_batches, is_open_ended, numbered
from camshaft.loops.data.rest_of_order import Resharing
from camshaft.loops.data.resumable_loader import ResumableLoader, StatelessLoaders
from camshaft.loops.data.shared_loader import EvenLoader, agree_on_draws, agree_on_lengths

Numbered = tuple[int, Any, bool]
"""Index of a batch in its epoch, the batch, and whether it is the last."""

Watch = tuple[Callable[[], None], Callable[[], None]]
"""What to call before a batch is asked for, and once it is there."""


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
        watches: Watches of the iterations that begin from now on.
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
        self._leaves: list[Any] = []  # each a `ResumableLoader`; with several processes an `EvenLoader`
        self._loader = self._resumable(loader, stateless)
        self._epochs = self._running = _Epoch(num_batches)
        self.step_ratio = 1.0
        self.watches: Sequence[Watch] = ()
        self._ahead = ReadAhead()
        self._knows_samples = False
        self._first = 0
        self._epoch: Iterator[Numbered] = iter(())

    def __iter__(self) -> Iterator[Numbered]:
        """Iterate over an epoch, or its rest after a resume: each batch with its index and whether it is the last."""
        first, self._first = self._first, 0
        self._epoch = self.numbered(self._loader, self.num_batches, first, self._ahead)
        if self.watches:
            self._epoch = _watched(self._epoch, self.watches)
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
            agree_on_draws(self._loader, self._strategy)
        num_batches = count_batches(self._loader, limit, argument)
        self._epochs = self._running = _Epoch(num_batches, is_limited=num_batches < length_of(self._loader))

    def set_epoch(self, epoch: int, *, of_draws: bool = True, of_datasets: bool = True) -> None:
        """Tell combinations that draw loaders, and streams in the place of the loaders' own, which epoch begins."""
        for combination in combinations_of(self._loader) if of_draws else ():
            combination.set_epoch(epoch)
        for leaf in self._leaves if of_datasets else ():
            if isinstance(leaf, ResumableLoader):
                leaf.set_epoch(epoch)

    def count_on(self, before: TrainingBatches) -> None:
        """Count batches for schedules of weights on from those of other loaders, whose place these take."""
        for own, other in zip(combinations_of(self._loader), combinations_of(before._loader), strict=False):
            own.count_on(other)

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
        if self._running.is_reshared:
            self._ahead = ReadAhead()  # its length is not that of other epochs
        self._ahead.clear()
        self._running = self._epochs
        self._loader.end_iteration()

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
        """Return the number of processes that share the data and the sizes of batches: they divide an epoch."""
        num_data_ranks = 1 if self._strategy is None else self._strategy.num_data_ranks
        return [num_data_ranks, *[leaf.batch_size for leaf in self._leaves]]

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
        self._ahead.load_state_dict(state["read_ahead"], is_same_data=before == now and not saved.is_reshared)
        gives_again = any(leaf.gives_again for leaf in self._leaves)
        if gives_again or before[0] != now[0]:
            self._check_ahead()
        if gives_again:
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

    def _check_ahead(self) -> None:
        """Raise `ValueError` if a batch was read ahead by a draw, so that its loader cannot give it once more."""
        if self._ahead.is_filled and draws_of(self._loader):
            rule = "resumed by as many processes inside an epoch, from states of their own, if streams are among them"
            action = "Use as many processes, or resume from a checkpoint that was saved at an epoch's end."
            raise ValueError(must_be("loaders drawn by weights", rule, self._loader, "fit", action))

    def _compare_steps(self, before: list[Any], now: list[Any]) -> None:
        """Note how many samples a step of all processes had before, and warn if it has others now."""
        if before[0] == now[0]:
            return
        knows = None not in (*before[1:], *now[1:])
        sizes = [of_run[0] * (sum(of_run[1:]) if knows else 1) for of_run in (before, now)]
        self.step_ratio = sizes[0] / sizes[1]
        if sizes[0] != sizes[1]:
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
        self._leaves.append(leaf)
        return leaf


def _watched(batches: Iterator[Numbered], watches: Sequence[Watch]) -> Iterator[Numbered]:
    """Give batches, and call the functions of watches around the wait for each."""
    while True:
        for before, _ in watches:
            before()
        try:
            numbered_batch = next(batches, None)
        finally:
            for _, after in watches:
                after()
        if numbered_batch is None:
            return
        yield numbered_batch
