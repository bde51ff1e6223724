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
