"""What built-in callbacks of earlier releases remembered, in their checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from compat_parts import Regression, quiet_trainer
from torch import nn
from trainer_parts import NO_VALIDATION, assert_same, loader, weights

from camshaft.callbacks import BackboneFinetuning, BaseFinetuning, ModelCheckpoint, StochasticWeightAveraging, Timer

pytestmark = [
    pytest.mark.filterwarnings(NO_VALIDATION),
    pytest.mark.filterwarnings("ignore:Detected call of"),
    pytest.mark.filterwarnings("ignore:The checkpoint is of release"),
    pytest.mark.filterwarnings("ignore:ModelCheckpoint now saves in"),
]

NUM_BATCHES = 4


class Normed(Regression):
    """Momentum, batch normalisation, and a rate that falls."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, inputs: Any) -> Any:
        return self.layer(self.norm(inputs))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.8)]


def counters(num_epochs: int, version: str) -> dict[str, Any]:
    """As a release saved at the end of an epoch."""
    num_batches = num_epochs * NUM_BATCHES
    counted = {"global_step": num_batches, "pytorch-lightning_version": version}
    if version < "1.6":
        return {"epoch": num_epochs, **counted}
    current = dict.fromkeys(("ready", "completed", "started", "processed"), NUM_BATCHES)
    batches = {"total": {"ready": num_batches}, "current": current, "is_last_batch": True}
    epochs = {"current": {"ready": num_epochs, "completed": num_epochs - 1}}
    loops = {"fit_loop": {"epoch_progress": epochs, "epoch_loop.batch_progress": batches}}
    return {"epoch": num_epochs - 1, "loops": loops, **counted}


def fit(folder: Path, callback: Any, path: Path | None = None, max_epochs: int = 5) -> Normed:
    torch.manual_seed(1 if path is None else 2)
    module = Normed()
    saving = ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)
    callbacks = [callback, saving] if path is None else [callback]
    trainer = quiet_trainer(folder, callbacks=callbacks, max_epochs=max_epochs, enable_checkpointing=path is None)
    trainer.fit(module, loader(NUM_BATCHES), ckpt_path=path)
    return module


def save(folder: Path, saved: dict[str, Any], num_epochs: int, version: str, callbacks: dict[str, Any]) -> Path:
    """A checkpoint as a release would have saved it where ours was taken."""
    kept = {key: saved[key] for key in ("state_dict", "optimizer_states", "lr_schedulers")}
    path = folder / f"old-{version}-{num_epochs}.ckpt"
    torch.save({**kept, **counters(num_epochs, version), "callbacks": callbacks}, path)
    return path


@pytest.mark.parametrize("strategy", ["cos", "linear"])
@pytest.mark.parametrize("start", [1, 2, 3])
def test_averaging_goes_on_as_if_it_had_not_stopped(tmp_path: Path, start: int, strategy: str) -> None:
    def averaging() -> StochasticWeightAveraging:
        return StochasticWeightAveraging(0.01, start, annealing_epochs=2, annealing_strategy=strategy)

    whole = fit(tmp_path, averaging())
    for num_epochs in range(1, 5):
        saved = torch.load(tmp_path / f"epoch={num_epochs - 1}.ckpt", weights_only=True)
        average = saved.get("averaging_state")
        num_averaged = 0 if average is None else int(average["n_averaged"])
        if num_averaged and strategy == "cos":
            saved["lr_schedulers"][0]["last_epoch"] += 5  # releases began to count at `max_epochs`
        state = {
            "n_averaged": num_averaged,
            "latest_update_epoch": num_epochs - 1 if num_averaged else -1,
            "scheduler_state": saved["lr_schedulers"][0] if num_averaged else None,
            "average_model_state": saved["state_dict"] | ({} if average is None else average["weights"]),
        }
        path = save(tmp_path, saved, num_epochs, "1.9.5", {"StochasticWeightAveraging": state})
        assert_same(weights(fit(tmp_path / "resumed", averaging(), path)), weights(whole), f"from {num_epochs}")


def test_a_timer_goes_on_measuring(tmp_path: Path) -> None:
    fit(tmp_path, Timer(), max_epochs=1)
    saved = torch.load(tmp_path / "epoch=0.ckpt", weights_only=True)
    state = {"time_elapsed": {"train": 100.0, "sanity_check": 1.0, "validate": 20.0, "test": 0.0, "tune": 0.0}}
    for version in ("1.3.8", "1.9.5"):
        path = save(tmp_path, saved, 1, version, {"Timer": state})
        timer = Timer()
        fit(tmp_path / "resumed", timer, path, max_epochs=2)
        assert 100.0 < timer.time_elapsed() < 200.0 and timer.time_elapsed("validate") == 20.0
        assert timer.time_elapsed("predict") == 0.0


class Own(BaseFinetuning):
    """Freezes nothing."""

    def freeze_before_training(self, module: Any) -> None:
        pass

    def finetune_function(self, module: Any, epoch: int, optimizer: Any) -> None:
        pass


@pytest.mark.parametrize("version", ["1.3.8", "1.5.10", "1.9.5"])
@pytest.mark.parametrize("kind", [Own, BackboneFinetuning])
def test_what_fine_tuning_remembered_is_named_among_what_is_left_out(
    tmp_path: Path, kind: type[BaseFinetuning], version: str
) -> None:
    class WithBackbone(Regression):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = nn.Linear(3, 3)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.layer.parameters(), lr=0.1)

    module = WithBackbone()
    groups = {0: [{"params": ["layer.weight", "layer.bias"], "lr": 0.1}]}
    state = {"internal_optimizer_metadata": groups, "previous_backbone_lr": None} if version > "1.4" else groups
    saved = {
        "state_dict": module.state_dict(),
        "optimizer_states": [module.configure_optimizers().state_dict()],
        "lr_schedulers": [],
    }
    path = save(tmp_path, saved, 1, version, {kind.__qualname__: state})
    trainer = quiet_trainer(tmp_path, callbacks=[kind()], max_epochs=2)
    with pytest.warns(UserWarning, match=f"remembered is left out for {kind.__qualname__}"):
        trainer.fit(module, loader(NUM_BATCHES), ckpt_path=path)
    assert trainer.current_epoch == 2
    assert module.backbone.weight.requires_grad is (kind is Own)
