"""Files of a timeline: an HTML page that needs no other file, and a trace for Perfetto."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import files
from string import Template
from typing import Any, NamedTuple

import attrs

from camshaft.callbacks.profiling.timeline_recording import (
    BACKWARD_PASS,
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
from camshaft.hooks_core.grammar import life_cycle
from camshaft.hooks_core.grammar.nodes import Call, Either, If, Maybe, Node, Repeat, Seq, Within


class Row(NamedTuple):
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


def report_html(verbs: Mapping[str, VerbTimes], rank: int) -> str:
    """Return the HTML page, which has the sums as JSON and renders them.

    Args:
        verbs: Measured times by verb.
        rank: Rank of the process.
    """
    template = Template(files(__package__).joinpath("timeline.html").read_text(encoding="utf-8"))
    data = json.dumps([report_data(verb, times) for verb, times in verbs.items()], separators=(",", ":"))
    return template.substitute(rank=rank, data=data.replace("<", "\\u003c"))  # no name ends the script


def report_data(verb: str, times: VerbTimes) -> dict[str, Any]:
    """Return what the page shows of a verb; durations are in nanoseconds.

    "rows" are [hook, receiver, kind, calls, total, self, longest]. "steps" are pairs of a kind of batch and
    [name, kind, batches, 50th, 90th and 99th percentile, longest, total] of the batch and its hooks, by total. "tree"
    has the rows of `life_cycle_rows`.
    """
    kinds: dict[str, set[str]] = {}
    for row in times.tallies:
        kinds.setdefault(row.hook, set()).add(row.kind)
    steps: list[list[Any]] = []
    for span, histograms in sorted(times.steps.items(), key=lambda item: item[0] != TRAINING_BATCH.name):
        counted = [(name, one) for name, one in histograms.items() if one.num]
        counted.sort(key=lambda item: (item[0] != span, -item[1].total_ns))
        facts = []
        for name, one in counted:
            percentiles = map(one.percentile_ns, (50, 90, 99))
            facts.append([name, _common(kinds.get(name, ())), one.num, *percentiles, one.max_ns, one.total_ns])
        if facts:
            steps.append([span, facts])
    rows = [[*row[:3], one.num_calls, one.total_ns, one.self_ns, one.max_ns] for row, one in times.tallies.items()]
    nested = life_cycle_rows(verb, times)
    tree = [[*row[:5], row.tally.num_calls, row.tally.total_ns, row.tally.self_ns] for row in nested]
    run = {"verb": verb, "runs": times.num_runs, "duration": times.duration_ns}
    return {**run, "steps": steps, "rows": rows, "tree": tree}


def _common(kinds: Iterable[str]) -> str:
    """Return the kind of all, or that of the loop if they differ."""
    found = set(kinds)
    return found.pop() if len(found) == 1 else LOOP


class TreeRow(NamedTuple):
    """A row of the life cycle.

    Args:
        depth: Number of rows that enclose it.
        label: Name of the hook or span; "" for one of several receivers of the hook above.
        receiver: Name of the receiver; "" for all, or a span.
        kind: Kind of the receiver.
        is_hook: Whether the label is a hook's name.
        tally: Its sums.
    """

    depth: int
    label: str
    receiver: str
    kind: str
    is_hook: bool
    tally: Tally


def life_cycle_rows(verb: str, times: VerbTimes) -> list[TreeRow]:
    """Return the hooks that were called, in the order and nesting of the verb's life cycle.

    A hook with several places is at the first one, with all its calls; those of the sanity check are separate. Hooks
    outside of the life cycle, such as `on_exception`, come last.

    Args:
        times: Its measured times.
    """
    placed: set[tuple[str, bool]] = set()

    def place(name: str, depth: int, is_sanity_check: bool, is_hook: bool = True) -> list[TreeRow]:
        """Return the rows of a hook or span at its first place, if it was called."""
        found = [
            (row, tally)
            for row, tally in times.tallies.items()
            if row.hook == name and row.is_sanity_check == is_sanity_check and not (is_hook and row.kind == LOOP)
        ]
        if not found or (name, is_sanity_check) in placed:
            return []
        placed.add((name, is_sanity_check))
        whole = Tally()
        for _, tally in found:
            whole.merge(tally)
        receivers = [(row, tally) for row, tally in found if row.receiver]
        one = receivers[0][0].receiver if len(receivers) == 1 else ""
        rows = [TreeRow(depth, name, one, _common(row.kind for row, _ in found), is_hook or bool(receivers), whole)]
        if len(receivers) > 1:
            rows += [TreeRow(depth + 1, "", row.receiver, row.kind, is_hook, tally) for row, tally in receivers]
        return rows

    def walk(node: Node, depth: int, is_sanity_check: bool) -> Iterator[TreeRow]:
        around: list[TreeRow] = []
        match node:
            case Call(hook=hook):
                if hook == "backward":
                    around = place(BACKWARD_PASS.name, depth, is_sanity_check, is_hook=False)
                yield from around
                yield from place(hook, depth + bool(around), is_sanity_check)
            case Within(hook=hook, body=body):
                around = place(hook, depth, is_sanity_check)
                yield from around
                yield from walk(body, depth + bool(around), is_sanity_check)
                if hook == "optimizer_step":
                    yield from place(OPTIMIZER_STEP.name, depth + bool(around), is_sanity_check, is_hook=False)
            case Seq(items=items) | Either(options=items):
                for item in items:
                    yield from walk(item, depth, is_sanity_check)
            case Repeat(body=body) | Maybe(body=body) | If(body=body):
                span = span_of(node)
                if span is not None:
                    around = place(span.name, depth, is_sanity_check, is_hook=False)
                yield from around
                yield from walk(body, depth + bool(around), is_sanity_check or span is SANITY_CHECK)

    rows = place(f"{verb}()", 0, False, is_hook=False)
    depth = len(rows)
    rows += walk(life_cycle(verb), depth, False)
    rest = dict.fromkeys(row.hook for row in times.tallies if not {(row.hook, False), (row.hook, True)} & placed)
    return [*rows, *(row for hook in rest for row in place(hook, depth, False))]


_NS_PER_US = 1000


def trace_json(events: Iterable[Event], rank: int, num_dropped: int) -> str:
    """Return the events of one process as complete events ("X") on one thread, nested like the calls.

    The clock is the machine's monotonic one, so that the files of several processes on one machine can be merged.

    Args:
        rank: Rank of the process, used as its id.
        num_dropped: Number of older events that were dropped.
    """
    place = {"pid": rank, "tid": 0}
    named: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", **place, "args": {"name": f"rank {rank}"}},
        {"ph": "M", "name": "process_sort_index", **place, "args": {"sort_index": rank}},
        {"ph": "M", "name": "thread_name", **place, "args": {"name": "hooks (host time)"}},
    ]
    # An event precedes those that it encloses, also if they begin or end at the same nanosecond.
    ordered = sorted(events, key=lambda event: (event[3], -event[4]))
    complete = [
        {
            "ph": "X",
            "name": f"{hook} · {receiver}" if receiver else hook,
            "cat": kind,
            **place,
            "ts": start_ns / _NS_PER_US,
            "dur": duration_ns / _NS_PER_US,
            "args": {"hook": hook, "receiver": receiver} if kind != LOOP else {},
        }
        for hook, receiver, kind, start_ns, duration_ns in ordered
    ]
    facts = {"events": len(complete), "older_events_dropped": num_dropped, "time": "host"}
    content = {"traceEvents": named + complete, "displayTimeUnit": "ms", "otherData": facts}
    return json.dumps(content, separators=(",", ":"))
