"""A script for several ranks, and for a test's own process: saves sharded checkpoints and checks what it reads.

python checkpoint_ranks.py FOLDER [--save] [--load N ...] [--failures]
"""

from __future__ import annotations

import argparse
import shutil
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from launching import report
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from camshaft.strategies import CheckpointError, write_checkpoint
from camshaft.strategies.checkpoints import sharded as sharded_module
from camshaft.strategies.checkpoints import writer as writer_module
from camshaft.strategies.checkpoints.writer import CheckpointWriter

# Divisible and not, fewer rows than ranks, empty, without dimensions.
SHAPES = ((8, 3), (7, 3), (1,), (5,), (2, 3, 2), (0, 3), ())


def whole(number: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    count = torch.Size(shape).numel()
    return (torch.arange(count) + 100 * number).to(dtype).reshape(shape)


def whole_tensors() -> dict[str, Tensor]:
    tensors = {f"layer.{number}": whole(number, shape) for number, shape in enumerate(SHAPES)}
    return tensors | {"half": whole(9, (6, 2), torch.bfloat16), "mask": whole(0, (9,)) % 2 == 0}


def example(mesh: Any, placements: Any = None) -> dict[str, Any]:
    """Return a checkpoint with sharded tensors at several depths, whole ones, and plain values."""
    weights: OrderedDict[str, Tensor] = OrderedDict()
    for name, tensor in whole_tensors().items():
        chosen = placements or ([Shard(0)] if tensor.dim() else [Replicate()])
        weights[name] = distribute_tensor(tensor, mesh, chosen)
    weights["tied"] = weights["layer.0"]
    moments = {0: {"exp_avg": weights["layer.1"] * 2, "step": torch.tensor(3.0)}}
    return {
        "state_dict": weights,
        "optimizer_states": [{"state": moments, "param_groups": [{"lr": 0.1, "params": [0]}]}],
        "fit": {"gradients": (weights["layer.1"] * 3, None)},
        "a.b": {"c": weights["layer.3"] * 4},
        "a": {"b.c": weights["layer.3"] * 5},  # the same name with dots between the keys
        "whole": torch.arange(5),
        "epoch": 4,
    }


def mismatches(checkpoint: dict[str, Any], *, sharded: bool) -> list[str]:
    """Return the differences of a checkpoint from `example`."""
    expected = {("state_dict", name): tensor for name, tensor in whole_tensors().items()}
    expected["state_dict", "tied"] = whole(0, SHAPES[0])
    expected["optimizer_states", 0, "state", 0, "exp_avg"] = whole(1, SHAPES[1]) * 2
    expected["fit", "gradients", 0] = whole(1, SHAPES[1]) * 3
    expected["a.b", "c"] = whole(3, SHAPES[3]) * 4
    expected["a", "b.c"] = whole(3, SHAPES[3]) * 5
    found = []
    for keys, tensor in expected.items():
        value: Any = checkpoint
        for key in keys:
            value = value[key]
        if isinstance(value, DTensor) is not sharded or value.device.type != "cpu":
            found.append(f"{keys}: {type(value).__name__} on {value.device}")
        if sharded:
            value = value.full_tensor()
        if value.dtype != tensor.dtype or not torch.equal(value, tensor):
            found.append(f"{keys}: {value}")
    plain = (checkpoint["epoch"], checkpoint["whole"].tolist(), checkpoint["fit"]["gradients"][1])
    if plain != (4, [0, 1, 2, 3, 4], None):
        found.append(f"plain values: {plain}")
    if checkpoint["state_dict"]["tied"] is not checkpoint["state_dict"]["layer.0"]:
        found.append("tied weights are two tensors")
    if checkpoint["optimizer_states"][0]["state"][0]["step"] != 3.0:
        found.append("optimizer step")
    return found


def save_both_ways(strategy: Any, folder: Path) -> None:
    """Save at once, and while every tensor that was saved changes."""
    mesh = init_device_mesh("cpu", (strategy.world_size,))
    CheckpointWriter(strategy, asynchronous=False).save(
        example(mesh), str(folder / f"from-{strategy.world_size}-sync.ckpt")
    )
    writer = CheckpointWriter(strategy, asynchronous=True)
    for _ in range(2):  # the second takes the memory of the first, and its place
        checkpoint = example(mesh)
        pending = writer.save(checkpoint, str(folder / f"from-{strategy.world_size}-async.ckpt"))
        _overwrite(checkpoint)
    assert pending is not None
    pending.wait()


def _overwrite(value: Any) -> None:
    if isinstance(value, DTensor):
        value.to_local().fill_(77)
    elif isinstance(value, Tensor):
        value.fill_(77)
    elif isinstance(value, dict):
        for item in value.values():
            _overwrite(item)
        value.clear()
    elif isinstance(value, list | tuple):
        for item in value:
            _overwrite(item)


def load_both_ways(strategy: Any, folder: Path, num_ranks: int) -> list[str]:
    writer = CheckpointWriter(strategy, asynchronous=False)
    found = []
    for kind in ("sync", "async"):
        for sharded in (True, False):
            checkpoint = writer.load(str(folder / f"from-{num_ranks}-{kind}.ckpt"), sharded=sharded)
            found += [f"{num_ranks} {kind} {sharded} {what}" for what in mismatches(checkpoint, sharded=sharded)]
    return found


def save_on_meshes(strategy: Any, folder: Path) -> list[str]:
    """Save on four ranks: replicated and sharded, sharded twice, and a model that is parallel in two ways."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
    writer = CheckpointWriter(strategy, asynchronous=True)
    tensor = whole(0, (8, 6))
    layouts = {
        "hsdp": distribute_tensor(tensor, mesh, [Replicate(), Shard(0)]),
        "two": distribute_tensor(tensor, mesh, [Shard(0), Shard(1)]),
        "twice": distribute_tensor(tensor, mesh, [Shard(0), Shard(0)]),
        "replicated": distribute_tensor(tensor, mesh, [Replicate(), Replicate()]),
    }
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 6))
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    parallelize_module(model, mesh["inner"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    fully_shard(model, mesh=mesh["outer"])
    path = str(folder / "meshes.ckpt")
    writer.save({"layouts": layouts, "state_dict": model.state_dict()}, path)
    found = []
    for sharded in (True, False):
        checkpoint = writer.load(path, sharded=sharded)
        read = {f"layouts {name}": (value, tensor) for name, value in checkpoint["layouts"].items()}
        read |= {name: (value, expected[name]) for name, value in checkpoint["state_dict"].items()}
        for name, (value, original) in read.items():
            value = value.full_tensor() if sharded else value
            if not torch.equal(value, original):
                found.append(f"{name}: {value}")
    sizes = sum(path.stat().st_size for path in (folder / "meshes.ckpt").glob("*.distcp"))
    return [*found, *(["replicas are written more than once"] if sizes > 40_000 else [])]


def caught(call: Any) -> tuple[str, str, list[str]] | None:
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error), getattr(error, "__notes__", [])
    return None


def fail(strategy: Any, folder: Path) -> dict[str, Any]:
    """Return the errors of each way of failing on this rank."""
    mesh = init_device_mesh("cpu", (strategy.world_size,))
    file = folder / "a-file"
    if strategy.global_rank == 0:
        file.write_text("no directory")
    strategy.barrier()
    below = str(file / "x.ckpt")
    good = str(folder / "good.ckpt")
    sharded, replicated = {"weights": distribute_tensor(torch.ones(4), mesh, [Shard(0)])}, {"weights": torch.ones(4)}
    now, later = CheckpointWriter(strategy, asynchronous=False), CheckpointWriter(strategy, asynchronous=True)
    is_first, is_last = strategy.global_rank == 0, strategy.global_rank == strategy.world_size - 1
    found: dict[str, Any] = {}
    for name, checkpoint in (("sharded", sharded), ("replicated", replicated)):
        found[f"{name}, at once"] = caught(lambda checkpoint=checkpoint: now.save(checkpoint, below))
        pending = later.save(checkpoint, below)
        assert pending is not None
        found[f"{name}, waited for"] = caught(pending.wait)
        found[f"{name}, again"] = caught(pending.wait)
        later.save(checkpoint, below)
        found[f"{name}, at the next save"] = caught(lambda checkpoint=checkpoint: later.save(checkpoint, good))
        found[f"{name}, the one after"] = caught(lambda checkpoint=checkpoint: later.save(checkpoint, good))
        found[f"{name}, read"] = caught(lambda: later.load(good, sharded=True))
    found["different names"] = caught(lambda: later.save({"here" if is_last else "there": sharded}, good))
    found["not plain"] = caught(lambda: later.save({"callbacks": threading.Lock() if is_last else 0}, good))
    found["absent"] = caught(lambda: now.load(str(folder / "absent.ckpt"), sharded=True))
    own_disk = folder / f"disk-of-{strategy.global_rank}"
    with mock.patch.object(sharded_module, "Path", lambda path: own_disk / Path(path).name):
        found["private disks"] = caught(lambda: now.save(sharded, str(folder / "private.ckpt")))
    found["left on private disks"] = sorted(path.name for path in own_disk.iterdir())
    now.save(sharded, str(folder / "damaged.ckpt"))
    found["loaded from private disks"] = load_from_private_disks(now, own_disk, folder / "damaged.ckpt", is_first)
    if strategy.global_rank == 0:
        (folder / "damaged.ckpt" / "__1_0.distcp").write_bytes(b"damaged")
    strategy.barrier()
    error = caught(lambda: now.load(str(folder / "damaged.ckpt"), sharded=True))
    found["damaged part"] = error and (error[0] == CheckpointError.__name__, error[1])
    found["left over"] = sorted(path.name for path in folder.iterdir() if path.name.startswith("."))
    return found


def load_from_private_disks(writer: CheckpointWriter, disk: Path, whole: Path, is_first: bool) -> list[Any]:
    """Return what each rank finds at a path that leads to a disk of its own: none or another than rank 0 has."""
    found = list[Any]()
    path, directory = disk / "one.ckpt", disk / "some.ckpt"
    for epoch in range(2):  # the second time, the other ranks have one of their own
        if is_first or epoch == 1:
            write_checkpoint({"epoch": epoch + is_first, "weights": torch.arange(999), "kind": nn.ReLU}, path)
        for sharded in (False, True):
            with mock.patch.object(writer_module, "_PIECE_BYTES", 1000):
                read = writer.load(str(path), sharded=sharded, weights_only=False)
            found.append([read["epoch"], int(read["weights"].sum()), read["kind"].__name__])
    if is_first:
        path.write_bytes(path.read_bytes()[:-1])
        shutil.copytree(whole, directory)
    found.append(caught(lambda: writer.load(str(path), sharded=False)))
    found.append(caught(lambda: writer.load(str(directory), sharded=False)))
    return [*found, caught(lambda: writer.load(str(directory), sharded=True))]


def main() -> None:
    from camshaft.strategies.parallel import ParallelStrategy

    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--load", type=int, nargs="*", default=[])
    parser.add_argument("--failures", action="store_true")
    options = parser.parse_args()
    strategy = ParallelStrategy(accelerator="cpu")
    strategy.connect()
    if options.save:
        save_both_ways(strategy, options.folder)
    report([what for num_ranks in options.load for what in load_both_ways(strategy, options.folder, num_ranks)])
    report(save_on_meshes(strategy, options.folder) if options.save and strategy.world_size == 4 else [])
    report(fail(strategy, options.folder) if options.failures else {})
    dist.barrier()


if __name__ == "__main__":
    main()
