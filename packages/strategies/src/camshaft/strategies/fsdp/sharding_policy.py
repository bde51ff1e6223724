"""Which modules of a model are treated as blocks: sharded, compiled or recomputed each by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeGuard

from torch import nn
from torch.distributed.fsdp import FSDPModule

from camshaft.hooks_core.messages import must_be
from camshaft.strategies.fsdp.unchanged_model import class_name

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
