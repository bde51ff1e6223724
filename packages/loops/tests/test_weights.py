"""Fit ends with the weights of a loop written by hand, bit for bit, and counts the same updates."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch
from bare_parts import (
    LOADER_KINDS,
    SIZED_KINDS,
    BareTrainer,
    Net,
    Stream,
    adam,
    make_batches,
    make_loader,
    same_bits,
    seeded,
    sgd,
    weights,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from overriding_parts import override
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import DataLoader, TensorDataset

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@attrs.frozen(kw_only=True)
class Schedule:
    """What is trained, and how."""

    optimizer: str
    num_epochs: int
    num_batches: int
    accumulate: int
    clip: tuple[float, str] | None
    scheduler: tuple[str, int] | None
    max_steps: int
    none_at: frozenset[int]
    overrides: frozenset[str]
    num_val_batches: int


def schedules(**fixed: Any) -> st.SearchStrategy[Schedule]:
    drawn: dict[str, Any] = {
        "optimizer": st.sampled_from(["sgd", "adam"]),
        "num_epochs": st.integers(1, 3),
        "num_batches": st.integers(1, 6),
        "accumulate": st.integers(1, 4),
        "clip": st.none() | st.tuples(st.sampled_from([0.05, 0.5]), st.sampled_from(["norm", "value"])),
        "scheduler": st.none() | st.tuples(st.sampled_from(["step", "epoch"]), st.integers(1, 3)),
        "max_steps": st.sampled_from([-1, -1, 1, 2, 5]),
        "none_at": st.frozensets(st.integers(0, 5), max_size=3),
        "overrides": st.frozensets(
            st.sampled_from(["optimizer_step", "optimizer_zero_grad", "backward", "configure_gradient_clipping"])
        ),
        "num_val_batches": st.integers(0, 2),
    }
    return st.builds(Schedule, **{**drawn, **fixed})


class ScheduledNet(Net):
    """Trains as a schedule says; dropout shows that nothing else draws random numbers."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(dropout=0.3)
        self.schedule = schedule

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None if batch_idx in self.schedule.none_at else self.loss(batch)

    def configure_optimizers(self) -> Any:
        optimizer = (sgd if self.schedule.optimizer == "sgd" else adam)(self)
        if self.schedule.scheduler is None:
            return optimizer
        interval, frequency = self.schedule.scheduler
        scheduler = {"scheduler": ExponentialLR(optimizer, 0.7), "interval": interval, "frequency": frequency}
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


def train_by_hand(net: ScheduledNet, loader: Any, num_batches: int) -> int:
    """Train as anybody would without a framework. Returns the number of updates."""
    schedule = net.schedule
    optimizer = (sgd if schedule.optimizer == "sgd" else adam)(net)
    scheduler = ExponentialLR(optimizer, 0.7)
    interval, frequency = schedule.scheduler or ("never", 1)
    num_updates = 0
    for epoch in range(schedule.num_epochs):
        for batch_idx, batch in enumerate(loader):
            first = batch_idx - batch_idx % schedule.accumulate
            window = range(first, min(first + schedule.accumulate, num_batches))
            if batch_idx == first:
                optimizer.zero_grad()
            if batch_idx not in schedule.none_at:
                (net.loss(batch) / len(window)).backward()
            if batch_idx != window[-1] or schedule.none_at.issuperset(window):
                continue
            if schedule.clip is not None:
                value, algorithm = schedule.clip
                clip = nn.utils.clip_grad_norm_ if algorithm == "norm" else nn.utils.clip_grad_value_
                clip(net.parameters(), value)
            optimizer.step()
            num_updates += 1
            if interval == "step" and num_updates % frequency == 0:
                scheduler.step()
            if num_updates == schedule.max_steps:
                return num_updates
        if interval == "epoch" and (epoch + 1) % frequency == 0:
            scheduler.step()
    return num_updates


