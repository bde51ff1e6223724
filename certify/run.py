"""Run the conformance kit on each framework, print the table, and keep it in docs/how-it-works/certified-trainers.md.

`python -m certify.run [FRAMEWORK ...]`, in an environment that has the frameworks; `nox -s certify` makes one.
"""

from __future__ import annotations

import importlib
import inspect
import json
import logging
import os
import pydoc
import sys
import tomllib
import warnings
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from certify.framework import Framework

from camshaft.hooks_core.check import ConformanceError
from camshaft.hooks_core.conformance import SCENARIOS, Outcome, certify

FOLDER = Path(__file__).resolve().parent
RESULTS = FOLDER / "results"
PAGE = FOLDER.parent / "docs" / "how-it-works" / "certified-trainers.md"
BEGIN, END = "<!-- Written by `nox -s certify`: -->\n", "<!-- End of what `nox -s certify` writes. -->\n"
TOGETHER = ("camshaft", "lightning", "torchtnt", "ignite", "accelerate", "fabric", "transformers")
BY_THEMSELVES = ("composer", "torchtitan", "torchtnt_nightly")  # each in an environment of its own
NAMES = (*TOGETHER, *BY_THEMSELVES)
OWN = NAMES[0]
LACKS = "does not have it"
REASONS = tomllib.loads((FOLDER / "reasons.toml").read_text(encoding="utf-8"))

Result = dict[str, Any]


def main(names: list[str]) -> int:
    """Run the kit on the named frameworks, or on `TOGETHER`. Return 1 if a departure and the reasons do not agree."""
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        sys.exit(f"The frameworks must be among {', '.join(NAMES)}, but got {', '.join(unknown)}.")
    faults = []
    for name in names or TOGETHER:
        result = certified(name, load(name))
        faults += [f"{name}: {fault}" for fault in faults_of(name, result)]
        text = json.dumps(result, indent=1, ensure_ascii=False) + "\n"
        (RESULTS / f"{name}.json").write_text(text, encoding="utf-8")
    results = kept()
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")
    print(in_terminal([one for name, one in results.items() if name in (names or TOGETHER)]))
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


