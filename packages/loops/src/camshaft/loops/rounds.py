"""Evaluation in step: what a process does while others still have batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.protocols import Strategy
from camshaft.loops.batches import is_open_ended, leaves_of
from camshaft.loops.loader_length import UNKNOWN
from camshaft.loops.shared_loader import check_same_data, whole_length


def agree_on_rounds(
    loaders: Sequence[Iterable[Any]], num_batches: Sequence[int | float], strategy: Strategy, stage: str
) -> list[int | float]:
    """How many batches of each loader the process takes that takes most. Collective.

    Args:
        loaders: The loaders of this process.
        num_batches: How many batches it takes of each.
        strategy: Connects the processes.
        stage: Whose loaders they are, for errors.

    Returns:
        The numbers, per loader; infinity if some process does not know before it has read them.

    Raises:
        ValueError: If the processes have different numbers of loaders, or share out different data.
    """
    numbers = [
        UNKNOWN if is_open_ended(loader) else number for loader, number in zip(loaders, num_batches, strict=True)
    ]
    wholes = [[whole_length(leaf) for leaf in leaves_of(loader)] for loader in loaders]
    of_ranks = strategy.all_gather((numbers, wholes))
    counts = [len(numbers) for numbers, _ in of_ranks]
    if len(set(counts)) > 1:
        rule = "as many in every process"
        raise ValueError(must_be(f"{stage} loaders", rule, counts, "EvaluationLoop", "Give all the same loaders."))
    for lengths in zip(
        *[[whole for of_loader in wholes for whole in of_loader] for _, wholes in of_ranks], strict=True
    ):
        check_same_data(list(lengths), f"{stage} loader")
    return [max(of_loader) for of_loader in zip(*[numbers for numbers, _ in of_ranks], strict=True)]


def in_rounds(
    batches: Iterator[tuple[int, Any, bool]], num_rounds: int | float, strategy: Strategy
) -> Iterator[tuple[int, Any, bool]]:
    """Give a process's batches, and take part in the steps of others once it has no more. Collective.

    Args:
        batches: The batches, numbered.
        num_rounds: How many the process has that has most; if that is infinite, all tell each other before each batch
            whether they have one.
        strategy: Connects the processes.
    """
    if num_rounds != UNKNOWN:
        num_given = 0
        for numbered in batches:
            num_given += 1
            yield numbered
        for _ in range(num_given, int(num_rounds)):
            strategy.idle_step()
        return
    while True:
        mine = next(batches, None)
        if not strategy.reduce(torch.tensor(int(mine is not None)), "max").item():
            return
        if mine is None:
            strategy.idle_step()
        else:
            yield mine
