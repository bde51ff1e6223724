"""Make tables of the figures in `measured/`, for README.md and the documentation.

    python benchmarks/figures.py   # writes the tables of README.md anew

Each file in `measured/` is what a benchmark wrote by `--json`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import agreement
import callback_overhead
import checkpoint_blocking
import distributed_overhead
import save_planning
import scale
import sharded_checkpoints
from camshaft.hooks_core.support.messages import must_be
from framework_overhead.report import circumstances_lines, markdown_table, summary_rows

MEASURED = Path(__file__).parent / "measured"
README = Path(__file__).parent / "README.md"
MARKS = re.compile(r"(<!-- figures: (\w+)((?: [\w=,]+)*) -->\n).*?(<!-- end of figures -->)", re.DOTALL)
"""What stands around a table in README.md: its benchmark, and perhaps `rows=`, `columns=` and `quartiles`."""

_ROWS = {
    "agreement": agreement.table_rows,
    "callback_overhead": callback_overhead.table_rows,
    "checkpoint_blocking": checkpoint_blocking.table_rows,
    "distributed_overhead": distributed_overhead.table_rows,
    "save_planning": save_planning.table_rows,
    "scale": scale.table_rows,
    "sharded_checkpoints": sharded_checkpoints.table_rows,
}


def markdown_of(
    benchmark: str, columns: Sequence[str] | None = None, rows: Sequence[str] | None = None, *, quartiles: bool = False
) -> str:
    """Return the table of a benchmark, with a line below that says when and where it was measured, and of what.

    Args:
        benchmark: The benchmark's name, which is that of its file.
        columns: The frameworks to show, of `overhead` alone; None shows all.
        rows: The scenarios to show, of `overhead` alone; None shows all.
        quartiles: Whether to show quartiles in place of ratios, of `overhead` alone.

    Raises:
        FileNotFoundError: If the benchmark has no file in `measured/`.
        KeyError: If a column or row was not measured.
    """
    path = path_of(benchmark)
    if not path.exists():
        rule = f"one with a file in {MEASURED}"
        raise FileNotFoundError(must_be("benchmark", rule, benchmark, "markdown_of", _command(benchmark)))
    report = json.loads(path.read_text(encoding="utf-8"))
    if benchmark == "overhead":
        table = summary_rows(report, columns, rows, with_quartiles=quartiles)
    else:
        table = _ROWS[benchmark](report)
    return "\n".join([*markdown_table(table), "", _caption(report["conditions"])])


def path_of(benchmark: str) -> Path:
    """Return the file of a benchmark's figures."""
    return MEASURED / f"{benchmark}.json"


def not_measured(benchmark: str) -> str:
    """Return a sentence for a benchmark without figures."""
    return f"Not measured yet. {_command(benchmark)}"


def _command(benchmark: str) -> str:
    return f"Run `python benchmarks/{benchmark}.py --json benchmarks/measured/{benchmark}.json`."


def _caption(facts: Mapping[str, Any]) -> str:
    parts = circumstances_lines(facts)
    if "frameworks" in facts:
        parts.append(", ".join(f"{name} {version}" for name, version in facts["frameworks"].items()))
    if "num_rounds" in facts:
        parts.append(f"medians of {facts['num_rounds']} paired rounds of {facts['num_timed_steps']} steps")
    return "Measured " + "; ".join(parts) + "."


def with_tables(text: str) -> str:
    """Return a page's text with the tables between its marks as they are in `measured/`.

    A benchmark without figures has a sentence there that says how to measure them.
    """

    def table(match: re.Match[str]) -> str:
        begin, benchmark, settings, end = match.groups()
        if not path_of(benchmark).exists():
            return f"{begin}\n{not_measured(benchmark)}\n\n{end}"
        chosen = dict(word.partition("=")[::2] for word in settings.split())
        columns, rows = (chosen[key].split(",") if key in chosen else None for key in ("columns", "rows"))
        return f"{begin}\n{markdown_of(benchmark, columns, rows, quartiles='quartiles' in chosen)}\n\n{end}"

    return MARKS.sub(table, text)


if __name__ == "__main__":
    README.write_text(with_tables(README.read_text(encoding="utf-8")), encoding="utf-8")
