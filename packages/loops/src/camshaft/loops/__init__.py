"""Loops that train and evaluate a module on any strategy, emitting every hook at its moment."""

from camshaft.hooks_core.support.on_demand import on_demand

__getattr__, __dir__, __all__ = on_demand(__name__)
