from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from camshaft.strategies.launch.failures import (
    error_text,
    may_follow_from_another,
    print_message,
    write_error_file,
)


def test_an_error_is_told_with_its_notes_and_without_its_traceback() -> None:
    error = ValueError("boom")
    error.add_note("Raised in hook `training_step`.")
    assert error_text(error) == "ValueError: boom\nRaised in hook `training_step`."


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer"), True),
        (dist.DistNetworkError("broken pipe"), True),
        (RuntimeError("shapes do not match"), False),
        (ValueError("gloo"), False),
    ],
)
def test_errors_of_the_backend_may_follow_from_what_another_process_did(error: Exception, expected: bool) -> None:
    assert may_follow_from_another(error) is expected


def test_the_elastic_agent_reads_what_is_written_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    write_error_file("ValueError: boom", "Traceback: ...", 12345)
    failure = ProcessFailure(local_rank=0, pid=1, exitcode=1, error_file=str(path))
    assert failure.timestamp == 12345
    extra = {"py_callstack": "Traceback: ...", "timestamp": "12345"}
    assert failure.message == {"message": "ValueError: boom", "extraInfo": extra}


def test_without_an_agent_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    monkeypatch.chdir(tmp_path)
    write_error_file("ValueError: boom", "", 1)
    assert not list(tmp_path.iterdir())


def test_lines_are_marked(capsys: pytest.CaptureFixture[str]) -> None:
    print_message("Rank 1 failed: ValueError\nin a hook")
    assert capsys.readouterr().err == "[camshaft] Rank 1 failed: ValueError\n[camshaft] in a hook\n"
