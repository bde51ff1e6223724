"""Checks on several ranks: accumulation windows of sharded models, and what they leave unreduced until their end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from sharded_reference import (
    Net,
    ParallelNet,
    ShardingNet,
    assert_close,
    batches,
    check_equals_one_device,
    raises,
    set_up,
    sharded,
    state,
)
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import SGD

from camshaft.strategies import SingleDeviceStrategy
from camshaft.strategies.precision import ScaledPrecision

KEPT = ("keep", "keep_all")
TRAINING = {"accumulate": 3, "clip": (0.1, "norm"), "make_optimizer": SGD, "lr": 0.05}


def check_windows_equal_those_of_one_device() -> None:
    for accumulation in KEPT:
        check_equals_one_device({"accumulation": accumulation, "reshard_after_forward": False}, TRAINING)
        check_equals_one_device({"accumulation": accumulation, "tensor_parallel": 2}, TRAINING, make=ParallelNet)
        check_equals_one_device({"accumulation": accumulation}, TRAINING, make=ShardingNet)
        for precision, tolerance in (("bf16-mixed", 2e-2), (ScaledPrecision("cpu", init_scale=2.0**8), 1e-3)):
            arguments = {"accumulation": accumulation, "precision": lambda precision=precision: precision}
            check_equals_one_device(arguments, TRAINING, tolerance=tolerance)


def on_four_ranks_windows_of_replicas_equal_those_of_one_device() -> None:
    for accumulation in ("reduce", *KEPT):
        arguments = {"accumulation": accumulation, "data_parallel_replicas": 2}
        check_equals_one_device({**arguments, "precision": lambda: "bf16-mixed"}, TRAINING, tolerance=2e-2)
        check_equals_one_device({**arguments, "tensor_parallel": 2}, TRAINING, make=ParallelNet)


Event = Callable[["Driver"], None]


class Driver:
    """A strategy with a model and an optimizer; events happen to it one by one."""

    def __init__(self, strategy: Any, module: Any, parts: Sequence[str] = ("",)) -> None:
        torch.manual_seed(1)
        self.strategy, self.module = strategy, module
        self.step = strategy.wrap_step(lambda x, y, **options: F.mse_loss(module(x, **options), y))
        set_up(strategy, module)
        optimizers = [SGD(module.get_submodule(part).parameters(), lr=0.05, momentum=0.9) for part in parts]
        self.optimizers = strategy.setup_optimizers(optimizers)
        self._share = slice(strategy.data_rank, None, strategy.num_data_ranks)

    def add(self, batch_idx: int, *, ends: bool, **options: Any) -> None:
        x, y = batches(8)[batch_idx]
        self.strategy.set_gradient_sync(ends)
        self.strategy.backward(self.step(x[self._share], y[self._share], **options))

    def update(self) -> None:
        for optimizer in self.optimizers:
            self.strategy.unscale_gradients(optimizer)
            self.strategy.optimizer_step(optimizer)
            optimizer.zero_grad()


def expect_alike(arguments: dict[str, Any], *events: Event, make: Callable[[], Any] = Net, **options: Any) -> None:
    """Check that the same events have the same outcome on one device."""
    drivers = [Driver(SingleDeviceStrategy("cpu"), make(), **options), Driver(sharded(**arguments), make(), **options)]
    for driver in drivers:
        for event in events:
            event(driver)
        driver.strategy.teardown()
    assert_close(state(drivers[1].module), state(drivers[0].module))


def check_what_a_window_holds_can_be_dropped_and_reduced() -> None:
    replicas = {"data_parallel_replicas": 2}
    everywhere = [{"accumulation": accumulation} for accumulation in KEPT]
    for arguments in everywhere if torch.distributed.get_world_size() == 2 else [*everywhere, replicas]:
        whole = [lambda one: one.add(1, ends=False), lambda one: one.add(2, ends=True), Driver.update]
        # a window that no update ends
        expect_alike(arguments, lambda one: one.add(0, ends=False), lambda one: one.optimizers[0].zero_grad(), *whole)
        # a window whose last step has no loss
        expect_alike(
            arguments,
            lambda one: one.add(0, ends=False),
            lambda one: one.strategy.set_gradient_sync(True),
            Driver.update,
            *whole,
        )

        # a window inside of which a checkpoint is saved, and which goes on
        def collect(one: Driver) -> None:
            if hasattr(one.strategy, "collect_gradients"):
                one.strategy.collect_gradients()
            for name, parameter in one.module.named_parameters():
                assert parameter.grad is not None, name
                if hasattr(one.strategy, "collect_gradients"):
                    assert isinstance(parameter.grad, DTensor), name

        expect_alike(arguments, lambda one: one.add(0, ends=False), collect, lambda one: one.add(3, ends=False), *whole)
        expect_alike(arguments, *whole, lambda one: one.add(3, ends=False), collect, *whole)


on_four_ranks_what_a_window_of_replicas_holds_can_be_dropped_and_reduced = (
    check_what_a_window_holds_can_be_dropped_and_reduced
)


def check_a_run_that_ends_inside_of_a_window_leaves_nothing_to_the_next() -> None:
    for accumulation in KEPT:
        driver = Driver(sharded(accumulation=accumulation), Net())
        driver.add(0, ends=False)
        before = state(driver.module)
        driver.strategy.teardown()
        again = Driver(driver.strategy, driver.module)
        again.add(1, ends=True)
        again.update()
        again.strategy.teardown()
        fresh = Net()
        other = Driver(sharded(), fresh)
        with torch.no_grad():
            for name, parameter in fresh.named_parameters():
                assert torch.equal(before[name], parameter.full_tensor()), name
        other.add(1, ends=True)
        other.update()
        other.strategy.teardown()
        assert_close(state(again.module), state(fresh))


def check_weights_are_read_anew_after_an_update_inside_of_a_window() -> None:
    def step(one: Driver) -> None:
        one.optimizers[0].step()

    for accumulation in KEPT:
        expect_alike(
            {"accumulation": accumulation},
            lambda one: one.add(0, ends=True),
            step,
            lambda one: one.add(1, ends=False),
            lambda one: one.strategy.optimizer_step(one.optimizers[0]),
            lambda one: one.add(2, ends=False),
            lambda one: one.add(3, ends=True),
            Driver.update,
        )


class Branching(Net):
    """A module whose steps choose among its blocks, and among two parameters of its own."""

    def make_layers(self) -> None:
        super().make_layers()
        self.other_shift = nn.Parameter(torch.randn(5) * 0.02)

    def forward(self, x: Tensor, skipped: int = 3, is_other: bool = False) -> Tensor:
        x = self.first(x)
        for block_idx, block in enumerate(self.blocks):
            x = x if block_idx == skipped else block(x)
        return self.last(x) * self.scale + (self.other_shift if is_other else self.shift)


def on_four_ranks_steps_of_a_window_may_skip_blocks() -> None:
    for accumulation in ("reduce", *KEPT):
        expect_alike(
            {"accumulation": accumulation, "data_parallel_replicas": 2},
            lambda one: one.add(0, ends=False, skipped=0),
            lambda one: one.add(1, ends=False, skipped=2),
            lambda one: one.add(2, ends=True, skipped=1),
            Driver.update,
            lambda one: one.add(3, ends=False),
            lambda one: one.add(4, ends=True, skipped=1),
            Driver.update,
            make=Branching,
        )


def on_four_ranks_steps_of_a_window_that_use_other_parameters_of_a_block_need_whole_gradients() -> None:
    events = (
        lambda one: one.add(0, ends=False),
        lambda one: one.add(1, ends=True, is_other=True),
        Driver.update,
        lambda one: one.add(2, ends=True),
        Driver.update,
    )
    expect_alike({"accumulation": "keep", "data_parallel_replicas": 2}, *events, make=Branching)
    strategy = sharded(data_parallel_replicas=2)
    message = "`accumulation` must be 'keep' where the steps of an accumulation window use different parameters"
    with raises(RuntimeError, message, "for `other_shift` of Branching"):
        driver = Driver(strategy, Branching())
        for event in events:
            event(driver)
    strategy.teardown()


def on_four_ranks_several_optimizers_share_windows() -> None:
    for accumulation in ("reduce", *KEPT):
        expect_alike(
            {"accumulation": accumulation, "data_parallel_replicas": 2, "policy": 10**6},
            lambda one: one.add(0, ends=False),
            lambda one: one.add(1, ends=True),
            Driver.update,
            lambda one: one.add(2, ends=False),
            lambda one: one.add(3, ends=True),
            Driver.update,
            parts=("first", "blocks", "last"),
        )
