from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jsonargparse")

from camshaft.hooks_core import Callback
from camshaft.trainer import added_commands
from camshaft.trainer.cli.class_types import CallbackClass
from camshaft.trainer.cli.command_line import main

NETS = '''
import torch
from torch.utils.data import DataLoader, TensorDataset

from camshaft.callbacks import CSVLogger
from camshaft.hooks_core import Callback
from camshaft.trainer import DataModule, TrainingModule


class Net(TrainingModule):
    """A line.

    Args:
        lr: Learning rate.
    """

    def __init__(self, lr: float = 0.1, num_layers: int = 1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(num_layers)), torch.nn.Linear(3, 1))

    def training_step(self, batch, batch_idx):
        inputs, targets = batch
        loss = torch.nn.functional.mse_loss(self.layers(inputs), targets)
        self.log("loss", loss, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.training_step(batch, batch_idx))

    test_step = validation_step

    def predict_step(self, batch, batch_idx):
        return self.layers(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)


class Data(DataModule):
    def __init__(self, size: int = 32, batch_size: int = 8) -> None:
        super().__init__()
        inputs = torch.arange(3.0 * size).reshape(size, 3) / size
        self.data, self.batch_size = TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size

    def train_dataloader(self):
        return DataLoader(self.data, self.batch_size)

    val_dataloader = test_dataloader = predict_dataloader = train_dataloader


class Report(Callback):
    def __init__(self, path: str = "report.txt") -> None:
        self.path = path

    def teardown(self, trainer, module, stage):
        with open(self.path, "a") as file:
            epochs = trainer.current_epoch
            print(stage, epochs, type(module).__name__, module.hparams.lr, module.hparams.num_layers, file=file)

    def on_predict_batch_end(self, trainer, module, outputs, batch, batch_idx):
        with open(self.path, "a") as file:
            print("batch", tuple(outputs.shape), file=file)
'''

