"""Printing what an evaluation found."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence


def print_results(results: Sequence[Mapping[str, float]], verb: str) -> None:
    """Print a table with a row per value and a column per loader; nothing if no value was logged.

    A name that ends in its loader's index goes by the name alone, since the column says which loader it is.

    Args:
        results: The values of each loader.
        verb: What was run, for the heading.
    """
    columns = [_without_loader(result, idx) for idx, result in enumerate(results)]
    names = list(dict.fromkeys(name for column in columns for name in column))
    if not names:
        return
    headings = [verb, "value"] if len(columns) == 1 else [verb, *(f"loader {idx}" for idx in range(len(columns)))]
    rows = [[name, *(_format(column.get(name)) for column in columns)] for name in names]
    widths = [max(len(row[position]) for row in [headings, *rows]) for position in range(len(headings))]
    for row in [headings, ["-" * width for width in widths], *rows]:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        print("  ".join(cells).rstrip())


def _without_loader(result: Mapping[str, float], dataloader_idx: int) -> dict[str, float]:
    """The values by their short names; a short name that something else has already is left long."""
    short = {name: re.sub(rf"/dataloader_idx_{dataloader_idx}$", "", name) for name in result}
    return {name if short[name] != name and short[name] in result else short[name]: result[name] for name in result}


def _format(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
