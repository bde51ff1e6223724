"""Checks that several processes make together: what setting a module up does, and what is left of it."""

from __future__ import annotations

import gc
import warnings
import weakref
from typing import Any

import torch
import torch.distributed as dist
from ddp_reference import (
    NUM_BATCHES,
    Net,
    assert_close,
    assert_differs_between_ranks,
    assert_equal,
    assert_same_on_all_ranks,
    global_batches,
    share,
    state,
    strategy_of,
    train,
    train_by_hand,
    weights,
)
from torch import Tensor, nn
from torch.optim import SGD

from camshaft.strategies import DDPStrategy, SingleDeviceStrategy


def check_all_ranks_begin_with_the_weights_and_buffers_of_the_first() -> None:
    expected = state(Net(seed=0, has_batch_norm=True))
    for is_frozen in (False, True):
        module = Net(seed=dist.get_rank(), has_batch_norm=True)
        module.net[1].running_mean.fill_(dist.get_rank())
        module.requires_grad_(not is_frozen)
        module.register_buffer("phase", torch.full((2, 3), complex(0, dist.get_rank())).T)
        strategy = strategy_of()
        strategy.setup_module(module)
        module.phase.sum().item()
        assert_equal(expected, [value for name, value in module.state_dict().items() if name != "phase"])
        assert module.phase.abs().sum() == 0
        strategy.teardown()


def check_modules_that_differ_are_refused_on_every_rank() -> None:
    module = nn.Linear(2, 3 + dist.get_rank())
    try:
        strategy_of().setup_module(module)
    except ValueError as error:
        text = str(error)
    assert "`module` must be the same on all ranks (rank 0 has ('weight', (3, 2), torch.float32))" in text, text
    assert "but got ('weight', (4, 2), torch.float32) (tuple) in setup_module on rank 1" in text, text
    lazy = nn.LazyLinear(2)
    try:
        strategy_of().setup_module(lazy)
    except ValueError as error:
        text = str(error)
    assert "`parameter` must be of a known shape, but got 'weight'" in text, text


def check_evaluation_communicates_nothing_but_the_buffers_at_its_start() -> None:
    for broadcasts in (True, False):
        module = Net(has_batch_norm=True)
        strategy = strategy_of(broadcast_buffers=broadcasts)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            train(strategy, module, [share(batch) for batch in global_batches()])
        assert_differs_between_ranks(module.net[1].running_mean)
        local = state(module)
        strategy.setup_module(module)
        if not broadcasts:
            module.load_state_dict(dict(zip(module.state_dict(), local, strict=True)))
        module.eval()
        step = strategy.wrap_step(module.training_step)
        for start in (strategy.on_validation_start, strategy.on_test_start, strategy.on_predict_start):
            module.net[1].running_mean += dist.get_rank()
            with torch.inference_mode(start is not strategy.on_validation_start), torch.no_grad():
                start()
                (assert_same_on_all_ranks if broadcasts else lambda some: assert_differs_between_ranks(some[0]))(
                    [module.net[1].running_mean]
                )
                for _ in range(dist.get_rank() * 2):  # the others have had their last batch
                    step(global_batches()[0], 0)
        strategy.teardown()


def check_a_module_can_be_set_up_again_and_is_left_plain() -> None:
    module, own = Net(), [share(batch) for batch in global_batches()]
    names = list(module.state_dict())
    strategy = strategy_of()
    wrappers: list[Any] = []
    train(strategy, module, own, after=lambda: wrappers.append(weakref.ref(strategy._replica.ddp)))
    gc.collect()
    assert [wrapper() for wrapper in wrappers] == [None] * NUM_BATCHES
    strategy.setup_module(module)  # as for validation
    strategy.setup_module(module)
    try:
        strategy.setup_module(Net())
    except RuntimeError as error:
        assert "`module` must be the one that is set up (Net) until `teardown`, but got 'Net'" in str(error), error
    else:
        raise AssertionError("another module was set up")
    strategy.teardown()
    train(strategy, module, own)
    train(strategy, Net(), own)
    by_hand = Net()
    for _ in range(2):
        train_by_hand(by_hand, own)
    assert_equal(weights(by_hand), weights(module))
    assert list(module.state_dict()) == names
    module.zero_grad()
    module.training_step(own[0]).backward()
    assert_differs_between_ranks(module.net[0].weight.grad)


