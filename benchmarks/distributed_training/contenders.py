"""The same training of a tiny model in each framework: data-parallel, and sharded where it can be."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy

from framework_overhead.workload import Batch, build_model, build_optimizer

Train = Callable[[Iterable[Batch]], Tensor]
"""Trains over all batches of this rank once; returns the weights as one vector."""


def by_hand_ddp(batches: Iterable[Batch]) -> Tensor:
    """The loop that a careful engineer writes over DistributedDataParallel."""
    model = nn.parallel.DistributedDataParallel(build_model()).train()
    return _plain_loop(model, build_optimizer(model), batches)


def by_hand_sharded(batches: Iterable[Batch]) -> Tensor:
    """The same over FSDP2."""
    from torch.distributed.fsdp import fully_shard

    model = build_model().train()
    fully_shard(model, mesh=_mesh())
    return _plain_loop(model, build_optimizer(model), batches)


def camshaft_ddp(batches: Iterable[Batch]) -> Tensor:
    """camshaft's trainer with nothing attached, on its DDPStrategy."""
    from camshaft.strategies import DDPStrategy

    return _camshaft(DDPStrategy(accelerator="cpu", devices=2), batches)


def camshaft_sharded(batches: Iterable[Batch]) -> Tensor:
    """The same on its ShardedStrategy."""
    from camshaft.strategies import ShardedStrategy

    return _camshaft(ShardedStrategy(accelerator="cpu", devices=2), batches)


def lightning_ddp(batches: Iterable[Batch]) -> Tensor:
    """Lightning's trainer with nothing attached."""
    import lightning.pytorch as pl

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    module = _module_of(pl.LightningModule)()
    trainer = pl.Trainer(barebones=True, max_epochs=1, accelerator="cpu", devices=2, strategy="ddp")
    trainer.fit(module, batches)
    return flat_weights(module)


def fabric_ddp(batches: Iterable[Batch]) -> Tensor:
    """A loop of the user's own over Fabric's DDP."""
    return _fabric_loop("ddp", batches)


def accelerate_ddp(batches: Iterable[Batch]) -> Tensor:
    """A loop of the user's own over Accelerate."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = build_model().train()
    model, optimizer = accelerator.prepare(model, build_optimizer(model))
    for inputs, classes in batches:
        loss = cross_entropy(model(inputs), classes)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
    return flat_weights(model)


CONTENDERS: dict[str, dict[str, Train]] = {
    "ddp": {
        "by hand": by_hand_ddp,
        "camshaft": camshaft_ddp,
        "lightning": lightning_ddp,
        "fabric": fabric_ddp,
        "accelerate": accelerate_ddp,
    },
    "sharded": {"by hand": by_hand_sharded, "camshaft": camshaft_sharded},
}
"""By kind of training and framework."""


def flat_weights(model: nn.Module) -> Tensor:
    """All parameters, whole, as one vector: proof of the training that was done."""
    tensors = [parameter.detach() for parameter in model.parameters()]
    return torch.cat([(t.full_tensor() if isinstance(t, DTensor) else t).flatten() for t in tensors]).clone()


def _plain_loop(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[Batch]) -> Tensor:
    for inputs, classes in batches:
        loss = cross_entropy(model(inputs), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return flat_weights(model)


def _camshaft(strategy: Any, batches: Iterable[Batch]) -> Tensor:
    from camshaft.trainer import Trainer, TrainingModule

    module = _module_of(TrainingModule)()
    Trainer(barebones=True, max_epochs=1, strategy=strategy).fit(module, batches)
    return flat_weights(module)


def _fabric_loop(strategy: Any, batches: Iterable[Batch]) -> Tensor:
    from lightning.fabric import Fabric

    logging.getLogger("lightning.fabric").setLevel(logging.ERROR)
    fabric = Fabric(accelerator="cpu", devices=2, strategy=strategy)
    fabric.launch()
    model = build_model().train()
    model, optimizer = fabric.setup(model, build_optimizer(model))
    for inputs, classes in batches:
        loss = cross_entropy(model(inputs), classes)
        optimizer.zero_grad()
        fabric.backward(loss)
        optimizer.step()
    return flat_weights(model)


def _module_of(base: type) -> Any:
    class Module(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = build_model()

        def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
            inputs, classes = batch
            return cross_entropy(self.model(inputs), classes)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return build_optimizer(self)

    return Module


def _mesh() -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (torch.distributed.get_world_size(),))
