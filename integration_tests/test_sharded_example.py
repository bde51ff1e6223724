"""The example of sharded training runs as its first lines say: on two processes, then on one, then on two again."""

from __future__ import annotations

import re
from pathlib import Path

from launching import Launcher, run_ranks

EXAMPLE = Path(__file__).parent.parent / "examples/sharded.py"


def run(num_processes: int, launcher: Launcher, folder: Path, *arguments: str) -> tuple[str, float]:
    """What the example says in the end: how many processes and updates, and the validation loss."""
    common = ["--output", str(folder), "--num-characters", "40000"]
    outcome = run_ranks(EXAMPLE, num_processes, launcher=launcher, args=[*common, *arguments], timeout=600)
    output = outcome.succeeded().output
    found = re.search(r"(\d process\(es\), \d+ updates): validation loss (\d\.\d+)", output)
    assert found is not None, output
    return found[1], float(found[2])


def test_what_two_processes_saved_one_goes_on_with_and_two_again(tmp_path: Path) -> None:
    first, first_loss = run(2, "torchrun", tmp_path, "--max-epochs", "1")
    assert first == "2 process(es), 18 updates"
    assert (tmp_path / "transformer.ckpt").is_dir()
    second, second_loss = run(1, "bare", tmp_path, "--max-epochs", "2", "--resume")
    assert second == "1 process(es), 54 updates"
    assert (tmp_path / "transformer.ckpt").is_file()
    third, third_loss = run(2, "forked", tmp_path, "--max-epochs", "3", "--resume")
    assert third == "2 process(es), 72 updates"
    assert first_loss > second_loss > third_loss
