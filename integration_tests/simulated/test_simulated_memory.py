"""The memory that a preflight tells is what a training takes on the simulated device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from camshaft.strategies import SingleDeviceStrategy
from camshaft.trainer import Trainer, TrainingModule

pytestmark = pytest.mark.simulated


class Net(TrainingModule):
    """Notes the memory that is allocated between two updates, and at the peak of the second one."""

    def __init__(self) -> None:
        super().__init__()
        layers = (nn.LayerNorm(64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.Tanh(), nn.Linear(64, 100))
        self.net = nn.Sequential(nn.Embedding(100, 64), *layers)  # attention of devices without kernels of it differs
        self.between: list[int] = []
        self.peaks: list[int] = []

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        tokens = batch[0]
        return nn.functional.cross_entropy(self.net(tokens).flatten(0, 1), tokens.flatten())

    def on_train_batch_end(self, *args: Any) -> None:
        if self.net[0].weight.device.type == "sim":
            self.between.append(torch.accelerator.memory_allocated())
            self.peaks.append(torch.accelerator.max_memory_allocated())
            torch.accelerator.reset_peak_memory_stats()

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), foreach=False)


@pytest.mark.parametrize("precision", ["32-true", "bf16-true"])
def test_a_preflight_tells_the_peak_and_what_stays(precision: str, tmp_path: Path) -> None:
    torch.accelerator.set_device_index(0)
    data = DataLoader(TensorDataset(torch.zeros(32, 16, dtype=torch.long)), batch_size=8)
    arguments: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "max_epochs": 1}
    arguments |= {"enable_progress_bar": False, "enable_model_summary": False, "default_root_dir": tmp_path}
    strategy = SingleDeviceStrategy("sim:0", precision=precision)
    report = Trainer(strategy=strategy, **arguments).preflight(Net(), data)
    before, module = torch.accelerator.memory_allocated(), Net()
    Trainer(strategy=strategy, **arguments).fit(module, data)
    assert report.memory["total"] == pytest.approx(module.peaks[-1] - before, rel=0.01)
    assert report.memory_between_steps["total"] == pytest.approx(module.between[-1] - before, rel=0.01)
