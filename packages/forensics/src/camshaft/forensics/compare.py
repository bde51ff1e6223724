"""The comparison of two runs by their ledgers: the first update at which they part, and in what."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from camshaft.callbacks.arguments import InvalidArgumentError, check_installed, check_number
from camshaft.forensics.ledger.ledger_file import Ledger, find_ledger, number_of, read_ledger, updates_of

RTOL_OF_OTHER_WORLD_SIZE = 1e-3
"""The tolerance by default where numbers are added up in another order."""

_NUM_NAMED = 5
_NOT_COMPARED = {"ledger", "chain"}
_RANDOM = {"torch": "torch on the CPU", "device": "torch on the device", "python": "Python", "numpy": "NumPy"}


@attrs.frozen
class Comparison:
    """The comparison of two ledgers.

    Attributes:
        num_equal: Number of updates of both that are equal, from the first one on.
        step: The first update at which they part; None if they do not.
        differences: In what they part there, the cause before what follows from it; each is a sentence's part such as
            "loss: 0.25 and 0.5". Empty if they do not part.
        parameters: Names of the parameters and buffers whose digests differ at `parameters_step`.
        parameters_step: The first update, at `step` or later, that found other weights, as far as digests were written.
        header: What differs between the runs from the beginning, such as versions and arguments.
        notes: What could not be compared, and at which updates a run went on with something changed.
        ending: What only one of them has, where the shorter one equals the beginning of the other; else None.
        curves: By "loss" and "gradient norm", the updates and the relative distances there.
    """

    num_equal: int
    step: int | None
    differences: list[str]
    parameters: list[str]
    parameters_step: int | None
    header: list[str]
    notes: list[str]
    ending: str | None
    curves: dict[str, tuple[list[int], list[float]]] = attrs.field(repr=False)

    @property
    def is_equal(self) -> bool:
        """True if neither has an update that the other has not, or has otherwise."""
        return self.step is None and self.ending is None

    def __str__(self) -> str:
        lines = [f"The runs differ from the beginning in {one}" for one in self.header]
        lines += self.notes
        if self.step is None:
            lines.append(f"Equal for {self.num_equal:,} steps" + (f"; {self.ending}" if self.ending else ""))
        else:
            lines.append(f"Equal for {self.num_equal:,} steps; they part at step {self.step:,}:")
            lines += [f"  {one}" for one in self.differences]
            if self.parameters_step not in (None, self.step):
                lines.append(f"The first digests of weights from then on, at step {self.parameters_step:,}, differ in")
                lines.append(f"  {_some(self.parameters)}")
        return "\n".join(lines)


def compare(a: str | os.PathLike[str], b: str | os.PathLike[str], rtol: float | None = None) -> Comparison:
    """Compare two runs by their ledgers, update by update.

    Samples are compared exactly, in their order within each process; between runs with different numbers of processes,
    those of an update as a whole. Numbers are compared bit for bit, and so are digests, unless there is a tolerance:
    then losses and norms of an update count as means, and of random numbers and weights only those before the first
    update are compared, as they say nothing of how far numbers are apart.

    Args:
        a: The ledger of a run, or a folder that holds it.
        b: That of the other.
        rtol: The relative distance within which numbers are equal; None compares bits, and with different numbers of
            processes stands for 0.001.

    Returns:
        What they have in common; its `str` is a report.

    Raises:
        FileNotFoundError: If there is no ledger, or more than one.
        LedgerError: If one is damaged, or is none.
        InvalidArgumentError: If `rtol` is negative, or the ledgers have no update in common.
    """
    check_number("compare", least=0, or_none=True, rtol=rtol)
    return compare_ledgers(read_ledger(find_ledger(a)), read_ledger(find_ledger(b)), rtol)


def compare_ledgers(one: Ledger, other: Ledger, rtol: float | None = None) -> Comparison:
    """Compare two ledgers that are read already, as `compare` does.

    Args:
        one: A ledger.
        other: Another one.
        rtol: Relative tolerance of numbers; None compares bits, and runs on different numbers of processes by
            `RTOL_OF_OTHER_WORLD_SIZE`.

    Returns:
        The first update at which they part, and in what.
    """
    return _Comparing(one, other, rtol).run()


class _Comparing:
    """One comparison."""

    def __init__(self, one: Ledger, other: Ledger, rtol: float | None) -> None:
        self.ledgers = one, other
        self._ranks = [{line["step"]: ranks for line, ranks in updates_of(ledger)} for ledger in self.ledgers]
        of_one, of_other = self._ranks
        is_same = one.header["data_ranks"] == other.header["data_ranks"]
        self.has_same_processes = is_same and all(of_one[step] == of_other[step] for step in of_one if step in of_other)
        self.rtol = RTOL_OF_OTHER_WORLD_SIZE if rtol is None and not self.has_same_processes else rtol
        self.updates = [{line["step"]: line for line in ledger.lines if "step" in line} for ledger in self.ledgers]
        self.notes: list[str] = []

    def run(self) -> Comparison:
        """Compare, and tell what was found."""
        of_one, of_other = self.updates
        common = [step for step in of_one if step in of_other]
        if not common and (of_one or of_other):
            spans = [f"steps {min(one)} to {max(one)}" if one else "no steps" for one in self.updates]
            action = "Compare runs with the same `every_n_steps`."
            raise InvalidArgumentError("runs", "two runs with updates in common", spans, "compare", action)
        self._note()
        part = next((step for step in common if any(self._differences(step))), None)
        differences = [] if part is None else list(self._differences(part))
        num_equal = len(common) if part is None else common.index(part)
        lasts, ending = [max(updates, default=0) for updates in self.updates], None
        if part is None and lasts[0] != lasts[1]:
            longer = int(lasts[1] > lasts[0])
            ending = f"{self._name(1 - longer)} ends there, {self._name(longer)} goes on to {lasts[longer]:,}"
        elif part is None and (differences := list(self._ends())):
            part = common[-1] if common else 0
        digests_step, parameters = self._parameters(common, part)
        return Comparison(
            num_equal=num_equal,
            step=part,
            differences=differences,
            parameters=parameters,
            parameters_step=digests_step,
            header=list(_differing(self.ledgers[0].header, self.ledgers[1].header, "")),
            notes=self.notes,
            ending=ending,
            curves={"loss": self._curve("loss", common), "gradient norm": self._curve("norm", common)},
        )

    def _differences(self, step: int) -> Iterator[str]:
        """Yield in what the runs part at an update, causes first."""
        one, other = (updates[step] for updates in self.updates)
        for name in ("epoch", "batches"):
            if self.has_same_processes and one[name] != other[name]:
                yield f"{name}: {one[name]} and {other[name]}"
        yield from self._samples(one, other)
        if self.rtol is None or (step == 1 and self.has_same_processes):
            for rank, states in enumerate(zip(one["random"], other["random"], strict=False)):
                for name in states[0]:
                    if name in states[1] and states[0][name] != states[1][name]:
                        yield f"random numbers of {_RANDOM.get(name, name)}{self._on(rank)}"
        if self.rtol is None or step == 1:
            yield from _digests(one, other)
        yield from self._numbers("loss", one["loss"], other["loss"])
        yield from self._numbers("gradient norm", one["norm"], other["norm"])

    def _samples(self, one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
        if self.has_same_processes:
            for rank, (mine, its) in enumerate(zip(one["samples"], other["samples"], strict=True)):
                if mine != its and [_is_known(mine)] == [_is_known(its)]:
                    yield f"samples: {_short(mine)} and {_short(its)}{self._on(rank)}"
            return
        of_updates = [
            _all_samples(line, ranks[line["step"]]) for line, ranks in zip((one, other), self._ranks, strict=True)
        ]
        if None not in of_updates and of_updates[0] != of_updates[1]:
            yield f"samples: {_short(of_updates[0])} and {_short(of_updates[1])}"

    def _numbers(self, name: str, one: list[list[str]], other: list[list[str]]) -> Iterator[str]:
        if self.rtol is not None:
            means = [_mean(of_ranks) for of_ranks in (one, other)]
            if _distance(*means) > self.rtol:
                yield f"{name}: {means[0]!r} and {means[1]!r}, {_distance(*means):.3g} apart"
            return
        for rank, (mine, its) in enumerate(zip(one, other, strict=True)):
            differing = [pair for pair in zip(mine, its, strict=False) if pair[0] != pair[1]]
            if differing:
                texts = [f"{number_of(bits)!r} ({bits})" for bits in differing[0]]
                yield f"{name}: {texts[0]} and {texts[1]}{self._on(rank)}"
            elif len(mine) != len(its):
                yield f"{name}: {len(mine)} and {len(its)} values{self._on(rank)}"

    def _ends(self) -> Iterator[str]:
        """Yield in what the runs differ after the last update, where both came to their end."""
        ends = [next((line for line in ledger.lines if "end" in line), {}) for ledger in self.ledgers]
        for one in _digests(*ends) if self.rtol is None else ():
            yield f"{one}, after the last update"

    def _parameters(self, common: Sequence[int], part: int | None) -> tuple[int | None, list[str]]:
        """Return the first update from the parting on with other weights, and which these are."""
        for step in common if part is not None else ():
            one, other = (updates[step].get("weights", {}) for updates in self.updates)
            if step >= part and one and other and one != other:  # type: ignore[operator]
                return step, _other_keys(one, other)
        return None, []

    def _curve(self, name: str, common: Sequence[int]) -> tuple[list[int], list[float]]:
        pairs = [[_mean(updates[step][name]) for updates in self.updates] for step in common]
        return list(common), [_distance(*pair) for pair in pairs]

    def _note(self) -> None:
        """Note what cannot be compared, and where a run was changed."""
        for idx, ledger in enumerate(self.ledgers):
            for line in ledger.lines:
                if "resumed" in line:
                    was, now = ({name: pair[side] for name, pair in line["changed"].items()} for side in (0, 1))
                    place = f"{self._name(idx)} went on after step {line['resumed']:,}"
                    self.notes.append(f"{place} with another {'; '.join(_differing(was, now, ''))}")
        if self.rtol is not None:
            self.notes.append(
                f"Numbers are equal within a relative distance of {self.rtol:g}; random numbers and weights after the "
                "first update are not compared."
            )
        knows = [_is_known(next(iter(updates.values()))["samples"]) for updates in self.updates if updates]
        if knows in ([True, False], [False, True]):
            self.notes.append("Samples are not compared: only one of the runs knows their indices.")
        elif knows == [False, False] and not self.has_same_processes:
            self.notes.append("Samples are not compared: they are digests of the batches of each process.")

    def _name(self, idx: int) -> str:
        paths = [str(ledger.path) for ledger in self.ledgers]
        return f"the {('first', 'second')[idx]} run" if paths[0] == paths[1] else paths[idx]

    def _on(self, rank: int) -> str:
        return f", on rank {rank}" if self.ledgers[0].header["world_size"] > 1 else ""


def draw(comparison: Comparison, path: str | os.PathLike[str]) -> None:
    """Draw how far two runs are apart at each update, to an image file.

    Args:
        comparison: The comparison.
        path: The file; its suffix is the format.

    Raises:
        ModuleNotFoundError: If matplotlib is not installed.
    """
    check_installed("matplotlib", "plot", "draw")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    smallest = min((far for _, all_far in comparison.curves.values() for far in all_far if far > 0), default=1e-8)
    for name, (steps, distances) in comparison.curves.items():
        shown = [far if math.isfinite(far) else math.nan for far in distances]
        axes.plot(steps, shown, label=name, linewidth=1.2, marker="." if len(steps) < 100 else None)
    axes.set_yscale("symlog", linthresh=smallest)
    title = f"Equal for {comparison.num_equal:,} steps"
    if comparison.step is not None:
        axes.axvline(comparison.step, color="gray", linestyle="--", linewidth=1)
        title = f"The runs part at step {comparison.step:,}"
    axes.set(title=title, xlabel="step", ylabel="relative distance")
    axes.set_ylim(bottom=0)
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(Path(path), dpi=150)


def _digests(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    """Yield in which parameters and states of optimizers two lines with digests differ."""
    for key, name in (("weights", "weights"), ("optimizer", "state of the optimizer")):
        if key in one and key in other and one[key] != other[key]:
            yield f"{name}: {_some(_other_keys(one[key], other[key]))}"
    if "settings" in one and "settings" in other:
        yield from _differing(one["settings"], other["settings"], "settings of the optimizer")


def _other_keys(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return [name for name in {**one, **other} if one.get(name) != other.get(name)]


def _differing(one: Any, other: Any, path: str) -> Iterator[str]:
    """Yield the places at which two plain values differ, with both."""
    are_lists = isinstance(one, list) and isinstance(other, list) and len(one) == len(other)
    if are_lists and any(isinstance(item, (dict, list)) for item in one):
        one, other = ({str(place): item for place, item in enumerate(value)} for value in (one, other))
    if not isinstance(one, dict) or not isinstance(other, dict):
        if one != other:
            yield f"{path}: {one!r} and {other!r}"
        return
    for name in {**one, **other}:
        if path or name not in _NOT_COMPARED:
            yield from _differing(one.get(name), other.get(name), f"{path}.{name}" if path else name)


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for item in value:
            yield from _flat(item)
    elif value is not None:
        yield value


def _all_samples(line: Mapping[str, Any], ranks: Sequence[int]) -> list[int] | None:
    """Return the samples of an update, of each share of the data once; None if they are digests."""
    shares = [line["samples"][ranks.index(share)] for share in sorted(set(ranks))]
    return sorted(_flat(shares)) if all(map(_is_known, shares)) else None


def _is_known(samples: Any) -> bool:
    """Return whether samples are indices, rather than digests of batches."""
    return not any(isinstance(sample, str) for sample in _flat(samples))


def _mean(of_ranks: list[list[str]]) -> float:
    """Return the mean over processes of the sum of each one's numbers; losses of a window are parts of one."""
    sums = [math.fsum(map(number_of, numbers)) for numbers in of_ranks]
    return math.fsum(sums) / len(sums) if sums else math.nan


def _distance(one: float, other: float) -> float:
    """Return the relative distance of two numbers: 0 for two NaNs or equal infinities, else infinite with either."""
    if one == other or (math.isnan(one) and math.isnan(other)):
        return 0.0
    if not (math.isfinite(one) and math.isfinite(other)):
        return math.inf
    return abs(one - other) / max(abs(one), abs(other))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def _some(names: list[str]) -> str:
    others = len(names) - _NUM_NAMED
    return ", ".join(names[:_NUM_NAMED]) + (f" and {others} others" if others > 0 else "")
