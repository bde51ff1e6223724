from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest
from compat_parts import Regression
from import_names_parts import names_of_earlier_code

import camshaft.compat
import camshaft.hooks_core
from camshaft.compat import aliases_installed, install_aliases, remove_aliases


@pytest.fixture
def names() -> Iterator[None]:
    with names_of_earlier_code():
        yield


@pytest.mark.usefixtures("names")
def test_base_classes_are_ours() -> None:
    pl: Any = import_module("pytorch_lightning")
    assert pl.LightningModule is camshaft.compat.TrainingModule
    assert pl.LightningDataModule is camshaft.compat.DataModule
    assert pl.Trainer is camshaft.compat.Trainer
    assert pl.Callback is camshaft.hooks_core.Callback
    assert isinstance(Regression(), pl.LightningModule)


@pytest.mark.usefixtures("names")
def test_modules_are_found_by_import_and_as_attributes() -> None:
    pl: Any = import_module("pytorch_lightning")
    assert pl.utilities.seed.seed_everything is pl.seed_everything
    assert pl.callbacks is import_module("pytorch_lightning.callbacks")
    early_stopping: Any = import_module("pytorch_lightning.callbacks.early_stopping")
    assert early_stopping.EarlyStopping is pl.callbacks.EarlyStopping


@pytest.mark.usefixtures("names")
def test_both_packages_have_the_same_classes() -> None:
    old, new = import_module("pytorch_lightning"), import_module("lightning.pytorch")
    assert old.Trainer is new.Trainer is import_module("lightning").Trainer
    assert old.callbacks.ModelCheckpoint is new.callbacks.ModelCheckpoint


@pytest.mark.usefixtures("names")
def test_everything_that_stars_import_is_there() -> None:
    space: dict[str, Any] = {}
    exec("from pytorch_lightning import *\nfrom pytorch_lightning.callbacks import *", space)
    assert space["LightningModule"] is camshaft.compat.TrainingModule
    assert {"EarlyStopping", "ModelCheckpoint", "Callback"} <= set(space)


@pytest.mark.usefixtures("names")
def test_versions_are_the_last_in_which_the_names_held() -> None:
    assert import_module("pytorch_lightning").__version__ == "1.9.5"
    assert import_module("lightning").__version__ == "2.6.0"


def test_removing_puts_imports_back() -> None:
    before = find_spec("pytorch_lightning")
    finders = list(sys.meta_path)
    with names_of_earlier_code():
        origin = import_module("pytorch_lightning").__spec__
        assert origin is not None and origin.origin == "camshaft.compat.names"
    assert sys.meta_path == finders
    after = find_spec("pytorch_lightning")
    assert (before and before.origin) == (after and after.origin)


def test_installing_twice_is_installing_once() -> None:
    with names_of_earlier_code():
        finders = list(sys.meta_path)
        install_aliases()
        with aliases_installed():
            assert sys.meta_path == finders
        assert sys.meta_path == finders


def test_the_names_may_be_installed_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    with names_of_earlier_code():
        remove_aliases()
        with aliases_installed():
            import_module("pytorch_lightning")
        assert "pytorch_lightning" not in sys.modules


@pytest.mark.parametrize("name", ["pytorch_lightning", "lightning", "lightning.pytorch"])
def test_a_package_that_was_imported_before_is_an_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for other in ("pytorch_lightning", "lightning", "lightning.pytorch", "lightning_fabric", "lightning.fabric"):
        monkeypatch.delitem(sys.modules, other, raising=False)
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    finders = list(sys.meta_path)
    with pytest.raises(RuntimeError, match=f"must be called before `{name}` is imported"):
        install_aliases()
    assert sys.meta_path == finders


@pytest.mark.usefixtures("names")
def test_objects_are_pickled_without_the_names() -> None:
    callbacks = import_module("pytorch_lightning.callbacks")
    data = pickle.dumps([callbacks.ModelCheckpoint(monitor="loss"), callbacks.EarlyStopping("loss")])
    assert b"pytorch_lightning" not in data
    remove_aliases()
    checkpoint, stopping = pickle.loads(data)
    assert (checkpoint.monitor, stopping.monitor) == ("loss", "loss")


@pytest.mark.processes
def test_importing_camshaft_installs_nothing() -> None:
    code = (
        "import sys, camshaft.trainer, camshaft.callbacks\n"
        "names = ('camshaft.compat', 'pytorch_lightning', 'lightning')\n"
        "assert not [module for module in sys.modules if module.startswith(names)]\n"
        "assert not [f for f in sys.meta_path if 'Alias' in type(f).__name__]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
