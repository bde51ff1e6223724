from __future__ import annotations

import re
from pathlib import Path

import pytest

from camshaft.hooks_core.dispatch.binding import CANONICAL_NAMES
from camshaft.hooks_core.eras.hooks import EARLIER_ERAS, hooks_of_eras
from camshaft.hooks_core.eras.releases import behaviour_of
from camshaft.hooks_core.spec import HookSpec

PAGE = Path(__file__).parents[3] / "docs" / "coming-from" / "earlier-lightning.md"

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="needs the pages of the project around the package")

GONE = [spec for spec in hooks_of_eras().values() if not spec.is_current]
OTHERWISE = [
    spec
    for spec in hooks_of_eras().values()
    if spec.is_current and any(spec.parameters_in(era) != spec.parameters for era in EARLIER_ERAS if era in spec.eras)
]


def rows_after(heading: str) -> dict[str, list[str]]:
    """The cells of the table after a line, by each name that stands in the first of a row."""
    lines = PAGE.read_text(encoding="utf-8").partition(heading)[2].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|"))
    found: dict[str, list[str]] = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        for name in re.findall(r"`(\w+)", cells[0]):
            found.setdefault(name, cells)
    return found


@pytest.mark.parametrize("spec", GONE, ids=lambda spec: spec.name)
def test_every_hook_that_is_gone_stands_in_the_page_with_its_arguments(spec: HookSpec) -> None:
    hook, eras, does, today = rows_after("Hooks that are gone")[spec.name]
    own = [era for era in spec.eras if era in EARLIER_ERAS]
    assert eras == (f"{own[0]} to {own[-1]}" if len(own) > 2 else ", ".join(own))
    assert all(name in hook for era in own for name in spec.parameters_in(era))
    assert all(f"`{moment}`" in does or "those of validation" in does for moment in spec.today)
    assert does
    assert today


def test_the_page_has_no_hook_that_is_not_gone() -> None:
    gone = {spec.name for spec in GONE}
    assert {name for name in rows_after("Hooks that are gone") if name in hooks_of_eras()} == gone


@pytest.mark.parametrize("spec", OTHERWISE, ids=lambda spec: spec.name)
def test_every_hook_that_took_other_arguments_stands_in_the_page_with_them(spec: HookSpec) -> None:
    _, arguments, does, today = rows_after("Hooks that took other arguments")[spec.name]
    named = set(re.findall(r"\w+", arguments))
    for era in EARLIER_ERAS:
        if era in spec.eras and spec.parameters_in(era) != spec.parameters:
            assert {CANONICAL_NAMES.get(name, name) for name in spec.parameters_in(era)} <= {
                *named,
                *(CANONICAL_NAMES.get(name, name) for name in named),
            }, era
    assert does
    assert today


@pytest.mark.parametrize("release", ["0.4", "0.5", "0.6", "0.7", "0.8", "0.9", *(f"1.{minor}" for minor in range(10))])
def test_the_page_says_what_a_release_did_otherwise(release: str) -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if re.match(r"\| [012]\.\d", line)
    ]
    (row,) = [row for row in rows if covers(row[0], release)]
    behaviour = behaviour_of(release)
    assert row[1].startswith("before" if behaviour.steps_after_backward else "in its closure")
    assert ("after the update" in row[2]) == (behaviour.zero_grad == "after_optimizer_step" and release >= "0.8")
    assert ("by `optimizer_step`" in row[2]) == behaviour.step_zeroes
    assert row[3].startswith("before") == behaviour.train_start_comes_first
    assert row[4].startswith("before") == behaviour.epoch_ends_before_validation
    outputs = {"last_optimizer": "last", "by_optimizer": "[optimizer][batch]", "by_batch": "[batch][optimizer]"}
    assert outputs[behaviour.epoch_outputs] in row[5]


def covers(releases: str, release: str) -> bool:
    """Whether "0.4, 0.5" or "1.6 to 1.9" has a release."""
    first, to, last = releases.partition(" to ")
    return first <= release <= last if to else release in re.split(", ", releases)
