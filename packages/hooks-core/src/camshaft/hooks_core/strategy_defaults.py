"""Defaults of the strategy protocol for one process, and the check that a strategy has every member of it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.protocols import Collectives, Strategy

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from camshaft.hooks_core.protocols import ReduceOp


T = TypeVar("T")


class StrategyDefaults:
    """Defaults of a strategy with one process, whole tensors and no gradient scaler; mix it in.

    `camshaft.hooks_core.protocols.Strategy` documents each method. A strategy of several processes defines
    `all_gather`, through which the other collectives go.
    """

    global_rank: int
    world_size: int
    has_skipped_step = False

    @property
    def data_rank(self) -> int:
        """Index of this process among the data-parallel ones: every process has data of its own."""
        return self.global_rank

    @property
    def num_data_ranks(self) -> int:
        """Number of data-parallel processes: all of them."""
        return self.world_size

    def connect(self) -> None:
        """Do nothing: the processes are connected."""

    def all_gather(self, value: T) -> list[T]:
        """Return a list with the value.

        Raises:
            NotImplementedError: With several processes, where a strategy must define it.
        """
        if self.world_size != 1:
            rule = "defined by a strategy of several processes"
            action = "Define it; broadcast, reduce and barrier go through it."
            raise NotImplementedError(must_be("all_gather", rule, self.world_size, type(self).__qualname__, action))
        return [value]

    def broadcast(self, value: T, src: int = 0) -> T:
        """Return the value of the process `src`."""
        return self.all_gather(value)[src]

    def reduce(self, tensor: Tensor, op: ReduceOp = "mean") -> Tensor:
        """Return the reduced tensor on this process's device; means of integers are in double precision."""
        from torch import amax, amin, mean, stack, sum

        functions: dict[str, Any] = {"mean": mean, "sum": sum, "max": amax, "min": amin}
        if op not in functions:
            raise ValueError(must_be("op", f"one of {', '.join(functions)}", op, "reduce", "Pass one of these."))
        values = stack([value.to(tensor.device) for value in self.all_gather(tensor.detach().cpu())])
        if op == "mean" and not values.is_floating_point():
            values = values.double()
        reduced: Tensor = functions[op](values, dim=0)
        return reduced

    def barrier(self) -> None:
        """Return when every process has called it."""
        self.all_gather(None)

    def model_context(self, module: nn.Module) -> AbstractContextManager[None]:
        """Return a context that does nothing."""
        return nullcontext()

    def idle_step(self) -> None:
        """Do nothing: evaluation needs no communication."""

    def set_gradient_sync(self, is_on: bool) -> None:
        """Do nothing: gradients are synchronised at every step or never."""

    def unscale_gradients(self, optimizer: Optimizer) -> None:
        """Do nothing: gradients are not scaled."""

    def load_module_state(self, module: nn.Module, state: Mapping[str, Any], strict: bool = True) -> None:
        """Load whole tensors into a module."""
        module.load_state_dict(state, strict=strict)

    def load_optimizer_state(self, optimizer: Optimizer, state: Mapping[str, Any]) -> None:
        """Load whole tensors into an optimizer."""
        optimizer.load_state_dict(dict(state))

    def place_like(self, value: Tensor, parameter: Tensor) -> Tensor:
        """Return a copy on the parameter's device."""
        return value.to(parameter.device, copy=True)

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing: there is no state."""

    def note_failure(self, error: BaseException) -> None:
        """Do nothing: no other process waits."""


STRATEGY_ATTRIBUTES = (
    *Strategy.__annotations__,
    *(name for name, member in vars(Strategy).items() if isinstance(member, property)),
)
"""Names of the protocol's attributes and properties."""

STRATEGY_METHODS = tuple(
    name
    for protocol in (Strategy, Collectives)
    for name, member in vars(protocol).items()
    if callable(member) and not name.startswith("_")
)
"""Names of the protocol's methods."""


def check_strategy(strategy: Any, where: str) -> None:
    """Raise `TypeError` unless an object has every member of the protocol `Strategy`; the message names those it lacks.

    Args:
        strategy: The object.
        where: The caller, for the message.
    """
    if isinstance(strategy, type):
        action = f"Pass an instance: `{strategy.__name__}(...)`."
        raise TypeError(must_be("strategy", "a strategy object", strategy, where, action))
    missing = [name for name in STRATEGY_ATTRIBUTES if not hasattr(strategy, name)]
    missing += [name for name in STRATEGY_METHODS if not callable(getattr(strategy, name, None))]
    if missing:
        rule = f"a strategy (missing: {', '.join(missing)})"
        action = (
            "Define the members of `camshaft.hooks_core.protocols.Strategy`; mix in "
            "`camshaft.hooks_core.StrategyDefaults` for all that is trivial with one process."
        )
        raise TypeError(must_be("strategy", rule, strategy, where, action))
