"""Real runs that are killed and go on with other numbers of processes: their ledgers prove that no sample was lost."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from elastic_scenes import NUM_EPOCHS, NUM_SAMPLES, fit
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from launching import run_ranks

from camshaft.forensics import compare_data, exactly_once

pytestmark = [
    pytest.mark.processes,
    pytest.mark.new_feature("loops"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

SCENES = Path(__file__).with_name("elastic_scenes.py")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: Any) -> Path:
    """A run of one process that nothing stopped."""
    folder: Path = tmp_path_factory.mktemp("whole")
    fit(folder)
    return folder


legs = st.lists(st.tuples(st.integers(1, 4), st.integers(2, 7)), min_size=1, max_size=3)


@settings(max_examples=1, deadline=None, phases=[Phase.explicit, Phase.generate], suppress_health_check=[*HealthCheck])
@given(killed=legs, last=st.integers(1, 3), num_workers=st.integers(0, 1), accumulate=st.integers(1, 3))
@example(killed=[(1, 4), (3, 3)], last=2, num_workers=0, accumulate=2)
def test_every_sample_of_an_epoch_is_seen_once_in_its_order_whatever_the_processes(
    whole: Path, killed: list[tuple[int, int]], last: int, num_workers: int, accumulate: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for num_ranks, killed_after in [*killed, (last, 0)]:
            options = map(str, (killed_after, num_workers, accumulate))
            outcome = run_ranks(SCENES, num_ranks, args=[folder, *options], imports=[SCENES.stem])
            assert (killed_after or not outcome.exit_code) and "Traceback" not in outcome.output, outcome.output
            if not outcome.exit_code:
                break  # the last, or one that had less to read than the batch that it was to be killed after

        epochs = exactly_once(folder)
        assert [epoch.epoch for epoch in epochs] == list(range(NUM_EPOCHS))
        for epoch in epochs:
            assert epoch.is_complete and epoch.is_exact, epoch
            assert set(epoch.order) == set(range(NUM_SAMPLES))
        found = compare_data(folder, whole)
        assert found.is_equal and set(found.num_equal.values()) == {NUM_SAMPLES}, found
