"""Callback that writes a snapshot of the device's memory when it runs out."""

from __future__ import annotations

import os
from typing import Any

import torch

from camshaft.callbacks.arguments import check_number
from camshaft.callbacks.checkpoints.files import default_folder
from camshaft.callbacks.checkpoints.names import absolute_folder
from camshaft.hooks_core import Callback
from camshaft.hooks_core.protocols import TrainerProtocol
from camshaft.hooks_core.support.processes import current_run
from camshaft.hooks_core.support.remote_files import join, replace_file


class OutOfMemorySnapshot(Callback):
    """Writes a snapshot of the device's memory when it runs out, for https://pytorch.org/memory_viz.

    The error gets a note with the file, the batch and the update. Each rank that runs out of memory writes its own
    file. Where torch's module of the device takes no snapshots (`torch.cuda.memory._dump_snapshot`), as on the CPU, the
    note says so instead.

    Args:
        dirpath: Folder of the file, or its URL; None is that of the checkpoints.
        max_entries: Number of allocations and releases whose stacks are kept, the last ones. Each takes about 2
            microseconds and some KB of host memory; 0 keeps none, and the snapshot shows which memory is in use alone.

    Raises:
        InvalidArgumentError: If `max_entries` is negative or no int, or nothing can be written to `dirpath`.
    """

    only_observes = True

    def __init__(self, dirpath: str | os.PathLike[str] | None = None, max_entries: int = 100_000) -> None:
        super().__init__()
        check_number(self, "Pass 0 to keep no stacks.", max_entries=max_entries, least=0, is_int=True)
        self.dirpath = None if dirpath is None else absolute_folder(dirpath, self)
        self.max_entries = max_entries
        self._memory: Any = None

    def setup(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Begin to record, if torch does so for the device."""
        memory = getattr(torch.get_device_module(trainer.strategy.device), "memory", None)
        self._memory = memory if hasattr(memory, "_dump_snapshot") else None
        if self._memory is not None and self.max_entries:
            self._memory._record_memory_history(max_entries=self.max_entries)

    def on_exception(self, trainer: TrainerProtocol, module: Any, exception: BaseException) -> None:
        """Write the snapshot, if memory has run out."""
        from camshaft.callbacks.finders.batch_size_finder import is_out_of_memory  # slow to import

        if not is_out_of_memory(exception):
            return
        strategy, run = trainer.strategy, current_run()
        where = f"Memory ran out after {trainer.global_step} updates" + ("" if run is None else f", in {run[1]}")
        if self._memory is None:
            exception.add_note(f"{where}. Torch takes no snapshots of the memory of {strategy.device.type}.")
            return
        folder = default_folder(trainer) if self.dirpath is None else self.dirpath
        path = join(folder, f"memory-step={trainer.global_step}-rank={strategy.global_rank}.pickle")
        with replace_file(path) as fresh:
            self._memory._dump_snapshot(str(fresh))
        exception.add_note(f"{where}: a snapshot of it is in {path}. Open it on https://pytorch.org/memory_viz.")

    def teardown(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Record no more."""
        if self._memory is not None and self.max_entries:
            self._memory._record_memory_history(enabled=None)
        self._memory = None
