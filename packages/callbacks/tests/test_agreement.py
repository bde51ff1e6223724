from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from recording_trainer import OneProcess

from camshaft.callbacks.monitoring import from_rank_zero

Results = tuple[Path, list[dict[str, dict[str, Any]]]]


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What `two_ranks.py` found, and where it wrote."""
    folder = tmp_path_factory.mktemp("two_ranks")
    here = Path(__file__).parent
    processes = [
        subprocess.Popen(
            [sys.executable, here / "two_ranks.py", str(folder), str(rank)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(here), *sys.path])},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    errors = [process.communicate(timeout=240)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(errors)
    return folder, [json.loads((folder / f"result_{rank}").read_text()) for rank in range(2)]


def test_a_single_process_agrees_with_itself_without_asking_anybody() -> None:
    value = object()
    assert from_rank_zero(OneProcess(), lambda: value) is value  # type: ignore[arg-type]


def test_ranks_with_different_metrics_save_and_stop_as_rank_zero_decides(two_ranks: Results) -> None:
    folder, (first, second) = two_ranks
    assert first["differing_metrics"] == second["differing_metrics"]
    found, wanted = first["differing_metrics"], folder / "wanted_by_0"
    assert (found["best"], found["score"], found["stop"]) == (str(wanted / "step=2.ckpt"), 1.0, True)
    assert {one.name for one in wanted.iterdir()} == {"step=2.ckpt", "last.ckpt"}
    assert not (folder / "wanted_by_1").exists()


def test_a_metric_that_only_rank_zero_has_counts_for_all(two_ranks: Results) -> None:
    folder, (first, second) = two_ranks
    assert first["missing_on_one"] == second["missing_on_one"]
    assert first["missing_on_one"]["best_0"] == str(folder / "owner_0" / "step=1.ckpt")
    assert first["missing_on_one"]["score_0"] == 1.0


def test_a_metric_that_rank_zero_lacks_is_the_same_error_on_all(two_ranks: Results) -> None:
    _, (first, _) = two_ranks
    metric, message = first["missing_on_one"]["error_1"]
    assert metric == "loss"
    assert message.startswith("`monitor` must be the name of a logged metric, but got 'loss' (str) in ModelCheckpoint")
    assert first["missing_on_one"]["best_1"] == ""


def test_ranks_are_due_at_the_same_times_though_one_has_no_validation_batch(two_ranks: Results) -> None:
    folder, (first, second) = two_ranks
    assert first["one_without_validation"] == second["one_without_validation"]
    assert first["one_without_validation"] == {"saved": [str(folder / "half" / "step=1.ckpt")], "score": 1.0}


def test_a_resumed_callback_knows_the_files_that_rank_zero_sees(two_ranks: Results) -> None:
    folder, (first, second) = two_ranks
    assert first["going_on"]["best"] == str(folder / "wanted_by_0" / "step=2.ckpt")
    assert first["going_on"]["last"] == second["going_on"]["last"] == str(folder / "wanted_by_0" / "last.ckpt")


def test_every_rank_raises_what_rank_zero_raised(two_ranks: Results) -> None:
    _, (first, second) = two_ranks
    assert first["errors"] == {
        "InvalidArgumentError": ["InvalidArgumentError", "`a` must be b, but got 1 (int) in C. Do."],
        "LocalError": ["LocalError", "only here"],
        "FileNotFoundError": ["FileNotFoundError", "[Errno 2] no such file"],
    }
    assert second["errors"] == first["errors"] | {"LocalError": ["RuntimeError", "Rank 0 raised LocalError: only here"]}
