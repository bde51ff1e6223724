"""Metrics of releases 0.8 to 1.4, through torchmetrics."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torchmetrics
from torch import Tensor
from torchmetrics.image import PeakSignalNoiseRatio, StructuralSimilarityIndexMeasure

from camshaft.hooks_core.messages import must_be
from camshaft.trainer.import_names.metric_arguments import classification_arguments, labels_of, refuse_single_values
from camshaft.trainer.import_names.stand_ins import StandIn, refuse_argument

_PER_BATCH = "Call `update` instead of the metric, which computes nothing."


class Metric(torchmetrics.Metric, metaclass=StandIn):
    """`torchmetrics.Metric`, to be subclassed.

    Args:
        compute_on_step: True.
        kwargs: Arguments of `torchmetrics.Metric`.

    Raises:
        ValueError: If `compute_on_step` is false, or there is no such argument.
    """

    __stands_for__: ClassVar[type] = torchmetrics.Metric

    def __init__(self, compute_on_step: bool = True, *args: Any, **kwargs: Any) -> None:
        where, why = type(self).__name__, "calling a metric always computes it"
        refuse_argument("compute_on_step", compute_on_step, where, why, _PER_BATCH, (True,))
        kwargs.update(zip(("dist_sync_on_step", "process_group", "dist_sync_fn"), args, strict=False))
        super().__init__(**{name: value for name, value in kwargs.items() if value is not None})

    def update(self, *_: Any, **__: Any) -> None:
        """Take in a batch; to be defined."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define `update`.")

    def compute(self) -> Any:
        """The value; to be defined."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define `compute`.")


class Accuracy(Metric):
    """The share of labels that are right, whatever they are: as it was up to 1.2, it needs no `task`.

    Predictions with one dimension more than the target are scores of classes, of which the highest counts; other
    floating-point predictions are probabilities of labels; integers are labels.

    Args:
        threshold: The probability from which on a label counts as predicted.
        num_classes: As in 0.8 and 0.9; it makes no difference.
        kwargs: Arguments of the metric.

    Raises:
        ValueError: If an argument asks for another accuracy; in `update`, if shapes do not go together.
    """

    correct: Tensor
    total: Tensor

    def __init__(self, threshold: float = 0.5, num_classes: int | None = None, **kwargs: Any) -> None:
        where, action = type(self).__name__, "Use `torchmetrics.Accuracy(task=...)`."
        for name, accepted in (("top_k", (1,)), ("subset_accuracy", (False,)), ("reduction", ("elementwise_mean",))):
            refuse_argument(name, kwargs.pop(name, None), where, "it is the share of all labels", action, accepted)
        super().__init__(**kwargs)
        self.threshold = threshold
        self.add_state("correct", default=torch.tensor(0), dist_reduce_fx="sum")
        self.add_state("total", default=torch.tensor(0), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Take in a batch."""
        labels = labels_of(preds, target, self.threshold, type(self).__name__)
        self.correct += (labels == target).sum()
        self.total += target.numel()

    def compute(self) -> Tensor:
        """The share so far."""
        return self.correct.float() / self.total


def _classification(name: str, ours: str, **defaults: Any) -> Any:
    """A class whose instances are metrics of torchmetrics, for a number of classes."""

    def make(cls: type, num_classes: int | None = None, *args: Any, **kwargs: Any) -> Any:
        found = getattr(torchmetrics, ours)
        return found(**classification_arguments(name, ours, num_classes, args, {**defaults, **kwargs}))

    def refuse(cls: type, /, **_: Any) -> None:
        raise TypeError(must_be(name, "used as it is", cls, cls.__qualname__, "Subclass one of `torchmetrics`."))

    body = {
        "__new__": make,
        "__init_subclass__": classmethod(refuse),
        "__stands_for__": _kinds(ours),
        "__module__": __name__,
    }
    body["__doc__"] = f"`torchmetrics.{ours}` for `num_classes` from 2; others say `task=` there."
    return StandIn(name, (), body)


def _kinds(ours: str) -> tuple[type, ...]:
    found = (getattr(torchmetrics.classification, f"{task}{ours}") for task in ("Binary", "Multiclass", "Multilabel"))
    return tuple(found)


Precision = _classification("Precision", "Precision", average="micro")
Recall = _classification("Recall", "Recall", average="micro")
F1 = _classification("F1", "F1Score", average="micro")
FBeta = _classification("FBeta", "FBetaScore", average="micro", beta=1.0)
ConfusionMatrix = _classification("ConfusionMatrix", "ConfusionMatrix")
AUROC = _classification("AUROC", "AUROC", average="macro")


class MeanSquaredError(torchmetrics.MeanSquaredError, metaclass=StandIn):
    """`torchmetrics.MeanSquaredError`, which takes the arguments of `Metric` by keyword."""

    __stands_for__: ClassVar[type] = torchmetrics.MeanSquaredError

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**refuse_single_values("MeanSquaredError", kwargs))


class RMSE(torchmetrics.MeanSquaredError):
    """The root of the mean squared error."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(squared=False, **refuse_single_values("RMSE", kwargs))


class MeanAbsoluteError(torchmetrics.MeanAbsoluteError, metaclass=StandIn):
    """`torchmetrics.MeanAbsoluteError`, which takes the arguments of `Metric` by keyword."""

    __stands_for__: ClassVar[type] = torchmetrics.MeanAbsoluteError

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**refuse_single_values("MeanAbsoluteError", kwargs))


class ExplainedVariance(torchmetrics.ExplainedVariance, metaclass=StandIn):
    """`torchmetrics.ExplainedVariance`, which takes the arguments of `Metric` by keyword."""

    __stands_for__: ClassVar[type] = torchmetrics.ExplainedVariance

    def __init__(self, multioutput: Any = "uniform_average", **kwargs: Any) -> None:
        super().__init__(multioutput=multioutput, **refuse_single_values("ExplainedVariance", kwargs))


class R2Score(torchmetrics.R2Score, metaclass=StandIn):
    """`torchmetrics.R2Score`, which counts the outputs itself.

    Args:
        num_outputs: As it was; torchmetrics counts them.
        adjusted: As today.
        multioutput: As today.
        kwargs: Arguments of the metric.
    """

    __stands_for__: ClassVar[type] = torchmetrics.R2Score

    def __init__(
        self, num_outputs: int = 1, adjusted: int = 0, multioutput: Any = "uniform_average", **kwargs: Any
    ) -> None:
        super().__init__(adjusted=adjusted, multioutput=multioutput, **refuse_single_values("R2Score", kwargs))


class PSNR(PeakSignalNoiseRatio):
    """`torchmetrics.image.PeakSignalNoiseRatio`.

    Args:
        data_range: The range of the values, which up to 1.4 was taken from the targets if it was left out.
        kwargs: Today's arguments.

    Raises:
        ValueError: Without `data_range`.
    """

    def __init__(self, data_range: float | None = None, **kwargs: Any) -> None:
        if data_range is None:
            raise ValueError("PSNR needs the range of the values. Pass data_range=..., such as 1.0.")
        super().__init__(data_range=data_range, **refuse_single_values("PSNR", kwargs))


class SSIM(StructuralSimilarityIndexMeasure):
    """`torchmetrics.image.StructuralSimilarityIndexMeasure`, with the arguments that it has today, by keyword."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**refuse_single_values("SSIM", kwargs))
