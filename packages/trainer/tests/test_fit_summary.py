from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from camshaft.callbacks import EarlyStopping, ModelCheckpoint
from camshaft.hooks_core import Callback
from camshaft.trainer import Trainer, TrainingModule
from camshaft.trainer.results import fit_summary


class Net(TrainingModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self.layer(batch).square().mean()

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.log("val_loss", self.training_step(batch, batch_idx))
        self.log("constant", 1.0)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


LOADER = DataLoader(torch.ones(8, 2), batch_size=2)  # type: ignore[arg-type]


def summary(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, ckpt_path: str | None = None, **arguments: Any
) -> dict[str, str]:
    trainer = Trainer(default_root_dir=tmp_path, **arguments)
    trainer.fit(Net(), LOADER, LOADER, ckpt_path=ckpt_path)
    lines = [line for line in capsys.readouterr().out.splitlines() if not re.match("Epoch|Sanity|  ", line)]
    return dict(re.split(r"  +", line, maxsplit=1) for line in lines if "  " in line)


class StopAt(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        trainer.should_stop = trainer.global_step == self.step


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"max_epochs": 2}, "max_epochs=2 reached"),
        ({"max_steps": 3}, "max_steps=3 reached"),
        ({"max_time": {"microseconds": 1}}, r"max_time={'microseconds': 1} is over"),
        ({"max_epochs": 2, "callbacks": StopAt(3)}, "should_stop was set"),
        ({"max_epochs": 9, "callbacks": EarlyStopping("constant", patience=1)}, "EarlyStopping: constant did not .*"),
        ({"max_epochs": 1, "callbacks": EarlyStopping("constant", patience=1)}, "max_epochs=1 reached"),
        ({"max_epochs": 2, "limit_train_batches": 0}, "nothing was left to train"),
    ],
)
def test_why_it_ended(
    arguments: dict[str, Any], reason: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert re.fullmatch(reason, summary(capsys, tmp_path, **arguments)["fit ended"])


def test_what_was_trained_and_where_the_best_is(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    best = ModelCheckpoint(monitor="val_loss")
    told = summary(capsys, tmp_path, max_epochs=3, callbacks=[best, ModelCheckpoint(filename="last-{epoch}")])
    assert re.fullmatch(r"3 epochs, 12 updates in [\d.]+ s \([\d.]+ updates/s, validation included\)", told["trained"])
    assert told["best val_loss"] == f"{float(best.best_model_score):.6g}, in {best.best_model_path}"  # type: ignore[arg-type]
    assert told["checkpoint"].endswith("last-epoch=2.ckpt") and "resumed" not in told
    saving = ModelCheckpoint(told["checkpoint"].rpartition("/")[0], filename="last-{epoch}")
    assert summary(capsys, tmp_path, "last", max_epochs=4, callbacks=saving)["resumed"] == told["checkpoint"]


@pytest.mark.parametrize("arguments", [{"enable_progress_bar": False}, {"fast_dev_run": True}, {"barebones": True}])
def test_quiet_and_trial_runs_end_without(
    arguments: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert "fit ended" not in summary(capsys, tmp_path, max_epochs=1, **arguments)


def test_a_report_is_drawn_at_the_end_of_each_verb(tmp_path: Path) -> None:
    trainer = Trainer(
        default_root_dir=tmp_path, report=tmp_path / "report", max_epochs=2, logger=False, enable_progress_bar=False
    )
    trainer.fit(Net(), LOADER, LOADER)
    names = {path.name for path in (tmp_path / "report").iterdir()}
    assert names >= {"curves.png", "loss.png", "constant.png", "metrics.csv"}


def test_a_report_of_barebones_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"`report=.*` cannot be combined with barebones=True"):
        Trainer(barebones=True, report=tmp_path)


def test_a_path_that_is_wider_than_the_terminal_is_broken_between_its_folders(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "some-long-name-of-a-folder" / "and-another-name-of-one" / "in-which-there-are-the-files"
    trainer = Trainer(default_root_dir=folder, max_epochs=1)
    trainer.fit(Net(), LOADER, LOADER)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    lines = fit_summary(trainer).splitlines()
    assert max(map(len, lines)) <= 60
    lines = lines[next(idx for idx, line in enumerate(lines) if line.startswith("checkpoint")) :]
    saved = "".join(line.removeprefix("checkpoint").strip() for line in lines)
    assert saved == trainer.checkpoint_callback.best_model_path  # type: ignore[union-attr]
    assert len(lines) > 2 and all(line.endswith("/") for line in lines[:-1])
