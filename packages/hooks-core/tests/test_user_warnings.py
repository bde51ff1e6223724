from __future__ import annotations

import sys
import types
import warnings
from typing import Any

from camshaft.hooks_core import Callback, resolve
from camshaft.hooks_core.messages import warn_user


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