RUN = """
seed_everything: 3
trainer:
  max_epochs: 1
  enable_progress_bar: false
  callbacks:
  - class_path: nets.Report
  - class_path: camshaft.callbacks.EarlyStopping
    init_args:
      monitor: val_loss
model:
  class_path: nets.Net
  init_args:
    num_layers: 2
data:
  class_path: nets.Data
  init_args:
    batch_size: 16
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "nets.py").write_text(NETS)
    (tmp_path / "run.yaml").write_text(RUN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "nets", raising=False)
    return tmp_path


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    return capsys.readouterr().err


def test_words_go_before_the_file_and_the_file_before_defaults(project: Path) -> None:
    words = "fit --config run.yaml --model.lr 0.05 --trainer.max_epochs=3"
    assert main(words.split()) == 0
    assert (project / "report.txt").read_text() == "fit 3 Net 0.05 2\n"


def test_a_preflight_runs_what_a_file_for_a_cluster_describes(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = ["--trainer.accelerator", "gpu", "--trainer.devices", "8", "--trainer.num_nodes", "2"]
    words = ["--config", "run.yaml", *cluster, "--trainer.strategy", "sharded", "--world-size", "16"]
    assert main(["preflight", *words, "--json=needs.json"]) == 0
    page = capsys.readouterr().out
    assert "ShardedStrategy, 16 ranks on 2 machine(s), NVIDIA H100" in page and "not run" not in page
    assert '"fits": true' in (project / "needs.json").read_text()
    assert not (project / "camshaft_logs").exists()
    error = refusal(capsys, "preflight", *words[:-1], "0")
    assert "`world_size` must be a positive int, but got 0 (int) in preflight" in error


@pytest.mark.processes
@pytest.mark.usefixtures("forked_python")
def test_it_is_a_module_that_is_run(project: Path) -> None:
    words = "fit --model nets:Net --data nets:Data --trainer.max_epochs 2 --trainer.callbacks+=nets.Report"
    command = [sys.executable, "-m", "camshaft.trainer", *words.split()]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "Epoch 1/1" in result.stdout
    assert (project / "report.txt").read_text() == "fit 2 Net 0.1 1\n"


def test_what_a_run_was_started_with_is_beside_its_logs_and_starts_it_again(project: Path) -> None:
    main(["fit", "--config", "run.yaml"])
    saved = project / "camshaft_logs" / "version_0" / "config.yaml"
    assert "num_layers: 2" in saved.read_text()
    main(["fit", "--config", str(saved), "--trainer.max_epochs", "2"])
    assert (project / "report.txt").read_text() == "fit 1 Net 0.1 2\nfit 2 Net 0.1 2\n"


def test_a_run_that_goes_on_in_the_same_folder_keeps_what_was_there(project: Path) -> None:
    logger = ["--trainer.logger", "camshaft.callbacks.CSVLogger", "--trainer.logger.save_dir=logs"]
    logger.append("--trainer.logger.version=0")
    for max_epochs in ("1", "1", "2"):
        main(["fit", "--config", "run.yaml", *logger, "--trainer.max_epochs", max_epochs])
    folder = project / "logs" / "camshaft_logs" / "version_0"
    assert sorted(path.name for path in folder.glob("*.yaml")) == ["config.yaml", "config_1.yaml"]
    assert "max_epochs: 2" in (folder / "config_1.yaml").read_text()


def test_the_seed_gives_the_same_weights(project: Path) -> None:
    def losses(*words: str) -> str:
        main(["fit", "--config", "run.yaml", *words])
        return max(project.glob("camshaft_logs/*/metrics.csv"), key=lambda path: path.stat().st_mtime_ns).read_text()

    assert losses() == losses()
    assert losses() != losses("--seed_everything", "4")


@pytest.mark.parametrize("verb", ["validate", "test"])
def test_a_checkpoint_is_evaluated(project: Path, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["fit", "--config", "run.yaml"])
    (path,) = project.glob("camshaft_logs/version_0/checkpoints/*.ckpt")
    capsys.readouterr()
    main([verb, "--config", "run.yaml", "--ckpt_path", str(path)])
    assert "val_loss" in capsys.readouterr().out
    main([verb, "--config", "run.yaml", "--ckpt_path", str(path), "--verbose", "false"])
    assert "val_loss" not in capsys.readouterr().out


def test_predictions_reach_callbacks(project: Path) -> None:
    main(["predict", "--config", "run.yaml"])
    assert (project / "report.txt").read_text().splitlines()[:2] == ["batch (16, 1)", "batch (16, 1)"]


def test_print_config_writes_what_config_reads(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["fit", "--model", "nets:Net", "--data=nets:Data", "--model.lr", "0.5", "--print_config"])
    assert caught.value.code == 0
    (project / "printed.yaml").write_text(capsys.readouterr().out)
    main(
        [
            "fit",
            "--config",
            "printed.yaml",
            "--trainer.max_epochs",
            "1",
            "--trainer.callbacks",
            "[{class_path: nets.Report}]",
        ]
    )
    assert (project / "report.txt").read_text() == "fit 1 Net 0.5 1\n"


@pytest.mark.parametrize(
    ("words", "told", "meant"),
    [
        ("--trainer.max_epoch 3", "--trainer.max_epoch is not an option", "trainer.max_epochs"),
        ("--trainr.max_epochs=3", "--trainr.max_epochs is not an option", "trainer.max_epochs"),
        ("--model.num_layer 3", "--model.num_layer is not an option", "num_layers"),
        ("--data.batchsize 3", "--data.batchsize is not an option", "batch_size"),
        ("--trainer.callbacks+=nets.Reprt", "got 'nets.Reprt'", "Report"),
        (
            "--trainer.callbacks+=nets.Report --trainer.callbacks.pth=x",
            "--trainer.callbacks.pth is not an option",
            "path",
        ),
        ("--model nets:Nett", "got 'nets.Nett'", "Net"),
    ],
)
def test_an_unknown_word_is_refused_with_the_closest(
    words: str, told: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refusal(capsys, "fit", "--config", "run.yaml", *words.split())
    assert f"{told}. Did you mean '{meant}'?" in message


@pytest.mark.parametrize(
    ("before", "after", "meant"),
    [
        ("max_epochs", "max_epoch", "trainer.max_epochs"),
        ("num_layers", "num_layer", "num_layers"),
        ("monitor", "monitr", "monitor"),
        ("trainer:", "trainr:", "trainer.max_epochs"),
    ],
)
def test_an_unknown_key_of_a_file_is_refused_with_the_closest(
    project: Path, before: str, after: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "run.yaml").write_text(RUN.replace(before, after))
    assert f"Did you mean '{meant}'?" in refusal(capsys, "fit", "--config", "run.yaml")


def test_what_the_trainer_refuses_is_told_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    message = refusal(capsys, "fit", "--config", "run.yaml", "--trainer.max_epochs=-3")
    assert message.startswith("error: --trainer.max_epochs: `max_epochs` must be at least -1, but got -3 (int)")


def test_an_unknown_command_is_refused_with_the_closest_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    told = r"error: `command` must be one of fit, .*, preflight, .*plugins.* got 'plugin' .* Did you mean 'plugins'\?\n"
    assert re.fullmatch(told, refusal(capsys, "plugin"))


def test_a_verb_and_a_module_are_required(capsys: pytest.CaptureFixture[str]) -> None:
    assert "{fit,validate,test,predict,preflight}, but it was not provided" in refusal(capsys)
    assert "model" in refusal(capsys, "fit")


@pytest.mark.parametrize(
    ("module", "missing"),
    [("jsonargparse", "jsonargparse"), ("docstring_parser", "docstring-parser"), ("yaml", "PyYAML")],
)
def test_without_its_extra_it_names_what_is_missing_in_a_line(module: str, missing: str) -> None:
    script = (
        f"import runpy, sys; sys.modules[{module!r}] = None; sys.argv[1:] = ['fit', '--help']; "
        "runpy.run_module('camshaft.trainer', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == f"error: The command line needs {missing}. Install the extra: camshaft-trainer[cli].\n"


PROGRAM = """
import importlib.metadata, runpy, sys
from importlib.metadata import EntryPoint
added = [EntryPoint("count", "builtins:len", "camshaft.trainer.commands")]
importlib.metadata.entry_points = lambda group: added if group == "camshaft.trainer.commands" else []
runpy.run_module("camshaft.trainer", run_name="__main__")
"""


def test_other_distributions_add_commands_and_one_that_is_missing_is_named() -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=False)

    assert run("count", "--one", "two").returncode == 2  # the function's result, for these words
    missing = run("replay", "folder")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert missing.stderr == (
        "error: `replay` is a command of camshaft-forensics, which is not installed. Run `pip install "
        "camshaft-forensics`.\n"
    )


def test_classes_of_other_distributions_have_short_names(monkeypatch: pytest.MonkeyPatch) -> None:
    added = [EntryPoint("test", "test_command_line", "camshaft.trainer.classes")]
    monkeypatch.setattr(added_commands, "registered", lambda group: [one for one in added if one.group == group])
    monkeypatch.setattr(sys.modules[__name__], "__all__", ["Unusual"], raising=False)
    assert CallbackClass.named_classes()["Unusual"] == [Unusual]


class Unusual(Callback):
    """A callback of another distribution."""


@pytest.mark.parametrize(
    ("words", "setting"),
    [
        ([], None),
        (["--trainer.compile", "false"], False),
        (["--trainer.compile", "true"], True),
        (['--trainer.compile={"backend":"aot_eager"}'], {"backend": "aot_eager"}),
        (["--trainer.compile.backend", "aot_eager"], {"backend": "aot_eager"}),
    ],
)
def test_it_takes_compile(words: list[str], setting: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("camshaft.trainer.Trainer.fit", lambda trainer, *_, **__: seen.append(trainer.strategy.compile))
    assert main(["fit", "--config", "run.yaml", *words]) == 0
    assert seen == [False if setting is None else setting]


def test_it_refuses_what_compile_does_not_take(capsys: pytest.CaptureFixture[str]) -> None:
    message = refusal(capsys, "fit", "--config", "run.yaml", "--trainer.compile", "3")
    assert "--trainer.compile must be" in message
    message = refusal(capsys, "fit", "--config", "run.yaml", "--trainer.compile.bakend", "eager")
    assert "unexpected keyword argument 'bakend'" in message
