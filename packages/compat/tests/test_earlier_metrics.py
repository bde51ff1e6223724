"""Functional metrics of earlier releases, against what these return, and metrics that convert their arguments."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from import_names_parts import names_of_earlier_code
from torch import Tensor, tensor

pytest.importorskip("torchmetrics")


@pytest.fixture(scope="module", autouse=True)
def names() -> Iterator[None]:
    with names_of_earlier_code():
        yield


TARGET, THERE = tensor([0, 1, 1, 3, 2, 2]), tensor([0, 1, 1, 0, 1, 0])
LABELS = (tensor([0, 2, 1, 3, 3, 0]), TARGET)
SCORES = (
    tensor(
        [
            [0.7, 0.1, 0.1, 0.1],
            [0.2, 0.2, 0.5, 0.1],
            [0.1, 0.6, 0.2, 0.1],
            [0.0, 0.3, 0.1, 0.6],
            [0.1, 0.1, 0.2, 0.6],
            [0.4, 0.3, 0.2, 0.1],
        ]
    ),
    TARGET,
)
RATES = (tensor([0.1, 0.8, 0.35, 0.4, 0.6, 0.35]), THERE)
MANY = (tensor([[0.1, 0.8], [0.35, 0.4], [0.6, 0.7]]), tensor([[0, 1], [1, 0], [1, 1]]))

VALUES = [
    # what release 0.9.0 returns
    ("f1_score", LABELS, (), {}, 0.5),
    ("f1_score", SCORES, (4, "none"), {}, [0.6667, 0.6667, 0.0, 0.6667]),
    ("fbeta_score", LABELS, (0.5,), {}, 0.4861),
    ("precision", LABELS, (), {"reduction": "elementwise_mean"}, 0.5),
    ("precision_recall", LABELS, (4, "none"), {}, [[0.5, 1.0, 0.0, 0.5], [1.0, 0.5, 0.0, 1.0]]),
    ("iou", LABELS, (), {}, 0.375),
    ("iou", LABELS, (), {"num_classes": 5, "remove_bg": True, "reduction": "none"}, [0.5, 0.0, 0.5, 0.0]),
    (
        "confusion_matrix",
        LABELS,
        (),
        {},
        [[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 1.0, 0.0], [1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 1.0]],
    ),
    ("stat_scores", LABELS, (2,), {}, [0, 1, 3, 2, 2]),
    ("stat_scores", SCORES, (), {"class_index": 7}, [0, 0, 6, 0, 0]),
    (
        "stat_scores_multiple_classes",
        LABELS,
        (),
        {},
        [[1.0, 1.0, 0.0, 1.0], [1.0, 0.0, 1.0, 1.0], [4.0, 4.0, 3.0, 4.0], [0.0, 1.0, 2.0, 0.0], [1.0, 2.0, 2.0, 1.0]],
    ),
    ("dice_score", SCORES, (), {}, 0.4444),
    ("dice_score", SCORES, (True,), {"no_fg_score": 0.5, "reduction": "none"}, [0.6667, 0.6667, 0.0, 0.6667]),
    (
        "roc",
        RATES,
        (),
        {},
        [
            [0.0, 0.0, 0.0, 0.3333, 0.6667, 1.0],
            [0.0, 0.3333, 0.6667, 0.6667, 1.0, 1.0],
            [1.8, 0.8, 0.6, 0.4, 0.35, 0.1],
        ],
    ),
    ("average_precision", RATES, (), {"pos_label": 0}, 0.4111),
    (
        "precision_recall_curve",
        RATES,
        (),
        {},
        [[0.6, 0.6667, 1.0, 1.0, 1.0], [1.0, 0.6667, 0.6667, 0.3333, 0.0], [0.35, 0.4, 0.6, 0.8]],
    ),
    ("accuracy", LABELS, (), {"reduction": "none"}, [1.0, 0.5, 0.0, 1.0]),
    # what release 1.0.8 returns
    ("precision", LABELS, (5, "macro"), {}, 0.4),
    ("recall", LABELS, (4,), {"class_reduction": "weighted"}, 0.5),
    ("accuracy", SCORES, (4,), {"class_reduction": "macro"}, 0.625),
    (
        "confusion_matrix",
        LABELS,
        (True, 4),
        {},
        [[1.0, 0.0, 0.0, 0.0], [0.0, 0.5, 0.5, 0.0], [0.5, 0.0, 0.0, 0.5], [0.0, 0.0, 0.0, 1.0]],
    ),
    (
        "iou",
        LABELS,
        (),
        {"ignore_index": 1, "absent_score": 0.25, "num_classes": 5, "reduction": "none"},
        [0.5, 0.0, 0.5, 0.25],
    ),
    ("f1", LABELS, (4,), {"average": "macro"}, 0.5),
    # what release 1.2.10 returns
    ("precision", RATES, (), {"average": "micro"}, 1.0),
    ("recall", LABELS, ("macro",), {"num_classes": 5}, 0.5),
    ("precision", MANY, ("micro",), {}, 1.0),
    ("fbeta", LABELS, (4, 2.0), {"average": "macro"}, 0.5556),
    ("f1", RATES, (1,), {}, 0.8),
    ("f1", MANY, (2,), {"multilabel": True, "threshold": 0.65, "average": "macro"}, 0.5),
    ("accuracy", SCORES, (), {"top_k": 3}, 1.0),
    ("accuracy", MANY, (0.65,), {}, 0.6667),
    ("accuracy", MANY, (), {"subset_accuracy": True}, 0.6667),
    ("auroc", SCORES, (4,), {}, 0.8188),
    ("auroc", SCORES, (), {"num_classes": 4, "average": "weighted"}, 0.775),
    ("auroc", MANY, (2,), {}, 1.0),
    ("average_precision", SCORES, (4,), {}, [1.0, 0.75, 0.5, 0.5]),
    (
        "roc",
        SCORES,
        (),
        {"num_classes": 4},
        [
            [[0.0, 0.0, 0.2, 0.4, 0.8, 1.0], [0.0, 0.0, 0.5, 0.5, 1.0], [0.0, 0.25, 0.5, 1.0], [0.0, 0.2, 1.0]],
            [[0.0, 1.0, 1.0, 1.0, 1.0, 1.0], [0.0, 0.5, 0.5, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0], [0.0, 1.0, 1.0]],
            [[1.7, 0.7, 0.4, 0.2, 0.1, 0.0], [1.6, 0.6, 0.3, 0.2, 0.1], [1.5, 0.5, 0.2, 0.1], [1.6, 0.6, 0.1]],
        ],
    ),
    ("confusion_matrix", RATES, (2,), {}, [[3.0, 0.0], [1.0, 2.0]]),
    (
        "confusion_matrix",
        LABELS,
        (),
        {"num_classes": 4, "normalize": "true"},
        [[1.0, 0.0, 0.0, 0.0], [0.0, 0.5, 0.5, 0.0], [0.5, 0.0, 0.0, 0.5], [0.0, 0.0, 0.0, 1.0]],
    ),
]


def listed(value: Any) -> Any:
    return [listed(item) for item in value] if isinstance(value, tuple | list) else value.tolist()


def close(value: Any, expected: Any) -> bool:
    if isinstance(expected, list):
        return len(value) == len(expected) and all(map(close, value, expected))
    return bool(value == pytest.approx(expected, abs=1e-4))


@pytest.mark.parametrize(("name", "data", "args", "kwargs", "expected"), VALUES)
def test_functional_metrics_return_what_the_releases_return(
    name: str, data: tuple[Tensor, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any], expected: Any
) -> None:
    value = getattr(import_module("pytorch_lightning.metrics.functional"), name)(*data, *args, **kwargs)
    assert close(listed(value), expected)


def test_what_the_type_of_an_argument_does_not_tell_has_to_be_named() -> None:
    functional = import_module("pytorch_lightning.metrics.functional")
    with pytest.raises(TypeError, match="iou"):
        functional.iou(*LABELS, 4)  # the number of classes in 0.9, the class to be left out from 1.0 on
    with pytest.raises(TypeError, match="there are no weights of samples"):
        functional.auroc(*RATES, [1.0, 2.0, 1.0, 1.0, 1.0, 3.0])
    with pytest.raises(ValueError, match="`class_index` must be a class, but got 'macro'"):
        functional.stat_scores(*LABELS, "macro")
    with pytest.raises(ValueError, match=r"`num_classes` must be 4, as `preds` has scores"):
        functional.auroc(*SCORES)
    with pytest.raises(ValueError, match=r"`num_classes` must be 4 or more, but got 3"):
        functional.f1(*LABELS, 3)
    with pytest.warns(UserWarning, match=r"precision: without `average` .* as of 1\.0; in 0\.8 and 0\.9"):
        assert functional.precision(*LABELS) == 0.5


def test_a_function_stays_one_when_the_module_of_its_name_is_imported() -> None:
    assert import_module("pytorch_lightning.metrics.functional.iou").iou(*LABELS) == 0.375
    assert import_module("pytorch_lightning.metrics.functional").iou(*LABELS) == 0.375


def test_a_tensor_metric_converts_arguments_and_results() -> None:
    metrics = import_module("pytorch_lightning.metrics")

    class Distance(metrics.TensorMetric):  # type: ignore[misc]
        def forward(self, first: Tensor, second: Tensor) -> float:
            assert isinstance(first, Tensor) and isinstance(second, Tensor)
            return float((first - second).abs().mean())

    distance = Distance("distance")
    assert torch.equal(distance(np.array([1.0, 2.0]), 0), tensor([1.5]))
    assert distance(np.array([1.0]), 0).dtype is torch.float32
    assert distance.name == "distance" and isinstance(distance, metrics.Metric)
    assert torch.equal(copy.deepcopy(distance)(2.0, 0), tensor([2.0]))


def test_numpy_metrics_get_arrays() -> None:
    metrics = import_module("pytorch_lightning.metrics")

    class Square(metrics.NumpyMetric):  # type: ignore[misc]
        def forward(self, first: Any, second: Any) -> Any:
            assert isinstance(first, np.ndarray) and isinstance(second, np.ndarray)
            return np.mean((first - second) ** 2)

    assert torch.equal(Square("square")(tensor([1.0, 3.0]), 1), tensor([2.0]))
    several = type("Several", (metrics.TensorMetric,), {"forward": lambda self, first: (first, first)})
    with pytest.raises(TypeError, match="`result` must be a tensor, a NumPy array or a number"):
        several("several")(1)


def test_a_metric_of_0_9_computes_in_forward() -> None:
    metric = import_module("pytorch_lightning.metrics").Metric

    class Own(metric):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__("own")

        def forward(self, value: Tensor) -> Tensor:
            return value * 2

    assert Own()(tensor(2.0)) == 4.0 and Own().name == "own"


@pytest.mark.parametrize(
    ("name", "function", "data", "args", "kwargs"),
    [
        ("IoU", "iou", LABELS, (), {"num_classes": 5, "absent_score": 0.25, "reduction": "none"}),
        ("IoU", "iou", LABELS, (), {"remove_bg": True}),
        ("IoU", "iou", SCORES, (), {"num_classes": 4, "ignore_index": 1}),
        ("ROC", "roc", RATES, (), {}),
        ("ROC", "roc", SCORES, (4,), {}),
        ("PrecisionRecallCurve", "precision_recall_curve", RATES, (), {"pos_label": 0}),
        ("AveragePrecision", "average_precision", SCORES, (), {"num_classes": 4}),
    ],
)
def test_metrics_over_batches_are_those_of_all_samples(
    name: str, function: str, data: tuple[Tensor, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    metrics = import_module("pytorch_lightning.metrics")
    metric = getattr(metrics, name)(*args, compute_on_step=True, **kwargs)
    metric.update(*(part[:2] for part in data))
    metric.update(*(part[2:] for part in data))
    assert close(listed(metric.compute()), listed(getattr(metrics.functional, function)(*data, *args, **kwargs)))
    assert isinstance(metric, metrics.Metric)
    assert getattr(import_module("pytorch_lightning.metrics.classification"), name) is getattr(metrics, name)
