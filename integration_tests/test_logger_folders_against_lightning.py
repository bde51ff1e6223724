"""Where trainers under the import names keep files beside a logger of someone's own, as Lightning does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import pytest
import torch
from lightning.pytorch.demos.boring_classes import BoringModel

from camshaft.compat import Trainer, TrainingModule
from camshaft.compat.names.trainer.loggers import LightningLoggerBase, TensorBoardLogger


def own_logger(base: type, facts: dict[str, Any], with_run: bool) -> Any:
    """Return a logger of a service, whose run has a name and a version from its start on."""

    class Service(base):  # type: ignore[misc]
        runs: int = 0

        @property
        def experiment(self) -> Any:
            self.runs = with_run
            return self

        name = property(lambda self: facts["name"] if self.runs else "unknown")
        version = property(lambda self: facts["version"] if self.runs else "unknown")
        save_dir = property(lambda self: facts["save_dir"])
        log_dir = property(lambda self: "elsewhere")

        def log_metrics(self, metrics: Any, step: int | None = None) -> None: ...

        def log_hyperparams(self, *args: Any, **kwargs: Any) -> None: ...

    return Service()


class Module(TrainingModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(32, 2)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        return self.layer(batch).sum()

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(torch.ones(4, 32))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def files_after_fit(trainer_class: Any, module: Any, logger: Any, root: Path) -> tuple[str | None, list[str]]:
    """Return the trainer's folder of logs and the files of checkpoints after two steps, relative to `root`."""
    arguments = {"max_steps": 2, "limit_val_batches": 0, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = trainer_class(logger=logger, default_root_dir=str(root / "root"), accelerator="cpu", **arguments)
    trainer.fit(module)
    log_dir = trainer.log_dir
    found = sorted(str(path.relative_to(root)) for path in root.rglob("*.ckpt"))
    return log_dir and str(Path(log_dir).resolve().relative_to(root)), found


@pytest.mark.parametrize("with_run", [True, False])
@pytest.mark.parametrize(
    "facts",
    [
        {"save_dir": "logs", "name": "mine", "version": 3},
        {"save_dir": "logs", "name": "mine", "version": "run"},
        {"save_dir": "logs", "name": "", "version": None},
        {"save_dir": None, "name": None, "version": 1},
    ],
)
def test_checkpoints_beside_a_logger_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any], with_run: bool
) -> None:
    expected_root, root = tmp_path / "lightning", tmp_path / "camshaft"
    for folder in (expected_root, root):
        folder.mkdir()
    monkeypatch.chdir(expected_root)
    theirs = own_logger(lightning.loggers.Logger, facts, with_run)
    expected_log_dir, expected = files_after_fit(lightning.Trainer, BoringModel(), theirs, expected_root)
    monkeypatch.chdir(root)
    log_dir, found = files_after_fit(Trainer, Module(), own_logger(LightningLoggerBase, facts, with_run), root)
    assert len(found) == 1 and found == expected
    assert log_dir == (expected_log_dir or "root")  # Lightning has none without `save_dir`


def test_checkpoints_lie_beside_the_inner_folder_of_tensorboard(tmp_path: Path) -> None:
    for folder, trainer, module, kind in (
        ("lightning", lightning.Trainer, BoringModel(), lightning.loggers.TensorBoardLogger),
        ("camshaft", Trainer, Module(), TensorBoardLogger),
    ):
        logger = kind(str(tmp_path / folder / "logs"), name="mine", sub_dir="inner")
        log_dir, (checkpoint,) = files_after_fit(trainer, module, logger, tmp_path / folder)
        assert log_dir == "logs/mine/version_0/inner"
        assert Path(checkpoint).parent == Path("logs/mine/version_0/checkpoints")
