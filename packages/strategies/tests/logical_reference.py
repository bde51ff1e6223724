"""Trainings on logical ranks: as a loop makes them by a strategy, and by torch alone in one process."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

NUM_RANKS = 4
BATCH_SIZE = 4


class Transformer(nn.Module):
    """A small transformer with dropout."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.1, batch_first=True)
        self.embedding = nn.Embedding(11, 16)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 11)

    def training_step(self, batch: Tensor, batch_idx: int = 0) -> Tensor:
        tokens = batch.view(BATCH_SIZE, -1).abs().mul(5).long().remainder(11)
        return functional.cross_entropy(self.head(self.layers(self.embedding(tokens))).mT, tokens.roll(1, 1))


class ConvNet(nn.Module):
    """A convolutional net with batch normalisation, and a buffer that each step binds to another tensor."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 5, 3, padding=1), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(5 * 16, 3)
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("latest", None)

    def training_step(self, batch: Tensor, batch_idx: int = 0) -> Tensor:
        self.seen = self.seen * 0.9 + batch.sum()
        scale = 1.0 if self.latest is None else 1 + self.latest.abs().clamp(max=1)
        self.latest = batch.mean().detach()
        outputs = self.head(self.net(batch.view(BATCH_SIZE, 1, 4, 4)))
        return functional.cross_entropy(outputs * (1 + self.seen.tanh()), batch[:, 0].abs().long().clamp(max=2)) * scale


class Branches(nn.Module):
    """A module that uses other parameters for each batch, some for none, with gradients of -0.0."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList([nn.Linear(16, 3) for _ in range(3)])
        self.unused = nn.Linear(3, 3)
        self.negative = nn.Parameter(torch.ones(5))

    def training_step(self, batch: Tensor, batch_idx: int = 0) -> Tensor:
        choice = int(batch[0, 0].abs() * 10) % 4
        if choice == 3:  # the gradient of the others is missing here, and -0.0 elsewhere
            return self.branches[0](batch).square().mean()
        return self.branches[choice](batch).square().mean() + (self.negative * -0.0).sum()


class Twice(nn.Module):
    """A module that enters one of its layers twice in a step."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(16, 9), nn.Linear(9, 9), nn.Linear(9, 3)

    def training_step(self, batch: Tensor, batch_idx: int = 0) -> Tensor:
        return self.last(self.middle(self.middle(self.first(batch)).tanh())).square().mean()


class Gan(nn.Module):
    """Two networks that one step trains in turn, by optimizers of its own."""

    automatic_optimization = False

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.critic = (
            nn.Linear(16, 16),
            nn.Sequential(nn.Linear(16, 8), nn.Dropout(0.2), nn.Linear(8, 1)),
        )
        self.optimizers = [torch.optim.Adam(net.parameters(), lr=0.01) for net in (self.generator, self.critic)]

    def losses(self, batch: Tensor) -> Iterator[tuple[Optimizer, Tensor]]:
        """The loss of each optimizer, computed after the update by the one before."""
        made = self.generator(torch.randn_like(batch))
        yield self.optimizers[0], -self.critic(made).mean()
        yield self.optimizers[1], self.critic(made.detach()).mean() - self.critic(batch).mean()


@attrs.frozen
class Case:
    """One training.

    Attributes:
        module: Makes the module.
        make: Makes the optimizer.
        accumulate: Microbatches in a window, of each logical rank.
        clip: The largest norm of the gradients; None without clipping.
        zeros: Whether gradients are set to zeros, not to None.
        num_steps: Number of updates.
        arguments: Arguments of the strategy.
    """

    module: Callable[[], nn.Module]
    make: Callable[..., Optimizer] = torch.optim.AdamW
    accumulate: int = 1
    clip: float | None = None
    zeros: bool = False
    num_steps: int = 4
    arguments: dict[str, Any] = attrs.field(factory=dict)


CASES = {
    "transformer": Case(Transformer),
    "transformer, accumulating and clipping": Case(Transformer, accumulate=3, clip=0.5),
    "transformer in bf16-mixed": Case(Transformer, arguments={"precision": "bf16-mixed"}),
    "transformer in bf16-true": Case(Transformer, arguments={"precision": "bf16-true"}),
    "transformer in 16-mixed": Case(Transformer, clip=0.5, arguments={"precision": "16-mixed"}),
    "batch normalisation": Case(ConvNet),
    "batch normalisation, accumulating": Case(ConvNet, accumulate=3),
    "zeroed gradients": Case(ConvNet, accumulate=2, zeros=True),
    "bucket views": Case(ConvNet, accumulate=2, zeros=True, arguments={"gradient_as_bucket_view": True}),
    "a layer that is entered twice": Case(Twice, accumulate=2, clip=0.01),
    "fused updates": Case(Twice, partial(torch.optim.AdamW, fused=True), accumulate=2),
    "branches": Case(Branches, torch.optim.SGD, arguments={"find_unused_parameters": True}),
    "branches, accumulating": Case(Branches, accumulate=3, arguments={"find_unused_parameters": True}),
}


def batch_of(rank: int, batch_idx: int) -> Tensor:
    """Return a logical rank's batch, and seed the random numbers that its step draws."""
    generator = torch.Generator().manual_seed(1000 * rank + batch_idx)
    torch.manual_seed(77 * rank + batch_idx)
    return torch.randn(BATCH_SIZE, 16, generator=generator)


