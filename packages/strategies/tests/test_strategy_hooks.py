from __future__ import annotations

import pytest

from camshaft.hooks_core import is_overridden
from camshaft.strategies import DDPStrategy, ShardedStrategy


@pytest.mark.parametrize("strategy", [DDPStrategy, ShardedStrategy])
@pytest.mark.parametrize("hook", ["on_validation_start", "on_test_start", "on_predict_start"])
def test_strategies_of_several_processes_receive_the_start_of_an_evaluation(strategy: type, hook: str) -> None:
    assert is_overridden(strategy, hook)  # it broadcasts buffers
