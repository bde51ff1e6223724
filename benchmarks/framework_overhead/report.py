"""The table: header, summary by scenario, and details with quartiles."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .frameworks import BY_HAND, OURS, Framework
from .measurement import Comparison, RunLength, quartiles
from .scenarios import Scenario

Results = dict[str, list[Comparison]]
"""Comparisons by the key of their scenario."""


@dataclass(frozen=True)
class Conditions:
    """What the figures hold for.

    Args:
        frameworks: those measured, in the order of the columns.
        skipped: reason for each framework that could not be.
        num_rounds: rounds asked for.
        length: steps of one timed run.
    """

    frameworks: list[Framework]
    skipped: dict[str, str]
    num_rounds: int
    length: RunLength

    def as_dict(self) -> dict[str, Any]:
        """Return machine, versions and settings as plain values."""
        return {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cpu": cpu_name(),
            "num_cores": os.cpu_count(),
            "num_threads": torch.get_num_threads(),
            "frameworks": {framework.name: framework.version() for framework in self.frameworks},
            "skipped": self.skipped,
            "num_rounds": self.num_rounds,
            "num_warmup_steps": self.length.num_warmup,
            "num_timed_steps": self.length.num_timed,
        }

    def lines(self) -> list[str]:
        """Return the header of the table."""
        facts = self.as_dict()
        versions = ", ".join(f"{name} {version}" for name, version in facts["frameworks"].items())
        return [
            f"python {facts['python']}, torch {facts['torch']}, {versions or 'no framework'}",
            f"{facts['cpu']}, {facts['num_cores']} cores, {facts['num_threads']} torch thread(s)",
            f"{self.length.num_timed} timed steps a run after {self.length.num_warmup} of warm-up; "
            f"medians of {self.num_rounds} paired rounds",
            *(f"skipped {name}: {reason}" for name, reason in self.skipped.items()),
        ]


def machine_lines() -> list[str]:
    """Return what ran, and on what."""
    return [
        f"python {platform.python_version()}, torch {torch.__version__}",
        f"{cpu_name()}, {os.cpu_count()} cores",
    ]


def render(conditions: Conditions, scenarios: Sequence[Scenario], results: Results, markdown: bool) -> str:
    """Return the whole report as plain text or as markdown."""
    table = markdown_table if markdown else text_table
    header = conditions.lines()
    return "\n".join(
        [
            *((f"- {line}" for line in header) if markdown else header),
            "",
            "Added to the loop written by hand, and its ratio to that loop:",
            "",
            *table(_summary(conditions, scenarios, results)),
            "",
            "In full (quartiles in brackets):",
            "",
            *table(_details(scenarios, results)),
        ]
    )


def as_json(conditions: Conditions, scenarios: Sequence[Scenario], results: Results) -> dict[str, Any]:
    """Return conditions and every single value, for `json.dump`."""
    return {
        "conditions": conditions.as_dict(),
        "scenarios": {
            scenario.key: {
                "title": scenario.title,
                "unit": scenario.unit,
                "aim": scenario.aim,
                "comparisons": [
                    {
                        "framework": comparison.framework,
                        "by_hand": comparison.by_hand,
                        "with_framework": comparison.with_framework,
                        "added_quartiles": quartiles(comparison.added()),
                        "ratio": comparison.ratio(),
                    }
                    for comparison in results[scenario.key]
                ],
            }
            for scenario in scenarios
        },
    }


def _summary(conditions: Conditions, scenarios: Sequence[Scenario], results: Results) -> list[list[str]]:
    names = [framework.name for framework in conditions.frameworks]
    rows = [["", BY_HAND, f"aim of {OURS}", *names]]
    for scenario in scenarios:
        comparisons = {comparison.framework: comparison for comparison in results[scenario.key]}
        by_hand = [value for comparison in comparisons.values() for value in comparison.by_hand]
        rows.append(
            [
                f"{scenario.title} ({scenario.unit})",
                number(quartiles(by_hand)[1]) if by_hand else "-",
                "-" if scenario.aim is None else f"at most {scenario.aim:g}",
                *(_cell(comparisons[name]) if name in comparisons else "n/a" for name in names),
            ]
        )
    return rows


def timing_rows(comparisons: Sequence[tuple[str, Comparison]]) -> list[list[str]]:
    """Return a table's rows: one for each comparison, which comes with the name of what was compared."""
    rows = [["scenario", "framework", "by hand", "with framework", "added", "quartiles", "ratio", "rounds"]]
    for title, comparison in comparisons:
        lower, middle, upper = quartiles(comparison.added())
        rows.append(
            [
                title,
                comparison.framework,
                number(quartiles(comparison.by_hand)[1]),
                number(quartiles(comparison.with_framework)[1]),
                signed(middle),
                f"[{signed(lower)} .. {signed(upper)}]",
                _ratio(comparison),
                str(len(comparison.by_hand)),
            ]
        )
    return rows


def _details(scenarios: Sequence[Scenario], results: Results) -> list[list[str]]:
    titles = {scenario.key: f"{scenario.title} ({scenario.unit})" for scenario in scenarios}
    return timing_rows([(titles[key], comparison) for key in titles for comparison in results[key]])


def _cell(comparison: Comparison) -> str:
    added = signed(quartiles(comparison.added())[1])
    ratio = _ratio(comparison)
    return added if ratio == "-" else f"{added} ({ratio})"


def _ratio(comparison: Comparison) -> str:
    ratio = comparison.ratio()
    return "-" if ratio is None else f"{ratio:.2f}x"


def number(value: float) -> str:
    """Return a figure with what is worth reading of it."""
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"


def signed(value: float) -> str:
    """Return a difference likewise."""
    return f"{value:+.3f}" if abs(value) < 10 else f"{value:+.1f}"


def text_table(rows: list[list[str]]) -> list[str]:
    """Return the lines of an aligned table; the first row is its head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [_aligned(row, widths) for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return lines


def _aligned(row: list[str], widths: list[int]) -> str:
    first, *others = zip(row, widths, strict=True)
    return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]).rstrip()


def markdown_table(rows: list[list[str]]) -> list[str]:
    """Return the lines of a table in markdown; the first row is its head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "| " + " | ".join(["---", *["---:"] * (len(rows[0]) - 1)]) + " |")
    return lines


def cpu_name() -> str:
    """Return what the machine calls its processor."""
    cpu_info = Path("/proc/cpuinfo")
    if cpu_info.exists():
        for line in cpu_info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
