"""Compatibility with code for Lightning 0.4 to 1.9: modules of every era, arguments, checkpoints, import names."""

from camshaft.hooks_core.support.on_demand import on_demand

__getattr__, __dir__, __all__ = on_demand(__name__)
