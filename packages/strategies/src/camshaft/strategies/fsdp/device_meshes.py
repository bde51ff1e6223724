"""The processes of a job as a grid: replicas of the model, shards of each replica, and parts of each layer."""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from camshaft.hooks_core.messages import must_be

REPLICAS = "data_parallel_replicas"
SHARDS = "data_parallel_shards"
TENSOR_PARALLEL = "tensor_parallel"


def mesh_shape(world_size: int, data_parallel_replicas: int, tensor_parallel: int, where: str) -> tuple[int, int, int]:
    """How many processes there are along each dimension: replicas, shards of a replica, parts of a layer.

    Args:
        world_size: Number of processes.
        data_parallel_replicas: How many copies of the model there are.
        tensor_parallel: Over how many processes layers are split.
        where: Who asks, for messages.

    Raises:
        TypeError: If a number is no int.
        ValueError: If it is less than 1, or both together do not divide the number of processes.
    """
    action = "Pass a number of processes, or leave it out."
    for field, value in (("data_parallel_replicas", data_parallel_replicas), ("tensor_parallel", tensor_parallel)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(must_be(field, "an int", value, where, action))
        if value < 1:
            raise ValueError(must_be(field, "at least 1", value, where, action))
    divisor = data_parallel_replicas * tensor_parallel
    if world_size % divisor != 0:
        field = "data_parallel_replicas times tensor_parallel"
        rule = f"a divisor of the number of processes ({world_size})"
        raise ValueError(must_be(field, rule, divisor, where, "Start as many processes as fit, or pass others."))
    return data_parallel_replicas, world_size // divisor, tensor_parallel


def make_mesh(device_type: str, shape: tuple[int, int, int]) -> DeviceMesh:
    """The mesh of all processes, in the order of their ranks: the last dimension's are neighbours. Collective."""
    world = dist.group.WORLD
    assert world is not None
    return init_device_mesh(device_type, shape, mesh_dim_names=(REPLICAS, SHARDS, TENSOR_PARALLEL))


def data_parallel_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """What `fully_shard` takes: shards alone, or replicas and shards where there are several replicas. Collective."""
    return mesh[SHARDS] if mesh[REPLICAS].size() == 1 else mesh[REPLICAS, SHARDS]
