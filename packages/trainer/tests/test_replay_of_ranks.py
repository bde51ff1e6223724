"""Replays and bisections in two real processes, and on the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from launching import run_ranks

pytestmark = pytest.mark.processes

SCENES = Path(__file__).with_name("replay_scenes.py")


@pytest.mark.parametrize("strategy", ["ddp", "sharded"])
def test_two_ranks_replay_and_bisect_and_depart_together(strategy: str, tmp_path: Path) -> None:
    output = run_ranks(SCENES, 2, args=[tmp_path, strategy]).succeeded().output
    for rank in range(2):
        assert f"rank {rank}: The run departs from its ledger" in output and "at step 1: samples: " in output, output


CONFIG = """
seed_everything: 3
model: {class_path: nets.Net}
data: {class_path: nets.Data}
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


def camshaft(folder: Path, *words: object, typed: str = "") -> tuple[int, str, str]:
    command = [sys.executable, "-m", "camshaft.trainer", *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    settings = {"env": environment, "cwd": folder, "capture_output": True, "text": True, "timeout": 240}
    done = subprocess.run(command, input=typed, **settings)  # type: ignore[call-overload]
    return done.returncode, done.stdout, done.stderr


def test_the_command_line_goes_back_to_a_step(tmp_path: Path) -> None:
    pytest.importorskip("jsonargparse")
    (tmp_path / "nets.py").write_text(NETS)
    (tmp_path / "run.yaml").write_text(CONFIG)
    config = ("--config", "run.yaml")
    assert camshaft(tmp_path, "fit", *config)[0] == 0
    files = sorted(tmp_path.rglob("*.*"))

    status, told, _ = camshaft(tmp_path, "replay", *config, "--to-step", 22, "--ckpt_path", "kept", "--inspect", "body")
    assert status == 0 and told.startswith("Step 22, epoch 5, batch 1: the loss is ")
    assert "body.bias is not finite before the step" in told and "head.weight" not in told

    typed = "p marker\nnext\np marker\np batch_idx\ncontinue\n"
    status, told, _ = camshaft(tmp_path, "replay", *config, "--to-step", 20, "--pdb", typed=typed)
    assert status == 0 and "training_step()\n-> marker = 42\n" in told, told
    assert "NameError" in told and "(Pdb) 42\n(Pdb) 3\n" in told and told.count("-> marker = 42") == 1
    assert "Step 20, epoch 4, batch 3: the loss is " in told
    status, told, _ = camshaft(tmp_path, "replay", *config, "--to-step", 20, "--pdb", typed="quit\n")
    assert status == 0 and "Step 20" not in told

    words = ("--good", "kept/step=8.ckpt", "--bad", "kept/step=40.ckpt", "--when", "nets:is_infinite")
    status, told, _ = camshaft(tmp_path, "bisect", *config, *words)
    assert (status, told) == (0, "`is_infinite` holds after step 21, and does not after the step before.\n")

    status, told, errors = camshaft(tmp_path, "replay", *config, "--to-step", 5, "--model.is_same", "false")
    assert status == 1 and "The run departs from its ledger 'run/ledger.jsonl' at step 1: loss: " in errors, errors
    for words in (["--to-step", "99"], ["--to-step", "5", "--ckpt_path", "kept"], ["--to-step", "5", "--ledger", "no"]):
        status, told, errors = camshaft(tmp_path, "replay", *config, *words)
        assert status == 2 and told == "" and len(errors.splitlines()) == 1 and errors.startswith("error: `"), errors
    assert sorted(path for path in tmp_path.rglob("*.*") if path.suffix != ".pyc") == files
