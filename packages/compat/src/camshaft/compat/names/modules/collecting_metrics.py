"""Metrics of releases 0.8 to 1.4 as classes that keep what they compute from, and compute by the functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torchmetrics.utilities import dim_zero_cat

from camshaft.compat.names.modules import functional_metrics as functions
from camshaft.compat.names.modules.metrics import Metric, earlier_arguments
from camshaft.compat.names.stand_ins import StandIn
from camshaft.hooks_core.support.messages import must_be


class _OfCounts(Metric):
    """A metric of how often each class was predicted rightly and wrongly, over all batches."""

    rows: list[Tensor]

    def __init__(
        self, num_classes: int | None, threshold: float = 0.5, multilabel: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**earlier_arguments(type(self).__name__, kwargs))
        self.num_classes, self.threshold, self.multilabel = num_classes, threshold, multilabel
        self.add_state("rows", default=[], dist_reduce_fx="cat")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Take in a batch."""
        counts = functions.counts_of(
            preds,
            target,
            self.num_classes,
            threshold=self.threshold,
            multilabel=self.multilabel,
            where=type(self).__name__,
        )
        classes = torch.arange(counts.shape[1], device=counts.device)
        self.rows.append(torch.cat((classes.unsqueeze(1), counts.T), dim=1).double())

    def counts(self) -> Tensor:
        """Return what `counts_of` does, of all batches."""
        rows = dim_zero_cat(self.rows)
        num_classes = self.num_classes or int(rows[:, 0].max()) + 1
        counts = rows.new_zeros(num_classes, rows.shape[1] - 1).index_add_(0, rows[:, 0].long(), rows[:, 1:])
        return counts.T.float()


class IoU(_OfCounts):
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
        super().__init__(num_classes, threshold, **kwargs)
        self._scored = (0 if remove_bg else ignore_index, float(absent_score), reduction)

    def compute(self) -> Tensor:
        """Return the scores, reduced."""
        return functions.iou_of(self.counts(), *self._scored)


class _Share(_OfCounts):
    """One of the shares of `share_of`, over all batches.

    Args:
        num_classes: How many classes or labels; 1 for a label that is there or not.
        beta: That of `FBeta`.
        threshold: The probability from which on a label counts as predicted.
        multilabel: Whether the second dimension is that of labels which each are there or not.
        given: The average, as of the functions, and arguments of the metric.

    Raises:
        ValueError: Without a number of classes.
    """

    weights: ClassVar[Callable[..., tuple[float, float]]]

    def __init__(
        self,
        num_classes: int | None = None,
        *,
        beta: float = 1.0,
        threshold: float = 0.5,
        multilabel: bool = False,
        **given: Any,
    ) -> None:
        where = type(self).__name__
        if num_classes is None:
            rule = "given, since without it it is not clear whether one of two classes or of several is meant"
            raise ValueError(must_be("num_classes", rule, None, where, "Pass 1 for a label that is there or not."))
        average = functions.take_average(where, given, None)
        super().__init__(num_classes, threshold, multilabel, **given)
        self.beta, self.average = beta, average

    def compute(self) -> Tensor:
        """Return the share."""
        return functions.share_of(self.counts(), *type(self).weights(self.beta), self.average, type(self).__name__)


class Precision(_Share):
    """The share of right labels of those predicted; see `_Share`."""

    weights = staticmethod(lambda _: (1, 0))


class Recall(_Share):
    """The share of labels that are predicted; see `_Share`."""

    weights = staticmethod(lambda _: (0, 1))


class FBeta(_Share):
    """The F-beta score; see `_Share`."""

    weights = staticmethod(functions.weights_of_beta)


class F1(FBeta):
    """The F score, whose beta is 1; see `_Share`."""


class ConfusionMatrix(Metric):
    """How often each class was predicted for each, as floats: [classes there, classes predicted].

    Args:
        num_classes: How many.
        normalize: "true", "pred" or "all", the sums that become 1; None for counts.
        threshold: The probability from which on the second of two classes counts as predicted.
        kwargs: Arguments of the metric.
    """

    matrix: Tensor

    def __init__(self, num_classes: int, normalize: Any = None, threshold: float = 0.5, **kwargs: Any) -> None:
        super().__init__(**earlier_arguments("ConfusionMatrix", kwargs))
        self.num_classes, self.normalize, self.threshold = num_classes, normalize, threshold
        self.add_state("matrix", default=torch.zeros(num_classes, num_classes, dtype=torch.long), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Take in a batch."""
        self.matrix += functions.confusion_matrix(preds, target, self.num_classes, threshold=self.threshold).long()

    def compute(self) -> Tensor:
        """Return the matrix of all batches."""
        return functions.normalized(self.matrix.float(), self.normalize)


class _Collecting(Metric):
    """A metric of all predictions and targets together."""

    function: ClassVar[Callable[..., Any]]
    positional: ClassVar[tuple[str, ...]]
    preds: list[Tensor]
    target: list[Tensor]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = {**dict(zip(self.positional, args, strict=False)), **kwargs}
        self._settings = {name: given.pop(name) for name in self.positional if name in given}
        super().__init__(**earlier_arguments(type(self).__name__, given))
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
    body = {"function": staticmethod(function), "positional": positional, "__module__": __name__}
    return StandIn(name, (_Collecting,), {**body, "__doc__": f"`{name}` over all batches; see the function."})


AUROC = _collecting("AUROC", functions.auroc, "num_classes", "pos_label", "average")
AveragePrecision = _collecting("AveragePrecision", functions.average_precision, "num_classes", "pos_label")
PrecisionRecallCurve = _collecting("PrecisionRecallCurve", functions.precision_recall_curve, "num_classes", "pos_label")
ROC = _collecting("ROC", functions.roc, "num_classes", "pos_label")
