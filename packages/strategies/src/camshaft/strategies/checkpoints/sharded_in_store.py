"""A sharded checkpoint in a store that fsspec reaches, written by torch's fsspec writer.

Nothing can be renamed there together. So the ranks write files with new names beside those of a previous checkpoint in
the same directory, and rank 0 publishes a new `plain.ckpt`, which lists them: before, the previous checkpoint is the
one that is there, and afterwards the new one. Then the previous files are removed.
"""

from __future__ import annotations

import pickle
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.storage import WriteResult

from camshaft.hooks_core.support.remote_files import files_below, join, make_folder, new_file, remove
from camshaft.strategies.checkpoints.file import PLAIN_FILE, check_replaceable_in_store, write_plain

_METADATA_FILE = ".metadata"
"""Torch's index, a pickle, for its own tools."""


class NewStoreDirectory(FsspecWriter):
    """A directory whose files have names of their own, until `plain.ckpt` lists them.

    Args:
        url: Its URL.
        prefix: What the names of its files begin with; the same on all ranks, and that of no other checkpoint.
        is_first: Whether this is rank 0.

    Attributes:
        opened: A context that does nothing.
    """

    def __init__(self, url: str, prefix: str, is_first: bool) -> None:
        # Syncing is for disks: it would flush all of this machine's, while a store keeps what it has acknowledged.
        super().__init__(url, sync_files=False)
        self._url = url
        self._prefix = prefix
        self._is_first = is_first
        self.opened = ExitStack()

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        if self._is_first:
            check_replaceable_in_store(self._url)
            make_folder(self._url)
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        numbered = super().prepare_global_plan(plans)
        return [
            replace(plan, storage_data=replace(plan.storage_data, prefix=self._prefix + plan.storage_data.prefix))
            for plan in numbered
        ]

    def finish(self, metadata: metadata.Metadata, results: list[list[WriteResult]]) -> None:
        """Complete the index, which is written last."""
        metadata.version = filesystem.CURRENT_DCP_VERSION
        metadata.storage_data = {result.index: result.storage_data for of_rank in results for result in of_rank}

    def storage_meta(self) -> metadata.StorageMeta | None:
        return None  # it would hold the URL, and with it perhaps a key

    def publish(self, content: dict[str, Any], index: metadata.Metadata) -> None:
        """Publish the plain part and torch's index, and remove the files of a previous checkpoint."""
        write_plain(content, join(self._url, PLAIN_FILE))
        with new_file(join(self._url, _METADATA_FILE)) as file:
            file.write_bytes(pickle.dumps(index))
        for url in files_below(self._url):
            name = url.removeprefix(join(self._url, ""))
            if name not in (PLAIN_FILE, _METADATA_FILE) and not name.startswith(self._prefix):
                remove(url)

    def discard(self) -> None:
        """Remove the files of all ranks."""
        for url in files_below(self._url):
            if url.startswith(join(self._url, self._prefix)):
                remove(url)
