from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, tensor

pytest.importorskip("torchmetrics")

import torchmetrics

import camshaft.compat.names.modules.functional_metrics as functions
import camshaft.compat.names.modules.metrics as metrics


def draw(seed: int, *shape: int, num_classes: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randint(num_classes, shape, generator=generator)
        if num_classes
        else torch.rand(shape, generator=generator)
    )


@given(seed=st.integers(0, 2**30), num_samples=st.integers(1, 30), num_classes=st.integers(2, 6))
def test_accuracy_of_scores_and_of_labels_is_that_of_classes(seed: int, num_samples: int, num_classes: int) -> None:
    scores, target = draw(seed, num_samples, num_classes), draw(seed + 1, num_samples, num_classes=num_classes)
    expected = torchmetrics.functional.accuracy(
        scores, target, task="multiclass", num_classes=num_classes, average="micro"
    )
    assert torch.isclose(metrics.Accuracy()(scores, target), expected)
    assert torch.isclose(functions.accuracy(scores, target), expected)
    assert torch.isclose(functions.accuracy(scores.argmax(dim=1), target, num_classes), expected)


@given(seed=st.integers(0, 2**30), threshold=st.floats(0.1, 0.9))
def test_accuracy_of_probabilities_goes_by_the_threshold(seed: int, threshold: float) -> None:
    probabilities, target = draw(seed, 12, 3), draw(seed + 1, 12, 3, num_classes=2)
    expected = ((probabilities >= threshold) == target.bool()).float().mean()
    assert torch.isclose(metrics.Accuracy(threshold)(probabilities, target), expected)
    assert torch.isclose(functions.accuracy(probabilities, target, threshold=threshold), expected)


def test_accuracy_accumulates_over_batches_of_any_size() -> None:
    accuracy = metrics.Accuracy(compute_on_step=True, dist_sync_on_step=False)
    first = accuracy(torch.tensor([0, 1, 1]), torch.tensor([0, 1, 0]))
    accuracy(torch.tensor([2]), torch.tensor([2]))
    assert first == pytest.approx(2 / 3)
    assert accuracy.compute() == pytest.approx(3 / 4)


def test_shapes_that_do_not_go_together_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"`preds` must be of the target's shape \(3,\)"):
        functions.accuracy(torch.zeros(4, dtype=torch.long), torch.zeros(3, dtype=torch.long))


def test_accuracy_takes_the_highest_scores_and_whole_samples() -> None:
    scores, target = draw(0, 12, 5), draw(1, 12, num_classes=5)
    expected = torchmetrics.functional.accuracy(
        scores, target, task="multiclass", num_classes=5, top_k=2, average="micro"
    )
    assert torch.isclose(metrics.Accuracy(top_k=2)(scores, target), expected)
    assert torch.isclose(functions.accuracy(scores, target, top_k=2), expected)
    preds, target = tensor([[1, 1], [0, 1]]), tensor([[1, 1], [1, 1]])
    assert metrics.Accuracy(subset_accuracy=True)(preds, target) == 0.5
    assert metrics.Accuracy(10)(tensor([0.9]), tensor([1])) == 1.0  # the number of classes, up to 0.9
    with pytest.raises(ValueError, match=r"`top_k` must be left out.*Pass scores"):
        metrics.Accuracy(top_k=2)(preds, target)


CLASSIFICATION = [
    (metrics.Precision, functions.precision, "precision", {"average": "micro"}),
    (metrics.Recall, functions.recall, "recall", {"average": "macro"}),
    (metrics.F1, functions.f1, "f1_score", {"average": "micro"}),
    (metrics.FBeta, functions.fbeta, "fbeta_score", {"beta": 0.5, "average": "micro"}),
    (metrics.ConfusionMatrix, functions.confusion_matrix, "confusion_matrix", {"normalize": "true"}),
]


@pytest.mark.parametrize(("metric", "function", "name", "arguments"), CLASSIFICATION)
def test_metrics_of_classes_are_those_of_torchmetrics(
    metric: Any, function: Any, name: str, arguments: dict[str, Any]
) -> None:
    preds, target = draw(0, 40, num_classes=4), draw(1, 40, num_classes=4)
    expected = getattr(torchmetrics.functional, name)(preds, target, task="multiclass", num_classes=4, **arguments)
    made = metric(num_classes=4, compute_on_step=True, **arguments)
    assert torch.allclose(made(preds, target), expected)
    assert torch.allclose(function(preds, target, num_classes=4, **arguments), expected.float())
    assert isinstance(made, metric) and isinstance(made, metrics.Metric)


def test_labels_that_are_there_or_not_are_multilabel() -> None:
    preds, target = draw(0, 20, 3), draw(1, 20, 3, num_classes=2)
    expected = torchmetrics.functional.f1_score(
        preds, target, task="multilabel", num_labels=3, average="macro", threshold=0.3
    )
    made = metrics.F1(3, multilabel=True, average="macro", threshold=0.3)
    assert torch.allclose(made(preds, target), expected)


