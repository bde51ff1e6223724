"""The page that shows what a timeline has measured; it needs no other file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape

from camshaft.callbacks.timeline.histogram import DurationHistogram
from camshaft.callbacks.timeline.page import SCRIPT, STYLE
from camshaft.callbacks.timeline.recording import BETWEEN_HOOKS
from camshaft.callbacks.timeline.sites import LOOP, Tally
from camshaft.callbacks.timeline.spans import BACKWARD_PASS, OPTIMIZER_STEP, TRAINING_BATCH
from camshaft.callbacks.timeline.totals import VerbTimes
from camshaft.callbacks.timeline.tree import TreeRow, life_cycle_tree

_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
_KINDS = ("module", "callback", "data", "strategy", LOOP)
_WHAT = {
    "module": "module",
    "callback": "callbacks",
    "data": "data module",
    "strategy": "strategy",
    LOOP: "loop: backward, optimizer.step, loading of batches, set-up",
}
_OWN_TIME = {
    "training": "saving of checkpoints, and the loop",
    "training batch": "between its hooks",
    "training epoch": "loading of batches, and the loop",
    "validation": "loading of batches, and the loop",
    "test": "loading of batches, and the loop",
    "predict": "loading of batches, and the loop",
}


def report_html(verbs: Mapping[str, VerbTimes], rank: int) -> str:
    """The report, a section per verb.

    Args:
        verbs: What was measured, by verb.
        rank: The process that measured.
    """
    links = "".join(f'<a href="#{escape(verb)}">{escape(verb)}</a>' for verb in verbs)
    body = "".join(line for verb, times in verbs.items() for line in _verb(verb, times))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Hook timeline, rank {rank}</title><style>{STYLE}</style></head><body>"
        f"<header><div><h1>Hook timeline</h1><span>rank {rank}, host time</span><nav>{links}</nav></div></header>"
        f"<main>{body}<footer>Times are the host's: on an accelerator, work that was queued shows up where the host "
        "waits for it. Sums are exact; percentiles are nearest-rank, read from buckets, at most 0.8 % off."
        f"</footer></main><script>{SCRIPT}</script></body></html>\n"
    )


def time_in_words(duration_ns: float) -> tuple[str, str]:
    """A duration with three significant digits: the number and its unit."""
    for size, unit in _UNITS:
        number = duration_ns / size
        if number >= 0.9995 or unit == "ns":
            break
    if unit == "ns":
        return f"{number:.0f}", unit
    return (f"{number:.2f}" if number < 9.995 else f"{number:.1f}" if number < 99.95 else f"{number:,.0f}"), unit


def _steps(times: VerbTimes) -> list[tuple[str, dict[str, DurationHistogram]]]:
    """The kinds of batches that were counted, training first."""
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
    """One bar of all the time, divided among the kinds of receivers."""
    own = dict.fromkeys(_KINDS, 0)
    for row, tally in times.tallies.items():
        own[row.kind] += tally.self_ns
    shares = {kind: 100 * spent / max(times.duration_ns, 1) for kind, spent in own.items() if spent}
    bar = "".join(f'<span class="{kind}" style="width:{share:.3f}%"></span>' for kind, share in shares.items())
    key = "".join(
        f'<span><i class="dot {kind}"></i>{share:.1f} % {_WHAT[kind]}</span>' for kind, share in shares.items()
    )
    return f'<section class="card"><div class="split">{bar}</div><div class="key">{key}</div></section>'


def _step_table(span: str, times: VerbTimes) -> str:
    whole = times.steps[span][span]
    kinds = {row.hook: row.kind for row in times.tallies}
    rest = [(name, one) for name, one in times.steps[span].items() if name != span and one.num]
    rows = []
    for name, one in [(span, whole), *sorted(rest, key=lambda pair: -pair[1].total_ns)]:
        share = one.total_ns / max(whole.total_ns, 1)
        kind = _kind_of(name, times, kinds)
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
        note += f" {OPTIMIZER_STEP} and the {BACKWARD_PASS.name} are the loop's own."
    return _card(f"Per {span}", note, heads, rows)


def _receivers_table(times: VerbTimes) -> str:
    merged: dict[tuple[str, str], Tally] = {}
    for row, tally in times.tallies.items():
        receiver = row.receiver if row.kind != LOOP else "the loop"
        merged.setdefault((receiver, row.kind), Tally()).merge(tally)
    most = max((tally.self_ns for tally in merged.values()), default=0)
    rows = [
        [
            f'<td class="text"><i class="dot {kind}"></i>{escape(receiver)}</td>',
            f'<td class="text who">{"" if kind == LOOP else escape(_WHAT[kind].removesuffix("s"))}</td>',
            "<td></td>" if kind == LOOP else _count(tally.num_calls),
            _time(tally.self_ns),
            _percent(tally.self_ns / max(times.duration_ns, 1)),
            "<td></td>" if kind == LOOP else _time(tally.max_ns),
            _bar(tally.self_ns / max(most, 1), kind),
        ]
        for (receiver, kind), tally in sorted(merged.items(), key=lambda pair: -pair[1].self_ns)
    ]
    heads = ["<receiver", "<", "calls", "self", "share", "longest call", "<self"]
    return _card("Receivers", "All hooks of a receiver together.", heads, rows, sorted_by=3)


def _totals_table(verb: str, times: VerbTimes) -> str:
    merged: dict[tuple[str, str, str], Tally] = {}
    for row, tally in times.tallies.items():
        merged.setdefault((row.hook, row.receiver, row.kind), Tally()).merge(tally)
    most = max((tally.self_ns for tally in merged.values()), default=0)
    rows = []
    for (hook, receiver, kind), tally in sorted(merged.items(), key=lambda pair: -pair[1].self_ns):
        is_part = kind == LOOP and not receiver
        what = _OWN_TIME.get(hook, "around all this" if hook == f"{verb}()" else "") if is_part else ""
        cells = [
            _name(hook, is_hook=not is_part, kind=kind),
            f'<td class="text who">{escape(receiver or what)}</td>',
            _count(tally.num_calls),
            _time(tally.self_ns),
            _percent(tally.self_ns / max(times.duration_ns, 1)),
            _time(tally.total_ns),
            _time(tally.total_ns / tally.num_calls),
            _time(tally.max_ns),
            _bar(tally.self_ns / max(most, 1), kind),
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


def _kind_of(name: str, times: VerbTimes, kinds: Mapping[str, str]) -> str:
    return _common_kind(row.kind for row, _ in times.of_hook(name)) if name in kinds else LOOP


def _common_kind(kinds: Iterable[str]) -> str:
    """The kind that all have, or the loop's neutral one."""
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
    """A bar as long as the share; the part that is not one's own is paler."""
    width, full = 100 * min(max(share, 0.0), 1.0), 100 * min(max(own, 0.0), 1.0)
    fill = f"linear-gradient(90deg, transparent {full:.1f}%, color-mix(in srgb, var(--card) 62%, transparent) 0)"
    style = f"width:{width:.3f}%" + ("" if full > 99.9 else f";background-image:{fill}")
    return f'<td class="bar"><span class="{kind}" style="{style}"></span></td>'
