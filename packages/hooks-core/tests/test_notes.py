from __future__ import annotations

import pytest

from camshaft.hooks_core.messages import add_note, describe, noting


class Model:
    pass


def test_a_note_says_which_receivers_hook_raised_and_where() -> None:
    error = ValueError("bad")
    add_note(error, Model(), "on_fit_start", "epoch 1")
    assert error.__notes__ == ["Raised in hook `on_fit_start` of Model (epoch 1)."]


def test_the_first_note_stays_the_only_one_of_its_kind() -> None:
    error = ValueError("bad")
    error.add_note("something else")
    add_note(error, Model(), "inner", "")
    add_note(error, Model(), "outer", "")
    assert error.__notes__ == ["something else", "Raised in hook `inner` of Model."]


def test_noting_marks_what_is_raised_inside_and_asks_for_the_position_only_then() -> None:
    with noting(Model(), "on_fit_start", lambda: pytest.fail("nothing was raised")):
        pass
    with pytest.raises(KeyboardInterrupt) as caught, noting(Model(), "on_fit_start", lambda: "epoch 3"):
        raise KeyboardInterrupt
    assert caught.value.__notes__ == ["Raised in hook `on_fit_start` of Model (epoch 3)."]


def test_describe_puts_an_error_and_its_notes_on_one_line() -> None:
    error = OSError("no space")
    error.add_note("a note")
    assert describe(error) == "OSError: no space a note"
