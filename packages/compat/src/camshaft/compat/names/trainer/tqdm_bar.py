"""tqdm's bar with Lightning's format; needs tqdm."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_WIDTH = 5

if TYPE_CHECKING:
    _Base = Any
else:
    _Base = import_module("tqdm.auto").tqdm


class Tqdm(_Base):  # type: ignore[misc]
    """tqdm's bar, with metrics padded to a constant width."""

    monitor_interval = 0  # no thread

    @staticmethod
    def format_num(n: int | float | str) -> str:
        """Return a number, or the text of one, with at least five characters; ints unchanged."""
        text = n if isinstance(n, str) else str(_Base.format_num(n))
        if isinstance(n, int) or "e" in text or len(text) >= _WIDTH:
            return text
        if "." not in text:
            try:
                float(text)
            except ValueError:
                return text
            text += "."
        return text.ljust(_WIDTH, "0")
