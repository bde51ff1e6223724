"""A recurrent module with one to three optimizers, what it is trained with, and the same training written by hand."""

from __future__ import annotations

from typing import Any

import attrs
import torch
from bare_parts import BareTrainer, make_loader
from hypothesis import strategies as st
from overriding_parts import override
from torch import Tensor, nn

NUM_UNITS = 2


@attrs.frozen(kw_only=True)
class Plan:
    """What is trained, and how.

    Attributes:
        lengths: Time steps of each batch.
        split_size: Time steps of a split; None leaves batches whole.
        frequencies: One for each optimizer, or none.
        none_at: Batch, split and optimizer of the steps without a loss.
        kind: The kind of loader.
    """

    num_epochs: int = 1
    lengths: tuple[int, ...] = (4, 3, 5)
    split_size: int | None = None
    accumulate: int = 1
    num_optimizers: int = 1
    frequencies: tuple[int, ...] = ()
    clip: tuple[float, str] | None = None
    none_at: frozenset[tuple[int, int, int]] = frozenset()
    zero_grad: Any = "before_backward"
    overrides: frozenset[str] = frozenset()
    kind: str = "sized"
    max_steps: int = -1


@st.composite
def plans(draw: Any, **fixed: Any) -> Plan:
    """Plans whose attributes are drawn but for those that are `fixed`."""
    num_optimizers = fixed.get("num_optimizers", draw(st.integers(1, 3)))
    lengths = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    frequencies = st.tuples(*[st.integers(1, 3)] * num_optimizers) if num_optimizers > 1 else st.just(())
    may_override = ["optimizer_step", "optimizer_zero_grad", "backward"]
    may_override += ["configure_gradient_clipping"] if num_optimizers == 1 else []  # it clips what all of them have
    drawn = {
        "num_epochs": draw(st.integers(1, 2)),
        "lengths": lengths,
        "split_size": draw(st.sampled_from([None, 1, 2, 3])),
        "accumulate": draw(st.integers(1, 4)),
        "num_optimizers": num_optimizers,
        "frequencies": draw(st.just(()) | frequencies),
        "clip": draw(st.none() | st.tuples(st.sampled_from([0.05, 0.5]), st.sampled_from(["norm", "value"]))),
        "none_at": draw(st.frozensets(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 2)), max_size=6)),
        "zero_grad": draw(st.sampled_from(["before_training_step", "before_backward", "after_optimizer_step"])),
        "overrides": draw(st.frozensets(st.sampled_from(may_override))),
        "kind": draw(st.sampled_from(["sized", "unsized"])),
        "max_steps": draw(st.sampled_from([-1, -1, 1, 2, 5])),
    }
    return Plan(**{**drawn, **fixed})


