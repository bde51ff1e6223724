from __future__ import annotations

import pytest
from metric_log_parts import Rig


@pytest.fixture
def training() -> Rig:
    """A metric log in a training epoch."""
    rig = Rig()
    rig.start_training()
    return rig


@pytest.fixture
def evaluating() -> Rig:
    """A metric log in an epoch of validation."""
    rig = Rig()
    rig.start_evaluation()
    return rig
