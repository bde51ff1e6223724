"""What one strategy saves on N processes, every other one goes on from on M."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import run_ranks

from camshaft.strategies import read_checkpoint

SCRIPT = Path(__file__).parent / "exchange" / "ranks.py"
WRITERS = [
    *[("single", 1), ("ddp", 2), ("ddp-asynchronous", 2), ("sharded", 2), ("sharded-asynchronous", 2)],
    *[("sharded-replicated", 4), ("sharded-parallel", 4)],
]
READERS = [
    ("single", 1),
    ("ddp", 2),
    ("sharded", 2),
    ("sharded", 3),
    ("sharded-replicated", 4),
    ("sharded-parallel", 4),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exchange")


@cache
def written(folder: Path, strategy: str, size: int) -> tuple[Path, dict[str, Any]]:
    """A checkpoint, and what its first rank had when it was saved."""
    path = folder / f"{strategy}-{size}.ckpt"
    outcome = run_ranks(SCRIPT, size, args=["save", strategy, str(path)]).succeeded()
    return path, dict(outcome.reports[0])["end"]


def differences(one: dict[str, Any], other: dict[str, Any]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)


@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: f"{writer[0]}-on-{writer[1]}")
def test_a_checkpoint_is_read_whole_without_any_process_group(writer: tuple[str, int], folder: Path) -> None:
    path, state = written(folder, *writer)
    weights = read_checkpoint(path)["state_dict"]
    assert path.is_dir() == writer[0].startswith("sharded")
    assert all(torch.equal(weights[name], state[name]) for name in weights)


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: f"{reader[0]}-on-{reader[1]}")
def test_training_goes_on_from_what_any_other_strategy_saved(reader: tuple[str, int], folder: Path) -> None:
    _, straight = written(folder, "single", 1)
    strategy, size = reader
    saved = [written(folder, *writer) for writer in WRITERS]
    paths = [str(path) for path, _ in saved]
    ends: list[dict[str, Any]] = []
    for reports in run_ranks(SCRIPT, size, args=["resume", strategy, *paths]).succeeded().reports:
        moments = zip(reports[::2], reports[1::2], strict=True)
        for (_, state), ((_, start), (_, end)) in zip(saved, moments, strict=True):
            assert differences(start, state) == 0  # weights and optimizer, to the bit
            assert differences(end, straight) > 1e-3  # it did train
            ends.append(end)
    assert all(differences(end, ends[0]) < 1e-5 for end in ends)
