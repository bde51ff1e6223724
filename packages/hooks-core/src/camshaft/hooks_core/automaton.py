"""A life cycle as a state machine over the calls of a run's receivers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import attrs

from camshaft.hooks_core.grammar.nodes import Call, Condition, Either, If, Maybe, Node, Repeat, Seq, Set, Within

_BITS = {condition: 1 << position for position, condition in enumerate(Condition)}


@attrs.frozen
class Step:
    """What may happen: a receiver (by its label) enters or exits a hook."""

    kind: Literal["enter", "exit"]
    hook: str
    receiver: str

    def __str__(self) -> str:
        return (
            f"{self.hook} on {self.receiver}" if self.kind == "enter" else f"the end of {self.hook} on {self.receiver}"
        )


@attrs.frozen
class _Free:
    """A way from state to state without a step: open if the bits of `mask` equal `value`; then sets or clears bits."""

    target: int
    mask: int = 0
    value: int = 0
    sets: int = 0
    clears: int = 0


@attrs.frozen
class _Taken:
    """A way from state to state by a step.

    Sets bits if the result is `on`, or whatever it is if `on` is None; clears bits unless the result is None.
    """

    target: int
    sets: int = 0
    on: str | None = None
    clears: int = 0

    def leave(self, conditions: int, result: str) -> int:
        """The conditions that hold afterwards."""
        if result != "None":
            conditions &= ~self.clears
        return conditions | (self.sets if self.on in (None, result) else 0)


_Places = frozenset[tuple[int, int]]  # where a run may be: states, each with the conditions that hold


class Automaton:
    """Accepts the traces that follow a life cycle.

    It follows all possibilities at once, and remembers each set of them that it has met, so that a step costs one
    look-up once a life cycle has gone round.

    Args:
        node: The life cycle.
        receivers: Gives the labels of a hook's receivers in the order in which it reaches them.
    """

    def __init__(self, node: Node, receivers: Callable[[str], Sequence[str]]) -> None:
        self._receivers = receivers
        self._free: list[list[_Free]] = []
        self._taken: list[dict[Step, list[_Taken]]] = []
        self._known: list[_Places] = []
        self._numbers: dict[_Places, int] = {}
        self._moves: dict[tuple[int, Step, str], int | None] = {}
        first = self._state()
        self._last = self._build(node, first)
        self.start = self._number(self._closure([(first, 0)]))

    def move(self, at: int, step: Step, result: str = "") -> int | None:
        """Where a step leads from a place; None if it is not allowed there."""
        result = result if result in ("-1", "None") else ""
        key = (at, step, result)
        if key not in self._moves:
            reached = [
                (way.target, way.leave(conditions, result))
                for state, conditions in self._known[at]
                for way in self._taken[state].get(step, ())
            ]
            self._moves[key] = self._number(self._closure(reached)) if reached else None
        return self._moves[key]

    def is_end(self, at: int) -> bool:
        """Whether the life cycle may end at a place."""
        return any(state == self._last for state, _ in self._known[at])

    def expected(self, at: int) -> list[Step]:
        """The steps that are allowed at a place."""
        found = {step: None for state, _ in sorted(self._known[at]) for step in self._taken[state]}
        return list(found)

    def _state(self) -> int:
        self._free.append([])
        self._taken.append({})
        return len(self._free) - 1

    def _number(self, places: _Places) -> int:
        number = self._numbers.setdefault(places, len(self._known))
        if number == len(self._known):
            self._known.append(places)
        return number

    def _closure(self, places: Iterable[tuple[int, int]]) -> _Places:
        """All places that can be reached without a step."""
        found = set(places)
        waiting = list(found)
        while waiting:
            state, conditions = waiting.pop()
            for way in self._free[state]:
                if conditions & way.mask == way.value:
                    place = (way.target, conditions & ~way.clears | way.sets)
                    if place not in found:
                        found.add(place)
                        waiting.append(place)
        # States with nothing but free ways add nothing to what can follow.
        return frozenset(place for place in found if self._taken[place[0]] or place[0] == self._last)

    def _build(self, node: Node, at: int) -> int:
        """Add a node's states after the state `at`; returns the state in which it ends."""
        match node:
            case Call(hook=hook):
                return self._emit(hook, at, None, node)
            case Within(hook=hook, body=body):
                return self._emit(hook, at, body, Call(hook)) if self._receivers(hook) else self._build(body, at)
            case Seq(items=items):
                for item in items:
                    at = self._build(item, at)
                return at
            case Repeat(body=body, at_least=at_least, until=until):
                start = self._after(at)
                first = self._state()
                self._free[start].append(_Free(first, mask=_BITS[until] if until else 0))
                end = self._build(body, first)
                self._free[end].append(_Free(start))
                return self._after(end if at_least else start)
            case Maybe(body=body, left_out_if=condition):
                end = self._build(body, at)
                bit = _BITS[condition] if condition else 0
                return self._join([(end, _Free(-1)), (at, _Free(-1, bit, bit))])
            case Either(options=options):
                return self._join([(self._build(option, self._after(at)), _Free(-1)) for option in options])
            case If(condition=condition, body=body, holds=holds):
                bit = _BITS[condition]
                start = self._state()
                self._free[at].append(_Free(start, bit, bit if holds else 0))
                end = self._build(body, start)
                return self._join([(end, _Free(-1)), (at, _Free(-1, bit, 0 if holds else bit))])
            case Set(condition=condition, value=value):
                end = self._state()
                bit = _BITS[condition]
                self._free[at].append(_Free(end, sets=bit if value else 0, clears=0 if value else bit))
                return end

    def _after(self, at: int) -> int:
        start = self._state()
        self._free[at].append(_Free(start))
        return start

    def _join(self, ways: Sequence[tuple[int, _Free]]) -> int:
        end = self._state()
        for state, way in ways:
            self._free[state].append(attrs.evolve(way, target=end))
        return end

    def _emit(self, hook: str, at: int, body: Node | None, call: Call) -> int:
        sets = _BITS[call.sets] if call.sets else 0
        clears = _BITS[call.clears] if call.clears else 0
        for receiver in self._receivers(hook):
            inside = self._state()
            self._taken[at].setdefault(Step("enter", hook, receiver), []).append(_Taken(inside))
            if body is not None:
                inside = self._build(body, inside)
            at = self._state()
            way = _Taken(at, sets, call.on, clears)
            self._taken[inside].setdefault(Step("exit", hook, receiver), []).append(way)
        return at
