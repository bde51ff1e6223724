from __future__ import annotations

import gc

import pytest

from camshaft.hooks_core.on_demand import collection_paused


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


@pytest.mark.skipif(gc.get_freeze_count() > 0, reason="Python 3.12 freezes objects of its own at its start")
def test_what_an_import_makes_is_old_at_once() -> None:
    with collection_paused():
        made: list[object] = []
    assert any(one is made for one in gc.get_objects(generation=2))


def test_what_was_frozen_stays_frozen() -> None:
    gc.freeze()
    try:
        with collection_paused():
            pass
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