def load(name: str) -> Framework:
    """Return what the adapter of a framework says of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(f"certify.adapters.on_{name}").FRAMEWORK


def certified(name: str, framework: Framework) -> Result:
    """Run the kit on a framework and return its column of the table, as plain data."""
    with warnings.catch_warnings(), open(os.devnull, "w", encoding="utf-8") as nowhere:
        warnings.simplefilter("ignore")
        logging.disable()
        printed, sys.stdout = sys.stdout, nowhere
        try:
            report = certify(
                framework.adapter,
                verbs=framework.verbs,
                features=framework.features,
                without=framework.without,
                zero_grad=framework.zero_grad,
            )
        finally:
            logging.disable(logging.NOTSET)
            sys.stdout = printed
    cells = {outcome.scenario.name: cell(name, outcome) for outcome in report.outcomes}
    cells |= {scenario.name: {"is": LACKS, "needs": [*needs]} for scenario, needs in report.left_out}
    return {
        "title": framework.title,
        "about": framework.about,
        "versions": {name: version(name) for name in (*framework.distributions, "torch")},
        "without": sorted(framework.without),
        "zero_grad": framework.zero_grad or "before_backward",
        "scenarios": {scenario.name: cells[scenario.name] for scenario in SCENARIOS},
    }


def cell(name: str, outcome: Outcome) -> Result:
    """Return what came of a scenario."""
    error = outcome.error
    if error is None:
        return {"is": "passes"}
    if not isinstance(error, ConformanceError):
        raise error  # it is the adapter's, or the framework cannot run the scenario that the adapter claims
    reasons = [one for one in REASONS.get(name, []) if outcome.scenario.name in one["scenarios"]]
    why = {key: reasons[0][key] for key in ("why", "quote", "source") if key in reasons[0]} if reasons else {}
    return {"is": "departs", "at": error.hook, "message": str(error).splitlines()[0], **why}


def faults_of(name: str, result: Result) -> list[str]:
    """Return where a result is not what the reasons say, in words."""
    reasons = REASONS.get(name, [])
    departs = {scenario for scenario, one in result["scenarios"].items() if one["is"] == "departs"}
    explained = {scenario for reason in reasons for scenario in reason["scenarios"]}
    faults = [f"departs in {one}, and no reason is known" for one in sorted(departs - explained)]
    faults += [f"has a reason for {one}, where it does not depart" for one in sorted(explained - departs)]
    faults += [f"departs in {one}, and must not" for one in sorted(departs) if name == OWN]
    quotes = {reason["quote"]: reason["source"] for reason in reasons if "quote" in reason}
    faults += [f"{at} does not say {quote!r}" for quote, at in quotes.items() if quote not in words_of(at)]
    return faults


def words_of(source: str) -> str:
    """Return the docstring of what a dotted name stands for, on one line."""
    return " ".join((inspect.getdoc(pydoc.locate(source)) or "").split())


def kept() -> dict[str, Result]:
    """Return the last result of each framework, in the order of the table."""
    paths = {name: RESULTS / f"{name}.json" for name in NAMES}
    return {name: json.loads(path.read_text(encoding="utf-8")) for name, path in paths.items() if path.exists()}


def table(results: list[Result], notes: list[str] | None = None) -> str:
    """Return the table, scenario by framework, padded so that it reads well as it is.

    A departure is the name of its hook; with `notes`, it is a number, and what departs where goes there.
    """
    head = [["scenario", *(one["title"] for one in results)]]
    rows = [[one.name, *(in_short(result, one.name, notes) for result in results)] for one in SCENARIOS]
    widths = [max(map(len, column)) for column in zip(*head, *rows, strict=True)]
    lines = [*head, ["-" * width for width in widths], *rows]
    return "".join(
        f"| {' | '.join(text.ljust(width) for text, width in zip(line, widths, strict=True))} |\n" for line in lines
    )


def in_short(result: Result, scenario: str, notes: list[str] | None) -> str:
    """Return a cell of the table; a scenario that is newer than the result has not been tried."""
    one = result["scenarios"].get(scenario, {"is": "not tried"})
    if one["is"] != "departs":
        return "-" if one["is"] == LACKS else str(one["is"])
    if notes is None:
        return f"`{one['at']}`"
    note = f"{result['title']}, at {one['at']}: {one.get('why', one['message'])}"
    if note not in notes:
        notes.append(note)
    return f"departs ({notes.index(note) + 1})"


def in_terminal(results: list[Result]) -> str:
    """Return the table with its departures below it."""
    notes: list[str] = []
    text = table(results, notes)
    return text + f"- {LACKS}\n" + "".join(f"({number}) {note}\n" for number, note in enumerate(notes, start=1))


def with_table(page: str, results: dict[str, Result]) -> str:
    """Return the page with the table and what belongs to each framework, in place of what stood there."""
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    scenarios = "".join(f"- `{one.name}`: {one.description}.\n" for one in SCENARIOS)
    details = f"\nThe scenarios:\n\n{scenarios}" + "".join(map(details_of, results.values()))
    return f"{before}{BEGIN}\n{table([*results.values()])}{details}\n{END}{after}"


def details_of(result: Result) -> str:
    """Return a section of the page: what was run with which versions, what is not there, and each departure."""
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    lines = [f"{result['about']} With {versions}."]
    lacks = dict.fromkeys(one for cell in result["scenarios"].values() for one in cell.get("needs", ()))
    if lacks:
        lines.append(f"Does not have: {in_backquotes(lacks)}.")
    if result["without"]:
        lines.append(f"Without a callback for: {in_backquotes(result['without'])}.")
    texts: dict[str, list[str]] = {}
    for scenario, one in result["scenarios"].items():
        if one["is"] == "departs":
            quote = f' Its documentation: "{one["quote"]}" (`{one["source"]}`).' if "quote" in one else ""
            why = one.get("why", one["message"])
            texts.setdefault(f"{why}.{quote}", []).append(scenario)
    if texts:
        lines.append("\n".join(f"- {in_backquotes(scenarios)}: {text}" for text, scenarios in texts.items()))
    return "".join(f"\n{text}\n" for text in (f"### {result['title']}", *lines))


def in_backquotes(names: Iterable[str]) -> str:
    """Return names as code, with commas between."""
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
