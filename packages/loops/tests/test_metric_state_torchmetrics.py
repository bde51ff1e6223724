"""Metric states of torchmetrics: they go on with the same bits, and leave no trace."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchmetrics
from metric_log_scripts import bits
from torch import Tensor, nn
from torchmetrics.aggregation import CatMetric, MeanMetric, RunningMean, SumMetric
from torchmetrics.classification import (
    BinaryAUROC,
    BinaryAveragePrecision,
    MulticlassAccuracy,
    MulticlassF1Score,
    MulticlassPrecision,
)
from torchmetrics.regression import MeanSquaredError, PearsonCorrCoef, SpearmanCorrCoef
from torchmetrics.wrappers import ClasswiseWrapper, MetricTracker, MinMaxMetric, MultioutputWrapper

from camshaft.loops.state.metric_state import metric_states, restore_metric_states

Batch = tuple[Tensor, ...]


def of_classes(generator: torch.Generator) -> Batch:
    return torch.randint(3, (8,), generator=generator), torch.randint(3, (8,), generator=generator)


def of_two_classes(generator: torch.Generator) -> Batch:
    return torch.rand(8, generator=generator), torch.randint(2, (8,), generator=generator)


def of_numbers(generator: torch.Generator) -> Batch:
    return torch.randn(8, generator=generator), torch.randn(8, generator=generator)


def of_pairs(generator: torch.Generator) -> Batch:
    return torch.randn(8, 2, generator=generator), torch.randn(8, 2, generator=generator)


def of_one(generator: torch.Generator) -> Batch:
    return (torch.randn(5, generator=generator),)


KINDS: dict[str, tuple[Callable[[], Any], Callable[[torch.Generator], Batch]]] = {
    "counts": (lambda: MulticlassAccuracy(3), of_classes),
    "lists": (BinaryAUROC, of_two_classes),
    "lists kept on the CPU": (lambda: BinaryAUROC(compute_on_cpu=True), of_two_classes),
    "a list to concatenate": (CatMetric, of_one),
    "a mean": (MeanMetric, of_one),
    "running sums": (PearsonCorrCoef, of_numbers),
    "ranks": (SpearmanCorrCoef, of_numbers),
    "a window": (lambda: RunningMean(window=3), of_one),
    "two metrics combined": (lambda: MeanSquaredError() + 2 * MeanSquaredError(squared=False), of_numbers),
    "extremes of another": (lambda: MinMaxMetric(MeanSquaredError()), of_numbers),
    "classes of another": (lambda: ClasswiseWrapper(MulticlassAccuracy(3, average=None)), of_classes),
    "outputs of another": (lambda: MultioutputWrapper(MeanSquaredError(), 2), of_pairs),
    "a collection": (
        lambda: torchmetrics.MetricCollection([MulticlassAccuracy(3), MulticlassF1Score(3), MulticlassPrecision(3)]),
        of_classes,
    ),
    "a collection with lists": (
        lambda: torchmetrics.MetricCollection({"roc": BinaryAUROC(), "pr": BinaryAveragePrecision()}, prefix="val_"),
        of_two_classes,
    ),
    "a collection with given groups": (
        lambda: torchmetrics.MetricCollection(
            {"roc": BinaryAUROC(), "pr": BinaryAveragePrecision()}, compute_groups=[["roc", "pr"]]
        ),
        of_two_classes,
    ),
    "a collection without groups": (
        lambda: torchmetrics.MetricCollection([MulticlassAccuracy(3), MulticlassF1Score(3)], compute_groups=False),
        of_classes,
    ),
}


def through_a_file(states: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(states, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


def holder(metric: Any) -> nn.Module:
    module = nn.Module()
    module.metric = metric
    return module


def update(metric: Any, batch: Batch, call: bool) -> Any:
    return metric(*batch) if call else metric.update(*batch)


@pytest.mark.parametrize("call", [False, True], ids=["update", "call"])
@pytest.mark.parametrize("num_before", [1, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_a_metric_goes_on_where_it_was(kind: str, num_before: int, call: bool) -> None:
    make, make_batch = KINDS[kind]
    generator = torch.Generator().manual_seed(0)
    batches = [make_batch(generator) for _ in range(9)]

    def go_on(metric: Any, some: list[Batch]) -> list[Any]:
        seen: list[Any] = [metric.compute()]  # fills the cache, which an update must empty
        seen += [update(metric, batch, call) for batch in some]
        return bits([*seen, metric.compute()])

    metric, other = make(), make()
    for batch in batches[:num_before]:
        update(metric, batch, call)
    states = metric_states(holder(metric))
    expected = go_on(metric, batches[num_before:])
    update(other, batches[-1], call)
    restore_metric_states(holder(other), through_a_file(states))
    assert go_on(other, batches[num_before:]) == expected
    metric.reset()
    other.reset()
    assert bits([update(other, batch, call) for batch in batches] + [other.compute()]) == bits(
        [update(metric, batch, call) for batch in batches] + [metric.compute()]
    ), "also in the next epoch"


@pytest.mark.parametrize("call", [False, True], ids=["update", "call"])
@pytest.mark.parametrize("num_before", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("resets", [False, True])
def test_batches_of_a_check_leave_no_trace(kind: str, num_before: int, call: bool, resets: bool) -> None:
    make, make_batch = KINDS[kind]
    generator = torch.Generator().manual_seed(0)
    batches = [make_batch(generator) for _ in range(6)]
    metric, untouched = make(), make()
    for batch in batches[:num_before]:
        update(metric, batch, call)
        update(untouched, batch, call)
    module = holder(metric)
    states = metric_states(module)
    for batch in batches:
        update(metric, batch, call)
        metric.compute()
    if resets:  # as at the end of the check's epoch
        metric.reset()
    restore_metric_states(module, states)
    assert bits(metric_states(module)) == bits(states)
    for batch in batches[num_before:]:
        assert bits(update(metric, batch, call)) == bits(update(untouched, batch, call))
    assert bits(metric.compute()) == bits(untouched.compute())


def test_a_new_metric_has_no_state() -> None:
    for metric in (MeanMetric(), SumMetric(), BinaryAUROC(), RunningMean(3), KINDS["a collection"][0]()):
        assert metric_states(holder(metric)) == {}
        metric.reset()
        assert metric_states(holder(metric)) == {}


def test_groups_of_a_collection_are_those_that_its_first_update_found() -> None:
    def collection() -> Any:
        return torchmetrics.MetricCollection(
            {
                "macro": MulticlassAccuracy(3),
                "f1": MulticlassF1Score(3),
                "micro": MulticlassAccuracy(3, average="micro"),
            }
        )

    stopped, resumed = collection(), collection()
    stopped.update(*of_classes(torch.Generator().manual_seed(0)))
    groups = stopped.compute_groups
    assert sorted(map(sorted, groups.values())) == [["f1", "macro"], ["micro"]]
    restore_metric_states(holder(resumed), through_a_file(metric_states(holder(stopped))))
    assert resumed.compute_groups == groups and resumed._groups_checked
    restore_metric_states(holder(resumed), {})
    assert resumed.compute_groups == collection().compute_groups and not resumed._groups_checked


def test_states_that_a_collection_shares_are_saved_once() -> None:
    collection = KINDS["a collection with lists"][0]()
    for seed in range(3):
        collection.update(*of_two_classes(torch.Generator().manual_seed(seed)))
    states = through_a_file(metric_states(holder(collection)))
    pr, roc = states["metric.pr"]["states"], states["metric.roc"]["states"]
    assert [tensor.data_ptr() for tensor in pr["preds"]] == [tensor.data_ptr() for tensor in roc["preds"]]


def test_metrics_that_were_taken_out_of_a_collection_by_copy_stay_their_own() -> None:
    collection = KINDS["a collection"][0]()
    generator = torch.Generator().manual_seed(0)
    collection.update(*of_classes(generator))
    for metric in collection.values():  # copies the states
        metric.update(*of_classes(generator))
    other = KINDS["a collection"][0]()
    restore_metric_states(holder(other), metric_states(holder(collection)))
    assert bits(other.compute()) == bits(collection.compute())


def test_a_value_of_the_latest_batch_can_still_be_logged() -> None:
    metric, other = MeanMetric(), MeanMetric()
    metric(torch.tensor(2.0))
    metric(torch.tensor(3.0))
    restore_metric_states(holder(other), through_a_file(metric_states(holder(metric))))
    assert float(other._forward_cache) == 3.0


def test_what_a_reset_keeps_on_purpose_is_kept_by_a_resume_and_leaves_no_trace_of_a_check() -> None:
    class KeepsReal(SumMetric):
        """Like an FID that computes the features of real images once."""

        def __init__(self) -> None:
            super().__init__()
            self.add_state("real", torch.zeros(()), dist_reduce_fx="sum")

        def update(self, value: Tensor) -> None:
            super().update(value)
            self.real = self.real + 1

        def reset(self) -> None:
            real = self.real
            super().reset()
            self.real = real

    metric, other = KeepsReal(), KeepsReal()
    metric.update(torch.tensor(1.0))
    metric.reset()
    restore_metric_states(holder(other), through_a_file(metric_states(holder(metric))))
    assert (float(other.real), other.update_count) == (1.0, 0)
    restore_metric_states(holder(other), {})
    assert float(other.real) == 0.0


@pytest.mark.parametrize("make", [lambda: MulticlassAccuracy(3), KINDS["a collection"][0]])
def test_a_tracker_has_its_steps_again(make: Callable[[], Any]) -> None:
    generator = torch.Generator().manual_seed(0)
    batches = [of_classes(generator) for _ in range(4)]

    def track(tracker: MetricTracker, some: list[Batch]) -> None:
        for batch in some:
            tracker.increment()
            tracker.update(*batch)

    whole, stopped, resumed = (MetricTracker(make(), maximize=True) for _ in range(3))
    track(whole, batches[:2])
    track(stopped, batches[:2])
    for num_others in (0, 3):
        track(resumed, batches[:num_others])
        restore_metric_states(holder(resumed), through_a_file(metric_states(holder(stopped))))
        assert resumed.n_steps == 2
    for tracker in (whole, resumed):
        tracker.update(*batches[2])  # within the second step
        track(tracker, batches[2:])
    assert bits(resumed.compute_all()) == bits(whole.compute_all())
    restore_metric_states(holder(resumed), {})
    assert resumed.n_steps == 0 and metric_states(holder(resumed)) == {}
    with pytest.raises(ValueError, match="increment"):
        resumed.update(*batches[0])


@pytest.mark.gpu
def test_states_go_to_the_device_of_the_metric(accelerator: str) -> None:
    module, other = holder(BinaryAUROC()).to(accelerator), holder(BinaryAUROC()).to(accelerator)
    batch = tuple(tensor.to(accelerator) for tensor in of_two_classes(torch.Generator().manual_seed(0)))
    module.metric.update(*batch)
    file = io.BytesIO()
    torch.save(metric_states(module), file)
    file.seek(0)
    restore_metric_states(other, torch.load(file, weights_only=True, map_location="cpu"))
    other.metric.update(*batch)
    module.metric.update(*batch)
    assert bits(other.metric.compute()) == bits(module.metric.compute())
