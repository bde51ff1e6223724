"""Checks that several processes make together: training equals that on one device, and what one would write by hand."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from ddp_reference import (
    Net,
    assert_close,
    assert_differs_between_ranks,
    assert_equal,
    assert_same_on_all_ranks,
    assert_sums_equal,
    global_batches,
    share,
    state,
    strategy_of,
    train,
    train_by_hand,
    weights,
)
from torch import Tensor, nn
from torch.optim import SGD, Adam

from camshaft.strategies import SingleDeviceStrategy
from camshaft.strategies.precision import ScaledPrecision


def check_training_equals_one_device() -> None:
    one_device, ours, by_hand = Net(), Net(), Net()
    train(SingleDeviceStrategy("cpu"), one_device, global_batches())
    train(strategy_of(), ours, [share(batch) for batch in global_batches()])
    train_by_hand(by_hand, [share(batch) for batch in global_batches()])
    assert_close(weights(one_device), weights(ours))
    assert_sums_equal(state(by_hand), state(ours))
    assert_same_on_all_ranks(weights(ours))


def check_who_differentiates_a_loss_is_all_the_same() -> None:
    own = [share(batch) for batch in global_batches()]
    ours, others, torchs = Net(), Net(), Net()
    train(strategy_of(), ours, own)
    for module, replace in (
        (others, lambda plain: lambda loss: plain(loss, lambda loss: loss.backward())),
        (torchs, lambda plain: lambda loss: loss.backward()),  # an override of a module's own
    ):
        strategy = strategy_of()
        strategy.backward = replace(strategy.backward)  # type: ignore[method-assign]
        train(strategy, module, own)
        assert_equal(weights(ours), weights(module))


def check_training_equals_one_device_bitwise_where_arithmetic_is_exact() -> None:
    class Exact(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.arange(4.0))

        def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
            return (batch * self.weight).sum(1).mean()  # gradients are means of few small integers

    batches = [(batch * 4).round() for batch in global_batches()]
    one_device, ours = Exact(), Exact()
    for strategy, module, data in (
        (SingleDeviceStrategy("cpu"), one_device, batches),
        (strategy_of(), ours, [share(batch) for batch in batches]),
    ):
        train(strategy, module, data, make=lambda own: SGD(own, lr=0.5))
    assert_equal(weights(one_device), weights(ours))


def check_float64_equals_one_device_to_its_precision() -> None:
    one_device, ours = Net(), Net()
    train(SingleDeviceStrategy("cpu", precision="64-true"), one_device, global_batches(), make=Adam)
    train(strategy_of(precision="64-true"), ours, [share(batch) for batch in global_batches()], make=Adam)
    assert ours.net[0].weight.dtype == torch.float64
    assert_close(weights(one_device), weights(ours), rtol=1e-12, atol=1e-14)


def check_accumulation_communicates_at_a_windows_end_only() -> None:
    one_device, ours, by_hand = Net(), Net(), Net()
    train(SingleDeviceStrategy("cpu"), one_device, global_batches(6), accumulate=3)
    own = [share(batch) for batch in global_batches(6)]
    strategy = strategy_of()
    in_window: list[Tensor] = []
    plain_backward = strategy.backward

    def backward(loss: Tensor) -> None:
        plain_backward(loss)
        in_window.append(ours.net[0].weight.grad.clone())

    strategy.backward = backward  # type: ignore[method-assign]
    train(strategy, ours, own, accumulate=3)
    train_by_hand(by_hand, own, accumulate=3)
    for idx, gradient in enumerate(in_window):
        (assert_same_on_all_ranks if idx % 3 == 2 else lambda some: assert_differs_between_ranks(some[0]))([gradient])
    assert_close(weights(one_device), weights(ours))
    assert_sums_equal(weights(by_hand), weights(ours))


def check_a_window_whose_last_step_has_no_loss_is_averaged() -> None:
    class Choosy(Net):
        def training_step(self, batch: Tensor, batch_idx: int = 0) -> Tensor | None:  # type: ignore[override]
            return super().training_step(batch) if batch_idx % 3 != 2 else None

    for arguments in ({}, {"find_unused_parameters": True}, {"static_graph": True}, {"gradient_as_bucket_view": True}):
        one_device, ours = Choosy(), Choosy()
        train(SingleDeviceStrategy("cpu"), one_device, global_batches(9), accumulate=3)
        train(strategy_of(**arguments), ours, [share(batch) for batch in global_batches(9)], accumulate=3)
        assert_close(weights(one_device), weights(ours))
        assert_same_on_all_ranks(weights(ours))


def check_a_resumed_window_has_the_gradients_of_a_whole_one() -> None:
    class Branches(nn.Module):
        """Its branches take turns; where a window ends there may be no loss."""

        def __init__(self, has_last_loss: bool) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.parts = nn.ModuleList(nn.Linear(4, 2) for _ in range(2))
            self.has_last_loss = has_last_loss

        def training_step(self, batch: Tensor, batch_idx: int) -> Tensor | None:
            if batch_idx == 3 and not self.has_last_loss:
                return None
            return (self.parts[batch_idx % 2](batch) - batch.sum(1, keepdim=True)).square().mean()

    def layout(gradient: Tensor | None) -> object:
        if gradient is None:
            return None
        return gradient.data_ptr() % 64, gradient.stride(), gradient._is_view(), gradient.tolist()

    def go(
        module: Branches, idxs: range, saved: dict[str, Any] | None, arguments: dict[str, Any]
    ) -> tuple[list[list[object]], dict[str, Any]]:
        strategy = strategy_of(find_unused_parameters=True, **arguments)
        step = strategy.wrap_step(module.training_step)
        strategy.setup_module(module)
        (optimizer,) = strategy.setup_optimizers([Adam(module.parameters())])
        if saved is not None:
            module.load_state_dict(saved["module"])
            optimizer.load_state_dict(saved["optimizer"])
            strategy.load_state_dict(saved["strategy"])
            for parameter, gradient in zip(module.parameters(), saved["gradients"], strict=True):
                parameter.grad = gradient
        seen = []
        for idx in idxs:
            strategy.set_gradient_sync(idx % 2 == 1)
            loss = step(share(global_batches()[idx]), idx)
            if loss is not None:
                strategy.backward(loss / 2)
            seen.append([layout(parameter.grad) for parameter in module.parameters()])
            if idx % 2 == 1:
                strategy.optimizer_step(optimizer)
                optimizer.zero_grad()
        found = {"strategy": strategy.state_dict(), "optimizer": optimizer.state_dict()}
        gradients = [None if one.grad is None else one.grad.clone() for one in module.parameters()]
        strategy.teardown()
        assert strategy.state_dict() == found["strategy"]
        return seen, copy.deepcopy({**found, "module": module.state_dict(), "gradients": gradients})

    for has_last_loss in (True, False):
        for arguments in ({}, {"gradient_as_bucket_view": True}):
            whole, stopped, resumed = (Branches(has_last_loss) for _ in range(3))
            seen, _ = go(whole, range(4), None, arguments)
            _, saved = go(stopped, range(3), None, arguments)
            seen_after, _ = go(resumed, range(3, 4), saved, arguments)
            assert seen_after == seen[3:]
            assert_equal(weights(whole), weights(resumed))
            assert_same_on_all_ranks(weights(resumed))


def check_sparse_gradients_are_averaged_also_where_they_wait() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.embedding = nn.Embedding(8, 2, sparse=True)

        def training_step(self, batch: Tensor, batch_idx: int) -> Tensor | None:
            has_loss = batch_idx % 2 == 0 or batch_idx > 3
            return self.embedding((batch * 4).long() % 8).square().sum(2).mean() if has_loss else None

    one_device, ours = Words(), Words()
    make = lambda own: SGD(own, lr=0.5)  # noqa: E731
    train(SingleDeviceStrategy("cpu"), one_device, global_batches(6), accumulate=2, make=make)
    train(strategy_of(), ours, [share(batch) for batch in global_batches(6)], accumulate=2, make=make)
    assert_close(weights(one_device), weights(ours))


def check_clipping_equals_one_device() -> None:
    for clip in ((0.05, "norm"), (0.02, "value")):
        one_device, ours = Net(), Net()
        train(SingleDeviceStrategy("cpu"), one_device, global_batches(), clip=clip)
        train(strategy_of(), ours, [share(batch) for batch in global_batches()], clip=clip)
        assert_close(weights(one_device), weights(ours))
        unclipped = Net()
        train(SingleDeviceStrategy("cpu"), unclipped, global_batches())
        assert not torch.allclose(unclipped.net[0].weight, ours.net[0].weight)


def check_an_overflow_on_one_rank_skips_the_update_on_all() -> None:
    own = [share(batch) for batch in global_batches(6)]
    if dist.get_rank() == 1:
        own[2] = own[2] * 1e6  # more than float16 holds
    make = {"init_scale": 64.0, "growth_interval": 2}
    ours, by_hand = Net(), Net()
    strategy = strategy_of(precision=ScaledPrecision("cpu", **make))
    skipped = train(strategy, ours, own, clip=(1.0, "norm"))
    scaler = torch.amp.GradScaler("cpu", **make)
    skipped_by_hand = train_by_hand(by_hand, own, autocast=torch.float16, scaler=scaler, clip_val=1.0)
    assert skipped == skipped_by_hand == [False, False, True, False, False, False]
    assert strategy.state_dict()["gradient_scaler"] == scaler.state_dict()
    assert_sums_equal(state(by_hand), state(ours))
    assert_same_on_all_ranks(weights(ours))


def check_autocast_trains_as_by_hand() -> None:
    own = [share(batch) for batch in global_batches()]
    ours, by_hand = Net(), Net()
    train(strategy_of(precision="bf16-mixed"), ours, own)
    train_by_hand(by_hand, own, autocast=torch.bfloat16)
    assert_sums_equal(state(by_hand), state(ours))


def check_half_precision_throughout_trains_the_same_on_all_ranks() -> None:
    for precision in ("bf16-true", "16-true"):
        ours = Net()
        before = state(ours)
        train(strategy_of(precision=precision), ours, [share(batch) for batch in global_batches()])
        assert not torch.equal(before[1].to(ours.net[0].weight.dtype), ours.net[0].weight)
        assert_same_on_all_ranks(weights(ours))
