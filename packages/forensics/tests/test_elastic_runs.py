"""Real runs that are killed and go on with other numbers of processes: their ledgers prove that no sample was lost."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from elastic_scenes import NUM_EPOCHS, NUM_SAMPLES
from launching import run_ranks

from camshaft.forensics import compare_data, exactly_once

pytestmark = [pytest.mark.processes, pytest.mark.new_feature("loops")]

SCENES = Path(__file__).with_name("elastic_scenes.py")


def run_chain(folder: Path, worlds: list[int], kills: list[int], *options: int) -> None:
    """Run on each of some worlds, killed after so many batches; the last one comes to the end."""
    for num_ranks, killed_after in zip(worlds, [*kills, 0], strict=True):
        outcome = run_ranks(SCENES, num_ranks, args=[folder, str(killed_after), *map(str, options)])
        assert bool(outcome.exit_code) == bool(killed_after) and "Traceback" not in outcome.output, outcome.output


@pytest.mark.parametrize(
    ("worlds", "num_workers", "accumulate"),
    [([1, 3, 2], 0, 1), ([2, 1], 1, 3)],
)
def test_every_sample_of_an_epoch_is_seen_once_in_its_order_whatever_the_processes(
    worlds: list[int], num_workers: int, accumulate: int, tmp_path: Path
) -> None:
    seed = random.SystemRandom().randrange(2**32)
    moments = random.Random(seed)
    kills = [moments.randint(2, 7) for _ in worlds[1:]]
    run_chain(tmp_path / "moved", worlds, kills, num_workers, accumulate)
    run_chain(tmp_path / "whole", [1], [], 0, accumulate)

    ledger = (tmp_path / "moved" / "ledger.jsonl").read_text()
    assert ledger.count('"data_ranks":[[') == len(worlds) - 1, "the run was moved as often"
    epochs = exactly_once(tmp_path / "moved")
    assert [epoch.epoch for epoch in epochs] == list(range(NUM_EPOCHS)), f"with seed {seed}"
    for epoch in epochs:
        assert epoch.is_complete and epoch.is_exact, f"{epoch}, with seed {seed}"
        assert set(epoch.order) == set(range(NUM_SAMPLES))
    found = compare_data(tmp_path / "moved", tmp_path / "whole")
    assert found.is_equal and set(found.num_equal.values()) == {NUM_SAMPLES}, f"{found}, with seed {seed}"
