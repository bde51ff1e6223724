"""Metrics of releases 0.8 to 1.4, as classes and as functions, through torchmetrics."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torchmetrics
import torchmetrics.functional as ours
from torch import Tensor
from torchmetrics.functional.image import peak_signal_noise_ratio, structural_similarity_index_measure
from torchmetrics.image import PeakSignalNoiseRatio, StructuralSimilarityIndexMeasure
from torchmetrics.utilities.compute import auc  # noqa: F401  (passed on as it is)

from camshaft.compat.names.stand_ins import StandIn, refuse_argument
from camshaft.hooks_core.messages import must_be

_OF_EVERY_METRIC = ("compute_on_step", "is_multiclass", "reduction")


def labels_of(preds: Tensor, target: Tensor, threshold: float, where: str) -> Tensor:
    """Return the labels of predictions, in the target's shape.

    Raises:
        ValueError: If they do not go together.
    """
    if preds.ndim == target.ndim + 1:
        preds = preds.argmax(dim=1)
    elif preds.is_floating_point():
        preds = (preds >= threshold).to(torch.long)
    if preds.shape != target.shape:
        rule = f"of the target's shape {tuple(target.shape)}, or that with a dimension for classes after the first"
        raise ValueError(
            must_be("preds", rule, tuple(preds.shape), where, "Say what is meant by torchmetrics' `task`.")
        )
    return preds


def classification_arguments(
    name: str, ours: str, num_classes: int | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return today's arguments of a metric or function for a number of classes.

    Args:
        name: The earlier one, for messages.
        ours: Today's, for messages.
        num_classes: How many classes or labels.
        args: What was given by position after it.
        kwargs: What was given by keyword.

    Raises:
        TypeError: If something was given by position.
        ValueError: If it is not clear what is classified.
    """
    if args:
        raise TypeError(
            must_be("args", "given by name after `num_classes`", args, name, "Write average=... and so on.")
        )
    is_multilabel = kwargs.pop("multilabel", False)
    if num_classes is None or num_classes < 2:
        rule = "2 or more, since without it it is not clear whether one of two classes or of several is meant"
        action = f"Use `torchmetrics.{ours}` with task='binary', or task='multiclass' and num_classes=..."
        raise ValueError(must_be("num_classes", rule, num_classes, name, action))
    arguments = refuse_single_values(name, kwargs)
    if is_multilabel:
        return {"task": "multilabel", "num_labels": num_classes, **arguments}
    arguments.pop("threshold", None)  # up to 1.4 it was for labels that each are there or not
    return {"task": "multiclass", "num_classes": num_classes, **arguments}


