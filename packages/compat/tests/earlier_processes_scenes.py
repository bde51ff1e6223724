"""What two processes do with modules of earlier eras that join the processes, and wrap themselves, by themselves.

torchrun --nproc-per-node 2 earlier_processes_scenes.py FOLDER SCENE ...
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from compat_parts import Regression, quiet_trainer
from launching import report
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from trainer_parts import loader, weights

from camshaft.compat import Trainer, TrainingModule, install_aliases, seed_everything
from camshaft.compat.eras import read_receivers
from camshaft.hooks_core.check import check
from camshaft.hooks_core.eras.hooks import catalogue_of
from camshaft.hooks_core.trace import Trace
from camshaft.strategies import DDPStrategy

install_aliases()

from pytorch_lightning.overrides.data_parallel import (  # type: ignore[import-not-found]  # noqa: E402
    LightningDistributedDataParallel,
)

CALLS: list[tuple[Any, ...]] = []
_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Plain07(Regression):
    hook_era = "0.7"

    def training_step(self, batch: list[Tensor], batch_nb: int) -> dict[str, Any]:  # type: ignore[override]
        return {"loss": self.loss(batch)}


class Both07(Plain07):
    """What a file of that time says, to the letter."""

    def init_ddp_connection(self, proc_rank, world_size):  # type: ignore[no-untyped-def]
        CALLS.append(("init_ddp_connection", proc_rank, world_size, {name: os.environ[name] for name in _VARIABLES}))
        torch_backend = "nccl" if self.trainer.on_gpu else "gloo"
        dist.init_process_group(torch_backend, rank=proc_rank, world_size=world_size)

    def configure_ddp(self, model, device_ids):  # type: ignore[no-untyped-def]
        CALLS.append(("configure_ddp", [name for name, _ in model.named_parameters()], device_ids))
        model = LightningDistributedDataParallel(model, device_ids=device_ids, find_unused_parameters=True)
        return model


class Plain08(Plain07):
    hook_era = "0.8"


class Both08(Plain08):
    """Does something around what was the default."""

    def init_ddp_connection(self, global_rank: int, world_size: int, is_slurm_managing_tasks: bool = True) -> None:
        CALLS.append(("init_ddp_connection", global_rank, world_size, is_slurm_managing_tasks))
        super().init_ddp_connection(global_rank, world_size, is_slurm_managing_tasks)
        CALLS.append(("joined", dist.get_rank(), dist.get_world_size()))

    def configure_ddp(self, model: nn.Module, device_ids: Any) -> Any:
        wrapped = super().configure_ddp(model, device_ids)
        CALLS.append(("configure_ddp", type(wrapped).__name__, wrapped.module is model, device_ids))
        return wrapped


class Branching(Plain08):
    """A branch of it is used by turns, on each rank another one."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(3, 1) for _ in range(2))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.branches[self.trainer.global_rank](inputs)
        return outputs + self.layer(inputs)

    def configure_ddp(self, model: nn.Module, device_ids: Any) -> Any:
        return LightningDistributedDataParallel(model, device_ids=device_ids, find_unused_parameters=True)


class BranchingStrictly(Branching):
    def configure_ddp(self, model: nn.Module, device_ids: Any) -> Any:
        return DistributedDataParallel(model, device_ids=device_ids, find_unused_parameters=False)


class Gan(TrainingModule):
    """Two optimizers by turns, each of whose losses depends on its own part alone."""

    hook_era = "0.8"

    def __init__(self, *, is_wrapping: bool) -> None:
        super().__init__()
        self.generator, self.critic = nn.Linear(3, 1), nn.Linear(1, 1)
        if is_wrapping:
            self.configure_ddp = lambda model, device_ids: DistributedDataParallel(model, find_unused_parameters=True)

    def training_step(self, batch: list[Tensor], batch_idx: int, optimizer_idx: int) -> dict[str, Any]:
        made, real = self.generator(batch[0]), batch[1]
        if optimizer_idx == 0:
            return {"loss": -self.critic(made).mean()}
        return {"loss": self.critic(made.detach()).mean() - self.critic(real).mean()}

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.generator, self.critic)], []


