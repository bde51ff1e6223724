"""The batches of training epochs, one epoch after the other, from a position that can be saved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from camshaft.hooks_core.messages import must_be
from camshaft.loops.batches import ReadAhead, numbered
from camshaft.loops.combined_loader import CombinedLoader
from camshaft.loops.resumable_loader import ResumableLoader, StatelessLoaders

Numbered = tuple[int, Any, bool]


class TrainingBatches:
    """Gives the batches of each training epoch, and can go on inside one.

    Args:
        loader: A loader, or a combination of several.
        num_batches: How many batches an epoch takes; infinite takes all there are.
        stateless: What to do with loaders that cannot tell where they were; see `ResumableLoader`.
    """

    def __init__(self, loader: Any, num_batches: int | float, stateless: StatelessLoaders = "refuse") -> None:
        self._loader = _resumable(loader, stateless)
        self.num_batches = num_batches
        self._ahead = ReadAhead()
        self._first = 0
        self._epoch: Iterator[Numbered] = iter(())

    def __iter__(self) -> Iterator[Numbered]:
        """The batches of an epoch, each with its index and whether it is the last; the rest of one after a resume."""
        first, self._first = self._first, 0
        self._epoch = numbered(self._loader, self.num_batches, first, self._ahead)
        return self._epoch

    def end_epoch(self) -> None:
        """The epoch is over, be it that batches of it are left; the next iteration begins anew."""
        self._epoch = iter(())
        self._loader.end_iteration()
        self._ahead.clear()

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


def _resumable(loader: Any, stateless: StatelessLoaders) -> Any:
    if isinstance(loader, CombinedLoader):
        return loader.with_loaders(lambda leaf: _resumable(leaf, stateless))
    return ResumableLoader(loader, stateless)
