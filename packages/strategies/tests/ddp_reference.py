"""What checks of DDPStrategy train, and with what they compare it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Optimizer

from camshaft.strategies import DDPStrategy, SingleDeviceStrategy

NUM_BATCHES = 4
BATCH_SIZE = 8  # of all processes together


class Net(nn.Module):
    """A module with steps, a buffer that training changes, and perhaps batch normalisation."""

    def __init__(self, seed: int = 0, *, has_batch_norm: bool = False) -> None:
        super().__init__()
        torch.manual_seed(seed)
        middle = nn.BatchNorm1d(16) if has_batch_norm else nn.Identity()
        self.net = nn.Sequential(nn.Linear(4, 16), middle, nn.Tanh(), nn.Linear(16, 1))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: Tensor, batch_idx: int = 0) -> Tensor:
        self.seen += batch.sum()
        return (self(batch) - batch.sum(1, keepdim=True)).square().mean()


def global_batches(count: int = NUM_BATCHES) -> list[Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(BATCH_SIZE, 4, generator=generator) for _ in range(count)]


def share(batch: Tensor) -> Tensor:
    """This process's part of a batch of all."""
    return batch[dist.get_rank() :: dist.get_world_size()]


def strategy_of(accelerator: str = "cpu", **arguments: Any) -> DDPStrategy:
    strategy = DDPStrategy(accelerator=accelerator, timeout=120, **arguments)
    strategy.connect()
    return strategy


def train(
    strategy: DDPStrategy | SingleDeviceStrategy,
    module: nn.Module,
    batches: list[Tensor],
    *,
    accumulate: int = 1,
    clip: tuple[float, str] | None = None,
    make: Callable[..., Optimizer] = lambda own: SGD(own, lr=0.1, momentum=0.9),
    after: Callable[[], None] = lambda: None,
) -> list[bool]:
    """Train as the loops do. Returns which updates were skipped; `after` is called after each."""
    step = strategy.wrap_step(module.training_step)
    strategy.setup_module(module)
    (optimizer,) = strategy.setup_optimizers([make(module.parameters())])
    skipped = []
    for idx, batch in enumerate(batches):
        is_last = idx % accumulate == accumulate - 1
        if accumulate != 1:
            strategy.set_gradient_sync(is_last)
        loss = step(strategy.batch_to_device(batch), idx)
        if loss is not None:
            strategy.backward(loss / accumulate)
        if is_last:
            strategy.unscale_gradients(optimizer)
            if clip is not None:
                strategy.clip_gradients(optimizer, *clip)
            strategy.optimizer_step(optimizer)
            skipped.append(strategy.has_skipped_step)
            after()
            optimizer.zero_grad()
    strategy.teardown()
    return skipped


def state(module: nn.Module) -> list[Tensor]:
    return [value.detach().cpu().clone() for value in module.state_dict().values()]


def weights(module: nn.Module) -> list[Tensor]:
    return [value.detach().cpu().clone() for value in module.parameters()]


def assert_equal(one: list[Tensor], other: list[Tensor]) -> None:
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a, b), (a, b)


def assert_sums_equal(one: list[Tensor], other: list[Tensor]) -> None:
    """To the bit on two ranks; sums of more depend on how gradients lie side by side, which here is settled earlier."""
    if torch.distributed.get_world_size() == 2:
        assert_equal(one, other)
    else:
        assert_close(one, other)


def assert_close(one: list[Tensor], other: list[Tensor], **tolerance: float) -> None:
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, **tolerance)


def assert_same_on_all_ranks(tensors: list[Tensor]) -> None:
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, tensors)
    for other in gathered:
        assert_equal(tensors, other)


def assert_differs_between_ranks(tensor: Tensor) -> None:
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, tensor)
    assert not all(torch.equal(gathered[0], other) for other in gathered[1:])


def train_by_hand(
    module: Net, batches: list[Tensor], *, accumulate: int = 1, hook: Any = None, **arguments: Any
) -> list[bool]:
    """What a good engineer would write with DistributedDataParallel."""
    dtype, scaler = arguments.pop("autocast", None), arguments.pop("scaler", torch.amp.GradScaler(enabled=False))
    clip_val = arguments.pop("clip_val", None)

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, batch: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype, enabled=dtype is not None):
                return module.training_step(batch)

    ddp = DistributedDataParallel(Wrapped(), **arguments)
    if hook is not None:
        ddp.register_comm_hook(None, hook)
    optimizer = SGD(module.parameters(), lr=0.1, momentum=0.9)
    skipped = []
    for idx, batch in enumerate(batches):
        is_last = idx % accumulate == accumulate - 1
        ddp.require_backward_grad_sync = is_last
        scaler.scale(ddp(batch) / accumulate).backward()
        if is_last:
            scaler.unscale_(optimizer)
            if clip_val is not None:
                nn.utils.clip_grad_norm_(module.parameters(), clip_val)
            before = module.net[0].weight.clone()
            scaler.step(optimizer)
            scaler.update()
            skipped.append(torch.equal(before, module.net[0].weight))
            optimizer.zero_grad()
    return skipped
