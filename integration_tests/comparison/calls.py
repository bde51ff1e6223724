"""Ways to read and change recorded calls."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch

from comparison.configuration import Configuration
from comparison.recording import Call, Recording

OWNERS = ("first", "second", "monitor", "data", "module", "strategy")
"""Receivers in camshaft's order, where callbacks are passed in this order."""


def single(value: float) -> float:
    """A number in single precision."""
    return float(torch.tensor(value, dtype=torch.float32))


def drop(recording: Recording, is_dropped: Callable[[Call], bool]) -> None:
    """Leave calls out."""
    recording.calls = [call for call in recording.calls if not is_dropped(call)]


def change(recording: Recording, hooks: Container[str], changed: Callable[[Call], Call]) -> None:
    """Put another call in the place of each call of some hooks."""
    recording.calls = [changed(call) if call.hook in hooks else call for call in recording.calls]


def unseen(call: Call, *names: str) -> Call:
    """The call without some of what could be seen on entering."""
    return attrs.evolve(call, seen={name: value for name, value in call.seen.items() if name not in names})


def reorder(recording: Recording, ranks: Mapping[str, int], hooks: Container[str] | None = None) -> None:
    """Sort neighbouring calls of one hook on different receivers; those of equal rank keep their order.

    Args:
        recording: What to change.
        ranks: The receivers' ranks; a call on another receiver stays where it is.
        hooks: The hooks; None for all.
    """
    calls: list[Call] = []
    group: list[Call] = []
    for call in recording.calls:
        is_meant = call.receiver in ranks and (hooks is None or call.hook in hooks)
        if not is_meant or any(call.hook != one.hook or call.receiver == one.receiver for one in group):
            calls += sorted(group, key=lambda one: ranks[one.receiver])
            group = []
        (group if is_meant else calls).append(call)
    recording.calls = calls + sorted(group, key=lambda one: ranks[one.receiver])


def in_verbs(calls: Sequence[Call]) -> list[list[Call]]:
    """The calls of each verb, which begins by asking the module for callbacks."""
    verbs: list[list[Call]] = []
    for call in calls:
        if call.hook == "configure_callbacks":
            verbs.append([])
        verbs[-1].append(call)
    return verbs


def take(recording: Recording, hooks: Container[str]) -> list[Call]:
    """Take the calls of some hooks out of a recording."""
    taken = [call for call in recording.calls if call.hook in hooks]
    drop(recording, lambda call: call.hook in hooks)
    return taken


def in_batches(calls: Sequence[Call]) -> Iterator[tuple[int | None, Call]]:
    """Each call with the index of the training batch that it belongs to, None outside of batches."""
    batch_idx: int | None = None
    for call in calls:
        if call.hook == "on_train_batch_start":
            batch_idx = call.arguments["batch_idx"]
        elif call.hook in ("on_train_epoch_end", "on_train_start", "setup"):
            batch_idx = None
        yield batch_idx, call


def map_loss(value: Any, function: Callable[[float], float]) -> Any:
    """The summary of a loss, or of a dictionary with one, with a function of its value."""
    if isinstance(value, dict):
        return {**value, "loss": map_loss(value["loss"], function)} if "loss" in value else value
    *facts, number = value
    return (*facts, function(number))


def window_of(configuration: Configuration, batch_idx: int) -> range:
    """The batches of the accumulation window of a batch."""
    start = batch_idx - batch_idx % configuration.window
    return range(start, start + configuration.real_window(batch_idx))


def is_empty_window(configuration: Configuration, batch_idx: int) -> bool:
    """Whether no batch of the window of a batch has a loss."""
    return all(idx in configuration.no_loss_at for idx in window_of(configuration, batch_idx))
