"""Shared by the tests of all packages together."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis.internal.conjecture.providers import HypothesisProvider


@pytest.fixture(scope="session", autouse=True)
def same_draws_in_all_trees() -> Iterator[None]:
    """Let derandomized tests draw the same whatever is imported.

    Hypothesis also draws the constants of all modules that are imported and not installed. A change anywhere, or
    another order of tests, would make other runs to compare.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HypothesisProvider, "_maybe_draw_constant", lambda *_, **__: None)
        yield
