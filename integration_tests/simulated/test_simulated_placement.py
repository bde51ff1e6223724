"""What a training makes lies on the device that was chosen, which is the current one, in every thread of ours."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from camshaft.strategies import SingleDeviceStrategy
from camshaft.strategies.checkpoints import writer
from camshaft.trainer import Trainer, TrainingModule

pytestmark = pytest.mark.simulated

CHOSEN = torch.device("sim", 1)


@pytest.fixture(autouse=True)
def _current_device_is_the_first() -> None:
    torch.accelerator.set_device_index(0)


class Net(TrainingModule):
    """Notes the devices of what it meets."""

    def __init__(self) -> None:
        super().__init__()
        from torchmetrics.classification import BinaryAccuracy

        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.ReLU(), nn.Linear(8, 1))
        self.register_buffer("scale", torch.ones(1))
        self.accuracy = BinaryAccuracy()
        self.devices: dict[str, torch.device] = {}

    def step(self, stage: str, batch: dict[str, Tensor]) -> Tensor:
        logits = self.net(batch["x"]).squeeze(1) * self.scale
        loss = nn.functional.binary_cross_entropy_with_logits(logits, batch["y"])
        self.accuracy(logits, batch["y"].int())
        self.log(f"{stage}_loss", loss, on_epoch=True)
        self.log(f"{stage}_accuracy", self.accuracy, on_epoch=True)
        made = torch.zeros((), device="sim")
        of_metrics = {f"metric {name}": value.device for name, value in self.accuracy.metric_state.items()}
        self.devices |= {"made": made.device, "loss": loss.device, "batch": batch["x"].device, **of_metrics}
        return loss

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        return self.step("train", batch)

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        self.step("validation", batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters())


class Pairs(TensorDataset):
    def __getitem__(self, index: int) -> Any:
        return dict(zip("xy", super().__getitem__(index), strict=True))


def loader(num_samples: int = 32, **options: Any) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(num_samples, 4, generator=generator)
    return DataLoader(Pairs(x, (x.sum(1) > 0).float()), batch_size=8, **options)


def make_trainer(folder: Path, **arguments: Any) -> Trainer:
    settings: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return Trainer(max_epochs=2, default_root_dir=folder, **(settings | arguments))


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed", "bf16-true"])
def test_everything_lies_on_the_chosen_device(precision: str, tmp_path: Path) -> None:
    module = Net()
    trainer = make_trainer(tmp_path, accelerator="sim", devices=[1], precision=precision)
    trainer.fit(module, loader(), loader())
    states = {
        f"state {name}": value.device
        for state in trainer.optimizers[0].state.values()
        for name, value in state.items()
        if value.dim() > 0  # AdamW keeps its steps on the host
    }
    values = {name: value.device for name, value in trainer.callback_metrics.items()}
    assert {name for name in states} == {"state exp_avg", "state exp_avg_sq"}
    assert values.keys() >= {"train_loss_epoch", "validation_accuracy"}
    tensors = {name: value.device for name, value in module.state_dict().items()}
    elsewhere = {
        name: device for name, device in (tensors | states | values | module.devices).items() if device != CHOSEN
    }
    assert not elsewhere


def test_devices_are_not_mixed_in_silence() -> None:
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.ones(2, device="sim:0") + torch.ones(2, device="sim:1")
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.ones(2, device="sim:0") + torch.ones(2)


def test_without_a_choice_the_accelerator_is_taken(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, devices=1)
    assert trainer.strategy.device == torch.device("sim", 0)
    assert SingleDeviceStrategy("gpu").device == torch.device("sim", 0)
    with pytest.raises(RuntimeError, match="`accelerator` must be present on this machine, but got 'cuda'"):
        SingleDeviceStrategy("cuda")
    with pytest.raises(ValueError, match="`device_idx` must be from 0 to 1, but got 2"):
        SingleDeviceStrategy("sim:2")


def test_the_thread_that_writes_checkpoints_is_on_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: set[tuple[str, int]] = set()
    write = writer.write_plain

    def noted(*arguments: Any) -> None:
        found.add((threading.current_thread().name, torch.accelerator.current_device_index()))
        write(*arguments)

    monkeypatch.setattr(writer, "write_plain", noted)
    strategy = SingleDeviceStrategy("sim:1", save_asynchronously=True)
    make_trainer(tmp_path, strategy=strategy).fit(Net(), loader())
    assert found == {("camshaft-checkpoint", 1)}


def test_mixed_precision_needs_a_device_that_has_the_dtype(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def has_bf16(including_emulation: bool = True) -> bool:
        return including_emulation

    monkeypatch.setattr(torch.sim, "is_bf16_supported", has_bf16)  # type: ignore[attr-defined]
    trainer = make_trainer(tmp_path, accelerator="sim", devices=1, precision="bf16-mixed")
    with pytest.raises(RuntimeError, match=r"`precision` must be one whose dtype this sim device has, but got 'bf16-m"):
        trainer.fit(Net(), loader())
    monkeypatch.setattr(torch.sim, "is_bf16_supported", lambda: True)  # type: ignore[attr-defined]  # another vendor's
    trainer.fit(Net(), loader())
    monkeypatch.setattr(torch.sim, "get_amp_supported_dtype", lambda: [torch.bfloat16])  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="`precision` must be one whose dtype this sim device has, but got '16-mix"):
        make_trainer(tmp_path, accelerator="sim", devices=1, precision="16-mixed").fit(Net(), loader())


def test_peak_flops_are_those_of_the_devices_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from camshaft.callbacks import get_available_flops

    assert get_available_flops(CHOSEN, torch.bfloat16) == 312e12
    monkeypatch.setattr(torch.sim, "get_device_name", lambda device=None: "another")  # type: ignore[attr-defined]
    assert get_available_flops(CHOSEN, torch.bfloat16) is None
