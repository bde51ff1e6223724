"""The samples that a run has seen, by its ledger: which of them once, and in the same order as another run."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.forensics.ledger.ledger_file import Ledger, find_ledger, read_ledger, updates_of

_NUM_NAMED = 10


@attrs.frozen
class EpochSamples:
    """The samples of an epoch.

    Attributes:
        epoch: Its index.
        is_complete: Whether the epoch came to its end.
        order: The dataset indices of the samples, in the order that all processes have together: of each batch one of
            each process in turn.
        missed: Those that the epoch lacks; empty if it did not come to its end, or the length of the data is unknown.
        repeated: Those that were seen more than once.
        num_padding: Number of samples at the epoch's end that were seen before, to fill the last batch of some
            processes. They are not among `repeated`.
    """

    epoch: int
    is_complete: bool
    order: list[int] = attrs.field(repr=False)
    missed: list[int]
    repeated: list[int]
    num_padding: int

    @property
    def is_exact(self) -> bool:
        """True if each sample was seen once, padding apart."""
        return not (self.missed or self.repeated)

    def __str__(self) -> str:
        num_seen = len(set(self.order))
        lines = [f"Epoch {self.epoch}: {num_seen:,} samples" + ("" if self.is_complete else ", not over")]
        lines += [f"  missed: {_some(self.missed)}"] if self.missed else []
        lines += [f"  seen more than once: {_some(self.repeated)}"] if self.repeated else []
        lines += [f"  given again at the end, to fill the last batches: {self.num_padding}"] if self.num_padding else []
        return "\n".join(lines if not self.is_exact or self.num_padding else [f"{lines[0]}, each once"])


def exactly_once(run: str | os.PathLike[str]) -> list[EpochSamples]:
    """Tell which samples each epoch of a run has missed, or seen more than once, by the run's ledger.

    That holds across stops, kills and other numbers of processes: a resumed run cuts off what came after its
    checkpoint, whose weights are lost as well.

    Args:
        run: The ledger of a run, or a folder that holds it.

    Returns:
        The epochs, in their order.

    Raises:
        FileNotFoundError: If there is no ledger, or more than one.
        LedgerError: If it is damaged, or is none.
        InvalidArgumentError: If it does not note the samples of every update, by their indices in one dataset.
    """
    ledger = read_ledger(find_ledger(run))
    num_samples = ledger.header["data"]["num_samples"]
    end = next((line for line in ledger.lines if "end" in line), {})
    found = []
    epochs = orders_of(ledger)
    for epoch, (order, num_ranks) in epochs.items():
        num_padding = _num_padding(order, num_ranks)
        counts = Counter(order[: len(order) - num_padding])
        missed = [one for one in range(num_samples or 0) if one not in counts]
        # a run that was killed after its last checkpoint has no line with "end"
        is_complete = epoch < max(max(epochs), end.get("epoch", 0)) or bool(num_samples and not missed)
        missed = missed if is_complete else []
        repeated = sorted(one for one, count in counts.items() if count > 1)
        found.append(EpochSamples(epoch, is_complete, order, missed, repeated, num_padding))
    return found


def _num_padding(order: Sequence[int], num_ranks: int) -> int:
    """Return how many samples at the end of an epoch fill it up: the first ones again, fewer than processes."""
    for num_padding in range(min(num_ranks, len(order)) - 1, 0, -1):
        whole = order[:-num_padding]
        if list(order[-num_padding:]) == [whole[idx % len(whole)] for idx in range(num_padding)]:
            return num_padding
    return 0


def orders_of(ledger: Ledger) -> dict[int, tuple[list[int], int]]:
    """Return the samples of each epoch in their order, and the number of shares of the data at its end.

    Args:
        ledger: A ledger.

    Raises:
        InvalidArgumentError: As `exactly_once`.
    """
    epochs: dict[int, tuple[list[int], int]] = {}
    step = ledger.header["first_step"] - 1
    for line, data_ranks in updates_of(ledger):
        if line["step"] != step + 1:
            rule = "one with a line for each update"
            raise InvalidArgumentError("ledger", rule, f"step {line['step']} after {step}", str(ledger.path), _EACH)
        step = line["step"]
        order, _ = epochs.setdefault(line["epoch"], ([], 0))
        order.extend(_woven(line, data_ranks, ledger))
        epochs[line["epoch"]] = order, len(set(data_ranks))
    return epochs


_EACH = "Keep the ledger with `every_n_steps=1`."


def _woven(line: Mapping[str, Any], data_ranks: Sequence[int], ledger: Ledger) -> Iterator[int]:
    """Yield the samples of an update: of each batch one of each share in turn."""
    shares = [line["samples"][data_ranks.index(share)] for share in sorted(set(data_ranks))]
    for batch_idx in range(max(map(len, shares))):
        batches = [share[batch_idx] for share in shares if batch_idx < len(share)]
        if not all(isinstance(batch, list) and all(type(one) is int for one in batch) for batch in batches):
            rule, action = "one that notes samples by their indices in one dataset", "Train on one map-style dataset."
            raise InvalidArgumentError("ledger", rule, f"others at step {line['step']}", str(ledger.path), action)
        for place in range(max(map(len, batches))):
            yield from (batch[place] for batch in batches if place < len(batch))


@attrs.frozen
class DataComparison:
    """The comparison of the data of two runs.

    Attributes:
        num_equal: By epoch, the number of samples that are the same, from its first one on.
        differences: By epoch, the place and the samples at which the runs part; padding is no difference.
    """

    num_equal: dict[int, int]
    differences: dict[int, str]

    @property
    def is_equal(self) -> bool:
        """True if all epochs of both have the same samples in the same order, as far as both go."""
        return not self.differences

    def __str__(self) -> str:
        lines = [f"Epoch {epoch}: equal for {number:,} samples" for epoch, number in self.num_equal.items()]
        return "\n".join(line + self._part(epoch) for epoch, line in zip(self.num_equal, lines, strict=True))

    def _part(self, epoch: int) -> str:
        return f"; {self.differences[epoch]}" if epoch in self.differences else ""


def compare_data(a: str | os.PathLike[str], b: str | os.PathLike[str]) -> DataComparison:
    """Compare the data of two runs alone: the samples of each epoch, in the order that all processes have together.

    So runs are comparable whatever their numbers of processes, batches and updates, also if these have changed.

    Args:
        a: The ledger of a run, or a folder that holds it.
        b: That of the other.

    Returns:
        By epoch that both have, how many samples are equal, and where they part.

    Raises:
        FileNotFoundError, LedgerError: As `exactly_once`.
        InvalidArgumentError: Likewise, or if the ledgers have no epoch in common.
    """
    ledgers = [read_ledger(find_ledger(one)) for one in (a, b)]
    of_runs = [orders_of(ledger) for ledger in ledgers]
    common = [epoch for epoch in of_runs[0] if epoch in of_runs[1]]
    if not common:
        rule, got = "two runs with epochs in common", [list(of_run) for of_run in of_runs]
        raise InvalidArgumentError("runs", rule, got, "compare", "Compare runs over the same data.")
    num_equal, differences = {}, {}
    for epoch in common:
        (one, other) = (
            order[: len(order) - _num_padding(order, num)] for order, num in (run[epoch] for run in of_runs)
        )
        pairs = zip(one, other, strict=False)
        place = next((place for place, pair in enumerate(pairs) if pair[0] != pair[1]), min(len(one), len(other)))
        num_equal[epoch] = place
        if place < min(len(one), len(other)):
            differences[epoch] = f"then {_some(one[place:])} and {_some(other[place:])}"
        elif len(one) != len(other) and epoch != max(common):
            differences[epoch] = f"then only one goes on: {_some(max(one, other, key=len)[place:])}"
    return DataComparison(num_equal, differences)


def _some(samples: Sequence[int]) -> str:
    others = len(samples) - _NUM_NAMED
    return ", ".join(map(str, samples[:_NUM_NAMED])) + (f" and {others:,} others" if others > 0 else "")
