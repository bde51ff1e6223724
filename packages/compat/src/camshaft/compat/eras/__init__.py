"""Receivers of earlier eras: the release for which each was written, how its methods are called, and its runs."""

from camshaft.hooks_core.support.on_demand import on_demand

__getattr__, __dir__, __all__ = on_demand(__name__)
