"""Finding out values while a model is built, before everything that was recorded is carried out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from camshaft.strategies.initialization.deferred_operations import (
    Entry,
    GeneratorChange,
    Operation,
    Plan,
    Replay,
    TensorRef,
    make_plan,
)

if TYPE_CHECKING:
    from camshaft.strategies.initialization.operation_recorder import OperationRecorder


class ValuesAhead:
    """Carries recorded operations out ahead, when somebody needs to know values.

    Random numbers are drawn in their order, so everything that draws is carried out up to this point; what was found
    out is kept until next time for what depends on it, such as the next round of a rejection sampling.
    """

    def __init__(self, recorder: OperationRecorder) -> None:
        self._recorder = recorder
        self._replay = self._new_replay()
        self._position = 0
        self._states: dict[int, Tensor] = {}

    def values(self, refs: list[TensorRef]) -> list[Tensor]:
        """The values of references after everything that was recorded; the tensors change with what follows."""
        entries, wanted = self._recorder.entries, {ref.storage_idx for ref in refs}
        constant = self._recorder.real_storages.keys() - self._recorder.pending
        plan = make_plan(entries, wanted - constant, draws_all=False, constant=constant)
        if not any(entry.generator is not None for entry in _operations(entries, plan)):
            replay = self._new_replay()
            replay.run(entries, plan, keeps=frozenset(wanted))
            return [replay.tensor(ref) for ref in refs]
        generators = self._recorder.generators
        present = generators.states()
        generators.notice_all()
        try:
            self._draw(wanted, self._position) or self._draw(wanted, 0)
            return [self._replay.tensor(ref) for ref in refs]
        finally:
            generators.restore(present)

    def _draw(self, wanted: set[int], first: int) -> bool:
        """Carry everything out that is needed from a position on. Returns whether what it takes was known there."""
        recorder = self._recorder
        entries = recorder.entries[first:]
        plan = make_plan(entries, wanted, draws_all=True)
        if first == 0:
            self._replay = self._new_replay()
            self._replay.states |= recorder.generators.first_states()
            recorder.generators.rewind()
        else:
            returns = {entry.key for entry in entries if isinstance(entry, GeneratorChange) and entry.state is None}
            constant = recorder.real_storages.keys() - recorder.pending
            is_known = plan.missing <= self._replay.storages.keys() | constant
            if not is_known or any(key[1] < first and key not in self._replay.states for key in returns):
                return False
            recorder.generators.restore(self._states)
        for_values = make_plan(entries, wanted, draws_all=False)
        useful = frozenset(wanted).union(*(entry.touches for entry in _operations(entries, for_values)))
        self._replay.run(entries, plan, first=first, keeps=useful)
        self._position = len(recorder.entries)
        self._states = recorder.generators.states()
        for idx in self._replay.storages.keys() - (useful - _stale(entries, plan)):
            self._replay.drop(idx)
        return True

    def _new_replay(self) -> Replay:
        return Replay(self._recorder.real_storages, self._recorder.num_bytes, keeps_real=True)


def _operations(entries: list[Entry], plan: Plan) -> list[Operation]:
    """The operations that a plan carries out."""
    return [entry for position in plan.needed if isinstance(entry := entries[position], Operation)]


def _stale(entries: list[Entry], plan: Plan) -> set[int]:
    """Storages whose latest change a plan leaves out."""
    latest = dict[int, bool]()
    for position, entry in enumerate(entries):
        if isinstance(entry, Operation):
            latest |= dict.fromkeys(entry.changes, position in plan.needed)
    return {idx for idx, is_carried_out in latest.items() if not is_carried_out}
