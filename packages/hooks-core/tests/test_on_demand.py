from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from camshaft.hooks_core.support.on_demand import collection_paused


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
        made: list[object] = []
    assert any(one is made for one in gc.get_objects(generation=2))


@pytest.mark.usefixtures("_nothing_frozen")
def test_what_was_frozen_stays_frozen() -> None:
    gc.freeze()
    with collection_paused():
        pass
    assert gc.get_freeze_count() > 0
