"""torchmetrics metrics that several ranks log compute of all their batches."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from bare_ranks import ThreadedStrategy, on_ranks
from metric_log_parts import Rig
from torch import Tensor, nn

from camshaft.loops.metrics import MetricMismatchError

torchmetrics = pytest.importorskip("torchmetrics")
from torchmetrics import MeanMetric, MetricCollection, MinMaxMetric, SumMetric  # noqa: E402
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC, MulticlassF1Score  # noqa: E402

_BATCHES = [(torch.rand(4, 3, generator=torch.Generator().manual_seed(idx)), torch.arange(4) % 3) for idx in range(5)]


class Texts(torchmetrics.Metric):  # type: ignore[misc]
    """Keeps tensors of different lengths in a list that nobody concatenates."""

    full_state_update = False

    def __init__(self) -> None:
        super().__init__()
        self.add_state("items", default=[], dist_reduce_fx=None)

    def update(self, probabilities: Tensor, targets: Tensor) -> None:
        self.items += [probabilities[0], targets]

    def compute(self) -> Tensor:
        return torch.stack([item.float().sum() for item in self.items]).sum()


METRICS: dict[str, Callable[[], Any]] = {
    "counts": lambda: MulticlassAccuracy(3, average="micro"),
    "curve": lambda: MulticlassAUROC(3, thresholds=None),
    "list": Texts,
    "composed": lambda: MulticlassAccuracy(3) + MulticlassF1Score(3),
    "wrapped": lambda: MinMaxMetric(MulticlassAccuracy(3)),
}


class Owner(nn.Module):
    def __init__(self, metric: Any) -> None:
        super().__init__()
        self.metric = metric


def run(size: int, script: Callable[[Rig, int, Any], Any], make: Callable[[], Any]) -> list[Any]:
    def on_rank(strategy: ThreadedStrategy) -> Any:
        rig, owner = Rig(strategy=strategy), Owner(make())
        rig.metrics.clear(owner)
        return script(rig, strategy.global_rank, owner.metric)

    return on_ranks(size, on_rank)


def expected_of(make: Callable[[], Any]) -> Any:
    metric = make()
    for batch in _BATCHES:
        metric.update(*batch)
    return metric.compute()


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("kind", [kind for kind in METRICS if kind != "wrapped"])
def test_a_metric_computes_of_the_batches_of_all_ranks(kind: str, size: int) -> None:
    def script(rig: Rig, rank: int, metric: Any) -> Any:
        rig.start_evaluation()
        for batch in _BATCHES[rank::size]:
            metric.update(*batch)
            rig.log("x", metric)
        return rig.end_epoch()

    results = run(size, script, METRICS[kind])
    assert all(result == results[0] for result in results)
    assert results[0][0]["x"] == pytest.approx(float(expected_of(METRICS[kind])))


@pytest.mark.parametrize("kind", [kind for kind in METRICS if kind != "wrapped"])
def test_a_rank_without_a_batch_finds_the_metric_in_the_module_and_adds_nothing(kind: str) -> None:
    def script(rig: Rig, rank: int, metric: Any) -> Any:
        rig.start_evaluation()
        for batch in _BATCHES if rank == 1 else []:
            metric.update(*batch)
            rig.log("x", metric)
        logged = rig.end_epoch()
        return logged, 0 if kind == "composed" else metric.update_count  # its parts count

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        results = run(2, script, METRICS[kind])
    assert results[0] == results[1]
    assert results[0][0][0]["x"] == pytest.approx(float(expected_of(METRICS[kind])))
    assert results[0][1] == 0  # they start anew


def test_what_is_read_before_the_end_is_of_this_ranks_batches_and_is_not_kept() -> None:
    def script(rig: Rig, rank: int, metric: Any) -> Any:
        rig.start_training()
        metric.update(float(rank))
        rig.log("x", metric, on_step=False, on_epoch=True)
        rig.metrics.moment = "epoch"
        live = float(rig.metrics.callback_metrics["x"])
        rig.metrics.reduce_epoch()
        reduced = float(rig.metrics.callback_metrics["x"])
        num_rounds = rig.metrics._strategy.exchange.num_rounds  # type: ignore[union-attr]
        logged = rig.end_epoch()
        computed_again = rig.metrics._strategy.exchange.num_rounds - num_rounds  # type: ignore[union-attr]
        return live, reduced, logged, computed_again

    assert run(2, script, MeanMetric) == [(0.0, 0.5, [{"x": 0.5}], 1), (1.0, 0.5, [{"x": 0.5}], 1)]


def test_a_metric_that_only_one_rank_updates_after_the_reduction_is_computed_again_by_all() -> None:
    def script(rig: Rig, rank: int, metric: Any) -> Any:
        rig.start_training()
        metric.update(1.0)
        rig.log("x", metric, on_step=False, on_epoch=True)
        rig.metrics.moment = "epoch"
        rig.metrics.reduce_epoch()
        if rank == 1:
            metric.update(5.0)
        return rig.end_epoch()

    assert run(2, script, SumMetric) == [[{"x": 7.0}]] * 2


def test_a_wrapper_computes_together_too() -> None:
    def script(rig: Rig, rank: int, metric: Any) -> Any:
        for batch in _BATCHES[rank::2]:
            metric.update(*batch)
        from camshaft.loops.metrics.entry import compute_of_all

        return {
            name: float(value) for name, value in compute_of_all(metric, rig.metrics._exchange.gather_states).items()
        }  # type: ignore[arg-type]

    first, second = run(2, script, METRICS["wrapped"])
    assert first == second
    assert first["raw"] == pytest.approx(float(expected_of(lambda: MulticlassAccuracy(3))))


def test_a_collection_whose_metrics_share_their_states_goes_on_after_it_was_computed() -> None:
    def make() -> Any:
        return MetricCollection({"accuracy": MulticlassAccuracy(3), "f1": MulticlassF1Score(3)})

    def script(rig: Rig, rank: int, metrics: Any) -> Any:
        logged = []
        for _ in range(2):
            rig.start_evaluation()
            for batch in _BATCHES[rank::2] if rank == 0 else []:
                metrics.update(*batch)
                for name, metric in metrics.items(keep_base=False, copy_state=False):
                    rig.log(name, metric)
            logged.append(rig.end_epoch())
        return logged

    alone = make()
    for batch in _BATCHES[0::2]:
        alone.update(*batch)
    first, second = run(2, script, make)
    assert first == second
    assert first[0] == first[1] == [pytest.approx({name: float(value) for name, value in alone.compute().items()})]


def test_ranks_that_get_the_same_data_count_once() -> None:
    class ReplicaRank(ThreadedStrategy):
        @property
        def data_rank(self) -> int:
            return self.global_rank // 2

    def on_rank(strategy: ThreadedStrategy) -> Any:
        metric, rig = SumMetric(), Rig(strategy=ReplicaRank(strategy.exchange, strategy.global_rank))
        rig.start_evaluation()
        metric.update(1.0 + strategy.global_rank // 2)
        rig.log("x", metric)
        return rig.end_epoch()

    assert on_ranks(4, on_rank) == [[{"x": 3.0}]] * 4


def test_sync_dist_false_computes_of_this_ranks_batches() -> None:
    def script(rig: Rig, rank: int, metric: Any) -> Any:
        rig.start_evaluation()
        metric.update(float(rank))
        rig.log("x", metric, sync_dist=False)
        return rig.end_epoch()

    assert run(2, script, MeanMetric) == [[{"x": 0.0}], [{"x": 1.0}]]


def test_a_metric_that_not_all_ranks_have_and_that_is_no_attribute_is_an_error_on_all() -> None:
    def script(rig: Rig, rank: int, metric: Any) -> Any:
        rig.start_evaluation()
        if rank == 0:
            hidden = MeanMetric()
            hidden.update(1.0)
            rig.log("x", hidden)
        with pytest.raises(MetricMismatchError) as caught:
            rig.end_epoch()
        return str(caught.value)

    first, second = run(2, script, MeanMetric)
    assert first == second
    assert first == (
        "`value` must be logged on all ranks, or be one and the same attribute of the module (rank 1 lacks it), but "
        "got None on rank 0 in log('x'). Assign the metric to an attribute of the module."
    )


def test_a_metric_on_one_rank_and_a_number_on_another_is_an_error_on_all() -> None:
    def script(rig: Rig, rank: int, metric: Any) -> Any:
        rig.start_evaluation()
        metric.update(1.0)
        rig.log("x", metric if rank == 0 else 1.0, batch_size=1)
        with pytest.raises(MetricMismatchError, match="got 'a metric' on rank 0, 'a number' on rank 1"):
            rig.end_epoch()

    run(2, script, MeanMetric)
