from __future__ import annotations

import gc
import os
import pickle
import traceback
import weakref
from pathlib import Path
from typing import Any

import pytest
from recording_trainer import RecordingTrainer
from timeline_runs import Clock, Net, Optimizer, Slow, fit, page_of, read_trace, validate_once

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.callbacks.profiling.hook_timeline import HookTimeline
from camshaft.hooks_core import CATALOGUE, ModelHooks, Receiver, find_faults, resolve


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def run(folder: Path, clock: Clock, fails_at: int | None = None, **arguments: Any) -> tuple[HookTimeline, Optimizer]:
    timeline, optimizer = HookTimeline(), Optimizer(clock)
    trainer = RecordingTrainer(str(folder), callbacks=[Slow(clock), timeline])
    fit(trainer, Net(clock, fails_at), optimizer, **arguments)
    return timeline, optimizer


def sums(timeline: HookTimeline, verb: str = "fit") -> dict[tuple[str, str, bool], tuple[int, int, int, int]]:
    """(hook, receiver, whether in the sanity check): calls, total, self and longest, in microseconds."""
    return {
        (row.hook, row.receiver, row.is_sanity_check): (
            tally.num_calls,
            tally.total_ns // 1000,
            tally.self_ns // 1000,
            tally.max_ns // 1000,
        )
        for row, tally in timeline._verbs[verb].tallies.items()
    }


def test_passes_the_hook_protocol() -> None:
    assert find_faults(HookTimeline(), Receiver.CALLBACK, CATALOGUE) == []


def test_calls_and_spans_have_exact_sums_with_and_without_what_they_enclose(tmp_path: Path, clock: Clock) -> None:
    timeline, _ = run(tmp_path, clock)
    batch = 5 + 31 + 50 + 40 + 7  # two epochs of three batches, whose steps take 30, 31 and 32
    assert sums(timeline) == {
        ("on_train_batch_start", "Slow", False): (6, 30, 30, 5),
        ("on_train_batch_end", "Slow", False): (6, 42, 42, 7),
        ("training_step", "Net", False): (6, 186, 186, 32),
        ("validation_step", "Net", False): (4, 80, 80, 20),
        ("validation_step", "Net", True): (1, 20, 20, 20),
        ("on_train_epoch_end", "Net", False): (2, 4, 4, 2),
        ("optimizer.step", "Optimizer", False): (6, 240, 240, 40),
        ("backward pass", "", False): (6, 300, 300, 50),
        ("training batch", "", False): (6, 6 * batch, 0, batch + 1),
        ("validation batch", "", False): (4, 80, 0, 20),
        ("validation batch", "", True): (1, 20, 0, 20),
        ("validation", "", False): (2, 80, 0, 40),
        ("validation", "", True): (1, 20, 0, 20),
        ("sanity check", "", False): (1, 20, 0, 20),
        ("training epoch", "", False): (2, 6 * (100 + batch) + 84, 600, 3 * (100 + batch) + 42),
        ("training", "", False): (1, 6 * (100 + batch) + 84, 0, 6 * (100 + batch) + 84),
        ("fit()", "", False): (1, 6 * (100 + batch) + 104, 0, 6 * (100 + batch) + 104),
    }


def test_own_times_of_all_rows_are_the_whole_time(tmp_path: Path, clock: Clock) -> None:
    timeline, _ = run(tmp_path, clock)
    times = timeline._verbs["fit"]
    assert sum(tally.self_ns for tally in times.tallies.values()) == times.duration_ns


def test_percentiles_are_of_batches_and_of_each_hook_in_them_without_the_sanity_check(
    tmp_path: Path, clock: Clock
) -> None:
    timeline, _ = run(tmp_path, clock, batches=tuple("abcdefghij"))
    steps = timeline._verbs["fit"].steps
    training, validation = steps["training batch"], steps["validation batch"]
    assert training["training batch"].num == 20 and validation["validation batch"].num == 4
    assert training["training_step"].percentile_ns(50) == pytest.approx(34_000, rel=1 / 128)
    assert training["training batch"].percentile_ns(90) == pytest.approx(140_000, rel=1 / 128)
    assert training["optimizer.step"].percentile_ns(99) == pytest.approx(40_000, rel=1 / 128)
    assert training["on_after_backward"].num == 0  # nobody implements it
    assert "validation_step" not in training