@pytest.mark.parametrize("name", ["Precision", "Recall", "F1", "FBeta"])
def test_without_a_number_of_classes_the_task_has_to_be_told(name: str) -> None:
    with pytest.raises(ValueError, match=r"`num_classes` must be given.*Pass 1 "):
        getattr(metrics, name)()


def test_without_an_average_all_samples_count_alike_with_a_warning() -> None:
    with pytest.warns(UserWarning, match=r"F1: without `average` .* as of 1\.0; in 0\.8 and 0\.9 it was the mean"):
        assert metrics.F1(3)(tensor([0, 1, 1]), tensor([0, 1, 2])) == pytest.approx(2 / 3)


def test_a_class_that_is_absent_counts_as_0_in_the_mean_over_all_batches() -> None:
    metric = metrics.Recall(4, average="macro")
    assert metric(tensor([0, 1]), tensor([0, 1])) == 0.5
    metric.update(tensor([0, 2]), tensor([0, 0]))
    assert metric.compute() == pytest.approx((2 / 3 + 1) / 4)


def test_one_class_is_one_that_is_there_or_not() -> None:
    preds, target = draw(0, 20), draw(1, 20, num_classes=2)
    expected = torchmetrics.functional.f1_score(preds, target, task="binary", threshold=0.3)
    assert torch.isclose(metrics.F1(1, threshold=0.3, average="micro")(preds, target), expected)
    expected = torchmetrics.functional.auroc(preds, target, task="binary")
    assert torch.isclose(metrics.AUROC()(preds, target), expected)


def test_metrics_of_classes_can_be_subclassed() -> None:
    class Own(metrics.F1):
        def compute(self) -> Tensor:
            return super().compute() * 100

    assert Own(1, average="micro")(tensor([1, 0]), tensor([1, 0])) == 100


@pytest.mark.parametrize(
    ("metric", "function", "expected"),
    [
        (metrics.MeanSquaredError, functions.mean_squared_error, lambda p, t: ((p - t) ** 2).mean()),
        (metrics.MeanAbsoluteError, functions.mean_absolute_error, lambda p, t: (p - t).abs().mean()),
        (metrics.RMSE, functions.rmse, lambda p, t: ((p - t) ** 2).mean().sqrt()),
        (
            metrics.R2Score,
            torchmetrics.functional.r2_score,
            lambda p, t: 1 - ((p - t) ** 2).sum() / ((t - t.mean()) ** 2).sum(),
        ),
        (
            metrics.ExplainedVariance,
            torchmetrics.functional.explained_variance,
            lambda p, t: 1 - (t - p).var(unbiased=False) / t.var(unbiased=False),
        ),
    ],
)
def test_metrics_of_numbers_are_what_their_names_say(metric: Any, function: Any, expected: Any) -> None:
    preds, target = draw(0, 30), draw(1, 30)
    assert torch.isclose(metric(compute_on_step=True)(preds, target), expected(preds, target), atol=1e-5)
    assert torch.isclose(function(preds, target), expected(preds, target), atol=1e-5)
    without = metric(compute_on_step=False)
    assert without(preds, target) is None
    assert torch.isclose(without.compute(), expected(preds, target), atol=1e-5)


def test_metrics_of_images_are_those_of_torchmetrics() -> None:
    preds, target = draw(0, 2, 3, 16, 16), draw(1, 2, 3, 16, 16)
    expected = 10 * torch.log10(1 / ((preds - target) ** 2).mean())
    assert torch.isclose(metrics.PSNR(data_range=1.0)(preds, target), expected, atol=1e-4)
    assert torch.isclose(functions.psnr(preds, target, data_range=1.0), expected, atol=1e-4)
    assert torch.isclose(metrics.SSIM(data_range=1.0)(target, target), torch.tensor(1.0))
    assert torch.isclose(functions.ssim(target, target, data_range=1.0), torch.tensor(1.0))


def test_a_metric_of_ones_own_is_one_of_torchmetrics() -> None:
    class Largest(metrics.Metric):
        largest: Tensor

        def __init__(
            self, compute_on_step: bool = True, dist_sync_on_step: bool = False, process_group: Any = None
        ) -> None:
            super().__init__(compute_on_step, dist_sync_on_step, process_group)
            self.add_state("largest", default=torch.tensor(0.0), dist_reduce_fx="max")

        def update(self, values: Tensor) -> None:
            self.largest = torch.maximum(self.largest, values.max())

        def compute(self) -> Tensor:
            return self.largest

    largest = Largest()
    largest.update(torch.tensor([1.0, 5.0]))
    largest.update(torch.tensor([2.0]))
    assert largest.compute() == 5.0
    assert isinstance(largest, torchmetrics.Metric)
    assert isinstance(torchmetrics.MeanMetric(), metrics.Metric)
    assert not isinstance(torchmetrics.MeanMetric(), Largest)
    without = Largest(compute_on_step=False)
    assert without(torch.tensor([1.0, 5.0])) is None and without.compute() == 5.0
