"""Checks that several processes make together: what they exchange, and of which parameters."""

from __future__ import annotations

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
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.optim import SGD

from camshaft.strategies.precision import ScaledPrecision


def check_arguments_of_torch_reach_it() -> None:
    own = [share(batch) for batch in global_batches()]
    for arguments in (
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
        {"find_unused_parameters": True},
        {"bucket_cap_mb": 0.0001},
    ):
        ours, by_hand = Net(has_batch_norm=True), Net(has_batch_norm=True)
        strategy = strategy_of(**arguments)
        seen: list[Any] = []
        train(strategy, ours, own, after=lambda strategy=strategy, seen=seen: seen.append(strategy._replica.ddp))
        train_by_hand(by_hand, own, **arguments)
        assert_equal(state(by_hand), state(ours))
        for name, value in arguments.items():
            assert getattr(seen[0], name, value) == value
        assert seen[0].bucket_bytes_cap == int(arguments.get("bucket_cap_mb", 25) * 2**20)


def check_communication_hooks_exchange_the_gradients() -> None:
    own = [share(batch) for batch in global_batches()]
    by_hand, ours, plain = Net(), Net(), Net()
    train_by_hand(by_hand, own, hook=default_hooks.fp16_compress_hook)
    train(strategy_of(comm_hook=default_hooks.fp16_compress_hook), ours, own)
    train(strategy_of(), plain, own)
    assert_equal(weights(by_hand), weights(ours))
    assert not torch.equal(plain.net[0].weight, ours.net[0].weight)

    compressed = Net()
    train(strategy_of(comm_hook=default_hooks.bf16_compress_hook), compressed, own)
    assert_close(weights(plain), weights(compressed), rtol=0.05, atol=0.05)
    assert not torch.equal(plain.net[0].weight, compressed.net[0].weight)
    assert_same_on_all_ranks(weights(compressed))

    def counting(counts: list[int], bucket: dist.GradBucket) -> Any:  # its annotations are strings
        counts.append(bucket.buffer().numel())
        return default_hooks.allreduce_hook(None, bucket)

    counts: list[int] = []
    averaged = Net()
    train(strategy_of(comm_hook=counting, comm_state=counts), averaged, own)
    assert counts == [4 * 16 + 16 + 16 + 1] * NUM_BATCHES
    assert_equal(weights(plain), weights(averaged))


def check_a_communication_hook_works_with_a_scaler() -> None:
    own = [share(batch) for batch in global_batches()]
    ours, by_hand = Net(), Net()
    precision = ScaledPrecision("cpu", init_scale=2.0**16)  # compressed gradients overflow at first
    skipped = train(strategy_of(precision=precision, comm_hook=default_hooks.fp16_compress_hook), ours, own)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    hook = default_hooks.fp16_compress_hook
    assert skipped == train_by_hand(by_hand, own, hook=hook, autocast=torch.float16, scaler=scaler)
    assert_equal(weights(by_hand), weights(ours))
    assert_same_on_all_ranks(weights(ours))


def check_power_sgd_survives_overflows_and_a_second_run() -> None:
    memory = PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=1)
    precision = ScaledPrecision("cpu", init_scale=64.0)
    strategy = strategy_of(precision=precision, comm_hook=powerSGD_hook, comm_state=memory)
    own = [share(batch) for batch in global_batches(8)]
    own[4] = own[4] * 1e6
    module = Net()
    assert train(strategy, module, own) == [False] * 4 + [True] + [False] * 3
    assert memory.error_dict
    assert all(torch.isfinite(value).all() for value in memory.error_dict.values())
    other = nn.Sequential(nn.Linear(4, 64), nn.Linear(64, 1))
    other.training_step = lambda batch, _: other(batch).square().mean()  # type: ignore[assignment]
    train(strategy, other, own[:4])
    assert_same_on_all_ranks([*weights(module), *weights(other)])


