"""What was found out about a class, as its owner reads it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from camshaft.hooks_core.eras.advice import Advice
from camshaft.hooks_core.eras.report import kind_in_words, order_of
from camshaft.hooks_core.inspection import HookMethod, Inspection

_WIDTH = 100


def inspection_text(name: str, inspection: Inspection) -> str:
    """What becomes of each method of a class, and what is wrong with it.

    Args:
        name: The class's name.
        inspection: What was found out about it.
    """
    lines = [f"{name}, {_standing(inspection)}"]
    for method in inspection.methods:
        lines += ["", *_lines_of(method)]
    order = order_of(inspection.reading)
    if order:
        lines += ["", f"In era {inspection.reading.version}", *(f"  {line}" for line in order)]
    lines += ["", _verdict(inspection), *(f"  {fault}" for fault in inspection.faults)]
    return "\n".join(lines)


def advice_text(advice: Sequence[Advice]) -> str:
    """The edits that make a class one of today, method by method.

    Args:
        advice: The edits.
    """
    if not advice:
        return "Nothing is to be edited: nothing of it belongs to an earlier era."
    lines = ["To make it a class of era 2.x:"]
    for one in advice:
        lines += ["", one.method, *_wrapped("  ", one.text)]
        if one.sketch:
            lines += ["", textwrap.indent(one.sketch, "      ")]
    return "\n".join(lines)


def as_data(name: str, inspection: Inspection, advice: Sequence[Advice] | None) -> dict[str, Any]:
    """The same as plain values.

    Args:
        name: The class's name.
        inspection: What was found out about it.
        advice: The edits; None leaves them out.
    """
    reading = inspection.reading
    data: dict[str, Any] = {
        "name": name,
        "kind": str(inspection.kind),
        "era": reading.version or "2.x",
        "declared": reading.is_declared,
        "methods": [attrs.asdict(method) for method in inspection.methods],
        "order": order_of(reading),
        "faults": [attrs.asdict(fault) for fault in inspection.faults],
    }
    if advice is not None:
        data["advice"] = [attrs.asdict(one) for one in advice]
    return data


def _standing(inspection: Inspection) -> str:
    reading, kind = inspection.reading, kind_in_words(inspection.kind)
    if reading.is_of_today:
        return f"a {kind}"
    if reading.is_declared:
        return f"a {kind} of era {reading.version}, as it declares"
    return f"a {kind} of era {reading.version}, by its hooks; another is declared by `hook_era`"


def _lines_of(method: HookMethod) -> Iterator[str]:
    if method.era is None:
        yield f"{method.name}: not called"
        yield f"  fits      {' '.join(method.eras) or 'no era'}"
        return
    yield method.call
    yield f"  era       {method.era}{_further(method)}"
    yield from _wrapped("  when      ", method.when)
    if method.returns != "ignored":
        yield from _wrapped("  returns   ", method.returns)


def _further(method: HookMethod) -> str:
    others = [era for era in method.eras if era != method.era]
    return f" (fits {', '.join(others)} too)" if others else ""


def _wrapped(label: str, text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=label, subsequent_indent=" " * len(label), break_on_hyphens=False)


def _verdict(inspection: Inspection) -> str:
    num_faults = sum(not fault.is_warning for fault in inspection.faults)
    colon = ":" if inspection.faults else ""
    if num_faults:
        return f"{num_faults} fault{'s' if num_faults != 1 else ''}:"
    if not inspection.methods:
        return f"No faults: it implements no hooks{colon or '.'}"
    if inspection.reading.is_of_today:
        return f"No faults: it runs with today's hooks{colon or '.'}"
    return f"No faults: it runs as a {kind_in_words(inspection.kind)} of era {inspection.reading.version}{colon or '.'}"
