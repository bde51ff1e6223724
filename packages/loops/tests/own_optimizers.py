"""Optimizers as others write them: with a closure that they evaluate by themselves, and wrappers of many kinds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer


class Sam(Optimizer):
    """Sharpness-aware minimization: steps by the gradients at the worst weights nearby."""

    def __init__(self, parameters: Iterable[Any], lr: float = 0.1, rho: float = 0.5) -> None:
        super().__init__(parameters, {"lr": lr, "rho": rho})
        self.base = SGD(self.param_groups, lr=lr, momentum=0.9)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        assert closure is not None, "needs a closure"
        loss = closure()
        moved = self.climb()
        closure()
        for parameter, change in moved:
            parameter.sub_(change)
        self.base.step()
        return loss

    def climb(self) -> list[tuple[Tensor, Tensor]]:
        group = self.param_groups[0]
        parameters = [one for one in group["params"] if one.grad is not None]
        norm = torch.stack([one.grad.norm() for one in parameters]).norm()
        moved = [(one, one.grad * (group["rho"] / norm)) for one in parameters]
        for parameter, change in moved:
            parameter.add_(change)
        return moved

    def step_by_hand(self, evaluate: Callable[[], Any]) -> None:
        """As `step`, by whoever differentiates by hand."""
        evaluate()
        with torch.no_grad():
            moved = self.climb()
        evaluate()
        with torch.no_grad():
            for parameter, change in moved:
                parameter.sub_(change)
        self.base.step()


class Sign(Optimizer):
    """Evaluates its closure once, if there is one, as most optimizers of others do."""

    def __init__(self, parameters: Iterable[Any], lr: float = 0.01) -> None:
        super().__init__(parameters, {"lr": lr})
        self.num_closures = 0

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        loss = None
        if closure is not None:
            self.num_closures += 1
            loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.add_(parameter.grad.sign(), alpha=-group["lr"])
        return loss


class Deaf(Sign):
    """Takes a closure and leaves it alone."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        return super().step()


class Duck:
    """What optimizers have, and no `Optimizer`."""

    def __init__(self, inner: Optimizer) -> None:
        self.inner = inner
        self.defaults = inner.defaults
        self.state = inner.state
        self.num_steps = 0

    @property
    def param_groups(self) -> Any:
        return self.inner.param_groups

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        self.num_steps += 1
        return self.inner.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)

    def state_dict(self) -> Any:
        return self.inner.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.inner.load_state_dict(state)


class Claiming(Duck):
    """Claims the class of what it wraps, as proxies do."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self.inner)


class Uninitialized(Duck, Optimizer):
    """Inherits from `Optimizer` and never calls its constructor."""


class Taking:
    """Takes the class of what it wraps, and its methods with it, which work on the attributes of that."""

    def __init__(self, inner: Optimizer) -> None:
        self.inner = inner
        self.num_steps = 0
        self.__class__ = type("Taking", (Taking, type(inner)), {})

    def step(self, **arguments: Any) -> Any:
        self.num_steps += 1
        return self.inner.step(**arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)


class Looking(Optimizer):
    """Looks ahead: every second step goes half way back; made without torch's constructor."""

    def __init__(self, inner: Optimizer) -> None:
        self.inner = inner
        self.param_groups = inner.param_groups
        self.defaults, self.state = inner.defaults, defaultdict(dict)
        self.num_steps = 0

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        loss = self.inner.step(closure)
        self.num_steps += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                slow = self.state[parameter].setdefault("slow", parameter.detach().clone())
                if self.num_steps % 2 == 0:
                    parameter.data.add_(slow).mul_(0.5)
                    slow.copy_(parameter.data)
        return loss

    def state_dict(self) -> Any:
        slow = [self.state[one].get("slow") for group in self.param_groups for one in group["params"]]
        return {"state": slow, "num_steps": self.num_steps, "inner": self.inner.state_dict(), "param_groups": []}

    def load_state_dict(self, state: Any) -> None:
        self.inner.load_state_dict(state["inner"])
        self.num_steps = state["num_steps"]
        parameters = [one for group in self.inner.param_groups for one in group["params"]]
        for parameter, slow in zip(parameters, state["state"], strict=True):
            self.state[parameter]["slow"] = slow.clone()
        self.param_groups = self.inner.param_groups


WRAPPERS: list[Callable[[Optimizer], Any]] = [Duck, Claiming, Uninitialized, Taking, Looking]


def momentum(module: nn.Module) -> SGD:
    return SGD(module.parameters(), lr=0.1, momentum=0.9)