class Recurrent(nn.Module):
    """One cell for each optimizer, and a head for all that the first one has."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan
        self.cells = nn.ModuleList(nn.Linear(1 + NUM_UNITS, NUM_UNITS) for _ in range(plan.num_optimizers))
        self.head = nn.Linear(NUM_UNITS, 1)
        self.calls: list[tuple[int, int, bool]] = []
        self._split_idx = 0

    def unroll(self, x: Tensor, cell_idx: int, hidden: Tensor | None) -> tuple[Tensor, Tensor]:
        """The loss of a piece of a batch, and the hidden state after it."""
        hidden = torch.zeros(len(x), NUM_UNITS) if hidden is None else hidden
        for step in x.unbind(1):
            hidden = torch.tanh(self.cells[cell_idx](torch.cat([step, hidden], dim=1)))
            for other in self.cells:  # so that every loss reaches every parameter that requires a gradient
                hidden = hidden + 0.01 * other.bias
        return (self.head(hidden) - 1).square().mean(), hidden

    def training_step(self, batch: Any, batch_idx: int, optimizer_idx: int, hiddens: Any = None) -> Any:
        x, split_idx = batch[0], int(batch[1][0, 0, 0]) if self.plan.split_size is not None else 0
        self.calls.append((batch_idx, optimizer_idx, hiddens is None))
        if (batch_idx, split_idx, optimizer_idx) in self.plan.none_at:
            return None
        loss, hidden = self.unroll(x, optimizer_idx, hiddens)
        return {"loss": loss, "hiddens": hidden} if self.plan.split_size is not None else loss

    def make_optimizers(self) -> list[torch.optim.Optimizer]:
        parameters = [list(cell.parameters()) for cell in self.cells]
        parameters[0] += self.head.parameters()
        return [
            torch.optim.SGD(own, lr=0.1, momentum=0.9) if idx % 2 == 0 else torch.optim.Adam(own, lr=0.05)
            for idx, own in enumerate(parameters)
        ]

    def configure_optimizers(self) -> Any:
        optimizers = self.make_optimizers()
        if self.plan.frequencies:
            pairs = zip(optimizers, self.plan.frequencies, strict=True)
            return [{"optimizer": optimizer, "frequency": frequency} for optimizer, frequency in pairs]
        return optimizers


def make_sequences(plan: Plan, batch_size: int = 2, seed: int = 1) -> list[tuple[Tensor, Tensor]]:
    """Batches of sequences; beside them goes, for each time step, the index of its split."""
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for length in plan.lengths:
        split_idx = torch.arange(length) // (plan.split_size or length)
        x = torch.randn(batch_size, length, 1, generator=generator)
        batches.append((x, split_idx.view(1, -1, 1).expand(batch_size, -1, 1)))
    return batches


def fit(module: nn.Module, plan: Plan, checkpoint: Any = None, **arguments: Any) -> BareTrainer:
    """Train with the loop, from a checkpoint on if there is one."""
    override(module, *plan.overrides)
    value, algorithm = plan.clip or (None, None)
    trainer = BareTrainer(
        module,
        max_epochs=plan.num_epochs,
        max_steps=plan.max_steps,
        accumulate_grad_batches=plan.accumulate,
        gradient_clip_val=value,
        gradient_clip_algorithm=algorithm,
        zero_grad=plan.zero_grad,
        truncated_bptt_steps=plan.split_size,
        **arguments,
    )
    return trainer.fit(make_loader(plan.kind, make_sequences(plan)), checkpoint=checkpoint)


def train_by_hand(module: Recurrent) -> int:
    """Train as anybody would without a framework. Returns the number of updates."""
    plan, num_updates = module.plan, 0
    optimizers = module.make_optimizers()
    turns = [[idx] for idx, frequency in enumerate(plan.frequencies) for _ in range(frequency)]
    turns = turns or [list(range(plan.num_optimizers))]
    for _ in range(plan.num_epochs):
        pieces = [
            (batch_idx, piece)
            for batch_idx, (x, _) in enumerate(make_sequences(plan))
            for piece in ([x] if plan.split_size is None else x.split(plan.split_size, dim=1))
        ]
        hiddens: list[Any] = []
        has_gradients: set[int] = set()
        split_idx = 0
        for step, (batch_idx, piece) in enumerate(pieces):
            begins_batch = step == 0 or pieces[step - 1][0] != batch_idx
            split_idx = 0 if begins_batch else split_idx + 1
            hiddens = [None] * len(optimizers) if begins_batch else hiddens
            first = step - step % plan.accumulate
            window = range(first, min(first + plan.accumulate, len(pieces)))
            divisor = len(window) if _is_length_known(plan, pieces[first][0]) else plan.accumulate
            due = turns[(first // plan.accumulate) % len(turns)]
            is_update = False
            for idx in due:
                optimizer = optimizers[idx]
                others = {parameter for other in optimizers if other is not optimizer for parameter in _of(other)}
                for parameter in others:
                    parameter.requires_grad = False
                if step == first:
                    optimizer.zero_grad()
                    has_gradients.discard(idx)
                if (batch_idx, split_idx, idx) not in plan.none_at:
                    loss, hidden = module.unroll(piece, idx, hiddens[idx])
                    hiddens[idx] = hidden.detach()
                    (loss / divisor).backward()
                    has_gradients.add(idx)
                if step == window[-1] and idx in has_gradients:
                    _correct(optimizer, divisor / len(window))
                    _clip(optimizer, plan)
                    optimizer.step()
                    is_update = True
                for parameter in others:
                    parameter.requires_grad = True
            num_updates += is_update
            ends_batch = step + 1 == len(pieces) or pieces[step + 1][0] != batch_idx
            if ends_batch and num_updates >= plan.max_steps > 0:
                return num_updates
    return num_updates


def _is_length_known(plan: Plan, first_batch_idx: int) -> bool:
    """Whether the length of a window is known when it begins, in a batch of this index."""
    if first_batch_idx == len(plan.lengths) - 1:
        return True
    return plan.kind == "sized" and plan.split_size is None


def _correct(optimizer: torch.optim.Optimizer, factor: float) -> None:
    if factor != 1:
        for parameter in _of(optimizer):
            if parameter.grad is not None:
                parameter.grad.mul_(factor)


def _clip(optimizer: torch.optim.Optimizer, plan: Plan) -> None:
    if plan.clip is not None:
        value, algorithm = plan.clip
        clip = nn.utils.clip_grad_norm_ if algorithm == "norm" else nn.utils.clip_grad_value_
        clip(_of(optimizer), value)


def _of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
