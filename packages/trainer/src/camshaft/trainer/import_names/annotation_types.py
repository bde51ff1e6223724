"""Types that earlier code annotates with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NoReturn

from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

STEP_OUTPUT = Tensor | Mapping[str, Any] | None
EPOCH_OUTPUT = list[Tensor | Mapping[str, Any] | None]
TRAIN_DATALOADERS = Any
EVAL_DATALOADERS = Any
OptimizerLRScheduler = Any
LRSchedulerType = type[LRScheduler] | type[ReduceLROnPlateau]
LRSchedulerTypeUnion = LRScheduler | ReduceLROnPlateau
LRSchedulerPLType = LRScheduler | ReduceLROnPlateau
_EVALUATE_OUTPUT = list[dict[str, float]]
_METRIC = Tensor | float
_METRIC_COLLECTION = _METRIC | Mapping[str, Any]
_NUMBER = int | float
_PATH = str | os.PathLike[str]
_PREDICT_OUTPUT = list[Any] | list[list[Any]]


class LightningOptimizer:
    """The wrapper that optimizers had in releases 1.1 to 2.x; ours are torch's own, so nothing is an instance of it."""

    def __new__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse.

        Raises:
            TypeError: Always.
        """
        raise TypeError("Optimizers are torch's own and need no LightningOptimizer around them. Use them as they are.")
