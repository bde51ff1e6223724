"""What is left, and remembered, when a checkpoint cannot be written: in a process whose files may not grow."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import full_disk_training
import pytest
from launching import clean_environment

from camshaft.strategies import read_checkpoint

pytestmark = [
    pytest.mark.processes,
    pytest.mark.usefixtures("forked_python"),
    pytest.mark.skipif(sys.platform == "win32", reason="this system limits no file's size"),
]


def train(folder: Path, kind: str, epoch: int, limit: int, options: dict[str, Any]) -> dict[str, Any]:
    script = full_disk_training.__file__
    arguments = [str(folder), kind, str(epoch), str(limit), json.dumps(options)]
    command = [sys.executable, script, *arguments]
    child = subprocess.run(command, capture_output=True, text=True, timeout=120, env=clean_environment())
    assert child.stdout, child.stderr
    told: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return told


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(
    ("epoch", "limit", "options", "files"),
    [
        (2, 3000, {"save_top_k": 1, "save_last": True}, ["epoch=1.ckpt", "last.ckpt"]),
        (3, 0, {"save_top_k": 2, "save_last": "link"}, ["epoch=1.ckpt", "epoch=2.ckpt", "last.ckpt"]),
    ],
    ids=["best and last", "two and a link"],
)
def test_a_checkpoint_that_cannot_be_written_leaves_what_was_there_and_is_not_remembered(
    tmp_path: Path, kind: str, epoch: int, limit: int, options: dict[str, Any], files: list[str]
) -> None:
    told = train(tmp_path, kind, epoch, limit, options)
    kept = tmp_path / "kept"
    assert told["raised"] == {"errno": errno.EFBIG, "filename": str(kept / f"epoch={epoch}.ckpt")}
    assert told["files"] == [str(kept / name) for name in files]
    for path in told["files"]:
        read_checkpoint(path)
    memory = told["memory"]
    scores = {str(kept / name): -float(name[6]) for name in files if name.startswith("epoch")}
    assert memory["kept"] == scores
    best = min(scores, key=scores.__getitem__) if scores else ""
    assert (memory["best"], memory["best score"]) == (best, scores.get(best))
    assert memory["last"] == (str(kept / "last.ckpt") if "last.ckpt" in files else "")
    assert memory["kth"] in ("", *scores)
    if memory["last"]:
        assert read_checkpoint(memory["last"])["epoch"] == epoch - 1
