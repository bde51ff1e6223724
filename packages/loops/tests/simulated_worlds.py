"""Chains of runs on worlds of different sizes, each stopped inside an epoch: what the processes read, without them.

The ranks of a world read one after the other in one process. What a run read after the checkpoint from which the next
one goes on does not count: its weights are lost as well.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np
import torch
from bare_ranks import on_ranks
from ranks_in_turn import TapedStrategy, in_turn, seed_all

from camshaft.loops.data.loaders import leaves_of, set_epoch
from camshaft.loops.data.shared_loader import share_out
from camshaft.loops.data.training_batches import TrainingBatches
from camshaft.loops.state.random_state import generators_of, random_state, restore_random_state

MakeLoader = Callable[[TapedStrategy], Any]


@attrs.frozen
class Leg:
    """One run of a chain.

    Args:
        num_ranks: Size of its world.
        num_steps: Steps up to its last checkpoint; the rest of what it read is lost.
        num_lost: Steps after that, before it was killed.
    """

    num_ranks: int
    num_steps: int
    num_lost: int = 0


@attrs.define
class Checkpoint:
    """What a run leaves for the next one."""

    epoch: int = 0
    num_done: int = 0
    states: list[Any] = attrs.field(factory=list)
    numbers: list[Any] = attrs.field(factory=list)


def read_chain(
    make: MakeLoader,
    legs: Sequence[Leg],
    num_epochs: int,
    limit: int | float = 1.0,
    stateless: Any = "refuse",
    in_threads: bool = False,
) -> list[list[list[Any]]]:
    """Return what all ranks read in each epoch: steps, each with the batch of each rank; the last leg ends the run."""
    epochs: list[list[list[Any]]] = [[] for _ in range(num_epochs)]
    checkpoint = Checkpoint()
    for idx, leg in enumerate(legs):
        is_last = idx == len(legs) - 1

        def run(
            strategy: TapedStrategy, leg: Leg = leg, before: Checkpoint = checkpoint, is_last: bool = is_last
        ) -> Any:
            return _read_leg(make, strategy, leg, before, num_epochs, limit, stateless, is_last)

        results = on_ranks(leg.num_ranks, run) if in_threads else in_turn(leg.num_ranks, run, seeds=[7] * leg.num_ranks)
        num_read = {len(read) for read, _ in results}
        assert len(num_read) == 1, "all ranks read as many batches"
        for of_ranks in zip(*[read for read, _ in results], strict=True):
            [epoch] = {epoch for epoch, _ in of_ranks}
            epochs[epoch].append([batch for _, batch in of_ranks])
        saved = [after for _, after in results]
        checkpoint = Checkpoint(
            saved[0].epoch,
            saved[0].num_done,
            [one.states for one in saved] if saved[0].states else [],
            [one.numbers for one in saved],
        )
        if checkpoint.epoch == num_epochs:
            break
    return epochs


def _read_leg(
    make: MakeLoader,
    strategy: TapedStrategy,
    leg: Leg,
    before: Checkpoint,
    num_epochs: int,
    limit: int | float,
    stateless: Any,
    is_last: bool,
) -> tuple[list[tuple[int, Any]], Any]:
    """Read one rank's part of a run. Returns what it read, with the epochs, and its part of the checkpoint."""
    loader = share_out(make(strategy), strategy, stage="train")
    training = TrainingBatches(loader, 0, stateless, strategy)
    training.count(limit, "limit")
    generators = list(dict.fromkeys(one for leaf in leaves_of(loader) for one in generators_of(leaf)))
    epoch, num_done = before.epoch, before.num_done
    if before.states:
        rank = strategy.global_rank
        is_same = len(before.states) == strategy.world_size
        set_epoch(loader, epoch)
        training.set_epoch(epoch)
        training.load_state_dict(before.states[rank if is_same else 0], num_done)
        restore_random_state(before.numbers[rank if is_same else 0], generators)
    read: list[tuple[int, Any]] = []
    num_steps = leg.num_steps if not is_last else -1
    saved: Checkpoint | None = None
    if num_steps == 0:
        states = training.state_dict() if before.states else []
        saved = Checkpoint(epoch, num_done, states, random_state(generators))
    while epoch < num_epochs and len(read) != num_steps + leg.num_lost:
        if not num_done:
            set_epoch(loader, epoch)
            training.set_epoch(epoch)
        for _ in iter(training):
            read.append((epoch, as_plain(_[1])))
            num_done = _[0] + 1
            if len(read) == num_steps and not _[2]:
                saved = Checkpoint(epoch, num_done, training.state_dict(), random_state(generators))
            if len(read) == num_steps + leg.num_lost and not _[2]:
                break
        else:
            training.end_epoch()
            epoch, num_done = epoch + 1, 0
            if len(read) == num_steps:
                saved = Checkpoint(epoch, 0, training.state_dict(), random_state(generators))
    if saved is None:  # the run was over before
        saved = Checkpoint(epoch, num_done, training.state_dict(), random_state(generators))
        return read, saved
    return read[:num_steps], saved


def as_plain(batch: Any) -> Any:
    """Return the samples of a batch as lists."""
    if isinstance(batch, torch.Tensor):
        return batch.tolist()
    if isinstance(batch, dict):
        return {key: as_plain(one) for key, one in batch.items()}
    return [as_plain(one) for one in batch] if isinstance(batch, list) else batch


def in_their_order(steps: Sequence[Sequence[list[Any]]]) -> list[Any]:
    """Return the samples of some steps in the order that all ranks have together: one of each rank in turn."""
    order: list[Any] = []
    for batches in steps:
        order += [batch[idx] for idx in range(max(map(len, batches))) for batch in batches if idx < len(batch)]
    return order


def seed(number: int) -> None:
    """Seed everything."""
    seed_all(number)


def numbers() -> float:
    """Return a number of each generator."""
    return float(torch.rand(())) + random.random() + float(np.random.rand())
