"""Toggling optimizers: the parameters of one optimizer alone require gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.optim import Optimizer

from camshaft.hooks_core.dispatch.binding import bind
from camshaft.hooks_core.dispatch.implementation import implementation


class OptimizerToggle:
    """Freezes the parameters of the other optimizers while one is at work, so that no graph is built to them.

    Parameters that the working optimizer has as well keep requiring gradients, and so do those of no optimizer. What
    was frozen by its owner stays frozen.

    Args:
        optimizers: All optimizers.

    Attributes:
        active: The optimizer that is at work; None if all parameters require gradients as their owner wants.
        isolates: Whether the optimizer at work adds nothing to the gradients of others.
    """

    isolates: ClassVar[bool] = True

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self.active: Optimizer | None = None
        self._optimizers = list(optimizers)
        self._frozen: list[Tensor] = []

    def toggle(self, optimizer: Optimizer) -> None:
        """Freeze what belongs to other optimizers only. If another one was at work, its turn is over."""
        self.untoggle()
        self.active = optimizer
        own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        frozen = self._frozen
        for other in self._optimizers:
            if other is optimizer:
                continue
            for group in other.param_groups:
                for parameter in group["params"]:
                    if parameter.requires_grad and id(parameter) not in own:
                        parameter.requires_grad = False
                        frozen.append(parameter)

    def untoggle(self) -> None:
        """Let require gradients again whatever `toggle` froze."""
        self.active = None
        for parameter in self._frozen:
            parameter.requires_grad = True
        self._frozen.clear()


class ModuleToggle(OptimizerToggle):
    """Lets a module that overrides `toggle_optimizer` decide what requires gradients while an optimizer is at work.

    After its turn everything requires gradients again that did before.

    Args:
        module: The module.
        optimizers: All optimizers.
        toggle: Its `toggle_optimizer`.
        untoggle: Its `untoggle_optimizer`, if it overrides that as well.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizers: Sequence[Optimizer],
        toggle: Callable[..., Any],
        untoggle: Callable[..., Any] | None,
    ) -> None:
        super().__init__(optimizers)
        self._module = module
        self._bound_toggle = _by_name(toggle, ("optimizer", "optimizer_idx"))
        self._bound_untoggle = None if untoggle is None else _by_name(untoggle, ("optimizer_idx",))
        self._before: list[tuple[Tensor, bool]] = []

    def toggle(self, optimizer: Optimizer) -> None:
        """Let the module choose. If another optimizer was at work, its turn is over."""
        self.untoggle()
        self.active = optimizer
        self._before = [(parameter, parameter.requires_grad) for parameter in self._module.parameters()]
        self._bound_toggle(optimizer=optimizer, optimizer_idx=self._idx_of(optimizer))

    def untoggle(self) -> None:
        """Let require gradients whatever did before `toggle`."""
        optimizer, self.active = self.active, None
        if optimizer is not None and self._bound_untoggle is not None:
            self._bound_untoggle(optimizer_idx=self._idx_of(optimizer))
        for parameter, requires_grad in self._before:
            parameter.requires_grad = requires_grad
        self._before.clear()

    def _idx_of(self, optimizer: Optimizer) -> int:
        return next(idx for idx, other in enumerate(self._optimizers) if other is optimizer)


def toggle_of(module: nn.Module, optimizers: Sequence[Optimizer]) -> OptimizerToggle | None:
    """Return the toggle of a module that overrides `toggle_optimizer`; None for any other.

    Args:
        module: The module.
        optimizers: The optimizers that take turns.
    """
    toggle = implementation(module, "toggle_optimizer")
    if toggle is None:
        return None
    return ModuleToggle(module, optimizers, toggle, implementation(module, "untoggle_optimizer"))


def _by_name(method: Callable[..., Any], provided: Sequence[str]) -> Callable[..., Any]:
    """Return a method that takes all these arguments by name and passes on those that its signature asks for."""
    arguments = bind(method, provided)
    positional = [argument.source for argument in arguments if argument.keyword is None]
    by_keyword = {argument.keyword: argument.source for argument in arguments if argument.keyword is not None}

    def call(**values: Any) -> Any:
        return method(*(values[name] for name in positional), **{key: values[name] for key, name in by_keyword.items()})

    return call
