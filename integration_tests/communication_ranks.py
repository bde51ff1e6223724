"""Counts what this rank communicates in each part of training, under a `Trainer` and in a loop by hand.

Every rank reports, for each case, what it communicated by moment: under the trainer, and in the loop.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from launching import report
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, TensorDataset

from camshaft.callbacks import Logger
from camshaft.hooks_core import Callback
from camshaft.strategies import DDPStrategy, ShardedStrategy
from camshaft.trainer import Trainer, TrainingModule

WIDTH, NUM_CLASSES, BATCH_SIZE, NUM_BATCHES, WINDOW, NUM_RANKS = 64, 10, 8, 8, 4, 4


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)) for _ in range(4)
        )
        self.head = nn.Linear(WIDTH, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

    def split(self, mesh: Any) -> None:
        for layer in self.layers:
            parallelize_module(layer, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


KINDS = {
    "allgather_base": "all-gather",
    "reduce_scatter_base": "reduce-scatter",
    "allreduce": "all-reduce",
    "all_reduce": "all-reduce",
    "broadcast": "broadcast",
    "allgather": "exchange",
    "gather": "exchange",
    "scatter": "exchange",
}
"""Torch's operations. Objects, such as plans and states of ranks, are exchanged as bytes."""


class Collectives(TorchDispatchMode):
    """Counts the collectives of the moment that is set, and the bytes of the tensors that they carry."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, Counter[str]] = {}
        self.moment = "begin"

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:
            return NotImplemented  # its own operations come here again
        name = func._opname.strip("_")
        if func.namespace in ("c10d", "_c10d_functional") and name not in ("wait_tensor", "wrap_tensor_autograd"):
            carried = [[one for one in tree_leaves(value) if isinstance(one, Tensor)] for value in args]
            has_floats = any(one.is_floating_point() for tensors in carried for one in tensors)
            kind = KINDS[name] if has_floats else f"{KINDS[name]} of integers"
            size = max(sum(one.nbytes for one in tensors) for tensors in carried)
            self.found.setdefault(self.moment, Counter()).update({kind: 1, f"bytes of {kind}": size})
        return func(*args, **(kwargs or {}))


@attrs.frozen
class Case:
    name: str
    make: Callable[[], Any]  # the strategy
    replicas: int = 1
    tensor_parallel: int = 1
    accumulate: int = 1
    clip: float | None = None
    reduces: str = "reduce"
    has_head_in_root: bool = False
    logs: bool = False

    def is_block(self, module: nn.Module) -> bool:
        is_head = getattr(module, "out_features", None) == NUM_CLASSES
        return isinstance(module, nn.Sequential) or (is_head and not self.has_head_in_root)


def cases() -> Iterator[Case]:
    """Every strategy with updates that are clipped, and with windows whose gradients wait in each way."""
    yield Case("ddp", partial(DDPStrategy, accelerator="cpu"), clip=0.1)
    yield Case("ddp, logged", partial(DDPStrategy, accelerator="cpu"), logs=True)
    yield Case("ddp, windows", partial(DDPStrategy, accelerator="cpu"), accumulate=WINDOW)
    plain = Case("", int)
    sharded = partial(ShardedStrategy, accelerator="cpu", policy=plain.is_block)
    for kind, replicas, tensor_parallel in (("sharded", 1, 1), ("hybrid", 2, 1), ("tensor parallel", 1, 2)):
        make = partial(sharded, data_parallel_replicas=replicas, tensor_parallel=tensor_parallel)
        yield Case(kind, make, replicas, tensor_parallel, clip=0.1)
        for reduces in ("reduce", "keep", "keep_all"):
            its_own = partial(make, accumulation=reduces)
            yield Case(f"{kind}, windows, {reduces}", its_own, replicas, tensor_parallel, WINDOW, None, reduces)
    yield Case("sharded, prefetching", partial(sharded, prefetch=2))
    yield Case("sharded, default policy", partial(sharded, policy=None), has_head_in_root=True)


class Module(TrainingModule):
    def __init__(self, tensor_parallel: int) -> None:
        super().__init__()
        self.net: Net | None = None
        self.tensor_parallel = tensor_parallel

    def configure_model(self) -> None:
        if self.net is None:
            self.net = Net()
            if self.tensor_parallel > 1:
                self.net.split(self.device_mesh["tensor_parallel"])

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss, on_step=True, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        return SGD(self.parameters(), lr=0.1)


class NoLogger(Logger):
    """Is given values, and writes none."""

    name, version = "", 0

    def log_metrics(self, metrics: Any, step: int | None = None) -> None: ...

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None: ...


class Moments(Callback):
    """Tells the count which moment it is."""

    def __init__(self, collectives: Collectives, path: Path) -> None:
        self.collectives, self.path = collectives, path

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self.collectives.moment = moment_of(batch_idx, trainer.accumulate_grad_batches)

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.collectives.moment = "between batches"

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        self.collectives.moment = "epoch end"

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        self.collectives.moment = "validation start"

    def on_validation_batch_start(self, *args: Any) -> None:
        self.collectives.moment = "evaluation batch" if args[3] else "first evaluation batch"

    def on_validation_batch_end(self, *args: Any) -> None:
        self.collectives.moment = "between evaluation batches"

    def on_validation_epoch_end(self, trainer: Any, module: Any) -> None:
        self.collectives.moment = "validation end"

    def on_train_end(self, trainer: Any, module: Any) -> None:
        trainer.save_checkpoint(self.path)
        self.collectives.moment = "saving"


def moment_of(batch_idx: int, window: int) -> str:
    """The second window is counted: the first begins with other things to set up."""
    if batch_idx < WINDOW:
        return "warm-up"
    if (batch_idx + 1) % window == 0:
        return "last batch of a window"
    return "first batch of a window" if batch_idx % window == 0 else "batch inside of a window"


def loader() -> Any:
    inputs = torch.randn(BATCH_SIZE * NUM_BATCHES * NUM_RANKS, WIDTH)
    return DataLoader(TensorDataset(inputs, torch.zeros(len(inputs), dtype=torch.long)), batch_size=BATCH_SIZE)


def by_trainer(case: Case, folder: Path) -> dict[str, Counter[str]]:
    with Collectives() as collectives:
        trainer = Trainer(
            strategy=case.make(),
            max_epochs=1,
            limit_train_batches=NUM_BATCHES,
            limit_val_batches=3,
            accumulate_grad_batches=case.accumulate,
            gradient_clip_val=case.clip,
            callbacks=Moments(collectives, folder / "x.ckpt"),
            num_sanity_val_steps=0,
            logger=NoLogger() if case.logs else False,
            log_every_n_steps=1,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Module(case.tensor_parallel), loader(), loader())
    return collectives.found


def by_hand(case: Case, folder: Path) -> dict[str, Counter[str]]:
    """The loop as a good engineer writes it."""
    net: Any = Net()
    is_ddp = case.name.startswith("ddp")
    if is_ddp:
        model = net = DistributedDataParallel(net)
    else:
        names = ("data_parallel_replicas", "data_parallel_shards", "tensor_parallel")
        shape = (case.replicas, NUM_RANKS // case.replicas // case.tensor_parallel, case.tensor_parallel)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        if case.tensor_parallel > 1:
            net.split(mesh["tensor_parallel"])
        sharding = mesh[names[1]] if case.replicas == 1 else mesh[names[:2]]
        for part in net.modules():
            if case.is_block(part):
                fully_shard(part, mesh=sharding)
        model = fully_shard(net, mesh=sharding)
    optimizer = SGD(net.parameters(), lr=0.1)
    inputs, targets = torch.randn(BATCH_SIZE, WIDTH), torch.zeros(BATCH_SIZE, dtype=torch.long)
    with Collectives() as collectives:
        for batch_idx in range(NUM_BATCHES):
            collectives.moment = moment_of(batch_idx, case.accumulate)
            is_last = (batch_idx + 1) % case.accumulate == 0
            if case.reduces != "reduce":
                model.set_requires_gradient_sync(is_last)
                model.set_reshard_after_backward(is_last or case.reduces == "keep")
            elif case.replicas > 1:
                model.set_requires_all_reduce(is_last)
            with model.no_sync() if is_ddp and not is_last else nullcontext():
                loss = nn.functional.cross_entropy(model(inputs), targets)
                (loss / case.accumulate).backward()
            if case.logs:
                collectives.moment = "between batches"
                dist.all_reduce(loss.detach().clone())
            if is_last:
                if case.clip is not None:
                    clip_by_hand(list(net.parameters()), case.clip)
                optimizer.step()
                optimizer.zero_grad()
        for batch_idx in range(3):
            collectives.moment = "evaluation batch" if batch_idx else "first evaluation batch"
            with torch.no_grad():
                (net.module if is_ddp else model)(inputs)
        collectives.moment = "saving"
        state = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
        if is_ddp:
            if dist.get_rank() == 0:
                torch.save(state, folder / "by_hand.ckpt")
        else:
            dcp.save(state, checkpoint_id=folder / "by_hand")
    return collectives.found


def clip_by_hand(parameters: list[Any], max_norm: float) -> None:
    """Clip by the norm of all gradients; those that are sharded over other dimensions are added up on their own."""
    squares: dict[Any, Tensor] = {}
    for parameter in parameters:
        gradient, groups = parameter.grad, ()
        if isinstance(gradient, DTensor):
            mesh = gradient.device_mesh
            groups = tuple(mesh.get_group(dim) for dim, one in enumerate(gradient.placements) if not one.is_replicate())
            gradient = gradient.to_local()
        squares[groups] = squares.get(groups, torch.zeros(())) + gradient.square().sum()
    for groups, square in squares.items():
        for group in groups:
            dist.all_reduce(square, group=group)
    norm = sum(squares.values()).sqrt()
    for parameter in parameters:
        parameter.grad.mul_(torch.clamp(max_norm / (norm + 1e-6), max=1.0))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for case in cases():
            ours = by_trainer(case, Path(folder) / case.name)
            report(case.name, (ours, by_hand(case, Path(folder))))
            dist.barrier()


if __name__ == "__main__":
    main()
