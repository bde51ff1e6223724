from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

pytest.importorskip("jsonargparse")

SCRIPT = """
import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader


class Net(LightningModule):
    def __init__(self, width: int = 2):
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(width, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).sum()


class Data(LightningDataModule):
    def train_dataloader(self):
        return DataLoader(torch.ones(4, 2))


class OwnCLI(LightningCLI):
    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_lightning_class_args(ModelCheckpoint, "saving")
        parser.set_defaults({"saving.monitor": None, "saving.save_last": True})

    def after_fit(self):
        assert type(self.trainer) is Trainer
        assert type(self.trainer.logger) is CSVLogger
        assert self.trainer.max_epochs == 2
        assert self.trainer.checkpoint_callback.save_last
        assert any(isinstance(one, SaveConfigCallback) for one in self.trainer.callbacks)
        print("optimizer", type(self.trainer.optimizers[0]).__name__, self.trainer.optimizers[0].defaults["lr"])


if __name__ == "__main__":
    OwnCLI(Net, subclass_mode_model=True, parser_kwargs={"default_env": True})
"""

RUN = """
trainer:
  enable_progress_bar: false
  strategy: auto
  logger:
    class_path: lightning.pytorch.loggers.CSVLogger
    init_args: {save_dir: logs}
model: {class_path: Net}
data: Data
optimizer: {class_path: SGD, init_args: {lr: 0.5}}
"""


@pytest.mark.processes
def test_a_script_with_a_command_line_runs_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "run.yaml").write_text(RUN)
    monkeypatch.setenv("PL_FIT__TRAINER__MAX_EPOCHS", "2")
    command = [sys.executable, "-m", "camshaft.compat", "run", "train.py", "fit", "--config", "run.yaml"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=180)
    assert result.returncode == 0, result.stderr
    assert "optimizer SGD 0.5" in result.stdout
    assert "max_epochs: 2" in (tmp_path / "logs" / "lightning_logs" / "version_0" / "config.yaml").read_text()
    again = [*command, "--trainer.logger.init_args.version", "0"]
    assert "overwriting" in subprocess.run(again, capture_output=True, text=True, cwd=tmp_path, timeout=180).stderr


def test_short_names_mean_the_classes_with_the_arguments_of_earlier_releases() -> None:
    from camshaft.compat.names.trainer import callbacks, loggers
    from camshaft.compat.names.trainer.command_line import LightningCLI
    from camshaft.compat.trainer import Trainer

    quiet = {"enable_progress_bar": False}
    words = ["--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=x", "--trainer.logger=CSVLogger"]
    words += ["--trainer.logger.save_dir=."]
    cli = LightningCLI(args=["--model=TrainingModule", *words], run=False, trainer_defaults=quiet)
    assert type(cli.trainer) is Trainer
    assert type(cli.trainer.logger) is loggers.CSVLogger
    assert any(type(one) is callbacks.EarlyStopping for one in cli.trainer.callbacks)


def test_files_that_lightnings_command_line_wrote_are_read(tmp_path: Path) -> None:
    from camshaft.compat.arguments.today import ORDER
    from camshaft.compat.names.trainer.command_line import LightningCLI
    from camshaft.compat.trainer import Trainer

    defaults = {name: one.default for name, one in inspect.signature(Trainer.__init__).parameters.items()}
    settings = {name: defaults[name] for name in ORDER} | {"enable_progress_bar": False, "max_epochs": 3}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"trainer": settings, "model": "TrainingModule"}))
    cli = LightningCLI(args=["--config", str(tmp_path / "config.yaml")], run=False)
    assert cli.trainer.max_epochs == 3
    assert set(ORDER) <= set(cli.config.trainer.as_dict())


def test_a_subclass_may_make_the_objects_as_lightnings_does(tmp_path: Path) -> None:
    from camshaft.callbacks import Timer
    from camshaft.compat import TrainingModule
    from camshaft.compat.names.trainer.command_line import LightningCLI

    class Own(LightningCLI):
        def instantiate_classes(self) -> None:
            assert self._model_class is Net
            self.config_init = self.parser.instantiate_classes(self.config)
            self.datamodule = self._get(self.config_init, "data")
            self.model = self._get(self.config_init, "model")
            self._add_configure_optimizers_method_to_model(self.subcommand)
            self.trainer = self.instantiate_trainer()

        def instantiate_trainer(self, **kwargs: object) -> object:
            callbacks = [self._get(self.config_init, key) for key in self._parser(self.subcommand).callback_keys]
            config = {**self._get(self.config_init, "trainer", default={}), **kwargs}
            return self._instantiate_trainer(config, [*callbacks, Timer()])

        def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, object]:
            seen.update(super()._prepare_subcommand_kwargs(subcommand))
            return seen

        def fit(self, **arguments: object) -> None:
            assert arguments == seen

    class Net(TrainingModule):
        def __init__(self, width: int = 2) -> None:
            super().__init__()
            self.save_hyperparameters()

    seen: dict[str, object] = {}
    words = ["fit", "--model.width=3", f"--trainer.default_root_dir={tmp_path}", "--trainer.logger=false"]
    cli = Own(Net, args=words, save_config_callback=None)
    assert any(isinstance(one, Timer) for one in cli.trainer.callbacks)
    assert seen["model"] is cli.model and cli.model.hparams.width == 3
    assert cli.config_dump["model"] == {"width": 3}
