"""The hook protocol as data: which hooks exist, their receivers, arguments and order."""

from camshaft.hooks_core.support.on_demand import on_demand

__getattr__, __dir__, __all__ = on_demand(__name__)
