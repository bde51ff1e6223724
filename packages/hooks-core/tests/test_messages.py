from __future__ import annotations

import sys
import types
import warnings
from typing import Any

import pytest

from camshaft.hooks_core import Callback, resolve
from camshaft.hooks_core.support.messages import add_note, describe, must_be, note_errors, warn_user


def test_must_be_names_field_rule_value_type_place_and_action() -> None:
    message = must_be("max_epochs", "at least 0", -3, "Trainer", "Pass a larger number.")
    assert message == "`max_epochs` must be at least 0, but got -3 (int) in Trainer. Pass a larger number."


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
    with note_errors(Model(), "on_fit_start", lambda: pytest.fail("nothing was raised")):
        pass
    with pytest.raises(KeyboardInterrupt) as caught, note_errors(Model(), "on_fit_start", lambda: "epoch 3"):
        raise KeyboardInterrupt
    assert caught.value.__notes__ == ["Raised in hook `on_fit_start` of Model (epoch 3)."]


def test_describe_puts_an_error_and_its_notes_on_one_line() -> None:
    error = OSError("no space")
    error.add_note("a note")
    assert describe(error) == "OSError: no space a note"


def own_module(name: str, source: str, **names: Any) -> Any:
    """A module of the given name, as if it were a file of camshaft or of somebody else."""
    module = types.ModuleType(name)
    module.__dict__.update(names)
    exec(compile(source, f"{name.replace('.', '/')}.py", "exec"), module.__dict__)
    return module


def raised(call: Any, *arguments: Any) -> warnings.WarningMessage:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call(*arguments)
    (warning,) = caught
    return warning


def test_a_warning_points_at_the_innermost_line_outside_of_camshaft() -> None:
    inner = own_module("camshaft.inner", "def warn():\n    warn_user('careful')\n", warn_user=warn_user)
    outer = own_module("camshaft.outer", "def call(function):\n    function()\n")
    warning = raised(outer.call, inner.warn)
    assert str(warning.message) == "careful" and warning.category is UserWarning
    assert warning.filename == __file__, "the call of the outermost function of camshaft"
    line = raised(lambda: outer.call(lambda: inner.warn())).lineno
    assert line == sys._getframe().f_lineno - 1, "the function of the user's in between"


@pytest.mark.parametrize(
    ("rank", "shown"), [(None, ["of all", "own"]), (0, ["of all", "Rank 0: own"]), (1, ["Rank 1: own"])]
)
def test_rank_0_alone_warns_of_what_all_ranks_share(
    rank: int | None, shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("RANK", str(rank))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_user("of all")
        warn_user("own", of_rank=True)
    assert [str(one.message) for one in caught] == shown


def test_whoever_only_has_a_similar_name_is_a_user() -> None:
    other = own_module("camshafts.inner", "def warn():\n    warn_user('careful')\n", warn_user=warn_user)
    assert raised(other.warn).filename == "camshafts/inner.py"


def test_what_dispatch_generates_is_no_place_of_the_users() -> None:
    # the hook is the bare function of a module of camshaft, called by what dispatch wrote
    source = "def on_fit_start(self, trainer, module):\n    warn_user('careful', FutureWarning)\n"
    inner = own_module("camshaft.inner", source, warn_user=warn_user)
    watch = type("Watch", (Callback,), {"on_fit_start": inner.on_fit_start})
    warning = raised(resolve(callbacks=[watch()]).on_fit_start)
    assert warning.category is FutureWarning and warning.filename == __file__