def refuse_single_values(name: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a metric without those that every metric had, if these have no effect.

    Raises:
        ValueError: If they ask for what there is not.
    """
    kept = dict(kwargs)
    accepted = {"compute_on_step": (True,), "reduction": ("elementwise_mean",)}
    for argument in _OF_EVERY_METRIC:
        value = kept.pop(argument, None)
        why, action = "torchmetrics has no such argument", "See the one of `torchmetrics`."
        refuse_argument(argument, value, name, why, action, accepted.get(argument, ()))
    return {argument: value for argument, value in kept.items() if value is not None or argument == "average"}


mean_squared_log_error = ours.mean_squared_log_error
explained_variance = ours.explained_variance


def accuracy(
    preds: Tensor, target: Tensor, num_classes: int | None = None, *, threshold: float = 0.5, **kwargs: Any
) -> Tensor:
    """Return the share of correct labels, of any task; see the metric of that name.

    Args:
        preds: Labels, scores of classes, or probabilities of labels.
        target: Labels.
        num_classes: It makes no difference.
        threshold: The probability from which on a label counts as predicted.
        kwargs: Arguments that ask for nothing.

    Raises:
        ValueError: If an argument asks for another accuracy, or shapes do not go together.
    """
    action = "Use `torchmetrics.functional.accuracy(task=...)`."
    for name, accepted in (("top_k", (1,)), ("subset_accuracy", (False,)), ("reduction", ("elementwise_mean",))):
        refuse_argument(name, kwargs.pop(name, None), "accuracy", "it is the share of all labels", action, accepted)
    if kwargs:
        raise TypeError(f"accuracy takes no argument {next(iter(kwargs))!r} here. {action}")
    return (labels_of(preds, target, threshold, "accuracy") == target).float().mean()


def _of_classes(function: str, preds: Tensor, target: Tensor, num_classes: int | None, **kwargs: Any) -> Tensor:
    today = classification_arguments(function, f"functional.{function}", num_classes, (), kwargs)
    value: Tensor = getattr(ours, function)(preds, target, **today)
    return value


def confusion_matrix(preds: Tensor, target: Tensor, *, num_classes: int | None = None, **kwargs: Any) -> Tensor:
    """Return the confusion matrix; `num_classes` has to be given."""
    return _of_classes("confusion_matrix", preds, target, num_classes, **kwargs)


def precision(preds: Tensor, target: Tensor, *, num_classes: int | None = None, **kwargs: Any) -> Tensor:
    """Return the precision, over all classes unless `average` says otherwise; `num_classes` has to be given."""
    return _of_classes("precision", preds, target, num_classes, **{"average": "micro", **kwargs})


def recall(preds: Tensor, target: Tensor, *, num_classes: int | None = None, **kwargs: Any) -> Tensor:
    """Return the recall, over all classes unless `average` says otherwise; `num_classes` has to be given."""
    return _of_classes("recall", preds, target, num_classes, **{"average": "micro", **kwargs})


def f1(preds: Tensor, target: Tensor, num_classes: int | None = None, **kwargs: Any) -> Tensor:
    """Return the F1 score, over all classes unless `average` says otherwise; `num_classes` has to be given."""
    return _of_classes("f1_score", preds, target, num_classes, **{"average": "micro", **kwargs})


def fbeta(preds: Tensor, target: Tensor, num_classes: int | None = None, beta: float = 1.0, **kwargs: Any) -> Tensor:
    """Return the F-beta score, over all classes unless `average` says otherwise; `num_classes` has to be given."""
    return _of_classes("fbeta_score", preds, target, num_classes, **{"average": "micro", "beta": beta, **kwargs})


def mean_squared_error(preds: Tensor, target: Tensor, **kwargs: Any) -> Tensor:
    """Return the mean squared error."""
    return ours.mean_squared_error(preds, target, **refuse_single_values("mean_squared_error", kwargs))


def mean_absolute_error(preds: Tensor, target: Tensor, **kwargs: Any) -> Tensor:
    """Return the mean absolute error."""
    return ours.mean_absolute_error(preds, target, **refuse_single_values("mean_absolute_error", kwargs))


def rmse(preds: Tensor, target: Tensor, **kwargs: Any) -> Tensor:
    """Return the root of the mean squared error."""
    return ours.mean_squared_error(preds, target, squared=False, **refuse_single_values("rmse", kwargs))


def r2score(preds: Tensor, target: Tensor, **kwargs: Any) -> Tensor:
    """Return the coefficient of determination."""
    return ours.r2_score(preds, target, **kwargs)


def psnr(preds: Tensor, target: Tensor, data_range: float | None = None, **kwargs: Any) -> Tensor:
    """Return the peak signal-to-noise ratio; `data_range` has to be given.

    Raises:
        ValueError: Without `data_range`.
    """
    if data_range is None:
        raise ValueError("psnr needs the range of the values. Pass data_range=..., such as 1.0.")
    today = refuse_single_values("psnr", kwargs)
    return peak_signal_noise_ratio(preds, target, data_range=data_range, **today)


def ssim(preds: Tensor, target: Tensor, **kwargs: Any) -> Any:
    """Return the structural similarity, with today's arguments by keyword."""
    today = refuse_single_values("ssim", kwargs)
    return structural_similarity_index_measure(preds, target, **today)


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
        """Return the value; to be defined."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define `compute`.")


class Accuracy(Metric):
    """The share of correct labels, of any task: as up to 1.2, it needs no `task`.

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
        """Return the share so far."""
        return self.correct.float() / self.total


def _classification(name: str, ours: str, **defaults: Any) -> Any:
    """Return a class whose instances are metrics of torchmetrics, for a number of classes."""

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
