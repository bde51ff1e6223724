from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from recording_trainer import RecordingTrainer
from timeline_runs import Clock, Net, Optimizer, Slow, fit, page_of, validate_once

from camshaft.callbacks.profiling.hook_timeline import HookTimeline
from camshaft.callbacks.profiling.timeline_recording import SPANS, Tally, hooks_of_step, span_of
from camshaft.callbacks.profiling.timeline_report import (
    Row,
    TreeRow,
    VerbTimes,
    life_cycle_rows,
    report_data,
    report_html,
)
from camshaft.hooks_core import Callback, resolve
from camshaft.hooks_core.grammar import life_cycle
from camshaft.hooks_core.grammar.nodes import Maybe, Node, Repeat, parts
from camshaft.hooks_core.spec import VERBS


@pytest.fixture
def timeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HookTimeline:
    """Of a fit and of two validations."""
    clock, timeline = Clock(monkeypatch), HookTimeline()
    trainer = RecordingTrainer(str(tmp_path), callbacks=[Slow(clock), timeline])
    fit(trainer, Net(clock), Optimizer(clock))
    for _ in range(2):
        hooks: Any = resolve(callbacks=trainer.callbacks, module=Net(clock), trainer=trainer)
        hooks.setup("validate")
        validate_once(hooks, 3)
        hooks.teardown("validate")
    return timeline


def test_the_page_is_whole_and_names_nothing_outside_of_itself(timeline: HookTimeline) -> None:
    page = page_of(timeline)
    assert page.addresses == ["#fit", "#validate"]
    assert not {"link", "img", "iframe"} & {*page.tags}
    assert page.titles == [
        *("Per training batch", "Per validation batch", "Receivers", "Hooks and receivers", "The life cycle"),
        *("Per validation batch", "Receivers", "Hooks and receivers", "The life cycle"),
    ]


def test_a_batchs_table_has_percentiles_of_the_batch_and_then_of_its_hooks_by_cost(timeline: HookTimeline) -> None:
    rows = page_of(timeline).table("Per training batch")
    assert [row[0] for row in rows] == [
        "training batch",
        "backward pass",
        "optimizer.step",
        "training_step",
        "on_train_batch_end",
        "on_train_batch_start",
    ]
    assert rows[2][1:8] == ["6", *["40.0µs"] * 5, "30.1%"]
    assert rows[0][5:8] == ["134µs", "133µs", "100.0%"]


def test_receivers_and_hooks_are_sorted_by_their_own_time(timeline: HookTimeline) -> None:
    page = page_of(timeline)
    assert [row[:4] for row in page.table("Receivers")][:2] == [
        ["the loop", "", "", "1.14ms"],
        ["Net", "module", "13", "290µs"],
    ]
    rows = page.table("Hooks and receivers")
    assert rows[0][:6] == ["training epoch", "loading of batches, and the loop", "2", "600µs", "39.9%", "1.48ms"]
    assert ["validation_step", "Net", "5", "100µs", "6.7%", "100µs", "20.0µs", "20.0µs", ""] in rows


def test_names_are_escaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = type("<script>alert('&')</script>", (Callback,), {"on_fit_start": lambda self, trainer, module: None})
    timeline = HookTimeline(tmp_path)
    hooks = resolve(callbacks=[hostile(), timeline])
    hooks.setup("fit")
    hooks.on_fit_start()
    hooks.teardown("fit")
    text = Path(str(timeline.html_path)).read_text(encoding="utf-8")
    assert "alert(" in text and "<script>alert" not in text
    assert "script>alert('&')" in "".join(row[1] for row in page_of(timeline).table("Hooks and receivers"))


