from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from camshaft.hooks_core.support.on_demand import collection_paused

INIT = """
from camshaft.hooks_core.support.on_demand import on_demand

__getattr__, __dir__, __all__ = on_demand(__name__)
"""
STUB = """
from collections import OrderedDict as OrderedDict
from engine_of_tests.valves import (
    Intake as Intake,
)
"""


@pytest.fixture
def _engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package `engine_of_tests` whose exports are imported on demand."""
    folder = tmp_path / "engine_of_tests"
    folder.mkdir()
    for name, text in {"__init__.py": INIT, "__init__.pyi": STUB, "valves.py": "class Intake: ...\n"}.items():
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "engine_of_tests"]:
        del sys.modules[name]


@pytest.mark.usefixtures("_engine")
def test_exports_of_a_stub_are_listed_at_once_and_imported_at_their_first_use() -> None:
    package = __import__("engine_of_tests")
    assert package.__all__ == ["Intake", "OrderedDict"]
    assert {"Intake", "OrderedDict", "__file__"} < set(dir(package))
    assert "engine_of_tests.valves" not in sys.modules
    assert package.Intake is sys.modules["engine_of_tests.valves"].Intake is vars(package)["Intake"]


@pytest.mark.usefixtures("_engine")
def test_a_star_imports_all_exports_and_modules_stay_importable() -> None:
    names: dict[str, object] = {}
    exec("from engine_of_tests import *; from engine_of_tests import valves", names)
    assert names.keys() - {"__builtins__"} == {"Intake", "OrderedDict", "valves"}


@pytest.mark.usefixtures("_engine")
def test_what_a_stub_does_not_state_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="module 'engine_of_tests' has no attribute 'Exhaust'"):
        _ = __import__("engine_of_tests").Exhaust


@pytest.mark.parametrize("was_enabled", [True, False])
def test_collection_is_as_before_after_a_pause_whatever_was_raised_in_it(was_enabled: bool) -> None:
    (gc.enable if was_enabled else gc.disable)()
    try:
        with pytest.raises(ImportError), collection_paused():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() is was_enabled
    finally:
        gc.enable()


@pytest.fixture
def _nothing_frozen() -> Iterator[None]:
    """Unfreeze what the tests' start and, from Python 3.12 on, Python's own froze, and freeze it again in the end."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.usefixtures("_nothing_frozen")
def test_what_an_import_makes_is_old_at_once() -> None:
    with collection_paused():
        with collection_paused():
            made: list[object] = []
        assert not any(one is made for one in gc.get_objects(generation=2))  # once for all is enough
    assert any(one is made for one in gc.get_objects(generation=2))


@pytest.mark.usefixtures("_nothing_frozen")
def test_what_was_frozen_stays_frozen() -> None:
    gc.freeze()
    with collection_paused():
        pass
    assert gc.get_freeze_count() > 0
