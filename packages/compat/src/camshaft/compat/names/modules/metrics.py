"""Metrics of releases 0.8 to 1.4 as classes: torchmetrics', or ones that keep what the functions compute from."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Number
from typing import Any, ClassVar

import numpy as np
import torch
import torchmetrics
from torch import Tensor
from torchmetrics.image import PeakSignalNoiseRatio, StructuralSimilarityIndexMeasure
from torchmetrics.utilities import dim_zero_cat

from camshaft.compat.names.modules import functional_metrics as functions
from camshaft.compat.names.modules.functional_metrics import by_name, earlier_arguments
from camshaft.compat.names.stand_ins import StandIn
from camshaft.compat.names.utilities.functions import apply_to_collection, sync_ddp_if_available
from camshaft.hooks_core.support.messages import must_be


class _OnStep(torchmetrics.Metric):
    """Metrics that compute nothing when called with `compute_on_step=False`, which torchmetrics has not."""

    compute_on_step = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Take in a batch, and return its value, unless that is not wanted."""
        if self.compute_on_step:
            return super().forward(*args, **kwargs)
        self.update(*args, **kwargs)
        return None


class Metric(_OnStep, metaclass=StandIn):
    """`torchmetrics.Metric`, to be subclassed.

    A subclass for 0.8 or 0.9 defines `forward` alone, which computes the metric of a batch.

    Args:
        compute_on_step: Whether a call returns the value of its batch; or the metric's name, as in 0.8 and 0.9.
        kwargs: Arguments of `torchmetrics.Metric`, and `name`.
    """

    def __init__(self, compute_on_step: bool | str | None = True, *args: Any, **kwargs: Any) -> None:
        name = kwargs.pop("name", compute_on_step if isinstance(compute_on_step, str) else None)
        given = by_name("Metric", ("dist_sync_on_step", "process_group", "dist_sync_fn"), args, kwargs)
        super().__init__(**{field: value for field, value in given.items() if value is not None})
        self.compute_on_step = compute_on_step is None or bool(compute_on_step)
        if name is not None:
            self.name = name

    def update(self, *_: Any, **__: Any) -> None:
        """Take in a batch; to be defined."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define `update`. Define it to take in a batch.")

    def compute(self) -> Any:
        """Return the value; to be defined."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define `compute`. Define it to return a value.")


_VALUES = (Tensor, np.ndarray, Number)


class TensorMetric(Metric):
    """A metric of 0.8 and 0.9 whose `forward` takes tensors, and returns a tensor or a number of one batch.

    Nothing is accumulated; the value is added up over processes.

    Args:
        name: Its name.
        reduce_group: The processes; None means all.
        reduce_op: One of `torch.distributed.ReduceOp`, "avg" or "mean"; None means the sum.
    """

    def __init__(self, name: str, reduce_group: Any = None, reduce_op: Any = None) -> None:
        super().__init__(name)
        self._reduction = (reduce_group, reduce_op)

    def _convert(self, value: Any) -> Any:
        """Return a tensor of an argument."""
        return torch.as_tensor(value if isinstance(value, (Tensor, np.ndarray)) else [value])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result of `forward`, as a tensor of the metric's device and type. Collective."""
        args, kwargs = apply_to_collection((args, kwargs), _VALUES, self._convert)
        value = super().__call__(*args, **kwargs)
        if not isinstance(value, _VALUES):
            action = "Return one of these, and log the others by themselves."
            raise TypeError(must_be("result", "a tensor, a NumPy array or a number", value, "a metric", action))
        result = sync_ddp_if_available(TensorMetric._convert(self, value), *self._reduction)
        return result.to(self.device, self.dtype)


class NumpyMetric(TensorMetric):
    """A metric whose `forward` takes NumPy arrays, and returns an array or a number; see `TensorMetric`."""

    def _convert(self, value: Any) -> Any:
        return super()._convert(value).detach().cpu().numpy()


class _WithSettings(Metric):
    """A metric with settings of its own, which are attributes, beside the arguments of `Metric`."""

    positional: ClassVar[tuple[str, ...]] = ("num_classes",)
    """Settings that may be passed by position."""
    further: ClassVar[tuple[str, ...]] = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        where = type(self).__name__
        given = by_name(where, self.positional, args, kwargs)
        settings = {name: given.pop(name) for name in (*self.positional, *self.further) if name in given}
        super().__init__(**earlier_arguments(where, given))
        self.settings = settings
        vars(self).update(settings)