def test_the_data_of_the_page_are_exact_sums_in_nanoseconds(timeline: HookTimeline) -> None:
    data = report_data("fit", timeline._verbs["fit"])
    assert ["optimizer.step", "Optimizer", "loop", 6, 240_000, 240_000, 40_000] in data["rows"]
    assert sum(row[5] for row in data["rows"]) == data["duration"]
    [(span, batches), (_, validation)] = data["steps"]
    assert span == "training batch" and [row[0] for row in batches][:2] == ["training batch", "backward pass"]
    assert [row[2] for row in batches] == [6] * 6 and [row[2] for row in validation] == [4, 4]


@pytest.mark.parametrize(
    ("duration_ns", "words"),
    [
        (1, "1ns"),
        (999, "999ns"),
        (1_000, "1.00µs"),
        (9_994, "9.99µs"),
        (99_960, "100µs"),
        (999_499, "999µs"),
        (999_500, "1.00ms"),
        (12_345_678, "12.3ms"),
        (5_000_000_000, "5.00s"),
        (4_321_000_000_000, "4,321s"),
    ],
)
def test_durations_have_three_digits_and_a_fitting_unit(tmp_path: Path, duration_ns: int, words: str) -> None:
    timeline = HookTimeline()
    tallies = {Row("setup", "Net", "module", False): Tally(1, duration_ns, duration_ns, duration_ns)}
    timeline.html_path = str(tmp_path / "page.html")
    times = VerbTimes(num_runs=1, duration_ns=duration_ns, tallies=tallies)
    Path(timeline.html_path).write_text(report_html({"fit": times, "test": VerbTimes(num_runs=1)}, rank=0))
    page = page_of(timeline)
    assert page.table("Receivers")[0][3] == words
    assert page.titles == ["Receivers", "Hooks and receivers", "The life cycle"] * 2


def labels(rows: list[TreeRow]) -> list[str]:
    return [f"{'  ' * row.depth}{row.label}" for row in rows]


def test_the_tree_has_the_order_of_the_life_cycle_and_the_sanity_check_apart(timeline: HookTimeline) -> None:
    tree = life_cycle_rows("fit", timeline._verbs["fit"])
    assert labels(tree) == [
        "fit()",
        "  training",
        "    sanity check",
        "      validation batch",
        "        validation_step",
        "    training epoch",
        "      training batch",
        "        on_train_batch_start",
        "        training_step",
        "        backward pass",
        "        optimizer.step",
        "        on_train_batch_end",
        "        validation",
        "          validation batch",
        "            validation_step",
        "      on_train_epoch_end",
    ]
    assert tree[4].tally.num_calls == 1


def test_hooks_that_the_life_cycle_does_not_have_come_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, timeline = Clock(monkeypatch), HookTimeline()

    class Sorry(Callback):
        def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None: ...

    trainer = RecordingTrainer(str(tmp_path), callbacks=[Sorry(), timeline])
    with pytest.raises(ValueError, match="too much"):
        fit(trainer, Net(clock, fails_at=0), Optimizer(clock))
    assert labels(life_cycle_rows("fit", timeline._verbs["fit"]))[-1] == "  on_exception"


def groups(node: Node) -> list[Node]:
    own = [node] if isinstance(node, Repeat | Maybe) else []
    return own + [group for part in parts(node) for group in groups(part)]


def test_every_span_that_encloses_its_hooks_is_a_part_of_a_life_cycle() -> None:
    found = {span_of(group) for verb in VERBS for group in groups(life_cycle(verb))} - {None}
    assert found == {span for span in SPANS if not span.lies_between}


@pytest.mark.parametrize("span", [span for span in SPANS if span.is_step], ids=lambda span: span.name)
def test_the_hooks_of_a_batch_are_those_of_its_part_of_the_life_cycle(span: Any) -> None:
    hooks = hooks_of_step(span)
    assert {span.opened_by, span.closed_by, "on_before_batch_transfer"} <= {*hooks}
    assert not any("epoch" in hook or hook.endswith("_dataloader") for hook in hooks)
    assert ("optimizer.step" in hooks) == ("training_step" in hooks) == (span.name == "training batch")
