"""A checkpoint that is being written while training goes on, and what processes tell each other about errors."""

from __future__ import annotations

import atexit
import pickle
import sys
import threading
from collections.abc import Callable
from typing import Protocol

import torch

from camshaft.hooks_core.protocols import Collectives


class Peers(Collectives, Protocol):
    """What a checkpoint needs of a strategy."""

    device: torch.device
    global_rank: int
    world_size: int


class PendingWrite:
    """A checkpoint that a thread of this process writes, or another process alone.

    The interpreter does not end before the thread does. An error that nobody waited for is told then.

    Args:
        strategy: Lets the processes talk when they wait.
        path: The target.
        write: What writes; None where this process has nothing to write.
    """

    def __init__(self, strategy: Peers, path: str, write: Callable[[], None] | None) -> None:
        self._strategy = strategy
        self._path = path
        self._error: BaseException | None = None
        self.is_settled = False
        self._thread: threading.Thread | None = None
        if write is not None:
            self._thread = threading.Thread(target=self._run, args=(write,), name="camshaft-checkpoint", daemon=False)
            self._thread.start()

    def wait(self) -> None:
        """Return when the checkpoint is durable and whole. Collective the first time.

        Raises:
            Exception: What writing it raised on any process, on every process.
        """
        self.join()
        if not self.is_settled:
            self.is_settled = True
            self._error = agreed(self._error, self._strategy, self._path)
            _unsettled.discard(self)
        if self._error is not None:
            raise self._error

    def join(self) -> None:
        """Return when this process has written its part, or failed to."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def tell(self) -> None:
        """Print the error, if there is one."""
        if self._error is not None:
            what = f"{type(self._error).__qualname__}: {self._error}"
            print(f"error: the checkpoint {self._path!r} was not written ({what})", file=sys.stderr)

    def _run(self, write: Callable[[], None]) -> None:
        try:
            write()
        except BaseException as error:
            self._error = error
            _unsettled.add(self)


_unsettled: set[PendingWrite] = set()
"""Writes that failed and that nobody has waited for since."""


@atexit.register
def _tell_unsettled() -> None:
    for pending in _unsettled:
        pending.tell()


def agreed(error: BaseException | None, strategy: Peers, path: str) -> BaseException | None:
    """What every process is to raise: what it ran into itself, or else what that of the lowest rank did. Collective."""
    if strategy.world_size == 1:
        return error
    told = None if error is None else portable(error, strategy.global_rank, path)
    return own_or_first(error, strategy.all_gather(told))


def own_or_first(own: BaseException | None, errors: list[BaseException | None]) -> BaseException | None:
    """Among the errors of all processes, the one that this one raises."""
    return own if own is not None else next((error for error in errors if error is not None), None)


def portable(error: BaseException, rank: int, path: str) -> BaseException:
    """An error as other processes can raise it, with a note that says where it comes from."""
    try:
        told: BaseException = pickle.loads(pickle.dumps(error))
    except Exception:  # whatever somebody's exception raises when it is made anew
        told = RuntimeError(f"{type(error).__qualname__}: {error}")
    told.add_note(f"Raised on rank {rank} by the checkpoint {path!r}.")
    return told