def fit(net: ScheduledNet, loader: Any) -> int:
    """Train the same with the loop. Returns the number of updates."""
    schedule = net.schedule
    override(net, *schedule.overrides)
    value, algorithm = schedule.clip or (None, None)
    trainer = BareTrainer(
        net,
        max_epochs=schedule.num_epochs,
        max_steps=schedule.max_steps,
        accumulate_grad_batches=schedule.accumulate,
        gradient_clip_val=value,
        gradient_clip_algorithm=algorithm,
        val_check_interval=1,
        num_sanity_val_steps=schedule.num_val_batches,
    )
    trainer.fit(loader, make_loader("sized", make_batches(schedule.num_val_batches)))
    return trainer.global_step


def shuffled(batches: list[Any], *, own_generator: bool) -> DataLoader[Any]:
    """A shuffling loader that draws from torch's global generator, or from one of its own."""
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    generator = torch.Generator().manual_seed(7) if own_generator else None
    return DataLoader(TensorDataset(x, y), batch_size=len(batches[0][0]), shuffle=True, generator=generator)


LOADERS = {
    "sized": lambda batches: make_loader("sized", batches),
    "shuffled": lambda batches: shuffled(batches, own_generator=False),
    "shuffled by a generator of its own": lambda batches: shuffled(batches, own_generator=True),
}


@settings(max_examples=100, deadline=None)
@given(schedules(), st.sampled_from(sorted(LOADERS)))
def test_weights_and_updates_are_those_of_a_loop_by_hand(schedule: Schedule, kind: str) -> None:
    batches = make_batches(schedule.num_batches)
    by_hand, by_loop = seeded(ScheduledNet, schedule), seeded(ScheduledNet, schedule)
    torch.manual_seed(3)
    num_updates = train_by_hand(by_hand, LOADERS[kind](batches), len(batches))
    torch.manual_seed(3)
    assert fit(by_loop, LOADERS[kind](batches)) == num_updates
    assert same_bits(weights(by_loop), weights(by_hand))


@settings(max_examples=60, deadline=None)
@given(schedules(max_steps=st.just(-1)), st.sampled_from(LOADER_KINDS))
def test_every_kind_of_loader_trains_the_same(schedule: Schedule, kind: str) -> None:
    """Bit for bit where the length is known or no window is cut short.

    Where the end of a stream cuts a window short, gradients were divided by the full length already and are multiplied
    afterwards: (g / 3) * (3 / 2) rounds otherwise than g / 2, so that equality is up to rounding there.
    """
    batches = make_batches(schedule.num_batches)
    by_hand, by_loop = seeded(ScheduledNet, schedule), seeded(ScheduledNet, schedule)
    by_hand.dropout.p = by_loop.dropout.p = 0.0  # a DataLoader draws a seed for each epoch, the others do not
    num_updates = train_by_hand(by_hand, batches, len(batches))
    assert fit(by_loop, make_loader(kind, batches)) == num_updates
    if kind in SIZED_KINDS or len(batches) % schedule.accumulate == 0:
        assert same_bits(weights(by_loop), weights(by_hand))
    else:
        for one, other in zip(weights(by_loop), weights(by_hand), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("promised", [3, 5, 8])
def test_a_stream_that_promises_another_length_is_averaged_over_what_it_gave(promised: int) -> None:
    schedule = Schedule(
        optimizer="sgd", num_epochs=2, num_batches=5, accumulate=3, clip=None, scheduler=None, max_steps=-1,
        none_at=frozenset(), overrides=frozenset(), num_val_batches=0,
    )  # fmt: skip
    batches = make_batches(5)
    by_hand, by_loop = seeded(ScheduledNet, schedule), seeded(ScheduledNet, schedule)
    by_hand.dropout.p = by_loop.dropout.p = 0.0
    taken = batches[:promised]
    assert fit(by_loop, DataLoader(Stream(batches, promised), batch_size=None)) == train_by_hand(
        by_hand, taken, len(taken)
    )
    for one, other in zip(weights(by_loop), weights(by_hand), strict=True):
        torch.testing.assert_close(one, other)
