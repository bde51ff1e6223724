"""The page for users of Lightning holds the tables of differences, and what it promises is tested."""

from __future__ import annotations

from pathlib import Path

import pytest
from comparison.page import PAGE, with_tables
from comparison.stated import STATED, Stated

ROOT = Path(__file__).parents[1]


def test_the_page_has_the_tables_of_today() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == with_tables(text), "write it anew with `python -m comparison.page` in integration_tests"


@pytest.mark.parametrize("stated", STATED, ids=lambda stated: stated.name)
def test_a_stated_difference_has_its_proof(stated: Stated) -> None:
    path, _, name = stated.proof.partition("::")
    assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8")
