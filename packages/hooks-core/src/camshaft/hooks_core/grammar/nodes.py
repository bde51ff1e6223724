"""Nodes of a life cycle: calls of hooks, in sequence, repeated, optional, alternative or one inside another."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

import attrs


class Condition(StrEnum):
    """State on which the order of a life cycle depends. All conditions are false at the beginning."""

    SKIPPED = "the batch's start hook returned -1"
    NO_LOSS = "`training_step` returned None"
    HELD = "gradients are held by an open accumulation window"
    SOME_HELD = "gradients of only some optimizers are held"
    ANY_LOSS = "`training_step` returned a loss for an optimizer"
    ANY_NO_LOSS = "`training_step` returned None for an optimizer"
    NOTHING_APPLIED = "the optimizer had no gradients to apply"
    RESUMED = "the run goes on from a checkpoint"
    MOVED = "the batch was moved to its device before its start hook"


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
    """Parts in order; a plain string stands for the call of that hook."""

    items: tuple[Node, ...]
    label: str

    def __init__(self, *items: Node | str, label: str = "") -> None:
        self.__attrs_init__(tuple(_node(item) for item in items), label)


@attrs.frozen
class Repeat:
    """A part any number of times.

    Args:
        body: The part.
        each: What one round is, in words.
        at_least: The least number of rounds, 0 or 1.
        until: No round begins while this holds; None means that nothing ends the rounds.
    """

    body: Node = attrs.field(converter=_node)
    each: str
    at_least: int = attrs.field(default=0, validator=attrs.validators.in_((0, 1)))
    until: Condition | None = None


@attrs.frozen
class Maybe:
    """A part that may be left out.

    Args:
        body: The part.
        when: When it is there, in words that can stand alone: "if a checkpoint is loaded".
        left_out_if: It may only be left out while this holds; None means always.
    """

    body: Node = attrs.field(converter=_node)
    when: str
    left_out_if: Condition | None = None


@attrs.frozen(init=False)
class Either:
    """Exactly one of several parts."""

    options: tuple[Node, ...]

    def __init__(self, *options: Node | str) -> None:
        self.__attrs_init__(tuple(_node(option) for option in options))


@attrs.frozen
class Within:
    """A hook whose call encloses a part. Where no receiver implements it, the part happens alone."""

    hook: str
    body: Node = attrs.field(converter=_node)


@attrs.frozen
class If:
    """A part that happens if and only if a condition holds (or, with `holds=False`, does not hold)."""

    condition: Condition
    body: Node = attrs.field(converter=_node)
    holds: bool = True


@attrs.frozen
class Set:
    """Nothing happens, but a condition becomes true or false."""

    condition: Condition
    value: bool


Node = Call | Seq | Repeat | Maybe | Either | Within | If | Set


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


def keep(node: Node, hooks: frozenset[str]) -> Node:
    """Return a life cycle without the hooks that are not among `hooks`."""
    match node:
        case Call(hook=hook):
            return node if hook in hooks else Seq()
        case Within(hook=hook, body=body):
            return Within(hook, keep(body, hooks)) if hook in hooks else keep(body, hooks)
        case Seq(items=items, label=label):
            return Seq(*(keep(item, hooks) for item in items), label=label)
        case Either(options=options):
            return Either(*(keep(option, hooks) for option in options))
        case Repeat(body=body) | Maybe(body=body) | If(body=body):
            return attrs.evolve(node, body=keep(body, hooks))
        case Set():
            return node
