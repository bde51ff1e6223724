"""The accumulation window."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from camshaft.loops.optimization.window import AccumulationWindow


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(1, 12), st.data())
def test_windows_are_full_but_for_the_last_which_ends_with_the_epoch(
    length: int, num_steps: int, data: st.DataObject
) -> None:
    """Whether the number of steps is known from the start or only at the last one."""
    known = data.draw(st.booleans())
    window = AccumulationWindow(length)
    ends, divisors = [], []
    for step in range(num_steps):
        is_last = step == num_steps - 1
        window.enter(num_steps - step if known or is_last else float("inf"))
        ends.append(window.is_complete)
        divisors.append(window.divisor)
        assert window.position == step % length + 1
        assert window.num_begun == step // length + 1
    assert ends == [(step + 1) % length == 0 or step == num_steps - 1 for step in range(num_steps)]
    if known:
        firsts = [step - step % length for step in range(num_steps)]
        assert divisors == [min(length, num_steps - first) for first in firsts]
    elif (num_steps - 1) % length:
        assert set(divisors) == {length}


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(0, 8), st.integers(0, 8))
def test_a_window_goes_on_where_its_state_was_taken(length: int, num_before: int, num_after: int) -> None:
    one = AccumulationWindow(length)
    for _ in range(num_before):
        one.enter(float("inf"))
    other = AccumulationWindow(length)
    other.load_state_dict(one.state_dict())
    for _ in range(num_after):
        one.enter(float("inf"))
        other.enter(float("inf"))
    assert one.state_dict() == other.state_dict()


def test_an_open_window_of_another_length_is_refused_and_a_complete_one_is_not() -> None:
    window = AccumulationWindow(2)
    window.enter(9)
    opened = window.state_dict()
    message = r"`accumulate_grad_batches` must be that of the checkpoint \(2\), .* but got 3 \(int\) in fit"
    with pytest.raises(ValueError, match=message):
        AccumulationWindow(3).load_state_dict(opened)
    window.enter(8)
    AccumulationWindow(3).load_state_dict(window.state_dict())
