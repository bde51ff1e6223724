"""Arguments of `log` that few calls need."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric, MetricCollection

from camshaft.trainer import Trainer, TrainingModule

LOADER = DataLoader(torch.ones(8, 2), batch_size=2)  # type: ignore[arg-type]


class Net(TrainingModule):
    def __init__(self, log: Callable[[Net, Tensor], None]) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.metrics = MetricCollection({"mean": MeanMetric(), "other": MeanMetric()}, compute_groups=False)
        self.log_all = log

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss = self.layer(batch).square().mean()
        self.log_all(self, loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(tmp_path: Path, log: Callable[[Net, Tensor], None]) -> Trainer:
    trainer = Trainer(default_root_dir=tmp_path, max_epochs=1, logger=False, enable_progress_bar=False)
    trainer.fit(Net(log), LOADER)
    return trainer


def test_the_steps_value_can_be_differentiated_and_the_epochs_cannot(tmp_path: Path) -> None:
    gradients = []

    def log(module: Net, loss: Tensor) -> None:
        module.log("loss", loss, on_step=True, on_epoch=True, enable_graph=True)
        kept = module.trainer.callback_metrics["loss_step"]
        gradients.append(torch.autograd.grad(kept, module.layer.weight, retain_graph=True)[0])
        module.log("plain", loss)
        assert not module.trainer.callback_metrics["plain"].requires_grad

    trainer = fit(tmp_path, log)
    assert len(gradients) == 4 and all(gradient.abs().sum() > 0 for gradient in gradients)
    assert not trainer.callback_metrics["loss_epoch"].requires_grad


def test_without_a_trainer_the_graph_is_kept_as_well() -> None:
    module = Net(lambda module, loss: module.log_dict({"loss": loss}, enable_graph=True))
    module.training_step(torch.ones(2, 2), 0)
    value = module.logged_metrics["loss"]
    assert isinstance(value, Tensor) and value.requires_grad


def test_a_metrics_attribute_is_checked(tmp_path: Path) -> None:
    def log(attribute: str) -> Callable[[Net, Tensor], None]:
        def call(module: Net, loss: Tensor) -> None:
            module.metrics["mean"](loss.detach())
            module.log("mean", module.metrics["mean"], on_epoch=True, metric_attribute=attribute)

        return call

    assert "mean_epoch" in fit(tmp_path, log("metrics.mean")).callback_metrics
    for wrong in ("metrics.other", "metrics", "nothing.mean"):
        with pytest.raises(ValueError, match=f"`metric_attribute` must be the name .* but got '{wrong}'"):
            fit(tmp_path, log(wrong))


def test_only_the_first_processs_call_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def log(module: Net, loss: Tensor) -> None:
        module.log("loss", loss, rank_zero_only=True, sync_dist=True)
        module.log_dict({"of_dict": loss}, rank_zero_only=True)

    assert {"loss", "of_dict"} <= fit(tmp_path, log).callback_metrics.keys()
    monkeypatch.setattr(Net, "global_rank", 1)
    assert not {"loss", "of_dict"} & fit(tmp_path, log).callback_metrics.keys()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"enable_graph": True, "on_step": False, "on_epoch": True}, "`on_step` must be True with enable_graph=True"),
        ({"enable_graph": True, "value": 1.0}, "`value` must be a tensor with enable_graph=True, but got 1.0"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        fit(tmp_path, lambda module, loss: module.log("loss", **{"value": loss, **arguments}))
