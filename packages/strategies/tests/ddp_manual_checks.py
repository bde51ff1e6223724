"""Checks that several processes make together: several optimizers, and backwards inside of steps."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from ddp_reference import (
    NUM_BATCHES,
    Net,
    assert_close,
    assert_differs_between_ranks,
    assert_same_on_all_ranks,
    global_batches,
    share,
    strategy_of,
    weights,
)
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Optimizer

from camshaft.strategies import DDPStrategy, SingleDeviceStrategy
from camshaft.strategies.precision import ScaledPrecision


class Gan(nn.Module):
    """Two networks that train against each other, by manual optimization."""

    automatic_optimization = False

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.generator, self.critic = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        self.register_buffer("count", torch.zeros(()))
        self.kind = kind
        self.strategy: Any = None
        self.optimizers: list[Optimizer] = []

    def configure_optimizers(self) -> list[Optimizer]:
        return [SGD(self.generator.parameters(), lr=0.1), SGD(self.critic.parameters(), lr=0.1)]

    def training_step(self, batch: Tensor, batch_idx: int) -> None:
        getattr(self, self.kind)(batch)
        self.count.add_(1)

    def in_turn(self, batch: Tensor) -> None:
        of_generator, of_critic = self.optimizers
        of_critic.zero_grad()
        self.strategy.backward((self.critic(batch) - 1).square().mean())
        self.strategy.backward(self.critic(self.generator(batch).detach()).square().mean())
        of_critic.step()
        of_generator.zero_grad()
        self.strategy.backward((self.critic(self.generator(batch)) - 1).square().mean())
        of_generator.step()

    def together(self, batch: Tensor) -> None:
        fake = self.generator(batch)
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss = self.critic(fake).square().mean()
        differentiate = lambda loss: loss.backward(retain_graph=True)  # noqa: E731
        self.strategy.backward(loss, differentiate)
        self.strategy.backward((fake - batch).square().mean())
        for optimizer in self.optimizers:
            optimizer.step()

    def toggled(self, batch: Tensor) -> None:
        for optimizer, network, other in zip(
            self.optimizers, (self.generator, self.critic), (self.critic, self.generator), strict=True
        ):
            other.requires_grad_(False)
            optimizer.zero_grad()
            self.strategy.backward(self.critic(self.generator(batch)).square().mean())
            optimizer.step()
            other.requires_grad_(True)
            assert network is not other

    def accumulating(self, batch: Tensor) -> None:
        of_critic = self.optimizers[1]
        of_critic.zero_grad()
        first, second = batch.chunk(2)
        if isinstance(self.strategy, DDPStrategy):
            with self.strategy.no_sync():
                self.strategy.backward(self.critic(first).square().mean() / 2)
                assert_differs_between_ranks(self.critic[0].weight.grad)
        else:
            self.strategy.backward(self.critic(first).square().mean() / 2)
        self.strategy.backward(self.critic(second).square().mean() / 2)
        of_critic.step()


class Whole(Gan):
    """Manual optimization whose one backward reaches everything."""

    def everything(self, batch: Tensor) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        self.strategy.backward(self.critic(self.generator(batch)).square().mean())
        for optimizer in self.optimizers:
            optimizer.step()


def run_manually(strategy: DDPStrategy | SingleDeviceStrategy, module: Gan, batches: list[Tensor]) -> None:
    step = strategy.wrap_step(module.training_step)
    strategy.setup_module(module)
    module.strategy, module.optimizers = strategy, strategy.setup_optimizers(module.configure_optimizers())
    for idx, batch in enumerate(batches):
        strategy.on_train_batch_start(batch, idx)
        step(batch, idx)
    strategy.teardown()


def check_manual_optimization_equals_one_device_however_often_it_calls_backward() -> None:
    precisions = [lambda: "64-true", lambda: ScaledPrecision("cpu", init_scale=64.0, growth_interval=2)]
    for precision in precisions:
        for kind in ("in_turn", "together", "toggled", "accumulating"):
            for says_so in (True, False):
                one_device, ours = Gan(kind), Gan(kind)
                if not says_so:
                    ours.automatic_optimization = True
                run_manually(SingleDeviceStrategy("cpu", precision=precision()), one_device, global_batches())
                strategy = strategy_of(precision=precision(), find_unused_parameters=True)
                run_manually(strategy, ours, [share(batch) for batch in global_batches()])
                assert_same_on_all_ranks(weights(ours))
                tolerance = {"rtol": 1e-9, "atol": 1e-12} if precision() == "64-true" else {"rtol": 0.02, "atol": 1e-3}
                assert_close(weights(one_device), weights(ours), **tolerance)
                assert ours.count == NUM_BATCHES


def check_buffers_are_those_of_the_first_rank_at_a_steps_begin_and_its_own_during_it() -> None:
    class Counting(Whole):
        def everything(self, batch: Tensor) -> None:
            assert self.count == self.num_steps * 10
            self.count += 10 + dist.get_rank()
            scaled = self.critic(self.generator(batch)) * self.count  # whose backward needs the buffer as it was
            self.strategy.backward(scaled.square().mean())
            assert self.count == self.num_steps * 10 + 10 + dist.get_rank()
            self.count -= 1  # which the step that called this adds
            self.num_steps += 1

    for says_so in (True, False):
        module = Counting("everything")
        module.num_steps = 0
        module.automatic_optimization = not says_so
        run_manually(strategy_of(), module, [share(batch) for batch in global_batches()])
        assert module.num_steps == NUM_BATCHES


def check_a_backward_that_bypasses_the_strategy_inside_a_step_is_an_error() -> None:
    class Bypassing(Whole):
        def everything(self, batch: Tensor) -> None:
            self.critic(self.generator(batch)).square().mean().backward()

    for says_so in (True, False):
        module = Bypassing("everything")
        module.automatic_optimization = not says_so
        try:
            run_manually(strategy_of(), module, [share(global_batches()[0])])
        except RuntimeError as error:
            text = str(error)
        assert "`loss.backward` must be called by the strategy's `backward` inside a step" in text, text


def check_manual_optimization_without_the_search_for_unused_parameters_says_so() -> None:
    module = Gan("in_turn")
    try:
        run_manually(strategy_of(), module, [share(global_batches()[0])])
    except RuntimeError as error:
        text = str(error)
    assert "does not on generator.weight, generator.bias" in text, text


def check_manual_optimization_with_a_static_graph() -> None:
    one_device, ours = Whole("everything"), Whole("everything")
    run_manually(SingleDeviceStrategy("cpu", precision="64-true"), one_device, global_batches())
    strategy = strategy_of(static_graph=True, precision="64-true")
    run_manually(strategy, ours, [share(batch) for batch in global_batches()])
    assert_close(weights(one_device), weights(ours), rtol=1e-9, atol=1e-12)

    silent = Whole("everything")
    silent.automatic_optimization = True
    try:
        run_manually(strategy_of(static_graph=True), silent, [share(global_batches()[0])])
    except RuntimeError as error:
        text = str(error)
    assert "`static_graph` must be False where a step calls backward without" in text, text


def check_optimizers_in_turn_each_with_a_step_of_its_own() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 1)

        def training_step(self, batch: Tensor) -> Tensor:
            return self.right(self.left(batch)).square().mean()

    def run(strategy: DDPStrategy | SingleDeviceStrategy, module: Pair, batches: list[Tensor]) -> None:
        step = strategy.wrap_step(module.training_step)
        strategy.setup_module(module)
        networks = [module.left, module.right]
        optimizers = strategy.setup_optimizers([SGD(network.parameters(), lr=0.1) for network in networks])
        for batch in batches:
            for idx, optimizer in enumerate(optimizers):
                networks[1 - idx].requires_grad_(False)
                optimizer.zero_grad()
                strategy.backward(step(batch))
                strategy.optimizer_step(optimizer)
                networks[1 - idx].requires_grad_(True)
        strategy.teardown()

    one_device, ours = Pair(), Pair()
    run(SingleDeviceStrategy("cpu"), one_device, global_batches())
    run(strategy_of(find_unused_parameters=True), ours, [share(batch) for batch in global_batches()])
    assert_close(weights(one_device), weights(ours))


def check_an_optimizer_that_evaluates_the_loss_itself_equals_one_device() -> None:
    def run(strategy: DDPStrategy | SingleDeviceStrategy, module: Net, batch: Tensor) -> None:
        step = strategy.wrap_step(module.training_step)
        strategy.setup_module(module)
        (optimizer,) = strategy.setup_optimizers([LBFGS(module.parameters(), max_iter=4)])

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = step(batch, 0)
            strategy.backward(loss)
            return loss

        for _ in range(2):
            strategy.optimizer_step(optimizer, closure)
        strategy.teardown()

    one_device, ours = Net(), Net()
    run(SingleDeviceStrategy("cpu", precision="64-true"), one_device, global_batches()[0])
    run(strategy_of(precision="64-true"), ours, share(global_batches()[0]))
    assert_close(weights(one_device), weights(ours), rtol=1e-7, atol=1e-9)
