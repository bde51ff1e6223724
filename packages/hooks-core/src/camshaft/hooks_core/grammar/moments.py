"""Hooks of earlier eras in the moments of today's hooks."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from camshaft.hooks_core.catalogue import CATALOGUE
from camshaft.hooks_core.grammar.nodes import Call, Either, If, Maybe, Node, Repeat, Seq, Set, Within
from camshaft.hooks_core.spec import HookSpec


def with_old_hooks(node: Node, specs: Iterable[HookSpec], era: str, version: str | None = None) -> Node:
    """A life cycle with the hooks that an earlier era has in its moments.

    Args:
        node: A life cycle of today's hooks.
        specs: The hooks to insert where they have a moment, in the order in which they are called.
        era: The era that says which moments these are.
        version: The release of it, if that is known.
    """
    before: dict[str, list[HookSpec]] = {}
    after: dict[str, list[HookSpec]] = {}
    for spec in specs:
        for moment in spec.moments_in(era, version):
            (before if spec.precedes else after).setdefault(moment, []).append(spec)

    def inserted(part: Node) -> Node:
        match part:
            case Call(hook=hook) | Within(hook=hook):
                own = attrs.evolve(part, body=inserted(part.body)) if isinstance(part, Within) else part
                if hook not in before and hook not in after:
                    return own
                first, last = before.get(hook, []), after.get(hook, [])
                return Seq(*(_call(old, part) for old in first), own, *(_call(old, part) for old in last))
            case Seq(items=items, label=label):
                return Seq(*(inserted(item) for item in items), label=label)
            case Either(options=options):
                return Either(*(inserted(option) for option in options))
            case Repeat(body=body) | Maybe(body=body) | If(body=body):
                return attrs.evolve(part, body=inserted(body))
            case Set():
                return part

    return inserted(node)


def _call(spec: HookSpec, moment: Call | Within) -> Node:
    """The call of an old hook in a moment of today; what it returns means the same as there."""
    call = Call(spec.name)
    if spec.can_skip_epoch and isinstance(moment, Call):
        call = attrs.evolve(moment, hook=spec.name)
    if CATALOGUE[moment.hook].kind == "provide":
        return Maybe(call, when=f"if `{moment.hook}` is asked")
    return Maybe(call, when=f"if {spec.condition}") if spec.condition else call
