"""`EarlyStopping` with the arguments of earlier releases."""

from __future__ import annotations

from typing import Any, ClassVar

from camshaft.callbacks import EarlyStopping as _EarlyStopping
from camshaft.trainer.import_names.monitoring import UNSET, chosen_mode
from camshaft.trainer.import_names.stand_ins import StandIn, note, refuse_overrides

_WHERE = "EarlyStopping"
_NUM_ARGUMENTS_BEFORE_RANKS = 6  # behind `mode`
_NOT_CALLED = ("check_metrics", "_evalute_stopping_criteria")


class EarlyStopping(_EarlyStopping, metaclass=StandIn):
    """Takes what releases 0.4 to 1.9 took; see `camshaft.callbacks.EarlyStopping`.

    Args:
        monitor: The metric. Left out or None it is `val_loss`, as up to 0.9.
        min_delta: As today.
        patience: As today.
        verbose: Whether to print; 0 and 1 mean false and true.
        mode: "min", "max" or "auto", which is "max" for "acc" alone.
        log_rank_zero_only: As today, but the first process alone prints if it is left out.
        arguments: Today's.

    Raises:
        TypeError: If a subclass overrides what is not called.
        ValueError: If it is not clear which direction is meant, or as `camshaft.callbacks.EarlyStopping`.
    """

    __stands_for__: ClassVar[type] = _EarlyStopping

    def __init__(
        self,
        monitor: Any = UNSET,
        min_delta: float = 0.0,
        patience: int = 3,
        verbose: bool | int = False,
        mode: str | None = None,
        *args: Any,
        log_rank_zero_only: bool = True,
        **arguments: Any,
    ) -> None:
        if monitor is UNSET or monitor is None:
            monitor = "val_loss"
            note(_WHERE, "no `monitor`", "`monitor='val_loss'`, as up to 0.9")
        chosen = chosen_mode(mode, monitor, _WHERE, is_auto_by_default=False)
        if len(args) < _NUM_ARGUMENTS_BEFORE_RANKS:
            arguments["log_rank_zero_only"] = log_rank_zero_only
        super().__init__(monitor, min_delta, patience, bool(verbose), chosen, *args, **arguments)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse_overrides(cls, _NOT_CALLED, "Override `on_validation_end`, or subclass `Callback`.")
