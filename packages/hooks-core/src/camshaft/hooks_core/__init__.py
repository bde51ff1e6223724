"""The hook protocol as data: which hooks exist, their receivers, arguments and order."""

from typing import TYPE_CHECKING

from camshaft.hooks_core.on_demand import on_demand

if TYPE_CHECKING:
    from camshaft.hooks_core.bases import Callback, CheckpointHooks, DataHooks, ModelHooks, StrategyHooks
    from camshaft.hooks_core.catalogue import CATALOGUE, Catalogue
    from camshaft.hooks_core.dispatch.faults import Fault, HookFaultError, HookFaultWarning
    from camshaft.hooks_core.dispatch.hooks import Hooks
    from camshaft.hooks_core.dispatch.implementation import is_overridden, not_a_hook
    from camshaft.hooks_core.dispatch.resolve import no_op, resolve
    from camshaft.hooks_core.eras.faults import find_faults
    from camshaft.hooks_core.spec import HookSpec, Receiver, hook
    from camshaft.hooks_core.strategy_defaults import StrategyDefaults

if not TYPE_CHECKING:  # a program imports what it uses; type checkers see the names above, and no others
    __getattr__ = on_demand(
        __name__,
        {
            "CATALOGUE": "catalogue",
            "Callback": "bases",
            "Catalogue": "catalogue",
            "CheckpointHooks": "bases",
            "DataHooks": "bases",
            "Fault": "dispatch.faults",
            "HookFaultError": "dispatch.faults",
            "HookFaultWarning": "dispatch.faults",
            "HookSpec": "spec",
            "Hooks": "dispatch.hooks",
            "ModelHooks": "bases",
            "Receiver": "spec",
            "StrategyDefaults": "strategy_defaults",
            "StrategyHooks": "bases",
            "find_faults": "eras.faults",
            "hook": "spec",
            "is_overridden": "dispatch.implementation",
            "not_a_hook": "dispatch.implementation",
            "no_op": "dispatch.resolve",
            "resolve": "dispatch.resolve",
        },
    )

__all__ = [
    "CATALOGUE",
    "Callback",
    "Catalogue",
    "CheckpointHooks",
    "DataHooks",
    "Fault",
    "HookFaultError",
    "HookFaultWarning",
    "HookSpec",
    "Hooks",
    "ModelHooks",
    "Receiver",
    "StrategyDefaults",
    "StrategyHooks",
    "find_faults",
    "hook",
    "is_overridden",
    "no_op",
    "not_a_hook",
    "resolve",
]
