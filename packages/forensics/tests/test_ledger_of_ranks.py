"""Ledgers of two real processes: the same however often one is killed, and comparable to that of one process."""

from __future__ import annotations

import random
import warnings
from pathlib import Path

import pytest
from launching import Outcome, run_ranks
from ledger_scenes import NUM_KILLS, fit

from camshaft.forensics import compare

pytestmark = pytest.mark.processes

SCENES = Path(__file__).with_name("ledger_scenes.py")


def run(folder: Path, strategy: str, dropout: float, seed: object = "none", **environment: str) -> Outcome:
    return run_ranks(SCENES, 2, args=[folder, strategy, str(dropout), str(seed)], env=environment)


def run_killed(folder: Path, strategy: str, dropout: float, seed: int) -> list[int]:
    """Start the ranks again, as torchrun does, until they end well, and return how the starts ended."""
    statuses: list[int] = []
    for restart in range(NUM_KILLS + 1):
        of_agent = {"TORCHELASTIC_RUN_ID": "one job", "TORCHELASTIC_RESTART_COUNT": str(restart)}
        outcome = run(folder, strategy, dropout, seed, **of_agent)
        statuses.append(outcome.exit_code)
        if outcome.exit_code == 0:
            return statuses
    raise AssertionError(outcome.output)


@pytest.mark.parametrize("strategy", ["ddp", "sharded"])
def test_the_ledger_of_ranks_that_are_killed_is_that_of_ranks_that_are_not(strategy: str, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    run(tmp_path / "undisturbed", strategy, 0.2).succeeded()
    statuses = run_killed(tmp_path / "killed", strategy, 0.2, seed)

    texts = [(tmp_path / name / "ledger.jsonl").read_text() for name in ("undisturbed", "killed")]
    assert texts[1].splitlines() == texts[0].splitlines(), f"with seed {seed}"
    assert any(statuses), "no rank was killed"
    assert '"data_ranks":[0,1]' in texts[0] and '"end":' in texts[0] and len(texts[0].splitlines()) > 10


def test_one_process_and_two_that_share_the_model_are_equal_within_a_tolerance(tmp_path: Path) -> None:
    run(tmp_path / "two", "sharded", 0.0).succeeded()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit(tmp_path / "one", 6, 0.0, [], enable_checkpointing=False)

    found = compare(tmp_path / "one", tmp_path / "two")

    assert found.is_equal and found.num_equal == 20, str(found)
    assert any("world_size: 1 and 2" in one for one in found.header)
    exact = compare(tmp_path / "one", tmp_path / "two", rtol=0.0)
    assert not exact.is_equal and not any("samples" in one or "weights" in one for one in exact.differences)
    assert exact.differences
