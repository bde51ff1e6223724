"""Two ranks of strategies, environments and plugins of one's own; run by test_own_strategies_processes.py.

Arguments: a folder, and the launcher: "torchrun", or "other" for ranks with variables of another launcher.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from launching import report
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from camshaft.compat import Trainer, TrainingModule
from camshaft.compat.names.plugins.checkpoint_io import TorchCheckpointIO
from camshaft.compat.names.plugins.environments import ClusterEnvironment
from camshaft.compat.names.plugins.fsdp import FSDPStrategy
from camshaft.compat.names.plugins.strategies import DDPStrategy

FOLDER, LAUNCHER = Path(sys.argv[1]), sys.argv[2]
LOADER = DataLoader(TensorDataset(torch.arange(24.0).reshape(8, 3) / 24), 2)


class OtherLauncher(ClusterEnvironment):
    """The variables of a launcher that nobody recognises."""

    creates_processes_externally = True
    main_address = "127.0.0.1"

    def __init__(self) -> None:
        self.calls: list[Any] = []

    @property
    def main_port(self) -> int:
        return int(os.environ["OTHER_PORT"])

    @staticmethod
    def detect() -> bool:
        return True

    def world_size(self) -> int:
        return 2

    def global_rank(self) -> int:
        return int(os.environ["OTHER_RANK"])

    local_rank = global_rank

    def node_rank(self) -> int:
        return 0

    def set_world_size(self, size: int) -> None:
        self.calls.append(("size", size))

    def set_global_rank(self, rank: int) -> None:
        self.calls.append(("rank", rank))

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        self.calls.append(("valid", num_devices, num_nodes))

    def teardown(self) -> None:
        self.calls.append("teardown")


class OwnFiles(TorchCheckpointIO):
    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        report("saved by", dist.get_rank())
        super().save_checkpoint({**checkpoint, "own": True}, path, storage_options)


class Own(DDPStrategy):
    """Overrides as public code has them."""

    is_joined = False
    was_wrapped: str | None = None

    def setup_environment(self) -> None:
        super().setup_environment()
        self.is_joined = dist.is_initialized()
        self.pair = dist.new_group([0, 1])

    def configure_ddp(self) -> None:
        super().configure_ddp()
        self.model._set_static_graph()
        self.was_wrapped = type(self.model).__name__

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        return super().reduce(tensor, group, reduce_op)

    def barrier(self, name: str | None = None) -> None:
        super().barrier(name)

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        return super().broadcast(obj, src)


class SameData(Own):
    """All ranks take the same batches."""

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        return {"num_replicas": 1, "rank": 0}


class RankZeroWrites(Own):
    """An override that is not collective, as Lightning's own method is not."""

    def save_checkpoint(self, checkpoint: Any, filepath: Any, storage_options: Any = None) -> None:
        if self.is_global_zero:
            super().save_checkpoint({**checkpoint, "own": True}, filepath, storage_options)


class OwnSharded(FSDPStrategy):
    """A sharded strategy with process groups of its own."""

    def setup_environment(self) -> None:
        super().setup_environment()
        self.pair = dist.new_group([0, 1])


class Line(TrainingModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 1)
        self.seen: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.seen += batch[0][:, 0].tolist()
        loss = self.layer(batch[0]).square().mean()
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


def fitted(strategy: Any, **arguments: Any) -> tuple[Trainer, Line]:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    common = {"accelerator": "cpu", "devices": 2, "max_epochs": 1, "default_root_dir": FOLDER}
    trainer = Trainer(strategy=strategy, **common, **quiet, **arguments)
    module = Line()
    trainer.fit(module, LOADER)
    return trainer, module


def whole(module: Line) -> Any:
    weight: Any = module.layer.weight.detach()
    return (weight.full_tensor() if hasattr(weight, "full_tensor") else weight).tolist()


if LAUNCHER == "other":
    for name in ("RANK", "LOCAL_RANK"):
        os.environ[f"OTHER_{name.removeprefix('LOCAL_')}"] = os.environ[name]
    os.environ["OTHER_PORT"] = os.environ["MASTER_PORT"]
    rank = os.environ["RANK"]
    recognised = ("RANK", "LOCAL_", "WORLD_SIZE", "MASTER_", "TORCHEL")
    for name in [name for name in os.environ if name.startswith(recognised)]:
        del os.environ[name]
    environment = OtherLauncher()
    trainer, module = fitted("ddp", plugins=[environment])
    os.environ["RANK"] = rank  # for the reports
    report("place", (trainer.global_rank, trainer.world_size, trainer.local_rank, trainer.strategy.node_rank))
    report("calls", environment.calls)
    report("weights", whole(module))
else:
    _, plain = fitted("ddp")
    trainer, module = fitted(Own(), plugins=[OwnFiles()])
    trainer.save_checkpoint(FOLDER / "own.ckpt")
    strategy: Any = trainer.strategy
    report("state", (strategy.is_joined, strategy.was_wrapped, len(module.seen)))
    report("equal", whole(module) == whole(plain))
    report("loss", float(trainer.callback_metrics["loss"]))
    _, all_of = fitted(SameData())
    report("same data", len(all_of.seen))
    writer, _ = fitted(RankZeroWrites())
    writer.save_checkpoint(FOLDER / "zero.ckpt")
    for name in ("own", "zero"):
        found = torch.load(FOLDER / f"{name}.ckpt", weights_only=False)
        report(name, (found["own"], found["state_dict"]["layer.weight"].tolist() == whole(module)))
    _, sharded = fitted(OwnSharded())
    report("sharded", torch.allclose(torch.tensor(whole(sharded)), torch.tensor(whole(plain))))
