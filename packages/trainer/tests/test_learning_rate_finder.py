"""A search for a learning rate before training: what it leaves behind, what it sets, and what a resume makes of it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchdata.stateful_dataloader import StatefulDataLoader
from trainer_parts import NO_VALIDATION, ListLogger, Regression, assert_same, dataset, loader, quiet_trainer, weights

from camshaft.callbacks import LearningRateFinder
from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.hooks_core import Callback
from camshaft.loops import CombinedLoader
from camshaft.trainer import Trainer, seed_everything

torchmetrics = pytest.importorskip("torchmetrics")
pytestmark = pytest.mark.filterwarnings(NO_VALIDATION, "ignore:This process .* is multi-threaded")


class Busy(Regression):
    """Keeps and draws something in every way that a module may."""

    def __init__(self) -> None:
        super().__init__(dropout=0.3)
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("drawn", torch.zeros(()), persistent=False)
        self.error = torchmetrics.MeanSquaredError()
        self.unlogged = torchmetrics.MeanMetric()
        self.losses: list[Tensor] = []
        self.counts: dict[str, int] = {"steps": 0}
        self.num_steps = 0
        self.mean = torch.zeros(3)
        self.seen: list[Any] = []

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(self.norm(self.dropout(inputs)))
        return outputs

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        batch = batch["one"] if isinstance(batch, dict) else batch
        drawn = random.random() + np.random.normal() + float(torch.rand(()))
        self.drawn += drawn
        self.num_steps += 1
        self.counts["steps"] += 1
        self.mean += batch[0].mean(dim=0)
        outputs = self(batch[0])
        self.error.update(outputs, batch[1])
        self.unlogged.update(outputs)
        self.log("error", self.error, on_step=False, on_epoch=True)
        loss = nn.functional.mse_loss(outputs, batch[1])
        self.losses.append(loss.detach())
        self.log("loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        if self.logger is not None:
            self.logger.log_metrics({"direct": float(loss.detach())}, step=self.num_steps)
        self.seen.append([batch[0].clone(), drawn, self.num_steps, dict(self.counts), self.mean.clone()])
        return loss

    def on_train_epoch_end(self) -> None:
        self.log("mean_of_losses", torch.stack(self.losses).mean())
        self.losses.clear()

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
        warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": warm_up, "interval": "step"}}


class BusyJoint(Busy):
    """Has an optimizer that holds nothing by itself."""

    def configure_optimizers(self) -> Any:
        from camshaft.loops import JointOptimizer  # which releases lack

        return JointOptimizer(*(torch.optim.Adam(one.parameters()) for one in (self.layer, self.norm)))


class Remembering(Dataset[Any]):
    """Counts what was read, and keeps the count in checkpoints."""

    def __init__(self) -> None:
        self.samples, self.num_read = dataset(24), 0

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        self.num_read += 1
        inputs, targets = self.samples[index]
        return inputs + 0.01 * self.num_read, targets

    def state_dict(self) -> dict[str, Any]:
        return {"num_read": self.num_read}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.num_read = state["num_read"]


def plain_loader() -> Any:
    return DataLoader(dataset(24), batch_size=4, shuffle=True)


def seeded_loader() -> Any:
    return DataLoader(dataset(24), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(4))


def remembering_loader() -> Any:
    return DataLoader(Remembering(), batch_size=4, shuffle=True)


def stateful_loader() -> Any:
    return StatefulDataLoader(dataset(24), batch_size=4, shuffle=True)


def stateful_seeded_loader() -> Any:
    return StatefulDataLoader(dataset(24), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(4))


def worker_loader() -> Any:
    return DataLoader(dataset(24), batch_size=4, shuffle=True, num_workers=1, persistent_workers=True)


def combined_loader() -> Any:
    return CombinedLoader({"one": plain_loader(), "two": seeded_loader()}, "max_size_cycle")


LOADERS = [
    plain_loader,
    seeded_loader,
    remembering_loader,
    stateful_loader,
    stateful_seeded_loader,
    worker_loader,
    combined_loader,
]


def fit(
    root: Path, make: Any, finder: Callback | None = None, kind: type[Busy] = Busy, **arguments: Any
) -> dict[str, Any]:
    seed_everything(11)
    module, logger = kind(), ListLogger()
    trainer = quiet_trainer(
        root,
        callbacks=[] if finder is None else [finder],
        logger=logger,
        log_every_n_steps=1,
        **{"max_epochs": 2, **arguments},
    )
    trainer.fit(module, make(), loader(2))
    return {
        "weights": weights(module),
        "drawn": module.drawn,
        "seen": module.seen,
        "rows": logger.rows,
        "metrics": dict(trainer.callback_metrics),
        "optimizer": trainer.optimizers[0].state_dict(),
        "schedulers": [config.scheduler.state_dict() for config in trainer.lr_scheduler_configs],
        "counts": [trainer.global_step, trainer.current_epoch, trainer.fit_loop.progress.state_dict()["batches"]],
        "random": [random.random(), float(np.random.normal()), float(torch.rand(()))],
        "unlogged": module.unlogged.compute(),
    }


@pytest.mark.parametrize("make", LOADERS, ids=lambda make: make.__name__)
def test_a_fit_after_a_search_whose_rate_is_not_used_is_the_fit_without(tmp_path: Path, make: Any) -> None:
    expected = fit(tmp_path, make)
    finder = LearningRateFinder(min_lr=1e-4, num_training_steps=15, update_attr=False)
    assert_same(fit(tmp_path, make, finder), expected)
    assert finder.optimal_lr is not None and len(finder.optimal_lr.results["loss"]) > 10


@pytest.mark.parametrize(
    "arguments",
    [
        {"accumulate_grad_batches": 2, "gradient_clip_val": 0.3},
        {"limit_train_batches": 3, "max_epochs": 3},
        {"precision": "bf16-mixed"},
        {"zero_grad": "after_optimizer_step"},
        pytest.param({"kind": BusyJoint}, marks=pytest.mark.new_feature("loops")),
    ],
    ids=str,
)
def test_likewise_however_it_trains(tmp_path: Path, arguments: dict[str, Any]) -> None:
    finder = LearningRateFinder(min_lr=1e-4, num_training_steps=15, update_attr=False)
    assert_same(fit(tmp_path, plain_loader, finder, **arguments), fit(tmp_path, plain_loader, **arguments))


class Searching(Busy):
    """Brings a search along, which a barebones trainer takes from nobody else."""

    searches = True

    def configure_callbacks(self) -> Any:
        return [LearningRateFinder(min_lr=1e-4, update_attr=False)] if self.searches else []


def test_likewise_without_a_metric_log(tmp_path: Path) -> None:
    def run(searches: bool) -> Any:
        seed_everything(11)
        module = Searching()
        module.searches = searches
        Trainer(barebones=True, max_epochs=2, default_root_dir=tmp_path).fit(module, plain_loader())
        return weights(module), module.seen, dict(module.logged_metrics)

    assert_same(run(True), run(False))


class EachEpoch(LearningRateFinder):
    """Searches before every epoch, as users of Lightning do it."""

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        self.found: list[Any] = []

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        self.found.append(self.lr_find(trainer, module).results)


def test_a_subclass_may_search_before_every_epoch_without_a_trace(tmp_path: Path) -> None:
    finder = EachEpoch(min_lr=1e-4, num_training_steps=12, update_attr=False)
    expected = fit(tmp_path, remembering_loader, max_epochs=3)
    assert_same(fit(tmp_path, remembering_loader, finder, max_epochs=3), expected)
    assert len(finder.found) == 3 and finder.found[0] != finder.found[1]


class Deep(Regression):
    """A rate that is kept as an attribute, two groups, and a schedule with a warm-up."""

    def __init__(self, lr: float = 1e-6) -> None:
        super().__init__()
        self.lr = lr
        self.head = nn.Linear(1, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.layer(inputs))
        return outputs

    def configure_optimizers(self) -> Any:
        groups = [{"params": self.head.parameters()}, {"params": self.layer.parameters(), "lr": self.lr / 10}]
        optimizer = torch.optim.SGD(groups, lr=self.lr)
        warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: min(1.0, (epoch + 1) / 2))
        return [optimizer], [warm_up]


def test_the_rate_is_set_everywhere_and_schedulers_follow_it(tmp_path: Path) -> None:
    seed_everything(2)
    finder = LearningRateFinder(min_lr=1e-5, max_lr=10)
    module, trainer = Deep(), quiet_trainer(tmp_path, callbacks=[finder], max_epochs=3)
    trainer.fit(module, loader(8))
    rate = finder.suggested_lr
    assert rate is not None and finder.optimal_lr is not None and rate in finder.optimal_lr.results["lr"]
    assert 1e-5 < rate < 10
    assert module.lr == rate
    head, layer = trainer.optimizers[0].param_groups
    assert (head["lr"], head["initial_lr"]) == (rate, rate)
    assert layer["initial_lr"] == pytest.approx(rate / 10)
    assert trainer.lr_scheduler_configs[0].scheduler.base_lrs == [rate, layer["initial_lr"]]


def test_a_fit_with_the_rate_found_is_the_fit_that_begins_with_it(tmp_path: Path) -> None:
    def run(rate: float, callbacks: list[Any]) -> Any:
        seed_everything(5)
        module = Regression(rate, dropout=0.2)
        trainer = quiet_trainer(tmp_path, callbacks=callbacks, max_epochs=2)
        trainer.fit(module, loader(4, shuffle=True))
        return [weights(module), dict(trainer.callback_metrics), module.hparams]

    finder = LearningRateFinder(min_lr=1e-4)
    found = run(0.001, [finder])
    assert finder.suggested_lr is not None
    assert_same(found, run(finder.suggested_lr, []))


def test_a_resumed_fit_takes_the_rate_over_and_does_not_search(tmp_path: Path) -> None:
    def trainer_of(root: Path, finder: LearningRateFinder, **arguments: Any) -> Trainer:
        return quiet_trainer(root, callbacks=[finder], **arguments)

    seed_everything(2)
    whole, finder = Deep(), LearningRateFinder(min_lr=1e-5, max_lr=10)
    trainer_of(tmp_path, finder, max_epochs=4).fit(whole, loader(8, shuffle=True))

    seed_everything(2)
    first = trainer_of(tmp_path, LearningRateFinder(min_lr=1e-5, max_lr=10), max_steps=11, max_epochs=None)
    first.fit(Deep(), loader(8, shuffle=True))
    first.save_checkpoint(tmp_path / "middle.ckpt")

    again = LearningRateFinder(min_lr=1e-5, max_lr=10)
    again.lr_find = lambda *_: pytest.fail("it searched again")  # type: ignore[method-assign]
    resumed = Deep()
    trainer_of(tmp_path, again, max_epochs=4).fit(resumed, loader(8, shuffle=True), ckpt_path=tmp_path / "middle.ckpt")
    assert_same(weights(resumed), weights(whole))
    assert resumed.lr == whole.lr == again.suggested_lr == finder.suggested_lr
    assert again.optimal_lr is not None and finder.optimal_lr is not None
    assert again.optimal_lr.results == finder.optimal_lr.results


class ByHand(Regression):
    automatic_optimization = False


class WithLBFGS(Regression):
    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (ByHand, "`automatic_optimization` must be True, but got False .* in LearningRateFinder"),
        (WithLBFGS, "`optimizer` must be one that does not evaluate the loss itself, but got 'LBFGS'"),
    ],
)
def test_what_cannot_be_tried_is_an_error(tmp_path: Path, kind: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        quiet_trainer(tmp_path, callbacks=[LearningRateFinder()]).fit(kind(), loader(2))


def test_a_name_that_nobody_keeps_is_an_error_before_anything_runs(tmp_path: Path) -> None:
    message = "`attr_name` must be the name of an attribute or a hyperparameter of Regression, but got 'rate'"
    with pytest.raises(InvalidArgumentError, match=message):
        quiet_trainer(tmp_path, callbacks=[LearningRateFinder(attr_name="rate")]).fit(Regression(), loader(2))


def test_a_loader_that_cannot_be_read_without_a_trace_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`train loader` must be a DataLoader, or one without a state"):
        quiet_trainer(tmp_path, callbacks=[LearningRateFinder()]).fit(Regression(), iter(loader(4)))


class Within(Callback):
    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        with trainer.trial():
            pass


def test_a_trial_within_a_batch_or_outside_of_fit_is_an_error(tmp_path: Path) -> None:
    trainer = quiet_trainer(tmp_path, callbacks=[Within()])
    with pytest.raises(
        RuntimeError,
        match=r"`trial` must be used while no batch is trained, but got 'fit, stage train, epoch 0, batch 0",
    ):
        trainer.fit(Regression(), loader(2))
    with pytest.raises(RuntimeError, match="`trial` must be used during fit, but got None"), trainer.trial():
        pass


def test_an_error_in_a_trial_leaves_no_trace_either(tmp_path: Path) -> None:
    class Failing(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            if batch_idx == 3:
                raise ArithmeticError("in a trial")
            return super().training_step(batch, batch_idx)

    module, logger = Failing(), ListLogger()
    before = weights(module)
    trainer = quiet_trainer(tmp_path, callbacks=[LearningRateFinder()], logger=logger)
    with pytest.raises(ArithmeticError, match="in a trial"):
        trainer.fit(module, loader(8))
    assert_same(weights(module), before)
    assert trainer.loggers == [logger] and logger.rows == []
    assert dict(trainer.callback_metrics) == {}


def test_fast_dev_run_searches_nothing_and_says_so(tmp_path: Path) -> None:
    finder = LearningRateFinder()
    with pytest.warns(UserWarning, match="LearningRateFinder does not search under `fast_dev_run`"):
        quiet_trainer(tmp_path, callbacks=[finder], fast_dev_run=True).fit(Regression(), loader(2))
    assert finder.optimal_lr is None
