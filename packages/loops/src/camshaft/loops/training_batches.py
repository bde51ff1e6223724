"""The batches of training epochs, one epoch after the other, from a position that can be saved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.protocols import Strategy
from camshaft.loops.batches import ReadAhead, count_batches, numbered
from camshaft.loops.combined_loader import CombinedLoader
from camshaft.loops.even_loader import EvenLoader, agree_on_lengths
from camshaft.loops.resumable_loader import ResumableLoader, StatelessLoaders

Numbered = tuple[int, Any, bool]


class TrainingBatches:
    """Gives the batches of each training epoch, and can go on inside one.

    Args:
        loader: A loader, or a combination of several.
        num_batches: How many batches an epoch takes; infinite takes all there are.
        stateless: What to do with loaders that cannot tell where they were; see `ResumableLoader`.
        strategy: Connects the processes, in all of which epochs end at the same batch; None stands for one process.
    """

    def __init__(
        self,
        loader: Any,
        num_batches: int | float,
        stateless: StatelessLoaders = "refuse",
        strategy: Strategy | None = None,
    ) -> None:
        self._strategy = None if strategy is None or strategy.num_data_ranks == 1 else strategy
        self._even: list[EvenLoader] = []
        self._leaves: list[ResumableLoader] = []
        self._loader = self._resumable(loader, stateless)
        self.num_batches = num_batches
        self._ahead = ReadAhead()
        self._first = 0
        self._epoch: Iterator[Numbered] = iter(())

    def __iter__(self) -> Iterator[Numbered]:
        """The batches of an epoch, each with its index and whether it is the last; the rest of one after a resume."""
        first, self._first = self._first, 0
        self._epoch = numbered(self._loader, self.num_batches, first, self._ahead)
        return self._epoch

    def count(self, limit: int | float, argument: str) -> None:
        """Take so much of the loader in each epoch, the same in all processes. Collective with several.

        Args:
            limit: An int is a number of batches of each process, a float a share of its batches.
            argument: Name of the argument that the limit was given by, for errors.

        Raises:
            ValueError: As `count_batches`, or if the processes have loaders that do not fit together.
        """
        if self._strategy is not None:
            agree_on_lengths(self._even, self._strategy)
        self.num_batches = count_batches(self._loader, limit, argument)

    def end_epoch(self) -> None:
        """The epoch is over, be it that batches of it are left; the next iteration begins anew."""
        self._epoch = iter(())
        self._loader.end_iteration()
        self._ahead.clear()

    def stop_workers(self) -> None:
        """End the loaders' worker processes after an error; see `ResumableLoader.stop_workers`."""
        for leaf in self._leaves:
            leaf.stop_workers()

    def state_dict(self) -> dict[str, Any]:
        """The position, as tensors and plain values if the loaders' states (and a batch read ahead) are."""
        return {
            "loader": self._loader.state_dict(),
            "read_ahead": self._ahead.state_dict(),
            "num_batches": self.num_batches,
        }

    def load_state_dict(self, state: dict[str, Any], num_done: int) -> None:
        """Let the next iteration go on from a position; no random numbers are drawn.

        Args:
            state: What `state_dict` returned.
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
        self._ahead.load_state_dict(state["read_ahead"])
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
