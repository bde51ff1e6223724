from __future__ import annotations

import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st
from launching import slurm_environments

from camshaft.strategies import job_id, restart_count
from camshaft.strategies.launch.environment import ProcessEnvironment, find_process_environment, first_host

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29400",
}


def test_a_process_that_nobody_started_as_one_of_several_is_alone() -> None:
    assert find_process_environment({}) == ProcessEnvironment("alone", 0, 1, 0, 1, 1, "")


def test_the_variables_of_torchrun_say_everything() -> None:
    assert find_process_environment(TORCHRUN) == ProcessEnvironment("variables", 5, 8, 1, 4, 2, "env://")


def test_rank_and_world_size_alone_say_no_more_than_they_do() -> None:
    variables = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    assert find_process_environment(variables) == ProcessEnvironment("variables", 1, 2, None, None, None, "env://")


def test_a_single_process_need_not_know_where_the_first_one_is() -> None:
    assert find_process_environment({"RANK": "0", "WORLD_SIZE": "1"}).world_size == 1


@pytest.mark.parametrize(
    ("variables", "kind", "message"),
    [
        ({"RANK": "0"}, RuntimeError, "`WORLD_SIZE` must be set where `RANK` is, but got None"),
        ({"WORLD_SIZE": "2"}, RuntimeError, "`RANK` must be set where `WORLD_SIZE` is, but got None"),
        (TORCHRUN | {"MASTER_PORT": ""}, RuntimeError, "`MASTER_PORT` must be set where `WORLD_SIZE` is 8, but got ''"),
        (TORCHRUN | {"RANK": "8"}, ValueError, "`RANK` must be from 0 to `WORLD_SIZE` - 1 = 7, but got 8"),
        (TORCHRUN | {"RANK": "-1"}, ValueError, "`RANK` must be a number from 0, but got '-1'"),
        (TORCHRUN | {"LOCAL_RANK": "x"}, ValueError, "`LOCAL_RANK` must be a number from 0, but got 'x'"),
    ],
)
def test_variables_that_make_no_sense_are_refused(
    variables: dict[str, str], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        find_process_environment(variables)


def test_a_task_of_slurm_knows_its_ranks_and_where_the_first_one_is() -> None:
    variables = slurm_environments(2, job_id=1234)[1] | {
        "SLURM_STEP_NODELIST": "gpu[07-09,12],cpu1",
        "SLURM_STEP_NUM_TASKS": "11",
        "SLURM_STEP_NUM_NODES": "3",
        "SLURM_STEP_TASKS_PER_NODE": "4(x2),3",
        "SLURM_NODEID": "2",
        "SLURM_PROCID": "9",
        "SLURM_LOCALID": "1",
    }
    assert find_process_environment(variables) == ProcessEnvironment("slurm", 9, 11, 1, 3, 3, "tcp://gpu07:16234")


def test_where_the_tasks_of_slurm_meet_can_be_chosen_and_differs_between_the_steps_of_a_job() -> None:
    variables = slurm_environments(2, job_id=7)[0]
    assert find_process_environment(variables).rendezvous == "tcp://localhost:15007"
    assert find_process_environment(variables | {"SLURM_STEP_ID": "1"}).rendezvous != "tcp://localhost:15007"
    chosen = variables | {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4000"}
    assert find_process_environment(chosen).rendezvous == "tcp://10.0.0.1:4000"


@pytest.mark.parametrize(
    "what",
    [
        pytest.param({"SLURM_STEP_ID": ""}, id="the script of a batch job"),
        pytest.param({"SLURM_STEP_ID": "4294967290"}, id="the shell of salloc"),
        pytest.param({"SLURM_PTY_PORT": "4711"}, id="the shell of srun --pty"),
        pytest.param({"SLURM_STEP_NUM_TASKS": "1"}, id="a step with one task in an allocation of several"),
    ],
)
def test_what_is_in_a_job_of_slurm_without_being_one_of_several_tasks_is_alone(what: dict[str, str]) -> None:
    assert find_process_environment(slurm_environments(2)[0] | what).source == "alone"


def test_torchrun_within_a_job_of_slurm_counts() -> None:
    assert find_process_environment(slurm_environments(2)[1] | TORCHRUN).source == "variables"


NAMES = st.text("abcz-", min_size=1, max_size=5).filter(lambda name: name[0] != "-")


@given(NAMES, st.lists(st.integers(0, 99), min_size=1, max_size=4), st.integers(1, 3), st.lists(NAMES, max_size=2))
def test_the_first_host_of_any_list_is_found(prefix: str, indexes: list[int], width: int, others: list[str]) -> None:
    parts = [f"{idx:0{width}}" if idx % 2 else f"{idx:0{width}}-{idx + 3:0{width}}" for idx in indexes]
    node_list = ",".join([f"{prefix}[{','.join(parts)}]", *others])
    assert first_host(node_list) == f"{prefix}{indexes[0]:0{width}}"
    assert first_host(",".join([prefix, *others])) == prefix


def test_the_first_host_of_a_list_with_several_ranges_is_found() -> None:
    assert first_host("rack[1-2]node[03,05-9],login") == "rack1node03"


def test_a_job_keeps_its_name_over_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "abc")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    assert (job_id(), restart_count()) == ("abc", 2)


@pytest.mark.parametrize("run_id", [None, "none", ""])
def test_a_job_without_an_agent_is_named_by_its_machine_and_parent(
    monkeypatch: pytest.MonkeyPatch, run_id: str | None
) -> None:
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    if run_id is not None:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", run_id)
    assert (job_id(), restart_count()) == (f"{socket.gethostname()}:{os.getppid()}", 0)
