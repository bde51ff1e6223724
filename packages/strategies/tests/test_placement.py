from __future__ import annotations

from typing import Any

import pytest
import torch

from camshaft.strategies.launch.environment import ProcessEnvironment
from camshaft.strategies.launch.placement import place_process

ALONE = ProcessEnvironment("alone")
STARTED = ProcessEnvironment("variables", 5, 8, 1, 4, 2, "env://")
UNPLACED = ProcessEnvironment("variables", 5, 8, None, None, None, "env://")


def place(environment: ProcessEnvironment, accelerator: str = "cpu", devices: Any = "auto", num_nodes: Any = 1) -> Any:
    return place_process(environment, accelerator, devices, num_nodes, "here")


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that says that it has four; devices are named here, and never used."""
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 4)


@pytest.mark.parametrize(("devices", "world_size"), [("auto", 1), (-1, 1), ("-1", 1), (3, 3), ("3", 3)])
def test_alone_on_cpus_there_are_as_many_processes_as_asked_for(devices: Any, world_size: int) -> None:
    placed = place(ALONE, "cpu", devices)
    assert (placed.device, placed.local_rank, placed.num_nodes) == (torch.device("cpu"), 0, 1)
    assert placed.world_size == world_size


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(
    ("accelerator", "devices", "first", "world_size"),
    [("auto", "auto", 0, 4), ("gpu", -1, 0, 4), ("cuda", 2, 0, 2), ("cuda", [3, 1], 3, 2), ("cpu", "auto", None, 1)],
)
def test_alone_with_gpus_all_are_taken_or_those_asked_for(
    accelerator: str, devices: Any, first: int | None, world_size: int
) -> None:
    placed = place(ALONE, accelerator, devices)
    assert placed.device == (torch.device("cpu") if first is None else torch.device("cuda", first))
    assert placed.world_size == world_size


@pytest.mark.parametrize("devices", ["auto", 4])
def test_started_processes_are_where_the_launcher_says(devices: Any) -> None:
    placed = place(STARTED, devices=devices, num_nodes=2 if devices == 4 else 1)
    assert (placed.local_rank, placed.world_size, placed.num_nodes) == (1, 8, 2)


@pytest.mark.usefixtures("four_gpus")
def test_started_processes_have_a_gpu_by_their_local_rank() -> None:
    assert place(STARTED, "auto").device == torch.device("cuda", 1)
    assert place(STARTED, "cuda", [3, 2, 1, 0]).device == torch.device("cuda", 2)


@pytest.mark.usefixtures("four_gpus")
def test_a_process_that_is_shown_one_gpu_only_has_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    assert place(STARTED, "cuda").device == torch.device("cuda", 0)


@pytest.mark.parametrize(("num_nodes", "local_rank"), [(1, 5), (2, 1), (8, 0)])
def test_where_the_launcher_says_no_more_ranks_are_dealt_out_machine_by_machine(
    num_nodes: int, local_rank: int
) -> None:
    placed = place(UNPLACED, num_nodes=num_nodes)
    assert (placed.local_rank, placed.num_nodes, placed.world_size) == (local_rank, num_nodes, 8)


def test_machines_may_have_different_numbers_of_processes() -> None:
    placed = place(ProcessEnvironment("slurm", 9, 11, 1, 3, 3, "tcp://a:1"), devices=3, num_nodes=3)
    assert (placed.local_rank, placed.world_size, placed.num_nodes) == (1, 11, 3)


@pytest.mark.parametrize(
    ("environment", "arguments", "message"),
    [
        (ALONE, {"accelerator": "tpu"}, "`accelerator` must be 'auto', 'cpu', 'gpu' or a type of .*, but got 'tpu'"),
        (ALONE, {"devices": 0}, r"`devices` must be a positive int, -1 \(all\) or 'auto' on the CPU, but got 0"),
        (ALONE, {"devices": "two"}, "`devices` must be a positive int.*, but got 'two'"),
        (ALONE, {"devices": True}, "`devices` must be a positive int.*, but got True"),
        (ALONE, {"devices": [0, 1]}, "`devices` must be a positive int.* on the CPU, but got \\[0, 1\\]"),
        (ALONE, {"num_nodes": 0}, "`num_nodes` must be a positive int, but got 0"),
        (ALONE, {"num_nodes": 2}, "`num_nodes` must be 1 in a process that is started alone, but got 2 .*torchrun"),
        (STARTED, {"devices": 2}, "`devices` must be 4, as many .* on this machine, or 'auto', but got 2"),
        (STARTED, {"num_nodes": 3}, "`num_nodes` must be 2, as many machines .*, but got 3"),
        (UNPLACED, {"num_nodes": 3}, "`num_nodes` must be a divisor of the 8 processes that were started, but got 3"),
        (UNPLACED, {"devices": 2, "num_nodes": 2}, "`devices` must be 4, .* but got 2"),
    ],
)
def test_what_makes_no_sense_or_contradicts_the_launcher_is_refused(
    environment: ProcessEnvironment, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        place(environment, **arguments)


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize("devices", [[], [0, 0], [4], [-1], [True], ["0"]])
def test_indexes_that_are_no_devices_are_refused(devices: list[Any]) -> None:
    with pytest.raises(ValueError, match="`devices` must be different indexes of this machine's 4 cuda devices"):
        place(ALONE, "cuda", devices)


@pytest.mark.usefixtures("four_gpus")
def test_more_processes_than_gpus_are_refused() -> None:
    with pytest.raises(ValueError, match="`devices` must be at most 4, as many cuda devices as this machine has"):
        place(ALONE, "cuda", 5)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="this machine has an accelerator")
@pytest.mark.parametrize("accelerator", ["cuda", "gpu"])
def test_an_absent_accelerator_is_refused(accelerator: str) -> None:
    with pytest.raises(RuntimeError, match="`accelerator` must be present on this machine"):
        place(ALONE, accelerator)


def test_without_an_accelerator_auto_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: None)
    assert place(ALONE, "auto").device == torch.device("cpu")


def test_processes_do_not_use_an_accelerator_whose_tensors_they_cannot_reduce(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("mps"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    assert place(ALONE, "auto").device == torch.device("cpu")
    with pytest.raises(ValueError, match=r"`accelerator` must be a device type whose tensors .*, but got 'mps'"):
        place(ALONE, "mps")
