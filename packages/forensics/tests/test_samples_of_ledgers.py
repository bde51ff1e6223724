"""What a ledger tells of the samples of its epochs, and how the data of two runs are compared."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ledger_files import LINE, write

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.forensics import compare, compare_data, exactly_once
from camshaft.forensics.commands import compare as compare_command
from camshaft.forensics.commands import ledger as ledger_command
from camshaft.forensics.ledger.ledger_file import LedgerFile, Position, read_ledger
from camshaft.forensics.ledger.run_ledger import _Window


def ledger_of(path: Path, updates: list[Any], num_samples: int | None = 6, end_epoch: int | None = None) -> Path:
    """A ledger of updates, each an epoch with the batches of each rank; a list in place of one changes the ranks."""
    lines: list[dict[str, Any]] = []
    first: list[int] | None = None
    ranks: list[int] = []
    step = 0
    for epoch, samples in updates:
        now = list(range(len(samples)))
        if ranks and now != ranks:
            lines.append({"resumed": step, "changed": {"data_ranks": [ranks, now]}})
        ranks, first = now, first or now
        step += 1
        lines.append({**LINE, "step": step, "epoch": epoch, "samples": samples})
    if end_epoch is not None:
        lines.append({"end": step, "epoch": end_epoch})
    return write(path, lines, data_ranks=first, data={"num_samples": num_samples, "num_batches": "3"})


WHOLE = [(0, [[[0, 1]]]), (0, [[[2, 3]]]), (0, [[[4, 5]]])]
MOVED = [(0, [[[0, 1]]]), (0, [[[2]], [[3]]]), (0, [[[4]], [[5]]])]


def test_samples_are_put_in_the_order_of_all_processes_across_changes_of_their_number(tmp_path: Path) -> None:
    [epoch] = exactly_once(ledger_of(tmp_path / "a.jsonl", MOVED, end_epoch=1))
    assert epoch.order == [0, 1, 2, 3, 4, 5] and epoch.is_complete and epoch.is_exact
    assert str(epoch) == "Epoch 0: 6 samples, each once"


def test_missed_and_repeated_samples_are_named_and_padding_is_neither(tmp_path: Path) -> None:
    updates = [(0, [[[0, 1]]]), (0, [[[1]], [[3]]]), (1, [[[5, 3]], [[4, 2]]]), (1, [[[0], [5]], [[1], [4]]])]
    first, second = exactly_once(ledger_of(tmp_path / "a.jsonl", updates, end_epoch=2))
    assert (first.missed, first.repeated, first.is_exact) == ([2, 4, 5], [1], False)
    assert str(first) == "Epoch 0: 3 samples\n  missed: 2, 4, 5\n  seen more than once: 1"
    assert (second.missed, second.repeated, second.num_padding) == ([], [4, 5], 0)
    updates = [(0, [[[5, 3]], [[4, 2]]]), (0, [[[0, 5]], [[1, 4]]])]
    [padded] = exactly_once(ledger_of(tmp_path / "b.jsonl", updates, end_epoch=1))
    assert padded.repeated == [4, 5], "two are no padding of two processes"
    updates = [(0, [[[5, 3]], [[4, 2]]]), (0, [[[0]], [[5]]])]
    [padded] = exactly_once(ledger_of(tmp_path / "c.jsonl", updates, num_samples=5, end_epoch=1))
    assert (padded.repeated, padded.num_padding, padded.missed) == ([], 1, [1])


def test_an_epoch_with_all_samples_is_over_though_the_run_has_written_no_end(tmp_path: Path) -> None:
    [epoch] = exactly_once(ledger_of(tmp_path / "a.jsonl", WHOLE))
    assert epoch.is_complete and epoch.is_exact


def test_of_an_epoch_that_is_not_over_nothing_is_missed(tmp_path: Path) -> None:
    [epoch] = exactly_once(ledger_of(tmp_path / "a.jsonl", WHOLE[:2]))
    assert epoch.is_exact and str(epoch) == "Epoch 0: 4 samples, not over, each once"


@pytest.mark.parametrize(
    ("change", "expected"),
    [({"step": 5}, "`ledger` must be one with a line for each update"), ({"samples": [["ab12"]]}, "by their indices")],
)
def test_a_ledger_that_does_not_note_every_sample_is_refused(change: Any, expected: str, tmp_path: Path) -> None:
    lines = [{"step": 1, **LINE}, {"step": 2, **LINE, **change}]
    write(tmp_path / "a.jsonl", lines, data={"num_samples": 6})
    with pytest.raises(InvalidArgumentError, match=expected):
        exactly_once(tmp_path / "a.jsonl")


def test_data_alone_are_compared_whatever_the_processes(tmp_path: Path) -> None:
    one = ledger_of(tmp_path / "one.jsonl", WHOLE, end_epoch=1)
    other = ledger_of(tmp_path / "other.jsonl", MOVED, end_epoch=1)
    found = compare_data(one, other)
    assert found.is_equal and str(found) == "Epoch 0: equal for 6 samples"
    swapped = ledger_of(tmp_path / "swapped.jsonl", [*WHOLE[:2], (0, [[[5, 4]]])], end_epoch=1)
    found = compare_data(one, swapped)
    assert not found.is_equal and str(found) == "Epoch 0: equal for 4 samples; then 4, 5 and 5, 4"
    shorter = ledger_of(tmp_path / "shorter.jsonl", [*WHOLE[:2], (1, [[[5, 4]]])])
    longer = ledger_of(tmp_path / "longer.jsonl", [*WHOLE, (1, [[[5, 4]]])])
    assert str(compare_data(shorter, longer)).startswith("Epoch 0: equal for 4 samples; then only one goes on: 4, 5")
    with pytest.raises(InvalidArgumentError, match="two runs with epochs in common"):
        compare_data(one, ledger_of(tmp_path / "later.jsonl", [(3, [[[1]]])]))


def test_runs_that_were_moved_are_compared_by_the_samples_of_updates(tmp_path: Path) -> None:
    one = ledger_of(tmp_path / "one.jsonl", WHOLE, end_epoch=1)
    found = compare(one, ledger_of(tmp_path / "other.jsonl", MOVED, end_epoch=1))
    assert not any("samples" in line for line in found.differences)


def test_commands_print_and_exit_with_their_status(tmp_path: Path, capsys: Any) -> None:
    whole = str(ledger_of(tmp_path / "whole.jsonl", WHOLE, end_epoch=1))
    lost = str(ledger_of(tmp_path / "lost.jsonl", WHOLE[:2], end_epoch=1))
    assert ledger_command([whole, "--exactly-once"]) == 0
    assert ledger_command([lost, "--exactly-once"]) == 1
    assert "missed: 4, 5" in capsys.readouterr().out
    assert ledger_command([str(tmp_path / "none.jsonl"), "--exactly-once"]) == 2
    assert compare_command([whole, whole, "--data"]) == 0
    other = str(ledger_of(tmp_path / "other.jsonl", [(0, [[[1, 0]]])]))
    assert compare_command([whole, other, "--data"]) == 1
    with pytest.raises(SystemExit):
        compare_command([whole, other, "--data", "--rtol", "0.1"])
    command = [sys.executable, "-m", "camshaft.forensics", "ledger", whole, "--exactly-once"]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "Epoch 0: 6 samples, each once\n"


def test_a_run_that_goes_back_to_its_first_processes_says_so(tmp_path: Path) -> None:
    path = ledger_of(tmp_path / "a.jsonl", MOVED)
    chain, num_lines = read_ledger(path).lines[-1]["chain"], len(path.read_text().splitlines())
    file = LedgerFile(path)
    assert file.resume(Position(num_lines, chain))["data_ranks"] == [0, 1]
    file.close()


def test_an_open_window_goes_on_among_other_processes_with_all_its_samples() -> None:
    windows = [[[4, 5], [[0, 3], [6]], ["a"], []], [[4, 5], [[1, 4], [7]], ["b"], []], [[4, 5], [[2], [8]], ["c"], []]]
    first, second = (_Window.of_rank(windows, [0, 1, 2], [0, 1], rank) for rank in range(2))
    assert (first.batches, first.samples) == ([4, 5], [[0, 1, 2, 3, 4], [6, 7, 8]])
    assert second.samples == [[], []] and (first.losses, second.losses) == (["a", "c"], ["b"])
    same = _Window.of_rank(windows, [0, 1, 2], [0, 1, 2], 2)
    assert same.plain() == windows[2]
