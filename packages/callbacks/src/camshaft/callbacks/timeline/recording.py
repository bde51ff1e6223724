"""What a timeline measures while a verb runs: durations of calls and of the spans around them."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial
from time import perf_counter_ns
from typing import Any

import attrs

from camshaft.callbacks.timeline.histogram import DurationHistogram
from camshaft.callbacks.timeline.spans import BACKWARD_PASS, OPTIMIZER_STEP, SANITY_CHECK, SPANS, Span, hooks_of_step

LOOP = "loop"
"""The kind of what is no receiver's: what the loop spends between the calls, and what it calls itself."""

BETWEEN_HOOKS = "between the hooks"
"""The part of a batch in which no hook and no span of it runs."""

_SPANS_IN_STEPS = (BACKWARD_PASS.name, OPTIMIZER_STEP)


class Tally:
    """The exact sums of one row."""

    __slots__ = ("max_ns", "num_calls", "self_ns", "total_ns")

    def __init__(self) -> None:
        self.num_calls = 0
        self.total_ns = 0
        self.self_ns = 0
        self.max_ns = 0

    def add(self, duration_ns: int, self_ns: int) -> None:
        """Count one call."""
        self.num_calls += 1
        self.total_ns += duration_ns
        self.self_ns += self_ns
        self.max_ns = max(self.max_ns, duration_ns)

    def merge(self, other: Tally) -> None:
        """Add another's sums."""
        self.num_calls += other.num_calls
        self.total_ns += other.total_ns
        self.self_ns += other.self_ns
        self.max_ns = max(self.max_ns, other.max_ns)


@attrs.define(eq=False)
class Site:
    """Where time is spent: a hook of a receiver, or a span.

    Args:
        hook: The hook's or span's name.
        receiver: The receiver's name; empty for a span of the loop.
        kind: What the receiver is, or `LOOP`.

    Attributes:
        tally: Its sums.
        sanity_tally: Its sums in the sanity check, which calls the hooks of validation.
        current: The one of the two that counts now.
    """

    hook: str
    receiver: str
    kind: str
    tally: Tally = attrs.field(factory=Tally, init=False)
    sanity_tally: Tally = attrs.field(factory=Tally, init=False)
    current: Tally = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.current = self.tally


Event = tuple[Site, int, int]
"""What happened: where, when it began on `perf_counter_ns`, and how long it took in nanoseconds."""

_Action = Callable[[], None]


@attrs.define(eq=False)
class _Open:
    site: Site
    span: Span | None
    start_ns: int
    depth: int


