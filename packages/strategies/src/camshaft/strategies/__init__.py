"""Where and how a model computes: devices, precision, and checkpoints on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from camshaft.strategies.checkpoint_file import CheckpointError, read_checkpoint, write_checkpoint
from camshaft.strategies.consolidate import consolidate_checkpoint
from camshaft.strategies.data_parallel import DDPStrategy
from camshaft.strategies.device import choose_device
from camshaft.strategies.failure_report import CollectiveError
from camshaft.strategies.parallel import ParallelStrategy
from camshaft.strategies.process_environment import job_id, restart_count
from camshaft.strategies.rank_zero import rank_zero_first, rank_zero_only
from camshaft.strategies.safetensors_files import export_safetensors, import_safetensors, read_safetensors
from camshaft.strategies.single_device import SingleDeviceStrategy

if TYPE_CHECKING:
    from camshaft.strategies.sharded import ShardedStrategy

__all__ = [
    "CheckpointError",
    "CollectiveError",
    "DDPStrategy",
    "ParallelStrategy",
    "ShardedStrategy",
    "SingleDeviceStrategy",
    "choose_device",
    "consolidate_checkpoint",
    "export_safetensors",
    "import_safetensors",
    "job_id",
    "rank_zero_first",
    "rank_zero_only",
    "read_checkpoint",
    "read_safetensors",
    "restart_count",
    "write_checkpoint",
]


def __getattr__(name: str) -> type[ShardedStrategy]:
    if name == "ShardedStrategy":  # imports much of torch that the others need not wait for
        from camshaft.strategies.sharded import ShardedStrategy

        return ShardedStrategy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
