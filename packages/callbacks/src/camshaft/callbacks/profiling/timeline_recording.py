"""Recording of a timeline while a verb runs: durations of calls and of the spans around them."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Any

import attrs

from camshaft.hooks_core.grammar import life_cycle
from camshaft.hooks_core.grammar.nodes import Call, Maybe, Node, Repeat, Seq, hooks_in, parts

LOOP = "loop"
"""Kind of spans that belong to no receiver: time of the loop between calls, and its own calls."""


@attrs.define(eq=False)
class Tally:
    """Exact sums of one row."""

    num_calls: int = 0
    total_ns: int = 0
    self_ns: int = 0
    max_ns: int = 0

    def merge(self, other: Tally) -> None:
        """Add the sums of another tally."""
        self.num_calls += other.num_calls
        self.total_ns += other.total_ns
        self.self_ns += other.self_ns
        self.max_ns = max(self.max_ns, other.max_ns)


@attrs.define(eq=False)
class Site:
    """Place where time is spent: a hook of a receiver, or a span.

    Args:
        hook: The hook's or span's name.
        receiver: The receiver's name; empty for a span of the loop.
        kind: Kind of the receiver, or `LOOP`.

    Attributes:
        tally: Its sums.
        sanity_tally: Its sums in the sanity check, which calls the hooks of validation.
        durations_ns: Durations of the newest calls, which are in neither tally yet.
        enclosed_ns: Total time of the calls that these enclosed.
    """

    hook: str
    receiver: str
    kind: str
    tally: Tally = attrs.field(factory=Tally, init=False)
    sanity_tally: Tally = attrs.field(factory=Tally, init=False)
    durations_ns: array[int] = attrs.field(factory=partial(array, "q"), init=False)
    enclosed_ns: int = attrs.field(default=0, init=False)

    def sum_up(self, *, is_sanity_check: bool) -> None:
        """Add the newest calls to the sums."""
        durations_ns, tally = self.durations_ns, self.sanity_tally if is_sanity_check else self.tally
        total_ns = sum(durations_ns)
        tally.merge(Tally(len(durations_ns), total_ns, total_ns - self.enclosed_ns, max(durations_ns, default=0)))
        del durations_ns[:]
        self.enclosed_ns = 0


Event = tuple[str, str, str, int, int]
"""Hook or span, receiver and kind of its site, start on `perf_counter_ns`, and duration in nanoseconds.

