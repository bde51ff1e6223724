"""Printing what an evaluation found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def print_results(results: Sequence[Mapping[str, float]], verb: str) -> None:
    """Print a table with a row per value and a column per loader; nothing if no value was logged.

    Args:
        results: The values of each loader.
        verb: What was run, for the heading.
    """
    names = list(dict.fromkeys(name for result in results for name in result))
    if not names:
        return
    headings = [verb] + ([f"loader {idx}" for idx in range(len(results))] if len(results) > 1 else ["value"])
    rows = [[name, *(_format(result.get(name)) for result in results)] for name in names]
    widths = [max(len(row[column]) for row in [headings, *rows]) for column in range(len(headings))]
    for row in [headings, ["-" * width for width in widths], *rows]:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        print("  ".join(cells).rstrip())


def _format(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
