"""The commands, by themselves and as those of camshaft-trainer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jsonargparse")

from camshaft.forensics import commands
from camshaft.trainer.cli.command_line import main

CONFIG = """
seed_everything: 3
model: {class_path: spiking_nets.Net}
data: {class_path: spiking_nets.Data}
trainer:
  max_epochs: 10
  accelerator: cpu
  callbacks:
    - {class_path: RunLedger, init_args: {path: run}}
    - class_path: ModelCheckpoint
      init_args: {dirpath: kept, every_n_train_steps: 8, save_top_k: -1, filename: "{step}"}
"""

NETS = """
import math

import torch
from torch.utils.data import DataLoader, TensorDataset

from camshaft.trainer import DataModule, TrainingModule


class Net(TrainingModule):
    def __init__(self, is_same: bool = True) -> None:
        super().__init__()
        self.body, self.head = torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)
        self.is_same = is_same

    def training_step(self, batch, batch_idx):
        marker = 42
        loss = torch.nn.functional.mse_loss(self.head(self.body(batch[0])), batch[1])
        return loss if self.is_same else 2 * loss

    def on_before_optimizer_step(self, optimizer):
        if self.trainer.global_step == 20:  # so that step 22 finds it
            self.body.bias.data[0] = math.inf

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Data(DataModule):
    def train_dataloader(self):
        inputs = torch.arange(96.0).reshape(32, 3) / 32
        return DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), 8, shuffle=True)


def is_infinite(module):
    return not module.body.bias.isfinite().all()
"""

RUN = ["--config", "run.yaml"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run."""
    (tmp_path / "spiking_nets.py").write_text(NETS)
    (tmp_path / "run.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("spiking_nets", None)
    assert main(["fit", *RUN]) == 0
    return tmp_path


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.*") if path.suffix != ".pyc")


@pytest.mark.filterwarnings("ignore")
def test_the_commands_go_back_to_a_step(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = files_in(folder)
    capsys.readouterr()

    assert commands.replay([*RUN, "--to-step", "22", "--ckpt_path", "kept", "--inspect", "body"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("Step 22, epoch 5, batch 1: the loss is ")
    assert "body.bias is not finite before the step" in told and "head.weight" not in told

    between = ["--good", "kept/step=8.ckpt", "--bad", "kept/step=40.ckpt"]
    assert commands.bisect([*RUN, *between, "--when", "spiking_nets:is_infinite"]) == 0
    assert capsys.readouterr().out == "`is_infinite` holds after step 21, and does not after the step before.\n"

    assert commands.replay([*RUN, "--to-step", "5", "--model.is_same", "false"]) == 1
    told, errors = capsys.readouterr()
    assert "The run departs from its ledger 'run/ledger.jsonl' at step 1: loss: " in errors and told == ""
    for words in (["--to-step=99"], ["--to-step=5", "--ckpt_path=kept"], ["--to-step=5", "--ledger=nowhere"]):
        with pytest.raises(SystemExit) as caught:
            commands.replay([*RUN, *words])
        told, errors = capsys.readouterr()
        assert caught.value.code == 2 and told == "" and errors.startswith("error: `"), errors
        assert len(errors.splitlines()) == 1
    assert files_in(folder) == files


@pytest.mark.processes
@pytest.mark.parametrize("typed", ["p marker\nnext\np marker\np batch_idx\ncontinue\n", "quit\n"])
@pytest.mark.filterwarnings("ignore")
def test_the_debugger_stops_in_the_step(folder: Path, typed: str) -> None:
    command = [sys.executable, "-m", "camshaft.trainer", "replay", *RUN, "--to-step", "20", "--pdb"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    done = subprocess.run(
        command, input=typed, cwd=folder, env=environment, capture_output=True, text=True, timeout=240
    )
    told = done.stdout
    assert done.returncode == 0, done.stderr
    assert told.count("training_step()\n-> marker = 42\n") == 1, told
    if typed == "quit\n":
        assert "Step 20" not in told
    else:
        assert "NameError" in told and "(Pdb) 42\n(Pdb) 3\n" in told
        assert "Step 20, epoch 4, batch 3: the loss is " in told


@pytest.mark.processes
def test_both_programs_have_the_commands() -> None:
    def run(program: str, *words: str) -> Any:
        return subprocess.run([sys.executable, "-m", program, *words], capture_output=True, text=True, check=False)

    told = run("camshaft.forensics", "--help").stdout
    assert all(f"    {command} " in told for command in ("compare", "replay", "bisect"))
    assert "usage: python -m camshaft.forensics replay" in run("camshaft.forensics", "replay", "--help").stdout
    missing = run("camshaft.trainer", "compare", "nowhere", "nowhere")
    assert missing.returncode == 2 and missing.stderr.startswith("error: `run` must be a ledger")
