"""DDPStrategy. Run as a script by several processes, this file makes the checks that it is given by name, all in one
start, and reports what became of each.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import ddp_communication_checks
import ddp_manual_checks
import ddp_setup_checks
import ddp_training_checks
import ddp_wrapping_checks
import pytest
import torch
from checks_on_ranks import Found, make_checks, run_checks
from ddp_reference import Net, assert_equal, global_batches, state, strategy_of, train
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from camshaft.strategies import DDPStrategy, SingleDeviceStrategy
from camshaft.strategies.ddp import SynchronizedBatchNorm

pytestmark = pytest.mark.processes


def checks_of(*modules: Any) -> dict[str, Callable[[], None]]:
    return {name: value for module in modules for name, value in vars(module).items() if name.startswith("check_")}


CHECKS = checks_of(
    ddp_training_checks, ddp_communication_checks, ddp_wrapping_checks, ddp_manual_checks, ddp_setup_checks
)
OF_FOUR = checks_of(ddp_training_checks)
OF_GPUS = {"check_batch_norm_is_over_all_ranks": ddp_setup_checks.batch_norm_is_over_all_ranks}


@functools.cache
def on_ranks(num_ranks: int) -> Found:
    return run_checks(__file__, list(CHECKS if num_ranks == 2 else OF_FOUR), num_ranks)


@pytest.mark.parametrize(("num_ranks", "name"), [*((2, name) for name in CHECKS), *((4, name) for name in OF_FOUR)])
def test_ranks(num_ranks: int, name: str) -> None:
    assert not on_ranks(num_ranks)[name], "\n".join(on_ranks(num_ranks)[name])


@pytest.mark.gpu(devices=2, kind="cuda")  # torch's SyncBatchNorm has kernels of its own there
@pytest.mark.parametrize("name", OF_GPUS)
def test_two_gpus(name: str) -> None:
    errors = run_checks(__file__, [name], 2)[name]
    assert not errors, "\n".join(errors)


def test_one_process_trains_as_one_device() -> None:
    ours, one_device = Net(has_batch_norm=True), Net(has_batch_norm=True)
    strategy = DDPStrategy(accelerator="cpu")
    strategy.connect()
    train(strategy, ours, global_batches(), accumulate=2, clip=(0.1, "norm"))
    train(SingleDeviceStrategy("cpu"), one_device, global_batches(), accumulate=2, clip=(0.1, "norm"))
    assert_equal(state(one_device), state(ours))


def test_one_process_is_wrapped_by_others_who_ask_for_it() -> None:
    calls: list[Any] = []
    ours, one_device = Net(), Net()
    train(SingleDeviceStrategy("cpu"), one_device, global_batches())
    strategy = DDPStrategy(accelerator="cpu", devices=1)
    strategy.wrap_module = ddp_wrapping_checks.wrapping(calls)
    strategy.connect()
    train(strategy, ours, global_batches())
    assert len(calls) == 1
    assert_equal(state(one_device), state(ours))


@pytest.mark.parametrize("hook", [3, lambda: None, lambda bucket: None, lambda one, two, three: None])
def test_a_communication_hook_of_the_wrong_kind_is_refused(hook: Any) -> None:
    with pytest.raises(TypeError, match=r"`comm_hook` must be a function of \(state, bucket\), but got"):
        DDPStrategy(accelerator="cpu", comm_hook=hook)


def test_a_state_without_a_communication_hook_is_refused() -> None:
    with pytest.raises(ValueError, match="`comm_state` must be None if there is no `comm_hook`, but got 3"):
        DDPStrategy(accelerator="cpu", comm_state=3)
    DDPStrategy(accelerator="cpu", comm_hook=allreduce_hook)


@pytest.mark.parametrize("bucket_cap_mb", [0, -1, True, "25", None, float("nan")])
def test_a_bucket_size_that_makes_no_sense_is_refused(bucket_cap_mb: Any) -> None:
    with pytest.raises(ValueError, match="`bucket_cap_mb` must be a positive number of mebibytes, but got"):
        DDPStrategy(accelerator="cpu", bucket_cap_mb=bucket_cap_mb)


def test_batch_norm_layers_are_replaced_and_come_back_with_what_was_learned() -> None:
    shared = nn.BatchNorm1d(4)
    module = nn.Sequential(nn.Linear(4, 4), shared, nn.Sequential(shared, nn.BatchNorm2d(2, affine=False)))
    originals, parameters, names = list(module.modules()), list(module.parameters()), list(module.state_dict())
    synchronized = SynchronizedBatchNorm(module)
    assert [type(layer) for layer in (module[1], module[2][0], module[2][1])] == [nn.SyncBatchNorm] * 3
    assert module[1] is module[2][0]
    assert all(one is other for one, other in zip(parameters, module.parameters(), strict=True))
    assert list(module.state_dict()) == names
    module.eval()
    module[1].running_mean = torch.full((4,), 3.0)
    synchronized.revert()
    assert all(one is other for one, other in zip(originals, module.modules(), strict=True))
    assert shared.running_mean.tolist() == [3.0] * 4
    assert not shared.training


def test_a_module_that_is_a_batch_norm_layer_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="`module` must be a module that contains its batch normalisation layers"):
        SynchronizedBatchNorm(nn.BatchNorm1d(4))


if __name__ == "__main__":
    strategy_of("cuda" if sys.argv[1] in OF_GPUS else "cpu")
    make_checks(CHECKS | OF_GPUS, sys.argv[1:])
