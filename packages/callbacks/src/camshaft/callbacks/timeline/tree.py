"""The life cycle of a verb with the times that its hooks took."""

from __future__ import annotations

import attrs

from camshaft.callbacks.timeline.sites import Tally
from camshaft.callbacks.timeline.spans import BACKWARD_PASS, OPTIMIZER_STEP, SANITY_CHECK, span_of
from camshaft.callbacks.timeline.totals import VerbTimes, sum_of
from camshaft.hooks_core.grammar import Call, Either, If, Maybe, Node, Repeat, Seq, Within, life_cycle


@attrs.frozen
class TreeRow:
    """One line of the tree.

    Args:
        label: The hook, or what the part is in words.
        is_hook: Whether the label is a hook's name.
        tally: Its sums; None for a part that is no span.
        receivers: Who was called, in order, with each one's sums.
        children: What is inside.
    """

    label: str
    is_hook: bool
    tally: Tally | None
    receivers: tuple[tuple[str, Tally], ...] = ()
    children: tuple[TreeRow, ...] = ()


def life_cycle_tree(verb: str, times: VerbTimes) -> TreeRow:
    """The verb's life cycle, down to the hooks that were called.

    A hook that has several places there stands at the first, with all its calls; the calls of the sanity check are
    apart. Hooks that the life cycle does not have, such as `on_exception`, come last.

    Args:
        verb: The verb.
        times: What was measured of it.
    """
    builder = _Builder(times)
    rows = builder.rows(life_cycle(verb), is_sanity_check=False)
    rest = dict.fromkeys(row.hook for row in times.tallies if row.kind != "loop" and row.hook not in builder.placed)
    rows += [row for hook in rest for row in builder.hook(hook, is_sanity_check=False)]
    whole = sum_of([tally for _, tally in times.of_hook(f"{verb}()")])
    return TreeRow(f"{verb}()", False, whole, children=tuple(rows))


class _Builder:
    def __init__(self, times: VerbTimes) -> None:
        self._times = times
        self._seen: set[tuple[str, bool]] = set()

    @property
    def placed(self) -> set[str]:
        return {hook for hook, _ in self._seen}

    def rows(self, node: Node, is_sanity_check: bool) -> list[TreeRow]:
        match node:
            case Call(hook=hook):
                return self._call(hook, is_sanity_check)
            case Within(hook=hook, body=body):
                own = self.hook(hook, is_sanity_check)
                inner = self.rows(body, is_sanity_check)
                if hook == "optimizer_step":
                    inner += self._span(OPTIMIZER_STEP, is_sanity_check)
                return [attrs.evolve(own[0], children=tuple(inner))] if own else inner
            case Seq(items=items) | Either(options=items):
                return [row for item in items for row in self.rows(item, is_sanity_check)]
            case Repeat(body=body) | Maybe(body=body) | If(body=body):
                return self._part(node, body, is_sanity_check)
        return []

    def _part(self, node: Node, body: Node, is_sanity_check: bool) -> list[TreeRow]:
        span = span_of(node)
        if span is None:
            return self.rows(body, is_sanity_check)
        tallies = [tally for _, tally in self._times.of_hook(span.name, is_sanity_check)]
        children = self.rows(body, is_sanity_check or span is SANITY_CHECK)
        if not tallies:
            return children
        return [TreeRow(span.name, False, sum_of(tallies), children=tuple(children))]

    def _call(self, hook: str, is_sanity_check: bool) -> list[TreeRow]:
        rows = self.hook(hook, is_sanity_check)
        if hook == "backward":
            around = self._span(BACKWARD_PASS.name, is_sanity_check)
            return [attrs.evolve(around[0], children=tuple(rows))] if around else rows
        return rows

    def _span(self, name: str, is_sanity_check: bool) -> list[TreeRow]:
        if (name, is_sanity_check) in self._seen:
            return []
        self._seen.add((name, is_sanity_check))
        found = list(self._times.of_hook(name, is_sanity_check))
        if not found:
            return []
        receivers = tuple((row.receiver, tally) for row, tally in found if row.receiver)
        return [TreeRow(name, False, sum_of([tally for _, tally in found]), receivers)]

    def hook(self, hook: str, is_sanity_check: bool) -> list[TreeRow]:
        """The row of a hook at its first place, if it was called."""
        if (hook, is_sanity_check) in self._seen:
            return []
        self._seen.add((hook, is_sanity_check))
        found = [(row, tally) for row, tally in self._times.of_hook(hook, is_sanity_check) if row.kind != "loop"]
        if not found:
            return []
        receivers = tuple((row.receiver, tally) for row, tally in found)
        return [TreeRow(hook, True, sum_of([tally for _, tally in found]), receivers)]
