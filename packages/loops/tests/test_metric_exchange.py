"""Values that several ranks log are reduced to what one process would have logged."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from bare_ranks import ThreadedStrategy, on_ranks
from hypothesis import given, settings
from hypothesis import strategies as st
from metric_log_parts import Rig
from torch import Tensor

from camshaft.loops.metrics import MetricMismatchError

Script = Callable[[Rig, int], Any]

_NUMBERS = st.integers(-64, 64).map(lambda number: number / 8)  # sums of these are exact in any order
_VALUES = st.lists(st.tuples(_NUMBERS, st.integers(1, 4), st.booleans()), max_size=7)


class ReplicaRank(ThreadedStrategy):
    """One of two ranks of a replica of the model."""

    @property
    def data_rank(self) -> int:
        return self.global_rank // 2

    @property
    def num_data_ranks(self) -> int:
        return self.world_size // 2


def run(size: int, script: Script, **arguments: Any) -> list[Any]:
    """Call a script on each rank, each with a metric log of its own; the logs' rigs are returned too."""
    rigs: dict[int, Rig] = {}

    def on_rank(strategy: ThreadedStrategy) -> Any:
        rigs[strategy.global_rank] = Rig(strategy=strategy, **arguments)
        return script(rigs[strategy.global_rank], strategy.global_rank), rigs[strategy.global_rank]

    return on_ranks(size, on_rank)


def results(size: int, script: Script, **arguments: Any) -> list[Any]:
    return [result for result, _ in run(size, script, **arguments)]


def spread(values: Tensor) -> Tensor:
    return values.max() - values.min()


@settings(max_examples=40, deadline=None)
@given(st.lists(_VALUES, min_size=2, max_size=3), st.sampled_from(["mean", "sum", "max", "min", spread]))
def test_values_split_over_ranks_are_reduced_as_one_process_reduces_them_all(
    of_ranks: list[list[tuple[float, int, bool]]], reduce_fx: Any
) -> None:
    def log_all(rig: Rig, values: list[tuple[float, int, bool]]) -> None:
        rig.start_evaluation()
        for value, size, is_tensor in values:
            rig.batch()
            rig.log("x", torch.tensor(value) if is_tensor else value, reduce_fx=reduce_fx, batch_size=size)

    def script(rig: Rig, rank: int) -> Any:
        log_all(rig, of_ranks[rank])
        logged = rig.end_epoch()
        return logged, {name: (value.dtype, value) for name, value in rig.metrics.callback_metrics.items()}

    alone = Rig()
    log_all(alone, [value for values in of_ranks for value in values])
    expected = alone.end_epoch()
    gathered = results(len(of_ranks), script)
    assert all(each == gathered[0] for each in gathered)
    logged, metrics = gathered[0]
    assert logged == expected
    assert {name: value for name, (_, value) in metrics.items()} == alone.metrics.callback_metrics
    assert {name: dtype for name, (dtype, _) in metrics.items()} == {
        name: value.dtype for name, value in alone.metrics.callback_metrics.items()
    }


def test_all_ranks_get_the_same_float_to_the_last_bit() -> None:
    def script(rig: Rig, rank: int) -> float:
        rig.start_evaluation()
        generator = torch.Generator().manual_seed(rank)
        for _ in range(300):
            rig.batch(torch.zeros(3))
            rig.log("x", torch.rand((), generator=generator, dtype=torch.float64))
        return rig.end_epoch()[0]["x"]

    first, *others = results(3, script)
    assert all(other.hex() == first.hex() for other in others)


def test_an_epoch_takes_one_collective_whatever_is_logged() -> None:
    def script(rig: Rig, rank: int) -> int:
        rig.start_evaluation()
        for name in "abcdefgh":
            rig.log(name, torch.tensor(1.0 + rank), batch_size=1, reduce_fx="sum")
        assert rig.end_epoch() == [dict.fromkeys("abcdefgh", 3.0)]
        return rig.metrics._strategy.exchange.num_rounds  # type: ignore[union-attr]

    assert results(2, script) == [1, 1]


