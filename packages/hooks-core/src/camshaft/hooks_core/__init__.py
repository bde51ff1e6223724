"""The hook protocol as data: which hooks exist, their receivers, arguments and order."""

from typing import TYPE_CHECKING

from camshaft.hooks_core.support.on_demand import on_demand

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

_EXPORTS = {
    "bases": ("Callback", "CheckpointHooks", "DataHooks", "ModelHooks", "StrategyHooks"),
    "catalogue": ("CATALOGUE", "Catalogue"),
    "dispatch.faults": ("Fault", "HookFaultError", "HookFaultWarning"),
    "dispatch.hooks": ("Hooks",),
    "dispatch.implementation": ("is_overridden", "not_a_hook"),
    "dispatch.resolve": ("no_op", "resolve"),
    "eras.faults": ("find_faults",),
    "spec": ("HookSpec", "Receiver", "hook"),
    "strategy_defaults": ("StrategyDefaults",),
}

if not TYPE_CHECKING:  # a program imports what it uses; type checkers see the names above, and no others
    __getattr__ = on_demand(__name__, {name: module for module, names in _EXPORTS.items() for name in names})

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
