"""The catalogue: every hook of every era, as data."""

from camshaft.hooks_core.catalogue.registry import CATALOGUE, Catalogue

__all__ = ["CATALOGUE", "Catalogue"]
