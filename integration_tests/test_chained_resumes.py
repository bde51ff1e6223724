"""Runs that are stopped three times, and changed meanwhile, end as the table of the docs says."""

from __future__ import annotations

import gzip
import re
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from chained_resumes import (
    MOVED_ROWS,
    POINTS,
    RANKS_ROWS,
    ROWS,
    SGD,
    STEP_LR,
    WHOLE,
    are_close,
    fit,
    make_parts,
    outcomes,
    outcomes_of_moves,
    run,
    scheduling,
)
from launching import run_ranks
from torch.optim.lr_scheduler import OneCycleLR

pytestmark = pytest.mark.filterwarnings("ignore")

PAGE = Path(__file__).parents[1] / "docs" / "how-it-works" / "exact-resume.md"
SCRIPT = Path(__file__).parent / "chained_resumes.py"
RELEASES = Path(__file__).parent / "earlier_releases"
OfRanks = dict[int, list[dict[str, dict[str, str]]]]
"""By the number of processes and by rank, what came of each row."""
ON_RANKS = [(number, name) for number, rows in RANKS_ROWS.items() for name in rows]


@pytest.fixture(scope="module")
def table() -> dict[str, dict[str, str]]:
    """By row and column, what the table in the docs says, without the reasons in its last column."""
    text = PAGE.read_text(encoding="utf-8").partition("| changed on the way |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    columns = rows[0][:-1]
    return {row[0]: dict(zip(columns, row[1:-1], strict=True)) for row in rows[2:]}


def test_the_table_has_each_row_and_no_other(table: dict[str, dict[str, str]]) -> None:
    assert list(table) == [*ROWS, *(name for _, name in ON_RANKS), *MOVED_ROWS]
    assert all(list(row) == list(POINTS) for row in table.values())
    assert {cell for row in table.values() for cell in row.values()} <= set(meanings())


def meanings() -> list[str]:
    """The words of the table that the docs explain."""
    return re.findall(r"^- \*\*(\w+)\*\*", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ROWS)
def test_in_one_process(name: str, table: dict[str, dict[str, str]], tmp_path: Path) -> None:
    assert outcomes(ROWS[name], tmp_path) == table[name]


@pytest.fixture(scope="module")
def on_ranks(tmp_path_factory: pytest.TempPathFactory) -> OfRanks:
    return {
        number: run_ranks(SCRIPT, number, args=[tmp_path_factory.mktemp("runs")]).succeeded().named
        for number in RANKS_ROWS
    }


@pytest.mark.processes
@pytest.mark.parametrize(("number", "name"), ON_RANKS)
def test_on_ranks(number: int, name: str, table: dict[str, dict[str, str]], on_ranks: OfRanks) -> None:
    assert all(of_rank[name] == table[name] for of_rank in on_ranks[number])


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all parts of the moved rows."""
    folder = tmp_path_factory.mktemp("moved")
    for part_idx in (WHOLE, 0, 1, 2, 3):
        for number in {parts[max(part_idx, 0)].num_processes for parts in MOVED_ROWS.values()}:
            if number == 1:
                make_parts(folder, part_idx)
            else:
                run_ranks(SCRIPT, number, args=[folder, str(part_idx)]).succeeded()
    return folder


@pytest.mark.processes
@pytest.mark.parametrize("name", MOVED_ROWS)
def test_between_numbers_of_processes(name: str, table: dict[str, dict[str, str]], moved: Path) -> None:
    assert outcomes_of_moves(name, moved) == table[name]


@pytest.mark.parametrize(("before", "after"), [("32-true", "16-mixed"), ("16-mixed", "32-true")])
def test_gradients_that_wait_take_the_scale_of_another_precision(before: str, after: str, tmp_path: Path) -> None:
    options = {"configure": SGD, "is_plain": True, "max_steps": 1}
    whole = run(tmp_path, [options], [])
    parts = run(tmp_path, [options | {"precision": before}, options | {"precision": after}], [(0, 1)])
    for name, weight in whole.checkpoint["state_dict"].items():
        assert torch.allclose(parts.checkpoint["state_dict"][name], weight, atol=1e-3)


def test_a_chain_tells_settings_that_are_not_those_of_its_first_part(tmp_path: Path) -> None:
    first, other = ({"configure": SGD}, {"configure": partial(SGD, lr=0.7, momentum=0.5)})
    parts = run(tmp_path, [first, other, other, first], [(0, 2), (0, 5), (1, 2)])
    told = "lr of SGD is 0.7, but was 0.1; momentum of SGD is 0.5, but was 0"
    assert [[told in text for text in texts] for texts in parts.told] == [[], [True], [True], []]


def test_a_one_cycle_scheduler_that_was_made_for_fewer_steps_is_told(tmp_path: Path) -> None:
    def one_cycle(steps: int) -> dict[str, Any]:
        return scheduling(lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=steps))

    with pytest.warns(UserWarning, match="total_steps of OneCycleLR is 16, but was 4"), suppress(ValueError):
        fit(tmp_path / "1.ckpt", stop=(0, -1), resume=None, **one_cycle(4))
        fit(tmp_path / "2.ckpt", stop=None, resume=tmp_path / "1.ckpt", **one_cycle(16))


@pytest.mark.parametrize("saved", sorted(RELEASES.iterdir()), ids=lambda path: path.name.partition(".ckpt")[0])
def test_a_checkpoint_of_an_earlier_release_goes_on_to_the_same_end(saved: Path, tmp_path: Path) -> None:
    options = scheduling(STEP_LR) | {"num_workers": 2 * ("workers" in saved.name)}
    whole = run(tmp_path, [options], [])
    path, later = tmp_path / "release.ckpt", tmp_path / "later.ckpt"
    path.write_bytes(gzip.decompress(saved.read_bytes()))  # `fit(path, stop=(1, 4), resume=None, **options)` of then
    second, _ = fit(later, stop=(2, 6), resume=path, **options)
    third, trainer = fit(tmp_path / "end.ckpt", stop=None, resume=later, **options)
    assert second.seen + third.seen == whole.seen[15:]
    assert trainer.global_step == whole.checkpoint["global_step"]
    assert are_close(third.state_dict(), whole.checkpoint["state_dict"])
