"""Objects that update weights and are no `Optimizer` of torch, such as wrappers around one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.optimizer_step import accepts_closure

_NEEDED = ("param_groups", "step", "zero_grad", "state_dict", "load_state_dict")


def is_initialized(given: object) -> bool:
    """Return whether an object is an optimizer that torch's constructor has made, so that it has step hooks.

    A wrapper may claim to be one by its `__class__`, or inherit from it without calling its constructor.
    """
    return issubclass(type(given), Optimizer) and "_optimizer_step_pre_hooks" in vars(given)


def foreign_optimizer(given: Any, where: str) -> Optimizer:
    """An optimizer of torch that does everything by an object that is none.

    Args:
        given: The object, with what torch's optimizers have: `param_groups`, `step`, `zero_grad`, `state_dict` and
            `load_state_dict`.
        where: Who asks, for errors.

    Raises:
        TypeError: If it lacks one of these.
    """
    missing = [name for name in _NEEDED if not hasattr(given, name)]
    if missing:
        rule = f"an optimizer, or an object with {', '.join(_NEEDED)} (missing: {', '.join(missing)})"
        action = "Give it these, which may be those of the optimizer that it wraps."
        raise TypeError(must_be("optimizer", rule, given, where, action))
    return ForeignOptimizer(given)


class ForeignOptimizer(Optimizer):
    """Has the hooks and the type of torch's optimizers, and all else of the object; see `foreign_optimizer`.

    Attributes that torch's optimizers do not have are the object's.

    Args:
        foreign: The object.

    Attributes:
        foreign: The object.
    """

    def __init__(self, foreign: Any) -> None:
        self.foreign = foreign
        self._is_made = False
        self._takes_closure = accepts_closure(foreign.step)
        self._takes_set_to_none = "set_to_none" in _parameters_of(foreign.zero_grad)
        super().__init__([torch.zeros(0)], {})  # what torch makes of these is hidden by the properties below
        self._is_made = True

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Those of the object."""
        groups: list[dict[str, Any]] = self.foreign.param_groups
        return groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        """Only torch's own constructor sets them."""

    @property
    def defaults(self) -> dict[str, Any]:
        """Those of the object; empty if it has none."""
        return getattr(self.foreign, "defaults", {})

    @defaults.setter
    def defaults(self, defaults: Any) -> None:
        """Only torch's own constructor sets them."""

    @property
    def state(self) -> Any:
        """That of the object; empty if it has none."""
        return getattr(self.foreign, "state", {})

    @state.setter
    def state(self, state: Any) -> None:
        """Only torch's own constructor sets it."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the object's; what torch's constructor adds is none of its."""
        if self._is_made:
            self.foreign.add_param_group(param_group)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Let the object step. Where it takes no closure, that is evaluated first. Returns the loss, if known."""
        if closure is None:
            return self.foreign.step()
        if self._takes_closure:
            return self.foreign.step(closure=closure)
        with torch.enable_grad():
            loss = closure()
        self.foreign.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Let the object zero the gradients."""
        if getattr(type(self.foreign), "zero_grad", None) is Optimizer.zero_grad:
            super().zero_grad(set_to_none)  # for want of its constructor, the object's would break its step
        elif self._takes_set_to_none:
            self.foreign.zero_grad(set_to_none=set_to_none)
        else:
            self.foreign.zero_grad()

    def state_dict(self) -> Any:
        """That of the object."""
        return self.foreign.state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        """Load it into the object, and into what that wraps."""
        groups, state, own = self.param_groups, self.state, getattr(self.foreign, "__dict__", {})
        is_borrowed = "param_groups" not in own  # those of what it wraps
        self.foreign.load_state_dict(state_dict)
        if is_borrowed and "param_groups" in own:  # torch's `load_state_dict` has set its own, beside them
            for group, loaded in zip(groups, own.pop("param_groups"), strict=True):
                group.update(loaded)
            state.clear()
            state.update(own.pop("state"))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "foreign":
            raise AttributeError(name)
        return getattr(self.foreign, name)


def _parameters_of(method: Callable[..., Any]) -> frozenset[str]:
    try:
        return frozenset(inspect.signature(method).parameters)
    except (TypeError, ValueError):  # a builtin without a signature
        return frozenset()
