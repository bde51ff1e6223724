"""What arguments of earlier metrics are today."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from camshaft.hooks_core.messages import must_be
from camshaft.trainer.import_names.stand_ins import refuse_argument

_OF_EVERY_METRIC = ("compute_on_step", "is_multiclass", "reduction")


def labels_of(preds: Tensor, target: Tensor, threshold: float, where: str) -> Tensor:
    """The labels that predictions stand for, in the target's shape.

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
    """Today's arguments of a metric or function for so many classes.

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
    """The arguments of a metric without those that every metric had, if these ask for nothing.

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
