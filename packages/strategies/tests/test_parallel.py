from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from launching import Launcher, run_ranks

from camshaft.strategies import CollectiveError, ParallelStrategy

pytestmark = pytest.mark.processes

TWO_RANKS = """
import torch
from launching import report
from camshaft.strategies import ParallelStrategy

strategy = ParallelStrategy(accelerator="cpu", devices={devices}, timeout=60)
before = (strategy.global_rank, strategy.local_rank, strategy.world_size, strategy.num_nodes, strategy.device.type)
strategy.connect()
strategy.connect()
report(before)
report((strategy.is_global_zero, strategy.data_rank, strategy.num_data_ranks))
another = ParallelStrategy(accelerator="cpu", timeout=60)  # of the next run, in the same processes
another.connect()
report((another.global_rank, another.local_rank, another.world_size, another.all_gather(strategy.global_rank)))
strategy.teardown()
report((strategy.reduce(torch.tensor([strategy.global_rank])).tolist(), strategy.broadcast(before[0], src=1)))
strategy.barrier()
"""


@pytest.mark.parametrize(("launcher", "devices"), [("torchrun", "'auto'"), ("bare", 2), ("slurm", 2)])
def test_two_processes_find_each_other_however_they_are_started(launcher: Launcher, devices: object) -> None:
    outcome = run_ranks(TWO_RANKS.format(devices=devices), 2, launcher=launcher).succeeded()
    assert outcome.reports == [
        [(rank, rank, 2, 1, "cpu"), (rank == 0, rank, 2), (rank, rank, 2, [0, 1]), ([0.5], 1)] for rank in (0, 1)
    ]
    assert outcome.output == ""


def test_before_it_is_connected_collectives_are_refused() -> None:
    strategy = ParallelStrategy(accelerator="cpu")
    with pytest.raises(
        CollectiveError, match="`barrier` must be called after `connect`, but got a call before it in P"
    ):
        strategy.barrier()
    strategy.note_failure(ValueError("nobody to tell"))


def test_one_process_trains_as_one_device_does() -> None:
    strategy = ParallelStrategy(accelerator="cpu", devices=1)
    strategy.connect()
    strategy.note_failure(ValueError("nobody else needs to know"))
    tensor = torch.ones(2)
    reduced = strategy.reduce(tensor)
    assert torch.equal(reduced, tensor) and reduced is not tensor
    assert (strategy.broadcast("a"), strategy.all_gather("a")) == ("a", ["a"])
    strategy.barrier()
    with pytest.raises(ValueError, match="`op` must be one of"):
        strategy.reduce(tensor, "median")  # type: ignore[arg-type]
    dist.destroy_process_group()


@pytest.mark.parametrize("timeout", [90, 90.0, timedelta(seconds=90)])
def test_timeouts_are_durations_or_seconds(timeout: Any) -> None:
    assert ParallelStrategy(accelerator="cpu", timeout=timeout).timeout == timedelta(seconds=90)


@pytest.mark.parametrize("timeout", [0, -1.0, timedelta(0), float("inf"), float("nan"), True, "10"])
def test_other_timeouts_are_refused(timeout: Any) -> None:
    with pytest.raises(ValueError, match="`timeout` must be a positive timedelta or number of seconds, but got"):
        ParallelStrategy(accelerator="cpu", timeout=timeout)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"devices": 4},
            "`devices` must be 2, as many processes as were started on this machine, or 'auto', but got 4",
        ),
        ({"num_nodes": 2}, "`num_nodes` must be 1, as many machines as the processes were started on"),
        ({"backend": "nccl"}, "`backend` must be None, or a backend of torch.distributed that takes tensors of cpu"),
        ({"precision": "8"}, "`precision` must be"),
    ],
)
def test_what_contradicts_how_the_processes_were_started_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], message: str
) -> None:
    started = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "1"}
    for name, value in (started | {"MASTER_ADDR": "localhost", "MASTER_PORT": "1"}).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        ParallelStrategy(accelerator="cpu", **arguments)


ONE_GPU = """
import torch
from launching import report
from camshaft.strategies import ParallelStrategy

strategy = ParallelStrategy(accelerator="gpu", timeout=120, backend={backend!r})
strategy.connect()
assert torch.accelerator.current_device_index() == strategy.device.index
here = torch.full((2,), float(strategy.global_rank), device=strategy.device)
report((strategy.reduce(here).device.type, strategy.reduce(here, "sum").tolist()))
report(strategy.reduce(torch.tensor(strategy.global_rank), "max").item())  # on the CPU
report([gathered.device == strategy.device for gathered in strategy.all_gather(here)])
strategy.barrier()
"""


@pytest.mark.gpu(kind="cuda")
@pytest.mark.parametrize(("backend", "num_ranks"), [(None, 1), ("nccl", 1), ("gloo", 2)])
def test_tensors_of_the_gpu_and_the_cpu_are_reduced(backend: str | None, num_ranks: int) -> None:
    outcome = run_ranks(ONE_GPU.format(backend=backend), num_ranks).succeeded()
    total = [1.0, 1.0] if num_ranks == 2 else [0.0, 0.0]
    assert outcome.reports == [[("cuda", total), num_ranks - 1, [True] * num_ranks]] * num_ranks


@pytest.mark.gpu(devices=2)
def test_every_process_has_a_device_of_its_own_and_its_backend(accelerator: str) -> None:
    outcome = run_ranks(ONE_GPU.format(backend=None), 2).succeeded()
    assert outcome.reports == [[(accelerator, [1.0, 1.0]), 1, [True, True]]] * 2
