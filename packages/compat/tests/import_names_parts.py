"""The import names of earlier code, installed for the length of a `with` statement whatever was imported before."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from camshaft.compat import install_aliases, remove_aliases
from camshaft.compat.names.table import ROOTS


@contextmanager
def names_of_earlier_code() -> Iterator[None]:
    """Other tests may have imported the packages that have these names."""
    firsts = {root.partition(".")[0] for root in ROOTS}
    kept = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in firsts}
    for name in kept:
        del sys.modules[name]
    install_aliases()
    try:
        yield
    finally:
        remove_aliases()
        sys.modules.update(kept)
