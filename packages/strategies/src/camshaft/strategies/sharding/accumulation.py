"""Gradients that wait, whole or in part, for the end of an accumulation window of a module under `fully_shard`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributed.fsdp import fully_shard

from camshaft.hooks_core.support.messages import must_be
from camshaft.strategies.sharding.policy import class_name

Accumulation = Literal["reduce", "keep", "keep_all"]


class GradientWindow:
    """The gradients that the steps of an accumulation window leave unreduced, until the backward of its last step.

    Torch holds it outside of `parameter.grad`: gradients of whole parameters, or sums over the shards of one replica.
    The latter are flat, without the names of their parameters, so all steps of a window must reach the same ones.

    Args:
        parts: The modules that `fully_shard` was applied to.
        accumulation: "keep" leaves gradients whole, "keep_all" parameters, too; "reduce" sums them over shards.
        run: Runs a function as the root's forward.

    Attributes:
        syncs: Whether the next backward reduces gradients, earlier ones of the window included.
        keeps: Whether gradients stay whole.
    """

    def __init__(
        self, parts: Iterable[Any], accumulation: Accumulation, run: Callable[[Callable[[], Tensor]], Tensor]
    ) -> None:
        self.syncs = True
        self.keeps = accumulation != "reduce"
        self._keeps_parameters = accumulation == "keep_all"
        self._parts = list(parts)
        self._run = run
        self._may_hold = False  # since the latest `finish`
        groups = {id(group): group for part in self._parts for group in groups_of(part)}
        self._groups: list[tuple[Any, set[Any]]] = [(group, set()) for group in groups.values()]
        self._handles: list[Any] = []

    def set_sync(self, is_on: bool) -> None:
        """Set whether the next backward reduces gradients."""
        if is_on == self.syncs:
            return
        self.syncs = is_on
        if not is_on:
            self._may_hold = True
            if not (self.keeps or self._handles):
                self._watch()
            for group, reached in self._groups:
                if group._partial_reduce_output is None:
                    reached.clear()
        for part in self._parts:
            if not self.keeps:
                part.set_requires_all_reduce(is_on, recurse=False)
                continue
            part.set_requires_gradient_sync(is_on, recurse=False)
            if self._keeps_parameters:
                part.set_reshard_after_backward(is_on, recurse=False)

    def finish(self) -> None:
        """Reduce what no backward of the window has reduced, into `parameter.grad`. Collective."""
        if not self._may_hold:
            return
        for group, reached in self._groups:
            if group._partial_reduce_output is not None:  # torch adds it to the gradients of the same parameters
                for one in reached:
                    one.unsharded_param.grad = torch.zeros_like(one.unsharded_param)
                reached.clear()
        if any(_holds(one) for group, _ in self._groups for one in group.fsdp_params):
            syncs = self.syncs
            self.set_sync(True)
            # a backward that reaches no block reduces what is there all the same
            with torch.inference_mode(False), torch.enable_grad():
                self._run(lambda: torch.zeros((), requires_grad=True).clone()).backward()  # type: ignore[no-untyped-call]
            self.set_sync(syncs)
        self._may_hold = not self.syncs

    def drop(self, parameters: Iterable[Tensor] | None = None) -> None:
        """Forget what is held of the gradients of sharded parameters; None means of all. Not collective."""
        if not self._may_hold:
            return
        ids = None if parameters is None else set(map(id, parameters))
        for group, reached in self._groups:
            for one in group.fsdp_params:
                if ids is None or id(one.sharded_param) in ids:
                    one.unsharded_accumulated_grad = None
                    if hasattr(one, "_unsharded_param"):
                        one.unsharded_param.grad = None
                    group._partial_reduce_output = None
                    reached.clear()

    def close(self) -> None:
        """Reduce gradients at each backward again, and forget what is held. Not collective."""
        self.drop()
        self.set_sync(True)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _watch(self) -> None:
        """Note which parameters each backward reaches, before their sums over shards are added up."""
        for group, reached in self._groups:
            for one in group.fsdp_params:
                parameter = one.unsharded_param
                requires_grad = parameter.requires_grad
                parameter.requires_grad_(True)
                hook = partial(_note_reached, group, reached, one)
                self._handles.append(parameter.register_post_accumulate_grad_hook(hook))
                parameter.requires_grad_(requires_grad)


def groups_of(part: Any) -> list[Any]:
    """Return torch's groups of parameters that are gathered together, which have no public name."""
    state = fully_shard.state(part)  # type: ignore[attr-defined]
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    return [] if state._fsdp_param_group is None else [state._fsdp_param_group]  # before torch 2.13


def _holds(one: Any) -> bool:
    has_gradient = hasattr(one, "_unsharded_param") and one.unsharded_param.grad is not None
    return has_gradient or one.unsharded_accumulated_grad is not None


def _note_reached(group: Any, reached: set[Any], one: Any, parameter: Tensor) -> None:
    """Raise `RuntimeError` where a step reaches another parameter of a group than the steps before it."""
    if group._partial_reduce_output is None:
        reached.add(one)
    elif one not in reached:
        rule = "'keep' where the steps of an accumulation window use different parameters of a block"
        action = "Pass accumulation='keep', or a `policy` by which such parts are blocks."
        where = f"ShardedStrategy, for `{one._module_info.param_name}` of {class_name(one._module_info.module)}"
        raise RuntimeError(must_be("accumulation", rule, "reduce", where, action))