def train(strategy: Any, case: Case, begin: dict[str, Any] | None = None, until: int | None = None) -> dict[str, Any]:
    """Train by a strategy, as the loops do.

    Args:
        begin: What an earlier call returned, on any number of processes.
        until: The batch before which training stops; None trains to the end.

    Returns:
        The state of everything, as far as it is the same on all ranks; open windows in rank 0.
    """
    torch.manual_seed(1)
    module = case.module()
    step = strategy.wrap_step(module.training_step)
    strategy.setup_module(module)
    (optimizer,) = strategy.setup_optimizers([case.make(module.parameters(), lr=0.01)])
    first, last = 0, case.num_steps * case.accumulate if until is None else until
    if begin is not None:
        first = begin["batch"]
        if "latest" in begin["module"]:  # None at first
            module.latest = torch.zeros(())
        strategy.load_module_state(module, begin["module"])
        strategy.load_optimizer_state(optimizer, begin["optimizer"])
        strategy.load_state_dict(begin["strategy"])
        strategy.load_logical_gradients(begin["open"])
    for batch_idx in range(first, last):
        is_last = batch_idx % case.accumulate == case.accumulate - 1
        if case.accumulate > 1:
            strategy.set_gradient_sync(is_last)
        for rank in strategy.logical_ranks:
            strategy.enter_logical_rank(rank)
            loss = step(batch_of(rank, batch_idx), batch_idx)
            if batch_idx % case.accumulate == 0 and rank == strategy.logical_ranks.start:
                optimizer.zero_grad(set_to_none=not case.zeros)
            strategy.backward(loss / case.accumulate)
        strategy.leave_logical_ranks()
        if is_last:
            strategy.unscale_gradients(optimizer)
            if case.clip is not None:
                strategy.clip_gradients(optimizer, case.clip, "norm")
            strategy.optimizer_step(optimizer)
    gradients = [parameter.grad for parameter in module.parameters()] if last % case.accumulate == 0 else []
    found = {
        "batch": last,
        "module": module.state_dict(),
        "optimizer": optimizer.state_dict(),
        "strategy": strategy.state_dict(),
        "open": strategy.logical_gradients(),
        "gradients": gradients,
    }
    found = whole(found)
    strategy.teardown()
    return found


def whole(value: Any) -> Any:
    """Return a copy of nested values with whole tensors in place of sharded ones. Collective if there are any."""
    if isinstance(value, Tensor):
        return copy.deepcopy(value.full_tensor() if hasattr(value, "full_tensor") else value)
    if isinstance(value, dict):
        return type(value)((key, whole(item)) for key, item in value.items())
    return type(value)(map(whole, value)) if isinstance(value, (list, tuple)) else copy.deepcopy(value)


def digest(value: Any) -> str:
    """Return a hash of all bits in nested values, and of where they stand."""
    found = hashlib.sha256()
    for part in _parts(value):
        found.update(part)
    return found.hexdigest()


def _parts(value: Any) -> Iterator[bytes]:
    if isinstance(value, Tensor):
        yield repr((value.dtype, value.shape)).encode()
        yield value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    elif isinstance(value, dict):
        for key, item in value.items():
            yield repr(key).encode()
            yield from _parts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _parts(item)
    else:
        yield repr(value).encode()


def tree_sum(parts: Sequence[Tensor]) -> Tensor:
    """Return the sum of tensors along the binary tree, as plainly as one can write it."""
    while len(parts) > 1:
        parts = [one + other for one, other in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def clip(parameters: Sequence[nn.Parameter], max_norm: float) -> None:
    """Clip gradients by a norm that is summed along trees, over each row and then over all rows."""

    def halved(values: Tensor) -> Tensor:
        while len(values) > 1:
            half, rest = (len(values) + 1) // 2, len(values) // 2
            values = torch.cat([values[:rest] + values[half:], values[rest:half]])
        return values[0]

    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = halved(torch.stack([halved(row.square().flatten()) for one in gradients for row in one])).sqrt()
    for one in gradients:
        one *= (max_norm / (norm + 1e-6)).clamp(max=1.0)


def train_by_hand(case: Case) -> dict[str, Any]:
    """Train without a strategy, in plain precision. Returns the final state of the module, and gradients."""
    torch.manual_seed(1)
    module = case.module()
    parameters = list(module.parameters())
    of_first = [copy.deepcopy(dict(part._buffers)) for part in module.modules()]
    optimizer = case.make(parameters, lr=0.01)
    for update in range(case.num_steps):
        before, of_ranks = [], []
        is_used = [False] * len(parameters)
        for rank in range(NUM_RANKS):
            optimizer.zero_grad()
            for idx in range(case.accumulate):
                if rank == 0:
                    before.append(of_first)
                for part, buffers in zip(module.modules(), before[idx], strict=True):
                    part._buffers.update(copy.deepcopy(buffers))
                batch_idx = update * case.accumulate + idx
                batch = batch_of(rank, batch_idx)
                (module.training_step(batch, batch_idx) / case.accumulate).backward()  # type: ignore[operator]
                if rank == 0:
                    of_first = [copy.deepcopy(dict(part._buffers)) for part in module.modules()]
            is_used = [known or one.grad is not None for known, one in zip(is_used, parameters, strict=True)]
            of_ranks.append([torch.zeros_like(one) if one.grad is None else one.grad for one in parameters])
        for parameter, used, *gradients in zip(parameters, is_used, *of_ranks, strict=True):
            parameter.grad = tree_sum(gradients) / NUM_RANKS if used else None
        if case.clip is not None:
            clip(parameters, case.clip)
        optimizer.step()
    for part, buffers in zip(module.modules(), of_first, strict=True):
        part._buffers.update(buffers)
    return {"module": module.state_dict(), "gradients": [parameter.grad for parameter in parameters]}
