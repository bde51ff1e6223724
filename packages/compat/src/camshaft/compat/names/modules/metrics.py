"""Metrics of releases 0.8 to 1.4 as classes, through torchmetrics."""

from __future__ import annotations

from typing import Any

import torch
import torchmetrics
from torch import Tensor
from torchmetrics.image import PeakSignalNoiseRatio, StructuralSimilarityIndexMeasure

from camshaft.compat.names.stand_ins import StandIn, refuse_argument
from camshaft.hooks_core.support.messages import must_be


def labels_of(preds: Tensor, target: Tensor, threshold: float, where: str) -> Tensor:
    """Return the labels of predictions, in the target's shape.

    Raises:
        ValueError: If they do not go together.
    """
    if preds.ndim == target.ndim + 1:
        preds = preds.argmax(dim=1)
    elif preds.is_floating_point():
        are_labels = bool((preds > 1).any() and (preds == preds.round()).all())
        preds = preds.to(torch.long) if are_labels else (preds >= threshold).to(torch.long)
    if preds.shape != target.shape:
        rule = f"of the target's shape {tuple(target.shape)}, or that with a dimension for classes after the first"
        raise ValueError(
            must_be("preds", rule, tuple(preds.shape), where, "Say what is meant by torchmetrics' `task`.")
        )
    return preds


def earlier_arguments(name: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a metric without those that every metric had, if these have no effect.

    Raises:
        ValueError: If they ask for what there is not.
    """
    kept = dict(kwargs)
    for argument, nothing in (("is_multiclass", None), ("reduction", "elementwise_mean")):
        value, why = kept.pop(argument, None), "torchmetrics has no such argument"
        refuse_argument(argument, value, name, why, "See the one of `torchmetrics`.", (nothing,))
    return {argument: value for argument, value in kept.items() if value is not None or argument == "average"}


def correct_labels(
    preds: Tensor, target: Tensor, threshold: float, top_k: int | None, subset_accuracy: bool, where: str
) -> Tensor:
    """Return which labels are predicted correctly; with `subset_accuracy`, of which samples all are.

    Raises:
        ValueError: If `preds` and `target` do not go together, or only labels are given for `top_k`.
    """
    if top_k is None or top_k == 1:
        correct = labels_of(preds, target, threshold, where) == target
    elif preds.ndim == target.ndim + 1:
        correct = (preds.topk(top_k, dim=1).indices == target.unsqueeze(1)).any(dim=1)
    else:
        rule = "left out, since there are no scores of classes"
        raise ValueError(must_be("top_k", rule, top_k, where, "Pass scores with a dimension for classes."))
    return correct.flatten(1).all(dim=1) if subset_accuracy and correct.ndim > 1 else correct


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
        kwargs.update(zip(("dist_sync_on_step", "process_group", "dist_sync_fn"), args, strict=False))
        super().__init__(**{field: value for field, value in kwargs.items() if value is not None})
        self.compute_on_step = compute_on_step is None or bool(compute_on_step)
        if name is not None:
            self.name = name

    def update(self, *_: Any, **__: Any) -> None:
        """Take in a batch; to be defined."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define `update`. Define it to take in a batch.")

    def compute(self) -> Any:
        """Return the value; to be defined."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define `compute`. Define it to return a value.")


class Accuracy(Metric):
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

    correct: Tensor
    total: Tensor

    def __init__(
        self,
        threshold: float = 0.5,
        num_classes: int | None = None,
        top_k: int | None = None,
        subset_accuracy: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**earlier_arguments(type(self).__name__, kwargs))
        self.threshold = threshold if threshold <= 1 else 0.5  # in 0.8 and 0.9 `num_classes` was first
        self.top_k, self.subset_accuracy = top_k, subset_accuracy
        self.add_state("correct", default=torch.tensor(0), dist_reduce_fx="sum")
        self.add_state("total", default=torch.tensor(0), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Take in a batch."""
        where = type(self).__name__
        correct = correct_labels(preds, target, self.threshold, self.top_k, self.subset_accuracy, where)
        self.correct += correct.sum()
        self.total += correct.numel()

    def compute(self) -> Tensor:
        """Return the share so far."""
        return self.correct.float() / self.total


def _metric_of_values(name: str, base: type, *positional: str, **settings: Any) -> Any:
    """Return a subclass of a metric of torchmetrics that takes the arguments of `Metric` by keyword.

    Args:
        name: Its name.
        base: The metric.
        positional: Arguments that may be passed by position; `num_outputs` is left out, as torchmetrics counts them.
        settings: Arguments of the metric.
    """

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if len(args) > len(positional):
            raise TypeError(f"{name} takes {len(positional)} arguments by position. Pass the others by name.")
        given = {**dict(zip(positional, args, strict=False)), **kwargs}
        computes = given.pop("compute_on_step", True)
        given.pop("num_outputs", None)
        base.__init__(self, **settings, **earlier_arguments(name, given))  # type: ignore[misc]
        self.compute_on_step = computes

    body = {"__init__": init, "__module__": __name__}
    return StandIn(
        name, (_OnStep, base), {**body, "__doc__": f"`torchmetrics.{base.__name__}` with earlier arguments."}
    )


MeanSquaredError = _metric_of_values("MeanSquaredError", torchmetrics.MeanSquaredError)
RMSE = _metric_of_values("RMSE", torchmetrics.MeanSquaredError, squared=False)
MeanAbsoluteError = _metric_of_values("MeanAbsoluteError", torchmetrics.MeanAbsoluteError)
ExplainedVariance = _metric_of_values("ExplainedVariance", torchmetrics.ExplainedVariance, "multioutput")
R2Score = _metric_of_values("R2Score", torchmetrics.R2Score, "num_outputs", "adjusted", "multioutput")
SSIM = _metric_of_values("SSIM", StructuralSimilarityIndexMeasure)
PSNR = _metric_of_values("PSNR", PeakSignalNoiseRatio, "data_range")
