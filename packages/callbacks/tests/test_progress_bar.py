from __future__ import annotations

import functools
import io
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from recording_trainer import RecordingTrainer, run_fit
from screen import run_on_terminal

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.callbacks.progress import progress_bar as module_under_test
from camshaft.callbacks.progress.meter import Meter, MetricTexts, Output, Reading
from camshaft.callbacks.progress.progress_bar import ProgressBar
from camshaft.callbacks.progress.rich_progress_bar import RichProgressBar
from camshaft.callbacks.progress.tqdm_progress_bar import TQDMProgressBar

DEMO = str(Path(__file__).with_name("progress_demo.py"))


def run_in_pipe(kind: str, *scenes: str, **environment: str) -> list[str]:
    """Return what each scene writes."""
    output = subprocess.run(
        [sys.executable, DEMO, kind, "0.001", *scenes],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    return output.split("\f")


def without_times(text: str) -> list[str]:
    return re.sub(r"in \d+\.\d s \([^)]*\)", "in T", text).splitlines()


@pytest.mark.processes
class TestInAPipe:
    @pytest.mark.parametrize(
        ("kind", "environment"), [("rich", {"FORCE_COLOR": "1", "TTY_COMPATIBLE": "1"}), ("tqdm", {"FORCE_COLOR": "1"})]
    )
    def test_prints_one_plain_line_per_epoch_and_evaluation(self, kind: str, environment: dict[str, str]) -> None:
        said = ["a line printed by the user", "a line printed by the bar", "a line in two parts"]
        fit, test = run_in_pipe(kind, "fit", "test", **environment)
        assert without_times(fit) == [
            "Sanity check: 1 batch in T",
            *[
                line
                for epoch, loss in enumerate(["0.1000", "0.05000", "0.03333"])
                for line in (
                    said[epoch],
                    f"Epoch {epoch}/2, validate: 2 batches in T, loss {loss}, val_loss 0.2500",
                    f"Epoch {epoch}/2: 10 batches in T, loss {loss}, val_loss 0.2500",
                )
            ],
            "after the run",
        ]
        assert without_times(test) == ["Test: 3 batches in T, test_accuracy 0.8750", "after the run"]

    def test_a_dumb_terminal_is_treated_alike(self) -> None:
        output = run_on_terminal([DEMO, "tqdm", "0.001", "test"], TERM="dumb")
        assert "\x1b" not in output and "Test: 3 batches" in output


class RecordingDisplay:
    """Remembers what it is told to draw."""

    def __init__(self) -> None:
        self.drawn: list[list[Reading]] = []
        self.closed: list[bool] = []
        self.on_draw: Callable[[], None] = lambda: None

    def draw(self, rows: Sequence[Reading], metrics: MetricTexts) -> None:
        self.drawn.append(list(rows))
        self.on_draw()

    def keep(self, row: Reading, metrics: MetricTexts) -> None:
        self.draw([row], metrics)

    def close(self, erase: bool = False) -> None:
        self.closed.append(erase)


class RecordedBar(ProgressBar):
    def __init__(self, refresh_rate_seconds: float = 0.1) -> None:
        super().__init__(refresh_rate_seconds=refresh_rate_seconds)
        self.display = RecordingDisplay()

    def open_display(self, output: Output) -> RecordingDisplay:
        assert output == "terminal"
        return self.display


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class CountingTrainer(RecordingTrainer):
    num_reads = 0

    def __getattribute__(self, name: str) -> Any:
        if name == "progress_bar_metrics":
            CountingTrainer.num_reads += 1
        return super().__getattribute__(name)


class TestCost:
    @pytest.fixture
    def now(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        now = [0.0]
        monkeypatch.setattr(module_under_test, "monotonic", lambda: now[0])
        monkeypatch.setattr(CountingTrainer, "num_reads", 0)
        monkeypatch.setenv("TERM", "xterm")
        return now

    def num_reads_in_1000_batches_of_1_ms(self, now: list[float], **state: Any) -> int:
        bar = RichProgressBar(refresh_rate_seconds=0.1)
        trainer = CountingTrainer(".", callbacks=[bar], num_training_batches=1000, **state)
        trainer.begin()
        bar.on_train_epoch_start(trainer, None)
        for batch_idx in range(1000):
            now[0] += 0.001
            bar.on_train_batch_end(trainer, None, None, None, batch_idx)
        num_reads = CountingTrainer.num_reads
        trainer.end()
        return num_reads

    def test_metrics_are_read_only_when_something_is_drawn(
        self, now: list[float], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "stdout", FakeTerminal())
        assert self.num_reads_in_1000_batches_of_1_ms(now) in (10, 11)

    def test_never_during_an_epoch_in_a_pipe(self, now: list[float]) -> None:
        assert self.num_reads_in_1000_batches_of_1_ms(now) == 0

    def test_never_on_other_ranks(self, now: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "stdout", terminal := FakeTerminal())
        assert self.num_reads_in_1000_batches_of_1_ms(now, is_global_zero=False) == 0
        assert terminal.getvalue() == ""


def test_other_ranks_print_no_lines(capsys: pytest.CaptureFixture[str]) -> None:
    bar = RichProgressBar()
    trainer = RecordingTrainer(".", callbacks=[bar], is_global_zero=False)
    trainer.begin()
    bar.on_train_epoch_start(trainer, None)
    bar.on_train_batch_end(trainer, None, None, None, 0)
    bar.on_train_epoch_end(trainer, None)
    assert capsys.readouterr().out == ""


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_under_test, "current_output", lambda: "terminal")


@pytest.mark.parametrize("refresh_rate_seconds", [0, 1000])
def test_a_resumed_epoch_starts_in_its_middle(on_terminal: None, refresh_rate_seconds: float) -> None:
    bar = RecordedBar(refresh_rate_seconds)
    trainer = RecordingTrainer(".", callbacks=[bar])
    trainer.begin()
    bar.on_train_start(trainer, None)  # and no `on_train_epoch_start`
    for batch_idx in range(7, 10):
        bar.on_train_batch_end(trainer, None, None, None, batch_idx)
    bar.on_train_end(trainer, None)
    positions = [rows[0].position for rows in bar.display.drawn]
    assert positions[-1] == 10 and (refresh_rate_seconds > 0 or positions == [8, 9, 10, 10])


def test_slow_drawing_takes_at_most_a_twentieth_of_the_time(on_terminal: None, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(module_under_test, "monotonic", lambda: now[0])
    bar = RecordedBar(refresh_rate_seconds=0.1)
    bar.display.on_draw = lambda: now.__setitem__(0, now[0] + 0.05)
    trainer = RecordingTrainer(".", callbacks=[bar], num_training_batches=10_000)
    trainer.begin()
    bar.on_train_epoch_start(trainer, None)
    for batch_idx in range(10_000):
        now[0] += 0.001
        bar.on_train_batch_end(trainer, None, None, None, batch_idx)
    assert 5 < len(bar.display.drawn) <= 12  # ten seconds of batches


def test_shows_nothing_while_disabled_and_then_goes_on(on_terminal: None) -> None:
    bar = RecordedBar(refresh_rate_seconds=0)
    trainer = RecordingTrainer(".", callbacks=[bar])
    trainer.begin()
    bar.on_train_epoch_start(trainer, None)
    bar.disable()
    assert not bar.is_enabled and bar.display.closed == [True]
    num_drawn = len(bar.display.drawn)
    for batch_idx in range(3):
        bar.on_train_batch_end(trainer, None, None, None, batch_idx)
    bar.on_validation_start(trainer, None)
    bar.on_validation_batch_end(trainer, None, None, None, 0)
    bar.on_validation_end(trainer, None)
    assert len(bar.display.drawn) == num_drawn
    bar.enable()
    bar.on_train_batch_end(trainer, None, None, None, 3)
    assert bar.is_enabled and [row.position for row in bar.display.drawn[-1]] == [4]


def test_shows_the_metrics_that_get_metrics_returns(capsys: pytest.CaptureFixture[str]) -> None:
    class WithoutLoss(RichProgressBar):
        def get_metrics(self, trainer: Any, module: Any) -> dict[str, Any]:
            return {name: value for name, value in super().get_metrics(trainer, module).items() if name != "loss"}

    bar = WithoutLoss()
    trainer = RecordingTrainer(".", callbacks=[bar], progress_bar_metrics={"loss": 1.0, "accuracy": 0.5})
    trainer.begin()
    bar.on_train_epoch_start(trainer, None)
    trainer.end_epoch()
    assert "accuracy 0.5000" in (line := capsys.readouterr().out) and "loss" not in line


def test_prints_on_the_first_process_alone(capsys: pytest.CaptureFixture[str]) -> None:
    for is_global_zero in (True, False):
        bar = TQDMProgressBar()
        bar.setup(RecordingTrainer(".", is_global_zero=is_global_zero), None, "fit")
        bar.print("rank", int(not is_global_zero), sep=" ")
    assert capsys.readouterr().out == "rank 0\n"


def test_a_bar_without_a_display_shows_nothing(on_terminal: None, capsys: pytest.CaptureFixture[str]) -> None:
    run_fit(ProgressBar())
    assert capsys.readouterr().out == ""


def test_the_time_of_an_epoch_leaves_validation_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(module_under_test, "Meter", functools.partial(Meter, clock=lambda: now[0]))
    bar = RichProgressBar()
    trainer = RecordingTrainer(".", callbacks=[bar])
    trainer.begin()
    bar.on_train_epoch_start(trainer, None)
    for batch_idx in range(4):
        now[0] += 0.5
        bar.on_train_batch_end(trainer, None, None, None, batch_idx)
    bar.on_validation_start(trainer, None)
    now[0] += 5
    bar.on_validation_batch_end(trainer, None, None, None, 0)
    bar.on_validation_end(trainer, None)
    trainer.end_epoch()
    assert capsys.readouterr().out.splitlines() == [
        "Epoch 0/2, validate: 1 batch in 5.0 s (5.0 s/batch)",
        "Epoch 0/2: 4 batches in 2.0 s (2.0 batches/s)",
    ]


@pytest.mark.parametrize(("max_epochs", "label"), [(10, "Epoch 3/9"), (None, "Epoch 3"), (-1, "Epoch 3")])
def test_names_the_epoch_and_the_last_one_if_there_is_one(
    max_epochs: int | None, label: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bar = RichProgressBar()
    trainer = RecordingTrainer(".", callbacks=[bar], max_epochs=max_epochs, current_epoch=3)
    trainer.begin()
    bar.on_train_epoch_start(trainer, None)
    trainer.end_epoch()
    assert capsys.readouterr().out.startswith(f"{label}: 0 batches")


def test_a_rate_in_batches_draws_at_their_multiples_and_at_the_end(on_terminal: None) -> None:
    class Counted(RecordedBar):
        def __init__(self) -> None:
            ProgressBar.__init__(self, refresh_rate=4)
            self.display = RecordingDisplay()

    bar = Counted()
    trainer = RecordingTrainer(".", callbacks=[bar], num_training_batches=10)
    trainer.begin()
    bar.on_train_epoch_start(trainer, None)
    for batch_idx in range(10):
        bar.on_train_batch_end(trainer, None, None, None, batch_idx)
    assert [rows[0].position for rows in bar.display.drawn] == [0, 4, 8, 10]


@pytest.mark.parametrize("bar_class", [RichProgressBar, TQDMProgressBar])
def test_rates_are_batches_or_seconds(bar_class: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert (bar_class(10).refresh_rate, bar_class(0.5).refresh_rate_seconds) == (10, 0.5)
    assert bar_class().refresh_rate_seconds == 0.1 and bar_class(refresh_rate=1, leave=True).leave
    off = bar_class(refresh_rate=0)
    assert not off.is_enabled
    off.enable()
    run_fit(off)
    assert capsys.readouterr().out == ""
    with pytest.raises(InvalidArgumentError, match="`refresh_rate` must be 0 or more"):
        bar_class(-1)
    with pytest.raises(InvalidArgumentError, match="`refresh_rate` must be None when `refresh_rate_seconds` is given"):
        bar_class(1, refresh_rate_seconds=1.0)
    with pytest.raises(InvalidArgumentError, match="`process_position` must be 0 or more"):
        TQDMProgressBar(process_position=-1)


def test_titles_and_numbers_are_those_of_a_subclass(capsys: pytest.CaptureFixture[str]) -> None:
    class Named(RichProgressBar):
        def title(self, stage: Any) -> str:
            return f"Round {self.trainer.current_epoch + 1}" if stage == "train" else f"{super().title(stage)} now"

    bar = Named()
    with pytest.raises(TypeError, match="`trainer` must be read in a run"):
        _ = bar.trainer
    run_fit(bar)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        *("Sanity check now", "Round 1, validate now", "Round 1", "Test now")
    ]
    assert bar.num_batches("train") == 6 and bar.num_batches("validation") == 3
    rest: Any = SimpleNamespace(num_training_batches=6, max_epochs=-1, max_steps=9, global_step=5, is_global_zero=True)
    bar.setup(rest, None, "fit")
    assert bar.num_batches("train") == 4


@pytest.mark.parametrize(("library", "bar_class"), [("rich", RichProgressBar), ("tqdm", TQDMProgressBar)])
class TestLibraries:
    def test_a_pipe_needs_none(
        self, library: str, bar_class: type[ProgressBar], monkeypatch: pytest.MonkeyPatch, capsys: Any
    ) -> None:
        monkeypatch.setitem(sys.modules, library, None)
        bar = bar_class()
        trainer = RecordingTrainer(".", callbacks=[bar])
        trainer.begin()
        bar.on_train_epoch_start(trainer, None)
        trainer.end_epoch()
        assert "Epoch 0/2" in capsys.readouterr().out

    def test_a_terminal_is_told_what_to_install(
        self, library: str, bar_class: type[ProgressBar], monkeypatch: pytest.MonkeyPatch, on_terminal: None
    ) -> None:
        for name in [name for name in sys.modules if name.split(".")[0] == library]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, library, None)
        bar = bar_class()
        trainer = RecordingTrainer(".", callbacks=[bar])
        trainer.begin()
        with pytest.raises(ModuleNotFoundError, match=rf"pip install {library}.*extra `{library}`"):
            bar.on_train_epoch_start(trainer, None)
        trainer.end()

    def test_a_negative_refresh_interval_is_refused(self, library: str, bar_class: type[ProgressBar]) -> None:
        with pytest.raises(InvalidArgumentError, match="`refresh_rate_seconds` must be 0 or more, or None, but got -1"):
            bar_class(refresh_rate_seconds=-1)
