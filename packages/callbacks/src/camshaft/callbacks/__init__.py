"""Stock callbacks and loggers for any trainer that follows camshaft's hook protocol."""

from camshaft.hooks_core.support.on_demand import on_demand

__getattr__, __dir__, __all__ = on_demand(__name__)
