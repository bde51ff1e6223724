"""ShardedStrategy. Run as a script by several processes, this file makes the checks that it is given by name, all in
one start, and reports what became of each.
"""

from __future__ import annotations

import functools
import re
import sys
from typing import Any

import pytest
import sharded_accumulation_checks
import sharded_state_checks
import sharded_training_checks
from checks_on_ranks import Found, make_checks, run_checks
from sharded_reference import Net, sharded
from torch import nn

pytestmark = pytest.mark.processes

MODULES = (sharded_training_checks, sharded_accumulation_checks, sharded_state_checks)
CHECKS = {name: value for module in MODULES for name, value in vars(module).items() if name.startswith("check_")}
CHECKS = {name: value for name, value in CHECKS.items() if name != "check_equals_one_device"}
# last those that make many meshes, whose groups have threads that wake a hundred times a second from then on
LAST = (*MODULES[1:], MODULES[0])
OF_FOUR = {name: value for module in LAST for name, value in vars(module).items() if name.startswith("on_four_")}


@functools.cache
def on_ranks(num_ranks: int) -> Found:
    return run_checks(__file__, list(CHECKS if num_ranks == 2 else OF_FOUR), num_ranks)


@pytest.mark.parametrize(("num_ranks", "name"), [*((2, name) for name in CHECKS), *((4, name) for name in OF_FOUR)])
def test_ranks(num_ranks: int, name: str) -> None:
    assert not on_ranks(num_ranks)[name], "\n".join(on_ranks(num_ranks)[name])


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"policy": True}, TypeError, "`policy` must be a module class, some of them, a function of a module, an int"),
        ({"policy": "Linear"}, TypeError, "`policy` must be a module class"),
        ({"policy": 0}, ValueError, "`policy` must be at least 1, but got 0 (int) in ShardedStrategy."),
        ({"policy": []}, ValueError, "`policy` must be at least one class, but got []"),
        ({"policy": nn.ModuleList}, ValueError, "`policy` must be classes of modules with a forward"),
        ({"activation_checkpointing": -1}, ValueError, "`activation_checkpointing` must be at least 1, but got -1"),
        ({"data_parallel_replicas": 0}, ValueError, "`data_parallel_replicas` must be at least 1, but got 0"),
        ({"tensor_parallel": 1.5}, TypeError, "`tensor_parallel` must be an int, but got 1.5 (float)"),
        ({"tensor_parallel": 2}, ValueError, "must be a divisor of the number of processes (1), but got 2"),
        ({"reshard_after_forward": 2}, ValueError, "must be a divisor of the number of shards (1) above 1, but got 2"),
        ({"reshard_after_forward": "yes"}, TypeError, "`reshard_after_forward` must be a bool, an int or None"),
        ({"mixed_precision": "bf16"}, TypeError, "`mixed_precision` must be a MixedPrecisionPolicy or None"),
        ({"cpu_offload": 1}, TypeError, "`cpu_offload` must be a bool, but got 1 (int)"),
        ({"prefetch": -1}, ValueError, "`prefetch` must be at least 0, but got -1 (int)"),
        ({"prefetch": True}, TypeError, "`prefetch` must be a number of blocks, but got True (bool)"),
        ({"saved_operations": ["mm"]}, TypeError, "`saved_operations` must be operations such as torch.ops.aten.mm"),
        ({"saved_operations": []}, ValueError, "`saved_operations` must be None without `activation_checkpointing`"),
        (
            {"mesh_dimensions": {"context": 2}},
            ValueError,
            "times context` must be a divisor of the number of processes (1)",
        ),
        ({"mesh_dimensions": {"context": 0}}, ValueError, "`context` must be at least 1, but got 0"),
        ({"mesh_dimensions": {"context": "a"}}, TypeError, "`context` must be an int, but got 'a'"),
        ({"mesh_dimensions": {"tensor_parallel": 1}}, ValueError, "`mesh_dimensions` must be a name other than data"),
        ({"mesh_dimensions": 2}, TypeError, "`mesh_dimensions` must be sizes by name, but got 2"),
        ({"accumulation": "hold"}, ValueError, "`accumulation` must be one of ('reduce', 'keep', 'keep_all'), but got"),
        ({"compile": "eager"}, TypeError, "`compile` must be a bool or a dictionary of arguments of torch.compile"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(
    arguments: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        sharded(**arguments)


def test_steps_run_as_they_are_before_a_module_is_set_up() -> None:
    strategy = sharded()
    assert strategy.wrap_step(lambda x: x + 1)(2) == 3
    strategy.idle_step()
    strategy.teardown()
    assert (strategy.data_rank, strategy.num_data_ranks) == (0, 1)


def test_gradients_that_each_rank_has_of_its_own_are_refused() -> None:
    with pytest.raises(ValueError, match="`checkpoint` must be one of an accumulation window's end"):
        sharded().load_state_dict({"holds_local_gradients": True})


def test_a_policy_that_chooses_nothing_is_refused_when_a_module_is_set_up() -> None:
    from camshaft.strategies.sharding.policy import blocks_of

    message = "`policy` must be classes of modules that the model has, but got 'Conv1d' (str) in Net. Pass others."
    with pytest.raises(ValueError, match=re.escape(message)):
        blocks_of(Net(), nn.Conv1d)


if __name__ == "__main__":
    sharded().connect()
    make_checks(CHECKS | OF_FOUR, sys.argv[1:])
