from __future__ import annotations

import functools
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from recording_trainer import RecordingTrainer
from screen import Screen, run_on_terminal

from camshaft.callbacks import RichProgressBar
from camshaft.callbacks import rich_progress_bar as module_under_test
from camshaft.callbacks.errors import InvalidArgumentError
from camshaft.callbacks.progress_meter import Meter

DEMO = str(Path(__file__).with_name("progress_demo.py"))


def run_in_pipe(verb: str, **environment: str) -> str:
    return subprocess.run(
        [sys.executable, DEMO, verb, "no", "0.001", "0"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=True,
    ).stdout


def without_times(text: str) -> list[str]:
    return re.sub(r"in \d+\.\d s \([^)]*\)", "in T", text).splitlines()


class TestInAPipe:
    @pytest.mark.parametrize("environment", [{}, {"FORCE_COLOR": "1"}, {"TTY_COMPATIBLE": "1"}])
    def test_prints_one_plain_line_per_epoch_and_evaluation(self, environment: dict[str, str]) -> None:
        output = run_in_pipe("fit", **environment)
        assert without_times(output) == [
            "Sanity check: 1 batch in T",
            *[
                line
                for epoch, loss in enumerate(["0.1000", "0.05000", "0.03333"])
                for line in (
                    "a line printed by the user",
                    f"Epoch {epoch}/2, validate: 2 batches in T, loss {loss}, val_loss 0.2500",
                    f"Epoch {epoch}/2: 10 batches in T, loss {loss}, val_loss 0.2500",
                )
            ],
            "after the run",
        ]

    def test_prints_an_evaluation_of_its_own(self) -> None:
        assert without_times(run_in_pipe("test")) == [
            "Test: 3 batches in T, test_accuracy 0.8750",
            "after the run",
        ]

    def test_a_dumb_terminal_is_treated_alike(self) -> None:
        output = run_on_terminal([DEMO, "test", "no", "0.001", "0"], TERM="dumb")
        assert "\x1b" not in output and "Test: 3 batches" in output


class TestOnATerminal:
    def test_redraws_in_place_and_leaves_the_last_state(self) -> None:
        output = run_on_terminal([DEMO, "fit", "no", "0.002", "0"])
        *printed, bar, end = Screen(columns=110).feed(output).lines()
        assert printed == ["a line printed by the user"] * 3
        assert re.fullmatch(r"Epoch 2/2 ━+ 10/10 0:0\d < 0:00 \d+ batches/s loss 0\.03333  val_loss 0\.2500", bar)
        assert end == "after the run"

    def test_shows_the_sanity_check_and_validation_while_they_run(self) -> None:
        output = run_on_terminal([DEMO, "fit", "no", "0.002", "0"])
        assert re.search(r"Sanity check", output) and re.search(r"Validate", output)

    def test_leave_keeps_a_bar_per_epoch(self) -> None:
        output = run_on_terminal([DEMO, "fit", "leave", "0.002", "0"])
        lines = Screen(columns=110).feed(output).lines()
        assert [line[:9] for line in lines if "━" in line] == ["Epoch 0/2", "Epoch 1/2", "Epoch 2/2"]
        assert lines[-1] == "after the run" and all("10/10" in line for line in lines if "━" in line)

    @pytest.mark.parametrize("verb", ["fit", "fail", "test"])
    def test_gives_the_cursor_back(self, verb: str) -> None:
        output = run_on_terminal([DEMO, verb, "no", "0.002", "0"])
        assert output.count("\x1b[?25l") == 1
        assert output.index("\x1b[?25l") < output.index("\x1b[?25h") < output.index("after the run")

    def test_an_exception_leaves_the_bar_where_it_stopped(self) -> None:
        bar, handled, _ = Screen(columns=110).feed(run_on_terminal([DEMO, "fail", "no", "0.002", "0"])).lines()
        assert "Epoch 0/2" in bar and " 4/10 " in bar
        assert handled == "handled: a batch failed"

    def test_an_evaluation_of_its_own_stays(self) -> None:
        bar, end = Screen(columns=110).feed(run_on_terminal([DEMO, "test", "no", "0.002", "0"])).lines()
        assert bar.startswith("Test ━") and "3/3" in bar and bar.endswith("test_accuracy 0.8750")
        assert end == "after the run"


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


def test_a_resumed_epoch_starts_in_its_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", terminal := FakeTerminal())
    monkeypatch.setenv("TERM", "xterm")
    bar = RichProgressBar(refresh_rate_seconds=0)
    trainer = RecordingTrainer(".", callbacks=[bar])
    trainer.begin()
    bar.on_train_epoch_start(trainer, None)
    for batch_idx in range(7, 10):
        bar.on_train_batch_end(trainer, None, None, None, batch_idx)
    trainer.end()
    assert re.findall(r"(\d+)/10\b", terminal.getvalue())[1:4] == ["8", "9", "10"]


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


def test_without_rich_a_terminal_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setattr(sys, "stdout", FakeTerminal())
    monkeypatch.setenv("TERM", "xterm")
    bar = RichProgressBar()
    trainer = RecordingTrainer(".", callbacks=[bar])
    trainer.begin()
    with pytest.raises(ModuleNotFoundError, match=r"pip install camshaft-callbacks\[rich\]"):
        bar.on_train_epoch_start(trainer, None)
    trainer.end()


def test_a_pipe_needs_no_rich(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    bar = RichProgressBar()
    trainer = RecordingTrainer(".", callbacks=[bar])
    trainer.begin()
    bar.on_train_epoch_start(trainer, None)
    trainer.end_epoch()
    assert "Epoch 0/2" in capsys.readouterr().out


def test_a_negative_refresh_interval_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="`refresh_rate_seconds` must be 0 or more, but got -1"):
        RichProgressBar(-1)
