"""Progress bars with the arguments of earlier releases."""

from __future__ import annotations

from typing import Any, ClassVar

from camshaft.callbacks import RichProgressBar as _RichProgressBar
from camshaft.callbacks import TQDMProgressBar as _TQDMProgressBar
from camshaft.callbacks.progress_bar import ProgressBar as _ProgressBar
from camshaft.trainer.import_names.stand_ins import StandIn, note, refuse_argument, refuse_overrides

_NOT_CALLED = tuple(f"init_{stage}_tqdm" for stage in ("sanity", "train", "validation", "predict", "test"))
_OWN_DRAWING = "Override `get_metrics`, or define `open_display`; see `camshaft.callbacks.ProgressBar`."
_POSITION = ("a bar draws at the end of the output", "Leave it out.")


class _Earlier(_ProgressBar):
    """What the bars of earlier releases have in common."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse_overrides(cls, _NOT_CALLED, _OWN_DRAWING)

    def get_metrics(self, trainer: Any, module: Any) -> dict[str, float | int | str]:
        """The metrics, which a subclass may change."""
        return dict(super().get_metrics(trainer, module))

    def _refresh(self, refresh_rate: int) -> None:
        """Follow a number of batches between two drawings, 0 being none; today a bar is drawn by time."""
        if refresh_rate == 0:
            self.disable()
        elif refresh_rate != 1:
            meaning = "a bar drawn ten times a second, see `refresh_rate_seconds` of `camshaft.callbacks.ProgressBar`"
            note(type(self).__name__, f"refresh_rate={refresh_rate}", meaning)


class ProgressBar(_Earlier, _RichProgressBar, metaclass=StandIn):
    """The bar of releases 0.7 to 1.6, drawn with rich.

    Args:
        refresh_rate: Batches between two drawings; 0 draws none, and others draw by time.
        process_position: 0.

    Raises:
        TypeError: If a subclass overrides what is not called.
        ValueError: If `process_position` is another.
    """

    __stands_for__: ClassVar[type] = _ProgressBar

    def __init__(self, refresh_rate: int = 1, process_position: int = 0) -> None:
        super().__init__()
        refuse_argument("process_position", process_position, type(self).__name__, *_POSITION, accepted=(0,))
        self._refresh(refresh_rate)


class TQDMProgressBar(_Earlier, _TQDMProgressBar, metaclass=StandIn):
    """The bar of releases since 1.5, drawn with tqdm.

    Args:
        refresh_rate: Batches between two drawings; 0 draws none, and others draw by time.
        process_position: 0.
        leave: As today.

    Raises:
        TypeError: If a subclass overrides what is not called.
        ValueError: If `process_position` is another.
    """

    __stands_for__: ClassVar[type] = _TQDMProgressBar

    def __init__(self, refresh_rate: int = 1, process_position: int = 0, leave: bool = False) -> None:
        super().__init__(leave=leave)
        refuse_argument("process_position", process_position, type(self).__name__, *_POSITION, accepted=(0,))
        self._refresh(refresh_rate)


class RichProgressBar(_Earlier, _RichProgressBar, metaclass=StandIn):
    """The bar of releases since 1.5, drawn with rich.

    Args:
        refresh_rate: Batches between two drawings; 0 draws none, and others draw by time.
        leave: As today.
        theme: None.
        console_kwargs: None.
        refresh_rate_per_second: In 1.5: drawings a second; 0 draws none.

    Raises:
        TypeError: If a subclass overrides what is not called.
        ValueError: If `theme` or `console_kwargs` is given.
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
        seconds = 1 / refresh_rate_per_second if refresh_rate_per_second else 0.1
        super().__init__(refresh_rate_seconds=seconds, leave=leave)
        where = type(self).__name__
        refuse_argument("theme", theme, where, "colours cannot be chosen", "Leave it out.")
        refuse_argument(
            "console_kwargs", console_kwargs, where, "rich's console is not made anew", "Leave it out.", ({},)
        )
        self._refresh(0 if refresh_rate_per_second == 0 else refresh_rate)
