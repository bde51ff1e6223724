"""Saves that were asked for and are not yet durable, and what happens to files once they are."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


class SaveRequest:
    """One save on its way to the disk.

    Args:
        request_idx: Its place among the requests.
        path: The checkpoint to be written.
        memory: The callback's state with this save in it: what is true once it is durable.
        displaced: Checkpoints that it replaces; they go once it is durable.
        last_path: The name "last" that moves to it once it is durable, `path` itself if it is written there; None
            leaves "last" where it is.

    Attributes:
        is_asked: Whether the trainer was asked to write it.
        is_abandoned: Whether a later save has displaced it already, so that it goes as soon as it comes.
    """

    def __init__(
        self,
        request_idx: int,
        path: str,
        memory: dict[str, Any],
        displaced: tuple[str, ...],
        last_path: str | None,
    ) -> None:
        self.request_idx = request_idx
        self.path = path
        self.memory = memory
        self.displaced = displaced
        self.last_path = last_path
        self.is_asked = False
        self.is_abandoned = False


class PendingSaves:
    """The saves of one callback that are not yet durable.

    They usually become durable in the order in which they were asked for; an asynchronous writer need not keep it.

    Args:
        folder: The only folder in which checkpoints are removed; one that lies elsewhere is left alone.
        durable_memory: The callback's state as of its newest durable save.
        point_last: Names a durable checkpoint "last", given both paths.
        remove_checkpoint: Removes the checkpoint at a path.
    """

    def __init__(
        self,
        folder: Path,
        durable_memory: dict[str, Any],
        *,
        point_last: Callable[[str, str], None],
        remove_checkpoint: Callable[[str], None],
    ) -> None:
        self.folder = folder
        self.durable_memory = durable_memory
        self.point_last = point_last
        self.remove_checkpoint = remove_checkpoint
        self._requests: list[SaveRequest] = []
        self._num_requested = 0
        self._durable_idx = -1
        self._last_idx = -1

    def __bool__(self) -> bool:
        return bool(self._requests)

    def __contains__(self, request: object) -> bool:
        return request in self._requests

    def holds(self, path: str) -> bool:
        """Whether a save to `path` is on its way."""
        return any(request.path == path for request in self._requests)

    def state_dict(self) -> list[dict[str, Any]]:
        """The saves on their way, in the order in which they were asked for, as plain values."""
        return [
            {"path": request.path, "displaced": list(request.displaced), "last_path": request.last_path}
            for request in self._requests
            if not request.is_abandoned
        ]

    def add(self, path: str, memory: dict[str, Any], displaced: tuple[str, ...], last_path: str | None) -> SaveRequest:
        """Note a save that is about to be asked for."""
        request = SaveRequest(self._num_requested, path, memory, displaced, last_path)
        self._num_requested += 1
        self._requests.append(request)
        return request

    def settle(self, request: SaveRequest) -> bool:
        """Do what has waited until `request` is durable. Nothing happens if it was given up.

        Returns:
            Whether there is a checkpoint at its path now.

        Raises:
            OSError: If "last" cannot be moved, as if the save had failed; or a displaced checkpoint cannot be removed.
        """
        if request not in self._requests:
            return False
        if request.last_path is not None and request.request_idx > self._last_idx:
            if request.last_path != request.path:
                self.point_last(request.path, request.last_path)
            self._last_idx = request.request_idx
        self._requests.remove(request)
        if request.request_idx >= self._durable_idx:
            self._durable_idx = request.request_idx
            self.durable_memory = request.memory
        for path in request.displaced:
            self._let_go(path)
        if request.is_abandoned:
            self._remove(request.path)
        return not request.is_abandoned

    def reopen(self, request: SaveRequest) -> None:
        """Take a durable save back among those that have something to be done; `settle` does it."""
        self._requests.append(request)

    def give_up(self) -> dict[str, Any]:
        """Forget the saves that never came; return the state that the durable ones leave."""
        self._requests.clear()
        return self.durable_memory

    def _let_go(self, path: str) -> None:
        on_their_way = [request for request in self._requests if request.path == path]
        for request in on_their_way:
            request.is_abandoned = True
        if not on_their_way:
            self._remove(path)

    def _remove(self, path: str) -> None:
        if lies_in(path, self.folder):
            self.remove_checkpoint(path)


def lies_in(path: str, folder: Path) -> bool:
    """Whether a path is below a folder. It may come out of a checkpoint, with ".." that leads out."""
    return folder in Path(os.path.abspath(path)).parents
