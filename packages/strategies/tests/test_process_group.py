from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from launching import run_ranks

from camshaft.strategies import DDPStrategy, ParallelStrategy
from camshaft.strategies.launch.environment import ProcessEnvironment
from camshaft.strategies.launch.process_group import check_backend, default_backend, join_process_group

pytestmark = pytest.mark.processes

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
ALONE, MINUTE = ProcessEnvironment("alone"), timedelta(minutes=1)


@pytest.fixture
def no_group_afterwards() -> Iterator[None]:
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("backend", "device"),
    [("gloo", CPU), ("GLOO", CUDA), ("nccl", CUDA), ("cpu:gloo,cuda:nccl", CPU), ("cuda:nccl", CUDA), ("mpi", CPU)],
)
def test_backends_of_torch_that_take_tensors_of_the_device_are_accepted(backend: str, device: torch.device) -> None:
    assert check_backend(backend, device, "here") == backend


@pytest.mark.parametrize(
    ("backend", "device"),
    [("nccl", CPU), ("", CPU), ("glue", CPU), ("undefined", CPU), ("cuda:gloo", CPU), ("cpu:gloo", CUDA), (3, CPU)],
)
def test_other_backends_are_refused(backend: str, device: torch.device) -> None:
    message = f"`backend` must be None, or a backend of torch.distributed that takes tensors of {device.type}"
    with pytest.raises(ValueError, match=message):
        check_backend(backend, device, "here")


def test_a_gpu_has_nccl_and_beside_it_gloo_for_objects() -> None:
    assert (default_backend(CPU), default_backend(CUDA)) == ("gloo", "cpu:gloo,cuda:nccl")


@pytest.mark.usefixtures("no_group_afterwards")
def test_one_process_has_a_group_of_its_own_which_stays() -> None:
    joined = join_process_group(ALONE, CPU, "gloo", MINUTE)
    assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (0, 1, "gloo")
    assert joined.is_own and joined.watch is None
    assert joined.default is joined.cpu_group is joined.group_for(CPU) is dist.group.WORLD
    assert join_process_group(ALONE, CPU, "gloo", MINUTE) is joined


@pytest.mark.usefixtures("no_group_afterwards")
def test_after_somebody_destroyed_the_group_there_is_a_new_one() -> None:
    first = join_process_group(ALONE, CPU, "gloo", MINUTE)
    dist.destroy_process_group()
    second = join_process_group(ALONE, CPU, "gloo", MINUTE)
    assert second is not first and second.default is dist.group.WORLD


@pytest.mark.usefixtures("no_group_afterwards")
@pytest.mark.usefixtures("no_group_afterwards")
def test_a_process_leaves_a_group_of_one_for_a_strategy_of_several() -> None:
    alone = DDPStrategy(accelerator="cpu", devices=1)
    alone.connect()
    assert DDPStrategy(accelerator="cpu").world_size == 1 and dist.is_initialized()
    assert DDPStrategy(accelerator="cpu", devices=2, start_method="fork").world_size == 2 and not dist.is_initialized()
    alone.connect()
    assert dist.get_world_size() == 1


def test_a_group_that_came_after_the_strategy_with_other_ranks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    strategy = ParallelStrategy(accelerator="cpu")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with pytest.raises(RuntimeError, match=r"`process group` must be rank 1 of 2, as it was .*, but got \(0, 1\)"):
        strategy.connect()


def test_a_group_of_somebody_else_that_is_gone_is_missed() -> None:
    gone = ProcessEnvironment("initialised", 1, 7, 1, 7)
    with pytest.raises(RuntimeError, match="`process group` must be initialised, as when the strategy was made"):
        join_process_group(gone, CPU, "gloo", MINUTE)


OF_SOMEBODY_ELSE = """
import atexit, os
from datetime import timedelta
from pathlib import Path
import torch, torch.distributed as dist
atexit.register(lambda: (report(dist.is_initialized()), dist.destroy_process_group()))  # runs last
from launching import report

rank = int(os.environ.pop("RANK"))
store = dist.FileStore(os.environ["CAMSHAFT_TEST_REPORTS"] + "/store", 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(minutes=2))
for name in ("WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"):
    os.environ.pop(name, None)

from camshaft.strategies import ParallelStrategy, rank_zero_only
first, second = ParallelStrategy(accelerator="cpu"), ParallelStrategy(accelerator="cpu", devices=2)
first.connect()
second.connect()
os.environ["RANK"] = str(rank)  # for `report`
report((first.global_rank, first.local_rank, first.world_size, first._group is second._group))
report((first.all_gather(rank), second.reduce(torch.ones(1), "sum").item()))
report(rank_zero_only(lambda: "first")())
first.teardown()
second.barrier()
"""


def test_a_group_that_is_initialised_already_is_used_and_left_alone() -> None:
    outcome = run_ranks(OF_SOMEBODY_ELSE, 2).succeeded()
    assert outcome.reports == [
        [(rank, rank, 2, True), ([0, 1], 2.0), "first" if rank == 0 else None, True] for rank in (0, 1)
    ]


NOBODY_COMES = """
import os
from camshaft.strategies import DDPStrategy, ParallelStrategy
if os.environ["RANK"] == "1":
    raise SystemExit(0)  # torchrun takes that for a good end, and goes on
ParallelStrategy(accelerator="cpu", timeout=3).connect()
"""


def test_joining_ends_when_the_others_do_not_come() -> None:
    outcome = run_ranks(NOBODY_COMES, 2, launcher="torchrun", timeout=120).failed()
    assert "Error" in outcome.output and "connect" in outcome.output


THREADS_AT_THE_END = """
import atexit, os
from pathlib import Path
from launching import report

def tell():
    report([Path(f"/proc/self/task/{thread}/comm").read_text().strip() for thread in os.listdir("/proc/self/task")])

atexit.register(tell)  # runs after what is registered later

import torch
from camshaft.strategies import DDPStrategy

strategy = DDPStrategy(accelerator="cpu", timeout=60)
strategy.connect()
"""

HELD_BY_A_CYCLE = """
strategy.reduce(torch.ones(3))
cycle = [torch.distributed.group.WORLD]
cycle.append(cycle)
del cycle
"""

HELD_BY_A_MODEL = """
module = strategy.setup_module(torch.nn.Linear(2, 2))  # imports much of torch.distributed
loss = strategy.wrap_step(lambda batch: module(batch).sum())(torch.ones(1, 2))
strategy.backward(loss)
strategy.teardown()
del loss
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads of torch are told apart by /proc alone")
@pytest.mark.parametrize("use", [HELD_BY_A_CYCLE, HELD_BY_A_MODEL], ids=["cycle", "model"])
def test_threads_of_a_group_end_before_the_interpreter(use: str) -> None:
    outcome = run_ranks(THREADS_AT_THE_END + use, 2).succeeded()
    assert [len(reports) for reports in outcome.reports] == [1, 1]
    assert not [name for (names,) in outcome.reports for name in names if "gloo" in name]
