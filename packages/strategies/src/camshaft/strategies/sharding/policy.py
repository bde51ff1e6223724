"""The settings of sharding: which blocks of a model are sharded, how, and on which device mesh."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from math import prod
from operator import itemgetter
from typing import Any, TypeGuard

import torch
from attrs import Attribute, field, frozen
from torch import nn
from torch._ops import OpOverload
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.strategies.checks import require

REPLICAS = "data_parallel_replicas"
SHARDS = "data_parallel_shards"
TENSOR_PARALLEL = "tensor_parallel"
_ALL_SHARDS = "parameter_shards"  # those of further dimensions, too

_WHERE = "ShardedStrategy"

Policy = type[nn.Module] | Collection[type[nn.Module]] | Callable[[nn.Module], bool] | int
"""Classes of modules, a function that returns whether a module is a block, or the minimum parameters of a block."""

_LARGE = 1_000_000  # parameters of a unit whose memory is worth a warning
_NUM_SUGGESTED = 8

SavedOperations = Collection[OpOverload] | Callable[..., Any]
"""Operations, or a policy of them, as of `torch.utils.checkpoint.create_selective_checkpoint_contexts`."""

_WITHOUT_FORWARD = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


def _instance_of(kinds: Any, rule: str) -> Callable[[Sharding, Attribute[Any], Any], None]:
    """Return a validator that raises `TypeError` for values of other classes."""

    def validate(settings: Sharding, attribute: Attribute[Any], value: Any) -> None:
        require(isinstance(value, kinds), attribute.name, rule, value, _WHERE, error=TypeError)

    return validate


def _validate_policy(settings: Sharding, attribute: Attribute[Any], value: Any) -> None:
    check_policy(attribute.name, value, _WHERE)


def check_policy(name: str, value: Any, where: str) -> None:
    """Raise `TypeError` for a value that is no policy, `ValueError` for one that no module can fulfil."""
    if value is None:
        return
    classes = _classes(value)
    if isinstance(value, (bool, str)) or (classes is None and not isinstance(value, int) and not callable(value)):
        rule = "a module class, some of them, a function of a module, an int or None"
        raise TypeError(must_be(name, rule, value, where, "Pass one of these."))
    require(not isinstance(value, int) or value >= 1, name, "at least 1", value, where)
    require(classes != (), name, "at least one class", value, where)
    for kind in classes or ():
        require(not issubclass(kind, _WITHOUT_FORWARD), name, "classes of modules with a forward", kind, where)


def _validate_reshard(settings: Sharding, attribute: Attribute[Any], value: Any) -> None:
    """Raise `TypeError` unless a value is a bool, an int or None, `ValueError` unless it divides the shards."""
    if value is None or isinstance(value, bool):
        return
    name = attribute.name
    if not isinstance(value, int):
        raise TypeError(
            must_be(name, "a bool, an int or None", value, _WHERE, "Pass True, False or a number of ranks.")
        )
    rule = "a bool where tensor_parallel is more than 1: torch cannot reshard such parameters to fewer ranks"
    require(settings.tensor_parallel == 1, name, rule, value, _WHERE)
    rule = f"a divisor of the number of shards ({settings.num_shards}) above 1"
    require(value > 1 and settings.num_shards % value == 0, name, rule, value, _WHERE)


def _validate_operations(settings: Sharding, attribute: Attribute[Any], value: Any) -> None:
    """Raise `TypeError` for what are no operations, `ValueError` for ones that no module would save."""
    name, rule = attribute.name, "operations such as torch.ops.aten.mm.default, a function of one, or None"
    is_some = isinstance(value, Collection) and all(isinstance(one, OpOverload) for one in value)
    require(value is None or callable(value) or is_some, name, rule, value, _WHERE, error=TypeError)
    rule = "None without `activation_checkpointing`"
    require(value is None or settings.activation_checkpointing is not None, name, rule, value, _WHERE)


def _validate_prefetch(settings: Sharding, attribute: Attribute[Any], value: Any) -> None:
    """Raise `TypeError` unless a value is an int, `ValueError` if it is negative."""
    is_int = isinstance(value, int) and not isinstance(value, bool)
    require(is_int, attribute.name, "a number of blocks", value, _WHERE, error=TypeError)
    require(value >= 0, attribute.name, "at least 0", value, _WHERE)


@frozen(kw_only=True)
class Sharding:
    """The settings of sharding; the arguments of `ShardedStrategy` of the same names.

    Raises:
        TypeError: If an argument has another type.
        ValueError: If a policy or number is out of range.
    """

    num_shards: int
    tensor_parallel: int
    policy: Policy | None = field(validator=_validate_policy)
    reshard_after_forward: bool | int | None = field(validator=_validate_reshard)
    mixed_precision: MixedPrecisionPolicy | None = field(
        validator=_instance_of(MixedPrecisionPolicy | None, "a MixedPrecisionPolicy or None")
    )
    cpu_offload: bool = field(validator=_instance_of(bool, "a bool"))
    activation_checkpointing: Policy | None = field(validator=_validate_policy)
    saved_operations: SavedOperations | None = field(validator=_validate_operations)
    prefetch: int = field(validator=_validate_prefetch)
    is_compiled: bool

    def apply(self, module: nn.Module, mesh: DeviceMesh, autocast_dtype: torch.dtype | None) -> None:
        """Shard a module in place: the blocks of the policy that are not sharded yet, and then the module itself.

        Args:
            module: The module. Its parameters may be on the meta device.
            mesh: The mesh of all ranks.
            autocast_dtype: The dtype that steps are autocast to, if any.

        Raises:
            ValueError: If the module has none of a policy's classes.
        """
        if self.activation_checkpointing is not None:
            for block in blocks_of(module, self.activation_checkpointing, "activation_checkpointing"):
                block.forward = partial(checkpoint, block.forward, use_reentrant=False, **self._selection())
        of_blocks = self.mixed_precision
        if of_blocks is None:
            # Inputs are cast to the dtype of the parameters, for operations that autocast does not cover.
            reduced = None if autocast_dtype is None else torch.float32
            of_blocks = MixedPrecisionPolicy(autocast_dtype, reduced)
        offload = CPUOffloadPolicy() if self.cpu_offload and mesh.device_type != "cpu" else OffloadPolicy()
        num_parameters = len(list(module.parameters()))
        needs_blocks = self.policy is not None or self.is_compiled or of_blocks.param_dtype is not None
        for block in shardable(module, blocks_of(module, self.policy)):
            reshard = self.reshard_after_forward
            if reshard is None:
                reshard = len(list(block.parameters())) < num_parameters
                if not reshard and not needs_blocks:
                    continue  # left to the module: each block costs time at each step
            shards = data_parallel_mesh(mesh, block)
            fully_shard(block, mesh=shards, reshard_after_forward=reshard, mp_policy=of_blocks, offload_policy=offload)
        if not isinstance(module, FSDPModule):
            # Its forward is a step, whose inputs and outputs (such as targets and losses) must not be cast.
            of_root = replace(of_blocks, cast_forward_inputs=False, output_dtype=None)
            shards = data_parallel_mesh(mesh, module)
            fully_shard(module, mesh=shards, mp_policy=of_root, offload_policy=offload)
        if self.prefetch:
            _prefetch(module, self.prefetch)

    def _selection(self) -> dict[str, Any]:
        """Return the arguments of `checkpoint` by which it saves some operations."""
        saved = self.saved_operations
        if saved is None:
            return {}
        chosen = saved if callable(saved) else list(saved)
        return {"context_fn": partial(create_selective_checkpoint_contexts, chosen)}


def _prefetch(root: nn.Module, num_blocks: int) -> None:
    """Gather so many blocks ahead, in the order in which the module holds them, and backwards in its reverse."""
    found: list[Any] = [part for part in root.modules() if isinstance(part, FSDPModule)]
    units = list({id(fully_shard.state(part)): part for part in found}.values())  # type: ignore[attr-defined]
    for idx, unit in enumerate(units):
        unit.set_modules_to_forward_prefetch(units[idx + 1 : idx + 1 + num_blocks])
        unit.set_modules_to_backward_prefetch(units[max(0, idx - num_blocks) : idx][::-1])


def blocks_of(root: nn.Module, policy: Policy | None, argument: str = "policy") -> list[nn.Module]:
    """Return the submodules that a policy chooses, inner ones first.

    The default is the root's children, and the members of outermost lists (`nn.ModuleList`), such as the layers of a
    transformer. Modules without parameters and containers without a forward are never blocks.

    Args:
        policy: The policy. A number chooses the smallest modules with so many parameters beside those of inner blocks.
        argument: Its name in errors.

    Raises:
        ValueError: If there are no modules of the classes.
    """
    with_forward = [part for part in _inner_first(root) if part is not root and not isinstance(part, _WITHOUT_FORWARD)]
    candidates = [part for part in with_forward if next(part.parameters(), None) is not None]
    if isinstance(policy, int):
        return _by_size(candidates, policy)
    if policy is None:
        chosen = {id(module) for module in (*root.children(), *_list_members(root))}
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
    """Return the blocks that can be sharded on their own.

    Others share a parameter with a module outside of them, are sharded already, or are part of a sharded module.
    """
    taken = {id(part) for module in root.modules() if isinstance(module, FSDPModule) for part in module.modules()}
    uses = Counter(_parameter_uses(root))
    return [
        block
        for block in blocks
        if id(block) not in taken and all(uses[key] == count for key, count in Counter(_parameter_uses(block)).items())
    ]


def warn_of_large_unit(root: nn.Module) -> None:
    """Warn where a sharded module has most of its parameters in one unit, although other policies would divide it."""
    sizes, counted = list[tuple[int, nn.Module]](), set[int]()
    for part in _inner_first(root):
        if isinstance(part, FSDPModule):
            own = {id(one): one.numel() for one in part.parameters() if id(one) not in counted}
            sizes.append((sum(own.values()), part))
            counted |= own.keys()
    total, (size, unit) = sum(size for size, _ in sizes), max(sizes, key=itemgetter(0))
    inner = [part for part in unit.modules() if not isinstance(part, FSDPModule)]
    covered, count = Counter[type[nn.Module]](), Counter(map(type, inner))
    for part in inner:
        if count[type(part)] > 1 and part._modules and not isinstance(part, (*_WITHOUT_FORWARD, nn.Sequential)):
            covered[type(part)] += sum(one.numel() for one in part.parameters())
    kind, share = next(iter(covered.most_common(1)), (None, 0))
    suggested = str(size // _NUM_SUGGESTED) if kind is None or 2 * share < size else kind.__qualname__
    if size >= max(_LARGE, total / 2) and len(_by_size(inner[1:], size // _NUM_SUGGESTED)) > 1:
        warn_user(
            f"The default `policy` of {_WHERE} leaves {size:,} of {total:,} parameters of {class_name(root)} in one "
            f"unit, which every rank gathers as a whole. Pass policy={suggested}, or other classes of blocks."
        )


def _list_members(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the members of a module's outermost lists."""
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


