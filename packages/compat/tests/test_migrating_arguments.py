"""The page about old code tells of every old argument what the trainer does with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from camshaft.compat.arguments.table import EARLIER_ARGUMENTS

PAGE = Path(__file__).parents[3] / "docs" / "coming-from" / "earlier-lightning.md"


@pytest.mark.skipif(not PAGE.exists(), reason="the page is not part of the package")
@pytest.mark.parametrize("name", sorted(EARLIER_ARGUMENTS))
def test_the_page_has_the_row_of_an_argument(name: str) -> None:
    argument = EARLIER_ARGUMENTS[name]
    first, last = argument.releases
    releases = first if first == last else f"{first} to {last}"
    assert f"| `{argument.name}` | {releases} | {argument.today} |" in PAGE.read_text(encoding="utf-8")
