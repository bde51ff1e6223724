"""Strategies: devices, precision, data parallelism, sharding, process launch, and checkpoints on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from camshaft.hooks_core.support.on_demand import on_demand
from camshaft.strategies.checkpoints.contents import CheckpointError, ObjectsInPlace, objects_left_out, why_unpicklable
from camshaft.strategies.checkpoints.file import read_checkpoint, write_checkpoint
from camshaft.strategies.launch.environment import find_process_environment, job_id, restart_count
from camshaft.strategies.launch.placement import choose_device
from camshaft.strategies.precision import choose_precision
from camshaft.strategies.single_device import SingleDeviceStrategy
from camshaft.strategies.torch_strategy import TorchStrategy

if TYPE_CHECKING:
    from camshaft.strategies.checkpoints.foreign_files import NamedValues
    from camshaft.strategies.checkpoints.safetensors_files import (
        consolidate_checkpoint,
        export_safetensors,
        import_safetensors,
        read_safetensors,
    )
    from camshaft.strategies.ddp import DDPStrategy
    from camshaft.strategies.launch.failures import CollectiveError
    from camshaft.strategies.launch.rank_zero import is_rank_zero, rank_zero_first, rank_zero_only
    from camshaft.strategies.parallel import ParallelStrategy
    from camshaft.strategies.sharded import ShardedStrategy

__all__ = [
    "CheckpointError",
    "CollectiveError",
    "DDPStrategy",
    "NamedValues",
    "ObjectsInPlace",
    "ParallelStrategy",
    "ShardedStrategy",
    "SingleDeviceStrategy",
    "TorchStrategy",
    "choose_device",
    "choose_precision",
    "consolidate_checkpoint",
    "export_safetensors",
    "find_process_environment",
    "import_safetensors",
    "is_rank_zero",
    "job_id",
    "objects_left_out",
    "rank_zero_first",
    "rank_zero_only",
    "read_checkpoint",
    "read_safetensors",
    "restart_count",
    "why_unpicklable",
    "write_checkpoint",
]

# Imported on first use: a run of one process on one device does not need these modules.
_ON_DEMAND = {
    "checkpoints.foreign_files": ("NamedValues",),
    "checkpoints.safetensors_files": (
        *("consolidate_checkpoint", "export_safetensors", "import_safetensors", "read_safetensors"),
    ),
    "ddp": ("DDPStrategy",),
    "launch.failures": ("CollectiveError",),
    "launch.rank_zero": ("is_rank_zero", "rank_zero_first", "rank_zero_only"),
    "parallel": ("ParallelStrategy",),
    "sharded": ("ShardedStrategy",),
}

__getattr__ = on_demand(__name__, {name: module for module, names in _ON_DEMAND.items() for name in names})
