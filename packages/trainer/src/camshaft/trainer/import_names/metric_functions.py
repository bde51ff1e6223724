"""Metrics as functions, of releases 0.8 to 1.4, through torchmetrics."""

from __future__ import annotations

from typing import Any

import torchmetrics.functional as ours
from torch import Tensor
from torchmetrics.functional.image import peak_signal_noise_ratio, structural_similarity_index_measure
from torchmetrics.utilities.compute import auc

from camshaft.trainer.import_names.metric_arguments import classification_arguments, labels_of, refuse_single_values
from camshaft.trainer.import_names.stand_ins import refuse_argument

__all__ = ["auc"]  # what is passed on as it is

mean_squared_log_error = ours.mean_squared_log_error
explained_variance = ours.explained_variance


def accuracy(
    preds: Tensor, target: Tensor, num_classes: int | None = None, *, threshold: float = 0.5, **kwargs: Any
) -> Tensor:
    """The share of labels that are right, whatever they are; see the metric of that name.

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
    """How often each class was taken for each; `num_classes` has to be given."""
    return _of_classes("confusion_matrix", preds, target, num_classes, **kwargs)


def precision(preds: Tensor, target: Tensor, *, num_classes: int | None = None, **kwargs: Any) -> Tensor:
    """The precision, over all classes unless `average` says otherwise; `num_classes` has to be given."""
    return _of_classes("precision", preds, target, num_classes, **{"average": "micro", **kwargs})


def recall(preds: Tensor, target: Tensor, *, num_classes: int | None = None, **kwargs: Any) -> Tensor:
    """The recall, over all classes unless `average` says otherwise; `num_classes` has to be given."""
    return _of_classes("recall", preds, target, num_classes, **{"average": "micro", **kwargs})


def f1(preds: Tensor, target: Tensor, num_classes: int | None = None, **kwargs: Any) -> Tensor:
    """The F1 score, over all classes unless `average` says otherwise; `num_classes` has to be given."""
    return _of_classes("f1_score", preds, target, num_classes, **{"average": "micro", **kwargs})


def fbeta(preds: Tensor, target: Tensor, num_classes: int | None = None, beta: float = 1.0, **kwargs: Any) -> Tensor:
    """The F-beta score, over all classes unless `average` says otherwise; `num_classes` has to be given."""
    return _of_classes("fbeta_score", preds, target, num_classes, **{"average": "micro", "beta": beta, **kwargs})


def mean_squared_error(preds: Tensor, target: Tensor, **kwargs: Any) -> Tensor:
    """The mean of the squares of what is wrong."""
    return ours.mean_squared_error(preds, target, **refuse_single_values("mean_squared_error", kwargs))


def mean_absolute_error(preds: Tensor, target: Tensor, **kwargs: Any) -> Tensor:
    """The mean of what is wrong."""
    return ours.mean_absolute_error(preds, target, **refuse_single_values("mean_absolute_error", kwargs))


def rmse(preds: Tensor, target: Tensor, **kwargs: Any) -> Tensor:
    """The root of the mean squared error."""
    return ours.mean_squared_error(preds, target, squared=False, **refuse_single_values("rmse", kwargs))


def r2score(preds: Tensor, target: Tensor, **kwargs: Any) -> Tensor:
    """The coefficient of determination."""
    return ours.r2_score(preds, target, **kwargs)


def psnr(preds: Tensor, target: Tensor, data_range: float | None = None, **kwargs: Any) -> Tensor:
    """The peak signal-to-noise ratio; `data_range` has to be given.

    Raises:
        ValueError: Without `data_range`.
    """
    if data_range is None:
        raise ValueError("psnr needs the range of the values. Pass data_range=..., such as 1.0.")
    today = refuse_single_values("psnr", kwargs)
    return peak_signal_noise_ratio(preds, target, data_range=data_range, **today)


def ssim(preds: Tensor, target: Tensor, **kwargs: Any) -> Any:
    """The structural similarity, with today's arguments by keyword."""
    today = refuse_single_values("ssim", kwargs)
    return structural_similarity_index_measure(preds, target, **today)