class Accuracy(_WithSettings):
    """The share of correct labels, of any task: as up to 1.2, it needs no `task`.

    Predictions with one dimension more than the target are scores of classes, of which the highest counts; other
    floating-point predictions are probabilities of labels; integers are labels.

    Args:
        threshold: The probability from which on a label counts as predicted.
        num_classes: As in 0.8 and 0.9; it makes no difference.
        top_k: How many of the highest scores count as predicted; None for one.
        subset_accuracy: Whether all labels of a sample have to be correct.
        kwargs: Arguments of the metric.

    Raises:
        ValueError: If an argument asks for what there is not; in `update`, if shapes do not go together.
    """

    positional = ("threshold", "num_classes", "top_k", "subset_accuracy")
    threshold = 0.5
    top_k: int | None = None
    subset_accuracy = False
    correct: Tensor
    total: Tensor

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.threshold > 1:  # in 0.8 and 0.9 `num_classes` was first
            self.threshold = 0.5
        self.add_state("correct", default=torch.tensor(0), dist_reduce_fx="sum")
        self.add_state("total", default=torch.tensor(0), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Take in a batch."""
        correct = functions.correct_labels(preds, target, self.threshold, self.top_k, self.subset_accuracy)
        self.correct += correct.sum()
        self.total += correct.numel()

    def compute(self) -> Tensor:
        """Return the share so far."""
        return self.correct.float() / self.total


class _OfCounts(_WithSettings):
    """A metric of how often each class was predicted rightly and wrongly, over all batches."""

    num_classes: int | None = None
    threshold = 0.5
    multilabel = False
    rows: list[Tensor]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.add_state("rows", default=[], dist_reduce_fx="cat")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Take in a batch."""
        counts = functions.counts_of(preds, target, self.num_classes, self.threshold, self.multilabel)
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

    positional = ("num_classes", "ignore_index", "absent_score", "threshold", "reduction", "remove_bg")

    def compute(self) -> Tensor:
        """Return the scores, reduced."""
        counting = ("num_classes", "threshold")
        return functions.iou_of(self.counts(), **{k: v for k, v in self.settings.items() if k not in counting})


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

    further = ("beta", "threshold", "multilabel")
    beta = 1.0
    weights: ClassVar[Callable[..., tuple[float, float]]]

    def __init__(self, num_classes: int | None = None, **given: Any) -> None:
        where = type(self).__name__
        if num_classes is None:
            rule = "given, since without it it is not clear whether one of two classes or of several is meant"
            raise ValueError(must_be("num_classes", rule, None, where, "Pass 1 for a label that is there or not."))
        average = functions.take_average(where, given, None)
        super().__init__(num_classes, **given)
        self.average = average

    def compute(self) -> Tensor:
        """Return the share."""
        return functions.share_of(self.counts(), *type(self).weights(self.beta), self.average)


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


class _Collecting(_WithSettings):
    """A metric of all predictions and targets together."""

    function: ClassVar[Callable[..., Any]]
    preds: list[Tensor]
    target: list[Tensor]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.add_state("preds", default=[], dist_reduce_fx="cat")
        self.add_state("target", default=[], dist_reduce_fx="cat")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Take in a batch."""
        self.preds.append(preds)
        self.target.append(target)

    def compute(self) -> Any:
        """Return the metric of all batches."""
        return type(self).function(dim_zero_cat(self.preds), dim_zero_cat(self.target), **self.settings)


def _collecting(name: str, function: Callable[..., Any], *positional: str) -> Any:
    body = {"function": staticmethod(function), "positional": positional, "__module__": __name__}
    return StandIn(name, (_Collecting,), {**body, "__doc__": f"`{name}` over all batches; see the function."})


AUROC = _collecting("AUROC", functions.auroc, "num_classes", "pos_label", "average")
AveragePrecision = _collecting("AveragePrecision", functions.average_precision, "num_classes", "pos_label")
PrecisionRecallCurve = _collecting("PrecisionRecallCurve", functions.precision_recall_curve, "num_classes", "pos_label")
ROC = _collecting("ROC", functions.roc, "num_classes", "pos_label")


def _metric_of_values(name: str, base: type, *positional: str, **settings: Any) -> Any:
    """Return a subclass of a metric of torchmetrics that takes the arguments of `Metric` by keyword.

    Args:
        name: Its name; instances of a base of that name are those of the class as well.
        base: The metric.
        positional: Arguments that may be passed by position; `num_outputs` is left out, as torchmetrics counts them.
        settings: Arguments of the metric.
    """

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        given = by_name(name, positional, args, kwargs)
        computes = given.pop("compute_on_step", True)
        given.pop("num_outputs", None)
        base.__init__(self, **settings, **earlier_arguments(name, given))  # type: ignore[misc]
        self.compute_on_step = computes

    doc = f"`torchmetrics.{base.__name__}` with earlier arguments."
    return StandIn(name, (_OnStep, base), {"__init__": init, "__module__": __name__, "__doc__": doc})


MeanSquaredError = _metric_of_values("MeanSquaredError", torchmetrics.MeanSquaredError)
RMSE = _metric_of_values("RMSE", torchmetrics.MeanSquaredError, squared=False)
MeanAbsoluteError = _metric_of_values("MeanAbsoluteError", torchmetrics.MeanAbsoluteError)
ExplainedVariance = _metric_of_values("ExplainedVariance", torchmetrics.ExplainedVariance, "multioutput")
R2Score = _metric_of_values("R2Score", torchmetrics.R2Score, "num_outputs", "adjusted", "multioutput")
SSIM = _metric_of_values("SSIM", StructuralSimilarityIndexMeasure)
PSNR = _metric_of_values("PSNR", PeakSignalNoiseRatio, "data_range")
