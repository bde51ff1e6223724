"""Runs on streams of other libraries and of users are resumed exactly, or refused; the table of the docs says which."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from bare_ranks import on_ranks as on_threads
from launching import run_ranks
from streams_of_others import KINDS, NUM_SAMPLES, STOPS, can_be_read, outcome
from torch.utils.data import DataLoader

from camshaft.loops.data.shared_loader import share_out
from camshaft.loops.data.training_batches import TrainingBatches

pytestmark = [pytest.mark.processes, pytest.mark.filterwarnings("ignore")]

PAGE = Path(__file__).parents[1] / "docs" / "how-it-works" / "exact-resume.md"
SCRIPT = Path(__file__).parent / "streams_of_others.py"
MOSAICML = "MosaicML's StreamingDataset"
READ_KINDS = [
    pytest.param(kind, marks=pytest.mark.skipif(not can_be_read(kind), reason="needs mosaicml-streaming"))
    for kind in KINDS
]
WITHOUT_WORKERS = [kind for kind in KINDS if kind.startswith("torchdata.nodes") or kind == "own sticky loader"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def on_ranks(folder: Path) -> list[dict[str, dict[str, str]]]:
    return run_ranks(SCRIPT, 2, args=[folder]).succeeded().named


def summary(found: dict[str, str]) -> str:
    """What the table says of outcomes, which are all that are allowed."""
    inside = {found[stop] for stop in found if stop != "at the end"}
    assert found["at the end"] == "exact" and inside <= {"exact", "fast-forward"}, found
    return "exact" if inside == {"exact"} else "refused; exact by fast-forward"


@pytest.fixture(scope="module")
def rows() -> dict[str, list[str]]:
    """The rows of the table in the docs."""
    text = PAGE.read_text(encoding="utf-8").partition("| data |")[2].partition("\n\n")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]
    return {re.sub(r"`", "", row[0]): row[1:] for row in cells}


def test_the_table_has_each_kind(rows: dict[str, list[str]]) -> None:
    assert list(rows) == list(KINDS)


@pytest.mark.parametrize("kind", READ_KINDS)
def test_in_one_process(kind: str, rows: dict[str, list[str]], folder: Path) -> None:
    assert summary(outcome(kind, folder)) == rows[kind][0]


@pytest.mark.parametrize("kind", READ_KINDS)
def test_with_two_workers(kind: str, rows: dict[str, list[str]], folder: Path) -> None:
    if kind in WITHOUT_WORKERS:
        assert rows[kind][1] == "-"
    else:
        assert summary(outcome(kind, folder, workers=2, stops=STOPS[1::2])) == rows[kind][1]


@pytest.mark.parametrize("kind", READ_KINDS)
def test_on_two_ranks(kind: str, rows: dict[str, list[str]], on_ranks: list[dict[str, dict[str, str]]]) -> None:
    assert {summary(of_rank[kind]) for of_rank in on_ranks} == {rows[kind][2]}


def test_a_table_that_was_shared_out_already_is_refused_on_several_ranks() -> None:
    import datasets
    from datasets.distributed import split_dataset_by_node

    table = datasets.Dataset.from_dict({"x": list(range(NUM_SAMPLES))}).with_format("torch")

    def length(strategy: Any, of_rank: Any) -> int:
        batches = TrainingBatches(share_out(DataLoader(of_rank), strategy, stage="train"), 0, strategy=strategy)
        batches.count(1.0, "limit")
        return batches.num_batches

    assert on_threads(2, lambda strategy: length(strategy, table)) == [NUM_SAMPLES // 2] * 2
    with pytest.raises(
        ValueError, match=r"same data in every process, to be shared out.*Pass use_distributed_sampler="
    ):
        on_threads(2, lambda one: length(one, split_dataset_by_node(table, one.global_rank, 2)))


@pytest.mark.skipif(not can_be_read(MOSAICML), reason="needs mosaicml-streaming")
def test_each_sample_of_mosaicml_is_read_once_on_whatever_numbers_of_processes(tmp_path: Path) -> None:
    epochs: dict[int, list[int]] = {}
    resume = ""
    for number, stop in ((1, 5), (2, 7), (2, 11), (1, -1)):  # in the first epoch, twice, and in the second
        save = f"{number}, {stop}.ckpt"
        parts = run_ranks(SCRIPT, number, args=[tmp_path, str(stop), save, resume]).succeeded().named
        for epoch, _, batch in (step for part in parts for step in part["seen"]):
            epochs.setdefault(epoch, []).extend(batch["x"])
        resume = save
    assert list(map(sorted, epochs.values())) == [list(range(NUM_SAMPLES))] * 3