def test_no_value_that_is_read_before_the_end_waits_for_another_rank() -> None:
    def script(rig: Rig, rank: int) -> int:
        rig.start_training()
        rig.log("x", float(rank), on_step=True, on_epoch=True, prog_bar=True, batch_size=1)
        rig.metrics.moment = "epoch"
        own = float(rank)
        assert rig.metrics.callback_metrics["x_epoch"] == own
        assert rig.metrics.logged_metrics["x_step"] == own
        assert rig.metrics.progress_bar_metrics["x_epoch"] == own
        return rig.metrics._strategy.exchange.num_rounds  # type: ignore[union-attr]

    assert results(2, script) == [0, 0]


def test_names_that_only_some_ranks_logged_are_published_by_all() -> None:
    def script(rig: Rig, rank: int) -> Any:
        rig.start_evaluation(num_dataloaders=2)
        if rank == 1:
            rig.batch(dataloader_idx=1)
            rig.log("late", 4.0, batch_size=2, on_step=True, prog_bar=True)
        if rank == 0:
            rig.log("early", 3.0, batch_size=2, reduce_fx=spread, logger=False)
        return rig.end_epoch(), dict(rig.metrics.callback_metrics), rig.metrics.progress_bar_metrics

    first, second = results(2, script)
    assert first[0] == second[0] == [{}, {"late_epoch/dataloader_idx_1": 4.0}]
    assert first[1] == second[1]
    assert first[1]["early/dataloader_idx_0"] == 0.0
    assert "late_epoch/dataloader_idx_1" in first[2] and first[2].keys() <= second[2].keys()


def test_values_of_steps_are_each_processs_own_by_default() -> None:
    def script(rig: Rig, rank: int) -> Any:
        rig.start_training()
        rig.log("x", float(rank))
        rig.end_batch()
        rig.end_epoch()
        return rig.metrics.callback_metrics["x"].item(), rig.logger.rows

    first, second = results(2, script, log_every_n_steps=1)
    assert (first[0], second[0]) == (0.0, 1.0)
    assert first[1] == [(0, {"x": 0.0, "epoch": 0.0})]
    assert second[1] == []  # only the first process writes


def test_sync_dist_reduces_the_values_of_a_step_when_they_are_sent() -> None:
    def script(rig: Rig, rank: int) -> Any:
        rig.start_training()
        for step in range(4):
            rig.batch(torch.zeros(1 + rank))
            rig.log("mean", torch.tensor(float(rank + step)), sync_dist=True)
            rig.log("sum", 1.0, sync_dist=True, reduce_fx="sum")
            rig.log("spread", rank * 3, sync_dist=True, reduce_fx=spread, on_epoch=True)
            rig.log("own", rank + 10.0)
            rig.end_batch()
        rig.end_epoch()
        return rig.logger.rows, {name: float(value) for name, value in rig.metrics.callback_metrics.items()}

    (rows, metrics), (silent, same) = results(2, script, log_every_n_steps=2)
    assert [(step, row["mean"], row["sum"], row["spread_step"], row["own"]) for step, row in rows[:2]] == [
        (1, 1.5, 2.0, 3.0, 10.0),
        (3, 3.5, 2.0, 3.0, 10.0),
    ]
    assert rows[2][1]["spread_epoch"] == 3.0
    assert silent == []
    assert {**metrics, "own": 11.0} == same
    assert (metrics["mean"], metrics["sum"], metrics["spread_step"]) == (3.5, 2.0, 3.0)


def test_a_step_that_only_some_ranks_log_with_sync_dist_waits_for_nobody() -> None:
    def script(rig: Rig, rank: int) -> Any:
        rig.start_training()
        for step in range(3):
            if rank == step % 2:
                rig.log("x", float(step), sync_dist=True)
            rig.end_batch()
        rig.end_epoch()
        return rig.logger.rows

    rows, _ = results(2, script, log_every_n_steps=1)
    assert [row["x"] for _, row in rows] == [0.0, 1.0, 2.0]


