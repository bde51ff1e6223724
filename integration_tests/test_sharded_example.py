"""The example of sharded training runs as its first lines say: on two processes, then on one, then on two again."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parent.parent / "examples/sharded.py"


def run(launcher: list[str], folder: Path, *arguments: str) -> tuple[str, float]:
    """What the example says in the end: how many processes and updates, and the validation loss."""
    command = [
        sys.executable,
        *launcher,
        str(EXAMPLE),
        "--output",
        str(folder),
        "--num-characters",
        "40000",
        *arguments,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"(\d process\(es\), \d+ updates): validation loss (\d\.\d+)", done.stdout)
    assert found is not None, done.stdout
    return found[1], float(found[2])


def test_what_two_processes_saved_one_goes_on_with_and_two_again(tmp_path: Path) -> None:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    first, first_loss = run(torchrun, tmp_path, "--max-epochs", "1")
    assert first == "2 process(es), 18 updates"
    assert (tmp_path / "transformer.ckpt").is_dir()
    second, second_loss = run([], tmp_path, "--max-epochs", "2", "--resume")
    assert second == "1 process(es), 54 updates"
    assert (tmp_path / "transformer.ckpt").is_file()
    third, third_loss = run(torchrun, tmp_path, "--max-epochs", "3", "--resume")
    assert third == "2 process(es), 72 updates"
    assert first_loss > second_loss > third_loss
