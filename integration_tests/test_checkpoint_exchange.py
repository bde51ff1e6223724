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
Written = dict[str, tuple[Path, dict[str, Any]]]

# by the number of processes, so that those of one number are tried in one start
WRITERS = {
    1: ["single"],
    2: ["ddp", "ddp-asynchronous", "sharded", "sharded-asynchronous"],
    4: ["sharded-replicated", "sharded-parallel"],
}
READERS = {1: ["single"], 2: ["ddp", "sharded"], 3: ["sharded"], 4: ["sharded-replicated", "sharded-parallel"]}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """By strategy: its checkpoint, and what its first rank had when it was saved."""
    folder = tmp_path_factory.mktemp("exchange")
    found: Written = {}
    for size, strategies in WRITERS.items():
        paths = [folder / f"{strategy}.ckpt" for strategy in strategies]
        reports = run_ranks(SCRIPT, size, args=["save", ",".join(strategies), *paths]).succeeded().reports[0]
        ends = [state for moment, state in reports if moment == "end"]
        found |= dict(zip(strategies, zip(paths, ends, strict=True), strict=True))
    return found


@cache
def resumed(size: int, *paths: Path) -> dict[str, list[list[Any]]]:
    """By strategy, and then by rank: what it reported of what it resumed from each checkpoint."""
    strategies = READERS[size]
    reports = run_ranks(SCRIPT, size, args=["resume", ",".join(strategies), *paths]).succeeded().reports
    num_each = len(reports[0]) // len(strategies)
    return {
        strategy: [of_rank[idx * num_each : (idx + 1) * num_each] for of_rank in reports]
        for idx, strategy in enumerate(strategies)
    }


def differences(one: dict[str, Any], other: dict[str, Any]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)


@pytest.mark.parametrize("writer", [strategy for strategies in WRITERS.values() for strategy in strategies])
def test_a_checkpoint_is_read_whole_without_any_process_group(writer: str, written: Written) -> None:
    path, state = written[writer]
    weights = read_checkpoint(path)["state_dict"]
    assert path.is_dir() == writer.startswith("sharded")
    assert weights and all(torch.equal(weights[name], state[name]) for name in weights)


@pytest.mark.parametrize(
    ("strategy", "size"), [(strategy, size) for size, strategies in READERS.items() for strategy in strategies]
)
def test_training_goes_on_from_what_any_other_strategy_saved(strategy: str, size: int, written: Written) -> None:
    _, straight = written["single"]
    paths = [path for path, _ in written.values()]
    ends: list[dict[str, Any]] = []
    for reports in resumed(size, *paths)[strategy]:
        moments = zip(reports[::2], reports[1::2], strict=True)
        for (_, state), ((_, start), (_, end)) in zip(written.values(), moments, strict=True):
            assert differences(start, state) == 0  # weights and optimizer, to the bit
            assert differences(end, straight) > 1e-3  # it did train
            ends.append(end)
    assert all(differences(end, ends[0]) < 1e-5 for end in ends)
