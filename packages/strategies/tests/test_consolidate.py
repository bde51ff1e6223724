from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from camshaft.strategies import read_checkpoint, write_checkpoint
from camshaft.strategies.__main__ import main
from camshaft.strategies.checkpoints.safetensors_files import read_safetensors


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_checkpoint({"state_dict": {"weight": torch.arange(4.0)}, "epoch": 3}, tmp_path / "a.ckpt")
    return tmp_path / "a.ckpt"


def test_a_file_becomes_a_file_with_the_same(file: Path, tmp_path: Path) -> None:
    assert main(["consolidate", str(file), str(tmp_path / "new" / "b.ckpt")]) == 0
    copied = read_checkpoint(tmp_path / "new" / "b.ckpt")
    assert copied["epoch"] == 3
    assert copied["state_dict"]["weight"].tolist() == [0, 1, 2, 3]


def test_weights_go_to_safetensors_and_back(file: Path, tmp_path: Path) -> None:
    assert main(["consolidate", str(file), str(tmp_path / "a.safetensors")]) == 0
    assert {name: value.tolist() for name, value in read_safetensors(tmp_path / "a.safetensors").items()} == {
        "weight": [0, 1, 2, 3]
    }
    assert main(["consolidate", str(tmp_path / "a.safetensors"), str(tmp_path / "b.ckpt")]) == 0
    assert list(read_checkpoint(tmp_path / "b.ckpt")) == ["state_dict"]


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("absent.ckpt", "b.ckpt", "`path` must be an existing checkpoint"),
        ("broken.ckpt", "b.ckpt", "which cannot be read"),
        ("empty", "b.ckpt", "which has no plain.ckpt"),
        ("broken.ckpt", "b.safetensors", "which cannot be read"),
        ("a.ckpt", "empty", "the target must be a file"),
        ("a.ckpt", "broken.ckpt/b.ckpt", "exists"),
        ("a.safetensors", "b.safetensors", "must be a checkpoint file where the source is a safetensors file"),
        ("absent.safetensors", "b.ckpt", "must be an existing safetensors file"),
    ],
)
def test_what_cannot_be_done_ends_with_status_two_and_one_line(
    source: str, target: str, message: str, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.ckpt").write_bytes(file.read_bytes()[:200])
    (tmp_path / "empty").mkdir()
    before = sorted(os.listdir(tmp_path))
    assert main(["consolidate", str(tmp_path / source), str(tmp_path / target)]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("error: ")
    assert told.err.count("\n") == 1
    assert message in told.err
    assert sorted(os.listdir(tmp_path)) == before


def test_the_command_line_explains_itself_and_prints_no_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "camshaft.strategies", "consolidate"]
    told = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout
    assert "usage: python -m camshaft.strategies consolidate" in told
    assert "consolidate run/last.ckpt model.safetensors" in told
    assert max(map(len, told.splitlines())) <= 110
    failed = subprocess.run([*command, "absent", "b.ckpt"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert failed.returncode == 2
    assert "Traceback" not in failed.stderr
    assert failed.stderr.startswith("error: `path` must be an existing checkpoint")