def test_sync_dist_that_comes_after_the_first_sending_is_told_and_holds_from_the_next_epoch_on() -> None:
    def script(rig: Rig, rank: int) -> Any:
        for epoch in range(2):
            rig.start_training()
            for step in range(2):
                if rank == 0 and (epoch or step):
                    rig.log("x", 1.0, sync_dist=True, reduce_fx="sum")
                if rank == 1 and epoch:
                    rig.log("x", 2.0, sync_dist=True, reduce_fx="sum")
                rig.end_batch()
            rig.end_epoch()
        return rig.logger.rows

    with pytest.warns(UserWarning, match="`sync_dist=True` of 'x' comes too late for this epoch"):
        rows, _ = results(2, script, log_every_n_steps=1)
    assert [row["x"] for _, row in rows] == [1.0, 3.0, 3.0]


def test_a_run_that_never_asks_for_it_waits_once_at_a_step_and_then_never_again() -> None:
    def script(rig: Rig, rank: int) -> Any:
        rig.start_training()
        for _ in range(20):
            rig.log("x", 1.0)
            rig.end_batch()
        return rig.metrics._strategy.exchange.num_rounds  # type: ignore[union-attr]

    assert results(2, script, log_every_n_steps=2) == [1, 1]


def test_sync_dist_reduces_evaluation_batches_that_have_the_same_place_in_their_processes() -> None:
    def script(rig: Rig, rank: int) -> Any:
        rig.start_evaluation()
        for batch_idx in range(70 - rank):
            rig.batch(torch.zeros(2))
            rig.log("x", float(rank * 10 + batch_idx), on_step=True, sync_dist=True)
            rig.log("own", float(rank), on_step=True)
        rig.end_epoch()
        return [(step, row) for step, row in rig.logger.rows if "x_step" in row], rig.logger.rows

    (rows, _), (_, silent) = results(2, script)
    assert [(step, row["x_step"]) for step, row in rows] == [
        *((batch_idx, batch_idx + 5.0) for batch_idx in range(69)),
        (69, 69.0),
    ]
    assert all(row["own_step"] == 0.0 for _, row in rows)
    assert silent == []


def test_sync_dist_false_leaves_the_epochs_value_to_each_process() -> None:
    def script(rig: Rig, rank: int) -> Any:
        rig.start_evaluation()
        rig.log("x", float(rank), sync_dist=False, batch_size=1)
        if rank == 1:
            rig.log("y", 5.0, sync_dist=False, batch_size=1)
        return rig.end_epoch()

    assert results(2, script) == [[{"x": 0.0}], [{"x": 1.0, "y": 5.0}]]


@pytest.mark.parametrize(
    ("field", "asked"),
    [
        ("reduce_fx", ({"reduce_fx": "mean"}, {"reduce_fx": "sum"})),
        ("reduce_fx", ({"reduce_fx": spread}, {"reduce_fx": torch.median})),
        ("sync_dist", ({"sync_dist": None}, {"sync_dist": False})),
        ("logger", ({"logger": True}, {"logger": False})),
        ("on_step", ({"on_step": True, "on_epoch": True}, {"on_epoch": True})),
    ],
)
def test_ranks_that_ask_for_different_things_all_say_who_asked_for_what(field: str, asked: Any) -> None:
    def script(rig: Rig, rank: int) -> Any:
        rig.start_evaluation()
        rig.log("first", 1.0, batch_size=1)
        rig.log("x", 1.0, batch_size=1, **asked[rank % 2])
        with pytest.raises(MetricMismatchError) as caught:
            rig.end_epoch()
        return str(caught.value), caught.value.field, list(caught.value.by_rank)

    (message, found, ranks), *others = results(3, script)
    assert all(other == (message, found, ranks) for other in others)
    assert (found, ranks) == (field, [0, 1, 2])
    assert f"`{field}` must be the same on all ranks, but got " in message
    assert "on rank 0, " in message and "in log('x')" in message


def test_the_same_reduction_by_another_name_is_the_same() -> None:
    def script(rig: Rig, rank: int) -> Any:
        rig.start_evaluation()
        rig.log("x", 1.0, batch_size=1, reduce_fx=[torch.mean, "avg"][rank])
        return rig.end_epoch()

    assert results(2, script) == [[{"x": 1.0}]] * 2


