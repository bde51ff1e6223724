"""The callback that checks a run against the ledger of another, update by update."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from camshaft.callbacks.monitoring import from_rank_zero
from camshaft.forensics.compare import Comparison, compare_ledgers
from camshaft.forensics.ledger.ledger_file import Ledger, LedgerError, find_ledger, read_ledger
from camshaft.forensics.ledger.run_ledger import RunLedger, Update
from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.hooks_core.support.remote_files import exists

if TYPE_CHECKING:
    from camshaft.hooks_core.protocols import Strategy, TrainerProtocol


class DepartureError(RuntimeError):
    """A run does something else than the ledger that it is checked against.

    Attributes:
        path: The ledger.
        comparison: In what they part; in each difference the first value is the run's, the second the ledger's.
    """

    def __init__(self, path: str, comparison: Comparison) -> None:
        causes = "; ".join(comparison.differences)
        super().__init__(
            f"The run departs from its ledger {path!r} at step {comparison.step:,}: {causes}. In each pair the first "
            f"is of the run, the second of the ledger. Before that {comparison.num_equal:,} steps were equal."
        )
        for one in comparison.header:
            self.add_note(f"They differ from the beginning in {one}")
        self.path = path
        self.comparison = comparison

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the constructor's arguments, so that the error can be sent to other processes."""
        return type(self), (self.path, self.comparison)


class LedgerCheck(RunLedger):
    """Checks each update of a run against a ledger, and raises at the first that is not as the ledger has it.

    It notes what `RunLedger` notes, at the updates of which the ledger has a line, and writes nothing. An update is
    checked when the next one is made or an epoch ends: rank 0 compares, and all ranks raise. Of a run that begins with
    a checkpoint, which has to be from the run of the ledger, the updates after it are checked.

    Args:
        path: The ledger, or a folder with one, on the file systems of rank 0 or in a store.
        state_key: Key of the state of the `RunLedger` that wrote it, in checkpoints.
        is_required: Whether it is an error if there is no ledger; otherwise it is a warning, and nothing is checked.

    Attributes:
        last_step: The last step of the ledger; None before training begins, and without a ledger.

    Raises:
        FileNotFoundError, LedgerError: When training begins, on all ranks, if the ledger is missing, damaged, or not of
            the run that the checkpoint is from.
        ValueError: When training begins, if the ledger's run had other processes.
        DepartureError: If an update is not as the ledger has it.
    """

    NUM_PER_GROUP: ClassVar[int] = 1

    def __init__(
        self,
        path: str | os.PathLike[str],
        state_key: str = RunLedger.__qualname__,
        *,
        is_required: bool = True,
    ) -> None:
        super().__init__(path)
        self.is_required = is_required
        self.last_step: int | None = None
        self._state_key = state_key
        self._given = path
        self._due: dict[int, bool] = {}  # by step whether its line has digests
        self._header: dict[str, Any] = {}
        self._ledger: Ledger | None = None  # on rank 0
        self._expected: dict[int, dict[str, Any]] = {}  # likewise

    @property
    def state_key(self) -> str:
        """The key of the ledger's own state, which is the place in the ledger and the open windows."""
        return self._state_key

    def on_train_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Check the last update. Collective."""
        self.check_last(trainer, trainer.global_step)

    def check_last(self, trainer: TrainerProtocol, step: int) -> None:
        """Check what was noted so far, also of an update that is not over yet. Collective.

        Args:
            trainer: The trainer.
            step: The last step that was to be checked; rank 0 warns if the ledger ends before.
        """
        self._write(trainer)
        if self.last_step is not None and step > self.last_step:
            ends = f"The ledger {str(self._given)!r} ends at step {self.last_step:,}"
            warn_user(f"{ends}: later ones were not checked. Pass the ledger of the whole run to check them.")

    def _is_due(self, step: int) -> bool:
        return step in self._due

    def _has_digests(self, step: int) -> bool:
        return self._due.get(step, False)

    def _open(self, state: dict[str, Any], facts: dict[str, Any], trainer: TrainerProtocol) -> None:
        """Read the ledger. Collective."""
        self._header = facts
        self._due, self.last_step = from_rank_zero(
            trainer.strategy, lambda: self._read(state, facts, trainer.global_step)
        )

    def _read(self, state: dict[str, Any], facts: dict[str, Any], step: int) -> tuple[dict[int, bool], int | None]:
        """Return the steps that are to be checked, each with whether it has digests, and the last of the ledger."""
        if not self.is_required and not exists(str(self.path)):
            warn_user(f"There is no ledger {str(self.path)!r} to check against. Pass that of the run as `ledger`.")
            return {}, None
        path = find_ledger(self._given)
        ledger = self._ledger = read_ledger(path)
        own, expected = facts["data_ranks"], ledger.header["data_ranks"]
        if own != expected:
            rule = f"that of the run of the ledger ({len(expected)}), with as many shares of the data"
            action = f"Use as many processes, or leave out the check against {str(path)!r}."
            raise ValueError(must_be("number of processes", rule, len(own), type(self).__name__, action))
        if state and state["position"] is not None:
            num_lines, chain = state["position"]
            lines = [ledger.header, *ledger.lines][:num_lines]
            found = lines[-1]["chain"] if len(lines) == num_lines else f"{len(lines)} lines"
            if found != chain:
                rule = f"that of the run which the checkpoint is from, with the chain {chain} at line {num_lines}"
                raise LedgerError(
                    "ledger", rule, found, str(path), "Pass the ledger of that run, or another checkpoint."
                )
        # without a state nothing is known of the window in which the checkpoint may lie
        first = step + 1 if state or not step else step + 2
        lines_of_steps = {line["step"]: line for line in ledger.lines if "step" in line}
        self._expected = {number: line for number, line in lines_of_steps.items() if number >= first}
        return {number: "weights" in line for number, line in self._expected.items()}, max(lines_of_steps, default=0)

    def _take(self, strategy: Strategy, rows: Sequence[Update], parts: Sequence[tuple[str, ...]]) -> None:
        """Check the lines of some updates. Collective."""
        pairs = zip(rows, parts, strict=True)
        from_rank_zero(strategy, lambda: self._check([json.loads(row.line(of_row)) for row, of_row in pairs]))

    def _check(self, lines: Sequence[dict[str, Any]]) -> None:
        """Raise `DepartureError` for the first line that differs."""
        assert self._ledger is not None
        for line in lines:
            expected = _as_far_as(self._expected[line["step"]], line)
            if expected == line:
                continue
            before = [one for number, one in self._expected.items() if number < line["step"]]
            mine = Ledger(self._ledger.path, self._header, [*before, line])
            found = compare_ledgers(mine, Ledger(self._ledger.path, self._ledger.header, [*before, expected]))
            if not found.is_equal:
                raise DepartureError(str(self._ledger.path), found)


def _as_far_as(expected: Mapping[str, Any], line: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line of the ledger without its chain; of an update that has just begun, as far as it has come."""
    found = {name: value for name, value in expected.items() if name != "chain"}
    pairs = list(zip(expected["loss"], line["loss"], strict=False))
    if any(len(whole) > len(so_far) for whole, so_far in pairs):
        for name in ("loss", "norm", "batches", "samples"):
            found[name] = _shortened(found[name], line[name])
        found["random"] = line["random"]  # is noted at the end of an update
    return found


def _shortened(whole: list[Any], so_far: list[Any]) -> list[Any]:
    """Return the items of each process as far as there are some now; those of all processes are a plain list."""
    if whole and isinstance(whole[0], list):
        return [one[: len(other)] for one, other in zip(whole, so_far, strict=True)]
    return whole[: len(so_far)]
