"""The generators' states are plain values, and are put back."""

from __future__ import annotations

import io
import random
import sys
from typing import Any

import pytest
import torch

from camshaft.loops.state.random_state import isolated_randomness, random_state, restore_random_state


def draw() -> list[Any]:
    drawn: list[Any] = [random.random(), random.gauss(0, 1), torch.randn(3).tolist()]
    if sys.modules.get("numpy") is not None:
        generator = sys.modules["numpy"].random
        drawn += [float(generator.rand()), float(generator.randn())]
    return drawn


@pytest.mark.parametrize("cached", [False, True])
def test_a_state_that_was_written_and_read_safely_draws_the_same(cached: bool) -> None:
    if cached:
        draw()  # Gaussian numbers come in pairs, of which the second waits
    buffer = io.BytesIO()
    torch.save(random_state(), buffer)
    expected = draw()
    draw()
    buffer.seek(0)
    restore_random_state(torch.load(buffer, weights_only=True))
    assert draw() == expected


def test_numpy_belongs_to_the_state_once_it_is_imported() -> None:
    pytest.importorskip("numpy")
    assert "numpy" in random_state()


def test_without_numpy_its_state_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "numpy", raising=False)
    state = random_state()
    assert "numpy" not in state
    restore_random_state(state)


def test_what_is_drawn_in_isolation_leaves_no_mark() -> None:
    state = random_state()
    expected = draw()
    restore_random_state(state)
    with isolated_randomness():
        draw()
    assert draw() == expected


def test_isolation_holds_if_something_raises() -> None:
    before = torch.get_rng_state()
    with pytest.raises(StopIteration), isolated_randomness():
        draw()
        raise StopIteration
    assert torch.equal(torch.get_rng_state(), before)
