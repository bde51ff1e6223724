"""Two machines, each a process with a name and a disk of its own: they are as one where they share a disk."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import Outcome, run_ranks, why_no_machines

SCRIPT = Path(__file__).parent / "machines_ranks.py"
NUM_UPDATES = 16

pytestmark = pytest.mark.skipif(why_no_machines() is not None, reason=f"no machines here: {why_no_machines()}")


class Machines:
    """Two machines that find a disk, shared or their own, at one path."""

    def __init__(self, folder: Path, *, is_shared: bool) -> None:
        self.place = folder / "at"
        self.disks = [folder / ("disk" if is_shared else f"disk-{number}") for number in range(2)]
        for path in (self.place, *self.disks):
            path.mkdir(parents=True, exist_ok=True)

    def run(self, kind: str, verb: str, launcher: Any = "torchrun") -> Outcome:
        options = ["--max-restarts=1"] if verb == "kill" else []
        args = [kind, self.place, verb]
        return run_ranks(SCRIPT, 2, launcher=launcher, args=args, options=options, disks=(self.place, self.disks))


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """The weights at the end of a run on one machine, by the kind of the strategy."""
    weights = {}
    for kind in ("ddp", "sharded"):
        outcome = run_ranks(SCRIPT, 2, args=[kind, tmp_path_factory.mktemp(kind), "train"]).succeeded()
        weights[kind] = outcome.reports[0][0][-1]
    return weights


def assert_ended(outcome: Outcome, weights: torch.Tensor, *, num_updates: int = NUM_UPDATES) -> None:
    for rank, ((node, local_rank, _, global_step, found),) in enumerate(outcome.succeeded().reports):
        assert (node, local_rank, global_step) == (f"machine-{rank}", 0, num_updates)
        assert torch.equal(found, weights)


def test_a_killed_rank_on_the_second_machine_restarts_both(straight: dict[str, torch.Tensor], tmp_path: Path) -> None:
    outcome = Machines(tmp_path, is_shared=True).run("sharded", "kill")
    assert_ended(outcome, straight["sharded"])
    assert [reports[0][2] for reports in outcome.reports] == [1, 1]  # one agent has counted it, the other may not
    assert "fit resumes from this job's newest checkpoint" in outcome.output


def test_a_run_that_slurm_ends_on_the_second_machine_goes_on_to_the_same_weights(
    straight: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    machines = Machines(tmp_path, is_shared=True)
    left = machines.run("sharded", "leave", "slurm").succeeded()
    steps = [reports[0][3] for reports in left.reports]
    assert steps[0] == steps[1] < NUM_UPDATES
    assert_ended(machines.run("sharded", "resume", "slurm"), straight["sharded"])


def test_private_disks_fail_at_the_first_sharded_save(tmp_path: Path) -> None:
    machines = Machines(tmp_path, is_shared=False)
    outcome = machines.run("sharded", "train").failed()
    for rank in (0, 1):
        assert re.search(
            rf"\[rank{rank}\]: .*NotSharedError: `path` must be one directory for all ranks; "
            r"rank 0 \(node 'machine-0'\) does not see what others wrote: "
            r"__1_0.distcp \(node 'machine-1'\), but got '.*step=3.ckpt'",
            outcome.output,
        ), outcome.output
    assert [os.listdir(disk / "saved") for disk in machines.disks] == [[], []]


def test_a_replicated_run_resumes_from_the_disk_of_the_first_machine(
    straight: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    machines = Machines(tmp_path, is_shared=False)
    machines.run("ddp", "leave", "slurm").succeeded()
    assert [(disk / "left.ckpt").exists() for disk in machines.disks] == [True, False]
    assert_ended(machines.run("ddp", "resume"), straight["ddp"])
