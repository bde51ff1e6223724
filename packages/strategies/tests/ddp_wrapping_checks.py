"""Checks that several processes make together: who else makes the DistributedDataParallel of a module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from ddp_reference import (
    Net,
    assert_differs_between_ranks,
    assert_equal,
    global_batches,
    share,
    state,
    strategy_of,
    train,
    weights,
)
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

Wrap = Callable[[Callable[[nn.Module], nn.Module], nn.Module, list[int] | None], nn.Module]


def wrapping(calls: list[Any], **arguments: Any) -> Wrap:
    """Wraps with some arguments, and notes what it gets."""

    def wrap(default: Callable[[nn.Module], nn.Module], module: nn.Module, device_ids: list[int] | None) -> nn.Module:
        calls.append((module, device_ids))
        return DistributedDataParallel(module, device_ids=device_ids, **arguments)

    return wrap


def check_others_may_wrap_once_for_each_training_and_train_the_same() -> None:
    own = [share(batch) for batch in global_batches()]
    expected, module = Net(), Net()
    train(strategy_of(), expected, own)
    calls: list[Any] = []
    strategy = strategy_of()
    strategy.wrap_module = wrapping(calls)
    train(strategy, module, own)
    assert_equal(weights(expected), weights(module))
    ((steps, device_ids),) = calls
    assert steps.module is module and device_ids is None
    strategy.wrap_module = None
    train(strategy, module, own)
    assert len(calls) == 1


def check_others_wrap_again_where_something_else_is_trainable() -> None:
    calls: list[Any] = []
    module, strategy = Net(), strategy_of()
    strategy.wrap_module = wrapping(calls)
    step = strategy.wrap_step(module.training_step)
    strategy.setup_module(module)
    module.net[0].requires_grad_(False)
    (optimizer,) = strategy.setup_optimizers([SGD(module.parameters(), lr=0.1)])
    for is_trainable in (False, True):
        module.net[0].requires_grad_(is_trainable)
        before = state(module)
        strategy.on_train_batch_start(None, 0)
        strategy.backward(step(share(global_batches()[0])))
        strategy.optimizer_step(optimizer)
        changed = [not torch.equal(one, other) for one, other in zip(before[1:3], state(module)[1:3], strict=True)]
        assert all(changed) == any(changed) == is_trainable
    assert len(calls) == 2
    strategy.teardown()


def check_buffers_stay_those_of_each_process_if_others_wrap_so() -> None:
    module, strategy = Net(has_batch_norm=True), strategy_of()
    strategy.wrap_module = wrapping([], broadcast_buffers=False)
    train(strategy, module, [share(batch) for batch in global_batches()], after=strategy.on_validation_start)
    assert_differs_between_ranks(module.net[1].running_mean)


def check_communication_hooks_are_put_on_what_others_wrap() -> None:
    num_calls = 0

    def counting(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        nonlocal num_calls
        num_calls += 1
        return allreduce_hook(group, bucket)

    module, strategy = Net(), strategy_of(comm_hook=counting)
    strategy.wrap_module = wrapping([])
    train(strategy, module, [share(batch) for batch in global_batches()])
    assert num_calls > 0


def check_what_others_wrap_otherwise_than_the_strategy_says_is_refused() -> None:
    for name, value in (("find_unused_parameters", True), ("bucket_cap_mb", 3), ("broadcast_buffers", False)):
        strategy = strategy_of(**{name: value})
        for arguments in ({}, {name: value}):
            strategy.wrap_module = wrapping([], **arguments)
            module = Net()
            strategy.setup_module(module)
            text = ""
            try:
                strategy.setup_optimizers([SGD(module.parameters(), lr=0.1)])
            except ValueError as error:
                text = str(error)
            assert text.startswith(f"`{name}` must be ") != bool(arguments), text
            strategy.teardown()
