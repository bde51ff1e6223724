"""Reports of a timeline: an HTML page that needs no other file, and a trace for Perfetto."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

import attrs

from camshaft.callbacks.profiling.timeline_recording import (
    BACKWARD_PASS,
    BETWEEN_HOOKS,
    LOOP,
    OPTIMIZER_STEP,
    SANITY_CHECK,
    TRAINING_BATCH,
    DurationHistogram,
    Event,
    Recording,
    Tally,
    span_of,
)
from camshaft.hooks_core.grammar import Call, Either, If, Maybe, Node, Repeat, Seq, Within, life_cycle

_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
_KIND_LABELS = {
    "module": "module",
    "callback": "callbacks",
    "data": "data module",
    "strategy": "strategy",
    LOOP: "loop: backward, optimizer.step, loading of batches, set-up",
}
_SELF_TIME_LABELS = {
    **dict.fromkeys(("training epoch", "validation", "test", "predict"), "loading of batches, and the loop"),
    "training": "saving of checkpoints, and the loop",
    "training batch": "between its hooks",
}


def report_html(verbs: Mapping[str, VerbTimes], rank: int) -> str:
    """Return the HTML page, with a section per verb.

    Args:
        verbs: Measured times by verb.
        rank: Rank of the process.
    """
    links = "".join(f'<a href="#{escape(verb)}">{escape(verb)}</a>' for verb in verbs)
    body = "".join(line for verb, times in verbs.items() for line in _verb(verb, times))
    template = Template(files(__package__).joinpath("timeline.html").read_text(encoding="utf-8"))
    return template.substitute(rank=rank, links=links, body=body)


def time_in_words(duration_ns: float) -> tuple[str, str]:
    """Return a duration with three significant digits, as number and unit."""
    size, unit = next(((size, unit) for size, unit in _UNITS if duration_ns / size >= 0.9995), _UNITS[-1])
    number = duration_ns / size
    if unit == "ns":
        return f"{number:.0f}", unit
    return (f"{number:.2f}" if number < 9.995 else f"{number:.1f}" if number < 99.95 else f"{number:,.0f}"), unit


def _steps(times: VerbTimes) -> list[tuple[str, dict[str, DurationHistogram]]]:
    """Return the kinds of batches that were counted, training first."""
    found = [(span, histograms) for span, histograms in times.steps.items() if histograms[span].num]
    return sorted(found, key=lambda pair: pair[0] != TRAINING_BATCH.name)


def _verb(verb: str, times: VerbTimes) -> Iterator[str]:
    runs = "" if times.num_runs == 1 else f"{times.num_runs} runs"
    yield f'<h2 id="{escape(verb)}">{escape(verb)}<small>{runs}</small></h2>'
    yield _facts(times)
    yield _split(times)
    for span, _ in _steps(times):
        yield _step_table(span, times)
    yield _receivers_table(times)
    yield _totals_table(verb, times)
    yield _tree_table(verb, times)


def _facts(times: VerbTimes) -> str:
    facts = [(" ".join(time_in_words(times.duration_ns)), "in all")]
    calls = sum(tally.num_calls for row, tally in times.tallies.items() if row.kind != LOOP)
    facts.append((f"{calls:,}", "calls of hooks"))
    for span, histograms in _steps(times):
        whole = histograms[span]
        median = " ".join(time_in_words(whole.percentile_ns(50)))
        facts += [(f"{whole.num:,}", span.replace("batch", "batches")), (median, f"median {span}")]
    boxes = "".join(f"<div><b>{number}</b><i>{what}</i></div>" for number, what in facts)
    return f'<div class="facts">{boxes}</div>'


def _split(times: VerbTimes) -> str:
    """Render a bar of the total time, divided among the kinds of receivers."""
    own = dict.fromkeys(_KIND_LABELS, 0)
    for row, tally in times.tallies.items():
        own[row.kind] += tally.self_ns
    shares = {kind: 100 * spent / max(times.duration_ns, 1) for kind, spent in own.items() if spent}
    bar = "".join(f'<span class="{kind}" style="width:{share:.3f}%"></span>' for kind, share in shares.items())
    key = "".join(
        f'<span><i class="dot {kind}"></i>{share:.1f} % {_KIND_LABELS[kind]}</span>' for kind, share in shares.items()
    )
    return f'<section class="card"><div class="split">{bar}</div><div class="key">{key}</div></section>'


def _step_table(span: str, times: VerbTimes) -> str:
    whole = times.steps[span][span]
    rest = [(name, one) for name, one in times.steps[span].items() if name != span and one.num]
    rows = []
    for name, one in [(span, whole), *sorted(rest, key=lambda pair: -pair[1].total_ns)]:
        share = one.total_ns / max(whole.total_ns, 1)
        kind = _common_kind(row.kind for row, _ in times.of_hook(name))
        cells = [
            _name(name, is_hook=name not in (span, BETWEEN_HOOKS, BACKWARD_PASS.name), kind=kind),
            _count(one.num),
            *(_time(one.percentile_ns(percent)) for percent in (50, 90, 99)),
            _time(one.max_ns),
            _time(one.total_ns / one.num),
            _percent(share),
            _bar(min(share, 1.0), kind),
        ]
        rows.append(cells)
    heads = ["<", "batches", "p50", "p90", "p99", "max", "mean", "share", "<of the batch's time"]
    note = "What each hook took in a batch, its receivers together, over the batches in which it was called."
    if span == TRAINING_BATCH.name:
        note += f" {OPTIMIZER_STEP.name} and the {BACKWARD_PASS.name} are the loop's own."
    return _card(f"Per {span}", note, heads, rows)


def _by_self_time(
    times: VerbTimes, key: Callable[[Row], tuple[str, ...]]
) -> tuple[list[tuple[tuple[str, ...], Tally]], int]:
    """Return the sums of the rows with each key, those of the most self time first, and that time."""
    merged: dict[tuple[str, ...], Tally] = {}
    for row, tally in times.tallies.items():
        merged.setdefault(key(row), Tally()).merge(tally)
    ordered = sorted(merged.items(), key=lambda pair: -pair[1].self_ns)
    return ordered, max(ordered[0][1].self_ns, 1) if ordered else 1


def _receivers_table(times: VerbTimes) -> str:
    found, most = _by_self_time(times, lambda row: ("the loop" if row.kind == LOOP else row.receiver, row.kind))
    rows = [
        [
            f'<td class="text"><i class="dot {kind}"></i>{escape(receiver)}</td>',
            f'<td class="text who">{"" if kind == LOOP else escape(_KIND_LABELS[kind].removesuffix("s"))}</td>',
            "<td></td>" if kind == LOOP else _count(tally.num_calls),
            _time(tally.self_ns),
            _percent(tally.self_ns / max(times.duration_ns, 1)),
            "<td></td>" if kind == LOOP else _time(tally.max_ns),
            _bar(tally.self_ns / most, kind),
        ]
        for (receiver, kind), tally in found
    ]
    heads = ["<receiver", "<", "calls", "self", "share", "longest call", "<self"]
    return _card("Receivers", "All hooks of a receiver together.", heads, rows, sorted_by=3)


def _totals_table(verb: str, times: VerbTimes) -> str:
    found, most = _by_self_time(times, lambda row: (row.hook, row.receiver, row.kind))
    rows = []
    for (hook, receiver, kind), tally in found:
        is_part = kind == LOOP and not receiver
        what = _SELF_TIME_LABELS.get(hook, "around all this" if hook == f"{verb}()" else "") if is_part else ""
        cells = [
            _name(hook, is_hook=not is_part, kind=kind),
            f'<td class="text who">{escape(receiver or what)}</td>',
            _count(tally.num_calls),
            _time(tally.self_ns),
            _percent(tally.self_ns / max(times.duration_ns, 1)),
            _time(tally.total_ns),
            _time(tally.total_ns / tally.num_calls),
            _time(tally.max_ns),
            _bar(tally.self_ns / most, kind),
        ]
        rows.append(cells)
    heads = ["<hook", "<receiver", "calls", "self", "share", "total", "mean", "max", "<self"]
    note = "Self is the time of a call without what it encloses; all rows together are the whole time."
    return _card("Hooks and receivers", note, heads, rows, sorted_by=3)


def _tree_table(verb: str, times: VerbTimes) -> str:
    root = life_cycle_tree(verb, times)
    kinds = {(row.hook, row.receiver): row.kind for row in times.tallies}
    rows = list(_tree_rows(root, 0, max(times.duration_ns, 1), kinds))
    heads = ["<", "<receiver", "calls", "total", "mean", "self", "<share of all the time"]
    note = "The order in which hooks are called. A hook with several places stands at its first one."
    return _card("The life cycle", note, heads, rows, is_tree=True)


def _tree_rows(row: TreeRow, depth: int, whole_ns: int, kinds: Mapping[tuple[str, str], str]) -> Iterator[list[str]]:
    rails = '<i class="rail"></i>' * depth
    one = row.receivers[0][0] if len(row.receivers) == 1 else ""
    kind = _common_kind(kinds.get((row.label, name), LOOP) for name, _ in row.receivers)
    label = f"<code>{escape(row.label)}</code>" if row.is_hook or row.receivers else _part(row.label)
    head = f'<td class="text">{rails}{label}</td><td class="text who">{escape(one)}</td>'
    yield [head, *_tree_numbers(row.tally, whole_ns, kind)]
    if len(row.receivers) > 1:
        for name, tally in row.receivers:
            head = f'<td class="text">{rails}<i class="rail"></i></td><td class="text who">{escape(name)}</td>'
            yield [head, *_tree_numbers(tally, whole_ns, kinds.get((row.label, name), LOOP))]
    for child in row.children:
        yield from _tree_rows(child, depth + 1, whole_ns, kinds)


def _tree_numbers(tally: Tally | None, whole_ns: int, kind: str) -> list[str]:
    if tally is None or not tally.num_calls:
        return ["<td></td>"] * 5
    return [
        _count(tally.num_calls),
        _time(tally.total_ns),
        _time(tally.total_ns / tally.num_calls),
        _time(tally.self_ns),
        _bar(tally.total_ns / whole_ns, kind, tally.self_ns / max(tally.total_ns, 1)),
    ]


def _common_kind(kinds: Iterable[str]) -> str:
    """Return the kind of all, or that of the loop if they differ."""
    found = set(kinds)
    return found.pop() if len(found) == 1 else LOOP


def _card(
    title: str,
    note: str,
    heads: Sequence[str],
    rows: list[list[str]],
    *,
    sorted_by: int | None = None,
    is_tree: bool = False,
) -> str:
    cells = []
    for column, head in enumerate(heads):
        is_text = head.startswith("<")  # to the left, as text is; numbers go to the right
        sort = "" if is_tree or column == len(heads) - 1 else ' data-sort=""'
        sort += ' aria-sort="descending"' if column == sorted_by else ""
        cells.append(f"<th{' class=text' if is_text else ''}{sort}>{head.removeprefix('<')}</th>")
    lines = "\n".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return (
        f'<section class="card"><h3>{escape(title)}</h3><p>{escape(note)}</p><div class="scroll">'
        f"<table{' class=tree' if is_tree else ''}><thead><tr>{''.join(cells)}</tr></thead><tbody>{lines}</tbody>"
        "</table></div></section>"
    )


def _name(name: str, *, is_hook: bool, kind: str) -> str:
    text = f"<code>{escape(name)}</code>" if is_hook else _part(name)
    return f'<td class="text"><i class="dot {kind}"></i>{text}</td>'


def _part(name: str) -> str:
    return f'<span class="part">{escape(name)}</span>'


def _count(number: int) -> str:
    return f'<td data-value="{number}">{number:,}</td>'


def _time(duration_ns: float) -> str:
    number, unit = time_in_words(duration_ns)
    return f'<td data-value="{duration_ns:.0f}">{number}<u>{unit}</u></td>'


def _percent(share: float) -> str:
    return f'<td data-value="{share:.9f}">{100 * share:.1f}<u>%</u></td>'


def _bar(share: float, kind: str, own: float = 1.0) -> str:
    """Render a bar as long as a share; the part that is not self time is paler."""
    width, full = 100 * min(max(share, 0.0), 1.0), 100 * min(max(own, 0.0), 1.0)
    fill = f"linear-gradient(90deg, transparent {full:.1f}%, color-mix(in srgb, var(--card) 62%, transparent) 0)"
    style = f"width:{width:.3f}%" + ("" if full > 99.9 else f";background-image:{fill}")
    return f'<td class="bar"><span class="{kind}" style="{style}"></span></td>'


@attrs.frozen
class TreeRow:
    """A row of the tree.

    Args:
        label: Name of the hook or span.
        is_hook: Whether the label is a hook's name.
        tally: Its sums; None for a part that is not a span.
        receivers: The receivers in order, each with its sums.
        children: Rows inside of it.
    """

    label: str
    is_hook: bool
    tally: Tally | None
    receivers: tuple[tuple[str, Tally], ...] = ()
    children: tuple[TreeRow, ...] = ()


def life_cycle_tree(verb: str, times: VerbTimes) -> TreeRow:
    """Return the verb's life cycle as a tree of the hooks that were called.

    A hook with several places is at the first one, with all its calls; those of the sanity check are separate. Hooks
    outside of the life cycle, such as `on_exception`, come last.

    Args:
        verb: The verb.
        times: Its measured times.
    """
    builder = _TreeBuilder(times)
    rows = builder.rows(life_cycle(verb), is_sanity_check=False)
    rest = dict.fromkeys(row.hook for row in times.tallies if row.kind != LOOP and row.hook not in builder.placed)
    rows += [row for hook in rest for row in builder.row(hook, is_sanity_check=False)]
    whole = sum_of(tally for _, tally in times.of_hook(f"{verb}()"))
    return TreeRow(f"{verb}()", False, whole, children=tuple(rows))


class _TreeBuilder:
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
                own = self.row(hook, is_sanity_check)
                inner = self.rows(body, is_sanity_check)
                if hook == "optimizer_step":
                    inner += self.row(OPTIMIZER_STEP.name, is_sanity_check, is_hook=False)
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
        rows = self.row(hook, is_sanity_check)
        if hook == "backward":
            around = self.row(BACKWARD_PASS.name, is_sanity_check, is_hook=False)
            return [attrs.evolve(around[0], children=tuple(rows))] if around else rows
        return rows

    def row(self, name: str, is_sanity_check: bool, *, is_hook: bool = True) -> list[TreeRow]:
        """Return the row of a hook or span at its first place, if it was called."""
        if (name, is_sanity_check) in self._seen:
            return []
        self._seen.add((name, is_sanity_check))
        found = list(self._times.of_hook(name, is_sanity_check))
        if is_hook:
            found = [(row, tally) for row, tally in found if row.kind != LOOP]
        if not found:
            return []
        receivers = tuple((row.receiver, tally) for row, tally in found if row.receiver)
        return [TreeRow(name, is_hook, sum_of(tally for _, tally in found), receivers)]


@attrs.frozen
class Row:
    """Key of a row.

    Args:
        hook: The hook's or span's name.
        receiver: The receiver's name; empty for a span of the loop.
        kind: Kind of the receiver, or "loop".
        is_sanity_check: Whether it counts the calls of the sanity check.
    """

    hook: str
    receiver: str
    kind: str
    is_sanity_check: bool


@attrs.define(eq=False)
class VerbTimes:
    """The sums of all runs of one verb.

    Attributes:
        num_runs: Number of runs.
        duration_ns: Total duration.
        tallies: Sums by row, in the order of first calls.
        steps: By kind of batch, durations of the batch and its hooks.
    """

    num_runs: int = 0
    duration_ns: int = 0
    tallies: dict[Row, Tally] = attrs.field(factory=dict)
    steps: dict[str, dict[str, DurationHistogram]] = attrs.field(factory=dict)

    def add(self, recording: Recording, duration_ns: int) -> None:
        """Add a finished run."""
        self.num_runs += 1
        self.duration_ns += duration_ns
        for site in recording.sites:
            for tally, is_sanity_check in ((site.tally, False), (site.sanity_tally, True)):
                if tally.num_calls:
                    row = Row(site.hook, site.receiver, site.kind, is_sanity_check)
                    self.tallies.setdefault(row, Tally()).merge(tally)
        for span, histograms in recording.steps.items():
            merged = self.steps.setdefault(span, {})
            for name, histogram in histograms.items():
                merged.setdefault(name, DurationHistogram()).merge(histogram)

    def of_hook(self, hook: str, is_sanity_check: bool | None = None) -> Iterator[tuple[Row, Tally]]:
        """Yield the rows of a hook or span; inside and outside the sanity check if that is None."""
        for row, tally in self.tallies.items():
            if row.hook == hook and is_sanity_check in (None, row.is_sanity_check):
                yield row, tally


def sum_of(tallies: Iterable[Tally]) -> Tally:
    """Return the sum of tallies."""
    total = Tally()
    for tally in tallies:
        total.merge(tally)
    return total


_NS_PER_US = 1000


def trace_json(events: Iterable[Event], rank: int, num_dropped: int) -> str:
    """Return the events of one process as complete events ("X") on one thread, nested like the calls.

    The clock is the machine's monotonic one, so that the files of several processes on one machine can be merged.

    Args:
        events: The events.
        rank: Rank of the process, used as its id.
        num_dropped: Number of older events that were dropped.
    """
    named: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": f"rank {rank}"}},
        {"ph": "M", "name": "process_sort_index", "pid": rank, "tid": 0, "args": {"sort_index": rank}},
        {"ph": "M", "name": "thread_name", "pid": rank, "tid": 0, "args": {"name": "hooks (host time)"}},
    ]
    # An event precedes those that it encloses, also if they begin or end at the same nanosecond.
    ordered = sorted(events, key=lambda event: (event[1], -event[2]))
    complete = [
        {
            "ph": "X",
            "name": site.hook if not site.receiver else f"{site.hook} · {site.receiver}",
            "cat": site.kind,
            "pid": rank,
            "tid": 0,
            "ts": start_ns / _NS_PER_US,
            "dur": duration_ns / _NS_PER_US,
            "args": {"hook": site.hook, "receiver": site.receiver} if site.kind != LOOP else {},
        }
        for site, start_ns, duration_ns in ordered
    ]
    facts = {"events": len(complete), "older_events_dropped": num_dropped, "time": "host"}
    content = {"traceEvents": named + complete, "displayTimeUnit": "ms", "otherData": facts}
    return json.dumps(content, separators=(",", ":"))
