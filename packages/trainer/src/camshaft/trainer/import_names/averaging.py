"""`StochasticWeightAveraging` with the arguments of earlier releases."""

from __future__ import annotations

from typing import Any, ClassVar

from camshaft.callbacks import StochasticWeightAveraging as _StochasticWeightAveraging
from camshaft.hooks_core.messages import must_be
from camshaft.trainer.import_names.stand_ins import StandIn


class StochasticWeightAveraging(_StochasticWeightAveraging, metaclass=StandIn):
    """Takes its arguments by name: up to 1.6 the first was `swa_epoch_start`, and `swa_lrs` later.

    Args:
        args: None.
        swa_lrs: As today; left out, the optimizer keeps its learning rates, as up to 1.6.
        arguments: Today's; see `camshaft.callbacks.StochasticWeightAveraging`.

    Raises:
        TypeError: If an argument is given by position.
        ValueError: As `camshaft.callbacks.StochasticWeightAveraging`.
    """

    __stands_for__: ClassVar[type] = _StochasticWeightAveraging

    def __init__(self, *args: Any, swa_lrs: float | list[float] | None = None, **arguments: Any) -> None:
        if args:
            rule = "given by name: up to 1.6 the first was `swa_epoch_start`, and `swa_lrs` later"
            where = "StochasticWeightAveraging"
            raise TypeError(must_be("args", rule, args, where, "Write swa_lrs=... and swa_epoch_start=..."))
        super().__init__(swa_lrs, **arguments)
