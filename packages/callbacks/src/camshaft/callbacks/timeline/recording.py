"""What a timeline measures while a verb runs: durations of calls and of the spans around them."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from camshaft.callbacks.timeline.events import EventLog
from camshaft.callbacks.timeline.histogram import DurationHistogram
from camshaft.callbacks.timeline.sites import LOOP, Site
from camshaft.callbacks.timeline.spans import BACKWARD_PASS, OPTIMIZER_STEP, SANITY_CHECK, SPANS, Span, hooks_of_step

BETWEEN_HOOKS = "between the hooks"
"""The part of a batch in which no hook and no span of it runs."""

_SPANS_IN_STEPS = (BACKWARD_PASS.name, OPTIMIZER_STEP)

_NUM_STEPS_HELD = 500
"""Batches whose durations are summed up together, which takes a fraction of the time."""

_Action = Callable[..., None]


_Open = tuple[Site, Span | None, int, int]
"""A span that is under way: where, of which kind, since when, and where on the stack its number is."""


class Recording:
    """Times the hooks of one run of a verb, from their resolution on.

    Hooks run one inside another on one thread, so a stack tells what encloses what: it holds a number for each call and
    span that is under way, the time of what that has enclosed so far.

    Args:
        events: Takes every call and what belongs to a batch.
        spans: Takes the longer spans likewise.

    Attributes:
        start_ns: When it began.
        sites: Where time was spent.
        steps: By kind of batch, the times that the batch and its hooks took in each.
    """

    def __init__(self, events: EventLog, spans: EventLog) -> None:
        self.start_ns = perf_counter_ns()
        self.sites: list[Site] = []
        self.steps: dict[str, dict[str, DurationHistogram]] = {}
        self._events, self._spans = events, spans
        self._stack = [0]
        self._open: list[_Open] = []
        self._first: dict[str, Site] = {}
        self._last: dict[str, Site] = {}
        self._span_sites: dict[tuple[str, str], Site] = {}
        self._numbers_of_spans: dict[Site, int] = {}
        self._in_step: defaultdict[str, list[int]] = defaultdict(lambda: [0])
        self._of_step: dict[str, list[tuple[list[int], array[int]]]] = {}
        self._num_steps_held = 0
        self._is_sanity_check = False

    def timed(self, hook: str, receiver: str, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that does the same and is timed.

        Args:
            hook: The hook's name.
            receiver: The receiver's name.
            kind: What it is.
            function: What the hook calls.
        """
        site, before, after = self._place(hook, receiver, kind)
        self.sites.append(site)
        return self._timer(site, function, before, after)

    def edge(self, hook: str, function: Callable[..., Any] | None) -> Callable[..., Any]:
        """A function that does the same and is not timed: spans begin and end by it.

        Args:
            hook: The hook's name.
            function: What the hook calls; None if that is nothing.
        """
        site, before, after = self._place(hook, "", LOOP)
        last = self._last

        def edge(*arguments: Any) -> None:
            if before is not None:
                before()
            try:
                if function is not None:
                    function(*arguments)
            finally:
                if after is not None and last[hook] is site:
                    after()

        return edge

    def _place(self, hook: str, receiver: str, kind: str) -> tuple[Site, _Action | None, _Action | None]:
        """Where a call is counted, and what begins and ends around it."""
        site = Site(hook, receiver, kind)
        is_first = self._first.setdefault(hook, site) is site
        self._last[hook] = site
        return site, self._before(hook) if is_first else None, self._after(hook)

    def beginning(self, name: str, receiver: str = "", span: Span | None = None) -> _Action:
        """A function that opens a span; `span` says of which kind, if it is one of the loop's."""
        clock, stack, opened = perf_counter_ns, self._stack, self._open
        site = self._span_site(name, receiver)
        is_known = False

        def begin(*_: Any) -> None:
            nonlocal is_known
            if not is_known:
                is_known = True
                if site not in self._numbers_of_spans:
                    self.sites.append(site)
                    self._numbers_of_spans[site] = (self._spans if is_rare else self._events).number_of(site)
            if is_rare:
                self._begin_rare(span)
            opened.append((site, span, clock(), len(stack)))
            stack.append(0)

        is_rare = span is not None and not (span.is_step or span.lies_between)
        return begin

    def ending(self, name: str, receiver: str = "") -> _Action:
        """A function that closes a span, and what an end that never came left open in it; if it is open at all."""
        clock, opened = perf_counter_ns, self._open
        site = self._span_site(name, receiver)

        def end(*_: Any) -> None:
            now_ns = clock()
            if not opened:
                return
            if opened[-1][0] is not site:
                self._end_inner(site, now_ns)
            if opened[-1][0] is site:
                self._close(now_ns, is_complete=True)

        return end

    def finish(self, verb: str) -> int:
        """Close everything; the verb becomes a span that encloses all. Returns its duration in nanoseconds."""
        now_ns = perf_counter_ns()
        self._unwind(1, now_ns)
        duration_ns = now_ns - self.start_ns
        self._sum_up()
        site = Site(f"{verb}()", "", LOOP)
        site.tally.add([duration_ns], self._stack[0])
        self.sites.append(site)
        self._spans.numbers.extend((self._spans.number_of(site), self.start_ns, duration_ns))
        return duration_ns

    def _timer(
        self, site: Site, function: Callable[..., Any], before: _Action | None, after: _Action | None
    ) -> Callable[..., Any]:
        # What a call needs is bound here and written out below: each attribute that it looked up would be paid for.
        clock, stack, last = perf_counter_ns, self._stack, self._last
        record, site_idx = self._events.numbers.append, self._events.number_of(site)
        hook, in_step, unwind, count = site.hook, self._in_step[site.hook], self._unwind, site.durations_ns.append

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
                count(duration_ns)
                if enclosed_ns:
                    site.enclosed_ns += enclosed_ns
                record(site_idx)
                record(start_ns)
                record(duration_ns)
                if after is not None and last[hook] is site:
                    after()

        return timed

    def _before(self, hook: str) -> _Action | None:
        """What the first call of a hook does before it begins."""
        if hook in ("on_exception", "teardown"):
            return lambda: self._unwind(1, perf_counter_ns())
        for span in SPANS:
            if span.opened_by == hook and not span.lies_between:
                return self.beginning(span.name, span=span)
            if span.closed_by == hook:
                return self.ending(span.name) if span.lies_between else self._ending_inner(span.name)
        return None

    def _after(self, hook: str) -> _Action | None:
        """What the last call of a hook does when it has ended."""
        for span in SPANS:
            if span.closed_by == hook and not span.lies_between:
                return self.ending(span.name)
            if span.opened_by == hook and span.lies_between:
                return self.beginning(span.name, span=span)
        return None

    def _span_site(self, name: str, receiver: str) -> Site:
        return self._span_sites.setdefault((name, receiver), Site(name, receiver, LOOP))

    def _begin_rare(self, span: Span | None) -> None:
        if span is SANITY_CHECK:
            self._count_sanity_check(True)
        for spent in self._in_step.values():  # what ran since the last batch belongs to none
            spent[0] = 0

    def _ending_inner(self, name: str) -> _Action:
        """A function that closes what is open inside of a span, if that is open."""
        clock, opened, site = perf_counter_ns, self._open, self._span_site(name, "")

        def end_inner() -> None:
            if opened and opened[-1][0] is not site:  # as a rule it is
                self._end_inner(site, clock())

        return end_inner

    def _end_inner(self, site: Site, now_ns: int) -> None:
        if any(one[0] is site for one in self._open):
            while self._open[-1][0] is not site:
                self._close(now_ns, is_complete=False)

    def _unwind(self, depth: int, now_ns: int) -> None:
        """Close the spans that an error left open, from a depth of the stack on."""
        while self._open and self._open[-1][3] >= depth:
            self._close(now_ns, is_complete=False)

    def _close(self, now_ns: int, *, is_complete: bool) -> None:
        site, span, start_ns, depth = self._open.pop()
        stack, duration_ns = self._stack, now_ns - start_ns
        enclosed_ns = stack[depth]
        del stack[depth:]
        stack[-1] += duration_ns
        if span is SANITY_CHECK:
            self._count_sanity_check(False)
        site.durations_ns.append(duration_ns)
        site.enclosed_ns += enclosed_ns
        is_rare = span is not None and not (span.is_step or span.lies_between)
        log = self._spans if is_rare else self._events
        log.numbers.extend((self._numbers_of_spans[site], start_ns, duration_ns))
        if span is not None and span.is_step:
            in_step = self._in_step
            in_step[span.name][0], in_step[BETWEEN_HOOKS][0] = duration_ns, duration_ns - enclosed_ns
            self._end_step(span, is_counted=is_complete and not self._is_sanity_check)
        else:
            self._in_step[site.hook][0] += duration_ns

    def _end_step(self, span: Span, *, is_counted: bool) -> None:
        """Note what the hooks took in a batch, and begin anew."""
        pairs = self._of_step.get(span.name)
        if pairs is None:
            called = (name for name in hooks_of_step(span) if name in self._last or name in _SPANS_IN_STEPS)
            names = (span.name, *called, BETWEEN_HOOKS)
            self.steps[span.name] = {name: DurationHistogram() for name in names}
            pairs = self._of_step[span.name] = [(self._in_step[name], array("q")) for name in names]
        for spent, durations_ns in pairs:
            if spent[0]:
                if is_counted:
                    durations_ns.append(spent[0])
                spent[0] = 0
        self._num_steps_held += 1
        if self._num_steps_held == _NUM_STEPS_HELD:
            self._sum_up()

    def _sum_up(self) -> None:
        """Add what was held of calls and batches to the sums and percentiles."""
        self._num_steps_held = 0
        for site in self.sites:
            site.sum_up(is_sanity_check=self._is_sanity_check)
        for name, pairs in self._of_step.items():
            for histogram, (_, durations_ns) in zip(self.steps[name].values(), pairs, strict=True):
                histogram.add(durations_ns)
                del durations_ns[:]
        self._events.trim()
        self._spans.trim()

    def _count_sanity_check(self, is_on: bool) -> None:
        self._sum_up()
        self._is_sanity_check = is_on
