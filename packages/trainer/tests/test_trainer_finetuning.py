"""Finetuning on the real trainer: groups, schedulers and resuming across the epoch that unfreezes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler as schedulers
from trainer_parts import NO_VALIDATION, Regression, assert_same, loader, quiet_trainer, weights

from camshaft.callbacks import BackboneFinetuning, BaseFinetuning, ModelCheckpoint
from camshaft.hooks_core import Callback

pytestmark = [
    pytest.mark.filterwarnings("ignore:Detected call of"),
    pytest.mark.filterwarnings("ignore:ModelCheckpoint now saves in"),
    pytest.mark.filterwarnings(NO_VALIDATION),
]

Make = Callable[[Any], Any]

SCHEDULERS: dict[str, Make | None] = {
    "none": None,
    "lambda": lambda optimizer: schedulers.LambdaLR(optimizer, lambda epoch: 0.9**epoch),
    "step": lambda optimizer: schedulers.StepLR(optimizer, 2, 0.5),
    "sequential": lambda optimizer: schedulers.SequentialLR(
        optimizer,
        [schedulers.LinearLR(optimizer, 0.5, total_iters=3), schedulers.CosineAnnealingLR(optimizer, 9)],
        [3],
    ),
}


class Headed(Regression):
    """A head on a backbone, optimized as far as it is trainable."""

    make: Make | None = None
    interval = "epoch"

    def __init__(self) -> None:
        super().__init__(dropout=0.2)
        self.backbone = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(self.dropout(self.backbone(inputs)))
        return outputs

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=0.05)
        if self.make is None:
            return optimizer
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": self.make(optimizer), "interval": self.interval}}


class Rates(Callback):
    """Notes the learning rates of each batch."""

    def __init__(self) -> None:
        self.seen: list[list[float]] = []

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self.seen.append([group["lr"] for group in trainer.optimizers[0].param_groups])


def fit(
    folder: Path, make: Make | None = None, interval: str = "epoch", ckpt_path: Path | None = None, **arguments: Any
) -> tuple[Headed, list[list[float]]]:
    torch.manual_seed(1 if ckpt_path is None else 2)
    module, rates = Headed(), Rates()
    module.make, module.interval = make, interval
    saving = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    callbacks = [BackboneFinetuning(2, lambda epoch: 1.5), rates, saving]
    options: dict[str, Any] = {"accumulate_grad_batches": 2, "max_epochs": 4, **arguments}
    trainer = quiet_trainer(folder, callbacks=callbacks, enable_checkpointing=True, **options)
    trainer.fit(module, loader(3, shuffle=True), ckpt_path=ckpt_path)
    trainer.save_checkpoint(folder / "end.ckpt")
    return module, rates.seen


@pytest.mark.exhaustive
@pytest.mark.parametrize("interval", ["epoch", "step"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_fit_that_goes_on_from_any_update_gives_the_same_bits(tmp_path: Path, name: str, interval: str) -> None:
    module, _ = fit(tmp_path / "whole", SCHEDULERS[name], interval)
    keys = ("state_dict", "optimizer_states", "lr_schedulers", "rng", "callbacks")
    expected = torch.load(tmp_path / "whole" / "end.ckpt", weights_only=True)
    for step in range(1, 9):
        path = tmp_path / "whole" / f"step={step}.ckpt"
        resumed, _ = fit(tmp_path / str(step), SCHEDULERS[name], interval, path)
        assert_same(weights(resumed), weights(module), f"from {step}")
        found = torch.load(tmp_path / str(step) / "end.ckpt", weights_only=True)
        for key in keys[:4]:
            assert_same(found[key], expected[key], f"from {step}: {key}")
        assert_same(found["callbacks"]["BackboneFinetuning"], expected["callbacks"]["BackboneFinetuning"])


def test_the_backbone_is_trained_from_its_epoch_on(tmp_path: Path) -> None:
    before, _ = fit(tmp_path / "before", max_epochs=2)
    torch.manual_seed(1)
    begun = Headed()
    for name in ("0.weight", "0.bias", "2.weight", "2.bias"):
        assert torch.equal(before.backbone.state_dict()[name], begun.backbone.state_dict()[name])
    after, rates = fit(tmp_path / "after", max_epochs=3)
    assert not torch.equal(after.backbone[0].weight, begun.backbone[0].weight)
    assert rates[:6] == [[0.05]] * 6 and rates[6:] == [[0.05, pytest.approx(0.005)]] * 3


def test_learning_rates_within_epochs_follow_the_scheduler(tmp_path: Path) -> None:
    _, rates = fit(tmp_path, SCHEDULERS["lambda"], "step")
    head = [rate[0] for rate in rates]
    assert head == pytest.approx([0.05 * 0.9 ** (step + batch // 2) for step in (0, 2, 4, 6) for batch in range(3)])
    assert [rate[1] / rate[0] for rate in rates[6:9]] == pytest.approx([0.1] * 3)
    first = rates[6][1] * 1.5
    assert [rate[1] for rate in rates[9:]] == pytest.approx([first, first, first * 0.9])


class Joint(Headed):
    """Trains weights by one optimizer and biases by another, each on a schedule of its own."""

    def configure_optimizers(self) -> Any:
        from camshaft.loops import JointOptimizer  # which releases lack

        trainable = [one for one in self.parameters() if one.requires_grad]
        parts = [
            torch.optim.SGD([one for one in trainable if (one.ndim == 2) is is_2d], lr=0.1) for is_2d in (True, False)
        ]
        optimizer = JointOptimizer(*parts)
        return [optimizer], [schedulers.LambdaLR(optimizer, [lambda epoch: 0.5**epoch, lambda epoch: 0.1**epoch])]


class UnfreezeWeights(BaseFinetuning):
    def freeze_before_training(self, module: Any) -> None:
        self.freeze(module.backbone, train_bn=False)

    def finetune_function(self, module: Any, epoch: int, optimizer: Any) -> None:
        if epoch == 1:
            self.unfreeze_and_add_param_group(module.backbone[2], optimizer.optimizers[0], 0.005)


@pytest.mark.new_feature("loops")
def test_a_group_that_is_added_to_a_part_of_a_joint_optimizer_stays_in_it(tmp_path: Path) -> None:
    def run(ckpt_path: Path | None = None, **arguments: Any) -> Any:
        torch.manual_seed(1)
        trainer = quiet_trainer(tmp_path, callbacks=UnfreezeWeights(), **arguments)
        trainer.fit(module := Joint(), loader(3), ckpt_path=ckpt_path)
        return trainer, module

    run(max_epochs=2)[0].save_checkpoint(tmp_path / "two.ckpt")
    (_, whole), (trainer, resumed) = run(max_epochs=3), run(tmp_path / "two.ckpt", max_epochs=3)
    assert_same(weights(resumed), weights(whole))
    assert [group["lr"] for group in trainer.optimizers[0].param_groups] == pytest.approx([0.0125, 0.00125, 0.0001])
    with pytest.raises(ValueError, match=r"`optimizer` must be one to which groups can be added, but got 'JointOpt"):
        quiet_trainer(tmp_path, callbacks=BackboneFinetuning(9)).fit(Joint(), loader(3))


def test_a_second_fit_goes_on_with_the_backbone_unfrozen(tmp_path: Path) -> None:
    module = Headed()
    callback = BackboneFinetuning(1)
    trainer = quiet_trainer(tmp_path, callbacks=[callback], max_epochs=2)
    trainer.fit(module, loader(3))
    trainer.fit_loop.limits = trainer.fit_loop.limits.__class__(max_epochs=3)
    trainer.fit(module, loader(3))
    assert len(trainer.optimizers[0].param_groups) == 2 and module.backbone[0].weight.requires_grad


def test_a_scheduler_that_cannot_follow_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"to which parameter groups can be added.*OneCycleLR"):
        fit(tmp_path, lambda optimizer: schedulers.OneCycleLR(optimizer, 0.1, 100), "step")