def test_the_trace_is_nested_and_names_rank_hooks_and_receivers(tmp_path: Path, clock: Clock) -> None:
    timeline, _ = run(tmp_path, clock)
    events = read_trace(timeline)
    assert timeline.json_path == str(tmp_path / "timeline-rank0.json")
    assert {(event["pid"], event["tid"]) for event in events} == {(0, 0)}
    assert events[0]["name"] == "fit()"
    steps = [event for event in events if event["name"] == "training_step · Net"]
    assert [event["dur"] for event in steps] == [30, 31, 32] * 2
    assert steps[0]["args"] == {"hook": "training_step", "receiver": "Net"} and steps[0]["cat"] == "module"


def test_the_files_are_written_after_an_error_too_which_keeps_its_notes_and_gains_one_frame(
    tmp_path: Path, clock: Clock
) -> None:
    with pytest.raises(ValueError, match="too much") as caught:
        run(tmp_path, clock, fails_at=1)
    assert caught.value.__notes__ == ["Raised in hook `training_step` of Net."]
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names[-3:] == ["training_step", "timed", "training_step"]
    [path] = tmp_path.glob("*.json")
    timeline = HookTimeline()
    timeline.json_path = str(path)
    events = read_trace(timeline)
    batches = [event for event in events if event["name"] == "training batch"]
    assert [event["dur"] for event in batches] == [5 + 30 + 50 + 40 + 7, 5 + 31]
    assert (tmp_path / "timeline-rank0.html").is_file()


def test_an_epoch_that_is_skipped_leaves_a_short_batch_that_counts_in_no_percentile(
    tmp_path: Path, clock: Clock
) -> None:
    timeline, _ = run(tmp_path, clock, batches=("a", "skip", "never"))
    assert timeline._verbs["fit"].steps["training batch"]["training batch"].num == 2
    assert sums(timeline)["training batch", "", False][0] == 4
    read_trace(timeline)


def test_an_error_inside_of_an_enclosing_hook_closes_what_it_left_open(tmp_path: Path, clock: Clock) -> None:
    class ByHand(ModelHooks):
        def training_step(self, batch: Any, batch_idx: int) -> None:
            try:
                hooks.on_before_backward(None)
                clock.spend(9)
                raise OverflowError
            except OverflowError:
                clock.spend(1)  # goes on, and the hook after the backward pass never comes

    timeline = HookTimeline(tmp_path)
    hooks: Any = resolve(callbacks=[timeline], module=ByHand())
    hooks.setup("fit")
    hooks.on_train_batch_start(None, 0)
    hooks.training_step(None, 0)
    clock.spend(4)
    hooks.on_train_batch_end(None, None, 0)
    hooks.teardown("fit")
    found = sums(timeline)
    assert found["training_step", "ByHand", False] == (1, 10, 0, 10)
    assert found["backward pass", "", False] == (1, 10, 10, 10)
    assert found["training batch", "", False] == (1, 14, 4, 14)
    read_trace(timeline)


