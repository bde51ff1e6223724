from __future__ import annotations

import importlib
import os
import pkgutil
import subprocess
import sys

import pytest

import camshaft.callbacks as package
from camshaft.callbacks import EarlyStopping, ModelCheckpoint, RichProgressBar
from camshaft.hooks_core import Callback, resolve


def test_exports_what_it_says() -> None:
    assert package.Callback is Callback
    for name in package.__all__:
        exported = getattr(package, name)
        assert exported.__name__ == name and exported.__doc__
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = package.Nothing


def subclasses_of(base: type) -> set[type]:
    return {base}.union(*(subclasses_of(subclass) for subclass in base.__subclasses__()))


def test_every_callback_is_exported_or_a_base_of_one_that_is() -> None:
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
    exported = [one for name in package.__all__ if isinstance(one := getattr(package, name), type)]
    own = [one for one in subclasses_of(Callback) if one.__module__.startswith(f"{package.__name__}.")]
    assert len(own) > 20
    assert [one for one in own if not any(issubclass(each, one) for each in exported)] == []


def test_its_callbacks_pass_the_hook_protocol_and_monitor() -> None:
    callbacks = [ModelCheckpoint(), EarlyStopping("loss"), RichProgressBar()]
    assert resolve(callbacks=callbacks) is not None
    assert all(callback.monitors for callback in callbacks)


def test_importing_it_loads_neither_rich_nor_package_metadata() -> None:
    program = (
        "import sys, torch; before = set(sys.modules); import camshaft.callbacks\n"
        "new = {name for name in set(sys.modules) - before}\n"
        "heavy = sorted(name for name in new if name.split('.')[0] in ('rich', 'torchmetrics', 'numpy', 'yaml'))\n"
        "print(heavy, 'importlib.metadata' in new)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    output = subprocess.run(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True, timeout=120, check=True
    ).stdout
    assert output.split() == ["[]", "False"]