class JoinsNothing(Plain08):
    def init_ddp_connection(self, global_rank: int, world_size: int) -> None: ...


class JoinsAnother(Plain08):
    def init_ddp_connection(self, global_rank: int, world_size: int) -> None:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


class CannotJoin(Plain08):
    def init_ddp_connection(self, global_rank: int, world_size: int) -> None:
        raise OSError("no network")


class LastCannotJoin(Both07):
    def init_ddp_connection(self, proc_rank: int, world_size: int) -> None:
        if proc_rank == 1:
            raise OSError("no network")
        super().init_ddp_connection(proc_rank, world_size)  # waits for the other


class ReturnsNothing(Plain08):
    def configure_ddp(self, model: nn.Module, device_ids: Any) -> None: ...


class WrapsAnother(Plain08):
    def configure_ddp(self, model: nn.Module, device_ids: Any) -> Any:
        return DistributedDataParallel(self, device_ids=device_ids)


class StepsByItself(LightningDistributedDataParallel):  # type: ignore[misc]
    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        return self.module.training_step(*inputs, **kwargs)


class WrapsInItsOwn(Plain08):
    def configure_ddp(self, model: nn.Module, device_ids: Any) -> Any:
        return StepsByItself(model, device_ids=device_ids)


def trainer(folder: Path, **arguments: Any) -> Trainer:
    if isinstance(arguments.setdefault("strategy", "ddp"), str):
        arguments |= {"accelerator": "cpu", "devices": 2}
    return quiet_trainer(folder, **arguments)


def trained(folder: Path, make: Callable[[], Any], **arguments: Any) -> dict[str, Any]:
    seed_everything(3)
    module = make()
    trainer(folder, max_epochs=2, enable_checkpointing=False, logger=False, **arguments).fit(module, loader(4))
    return weights(module)


def of_0_7(folder: Path) -> Any:
    """Joins by itself, twice; then without anything of it."""
    trace = Trace(catalogue_of("0.7"))
    both = trained(folder, lambda: trace.record(Both07(), "module"))
    check(trace, "fit")
    found = list(CALLS)
    CALLS.clear()
    again = trained(folder, Both07)
    return both, again, trained(folder, Plain07), found, list(CALLS)


def of_0_8(folder: Path) -> Any:
    """Joins by what comes first, which is a validation here."""
    trainer(folder, logger=False).validate(Both08(), loader(2), verbose=False)
    CALLS.append(("validated",))
    trace = Trace(read=read_receivers)
    both = trained(folder, lambda: trace.record(Both08(), "module"))
    check(trace, "fit")
    return both, trained(folder, Plain08), list(CALLS)


def unused(folder: Path) -> Any:
    """In a group that the script itself has initialised."""
    dist.init_process_group("gloo")
    trained(folder, Both07)
    return trained(folder, Branching), trained(folder, lambda: Gan(is_wrapping=True)), failure(BranchingStrictly), CALLS


def failures(folder: Path) -> Any:
    """Whatever goes wrong does so on all processes, and the next fit joins anew."""
    kinds = (JoinsNothing, JoinsAnother, CannotJoin, Both07, ReturnsNothing, WrapsAnother, WrapsInItsOwn)
    told = {kind.__name__: failure(kind) for kind in kinds}
    static = DDPStrategy(accelerator="cpu", devices=2, static_graph=True)
    told["static_graph"] = failure(Branching, strategy=static)
    told["sharded"] = failure(Branching, strategy="sharded")
    trained(folder, Both07)
    return told, [name for name, *_ in CALLS]


def one_cannot_join(folder: Path) -> None:
    trained(folder, LastCannotJoin)


def failure(make: Callable[[], Any], **arguments: Any) -> str | None:
    try:
        trained(Path(sys.argv[1]), make, **arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


SCENES: list[Callable[[Path], Any]] = [of_0_7, of_0_8, unused, failures, one_cannot_join]


def main() -> None:
    for scene in SCENES:
        if scene.__name__ in sys.argv[2:]:
            report(scene.__name__, scene(Path(sys.argv[1], scene.__name__)))


if __name__ == "__main__":
    main()
