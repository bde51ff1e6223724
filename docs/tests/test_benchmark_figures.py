"""Figures of the documentation come from files that the benchmarks wrote."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import figures  # noqa: E402

REPORT = {
    "conditions": {
        "date": "2026-01-02",
        "commit": "0123456789ab",
        "python": "3.11.7",
        "torch": "2.13.0",
        "cpu": "a processor",
        "num_cores": 2,
        "load_before": 0.1,
        "frameworks": {"camshaft": "0.1.0", "lightning": "2.6.6"},
        "num_rounds": 2,
        "num_timed_steps": 1000,
    },
    "scenarios": {
        key: {
            "title": title,
            "unit": "µs/step",
            "aim": None,
            "is_unit_cost": False,
            "comparisons": [
                {"framework": "camshaft", "by_hand": [50.0, 50.0], "with_framework": [55.0, 55.0]},
                {"framework": "lightning", "by_hand": [50.0, 50.0], "with_framework": [250.0, 250.0]},
            ],
        }
        for key, title in {"train": "train, bare", "evaluate": "evaluate"}.items()
    },
}
TIME = re.compile(r"\d ?(µs|microseconds?|nanoseconds?|ms|milliseconds?)\b")
OUTPUT = re.compile(r"^```text\n.*?^```$", re.MULTILINE | re.DOTALL)
PAGES = [ROOT / "README.md", ROOT / "RATIONALE.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "overhead.json").write_text(json.dumps(REPORT), encoding="utf-8")
    monkeypatch.setattr(figures, "MEASURED", tmp_path)
    return tmp_path


@pytest.mark.usefixtures("measured")
def test_a_table_has_the_figures_of_the_file_and_says_when_where_and_of_what_they_are() -> None:
    table = figures.markdown_of("overhead", columns=["camshaft"], rows=["train"])
    assert "| train, bare (µs/step) | 50.0 | - | +5.000 (1.10x) |" in table
    assert "evaluate" not in table
    assert "250" not in table
    for fact in ("2026-01-02", "0123456789ab", "torch 2.13.0", "a processor, 2 cores", "load before the benchmark 0.1"):
        assert fact in table


@pytest.mark.usefixtures("measured")
def test_the_tables_between_marks_are_made_anew_and_the_text_around_them_stays() -> None:
    page = "before\n<!-- figures: overhead columns=lightning rows=train -->\nold\n<!-- end of figures -->\nafter\n"
    made = figures.with_tables(page)
    assert "+200.0 (5.00x)" in made
    assert "old" not in made
    assert made.startswith("before\n")
    assert made.endswith("\nafter\n")
    assert figures.with_tables(made) == made


@pytest.mark.usefixtures("measured")
def test_a_benchmark_without_figures_says_how_to_measure_them() -> None:
    page = "<!-- figures: callback_overhead -->\n<!-- end of figures -->"
    assert "Run `python benchmarks/callback_overhead.py --json" in figures.with_tables(page)


def test_the_tables_of_the_readme_are_those_of_the_files() -> None:
    text = figures.README.read_text(encoding="utf-8")
    assert figures.with_tables(text) == text, "run `python benchmarks/figures.py`"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_page_has_a_measured_time_that_was_typed(path: Path) -> None:
    prose = OUTPUT.sub("", path.read_text(encoding="utf-8"))
    assert TIME.findall(prose) == []
