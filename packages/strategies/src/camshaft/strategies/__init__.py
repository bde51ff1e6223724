"""Strategies: devices, precision, data parallelism, sharding, process launch, and checkpoints on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from camshaft.hooks_core.on_demand import on_demand
from camshaft.strategies.checkpoints.contents import objects_left_out
from camshaft.strategies.checkpoints.file import CheckpointError, write_checkpoint
from camshaft.strategies.checkpoints.reading import read_checkpoint
from camshaft.strategies.launch.environment import job_id, restart_count
from camshaft.strategies.launch.placement import choose_device
from camshaft.strategies.single_device import SingleDeviceStrategy

if TYPE_CHECKING:
    from camshaft.strategies.checkpoints.safetensors_files import (
        consolidate_checkpoint,
        export_safetensors,
        import_safetensors,
        read_safetensors,
    )
    from camshaft.strategies.ddp import DDPStrategy
    from camshaft.strategies.launch.failures import CollectiveError
    from camshaft.strategies.launch.rank_zero import rank_zero_first, rank_zero_only
    from camshaft.strategies.parallel import ParallelStrategy
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
    "objects_left_out",
    "rank_zero_first",
    "rank_zero_only",
    "read_checkpoint",
    "read_safetensors",
    "restart_count",
    "write_checkpoint",
]

# Imported on first use: a run of one process on one device does not need these modules.
_ON_DEMAND = {
    "CollectiveError": "launch.failures",
    "DDPStrategy": "ddp",
    "ParallelStrategy": "parallel",
    "ShardedStrategy": "sharded",
    "consolidate_checkpoint": "checkpoints.safetensors_files",
    "export_safetensors": "checkpoints.safetensors_files",
    "import_safetensors": "checkpoints.safetensors_files",
    "rank_zero_first": "launch.rank_zero",
    "rank_zero_only": "launch.rank_zero",
    "read_safetensors": "checkpoints.safetensors_files",
}

__getattr__ = on_demand(__name__, _ON_DEMAND)
