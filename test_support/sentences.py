"""Random traces that follow a life cycle, made by reading it as a recipe: independent of how the checker works."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from camshaft.hooks_core import HookSpec, Receiver
from camshaft.hooks_core.eras.hooks import hooks_of_eras
from camshaft.hooks_core.grammar.conditions import Condition
from camshaft.hooks_core.grammar.nodes import Call, Either, If, Maybe, Node, Repeat, Seq, Set, Within
from camshaft.hooks_core.trace import Event, Participant

HOOKS = hooks_of_eras()
MAX_ROUNDS = 2
_FREE = ("provide", "state")


def participants(era: str | None = None, num_callbacks: int = 2) -> list[Participant]:
    """One of each kind of receiver that implements all it may, of which one callback monitors."""
    found = []
    for kind, names in (
        (Receiver.CALLBACK, [f"callback{number}" for number in range(num_callbacks)]),
        (Receiver.DATA, ["data"]),
        (Receiver.MODULE, ["module"]),
        (Receiver.STRATEGY, ["strategy"]),
    ):
        hooks = [spec.name for spec in HOOKS.values() if kind in spec.receivers_in(era) and spec.is_in(era)]
        for name in names:
            late = {"on_train_epoch_end"} if name == "callback0" else set()
            found.append(Participant(name, kind, hooks, late))
    return [one for one in found if one.hooks]


def receivers_of(everybody: Sequence[Participant], spec: HookSpec) -> list[Participant]:
    """Who is called by a hook, in order."""
    if spec.kind in _FREE:
        return []
    found = [one for one in everybody if spec.name in one.hooks and spec.name not in one.after_module]
    late = [one for one in everybody if spec.name in one.after_module]
    found += late  # the hook of the one late callback has no receiver behind the module
    return found if spec.kind == "event" else found[:1]


class Writer:
    """Writes one sentence of a life cycle.

    Args:
        everybody: The receivers.
        random: Decides wherever the life cycle leaves a choice.
    """

    def __init__(self, everybody: Sequence[Participant], random: Random) -> None:
        self.events: list[Event] = []
        self._everybody = everybody
        self._random = random
        self._conditions: set[Condition] = set()

    def write(self, node: Node) -> list[Event]:
        """Add a node. Returns all events so far."""
        match node:
            case Call(hook=hook):
                self._emit(hook, lambda: None, node)
            case Within(hook=hook, body=body):
                if receivers_of(self._everybody, HOOKS[hook]):
                    self._emit(hook, lambda: self.write(body), Call(hook))
                else:
                    self.write(body)
            case Seq(items=items):
                for item in items:
                    self.write(item)
            case Either(options=options) if options:  # those of a life cycle without variations may all be gone
                self.write(self._random.choice(options))
            case Repeat(body=body, at_least=at_least, until=until):
                for _ in range(self._random.randint(at_least, MAX_ROUNDS)):
                    if until not in self._conditions:
                        self.write(body)
            case Maybe(body=body, left_out_if=condition):
                may_leave_out = condition is None or condition in self._conditions
                if not may_leave_out or self._random.random() < 0.5:
                    self.write(body)
            case If(condition=condition, body=body, holds=holds):
                if (condition in self._conditions) is holds:
                    self.write(body)
            case Set(condition=condition, value=value):
                (self._conditions.add if value else self._conditions.discard)(condition)
        return self.events

    def _emit(self, hook: str, body: Callable[[], object], call: Call) -> None:
        for one in receivers_of(self._everybody, HOOKS[hook]):
            self.events.append(Event("enter", hook, one.name, one.kind))
            body()
            likelihood = 0.5 if call.clears else 1 if call.on is None else 0.15
            happens = self._random.random() < likelihood
            self.events.append(Event("exit", hook, one.name, one.kind, result=call.on or "None" if happens else "1"))
            if call.clears and not happens:
                self._conditions.discard(call.clears)
            if call.sets and happens:
                self._conditions.add(call.sets)
