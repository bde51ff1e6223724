from __future__ import annotations

import warnings
from typing import Any

import pytest

from camshaft.hooks_core import Callback
from camshaft.loops.state.callback_state import state_key, warn_of_absent


class Counting(Callback):
    def __init__(self, what: str) -> None:
        self.what = what

    @property
    def state_key(self) -> str:
        return f"Counting({self.what})"

    def state_dict(self) -> dict[str, Any]:
        return {"count": 1}


def test_warns_of_those_that_are_not_there_and_says_which() -> None:
    states = {"Counting(a)": {"count": 1}, "Counting(b)": {"count": 1}, "Other": {"x": 1}}
    with pytest.warns(UserWarning, match=r"that this run does not have: Counting\(b\), Other\. Their state") as caught:
        warn_of_absent(states, [Counting("a")])
    assert len(caught) == 1


def test_says_nothing_where_all_are_there_or_had_nothing_to_remember() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_absent({"Counting(a)": {"count": 1}, "Gone": {}}, [Counting("a"), Counting("b")])
        warn_of_absent({}, [])


def test_an_error_in_a_state_key_is_raised_and_makes_no_other_key() -> None:
    class Failing(Counting):
        @property
        def state_key(self) -> str:
            return self.made_up  # type: ignore[attr-defined, no-any-return]

    with pytest.raises(AttributeError, match="made_up"):
        state_key(Failing("a"))
    plain, own = object(), type("Plain", (), {})()
    own.state_key = "own"
    assert (state_key(plain), state_key(own), state_key(Counting("a"))) == ("object", "own", "Counting(a)")
