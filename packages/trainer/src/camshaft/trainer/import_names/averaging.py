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
        swa_lrs: The learning rate, without which earlier releases took that of the optimizer.
        arguments: Today's; see `camshaft.callbacks.StochasticWeightAveraging`.

    Raises:
        TypeError: If an argument is given by position.
        ValueError: Without `swa_lrs`, or as `camshaft.callbacks.StochasticWeightAveraging`.
    """

    __stands_for__: ClassVar[type] = _StochasticWeightAveraging

    def __init__(self, *args: Any, swa_lrs: float | list[float] | None = None, **arguments: Any) -> None:
        where = "StochasticWeightAveraging"
        if args:
            rule = "given by name: up to 1.6 the first was `swa_epoch_start`, and `swa_lrs` later"
            raise TypeError(must_be("args", rule, args, where, "Write swa_lrs=... and swa_epoch_start=..."))
        if swa_lrs is None:
            rule = "the learning rate of the last epochs"
            raise ValueError(must_be("swa_lrs", rule, swa_lrs, where, "Pass swa_lrs=..., such as the optimizer's."))
        super().__init__(swa_lrs, **arguments)
