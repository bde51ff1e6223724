"""A model whose hook makes its layers, a training loop for any strategy, and comparisons of their outcomes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.optim import AdamW, Optimizer

from camshaft.strategies import ShardedStrategy, SingleDeviceStrategy

NUM_STEPS = 3
BATCH_SIZE = 8


class Block(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.up = nn.Linear(size, 3 * size)
        self.down = nn.Linear(3 * size, size)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    """A module with blocks in a list, children, own parameters (one from before the hook), and a buffer."""

    def __init__(self, size: int = 6) -> None:
        super().__init__()
        self.size = size
        self.blocks: nn.ModuleList | None = None
        self.scale = nn.Parameter(torch.full((5,), 1.5))

    def configure_model(self) -> None:
        if self.blocks is None:
            self.make_layers()
            self.apply(self.init)
            self.drawn = torch.rand(3)

    def make_layers(self) -> None:
        self.first = nn.Linear(4, self.size)
        self.blocks = nn.ModuleList(Block(self.size) for _ in range(3))
        self.last = nn.Linear(self.size, 5)
        self.shift = nn.Parameter(torch.randn(5) * 0.02)
        self.register_buffer("offset", torch.arange(5.0) / 10)

    def init(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x) * self.scale + self.shift + self.offset

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return F.mse_loss(self(batch[0]), batch[1])

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self(batch[0])


class ParallelNet(Net):
    """A module that splits its blocks over tensor-parallel ranks, if there are any."""

    def make_layers(self) -> None:
        super().make_layers()
        mesh = getattr(self, "device_mesh", None)
        if mesh is not None and mesh["tensor_parallel"].size() > 1:
            for block in self.blocks:
                parallelize_module(block, mesh["tensor_parallel"], {"up": ColwiseParallel(), "down": RowwiseParallel()})


class ShardingNet(ParallelNet):
    """A module that shards its blocks itself."""

    def make_layers(self) -> None:
        super().make_layers()
        if hasattr(self, "device_mesh"):
            for block in self.blocks:
                fully_shard(block, mesh=self.device_mesh["data_parallel_shards"])


class WhollyShardingNet(ShardingNet):
    """A module that shards its blocks and then itself."""

    def make_layers(self) -> None:
        super().make_layers()
        if hasattr(self, "device_mesh"):
            fully_shard(self, mesh=self.device_mesh["data_parallel_shards"])


def sharded(**arguments: Any) -> ShardedStrategy:
    return ShardedStrategy(accelerator="cpu", timeout=60, **arguments)


def batches(num_batches: int, size: int = BATCH_SIZE) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [
        (torch.randn(size, 4, generator=generator), torch.randn(size, 5, generator=generator))
        for _ in range(num_batches)
    ]


def set_up(strategy: Any, module: Any) -> None:
    strategy.connect()
    with strategy.model_context(module):
        module.configure_model()
    strategy.setup_module(module)


def train(
    strategy: Any,
    module: Any,
    *,
    num_steps: int = NUM_STEPS,
    accumulate: int = 1,
    clip: tuple[float, str] | None = None,
    make_optimizer: Callable[..., Optimizer] = AdamW,
    lr: float = 1e-2,
    optimizer_state: Mapping[str, Any] | None = None,
    begin: Callable[[], None] = lambda: None,
) -> Optimizer:
    """Train as loops do: each rank takes its share of the same global batches. `begin` is called at first."""
    step = strategy.wrap_step(module.training_step)
    set_up(strategy, module)
    begin()
    (optimizer,) = strategy.setup_optimizers([make_optimizer(module.parameters(), lr=lr)])
    if optimizer_state is not None:
        strategy.load_optimizer_state(optimizer, optimizer_state)
    given = iter(batches(num_steps * accumulate))
    share = slice(strategy.data_rank, None, strategy.num_data_ranks)
    for step_idx in range(num_steps):
        optimizer.zero_grad()
        for idx, (x, y) in enumerate(itertools.islice(given, accumulate)):
            if accumulate > 1:
                strategy.set_gradient_sync(idx == accumulate - 1)
            strategy.backward(step((x[share], y[share]), step_idx) / accumulate)
        strategy.unscale_gradients(optimizer)
        if clip is not None:
            strategy.clip_gradients(optimizer, *clip)
        strategy.optimizer_step(optimizer)
    strategy.teardown()
    return optimizer


def whole(value: Any) -> Any:
    """Return a nested value with whole tensors in place of sharded ones."""
    if isinstance(value, Mapping):
        return {key: whole(item) for key, item in value.items()}
    if isinstance(value, DTensor):
        return value.full_tensor()
    return value.detach().clone() if isinstance(value, Tensor) else value


def state(module: nn.Module) -> dict[str, Tensor]:
    return whole(module.state_dict())


def assert_close(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], tolerance: float = 1e-5) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        say = partial("{}: {}".format, name)
        torch.testing.assert_close(ours[name], value, rtol=tolerance, atol=tolerance, msg=say)


def check_equals_one_device(
    arguments: Mapping[str, Any],
    training: Mapping[str, Any] | None = None,
    *,
    make: Callable[[], Net] = Net,
    tolerance: float = 1e-5,
) -> Net:
    """Build and train a model sharded and on one device: the same initial bits, and weights within a tolerance."""
    make_precision = arguments.get("precision", lambda: "32-true")
    training = training or {}
    torch.manual_seed(1)
    one = make()
    initial: list[Any] = []
    single = SingleDeviceStrategy("cpu", precision=make_precision())
    train(single, one, begin=lambda: initial.extend((state(one), torch.get_rng_state())), **training)
    torch.manual_seed(1)
    ours = make()

    def compare() -> None:
        assert torch.equal(torch.get_rng_state(), initial[1])
        assert torch.equal(ours.drawn, one.drawn)
        assert_close(state(ours), initial[0], 0.0)
        assert any(isinstance(parameter, DTensor) for parameter in ours.parameters())

    train(sharded(**{**arguments, "precision": make_precision()}), ours, begin=compare, **training)
    assert_close(state(ours), state(one), tolerance)
    return ours


@contextmanager
def raises(kind: type[BaseException], *parts: str) -> Any:
    """Assert that the block raises, as `pytest.raises`, in processes without pytest."""
    try:
        yield
    except kind as error:
        text = str(error) + "".join(getattr(error, "__notes__", []))
        for part in parts:
            assert part in text, f"{part!r} is not in {text!r}"
        return
    raise AssertionError(f"{kind.__name__} was not raised")