class Recording:
    """Times the hooks of one run of a verb, from their resolution on.

    Hooks run one inside another on one thread, so a stack tells what encloses what: it holds a number for each call and
    span that is under way, the time of what that has enclosed so far.

    Args:
        events: Takes every call and what belongs to a batch; the caller bounds it.
        spans: Takes the longer spans likewise.

    Attributes:
        start_ns: When it began.
        sites: Where time was spent.
        steps: By kind of batch, the times that the batch and its hooks took in each.
    """

    def __init__(self, events: deque[Event], spans: deque[Event]) -> None:
        self.start_ns = perf_counter_ns()
        self.sites: list[Site] = []
        self.steps: dict[str, dict[str, DurationHistogram]] = {}
        self._events, self._spans = events, spans
        self._stack = [0]
        self._open: list[_Open] = []
        self._first: dict[str, Site] = {}
        self._last: dict[str, Site] = {}
        self._span_sites: dict[tuple[str, str], Site] = {}
        self._in_step: defaultdict[str, list[int]] = defaultdict(lambda: [0])
        self._of_step: dict[str, list[tuple[list[int], DurationHistogram]]] = {}
        self._is_sanity_check = False

    def timed(
        self, hook: str, receiver: str, kind: str, function: Callable[..., Any], *, is_shown: bool = True
    ) -> Callable[..., Any]:
        """A function that does the same and is timed.

        Args:
            hook: The hook's name.
            receiver: The receiver's name.
            kind: What it is.
            function: What the hook calls.
            is_shown: Whether the call is counted; if false, only spans begin and end by it.
        """
        site = Site(hook, receiver, kind)
        is_first = self._first.setdefault(hook, site) is site
        self._last[hook] = site
        before = self._before(hook) if is_first else None
        after = self._after(hook)
        if not is_shown:
            return self._edge(site, function, before, after)
        self.sites.append(site)
        return self._timer(site, function, before, after)

    def begin(self, name: str, receiver: str = "", span: Span | None = None) -> None:
        """Open a span; `span` says of which kind it is, if it is one of the loop's."""
        site = self._span_sites.get((name, receiver))
        if site is None:
            site = self._span_sites[name, receiver] = Site(name, receiver, LOOP)
            site.current = site.sanity_tally if self._is_sanity_check else site.tally
            self.sites.append(site)
        if span is SANITY_CHECK:
            self._count_sanity_check(True)
        if span is not None and not (span.is_step or span.lies_between):
            self._drop_rest_of_step()
        self._open.append(_Open(site, span, perf_counter_ns(), len(self._stack)))
        self._stack.append(0)

    def end(self, name: str, receiver: str = "") -> None:
        """Close a span, and what an end that never came left open in it. One that is not open is none to close."""
        now_ns = perf_counter_ns()
        self._end_inner(name, receiver, now_ns)
        if self._open and self._open[-1].site is self._span_sites.get((name, receiver)):
            self._close(now_ns, is_complete=True)

    def finish(self, verb: str) -> int:
        """Close everything; the verb becomes a span that encloses all. Returns its duration in nanoseconds."""
        now_ns = perf_counter_ns()
        self._unwind(1, now_ns)
        duration_ns = now_ns - self.start_ns
        site = Site(f"{verb}()", "", LOOP)
        site.tally.add(duration_ns, duration_ns - self._stack[0])
        self.sites.append(site)
        self._spans.append((site, self.start_ns, duration_ns))
        return duration_ns

    def _timer(
        self, site: Site, function: Callable[..., Any], before: _Action | None, after: _Action | None
    ) -> Callable[..., Any]:
        # What a call needs is bound here and written out below: each attribute that it looked up would be paid for.
        clock, stack, record, last = perf_counter_ns, self._stack, self._events.append, self._last
        hook, in_step, unwind = site.hook, self._in_step[site.hook], self._unwind

        def timed(*arguments: Any, **keywords: Any) -> Any:
            if before is not None:
                before()
            depth = len(stack)
            stack.append(0)
            start_ns = clock()
            try:
                return function(*arguments, **keywords)
            finally:
                duration_ns = clock() - start_ns
                if len(stack) > depth + 1:
                    unwind(depth + 1, start_ns + duration_ns)
                enclosed_ns = stack.pop()
                stack[-1] += duration_ns
                in_step[0] += duration_ns
                tally = site.current
                tally.num_calls += 1
                tally.total_ns += duration_ns
                tally.self_ns += duration_ns - enclosed_ns
                if duration_ns > tally.max_ns:
                    tally.max_ns = duration_ns
                record((site, start_ns, duration_ns))
                if after is not None and last[hook] is site:
                    after()

        return timed

    def _edge(
        self, site: Site, function: Callable[..., Any], before: _Action | None, after: _Action | None
    ) -> Callable[..., Any]:
        def edge(*arguments: Any, **keywords: Any) -> Any:
            if before is not None:
                before()
            try:
                return function(*arguments, **keywords)
            finally:
                if after is not None and self._last[site.hook] is site:
                    after()

        return edge

    def _before(self, hook: str) -> _Action | None:
        """What the first call of a hook does before it begins."""
        if hook in ("on_exception", "teardown"):
            return lambda: self._unwind(1, perf_counter_ns())
        for span in SPANS:
            if span.opened_by == hook and not span.lies_between:
                return partial(self.begin, span.name, span=span)
            if span.closed_by == hook:
                return partial(self.end if span.lies_between else self._end_inner, span.name)
        return None

    def _after(self, hook: str) -> _Action | None:
        """What the last call of a hook does when it has ended."""
        for span in SPANS:
            if span.closed_by == hook and not span.lies_between:
                return partial(self.end, span.name)
            if span.opened_by == hook and span.lies_between:
                return partial(self.begin, span.name, span=span)
        return None

    def _end_inner(self, name: str, receiver: str = "", now_ns: int | None = None) -> None:
        """Close what is open inside of a span, if that is open."""
        site = self._span_sites.get((name, receiver))
        if self._open and self._open[-1].site is site:
            return  # nothing is, as a rule
        if not any(one.site is site for one in self._open):
            return
        while self._open[-1].site is not site:
            self._close(perf_counter_ns() if now_ns is None else now_ns, is_complete=False)

    def _unwind(self, depth: int, now_ns: int) -> None:
        """Close the spans that an error left open, from a depth of the stack on."""
        while self._open and self._open[-1].depth >= depth:
            self._close(now_ns, is_complete=False)

    def _close(self, now_ns: int, *, is_complete: bool) -> None:
        one = self._open.pop()
        site, span, duration_ns = one.site, one.span, now_ns - one.start_ns
        self_ns = duration_ns - self._stack[one.depth]
        del self._stack[one.depth :]
        self._stack[-1] += duration_ns
        if span is SANITY_CHECK:
            self._count_sanity_check(False)
        site.current.add(duration_ns, self_ns)
        is_rare = span is not None and not (span.is_step or span.lies_between)
        (self._spans if is_rare else self._events).append((site, one.start_ns, duration_ns))
        if span is not None and span.is_step:
            self._in_step[span.name][0], self._in_step[BETWEEN_HOOKS][0] = duration_ns, self_ns
            self._end_step(span, is_counted=is_complete and not self._is_sanity_check)
        else:
            self._in_step[site.hook][0] += duration_ns

    def _end_step(self, span: Span, *, is_counted: bool) -> None:
        """Count what the hooks took in a batch, and begin anew."""
        pairs = self._of_step.get(span.name)
        if pairs is None:
            called = (name for name in hooks_of_step(span) if name in self._last or name in _SPANS_IN_STEPS)
            names = (span.name, *called, BETWEEN_HOOKS)
            histograms = self.steps[span.name] = {name: DurationHistogram() for name in names}
            pairs = self._of_step[span.name] = [(self._in_step[name], one) for name, one in histograms.items()]
        for spent, histogram in pairs:
            if spent[0]:
                if is_counted:
                    histogram.add(spent[0])
                spent[0] = 0

    def _drop_rest_of_step(self) -> None:
        """What ran since the last batch belongs to none."""
        for spent in self._in_step.values():
            spent[0] = 0

    def _count_sanity_check(self, is_on: bool) -> None:
        self._is_sanity_check = is_on
        for site in self.sites:
            site.current = site.sanity_tally if is_on else site.tally
