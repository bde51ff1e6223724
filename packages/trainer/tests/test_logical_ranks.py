"""A trainer on logical ranks: what hooks see of them, and what it does not do with them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from camshaft.callbacks import LearningRateFinder
from camshaft.hooks_core import Callback
from camshaft.trainer import Trainer, TrainingModule

pytestmark = [pytest.mark.new_feature("strategies"), pytest.mark.filterwarnings("ignore::UserWarning")]


class Model(TrainingModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.lr = 0.1

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.layer(batch[0]).square().mean()
        self.log("seen", float(self.trainer.logical_rank), on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_rank", float(self.trainer.logical_rank))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


class Gathering(Model):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.all_gather(self.layer(batch[0])).square().mean()


def test_gathering_of_processes_in_a_step_of_each_rank_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"`all_gather` must be called once .* rank 0.* in Gathering"):
        trainer().fit(Gathering(), loader())


def loader() -> Any:
    return DataLoader(TensorDataset(torch.randn(16, 2)), batch_size=2)


def trainer(**arguments: Any) -> Trainer:
    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return Trainer(accelerator="cpu", logical_ranks=4, **{"max_epochs": 1, **quiet, **arguments})


def test_hooks_know_their_rank_and_values_are_of_all_or_of_the_first() -> None:
    seen: list[int | None] = []

    class Noting(Callback):
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
            seen.append(trainer.logical_rank)

        def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
            seen.append(trainer.logical_rank)

    fitted = trainer(callbacks=[Noting()])
    fitted.fit(Model(), loader(), loader())
    assert seen == [0, 1, 2, 3, None, 0, 1, 2, 3, None]
    assert fitted.num_training_batches == 2 and fitted.num_val_batches == [2] and fitted.global_step == 2
    values = {name: value.item() for name, value in fitted.callback_metrics.items()}
    assert values == {"seen": 1.5, "seen_epoch": 1.5, "seen_step": 0.0, "val_rank": 1.5}
    assert fitted.num_logical_ranks == 4 and fitted.logical_rank is None


class ByHand(Model):
    """Updates by itself, and steps a scheduler that it returned and one that it keeps."""

    automatic_optimization = False

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int | None]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        self.toggle_optimizer(optimizer)
        self.seen.append(("step", self.trainer.logical_rank))
        optimizer.zero_grad()
        self.manual_backward(self.layer(batch[0]).square().mean())
        optimizer.step()
        self.untoggle_optimizer(optimizer)
        self.lr_schedulers().step()
        self.kept[0].step()

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.seen.append(("update", self.trainer.logical_rank))
        self.log("update", torch.rand(()))

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        self.kept = [torch.optim.lr_scheduler.MultiplicativeLR(optimizer, lambda epoch: 0.5)]
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


def test_steps_that_update_by_themselves_know_their_rank_and_share_updates_and_schedulers() -> None:
    model, fitted = ByHand(), trainer()
    fitted.fit(model, loader())
    one = [("step", 0), ("step", 1), ("step", 2), ("step", 3), ("update", None)]
    assert model.seen == one * 2 and fitted.global_step == 2
    scheduler = fitted.lr_scheduler_configs[0].scheduler
    assert (scheduler.last_epoch, model.kept[0].last_epoch) == (2, 2)
    assert scheduler.optimizer.param_groups[0]["lr"] == 0.1 * 0.5**4
    assert type(scheduler) is torch.optim.lr_scheduler.StepLR
    assert fitted.callback_metrics["update"].shape == ()


def test_what_each_rank_would_do_in_its_hooks_by_itself_is_refused() -> None:
    class StepsLate(ByHand):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            getattr(self, self.late)().step()

    for late, name in (("lr_schedulers", "lr_scheduler"), ("optimizers", "optimizer")):
        model = StepsLate()
        model.late = late
        with pytest.raises(RuntimeError, match=rf"`{name}\.step` must be called in `training_step`, or in a hook that"):
            trainer().fit(model, loader())
    with pytest.raises(
        ValueError, match="`precision` must be another than '16-mixed' where steps update by themselves"
    ):
        trainer(precision="16-mixed").fit(ByHand(), loader())


def test_evaluation_and_prediction_count_each_sample_once() -> None:
    model, evaluated = Model(), trainer()
    assert evaluated.validate(model, loader(), verbose=False) == [{"val_rank": 1.5}]
    model.predict_step = lambda batch, batch_idx: batch[0]  # type: ignore[method-assign]
    data = loader()
    assert torch.equal(torch.cat(evaluated.predict(model, data)), data.dataset.tensors[0])


def test_trials_of_callbacks_are_refused() -> None:
    with pytest.raises(RuntimeError, match="`trial` must be used without logical ranks"):
        trainer(callbacks=[LearningRateFinder()]).fit(Model(), loader())


def test_a_hook_that_draws_nothing_changes_no_random_number() -> None:
    class Idle(Callback):
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None: ...

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None: ...

    def trained(*callbacks: Callback) -> torch.Tensor:
        torch.manual_seed(1)
        model = Model()
        data = DataLoader(TensorDataset(torch.randn(16, 2)), batch_size=2, shuffle=True)
        trainer(max_epochs=3, callbacks=[*callbacks]).fit(model, data)
        return model.layer.weight

    assert torch.equal(trained(), trained(Idle()))
