"""Tests of eras run on the parts of the other packages' tests, with all that runs eras put on each run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_PACKAGES = Path(__file__).parents[2]
sys.path += [str(_PACKAGES / package / "tests") for package in ("loops", "strategies", "trainer")]


@pytest.fixture(autouse=True, scope="module")
def _runs_eras() -> Iterator[None]:
    """Let the bare trainer of the loops' tests run earlier eras."""
    from bare_parts import BareTrainer

    from camshaft.compat.eras import extend

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BareTrainer, "extend", staticmethod(extend))
        yield
