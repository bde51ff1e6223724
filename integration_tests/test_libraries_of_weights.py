"""Adapters of peft, and number formats and optimizers of torchao: a stop changes nothing, on two ranks neither."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import run_ranks
from torch import Tensor, nn
from torch.utils.data import DataLoader
from trainer_parts import NO_VALIDATION, quiet_trainer

from camshaft.trainer import TrainingModule

pytestmark = pytest.mark.filterwarnings(NO_VALIDATION, "ignore")


class Net(TrainingModule):
    """A body that a library changes, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
        self.head = nn.Linear(32, 2)
        self.is_configured = False

    def configure_model(self) -> None:
        if not self.is_configured:
            self.is_configured = True
            self.change()

    def change(self) -> None:
        """Change the body."""

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self.head(self.body(batch)).pow(2).mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW([one for one in self.parameters() if one.requires_grad], lr=0.01)


class Adapted(Net):
    def change(self) -> None:
        from peft import LoraConfig, get_peft_model

        self.body = get_peft_model(self.body, LoraConfig(r=2, target_modules=["0", "2"], lora_dropout=0.1))


class QuantisationAware(Net):
    def change(self) -> None:
        from torchao.quantization import Int8DynamicActivationIntxWeightConfig, quantize_
        from torchao.quantization.granularity import PerGroup
        from torchao.quantization.qat import QATConfig

        base = Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(32))
        quantize_(self.body, QATConfig(base, step="prepare"))


class Int8(Net):
    def change(self) -> None:
        from torchao.quantization import Int8WeightOnlyConfig, quantize_

        quantize_(self.body, Int8WeightOnlyConfig())
        self.body.requires_grad_(False)


class Float8(Net):
    def change(self) -> None:
        from torchao.float8 import convert_to_float8_training

        convert_to_float8_training(self.body)


class EightBitStates(Net):
    """A net with matrices that are large enough for states of eight bits."""

    def change(self) -> None:
        self.body = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 32))

    def configure_optimizers(self) -> Any:
        from torchao.optim import AdamW8bit

        return AdamW8bit(self.parameters(), lr=0.01)


def fit(
    root: Path, kind: type[Net], max_epochs: int, save_only: Any = None, ckpt_path: Any = None, **arguments: Any
) -> dict[str, Tensor]:
    torch.manual_seed(0)
    module = kind()
    trainer = quiet_trainer(root, max_epochs=max_epochs, save_only=save_only, **arguments)
    trainer.fit(module, DataLoader(torch.linspace(-1, 1, 16 * 32).view(16, 32), batch_size=4), ckpt_path=ckpt_path)
    trainer.save_checkpoint(root / f"{max_epochs}.ckpt")
    return {
        name: value.dequantize() if hasattr(value, "tensor_data_names") else value.detach().clone()
        for name, value in module.state_dict().items()
    }


@pytest.mark.parametrize(
    ("kind", "save_only"),
    [
        (Adapted, "trainable"),
        (Adapted, lambda name: "body" not in name or "lora_" in name),
        (QuantisationAware, None),
        (Int8, None),
        (Int8, "trainable"),
        (Float8, None),
        (EightBitStates, None),
    ],
)
def test_a_run_goes_on_exactly(kind: type[Net], save_only: Any, tmp_path: Path) -> None:
    whole = fit(tmp_path / "whole", kind, 2, save_only)
    fit(tmp_path, kind, 1, save_only)
    resumed = fit(tmp_path, kind, 2, save_only, tmp_path / "1.ckpt")
    assert resumed.keys() == whole.keys()
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)
    saved = torch.load(tmp_path / "1.ckpt", weights_only=True)["state_dict"]
    left_out = {"body.0.weight", "body.base_model.model.0.base_layer.weight"} & whole.keys()
    assert left_out.isdisjoint(saved) is (save_only is not None)
    is_in_eight_bits = "OptimState8bit" in str(torch.load(tmp_path / "1.ckpt", weights_only=True)["optimizer_states"])
    assert is_in_eight_bits is (kind is EightBitStates)


@pytest.mark.processes
def test_two_ranks_go_on_exactly_or_say_why_not(tmp_path: Path) -> None:
    cases = ["Adapted ddp", "Int8 ddp", "QuantisationAware ddp", "EightBitStates ddp", "Float8 sharded"]
    outcome = run_ranks(Path(__file__).with_name("libraries_of_weights_ranks.py"), 2, args=[tmp_path, *cases])
    for found in outcome.succeeded().named:
        refused = found.pop("refused")
        assert re.search(r"in full precision where it is sharded, but got quantised values \(OptimState8bit\)", refused)
        assert found == dict.fromkeys(cases, True)
