"""`CombinedLoader` with the arguments of earlier releases."""

from __future__ import annotations

from typing import Any, ClassVar

from camshaft.loops.combined_loader import CombinationMode
from camshaft.loops.combined_loader import CombinedLoader as _CombinedLoader
from camshaft.trainer.import_names.stand_ins import StandIn


class CombinedLoader(_CombinedLoader, metaclass=StandIn):
    """`camshaft.loops.CombinedLoader`, which ends with the shortest loader by default, as it did.

    Args:
        iterables: The loaders.
        mode: As today.
        loaders: The loaders, under the name that they had up to 1.9.
    """

    __stands_for__: ClassVar[type] = _CombinedLoader

    def __init__(self, iterables: Any = None, mode: CombinationMode = "min_size", *, loaders: Any = None) -> None:
        super().__init__(iterables if loaders is None else loaders, mode)
