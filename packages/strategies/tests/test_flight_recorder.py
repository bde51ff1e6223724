"""The dumps of the last collectives, for recorders that this machine does not have."""

from __future__ import annotations

import pickle
import time
from pathlib import Path
from typing import Any

import pytest
from torch._C import _distributed_c10d

from camshaft.strategies.launch import flight_recorder
from camshaft.strategies.launch.flight_recorder import dump_collectives, nccl_dump

TRACE = {"version": "2.10", "entries": [{"record_id": 0}], "pg_config": {"0": {"name": "0", "ranks": "[0]"}}}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(flight_recorder, "_get_all_pg_configs", lambda: [{"pg_name": "0"}])
    monkeypatch.setattr(flight_recorder.dist, "get_backend_config", lambda: "sim:made_up")
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", str(tmp_path / "rank_"))
    return tmp_path


def recording(monkeypatch: pytest.MonkeyPatch, name: str, trace: dict[str, Any]) -> None:
    monkeypatch.setattr(_distributed_c10d, name, lambda: pickle.dumps(trace), raising=False)


def test_collectives_of_nccl_are_dumped_to_the_files_of_its_own_thread(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording(monkeypatch, "_dump_fr_trace", {"pg_config": {}})
    recording(monkeypatch, "_dump_nccl_trace", TRACE)
    assert dump_collectives(3) == (
        f"The last collectives of each rank are in {folder}/rank_<rank>. Read them with "
        f"`torchfrtrace --allow-incomplete-ranks --prefix rank_ {folder}`."
    )
    assert {path.name: pickle.loads(path.read_bytes()) for path in folder.iterdir()} == {"rank_3": TRACE}


@pytest.mark.parametrize("has_recorder", [True, False])
def test_a_backend_whose_collectives_torch_does_not_record_is_named(
    has_recorder: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording(monkeypatch, "_dump_fr_trace", {"pg_config": {}})
    if not has_recorder:  # torch before 2.10
        monkeypatch.delattr(_distributed_c10d, "_dump_fr_trace")
    assert dump_collectives(0).startswith("Torch recorded no collectives of sim:made_up to dump.")
    assert not list(folder.iterdir())


def test_a_folder_that_cannot_be_written_does_not_hide_the_failure(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording(monkeypatch, "_dump_fr_trace", TRACE)
    (folder / "file").touch()
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", str(folder / "file" / "rank_"))
    assert dump_collectives(0).startswith(f"The last collectives could not be written to {folder}/file: ")


def test_a_process_that_nccl_ended_is_said_to_have_dumped_if_it_has_in_this_run(folder: Path) -> None:
    now = time.time()
    assert nccl_dump(1, now) == ""
    (folder / "rank_1").touch()
    assert f"`torchfrtrace --allow-incomplete-ranks --prefix rank_ {folder}`" in nccl_dump(1, now - 10)
    assert nccl_dump(1, now + 10) == ""  # of an earlier run