def test_a_function_that_fails_is_an_error_on_every_rank() -> None:
    def broken(values: Tensor) -> Tensor:
        raise ZeroDivisionError("no values like these")

    def script(rig: Rig, rank: int) -> Any:
        rig.start_evaluation()
        rig.log("x", 1.0, batch_size=1, reduce_fx=broken)
        with pytest.raises((ZeroDivisionError, RuntimeError)) as caught:
            rig.end_epoch()
        return type(caught.value), str(caught.value)

    first, second = results(2, script)
    assert first == (ZeroDivisionError, "no values like these")
    assert second[0] is RuntimeError
    assert "reduces the values of all ranks (rank 0 applied it)" in second[1]
    assert "ZeroDivisionError: no values like these" in second[1]


def test_an_epoch_that_is_reduced_before_its_end_shows_its_values_and_takes_later_ones() -> None:
    def script(rig: Rig, rank: int) -> Any:
        rig.start_training()
        rig.log("x", float(rank), on_step=False, on_epoch=True, batch_size=1)
        rig.metrics.moment = "epoch"
        rig.metrics.reduce_epoch()
        between = float(rig.metrics.callback_metrics["x"])
        rig.log("late", rank + 1.0)
        return between, rig.end_epoch(), float(rig.metrics.callback_metrics["late"])

    assert results(2, script) == [(0.5, [{"x": 0.5, "late": 1.5}], 1.5)] * 2


def test_ranks_that_get_the_same_data_count_once() -> None:
    def on_rank(strategy: ThreadedStrategy) -> Any:
        rig = Rig(strategy=ReplicaRank(strategy.exchange, strategy.global_rank), log_every_n_steps=1)
        replica = strategy.global_rank // 2
        rig.start_training()
        for reduce_fx in ("mean", "sum", torch.numel):
            name = getattr(reduce_fx, "__name__", reduce_fx)
            rig.log(name, float(replica), batch_size=1, on_step=False, on_epoch=True, reduce_fx=reduce_fx)
        rig.log("step_too", float(replica), sync_dist=True, reduce_fx="sum")
        rig.end_batch()
        return rig.end_epoch(), rig.logger.rows

    (logged, rows), *others = on_ranks(4, on_rank)
    assert logged == [{"mean": 0.5, "sum": 1.0, "numel": 2.0}]
    assert all(other == logged for other, _ in others)
    assert rows[0][1]["step_too"] == 1.0


def test_nan_on_one_rank_is_nan_for_all() -> None:
    def script(rig: Rig, rank: int) -> Any:
        rig.start_evaluation()
        for reduce_fx in ("mean", "sum", "max", "min"):
            rig.log(reduce_fx, math.nan if rank else 1.0, batch_size=1, reduce_fx=reduce_fx)
        return rig.end_epoch()

    for [logged] in results(2, script):
        assert all(math.isnan(value) for value in logged.values()) and len(logged) == 4


def test_each_rank_goes_on_from_its_own_state_to_the_same_values() -> None:
    def log(rig: Rig, rank: int, steps: range) -> None:
        for step in steps:
            rig.batch(torch.zeros(1 + rank))
            rig.log("x", torch.tensor(float(rank * 8 + step)), on_step=True, on_epoch=True)
            rig.log("spread", float(rank * 8 + step), on_step=False, on_epoch=True, reduce_fx=spread)
            rig.log("synced", float(rank), sync_dist=True)
            rig.end_batch()

    def undisturbed(rig: Rig, rank: int) -> Any:
        rig.start_training()
        log(rig, rank, range(6))
        return rig.end_epoch(), rig.logger.rows

    def interrupted(rig: Rig, rank: int) -> Any:
        rig.start_training()
        log(rig, rank, range(3))
        resumed = Rig(2, strategy=rig.metrics._strategy)
        resumed.logger, resumed.progress.global_step = rig.logger, 3
        resumed.metrics._sender.loggers = [rig.logger]
        resumed.start_training()
        resumed.metrics.load_state_dict(rig.metrics.state_dict())
        log(resumed, rank, range(3, 6))
        return resumed.end_epoch(), rig.logger.rows

    assert results(2, interrupted, log_every_n_steps=2) == results(2, undisturbed, log_every_n_steps=2)
