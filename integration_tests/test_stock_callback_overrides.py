"""Every method that Lightning's callbacks call on themselves is called here too, or said not to be."""

from __future__ import annotations

import inspect
import re
import sys
from typing import Any

import lightning.pytorch.callbacks as lightning_callbacks
import pytest

import camshaft.callbacks
from camshaft.compat.names.finder import load
from camshaft.compat.names.trainer.model_checkpoint import ModelCheckpoint
from camshaft.hooks_core import Callback, HookFaultWarning, ModelHooks, resolve

_OF_EARLIER_RELEASES = ("_do_save", "_do_check_save", "save_checkpoint", "save_function")
LIGHTNING_BASE = lightning_callbacks.Callback
NAMES = sorted(
    name
    for name, one in vars(lightning_callbacks).items()
    if inspect.isclass(one) and issubclass(one, LIGHTNING_BASE) and hasattr(camshaft.callbacks, name)
)
# Progress bars are drawn in another way, and have a test of their own.
for _name in NAMES:
    load(f"camshaft.callbacks:{_name}")  # as an import under Lightning's name does
STOCK = [name for name in NAMES if name not in ("Callback", "ProgressBar", "RichProgressBar", "TQDMProgressBar")]


def ours_of(name: str) -> Any:
    """Our class; `ModelCheckpoint` has the methods of Lightning's under the import names alone."""
    return ModelCheckpoint if name == "ModelCheckpoint" else getattr(camshaft.callbacks, name)


def methods_of(cls: type) -> set[str]:
    """What the class has beyond Lightning's base class: methods, static and class methods, and properties."""
    kinds = (property, staticmethod, classmethod)
    return {
        name
        for one in cls.__mro__
        if one not in (object, *LIGHTNING_BASE.__mro__)
        for name, value in vars(one).items()
        if (inspect.isfunction(value) or isinstance(value, kinds))
        and not (name.startswith("__") and name.endswith("__"))
        and not hasattr(LIGHTNING_BASE, name)
    }


def source_of(cls: type) -> str:
    """The modules in which the class and its bases are written."""
    modules = {one.__module__ for one in cls.__mro__ if one.__module__.split(".")[0] in ("lightning", "camshaft")}
    return "\n".join(inspect.getsource(sys.modules[name]) for name in sorted(modules))


def is_called(name: str, cls: type, source: str) -> bool:
    """Whether the class asks itself for it."""
    plain = re.sub(rf"^_{cls.__name__}(?=__)", "", name)
    return re.search(rf"\bself\.{re.escape(plain)}\b", source) is not None


def uncalled(cls: type) -> dict[str, str]:
    return {name: text for one in cls.__mro__ for name, text in vars(one).get("_uncalled_methods", {}).items()}


@pytest.mark.parametrize("name", STOCK)
def test_an_override_is_called_or_said_not_to_be(name: str) -> None:
    theirs, ours = getattr(lightning_callbacks, name), ours_of(name)
    their_source, our_source = source_of(theirs), source_of(ours)
    called = {method for method in methods_of(theirs) if is_called(method, theirs, their_source)}
    forgotten = {method for method in called if not is_called(method, ours, our_source)} - set(uncalled(ours))
    assert not forgotten, f"{name}: call them, or declare them in `_uncalled_methods`"
    of_earlier_releases = set(_OF_EARLIER_RELEASES) if ours is ModelCheckpoint else set()
    stale = uncalled(ours).keys() - methods_of(theirs) - of_earlier_releases
    assert not stale, f"{name}: Lightning's class has no such method"
    assert not {method for method in uncalled(ours) if is_called(method, ours, our_source)}, f"{name}: they are called"


def cases() -> list[Any]:
    return [pytest.param(name, method) for name in STOCK for method in uncalled(ours_of(name))]


@pytest.mark.parametrize(("name", "method"), cases())
def test_an_override_that_is_not_called_warns_at_set_up_and_says_what_to_use(name: str, method: str) -> None:
    base = ours_of(name)
    mine = type("Mine", (base,), {method: lambda self, *_: None})
    callback: Callback = mine.__new__(mine)
    with pytest.warns(HookFaultWarning, match=rf"Mine\.{method}: .* is not called .*\. [A-Z].*`") as caught:
        resolve(callbacks=[callback], module=ModelHooks(), required=())
    assert uncalled(base)[method] in str(caught[0].message)


@pytest.mark.parametrize("name", STOCK)
def test_the_stock_class_itself_and_a_subclass_with_methods_of_its_own_are_fine(name: str) -> None:
    base = ours_of(name)
    mine = type("Mine", (base,), {"my_own": lambda self: None, "_mine_too": lambda self: None})
    for cls in (base, mine):
        callback: Callback = cls.__new__(cls)
        resolve(callbacks=[callback], module=ModelHooks(), required=())
