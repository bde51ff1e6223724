"""The tqdm bar of one pass over batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from camshaft.callbacks.displays.tqdm_display import import_tqdm

_WIDTH = 5

if TYPE_CHECKING:
    _Base = Any
else:
    _Base = import_tqdm()


class Tqdm(_Base):  # type: ignore[misc]
    """tqdm's bar, with numbers of the metrics so padded that the line keeps still."""

    monitor_interval = 0  # no thread

    @staticmethod
    def format_num(n: int | float | str) -> str:
        """Return a number, or a text that is one, with at least five characters; whole numbers stay as they are."""
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
