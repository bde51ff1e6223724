"""What comes before and after a hook in a verb, read from the verb's life cycle."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from camshaft.hooks_core.eras.hooks import EraSpec
from camshaft.hooks_core.eras.orders import life_cycle, verbs_of
from camshaft.hooks_core.grammar.conditions import Variation
from camshaft.hooks_core.grammar.nodes import (
    Call,
    Either,
    If,
    Maybe,
    Node,
    Repeat,
    Seq,
    Within,
    hooks_in,
    parts,
    without,
)

_Mark = tuple[str, str]  # a hook, and "the start of " or "the end of " where it encloses others
_Marks = dict[_Mark, None]  # a set that keeps its order


@attrs.frozen
class Place:
    """Where a hook stands in a verb.

    Attributes:
        verb: The verb.
        path: The rounds and the calls that it is in, from the outside in.
        before: What comes right before it, in words; more than one thing if runs differ.
        after: What comes right after it.
        runs: The variations of a run in which it is called, if the usual one does not call it.
    """

    verb: str
    path: tuple[str, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]
    runs: str = ""


def places_of(spec: EraSpec) -> list[Place]:
    """Return the places of a hook today, or in the last era that has it."""
    era = None if spec.is_current else spec.eras[-1]
    cycles = ((verb, life_cycle(verb, era)) for verb in verbs_of(era))
    return [_place(verb, spec.name, node) for verb, node in cycles if spec.name in hooks_in(node)]


def _place(verb: str, hook: str, node: Node) -> Place:
    everything = frozenset(Variation)
    left_out = [everything, *(everything - {variation} for variation in Variation), frozenset()]
    chosen = next(one for one in left_out if hook in hooks_in(without(node, one)))
    shown = without(node, chosen)
    edges: list[tuple[_Mark, _Mark]] = []
    start, end = (verb, "the start of "), (verb, "the end of ")
    for last in _walk(shown, {start: None}, edges):
        edges.append((last, end))
    before = [one for one, other in edges if other[0] == hook and other[1] != "the end of "]
    after = [other for one, other in edges if one[0] == hook and one[1] != "the start of "]
    runs = ",".join(sorted(everything - chosen))
    return Place(verb, _path(shown, hook) or (), _in_words(before), _in_words(after), runs)


def _walk(node: Node, marks: _Marks, edges: list[tuple[_Mark, _Mark]]) -> _Marks:
    """Add what follows what, inside of a node and to it; returns what may come last in it or before it."""
    match node:
        case Call(hook=hook):
            return _step((hook, ""), marks, edges)
        case Within(hook=hook, body=body):
            inside = _walk(body, _step((hook, "the start of "), marks, edges), edges)
            return _step((hook, "the end of "), inside, edges)
        case Seq(items=items):
            for item in items:
                marks = _walk(item, marks, edges)
            return marks
        case Either(options=options) if options:  # those of a usual run may all be gone
            return {mark: None for option in options for mark in _walk(option, marks, edges)}
        case Repeat(body=body, at_least=at_least):
            once = _walk(body, marks, edges)
            again = _walk(body, once, edges)
            return once | again if at_least else marks | once | again
        case Maybe(body=body) | If(body=body):
            return marks | _walk(body, marks, edges)
    return marks


def _step(mark: _Mark, marks: _Marks, edges: list[tuple[_Mark, _Mark]]) -> _Marks:
    edges.extend((one, mark) for one in marks)
    return {mark: None}


def _path(node: Node, hook: str) -> tuple[str, ...] | None:
    if isinstance(node, Call | Within) and node.hook == hook:
        return ()
    for part in parts(node):
        inner = _path(part, hook)
        if inner is not None:
            return (*_label(node), *inner)
    return None


def _label(node: Node) -> tuple[str, ...]:
    match node:
        case Repeat(each=each):
            return (f"for each {each}",)
        case Within(hook=hook):
            return (f"inside `{hook}`",)
        case Maybe(when=when) if when:
            return (when,)
    return ()


def _in_words(marks: Iterable[_Mark]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(f"{how}`{hook}`" for hook, how in marks))