Plain tuples of such values are left alone by the garbage collector, of which a trace has many.
"""


@attrs.frozen
class Span:
    """A kind of span.

    Args:
        name: Name of the span.
        opened_by: The hook at its beginning; "" if it is marked otherwise.
        closed_by: The hook at its end.
        lies_between: Whether it begins after the first hook and ends before the second; else it encloses both.
        is_step: Whether it is one batch.
    """

    name: str
    opened_by: str
    closed_by: str
    lies_between: bool = False
    is_step: bool = False

    @property
    def is_in_step(self) -> bool:
        """True if it is at most one batch long."""
        return self.is_step or self.lies_between


def _evaluation(word: str) -> tuple[Span, Span]:
    return (
        Span(word, f"on_{word}_start", f"on_{word}_end"),
        Span(f"{word} batch", f"on_{word}_batch_start", f"on_{word}_batch_end", is_step=True),
    )


SANITY_CHECK = Span("sanity check", "on_sanity_check_start", "on_sanity_check_end")
TRAINING_BATCH = Span("training batch", "on_train_batch_start", "on_train_batch_end", is_step=True)
BACKWARD_PASS = Span("backward pass", "on_before_backward", "on_after_backward", lies_between=True)
OPTIMIZER_STEP = Span("optimizer.step", "", "", lies_between=True)
"""An optimizer's update, marked by the optimizer's own step hooks."""
DATA_WAIT = Span("waiting for data", "", "", lies_between=True)
"""The wait for a training batch, marked by the trainer."""
SPANS = (
    SANITY_CHECK,
    Span("training", "on_train_start", "on_train_end"),
    Span("training epoch", "on_train_epoch_start", "on_train_epoch_end"),
    TRAINING_BATCH,
    BACKWARD_PASS,
    *_evaluation("validation"),
    *_evaluation("test"),
    *_evaluation("predict"),
)
EDGES = tuple(hook for span in SPANS for hook in (span.opened_by, span.closed_by))
"""Hooks that must be called to record the spans."""


def span_of(group: Node) -> Span | None:
    """Return the span of a part of a life cycle: the one whose first hook is directly in it."""
    if not isinstance(group, Repeat | Maybe) or isinstance(group.body, Call):
        return None
    spans = {span.opened_by: span for span in SPANS if not span.lies_between}
    return next((spans[hook] for hook in _direct_hooks(group.body) if hook in spans), None)


def _direct_hooks(node: Node) -> Iterator[str]:
    if isinstance(node, Seq):
        for item in node.items:
            yield from _direct_hooks(item)
    else:
        yield getattr(getattr(node, "body", node), "hook", "")


def hooks_of_step(span: Span) -> tuple[str, ...]:
    """Return the hooks and inner spans of each batch of a kind, up to the hook that ends it."""
    verbs = ("fit",) if span is TRAINING_BATCH else ("validate", "test", "predict")
    body = next(node for verb in verbs for node in _groups(life_cycle(verb)) if span_of(node) is span)
    hooks = list(dict.fromkeys(hooks_in(body)))
    hooks = hooks[: hooks.index(span.closed_by) + 1]
    return (*hooks, *(_SPANS_IN_STEPS if span is TRAINING_BATCH else ()))


def _groups(node: Node) -> Iterator[Node]:
    if isinstance(node, Repeat):
        yield node
    for part in parts(node):
        yield from _groups(part)


BETWEEN_HOOKS = "between the hooks"
"""Name of the part of a batch in which none of its hooks and spans runs."""

_SPANS_IN_STEPS = (DATA_WAIT.name, BACKWARD_PASS.name, OPTIMIZER_STEP.name)  # the wait is that for the step's batch

_NUM_STEPS_HELD = 500
"""Batches whose durations are summed up together, which is much faster than one by one."""

_Action = Callable[..., None]


_Open = tuple[Site, Span, int, int]
"""An open span: its site, kind, start, and index on the stack."""


class Recording:
    """Times the hooks of one run of a verb, from their resolution on.

    Hooks are nested on one thread, so a stack gives the nesting: for each open call and span it has the time of the
    calls and spans that it has enclosed so far.

    Args:
        events: Gets calls, and spans of a batch; its `maxlen` bounds the memory.
        spans: Gets longer spans.

    Attributes:
        start_ns: Start of the recording.
        sites: Places where time was spent.
        steps: By kind of batch, durations of the batch and its hooks.
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
        self._span_sites: dict[tuple[Span, str], Site] = {}
        self._in_step: defaultdict[str, list[int]] = defaultdict(lambda: [0])
        self._of_step: dict[str, list[tuple[list[int], array[int]]]] = {}
        self._num_steps_held = 0
        self._is_sanity_check = False

    def timed(self, hook: str, receiver: str, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that calls another and records its time.

        Args:
            hook: The hook's name.
            receiver: The receiver's name.
            kind: Kind of the receiver.
            function: The function of the hook.
        """
        site, before, after = self._place(hook, receiver, kind)
        self.sites.append(site)
        # Everything is bound to local names and written out: an attribute lookup would cost time in each call.
        clock, stack, last, record = perf_counter_ns, self._stack, self._last, self._events.append
        in_step, unwind, count = self._in_step[hook], self._unwind, site.durations_ns.append

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
                record((hook, receiver, kind, start_ns, duration_ns))
                if after is not None and last[hook] is site:
                    after()

        return timed

    def edge(self, hook: str, function: Callable[..., Any] | None) -> Callable[..., Any]:
        """Return a function that calls another untimed, and marks the beginning or end of spans.

        Args:
            hook: The hook's name.
            function: The function of the hook, or None.
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
        """Return the site of a call, and the actions before and after it."""
        site = Site(hook, receiver, kind)
        is_first = self._first.setdefault(hook, site) is site
        self._last[hook] = site
        before, after = self._actions(hook)
        return site, before if is_first else None, after

    def beginning(self, span: Span, receiver: str = "") -> _Action:
        """Return a function that opens a span, of a receiver or of the loop."""
        clock, stack, opened = perf_counter_ns, self._stack, self._open
        site = self._span_site(span, receiver)

        def begin(*_: Any) -> None:
            opened.append((site, span, clock(), len(stack)))
            stack.append(0)

        def begin_rare() -> None:
            if span is SANITY_CHECK:
                self._count_sanity_check(True)
            for spent in self._in_step.values():  # time since the last batch belongs to no batch
                spent[0] = 0
            begin()

        return begin if span.is_in_step else begin_rare

    def ending(self, span: Span, receiver: str = "") -> _Action:
        """Return a function that closes a span, if it is open, and all spans that were left open in it."""
        clock, opened = perf_counter_ns, self._open
        site = self._span_site(span, receiver)

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
        """Close all spans, and add that of the verb around them. Return its duration in nanoseconds."""
        now_ns = perf_counter_ns()
        self._unwind(1, now_ns)
        duration_ns = now_ns - self.start_ns
        self._sum_up()
        site = Site(f"{verb}()", "", LOOP)
        site.tally.merge(Tally(1, duration_ns, duration_ns - self._stack[0], duration_ns))
        self.sites.append(site)
        self._spans.append((site.hook, "", LOOP, self.start_ns, duration_ns))
        return duration_ns

    def _actions(self, hook: str) -> tuple[_Action | None, _Action | None]:
        """Return the actions before the first call of a hook, and after the last."""
        if hook in ("on_exception", "teardown"):
            return lambda: self._unwind(1, perf_counter_ns()), None
        for span in SPANS:
            if span.opened_by == hook:
                begin = self.beginning(span)
                return (None, begin) if span.lies_between else (begin, None)
            if span.closed_by == hook:
                end = self.ending(span)
                return (end, None) if span.lies_between else (self._ending_inner(span), end)
        return None, None

    def _span_site(self, span: Span, receiver: str = "") -> Site:
        if (span, receiver) not in self._span_sites:
            site = self._span_sites[span, receiver] = Site(span.name, receiver, LOOP)
            self.sites.append(site)
        return self._span_sites[span, receiver]

    def _ending_inner(self, span: Span) -> _Action:
        """Return a function that closes all spans inside of a span, if it is open."""
        clock, opened, site = perf_counter_ns, self._open, self._span_site(span)

        def end_inner() -> None:
            if opened and opened[-1][0] is not site:  # rare
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
        log = self._events if span.is_in_step else self._spans
        log.append((site.hook, site.receiver, LOOP, start_ns, duration_ns))
        if span.is_step:
            in_step = self._in_step
            in_step[span.name][0], in_step[BETWEEN_HOOKS][0] = duration_ns, duration_ns - enclosed_ns
            self._end_step(span, is_counted=is_complete and not self._is_sanity_check)
        else:
            self._in_step[site.hook][0] += duration_ns

    def _end_step(self, span: Span, *, is_counted: bool) -> None:
        """Add the times of hooks in a batch to its histograms, and reset them."""
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
        """Add the collected durations to sums and histograms."""
        self._num_steps_held = 0
        for site in self.sites:
            site.sum_up(is_sanity_check=self._is_sanity_check)
        for name, pairs in self._of_step.items():
            for histogram, (_, durations_ns) in zip(self.steps[name].values(), pairs, strict=True):
                histogram.add(durations_ns)
                del durations_ns[:]

    def _count_sanity_check(self, is_on: bool) -> None:
        self._sum_up()
        self._is_sanity_check = is_on


_EXACT_BITS = 7
"""Durations below 2 ** 7 ns are counted one by one; each doubling above is divided into 2 ** 6 equal parts."""


class DurationHistogram:
    """Histogram of durations, with buckets whose width grows with the duration.

    A percentile is nearest-rank: the middle of the bucket with the duration of that rank, at most 1/128 (0.8 %) off.
    Number, sum, minimum and maximum are exact. There are at most 64 buckets for each doubling.
    """

    __slots__ = ("_counts", "max_ns", "min_ns", "num", "total_ns")

    def __init__(self) -> None:
        self.num = self.total_ns = self.max_ns = 0
        self.min_ns = sys.maxsize
        self._counts: Counter[int] = Counter()  # by the least duration in a bucket

    def add(self, durations_ns: Sequence[int]) -> None:
        """Add durations, each 0 or more; many at once are faster than one by one."""
        ordered = sorted(durations_ns)
        idx = 0
        while idx < len(ordered):
            start_ns, width_ns = _bucket(ordered[idx])
            start_idx, idx = idx, bisect_left(ordered, start_ns + width_ns, idx)
            self._counts[start_ns] += idx - start_idx
        if ordered:
            self._extend(len(ordered), sum(ordered), ordered[0], ordered[-1])

    def merge(self, other: DurationHistogram) -> None:
        """Add the durations of another histogram."""
        self._counts.update(other._counts)
        self._extend(other.num, other.total_ns, other.min_ns, other.max_ns)

    def _extend(self, num: int, total_ns: int, min_ns: int, max_ns: int) -> None:
        self.num += num
        self.total_ns += total_ns
        self.min_ns, self.max_ns = min(self.min_ns, min_ns), max(self.max_ns, max_ns)

    def percentile_ns(self, percent: float) -> int:
        """Return the duration that a percentage does not exceed; 0 if empty.

        Args:
            percent: Above 0, up to 100.
        """
        rank = max(1, -int(-percent * self.num // 100))
        seen = 0
        for start_ns, count in sorted(self._counts.items()):
            seen += count
            if seen >= rank:
                return min(max(start_ns + _bucket(start_ns)[1] // 2, self.min_ns), self.max_ns)
        return 0


def _bucket(duration_ns: int) -> tuple[int, int]:
    """Return the least duration in the bucket of a duration, and the bucket's width."""
    width_ns = 1 << max(duration_ns.bit_length() - _EXACT_BITS, 0)
    return duration_ns - duration_ns % width_ns, width_ns
