"""Check that a trace follows the life cycle of its verb."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NoReturn

import attrs

from camshaft.hooks_core.catalogue import CATALOGUE, Catalogue
from camshaft.hooks_core.grammar.conditions import Condition
from camshaft.hooks_core.grammar.life_cycles import after_an_exception, life_cycle
from camshaft.hooks_core.grammar.nodes import Call, Either, If, Maybe, Node, Repeat, Seq, Set, Within, hooks_in
from camshaft.hooks_core.grammar.places import placed
from camshaft.hooks_core.grammar.present import Optimization
from camshaft.hooks_core.spec import UNORDERED_KINDS, ZeroGrad
from camshaft.hooks_core.trace import Event, Participant, Trace

_NUM_SHOWN_BEFORE = 3


@attrs.define(eq=False, slots=False)
class ConformanceError(AssertionError):
    """Something departs from the hook protocol.

    Attributes:
        index: Index of the first event that departs, or the number of events if the trace ends too early. None if the
            fault is not in the order of events.
        event: That event; None if the trace ends too early.
        hook: The hook that departs: that of the event, that which is missing where the trace ends too early, or that
            which was called too often or too rarely. None if no hook is at fault.
        expected: What was allowed there, in words.
    """

    message: str
    index: int | None = None
    event: Event | None = None
    hook: str | None = None
    expected: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.message


def check(
    trace: Trace,
    verb: str,
    *,
    cycle: Node | None = None,
    catalogue: Catalogue = CATALOGUE,
    optimization: Optimization | None = None,
    zero_grad: ZeroGrad | None = None,
) -> None:
    """Accept a trace of one run, or say where it first departs from the life cycle of its verb.

    Every receiver that implements a hook must be called exactly once per emission, in the catalogue's order. Hooks
    that provide something or that save a receiver's own state may be called at any time, and so may hooks that a third
    party registered without a place. A run that raised is accepted if it follows the life cycle up to there, then calls
    `on_exception` and `teardown` on all that implement them, except those that were torn down before.

    Args:
        trace: The run, with its participants.
        verb: "fit", "validate", "test" or "predict".
        cycle: The order that is meant. The default is camshaft's own, with the hooks of receivers that were written
            for another protocol, or that of the protocol whose hooks the trace recorded. Registered hooks are put into
            their places in it.
        catalogue: The hooks that there are.
        optimization: Kind of optimization, as `life_cycle` takes it. The default reads it from the trace: "manual" if
            the module's `automatic_optimization` was false when it was recorded; "none" if `configure_optimizers`
            returned None.
        zero_grad: Where the loop zeroes gradients, as `life_cycle` takes it; None for the protocol's own place.

    Raises:
        ConformanceError: At the first departure.
        ValueError: If there is no such verb, or `zero_grad` fits neither the protocol nor the optimization.
    """
    optimization = optimization or _optimization(trace)
    add: Callable[[Node], Node] = Seq  # by default nothing
    if cycle is None and (trace.protocol or any(one.version for one in trace.participants)):
        from camshaft.hooks_core.eras.orders import cycle_of_trace  # no trace of today needs it

        cycle, add, catalogue = cycle_of_trace(trace, verb, optimization, zero_grad, catalogue)
    elif cycle is None:
        cycle = life_cycle(verb, optimization=optimization, zero_grad=zero_grad)
    shown = f"show {verb}" + (f" --era {catalogue.protocol}" if catalogue.protocol else "")
    shown += f" --zero-grad {zero_grad}" if zero_grad else ""
    if verb == "fit" and optimization != "automatic":
        shown += f" --optimization {optimization}"
    receivers = _receivers(trace.participants, catalogue)
    of_run = placed(cycle, catalogue)

    def complete(node: Node) -> Node:
        return placed(add(node), catalogue)

    reports = {*hooks_in(complete(after_an_exception()))} - {*hooks_in(of_run)}
    _Walk(trace.events, verb, catalogue, receivers, shown, complete, reports).run(Automaton(of_run, receivers))


def _optimization(trace: Trace) -> Optimization:
    if any(participant.manual for participant in trace.participants):
        return "manual"
    chosen = [event for event in trace.events if event.hook == "configure_optimizers" and event.kind == "exit"]
    return "none" if chosen and all(event.result == "None" for event in chosen) else "automatic"


def _receivers(participants: Sequence[Participant], catalogue: Catalogue) -> Callable[[str], list[str]]:
    def receivers(hook: str) -> list[str]:
        spec = catalogue.get(hook)
        if spec is None or _is_free(hook, catalogue):
            return []
        having = (one for one in participants if hook in one.hooks and one.kind in spec.receivers)
        found = sorted(having, key=lambda one: one.rank(hook))
        return [one.label for one in (found if spec.kind == "event" else found[:1])]

    return receivers


def _is_free(hook: str, catalogue: Catalogue) -> bool:
    """Return whether a hook may be called at any time: by its kind, or since it was registered without a place."""
    return catalogue[hook].kind in UNORDERED_KINDS or hook in catalogue.registered - catalogue.places.keys()


@attrs.define
class _Walk:
    """Walk through a trace along a life cycle, up to the first departure."""

    _events: Sequence[Event]
    _verb: str
    _catalogue: Catalogue
    _receivers: Callable[[str], list[str]]
    _shown: str
    _add: Callable[[Node], Node]
    _reports: set[str]
    _open: list[Event] = attrs.field(factory=list, init=False)
    _torn_down: set[str] = attrs.field(factory=set, init=False)
    _raised: Event | None = attrs.field(default=None, init=False)

    def run(self, automaton: Automaton) -> None:
        """Follow the life cycle to its end, or to an exception and what follows it."""
        at = automaton.start
        for index, event in enumerate(self._events):
            if self._leaves_life_cycle(index, event):
                return self._run_after_exception(index)
            is_free = self._track(index, event)
            if event.raised and not is_free:
                self._raised = event
            elif not is_free:
                at = self._move(automaton, at, index, event)
        num_events = len(self._events)
        if self._open:
            self._depart(num_events, [_step_of(self._open[-1], "exit")])
        if self._raised is not None:
            return self._run_after_exception(num_events)
        if not automaton.is_end(at):
            self._depart(num_events, automaton.expected(at))

    def _leaves_life_cycle(self, index: int, event: Event) -> bool:
        """Return whether what follows an exception begins here; it may have been raised in a hook or elsewhere."""
        if self._raised is None:
            return event.kind == "enter" and event.hook in self._reports and not self._open
        if self._open:
            if event.kind == "enter" or not event.raised:
                self._depart(index, [f"{self._raised.raised} to leave {self._open[-1].hook} on {self._open[-1].label}"])
            return False
        return event.kind == "enter" and not self._is_free(index, event)

    def _run_after_exception(self, first: int) -> None:
        torn_down = frozenset(self._torn_down)

        def receivers(hook: str) -> list[str]:
            return [label for label in self._receivers(hook) if hook != "teardown" or label not in torn_down]

        tail = Automaton(self._add(after_an_exception(while_tearing_down=bool(torn_down))), receivers)
        at = tail.start
        for index in range(first, len(self._events)):
            event = self._events[index]
            if not self._track(index, event):  # a further error makes no difference here
                at = self._move(tail, at, index, event)
        if not tail.is_end(at):
            self._depart(len(self._events), tail.expected(at))

    def _track(self, index: int, event: Event) -> bool:
        """Keep the calls that are open; returns whether the event is free."""
        is_free = self._is_free(index, event)
        if event.kind == "enter":
            self._open.append(event)
            if event.hook == "teardown":
                self._torn_down.add(event.label)
        else:
            expected = _step_of(self._open.pop(), "exit") if self._open else "a call to begin"
            if expected != _step_of(event):
                self._depart(index, [expected])
        return is_free

    def _is_free(self, index: int, event: Event) -> bool:
        if event.hook not in self._catalogue:
            self._depart(index, ["a hook of the catalogue"])
        return _is_free(event.hook, self._catalogue)

    def _move(self, automaton: Automaton, at: int, index: int, event: Event) -> int:
        there = automaton.move(at, _step_of(event), event.result)
        if there is None:
            self._depart(index, [*automaton.expected(at), *(["the end of the run"] if automaton.is_end(at) else [])])
        return there

    def _depart(self, index: int, steps: Sequence[Step | str]) -> NoReturn:
        """Raise an error; the last of the steps that were allowed there is the one that cannot be left out."""
        expected = [str(step) for step in steps]
        missing = steps[-1] if steps else None
        event = self._events[index] if index < len(self._events) else None
        got = "the end of the trace" if event is None else str(_step_of(event))
        got += f" by {event.raised}" if event is not None and event.raised else ""
        rule = expected[0] if len(expected) == 1 else f"one of: {'; '.join(expected)}"
        first = max(0, index - _NUM_SHOWN_BEFORE)
        before = [f"\n  trace[{number}]: {self._events[number]}" for number in range(first, index)]
        raise ConformanceError(
            f"`trace[{index}]` must be {rule}, but got {got} in the life cycle of {self._verb}. "
            f"Make the calls in the order that `python -m camshaft.hooks_core {self._shown}` prints."
            + ("\nBefore it:" + "".join(before) if before else ""),
            index=index,
            event=event,
            hook=event.hook if event else getattr(missing, "hook", None),
            expected=tuple(expected),
        )


def _step_of(event: Event, kind: Literal["enter", "exit"] | None = None) -> Step:
    return Step(kind or event.kind, event.hook, event.label)


_BITS: dict[Condition | None, int] = {None: 0, **{one: 1 << position for position, one in enumerate(Condition)}}


@attrs.frozen
class Step:
    """Enter or exit of a hook by a receiver, which its label names.

    Args:
        kind: "enter" or "exit".
        hook: The hook's name.
        receiver: The receiver's label.
    """

    kind: Literal["enter", "exit"]
    hook: str
    receiver: str

    def __str__(self) -> str:
        return f"{'the end of ' if self.kind == 'exit' else ''}{self.hook} on {self.receiver}"


@attrs.frozen
class _Free:
    """Transition without a step: open if the bits of `mask` equal `value`; then sets or clears bits."""

    target: int
    mask: int = 0
    value: int = 0
    sets: int = 0
    clears: int = 0


def _conditions_after(call: Call, conditions: int, result: str) -> int:
    """Return the conditions that hold after a call, which began with others and returned a result."""
    if result != "None":
        conditions &= ~_BITS[call.clears]
    return conditions | (_BITS[call.sets] if call.on in (None, result) else 0)


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
        self._taken: list[dict[Step, list[tuple[int, Call]]]] = []  # by step: where it leads, and what it does
        self._known: list[_Places] = []
        self._numbers: dict[_Places, int] = {}
        self._moves: dict[tuple[int, Step, str], int | None] = {}
        first = self._state()
        self._last = self._build(node, first)
        self.start = self._number(self._closure([(first, 0)]))

    def move(self, at: int, step: Step, result: str = "") -> int | None:
        """Return the place to which a step leads; None if it is not allowed there.

        Args:
            at: The place before the step.
            step: The step.
            result: What the hook returned, as text; only "-1" and "None" matter.
        """
        result = result if result in ("-1", "None") else ""
        key = (at, step, result)
        if key not in self._moves:
            reached = [
                (target, _conditions_after(call, conditions, result))
                for state, conditions in self._known[at]
                for target, call in self._taken[state].get(step, ())
            ]
            self._moves[key] = self._number(self._closure(reached)) if reached else None
        return self._moves[key]

    def is_end(self, at: int) -> bool:
        """Return whether the life cycle may end at a place."""
        return any(state == self._last for state, _ in self._known[at])

    def expected(self, at: int) -> list[Step]:
        """Return the steps that are allowed at a place."""
        found = {step: None for state, _ in sorted(self._known[at]) for step in self._taken[state]}
        return list(found)

    def _state(self) -> int:
        self._free.append([])
        self._taken.append({})
        return len(self._free) - 1

    def _number(self, places: _Places) -> int:
        if places not in self._numbers:
            self._numbers[places] = len(self._known)
            self._known.append(places)
        return self._numbers[places]

    def _closure(self, places: Iterable[tuple[int, int]]) -> _Places:
        """Return all places that can be reached without a step."""
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
            case Call():
                return self._emit(at, node)
            case Within(hook=hook, body=body, call=call, alone=alone):
                if self._receivers(hook):
                    return self._emit(at, call or Call(hook), body)
                return self._build(body if alone is None else alone, at)
            case Seq(items=items):
                for item in items:
                    at = self._build(item, at)
                return at
            case Repeat(body=body, at_least=at_least, until=until):
                start = self._link(at)
                end = self._build(body, self._link(start, mask=_BITS[until]))
                self._link(end, start)
                return self._link(end if at_least else start)
            case Maybe(body=body, left_out_if=condition):
                end = self._link(self._build(body, at))
                return self._link(at, end, mask=_BITS[condition], value=_BITS[condition])
            case Either(options=options):
                last = self._state()
                for option in options:
                    self._link(self._build(option, self._link(at)), last)
                return last
            case If(condition=condition, body=body, holds=holds):
                bit = _BITS[condition]
                end = self._link(self._build(body, self._link(at, mask=bit, value=bit if holds else 0)))
                return self._link(at, end, mask=bit, value=0 if holds else bit)
            case Set(condition=condition, value=value):
                bit = _BITS[condition]
                return self._link(at, sets=bit if value else 0, clears=0 if value else bit)

    def _link(self, at: int, target: int | None = None, **facts: int) -> int:
        """Add a transition without a step, to a new state by default; returns the state to which it leads."""
        target = self._state() if target is None else target
        self._free[at].append(_Free(target, **facts))
        return target

    def _emit(self, at: int, call: Call, body: Node | None = None) -> int:
        for receiver in self._receivers(call.hook):
            inside = self._step(at, Step("enter", call.hook, receiver), Call(call.hook))
            end = inside if body is None else self._build(body, inside)
            at = self._step(end, Step("exit", call.hook, receiver), call)
        return at

    def _step(self, at: int, step: Step, call: Call) -> int:
        target = self._state()
        self._taken[at].setdefault(step, []).append((target, call))
        return target
