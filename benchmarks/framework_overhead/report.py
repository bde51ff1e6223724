"""The table: header, summary by scenario, and details with quartiles."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
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
        circumstances: when and where they were measured.
        frameworks: those measured, in the order of the columns.
        skipped: reason for each framework that could not be.
        num_rounds: rounds asked for.
        length: steps of one timed run.
    """

    circumstances: dict[str, Any]
    frameworks: list[Framework]
    skipped: dict[str, str]
    num_rounds: int
    length: RunLength

    def as_dict(self) -> dict[str, Any]:
        """Return circumstances, versions and settings as plain values."""
        return self.circumstances | {
            "num_threads": torch.get_num_threads(),
            "frameworks": {framework.name: framework.version() for framework in self.frameworks},
            "skipped": self.skipped,
            "num_rounds": self.num_rounds,
            "num_warmup_steps": self.length.num_warmup,
            "num_timed_steps": self.length.num_timed,
        }


def circumstances() -> dict[str, Any]:
    """Return when and where figures are measured, and of which commit, as plain values; call it before measuring.

    "load_before" is the number of processes that kept the machine busy in the minute before.
    """
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cpu": cpu_name(),
        "num_cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
    }


def commit() -> str:
    """Return the commit of the checkout, with "-dirty" where files differ from it; "unknown" outside of one."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        answer = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return answer.stdout.strip()


def circumstances_lines(facts: Mapping[str, Any]) -> list[str]:
    """Return what `circumstances` told, as lines."""
    return [
        f"{facts['date']}, commit {facts['commit']}",
        f"python {facts['python']}, torch {facts['torch']}; {facts['cpu']}, {facts['num_cores']} cores, "
        f"load before the benchmark {'unknown' if facts['load_before'] is None else facts['load_before']}",
    ]


def publish(
    report: Mapping[str, Any], rows: list[list[str]], file: Path | None, *, markdown: bool = False, aim: str = ""
) -> None:
    """Print where a report's figures were measured, their table and the aim, and write every single value to a file.

    Args:
        report: "conditions", as of `circumstances`, and values.
        rows: the table.
        file: the file for the report as JSON; None for none.
        markdown: whether the table is markdown instead of aligned text.
        aim: a sentence below the table.
    """
    table = (markdown_table if markdown else text_table)(rows)
    print("\n".join([*circumstances_lines(report["conditions"]), "", *table, *(["", aim] if aim else [])]))
    write_values(report, file)


def write_values(report: Mapping[str, Any], file: Path | None) -> None:
    """Write a report to a file as JSON, if there is one."""
    if file is not None:
        file.write_text(json.dumps(report, indent=2) + "\n")


def condition_lines(facts: Mapping[str, Any]) -> list[str]:
    """Return the header of a table: `Conditions.as_dict` as lines."""
    versions = ", ".join(f"{name} {version}" for name, version in facts["frameworks"].items())
    return [
        *circumstances_lines(facts),
        f"{facts['num_threads']} torch thread(s); {versions or 'no framework'}",
        f"{facts['num_timed_steps']} timed steps a run after {facts['num_warmup_steps']} of warm-up; "
        f"medians of {facts['num_rounds']} paired rounds",
        *(f"skipped {name}: {reason}" for name, reason in facts["skipped"].items()),
    ]


def render(report: Mapping[str, Any], markdown: bool) -> str:
    """Return a report of `as_json` as plain text or as markdown."""
    table = markdown_table if markdown else text_table
    header = condition_lines(report["conditions"])
    return "\n".join(
        [
            *((f"- {line}" for line in header) if markdown else header),
            "",
            "Added to the loop written by hand, and its ratio to that loop:",
            "",
            *table(summary_rows(report)),
            "",
            "In full (quartiles in brackets):",
            "",
            *table(timing_rows(_titled(report))),
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
                "is_unit_cost": scenario.is_unit_cost,
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


def comparisons_of(report: Mapping[str, Any], key: str) -> list[Comparison]:
    """Return the comparisons of a scenario of a report, as `as_json` wrote them."""
    scenario = report["scenarios"][key]
    return [
        Comparison(one["framework"], scenario["is_unit_cost"], one["by_hand"], one["with_framework"])
        for one in scenario["comparisons"]
    ]


def summary_rows(
    report: Mapping[str, Any],
    frameworks: Sequence[str] | None = None,
    scenarios: Sequence[str] | None = None,
    *,
    with_quartiles: bool = False,
) -> list[list[str]]:
    """Return the rows of the summary of a report.

    Args:
        report: What `as_json` returned.
        frameworks: The columns; None takes those that were measured.
        scenarios: The rows; None takes all.
        with_quartiles: Whether cells hold quartiles in place of the ratio.
    """
    names = list(report["conditions"]["frameworks"] if frameworks is None else frameworks)
    rows = [["", BY_HAND, f"aim of {OURS}", *names]]
    for key in report["scenarios"] if scenarios is None else scenarios:
        scenario = report["scenarios"][key]
        comparisons = {comparison.framework: comparison for comparison in comparisons_of(report, key)}
        by_hand = [value for comparison in comparisons.values() for value in comparison.by_hand]
        rows.append(
            [
                f"{scenario['title']} ({scenario['unit']})",
                number(quartiles(by_hand)[1]) if by_hand else "-",
                "-" if scenario["aim"] is None else f"at most {scenario['aim']:g}",
                *(_cell(comparisons[name], with_quartiles) if name in comparisons else "n/a" for name in names),
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


def _titled(report: Mapping[str, Any]) -> list[tuple[str, Comparison]]:
    titles = {key: f"{scenario['title']} ({scenario['unit']})" for key, scenario in report["scenarios"].items()}
    return [(titles[key], comparison) for key in titles for comparison in comparisons_of(report, key)]


def _cell(comparison: Comparison, with_quartiles: bool) -> str:
    lower, middle, upper = quartiles(comparison.added())
    if with_quartiles:
        return f"{signed(middle)} [{signed(lower)} .. {signed(upper)}]"
    ratio = _ratio(comparison)
    return signed(middle) if ratio == "-" else f"{signed(middle)} ({ratio})"


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
