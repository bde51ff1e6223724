"""Which parts of a model are sharded, on which mesh, and with which settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeGuard

import torch
import torch.distributed as dist
from attrs import frozen
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

from camshaft.hooks_core.messages import must_be


@frozen(kw_only=True)
class Sharding:
    """How a module is sharded; the arguments of `ShardedStrategy` of the same names.

    Raises:
        TypeError: If an argument is of another kind.
        ValueError: If a policy or number makes no sense.
    """

    where: str
    num_shards: int
    tensor_parallel: int
    policy: Policy | None
    reshard_after_forward: bool | int | None
    mixed_precision: MixedPrecisionPolicy | None
    cpu_offload: bool
    activation_checkpointing: Policy | None
    compile: bool | Mapping[str, Any]

    def __attrs_post_init__(self) -> None:
        check_policy("policy", self.policy, self.where)
        check_policy("activation_checkpointing", self.activation_checkpointing, self.where)
        if not isinstance(self.mixed_precision, MixedPrecisionPolicy | None):
            rule, action = "a MixedPrecisionPolicy or None", "Pass one of torch.distributed.fsdp, or leave it out."
            raise TypeError(must_be("mixed_precision", rule, self.mixed_precision, self.where, action))
        if not isinstance(self.cpu_offload, bool):
            raise TypeError(must_be("cpu_offload", "a bool", self.cpu_offload, self.where, "Pass True or False."))
        if not isinstance(self.compile, bool | Mapping):
            rule = "a bool or a dictionary of arguments of torch.compile"
            raise TypeError(must_be("compile", rule, self.compile, self.where, "Pass one of these."))
        self._check_reshard()

    def apply(self, module: nn.Module, mesh: DeviceMesh, autocast_dtype: torch.dtype | None) -> None:
        """Shard what is not sharded, in place: the blocks that the policy chooses, and around them the module itself.

        Args:
            module: The module. Its parameters may be on the meta device.
            mesh: For `fully_shard`.
            autocast_dtype: What steps are autocast to, if they are.

        Raises:
            ValueError: If a policy's classes do not occur, or there is nothing to compile.
        """
        if self.activation_checkpointing is not None:
            checkpoint_activations(blocks_of(module, self.activation_checkpointing, "activation_checkpointing"))
        of_blocks = self._mixed_precision(autocast_dtype)
        offload = CPUOffloadPolicy() if self.cpu_offload and mesh.device_type != "cpu" else OffloadPolicy()
        num_parameters = len(list(module.parameters()))
        needs_blocks = self.policy is not None or self.compile is not False or of_blocks.param_dtype is not None
        for block in shardable(module, blocks_of(module, self.policy)):
            reshard = self.reshard_after_forward
            if reshard is None:
                reshard = len(list(block.parameters())) < num_parameters
                if not reshard and not needs_blocks:
                    continue  # for the module around it to hold: a block costs time of its own at each step
            fully_shard(
                block,
                mesh=mesh,
                reshard_after_forward=reshard,
                mp_policy=of_blocks,
                offload_policy=offload,
            )
        if not isinstance(module, FSDPModule):
            # Its forward is a step: what that takes and returns, such as targets and losses, is not to be cast.
            of_root = replace(of_blocks, cast_forward_inputs=False, output_dtype=None)
            fully_shard(module, mesh=mesh, mp_policy=of_root, offload_policy=offload)
        if self.compile is not False:
            blocks = [part for part in module.modules() if isinstance(part, FSDPModule) and part is not module]
            if not blocks:
                rule, action = "False for a module without sharded blocks", "Pass a policy that chooses some."
                raise ValueError(must_be("compile", rule, self.compile, class_name(module), action))
            compile_forward(blocks, {} if self.compile is True else self.compile)

    def _mixed_precision(self, autocast_dtype: torch.dtype | None) -> MixedPrecisionPolicy:
        if self.mixed_precision is not None:
            return self.mixed_precision
        if autocast_dtype is None:
            return MixedPrecisionPolicy()
        # a block's inputs have the format of its parameters, as operations need that autocast leaves alone
        return MixedPrecisionPolicy(autocast_dtype, torch.float32)

    def _check_reshard(self) -> None:
        value = self.reshard_after_forward
        if value is None or isinstance(value, bool):
            return
        if not isinstance(value, int):
            action = "Pass True, False or a number of processes."
            raise TypeError(must_be("reshard_after_forward", "a bool, an int or None", value, self.where, action))
        if self.tensor_parallel > 1:
            rule = (
                "a bool where tensor_parallel is more than 1: torch cannot reshard such parameters to fewer processes"
            )
            raise ValueError(must_be("reshard_after_forward", rule, value, self.where, "Pass True or False."))
        if value < 2 or self.num_shards % value != 0:
            rule = f"a divisor of the number of shards ({self.num_shards}) above 1"
            raise ValueError(must_be("reshard_after_forward", rule, value, self.where, "Pass such a number, or True."))


Policy = type[nn.Module] | Collection[type[nn.Module]] | Callable[[nn.Module], bool] | int
"""Classes of modules, or what says of a module whether it is a block, or how many parameters a block has at least."""

_WITHOUT_FORWARD = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


def check_policy(argument: str, policy: Any, where: str) -> Policy | None:
    """A policy as it was passed.

    Args:
        argument: Its name, for messages.
        policy: The policy, or None.
        where: Who takes it, for messages.

    Raises:
        TypeError: If it is none.
        ValueError: If it is a number below 1, no class at all, or a class of modules without a forward.
    """
    rule = "a module class, some of them, a function of a module, an int or None"
    action = "Pass one of these."
    if policy is None:
        return None
    if isinstance(policy, (bool, str)):
        raise TypeError(must_be(argument, rule, policy, where, action))
    if isinstance(policy, int):
        if policy < 1:
            raise ValueError(must_be(argument, "at least 1", policy, where, "Pass a number of parameters."))
        return policy
    classes = _classes(policy)
    if classes is None:
        if callable(policy):
            return policy  # type: ignore[no-any-return]
        raise TypeError(must_be(argument, rule, policy, where, action))
    if not classes:
        raise ValueError(must_be(argument, "at least one class", policy, where, "Pass None for the default."))
    for kind in classes:
        if issubclass(kind, _WITHOUT_FORWARD):
            rule, action = "classes of modules with a forward", "Pass the class of its members."
            raise ValueError(must_be(argument, rule, kind, where, action))
    return classes


def blocks_of(root: nn.Module, policy: Policy | None, argument: str = "policy") -> list[nn.Module]:
    """The modules below a root that a policy chooses, inner ones before those around them.

    By default these are the root's children, and the members of outermost lists (`nn.ModuleList`), such as the layers
    of a transformer. Modules without parameters are none, nor are containers without a forward.

    Args:
        root: The root.
        policy: The policy; for a number, the smallest modules that have so many parameters beside those of blocks in
            them.
        argument: Its name, for messages.

    Raises:
        ValueError: If there are no modules of the classes.
    """
    candidates = [module for module in _inner_first(root) if module is not root and _can_be_block(module)]
    if isinstance(policy, int):
        return _by_size(candidates, policy)
    if policy is None:
        chosen = {id(module) for module in _default_blocks(root)}
        return [module for module in candidates if id(module) in chosen]
    classes = _classes(policy)
    if classes is None:
        return [module for module in candidates if policy(module)]  # type: ignore[operator]
    blocks = [module for module in candidates if isinstance(module, classes)]
    if not blocks:
        names = ", ".join(kind.__qualname__ for kind in classes)
        rule, action = "classes of modules that the model has", "Pass others."
        raise ValueError(must_be(argument, rule, names, class_name(root), action))
    return blocks


def shardable(root: nn.Module, blocks: list[nn.Module]) -> list[nn.Module]:
    """The blocks that can be sharded by themselves.

    Left to what is around them are those that share a parameter with a module outside, and those that are sharded
    already or are part of what is.
    """
    taken = {id(part) for module in root.modules() if isinstance(module, FSDPModule) for part in module.modules()}
    uses = Counter(_parameter_uses(root))
    return [
        block
        for block in blocks
        if id(block) not in taken and all(uses[key] == count for key, count in Counter(_parameter_uses(block)).items())
    ]


def _default_blocks(root: nn.Module) -> Iterator[nn.Module]:
    yield from root.children()
    yield from _list_members(root)


def _list_members(module: nn.Module) -> Iterator[nn.Module]:
    """The members of the lists of a module and its parts, but not of lists that members have."""
    for child in module.children():
        if isinstance(child, nn.ModuleList | nn.ModuleDict):
            for member in child.children():
                yield from _list_members(member) if isinstance(member, nn.ModuleList | nn.ModuleDict) else (member,)
        else:
            yield from _list_members(child)


def _by_size(candidates: list[nn.Module], num_parameters: int) -> list[nn.Module]:
    blocks: list[nn.Module] = []
    counted: set[int] = set()
    for module in candidates:
        own = {id(parameter): parameter.numel() for parameter in module.parameters() if id(parameter) not in counted}
        if sum(own.values()) >= num_parameters:
            blocks.append(module)
            counted |= own.keys()
    return blocks


def _inner_first(module: nn.Module, seen: set[int] | None = None) -> Iterator[nn.Module]:
    seen = set() if seen is None else seen
    if id(module) not in seen:
        seen.add(id(module))
        for child in module.children():
            yield from _inner_first(child, seen)
        yield module


def _can_be_block(module: nn.Module) -> bool:
    return not isinstance(module, _WITHOUT_FORWARD) and next(module.parameters(), None) is not None


def _parameter_uses(module: nn.Module) -> Iterator[int]:
    """Every place of a module's parts where a parameter stands, by the parameter."""
    for part in module.modules():
        yield from (id(parameter) for parameter in part._parameters.values() if parameter is not None)


