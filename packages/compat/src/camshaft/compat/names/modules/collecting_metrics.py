"""Metrics of releases 0.8 to 1.4 as classes that keep what they compute from, and compute by the functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torchmetrics.utilities import dim_zero_cat

from camshaft.compat.names.modules import functional_metrics as functions
from camshaft.compat.names.modules.metrics import Metric, refuse_single_values
from camshaft.compat.names.stand_ins import StandIn


class IoU(Metric):
    """The intersection over union of each class, over all batches.

    Args:
        num_classes: How many; None to take it from the labels.
        ignore_index: The class whose score is left out.
        absent_score: The score of a class that is neither predicted nor there.
        threshold: The probability from which on a label counts as predicted.
        reduction: "elementwise_mean", "sum" or "none".
        remove_bg: Whether the score of class 0 is left out, as in 0.8 and 0.9.
        kwargs: Arguments of the metric.
    """

    rows: list[Tensor]

    def __init__(
        self,
        num_classes: int | None = None,
        ignore_index: int | None = None,
        absent_score: float = 0.0,
        threshold: float = 0.5,
        reduction: str = "elementwise_mean",
        remove_bg: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**refuse_single_values("IoU", kwargs))
        self.num_classes, self.threshold = num_classes, threshold
        self._scored = (0 if remove_bg else ignore_index, float(absent_score), reduction)
        self.add_state("rows", default=[], dist_reduce_fx="cat")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Take in a batch."""
        counts = functions.counts_of(preds, target, self.num_classes, threshold=self.threshold, where="IoU")
        classes = torch.arange(counts.shape[1], device=counts.device)
        self.rows.append(torch.cat((classes.unsqueeze(1), counts.T), dim=1).double())

    def compute(self) -> Tensor:
        """Return the scores, reduced."""
        rows = dim_zero_cat(self.rows)
        num_classes = self.num_classes or int(rows[:, 0].max()) + 1
        counts = rows.new_zeros(num_classes, rows.shape[1] - 1).index_add_(0, rows[:, 0].long(), rows[:, 1:])
        return functions.iou_of(counts.T, *self._scored).float()


class _Collecting(Metric):
    """A metric of all predictions and targets together."""

    function: ClassVar[Callable[..., Any]]
    positional: ClassVar[tuple[str, ...]]
    preds: list[Tensor]
    target: list[Tensor]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = {**dict(zip(self.positional, args, strict=False)), **kwargs}
        self._settings = {name: given.pop(name) for name in self.positional if name in given}
        super().__init__(**refuse_single_values(type(self).__name__, given))
        self.add_state("preds", default=[], dist_reduce_fx="cat")
        self.add_state("target", default=[], dist_reduce_fx="cat")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Take in a batch."""
        self.preds.append(preds)
        self.target.append(target)

    def compute(self) -> Any:
        """Return the metric of all batches."""
        return type(self).function(dim_zero_cat(self.preds), dim_zero_cat(self.target), **self._settings)


def _collecting(name: str, function: Callable[..., Any], *positional: str) -> Any:
    body = {"function": staticmethod(function), "positional": positional, "__stands_for__": (), "__module__": __name__}
    return StandIn(name, (_Collecting,), {**body, "__doc__": f"`{name}` over all batches; see the function."})


AveragePrecision = _collecting("AveragePrecision", functions.average_precision, "num_classes", "pos_label")
HammingDistance = _collecting("HammingDistance", functions.hamming_distance, "threshold")
PrecisionRecallCurve = _collecting("PrecisionRecallCurve", functions.precision_recall_curve, "num_classes", "pos_label")
ROC = _collecting("ROC", functions.roc, "num_classes", "pos_label")
