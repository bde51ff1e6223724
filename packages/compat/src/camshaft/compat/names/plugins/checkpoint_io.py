"""Plugins that write and read the checkpoints of a strategy in place of it."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import attrs
from torch import Tensor

from camshaft.hooks_core.support import remote_files
from camshaft.hooks_core.support.messages import must_be
from camshaft.hooks_core.support.transfer import map_nested
from camshaft.strategies import read_checkpoint, write_checkpoint

_Path = str | os.PathLike[str]


class CheckpointIO(ABC):
    """A plugin that writes, reads and removes checkpoints: `Trainer(plugins=...)`, or `checkpoint_io` of a strategy.

    `save_checkpoint` is called on rank 0, and the other two on every rank that needs them.
    """

    @abstractmethod
    def save_checkpoint(self, checkpoint: dict[str, Any], path: _Path, storage_options: Any = None) -> None:
        """Write a checkpoint, with whole tensors and objects in their places."""

    @abstractmethod
    def load_checkpoint(self, path: _Path, map_location: Any = None, weights_only: bool | None = None) -> Any:
        """Return a checkpoint."""

    @abstractmethod
    def remove_checkpoint(self, path: _Path) -> None:
        """Remove a checkpoint."""

    def teardown(self) -> None:
        """Wait for what is under way; called when a verb ends."""
        return


class TorchCheckpointIO(CheckpointIO):
    """The plugin that does what the strategy does without one."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: _Path, storage_options: Any = None) -> None:
        """Write a checkpoint by `torch.save`, whole or not at all.

        Raises:
            TypeError: If there are storage options.
        """
        if storage_options is not None:
            where, action = "TorchCheckpointIO.save_checkpoint", "Define `save_checkpoint` of a plugin that takes them."
            raise TypeError(must_be("storage_options", "None", storage_options, where, action))
        path = remote_files.local_path(path)
        remote_files.make_folder(remote_files.parent_of(path) or ".")
        write_checkpoint(checkpoint, path)

    def load_checkpoint(self, path: _Path, map_location: Any = None, weights_only: bool | None = None) -> Any:
        """Return a checkpoint; see `camshaft.strategies.read_checkpoint`."""
        return read_checkpoint(path, map_location=map_location or "cpu", weights_only=weights_only)

    def remove_checkpoint(self, path: _Path) -> None:
        """Remove the file or the folder."""
        remote_files.remove(remote_files.local_path(path))


class AsyncCheckpointIO(CheckpointIO):
    """A plugin that lets another one write in a thread, while training goes on, from a copy of the tensors.

    Args:
        checkpoint_io: The other one; None is a `TorchCheckpointIO`.
    """

    def __init__(self, checkpoint_io: CheckpointIO | None = None) -> None:
        self.checkpoint_io = TorchCheckpointIO() if checkpoint_io is None else checkpoint_io
        self._thread: ThreadPoolExecutor | None = None
        self._pending: _Pending | None = None

    def save_checkpoint(self, checkpoint: dict[str, Any], path: _Path, storage_options: Any = None) -> Any:
        """Begin to write a checkpoint, after the one before is written.

        Returns:
            What waits for it, and raises its error.
        """
        self.teardown()
        self._thread = self._thread or ThreadPoolExecutor(max_workers=1)
        copied = map_nested(checkpoint, lambda leaf: isinstance(leaf, Tensor), lambda leaf: leaf.detach().clone())
        further = {} if storage_options is None else {"storage_options": storage_options}
        self._pending = _Pending(self._thread.submit(self.checkpoint_io.save_checkpoint, copied, path, **further))
        return self._pending

    def load_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        """Let the other plugin read a checkpoint."""
        self.teardown()
        return self.checkpoint_io.load_checkpoint(*args, **kwargs)

    def remove_checkpoint(self, path: _Path) -> None:
        """Let the other plugin remove a checkpoint."""
        self.checkpoint_io.remove_checkpoint(path)

    def teardown(self) -> None:
        """Wait for the checkpoint that is being written.

        Raises:
            Exception: The error of writing it, unless it was raised already.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.wait()


@attrs.frozen
class _Pending:
    """A save that is under way; see `camshaft.hooks_core.protocols.PendingSave`."""

    future: Future[Any]

    def wait(self) -> None:
        """Wait for it, and raise its error."""
        self.future.result()
