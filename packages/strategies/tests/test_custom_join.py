"""Joining the process group by a function of somebody else, where SLURM or torchrun has started the processes."""

from __future__ import annotations

import pytest
from launching import free_port, run_ranks

pytestmark = pytest.mark.processes

SCRIPT = """
import os
import torch
import torch.distributed as dist
from camshaft.strategies import DDPStrategy
from launching import report

NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE")
seen = []

def join(default, *, is_started_by_slurm):
    seen.append((is_started_by_slurm, [os.environ.get(name) for name in NAMES]))
    dist.init_process_group("gloo")

before = dict(os.environ)
strategy = DDPStrategy(accelerator="cpu", timeout=60)
for _ in range(2):
    strategy.join_processes = join
    strategy.connect()
total = strategy.reduce(torch.tensor([float(strategy.global_rank + 1)]), "sum")
report((seen, dict(os.environ) == before, total.item()))
later = DDPStrategy(accelerator="cpu")
report((later.global_rank, later.local_rank, later.world_size))
"""


def test_it_finds_the_variables_of_torchrun_for_as_long_as_it_joins() -> None:
    for rank, (found, later) in enumerate(run_ranks(SCRIPT, 2, launcher="slurm").succeeded().reports):
        ((is_started_by_slurm, variables),), is_restored, total = found
        assert is_started_by_slurm and is_restored
        assert variables[:3] == [str(rank), "2", "localhost"]
        assert variables[3].isdecimal() and variables[4] == "False"
        assert total == 3.0
        assert later == (rank, rank, 2)


def test_an_address_of_its_own_is_heeded_where_an_agent_has_started_the_processes() -> None:
    script = SCRIPT.replace("    dist.init", '    os.environ["MASTER_PORT"] = os.environ["OWN_PORT"]\n    dist.init')
    outcome = run_ranks(script, 2, launcher="torchrun", env={"OWN_PORT": str(free_port())}).succeeded()
    assert [found[2] for found, _ in outcome.reports] == [3.0, 3.0]
