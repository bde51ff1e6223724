from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from camshaft.compat.script import USAGE, main

OLD_FILES = Path(__file__).parent / "old_files"
SPAWNING = """
import multiprocessing

import torch
from pytorch_lightning.utilities import AttributeDict


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, idx):
        return AttributeDict(value=torch.tensor(float(idx))).value


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    print(float(sum(batch.sum() for batch in torch.utils.data.DataLoader(Data(), num_workers=1))))
"""
TELLING = """
import sys

import pytorch_lightning as pl

from {package}neighbour import VALUE

print(__name__, sys.argv[1:], VALUE, pl.Trainer.__module__)
if "fail" in sys.argv:
    raise SystemExit(3)
"""


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.processes
def test_a_script_of_2020_trains_without_touching_a_line(tmp_path: Path) -> None:
    pytest.importorskip("torchmetrics")
    pytest.importorskip("tensorboard")
    script = str(OLD_FILES / "classifier_2020.py")
    result = run("-m", "camshaft.compat", "run", script, "--out", str(tmp_path), "--lr", "0.1", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    accuracies = [float(line.split()[1]) for line in result.stdout.splitlines() if line.startswith("val_acc")]
    assert len(accuracies) == 3  # the sanity check, and two epochs
    assert accuracies[-1] > 0.8
    assert "steps 8 best epoch=1-val_loss=" in result.stdout
    assert len(list(tmp_path.glob("epoch=*.ckpt"))) == 2
    assert list(tmp_path.glob("tb/version_0/events.out.tfevents*"))


@pytest.mark.processes
def test_a_script_of_2022_trains_under_names_that_a_line_installs(tmp_path: Path) -> None:
    pytest.importorskip("torchmetrics")
    starter = tmp_path / "start.py"
    starter.write_text(
        "import runpy\n"
        "from camshaft.compat import install_aliases\n"
        "install_aliases()\n"
        f"runpy.run_path({str(OLD_FILES / 'autoencoder_2022.py')!r}, run_name='__main__')\n"
    )
    result = run(str(starter), cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "stage RunningStage.TRAINING True" in result.stdout
    assert "finished 12 steps" in result.stdout
    assert list(tmp_path.glob("lightning_logs/version_0/metrics.csv"))


@pytest.mark.processes
def test_processes_of_the_trainer_run_the_script_likewise(tmp_path: Path) -> None:
    result = run("-m", "camshaft.compat", "run", str(OLD_FILES / "two_processes_2021.py"), cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    # the processes' lines may run into each other
    assert sorted(re.findall(r"rank \d of 2", result.stdout)) == ["rank 0 of 2", "rank 1 of 2"]


@pytest.mark.processes
def test_processes_that_are_started_afresh_have_the_names(tmp_path: Path) -> None:
    (tmp_path / "spawning.py").write_text(SPAWNING)
    result = run("-m", "camshaft.compat", "run", "spawning.py", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "6.0"


@pytest.mark.processes
def test_a_script_sees_its_own_arguments_folder_and_exit_code(tmp_path: Path) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "telling.py").write_text(TELLING.format(package=""))
    (folder / "neighbour.py").write_text("VALUE = 5\n")
    result = run("-m", "camshaft.compat", "run", "code/telling.py", "--gpus", "fail", cwd=tmp_path)
    assert result.stdout.strip() == "__main__ ['--gpus', 'fail'] 5 camshaft.compat.trainer", result.stderr
    assert result.returncode == 3


@pytest.mark.processes
def test_a_module_runs_with_its_package(tmp_path: Path) -> None:
    package = tmp_path / "research"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(TELLING.format(package="."))
    (package / "neighbour.py").write_text("VALUE = 6\n")
    result = run("-m", "camshaft.compat", "run", "-m", "research", "word", cwd=tmp_path)
    assert result.stdout.strip() == "__main__ ['word'] 6 camshaft.compat.trainer", result.stderr


@pytest.mark.parametrize("words", [[], ["-m"], ["--seed", "1"], ["no_such_file.py"]])
def test_without_something_to_run_it_says_how(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert capsys.readouterr().err.startswith(USAGE)


def test_it_says_how_when_it_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert capsys.readouterr().out.strip() == USAGE
