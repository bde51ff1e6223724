"""A fit whose batches are copied on a stream of their own equals one without."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from trainer_parts import Regression, loader, quiet_trainer, weights

from camshaft.strategies import SingleDeviceStrategy


@pytest.mark.simulated
def test_late_copies_on_the_stream_change_no_weight(tmp_path: Path) -> None:
    import simulated_device

    found: list[Any] = []
    for copy_stream in (False, True):
        torch.manual_seed(1)
        module = Regression()
        strategy = SingleDeviceStrategy("sim:1", copy_stream=copy_stream)
        pinned = DataLoader(loader().dataset, batch_size=2, pin_memory=True)
        with simulated_device.late_copies() if copy_stream else nullcontext():
            quiet_trainer(tmp_path, strategy=strategy, max_epochs=2).fit(module, pinned, pinned)
        found.append({name: value.cpu() for name, value in weights(module).items()})
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