def _parameter_uses(module: nn.Module) -> Iterator[int]:
    """Yield the id of a parameter for each place where it is registered in a module and its submodules."""
    for part in module.modules():
        yield from (id(parameter) for parameter in part._parameters.values() if parameter is not None)


def _classes(policy: Any) -> tuple[type[nn.Module], ...] | None:
    """Return the classes of a policy that consists of classes; None for another."""
    if _is_module_class(policy):
        return (policy,)
    if isinstance(policy, Collection) and all(map(_is_module_class, policy)):
        return tuple(policy)
    return None


def _is_module_class(value: Any) -> TypeGuard[type[nn.Module]]:
    return isinstance(value, type) and issubclass(value, nn.Module)


def mesh_shape(
    world_size: int, data_parallel_replicas: int, tensor_parallel: int, mesh_dimensions: Mapping[str, int]
) -> dict[str, int]:
    """Return the number of ranks along each mesh dimension: replicas, shards of a replica, further ones, tensor parts.

    Args:
        world_size: Number of ranks.
        data_parallel_replicas: Number of copies of the model.
        tensor_parallel: Number of ranks that each layer is split over.
        mesh_dimensions: Numbers of ranks along further dimensions, by their names.

    Raises:
        TypeError: If a number is no int, or a name no string.
        ValueError: If a number is less than 1, a name is taken, or the product does not divide the number of ranks.
    """
    own = {"data_parallel_replicas": data_parallel_replicas, "tensor_parallel": tensor_parallel}
    require(
        isinstance(mesh_dimensions, Mapping),
        "mesh_dimensions",
        "sizes by name",
        mesh_dimensions,
        _WHERE,
        error=TypeError,
    )
    for name in mesh_dimensions:
        rule = f"a name other than {REPLICAS}, {SHARDS}, {TENSOR_PARALLEL} and {_ALL_SHARDS}"
        is_free = isinstance(name, str) and name not in (REPLICAS, SHARDS, TENSOR_PARALLEL, _ALL_SHARDS)
        require(is_free, "mesh_dimensions", rule, name, _WHERE)
    for name, value in (own | dict(mesh_dimensions)).items():
        is_int = isinstance(value, int) and not isinstance(value, bool)
        require(is_int, name, "an int", value, _WHERE, error=TypeError)
        require(value >= 1, name, "at least 1", value, _WHERE)
    divisor, name = prod((*own.values(), *mesh_dimensions.values())), " times ".join((*own, *mesh_dimensions))
    require(world_size % divisor == 0, name, f"a divisor of the number of processes ({world_size})", divisor, _WHERE)
    first = {REPLICAS: data_parallel_replicas, SHARDS: world_size // divisor}
    return {**first, **mesh_dimensions, TENSOR_PARALLEL: tensor_parallel}


def make_mesh(device_type: str, shape: Mapping[str, int]) -> DeviceMesh:
    """Return the mesh of all ranks in order; those of the last dimension are neighbours. Collective."""
    mesh = init_device_mesh(device_type, tuple(shape.values()), mesh_dim_names=tuple(shape))
    if _further(mesh):
        mesh[(SHARDS, *_further(mesh))]._flatten(_ALL_SHARDS)
    return mesh


def data_parallel_mesh(mesh: DeviceMesh, module: nn.Module) -> DeviceMesh:
    """Return the mesh over which `fully_shard` shards a module's parameters, and averages their gradients. Collective.

    Its dimensions are the shards, and the replicas if there are several. The shards are those of further dimensions,
    too, unless the module has parameters that are distributed over one of these.
    """
    own = [one for one in _parameters_outside_of_units(module) if isinstance(one, DTensor)]
    names = {name for one in own for name in one.device_mesh.mesh_dim_names or ()}
    shards = _ALL_SHARDS if _further(mesh) and names.isdisjoint(_further(mesh)) else SHARDS
    return mesh[shards] if mesh[REPLICAS].size() == 1 else mesh[REPLICAS, shards]


def _further(mesh: DeviceMesh) -> tuple[str, ...]:
    return (mesh.mesh_dim_names or ())[2:-1]


def _parameters_outside_of_units(module: nn.Module) -> Iterator[nn.Parameter]:
    yield from module.parameters(recurse=False)
    for child in module.children():
        if not isinstance(child, FSDPModule):
            yield from _parameters_outside_of_units(child)


def class_name(module: nn.Module) -> str:
    """Return the name of a module's class, without the prefix that `fully_shard` adds."""
    return next(kind for kind in type(module).__mro__ if not issubclass(kind, FSDPModule)).__qualname__


def parts_of(module: nn.Module) -> dict[str, object]:
    """Return a model's submodules, parameters and buffers by name."""
    parts: dict[str, object] = {f"module {name!r}": part for name, part in module.named_modules(remove_duplicate=False)}
    parts |= {f"parameter {name!r}": one for name, one in module.named_parameters(remove_duplicate=False)}
    return parts | {f"buffer {name!r}": one for name, one in module.named_buffers(remove_duplicate=False)}


def check_unchanged(known: Mapping[str, object], module: nn.Module) -> None:
    """Raise `RuntimeError` if a part of a model is not among the known ones; the message names the first."""
    parts = parts_of(module)
    for name in [*known, *parts]:
        before, now = known.get(name), parts.get(name)
        if before is now:
            continue
        change = "is new" if before is None else "is gone" if now is None else "was replaced"
        rule = "left as they are once they are configured: these hooks run in every stage"
        where = f"configure_sharded_model or configure_model of {class_name(module)}"
        action = "Do nothing there if it is done already, as in `if self.layer is None: self.layer = ...`."
        raise RuntimeError(must_be("parts of the model", rule, f"{name} {change}", where, action))