def test_verbs_and_fits_add_up_and_each_has_its_own_part(
    tmp_path: Path, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    timeline, optimizer = HookTimeline(), Optimizer(clock)
    trainer = RecordingTrainer(str(tmp_path), callbacks=[timeline])
    for _ in range(2):
        fit(trainer, Net(clock), optimizer)
    hooks: Any = resolve(callbacks=trainer.callbacks, module=Net(clock), trainer=trainer)
    hooks.setup("validate")
    validate_once(hooks, 3)
    hooks.teardown("validate")
    assert capsys.readouterr().out.count(f"wrote {timeline.html_path}") == 1
    assert timeline._verbs["fit"].num_runs == 2
    assert sums(timeline)["training_step", "Net", False][:2] == (12, 372)
    assert sums(timeline, "validate")["validation_step", "Net", False][:2] == (3, 60)
    assert [event["name"] for event in read_trace(timeline) if event["name"].endswith("()")] == [
        "fit()",
        "fit()",
        "validate()",
    ]


def test_it_forgets_the_receivers_and_the_optimizers_when_a_run_ends(tmp_path: Path, clock: Clock) -> None:
    timeline, optimizer, module = HookTimeline(), Optimizer(clock), Net(clock)
    trainer = RecordingTrainer(str(tmp_path), callbacks=[timeline], optimizers=[optimizer])
    fit(trainer, module, optimizer)
    assert optimizer.before == optimizer.after == []
    watch = weakref.ref(module)
    del module
    gc.collect()
    assert watch() is None
    assert isinstance(pickle.loads(pickle.dumps(timeline)), HookTimeline)


def test_memory_is_bounded_and_the_trace_says_how_much_is_missing(tmp_path: Path, clock: Clock) -> None:
    timeline, optimizer = HookTimeline(max_events=7), Optimizer(clock)
    trainer = RecordingTrainer(str(tmp_path), callbacks=[timeline])
    fit(trainer, Net(clock), optimizer, num_epochs=20)
    events = read_trace(timeline)
    assert len(events) == 14
    assert f'"older_events_dropped":{sum(row[0] for row in sums(timeline).values()) - 14}' in Path(
        str(timeline.json_path)
    ).read_text(encoding="utf-8")
    assert sums(timeline)["training_step", "Net", False][0] == 60


def test_files_go_where_they_are_asked_for_one_pair_per_rank(
    tmp_path: Path, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    timeline = HookTimeline(tmp_path / "deep" / "folder", filename="hooks")
    trainer = RecordingTrainer(str(tmp_path), callbacks=[timeline], log_dir=str(tmp_path / "log"))
    trainer.strategy.global_rank = 3
    fit(trainer, Net(clock), Optimizer(clock))
    assert sorted(os.listdir(tmp_path / "deep" / "folder")) == ["hooks-rank3.html", "hooks-rank3.json"]
    assert capsys.readouterr().out == "", "rank 0 speaks for all"
    assert {event["pid"] for event in read_trace(timeline)} == {3}
    trainer.callbacks = [HookTimeline()]
    fit(trainer, Net(clock), Optimizer(clock))
    assert sorted(os.listdir(tmp_path / "log")) == ["timeline-rank3.html", "timeline-rank3.json"]


def test_a_loop_without_a_trainer_gets_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    class Plain(ModelHooks):
        def test_step(self, batch: Any, batch_idx: int) -> None: ...

    timeline = HookTimeline()
    hooks: Any = resolve(callbacks=[timeline], module=Plain())
    hooks.setup("test")
    hooks.test_step(None, 0, 0)
    hooks.teardown("test")
    assert sums(timeline, "test")["test_step", "Plain", False][0] == 1
    assert timeline.html_path == str(tmp_path / "timeline-rank0.html")


def test_a_timed_call_passes_on_arguments_results_and_defaults(tmp_path: Path) -> None:
    class Recurrent(ModelHooks):
        def training_step(self, batch: Any, batch_idx: int, *, hiddens: Any = "zeros") -> Any:
            return batch, batch_idx, hiddens

    step: Any = resolve(callbacks=[HookTimeline(tmp_path)], module=Recurrent()).training_step
    assert step("b", 1) == ("b", 1, "zeros")
    assert step("b", 1, hiddens="h") == ("b", 1, "h")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_events": 0}, r"`max_events` must be 1 or more, but got 0 \(int\) in HookTimeline"),
        ({"filename": "a/b"}, r"`filename` must be a file name without a folder, but got 'a/b' \(str\)"),
        ({"filename": ""}, "`filename` must be a file name without a folder"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        HookTimeline(**arguments)


def test_what_could_not_be_written_raises_and_leaves_no_half_file(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "timeline-rank0.html").mkdir()
    with pytest.raises(OSError) as caught:
        run(tmp_path, clock)
    assert caught.value.__notes__ == ["Raised in hook `teardown` of HookTimeline."]
    assert sorted(os.listdir(tmp_path)) == ["timeline-rank0.html", "timeline-rank0.json"]


def test_the_report_of_a_run_has_its_tables(tmp_path: Path, clock: Clock) -> None:
    timeline, _ = run(tmp_path, clock)
    assert page_of(timeline).titles == [
        "Per training batch",
        "Per validation batch",
        "Receivers",
        "Hooks and receivers",
        "The life cycle",
    ]