class Branching(nn.Module):
    """Rank 0 uses the left branch, the others the right one, and nobody the third."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right, self.third = (nn.Linear(4, 1) for _ in range(3))

    def training_step(self, batch: Tensor, batch_idx: int) -> dict[str, Tensor]:
        branch = self.left if dist.get_rank() == 0 else self.right
        return {"loss": branch(batch).square().mean()}


def check_unused_parameters_are_found_where_that_is_asked_for() -> None:
    module, own = Branching(), share(global_batches()[0])
    strategy = strategy_of(find_unused_parameters=True)
    step = strategy.wrap_step(module.training_step)
    strategy.setup_module(module)
    (optimizer,) = strategy.setup_optimizers([SGD(module.parameters(), lr=0.1)])
    for _ in range(2):
        strategy.backward(step(own, 0)["loss"])
        assert module.third.weight.grad is None
        assert_same_on_all_ranks([module.left.weight.grad, module.right.weight.grad])
        assert module.left.weight.grad.abs().sum() > 0 and module.right.weight.grad.abs().sum() > 0
        strategy.optimizer_step(optimizer)
        optimizer.zero_grad()
    strategy.teardown()


def check_unused_parameters_are_an_error_before_the_first_update() -> None:
    for backward_of_ones_own in (False, True):
        module = Net()
        module.spare = nn.Linear(1, 1)
        strategy = strategy_of()
        step = strategy.wrap_step(module.training_step)
        strategy.setup_module(module)
        (optimizer,) = strategy.setup_optimizers([SGD(module.parameters(), lr=0.1)])
        loss = step(share(global_batches()[0]), 0)
        before = state(module)
        try:
            loss.backward() if backward_of_ones_own else strategy.backward(loss)
            strategy.optimizer_step(optimizer)
        except RuntimeError as error:
            text = str(error)
        assert "`find_unused_parameters` must be True where a loss does not depend on all trainable" in text, text
        assert "(this one does not on spare.weight, spare.bias), but got False" in text, text
        assert_equal(before, state(module))
        strategy.teardown()


def check_parameters_that_a_module_wants_left_alone_are_left_alone() -> None:
    module = Net(seed=0)
    module._ddp_params_and_buffers_to_ignore = ["net.3.bias", "seen"]
    strategy = strategy_of(find_unused_parameters=True)
    step = strategy.wrap_step(module.training_step)
    strategy.setup_module(module)
    strategy.backward(step(share(global_batches()[0]), 0))
    assert_differs_between_ranks(module.net[3].bias.grad)
    assert_same_on_all_ranks([module.net[3].weight.grad])
    strategy.teardown()


def check_ranks_agree_on_an_overflow_in_sharded_gradients() -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = nn.Parameter(distribute_tensor(torch.ones(8), mesh, [Replicate()]))
    parts = nn.Parameter(distribute_tensor(torch.ones(8), mesh, [Shard(0)]))
    plain = nn.Parameter(torch.ones(1))
    strategy = strategy_of(precision=ScaledPrecision("cpu", init_scale=8.0))
    strategy.precision.agree = lambda found: bool(strategy.reduce(found, "max"))
    (optimizer,) = strategy.setup_optimizers([SGD([plain, whole, parts], lr=0.5)])
    for factor, expected in ((torch.inf, 1.0), (2.0, 0.0)):
        factors = torch.full((8,), 2.0)
        factors[-1] = factor  # on the last rank
        optimizer.zero_grad()
        loss = (parts * distribute_tensor(factors, mesh, [Shard(0)])).sum() + (whole * 2).sum()
        strategy.backward(loss.full_tensor() + plain.sum() * 2)
        strategy.unscale_gradients(optimizer)
        assert plain.grad.item() == 2.0
        optimizer.step()
        assert strategy.has_skipped_step is (expected == 1.0)
        assert_equal([plain, whole.full_tensor(), parts.full_tensor()], [torch.full((n,), expected) for n in (1, 8, 8)])
    assert strategy.state_dict()["gradient_scaler"]["scale"] == 4.0
    strategy.teardown()