def _classes(policy: Any) -> tuple[type[nn.Module], ...] | None:
    """The classes of a policy that consists of such."""
    if _is_module_class(policy):
        return (policy,)
    if isinstance(policy, Collection) and all(map(_is_module_class, policy)):
        return tuple(policy)
    return None


def _is_module_class(value: Any) -> TypeGuard[type[nn.Module]]:
    return isinstance(value, type) and issubclass(value, nn.Module)


def checkpoint_activations(modules: Iterable[nn.Module]) -> None:
    """Let modules keep of what they compute only their inputs, and compute it again during backward.

    Random numbers, such as those of dropout, are the same then. The names of parameters stay as they are.

    Args:
        modules: The modules; their forward is replaced, in place.
    """
    for module in modules:
        module.forward = _checkpointed(module.forward)


def compile_forward(modules: Iterable[nn.Module], options: Mapping[str, Any]) -> None:
    """Compile the forward of modules, in place; what surrounds it, such as hooks, stays as it is.

    Args:
        modules: The modules.
        options: Arguments of `torch.compile`.
    """
    for module in modules:
        module.forward = torch.compile(module.forward, **options)


def _checkpointed(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return run


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


def class_name(module: nn.Module) -> str:
    """The name of a module's class, as its author knows it: `fully_shard` puts another one before it."""
    return next(kind for kind in type(module).__mro__ if not issubclass(kind, FSDPModule)).__qualname__


class ModelParts:
    """The parts of a model at a moment: its modules, parameters and buffers by name.

    Args:
        module: The model.
    """

    def __init__(self, module: nn.Module) -> None:
        self._parts = _parts(module)

    def check_unchanged(self, module: nn.Module) -> None:
        """Raise `RuntimeError` if the model has other parts by now, naming the first."""
        parts = _parts(module)
        for name in [*self._parts, *parts]:
            before, now = self._parts.get(name), parts.get(name)
            if before is now:
                continue
            change = "is new" if before is None else "is gone" if now is None else "was replaced"
            rule = "left as they are where they were configured before: these hooks run in every stage"
            where = f"configure_sharded_model or configure_model of {class_name(module)}"
            action = "Do nothing there if it is done already, as in `if self.layer is None: self.layer = ...`."
            raise RuntimeError(must_be("parts of the model", rule, f"{name} {change}", where, action))


def _parts(module: nn.Module) -> dict[str, object]:
    parts: dict[str, object] = {}
    for prefix, part in module.named_modules(remove_duplicate=False):
        parts[f"module {prefix!r}"] = part
        dot = f"{prefix}." if prefix else ""
        parts |= {f"parameter {dot + name!r}": value for name, value in part._parameters.items() if value is not None}
        parts |= {f"buffer {dot + name!r}": value for name, value in part._buffers.items() if value is not None}
    return parts
