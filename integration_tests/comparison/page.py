"""The tables of `docs/coming-from/lightning.md`; `python -m comparison.page` in integration_tests writes them anew."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from comparison.difference import Topic
from comparison.differences import DIFFERENCES
from comparison.stated import STATED

PAGE = Path(__file__).parents[2] / "docs" / "coming-from" / "lightning.md"
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"
_TITLES = {
    "hooks": "Hooks and their order",
    "optimization": "Optimization",
    "data": "Data",
    "logging": "Logging",
    "checkpoints": "Checkpoints and resuming",
    "callbacks": "Stock callbacks and loggers",
    "errors": "Errors in place of silence",
}


def tables() -> str:
    """The rows of both tables of differences, in a section for each topic."""
    assert set(_TITLES) == set(get_args(Topic))
    sections = []
    for topic, title in _TITLES.items():
        rows = [row for row in (*DIFFERENCES, *STATED) if row.topic == topic]
        lines = [f"### {title}", "", "| what | Lightning 2.6 | camshaft | why | what to write |", "| --- " * 5 + "|"]
        for row in rows:
            cells = (row.name, row.lightning, row.camshaft, row.reason, row.write)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        sections.append("\n".join(lines))
    return "\n\n".join(sections)


def with_tables(text: str) -> str:
    """The page's text with the tables of today between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
