"""Nodes of a life cycle: calls of hooks, in sequence, repeated, optional, alternative or one inside another."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs

from camshaft.hooks_core.grammar.conditions import VARIATION_OF, Condition, Variation


@attrs.frozen
class Call:
    """A hook that reaches each of its receivers once.

    Args:
        hook: The hook's name.
        sets: A condition that becomes true by the call.
        on: The result, as a trace writes it, that makes `sets` true; None means any.
        clears: A condition that becomes false by the call, unless it returns None.
    """

    hook: str
    sets: Condition | None = None
    on: str | None = None
    clears: Condition | None = None


def _node(value: Node | str) -> Node:
    return Call(value) if isinstance(value, str) else value


@attrs.frozen(init=False)
class Seq:
    """Parts in order; a plain string stands for the call of that hook.

    Args:
        items: The parts.
        label: What they are together, in words.
        variation: The runs that have them; None means all.
    """

    items: tuple[Node, ...]
    label: str
    variation: Variation | None

    def __init__(self, *items: Node | str, label: str = "", variation: Variation | None = None) -> None:
        self.__attrs_init__(tuple(_node(item) for item in items), label, variation)


@attrs.frozen
class Repeat:
    """A part any number of times.

    Args:
        body: The part.
        each: What one round is, in words.
        at_least: The least number of rounds, 0 or 1.
        until: No round begins while this holds; None means that nothing ends the rounds.
        variation: The runs that have more than one round; None means all.
    """

    body: Node = attrs.field(converter=_node)
    each: str
    at_least: int = attrs.field(default=0, validator=attrs.validators.in_((0, 1)))
    until: Condition | None = None
    variation: Variation | None = None


@attrs.frozen
class Maybe:
    """A part that may be left out.

    Args:
        body: The part.
        when: When it is there, in words that can stand alone: "if a checkpoint is loaded".
        left_out_if: It may only be left out while this holds; None means always.
        variation: The runs that may have it; None means all.
        is_usual: Whether it is left out in rare runs only.
    """

    body: Node = attrs.field(converter=_node)
    when: str
    left_out_if: Condition | None = None
    variation: Variation | None = None
    is_usual: bool = False


@attrs.frozen(init=False)
class Either:
    """Exactly one of several parts."""

    options: tuple[Node, ...]

    def __init__(self, *options: Node | str) -> None:
        self.__attrs_init__(tuple(_node(option) for option in options))


@attrs.frozen
class Within:
    """A hook whose call encloses a part.

    Args:
        hook: The hook's name.
        body: The part; a name stands for the call of that hook.
        call: The call, if it changes conditions.
        alone: What happens where no receiver implements the hook; None means the part.
    """

    hook: str
    body: Node = attrs.field(converter=_node)
    call: Call | None = None
    alone: Node | None = None


@attrs.frozen
class If:
    """A part that happens if and only if a condition holds (or, with `holds=False`, does not hold).

    Args:
        condition: The condition.
        body: The part; a name stands for the call of that hook.
        holds: Whether the condition has to hold.
    """

    condition: Condition
    body: Node = attrs.field(converter=_node)
    holds: bool = True


@attrs.frozen
class Set:
    """Nothing happens, but a condition becomes true or false.

    Args:
        condition: The condition.
        value: What it becomes.
    """

    condition: Condition
    value: bool


def unless(condition: Condition, body: Node | str) -> If:
    """Return a part whose body happens if and only if a condition does not hold."""
    return If(condition, body, holds=False)


Node = Call | Seq | Repeat | Maybe | Either | Within | If | Set
"""A part of a life cycle."""


def parts(node: Node) -> tuple[Node, ...]:
    """Return the children of a node."""
    match node:
        case Seq(items=items):
            return items
        case Either(options=options):
            return options
        case Repeat(body=body) | Maybe(body=body) | Within(body=body) | If(body=body):
            return (body,)
        case Call() | Set():
            return ()


def hooks_in(node: Node) -> Iterator[str]:
    """Yield the hooks that a node calls, in the order in which they are written; a name may occur again."""
    if isinstance(node, Call | Within):
        yield node.hook
    for part in parts(node):
        yield from hooks_in(part)


def with_parts(node: Node, change: Callable[[Node], Node]) -> Node:
    """Return a node with `change` applied to each of its children."""
    match node:
        case Seq(items=items, label=label, variation=variation):
            return Seq(*map(change, items), label=label, variation=variation)
        case Either(options=options):
            return Either(*map(change, options))
        case Repeat(body=body) | Maybe(body=body) | Within(body=body) | If(body=body):
            return attrs.evolve(node, body=change(body))
        case Call() | Set():
            return node


def inserted(node: Node, around: Callable[[Call | Within], tuple[Node, Node]]) -> Node:
    """Return a life cycle with what a function returns before and after each call.

    Args:
        node: The life cycle.
        around: Given a call, returns the nodes before and after it.
    """
    own = with_parts(node, lambda part: inserted(part, around))
    if not isinstance(node, Call | Within):
        return own
    first, last = around(node)
    return own if first == last == Seq() else Seq(first, own, last)


def keep(node: Node, hooks: frozenset[str]) -> Node:
    """Return a node without the hooks that are not among `hooks`."""
    if isinstance(node, Call | Within) and node.hook not in hooks:
        return keep(node.body, hooks) if isinstance(node, Within) else Seq()
    return with_parts(node, lambda part: keep(part, hooks))


def without(node: Node, left_out: frozenset[Variation]) -> Node:
    """Return the life cycle of runs without some variations.

    A part that only runs with them have goes; a part that these repeat or leave out happens once.

    Args:
        node: The life cycle.
        left_out: The variations.
    """

    if not left_out:
        return node

    def change(part: Node) -> Node:
        return without(part, left_out)

    conditions = {condition for condition, variation in VARIATION_OF.items() if variation in left_out}
    match node:
        case If(holds=holds) if node.condition in conditions:
            return Seq() if holds else change(node.body)
        case Maybe() if node.left_out_if in conditions or (node.is_usual and Variation.RARE in left_out):
            return change(node.body)
        case Maybe(variation=variation) | Seq(variation=variation) if variation in left_out:
            return Seq()
        case Repeat() if node.variation in left_out:
            return change(node.body)
        case Repeat() if node.until in conditions:
            return attrs.evolve(node, body=change(node.body), until=None)
        case Either(options=options):
            kept = [option for option in map(change, options) if option != Seq()]
            return Seq(*parts(kept[0])) if len(kept) == 1 and isinstance(kept[0], Seq) else Either(*kept)
    return with_parts(node, change)
