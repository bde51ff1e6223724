"""Whether an object has what the loops need of a strategy."""

from __future__ import annotations

from typing import Any

from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.protocols import Collectives, Strategy

STRATEGY_ATTRIBUTES = (
    *Strategy.__annotations__,
    *(name for name, member in vars(Strategy).items() if isinstance(member, property)),
)
"""Names of what the protocol has beside methods."""

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
        where: Who got it, for the message.
    """
    if isinstance(strategy, type):
        action = f"Pass an instance: `{strategy.__name__}(...)`."
        raise TypeError(must_be("strategy", "a strategy object", strategy, where, action))
    missing = [name for name in STRATEGY_ATTRIBUTES if not hasattr(strategy, name)]
    missing += [name for name in STRATEGY_METHODS if not callable(getattr(strategy, name, None))]
    if missing:
        rule = f"a strategy (missing: {', '.join(missing)})"
        action = (
            "Define what `camshaft.hooks_core.protocols.Strategy` says; mix in `camshaft.hooks_core.StrategyDefaults` "
            "for all that is trivial with one process."
        )
        raise TypeError(must_be("strategy", rule, strategy, where, action))