def check_what_becomes_trainable_later_is_averaged_from_the_next_epoch_on() -> None:
    def run(strategy: DDPStrategy | SingleDeviceStrategy, module: Net, batches: list[Tensor]) -> None:
        step = strategy.wrap_step(module.training_step)
        module.net[0].requires_grad_(False)
        strategy.setup_module(module)
        (optimizer,) = strategy.setup_optimizers([SGD(module.parameters(), lr=0.1)])
        for epoch in range(3):
            module.net[0].requires_grad_(epoch == 1)
            for idx, batch in enumerate(batches):
                strategy.on_train_batch_start(batch, idx)
                optimizer.zero_grad()
                strategy.backward(step(batch, idx))
                strategy.optimizer_step(optimizer)
        strategy.teardown()

    one_device, ours = Net(), Net()
    run(SingleDeviceStrategy("cpu"), one_device, global_batches())
    run(strategy_of(), ours, [share(batch) for batch in global_batches()])
    assert_close(weights(one_device), weights(ours))
    assert_same_on_all_ranks(weights(ours))


def check_a_module_without_trainable_parameters_runs() -> None:
    module = Net().requires_grad_(False)
    strategy = strategy_of()
    step = strategy.wrap_step(module.training_step)
    strategy.setup_module(module)
    assert strategy.setup_optimizers([]) == []
    assert step(share(global_batches()[0]), 0).requires_grad is False
    strategy.teardown()


def check_a_loop_may_call_what_setting_up_returned() -> None:
    module, by_hand = Net(), Net()
    strategy = strategy_of(precision="bf16-mixed")
    computing = strategy.setup_module(module)
    (optimizer,) = strategy.setup_optimizers([SGD(module.parameters(), lr=0.1, momentum=0.9)])
    for batch in global_batches():
        output = computing(share(batch))
        assert output.dtype == torch.bfloat16
        with torch.autocast("cpu", torch.bfloat16):
            loss = (output - share(batch).sum(1, keepdim=True)).square().mean()
        strategy.backward(loss)
        strategy.optimizer_step(optimizer)
        optimizer.zero_grad()
    strategy.teardown()
    train_by_hand(by_hand, [share(batch) for batch in global_batches()], autocast=torch.bfloat16)
    assert_equal(weights(by_hand), weights(module))


class Hidden(nn.Sequential):
    """Compiling in place takes no module whose code is torch's own."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


def check_a_module_that_was_compiled_in_place_trains_the_same() -> None:
    compiled_graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled_graphs.append(graph)
        return aot_eager(graph, inputs)

    aot_eager = torch._dynamo.lookup_backend("aot_eager")
    own = [share(batch) for batch in global_batches()]
    plain, compiled = Net(), Net()
    compiled.net = Hidden(*compiled.net)
    compiled.net.compile(backend=backend)
    train(strategy_of(), plain, own)
    train(strategy_of(), compiled, own)
    assert len(compiled_graphs) == 1
    assert_close(weights(plain), weights(compiled))
    assert_same_on_all_ranks(weights(compiled))


def check_batch_norm_on_cpus_is_refused_where_it_would_be_synchronised() -> None:
    strategy_of(sync_batchnorm=True).setup_module(Net())
    try:
        strategy_of(sync_batchnorm=True).setup_module(Net(has_batch_norm=True))
    except ValueError as error:
        text = str(error)
    assert "`sync_batchnorm` must be False on several CPUs, for which torch has none" in text, text


def batch_norm_is_over_all_ranks() -> None:
    """On GPUs alone."""
    strategy = strategy_of("cuda", sync_batchnorm=True)
    one_device, ours = Net(has_batch_norm=True), Net(has_batch_norm=True)
    train(SingleDeviceStrategy(strategy.device), one_device, global_batches())
    train(strategy, ours, [share(batch) for batch in global_batches()])
    assert type(ours.net[1]) is nn.BatchNorm1d
    for name, value in one_device.state_dict().items():
        if name != "seen":  # of each rank's own batches
            torch.testing.assert_close(value, ours.state_dict()[name], rtol=1e-4, atol=1e-5)
