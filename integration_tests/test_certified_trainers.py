"""The table of certified trainers: its form, its adapters, and the columns of libraries that are installed here."""

from __future__ import annotations

from typing import Any

import pytest
from certify import run

from camshaft.hooks_core.conformance import SCENARIOS

ADAPTERS = sorted((run.FOLDER / "adapters").glob("*.py"))
INSTALLED = ("camshaft", "lightning", "accelerate", "fabric")
MOST_LINES = 80


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    return run.kept()


def test_every_framework_has_a_result_and_an_adapter_of_one_page(results: dict[str, Any]) -> None:
    assert [path.stem for path in ADAPTERS] == sorted(f"on_{name}" for name in run.NAMES)
    pages = [*ADAPTERS, run.FOLDER.parent / "examples" / "torchtitan_callbacks.py"]
    assert {path.stem: num for path in pages if (num := len(path.read_text().splitlines())) > MOST_LINES} == {}
    assert list(results) == list(run.NAMES)
    assert all(result["versions"].keys() > {"torch"} for result in results.values())


def test_the_page_shows_the_results(results: dict[str, Any]) -> None:
    page = run.PAGE.read_text()
    assert page.count(run.BEGIN) == page.count(run.END) == 1
    assert run.with_table(page, results) == page


def test_the_table_has_a_cell_for_every_scenario_and_framework(results: dict[str, Any]) -> None:
    head, rule, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in page_rows())
    assert head == ["scenario", *(result["title"] for result in results.values())]
    assert set("".join(rule)) == {"-"}
    assert [row[0] for row in rows] == [scenario.name for scenario in SCENARIOS]
    for name, *cells in rows:
        assert cells[0] == "passes", name  # our own trainer
        assert all(cell in ("passes", "-") or cell.startswith("`") for cell in cells), name
        assert len(cells) == len(results)


def page_rows() -> list[str]:
    return [line for line in run.PAGE.read_text().splitlines() if line.startswith("|")]


def test_every_departure_has_a_reason_and_every_reason_a_departure(results: dict[str, Any]) -> None:
    for name, result in results.items():
        cells = result["scenarios"].items()
        explained = [one for reason in run.REASONS.get(name, []) for one in reason["scenarios"]]
        assert sorted(explained) == sorted(scenario for scenario, cell in cells if cell["is"] == "departs"), name
        assert all(cell["why"] and cell["at"] for _, cell in cells if cell["is"] == "departs"), name


@pytest.mark.parametrize("name", INSTALLED)
def test_a_framework_that_is_installed_here_still_gives_its_column(name: str, results: dict[str, Any]) -> None:
    result = run.certified(name, run.load(name))
    assert run.faults_of(name, result) == []
    assert result["scenarios"] == results[name]["scenarios"]
    assert result["without"] == results[name]["without"]


@pytest.mark.parametrize(
    ("reason", "fault"),
    [
        ({"scenarios": []}, "departs in fit, and no reason is known"),
        ({"scenarios": ["fit", "test"]}, "has a reason for test, where it does not depart"),
        (
            {"scenarios": ["fit"], "quote": "Call it twice.", "source": "camshaft.hooks_core.Callback"},
            "camshaft.hooks_core.Callback does not say 'Call it twice.'",
        ),
    ],
)
def test_a_reason_that_no_longer_holds_is_a_fault(
    reason: dict[str, Any], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = {"scenarios": {"fit": {"is": "departs"}, "test": {"is": "passes"}}}
    monkeypatch.setitem(run.REASONS, "ignite", [reason])
    assert run.faults_of("ignite", result) == [fault]
    monkeypatch.setitem(run.REASONS, "ignite", [{"scenarios": ["fit"]}])
    assert run.faults_of("ignite", result) == []


def test_an_unknown_framework_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(SystemExit, match=r"must be among camshaft, lightning, .*, but got keras\."):
        run.main(["keras"])
