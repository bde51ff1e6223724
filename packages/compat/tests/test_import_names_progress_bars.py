"""Progress bars under Lightning's names, and subclasses that draw as Lightning's do."""

from __future__ import annotations

import copy
import io
import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from recording_trainer import RecordingTrainer, run_fit

from camshaft.compat.names.trainer.progress_bars import TQDMProgressBar
from camshaft.compat.names.trainer.rich_progress_bar import RichProgressBar, RichProgressBarTheme
from camshaft.compat.names.trainer.tqdm_bar import Tqdm


class Described(TQDMProgressBar):
    """As Lightning's documentation shows it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.made: dict[str, Any] = {}

    def _made_by(self, name: str, bar: Any) -> Any:
        self.made[name] = bar
        return bar

    def init_sanity_tqdm(self) -> Any:
        return self._made_by("sanity", Tqdm(disable=True))

    def init_train_tqdm(self) -> Any:
        return self._made_by("train", super().init_train_tqdm())

    def init_validation_tqdm(self) -> Any:
        bar = super().init_validation_tqdm()
        bar.set_description("running validation ...")
        return self._made_by("validation", bar)

    def init_test_tqdm(self) -> Any:
        return self._made_by("test", super().init_test_tqdm())

    def get_metrics(self, trainer: Any, model: Any) -> dict[str, Any]:
        items = super().get_metrics(trainer, model)
        items.pop("v_num")
        return items


def test_a_subclass_that_makes_tqdm_bars_has_them_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    bar = Described(refresh_rate=4)
    run_fit(bar, loggers=[SimpleNamespace(version=3)])
    lines = capsys.readouterr().out.replace("\r", "\n").splitlines()
    assert list(bar.made) == ["sanity", "train", "validation", "test"]
    shown = [line for line in lines if line.startswith("Epoch 0/2")]
    assert {count for line in shown for count in re.findall(r"(\d+)/6 ", line)} == {"0", "4", "6"}, shown
    assert "loss=0.250" in shown[-1] and "v_num" not in shown[-1]
    assert any(line.startswith("running validation ...: 100%") and " 3/3 " in line for line in lines)
    assert any(line.startswith("Test: 100%") for line in lines) and not any("Sanity" in line for line in lines)
    assert all(made.disable for made in bar.made.values())  # each was closed


def test_a_subclass_with_hooks_reads_the_bars(capsys: pytest.CaptureFixture[str]) -> None:
    class Hooked(TQDMProgressBar):
        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            super().on_train_epoch_start(trainer, pl_module)
            self.train_progress_bar.set_description("mine")
            assert self.trainer is trainer and self.total_train_batches == 6
            assert self.main_progress_bar is self.train_progress_bar and self.total_val_batches == 3

    bar = Hooked()
    with pytest.raises(TypeError, match="`train_progress_bar` must be read while its pass runs"):
        _ = bar.train_progress_bar
    with pytest.raises(TypeError, match="`trainer` must be read in a run"):
        _ = bar.trainer
    run_fit(bar)
    assert "mine: 100%" in capsys.readouterr().out
    assert copy.deepcopy(bar)._train_progress_bar is None


def test_a_bar_that_is_read_from_outside_is_one_of_tqdm_from_then_on(capsys: pytest.CaptureFixture[str]) -> None:
    bar = TQDMProgressBar()
    trainer = RecordingTrainer(".", callbacks=[bar])
    trainer.begin()
    bar.on_train_epoch_start(trainer, None)
    for batch_idx in range(4):
        bar.on_train_batch_end(trainer, None, None, None, batch_idx)
        if batch_idx == 1:
            bar.train_progress_bar.set_description("from outside")
    assert bar.train_progress_bar.n == 4 and "from outside:  40%" in capsys.readouterr().out
    trainer.end()


def test_descriptions_are_those_of_a_subclass(capsys: pytest.CaptureFixture[str]) -> None:
    class Named(RichProgressBar):
        test_description = "Trial"  # type: ignore[assignment]

        @property
        def validation_description(self) -> str:
            return "Look"

        def _get_train_description(self, current_epoch: int) -> str:
            return f"Round {current_epoch + 1}"

    run_fit(Named())
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["Sanity check", "Round 1, look", "Round 1", "Trial"]


def test_tasks_of_rich_are_read_while_they_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting(RichProgressBar):
        def configure_columns(self, trainer: Any) -> list[Any]:
            return [*super().configure_columns(trainer)[:1], "{task.completed} of {task.total}"]

        def setup(self, *args: Any) -> None:
            super().setup(*args)
            self._output = "terminal"
            self.refresh_rate_seconds = 0.0

        def on_train_batch_end(self, *args: Any) -> None:
            super().on_train_batch_end(*args)
            task = self.train_progress_bar
            assert (task.id, task.completed, task.total) == (self.train_progress_bar_id, args[-1] + 1, 6)
            assert self.val_progress_bar_id is None

        def on_test_end(self, *args: Any) -> None:
            assert (self.test_progress_bar.total, self.test_progress_bar_id) == (3, self.test_progress_bar.id)
            with pytest.raises(TypeError, match="`validation task` must be read while its pass is drawn"):
                _ = self.val_progress_bar
            super().on_test_end(*args)

    run_fit(Counting())


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_columns_and_styles_of_rich_are_those_that_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting(RichProgressBar):
        def configure_columns(self, trainer: Any) -> list[Any]:
            return [*super().configure_columns(trainer)[:1], "{task.completed} of {task.total}"]

    monkeypatch.setenv("TERM", "xterm")
    theme = RichProgressBarTheme(metrics_format=".1e", metrics_text_delimiter=" | ")
    for bar in (Counting(), RichProgressBar(theme=theme, console_kwargs={"width": 120})):
        monkeypatch.setattr(sys, "stdout", terminal := _Terminal())
        run_fit(bar, progress_bar_metrics={"accuracy": 0.5})
        shown = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", terminal.getvalue())
        if isinstance(bar, Counting):
            assert "Epoch 0/2 6 of 6 accuracy: 0.500 loss: 0.250" in shown and "Test 3 of 3" in shown
        else:
            assert "6/6" in shown and "accuracy: 5.0e-01 | loss: 2.5e-01" in shown
