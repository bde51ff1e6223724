"""The hook protocol as data: which hooks exist, who may implement them, with which arguments, in which order."""

from camshaft.hooks_core.bases import Callback, CheckpointHooks, DataHooks, ModelHooks, StrategyHooks
from camshaft.hooks_core.catalogue import CATALOGUE, Catalogue
from camshaft.hooks_core.dispatch.faults import Fault, HookFaultError, HookFaultWarning
from camshaft.hooks_core.dispatch.hooks import Hooks
from camshaft.hooks_core.dispatch.implementation import is_overridden, not_a_hook
from camshaft.hooks_core.dispatch.resolve import resolve
from camshaft.hooks_core.spec import ERAS, HookSpec, Receiver
from camshaft.hooks_core.strategy_defaults import StrategyDefaults

__all__ = [
    "CATALOGUE",
    "ERAS",
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
    "is_overridden",
    "not_a_hook",
    "resolve",
]
