"""Fused, foreach and capturable optimizers: the weights and host reads are those of the loop by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

pytestmark = pytest.mark.simulated

NUM_STEPS = 6
KINDS = [
    # without momentum: by hand, torch's fused kernel leaves it uninitialised where the first step overflows
    pytest.param(torch.optim.SGD, {"fused": True, "weight_decay": 0.1}, id="fused SGD"),
    pytest.param(torch.optim.AdamW, {"fused": True}, id="fused AdamW"),
    pytest.param(torch.optim.AdamW, {"foreach": True}, id="foreach AdamW"),
    pytest.param(torch.optim.AdamW, {"foreach": True, "capturable": True}, id="capturable AdamW"),
]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))


def batches() -> DataLoader[Any]:
    x = torch.randn(4 * NUM_STEPS, 6, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4)


def loss_of(model: nn.Module, batch: list[Tensor]) -> Tensor:
    return nn.functional.mse_loss(model(batch[0]).float(), batch[1])


def by_hand(kind: Any, options: dict[str, Any], is_scaled: bool) -> list[Tensor]:
    device = torch.device("sim", 1)
    model = net().to(device)
    optimizer = kind(model.parameters(), lr=0.01, **options)
    scaler = torch.amp.GradScaler("sim", enabled=is_scaled)
    for batch in batches():
        optimizer.zero_grad()
        with torch.autocast("sim", torch.float16, enabled=is_scaled):
            loss = loss_of(model, [part.to(device) for part in batch])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return [parameter.detach().cpu() for parameter in model.parameters()]


@pytest.mark.parametrize("precision", ["32-true", "16-mixed"])
@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_weights_and_host_reads_are_those_of_the_loop_by_hand(
    kind: Any, options: dict[str, Any], precision: Any, tmp_path: Path
) -> None:
    import simulated_device

    from camshaft.hooks_core import Callback
    from camshaft.trainer import Trainer, TrainingModule

    class Net(TrainingModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            return loss_of(self.net, batch)

        def configure_optimizers(self) -> Any:
            return kind(self.parameters(), lr=0.01, **options)

    class Steps(Callback):
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 1:  # the first step makes the optimizer's state
                self.context = simulated_device.recording()
                self.recording = self.context.__enter__()

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == NUM_STEPS - 1:
                self.context.__exit__(None, None, None)

    expected = by_hand(kind, options, precision == "16-mixed")
    quiet = dict.fromkeys(["logger", "enable_progress_bar", "enable_checkpointing", "enable_model_summary"], False)
    module, steps = Net(), Steps()
    trainer = Trainer(
        accelerator="sim",
        devices=[1],
        max_epochs=1,
        precision=precision,
        callbacks=[steps],
        default_root_dir=tmp_path,
        **quiet,
    )
    trainer.fit(module, batches())
    assert all(torch.equal(one.detach().cpu(), other) for one, other in zip(module.parameters(), expected, strict=True))
    waits = steps.recording.host_waits()
    # the scaler's own read of whether gradients overflowed, of which schedulers and callbacks are told
    num_expected = (NUM_STEPS - 1) * (precision == "16-mixed")
    assert len(waits) == num_expected, "\n".join(event.place for event in waits)
