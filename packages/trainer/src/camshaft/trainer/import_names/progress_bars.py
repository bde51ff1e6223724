"""Progress bars with the arguments of earlier releases."""

from __future__ import annotations

from typing import Any, ClassVar

from camshaft.callbacks import RichProgressBar as _RichProgressBar
from camshaft.callbacks import TQDMProgressBar as _TQDMProgressBar
from camshaft.callbacks.progress_bar import ProgressBar as _ProgressBar
from camshaft.callbacks.progress_bar import overridden_names
from camshaft.trainer.import_names.stand_ins import StandIn


def _refresh_rate(batches: int) -> int | None:
    """Return today's argument: 1, which was the default, leaves it to the time."""
    return None if batches == 1 else batches


class ProgressBar(_TQDMProgressBar, metaclass=StandIn):
    """The bar of releases 0.7 to 1.6, drawn with tqdm, and the base class of those since.

    A subclass that overrides hooks, and neither makes tqdm bars nor reads them, draws by itself.

    Args:
        refresh_rate: Batches between two drawings; 0 draws none, and 1 draws by time.
        process_position: As today.
    """

    __stands_for__: ClassVar[type] = _ProgressBar

    def __init__(self, refresh_rate: int = 1, process_position: int = 0) -> None:
        super().__init__(_refresh_rate(refresh_rate), process_position)
        names = overridden_names(type(self), ProgressBar)
        self._makes_bars = any(name.startswith("init_") and name.endswith("_tqdm") for name in names)
        self._draws_itself = not self._makes_bars and any(name.startswith("on_") for name in names)

    def _shows(self) -> bool:
        return super()._shows() and not self._draws_itself


class TQDMProgressBar(_TQDMProgressBar, metaclass=StandIn):
    """The bar of releases since 1.5, drawn with tqdm.

    Args:
        refresh_rate: Batches between two drawings; 0 draws none, and 1 draws by time.
        process_position: As today.
        leave: As today.
    """

    __stands_for__: ClassVar[type] = _TQDMProgressBar

    def __init__(self, refresh_rate: int = 1, process_position: int = 0, leave: bool = False) -> None:
        super().__init__(_refresh_rate(refresh_rate), process_position, leave)


class RichProgressBar(_RichProgressBar, metaclass=StandIn):
    """The bar of releases since 1.5, drawn with rich.

    Args:
        refresh_rate: Batches between two drawings; 0 draws none, and 1 draws by time.
        leave: As today.
        theme: As today.
        console_kwargs: As today.
        refresh_rate_per_second: In 1.5: drawings a second; 0 draws none.
    """

    __stands_for__: ClassVar[type] = _RichProgressBar

    def __init__(
        self,
        refresh_rate: int = 1,
        leave: bool = False,
        theme: Any = None,
        console_kwargs: dict[str, Any] | None = None,
        *,
        refresh_rate_per_second: int | None = None,
    ) -> None:
        batches = _refresh_rate(0 if refresh_rate_per_second == 0 else refresh_rate)
        seconds = 1 / refresh_rate_per_second if refresh_rate_per_second and batches is None else None
        super().__init__(batches, leave, theme, console_kwargs, refresh_rate_seconds=seconds)
