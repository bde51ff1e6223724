"""A module of one's own logs in the loops, without a trainer."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from bare_parts import BareStrategy, Sized
from bare_ranks import ThreadedStrategy, on_ranks
from metric_log_parts import Position, RecordingLogger
from torch import Tensor, nn

from camshaft.hooks_core import ModelHooks
from camshaft.loops import FitLimits, FitLoop, Run, run_verb
from camshaft.loops.metrics import EpochEndReduction, MetricLog, MetricLogging


class Part(MetricLogging, nn.Module):
    def forward(self, batch: Tensor) -> Tensor:
        self.log_dict({"largest": batch.max()}, on_step=False, on_epoch=True, reduce_fx="max")
        return batch


class Net(MetricLogging, ModelHooks, nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.part = Part()

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        self.log("batch_idx", batch_idx, on_epoch=True, batch_size=1)
        return self.layer(self.part(batch)).sum()

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.log("mean", batch.mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.0)


class Monitor(EpochEndReduction):
    """Keeps what a callback that monitors reads."""

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        self.seen = float(self._metric_log.callback_metrics["largest"])


def fit(strategy: Any) -> tuple[MetricLog, RecordingLogger, Monitor, Net]:
    torch.manual_seed(0)
    rank, module, loop, logger = strategy.global_rank, Net(), FitLoop(FitLimits(max_epochs=1)), RecordingLogger()
    log = MetricLog(progress=loop.progress, loggers=[logger], log_every_n_steps=1, strategy=strategy)
    log.attach(module)
    monitor = Monitor(log)
    train = Sized([torch.full((2, 1), float(10 * rank + idx)) for idx in range(2)])
    validate = Sized([torch.full((rank + 1, 1), float(rank))])
    loaders = {"train": train, "validate": validate}
    callbacks = [EpochEndReduction(log), monitor]
    run_verb(
        Run(
            verb="fit",
            module=module,
            strategy=strategy,
            trainer=loop,
            loaders=loaders,
            metrics=log,
            callbacks=callbacks,
        ),
        loop,
    )
    return log, logger, monitor, module


def test_a_fit_of_the_loops_is_logged() -> None:
    log, logger, monitor, module = fit(BareStrategy())
    assert {name: float(value) for name, value in log.callback_metrics.items()} == {
        "batch_idx_step": 1,
        "batch_idx": 0.5,
        "batch_idx_epoch": 0.5,
        "largest": 1,
        "mean": 0,
    }
    assert monitor.seen == 1
    assert [row for _, row in logger.rows if "batch_idx_step" in row][-1] == {"batch_idx_step": 1, "epoch": 0}
    assert module.logged_metrics == log.logged_metrics


def test_ranks_reduce_and_only_the_first_writes() -> None:
    def on_rank(strategy: ThreadedStrategy) -> tuple[dict[str, float], int, float]:
        log, logger, monitor, _ = fit(strategy)
        values = {name: float(log.callback_metrics[name]) for name in ("batch_idx_epoch", "largest", "mean")}
        return values, len(logger.rows), monitor.seen

    (first, num_rows, seen), other = on_ranks(2, on_rank)
    assert first == {"batch_idx_epoch": 0.5, "largest": 11, "mean": pytest.approx(2 / 3)}
    assert num_rows > 0 and seen == 11
    assert other == (first, 0, 11), "callbacks that monitor see the values of all ranks"


def test_without_a_run_the_last_values_are_kept() -> None:
    module = Net()
    module.training_step(torch.ones(2, 1), 3)
    assert module.logged_metrics == {"batch_idx": 3.0} and module.part.logged_metrics == {"largest": torch.tensor(1.0)}


def test_a_copy_of_a_module_has_no_log_of_a_run() -> None:
    log, module = MetricLog(progress=Position()), Net()
    log.attach(module)
    assert copy.deepcopy(module).logged_metrics == {}
    copy.deepcopy(module).log("x", 1.0)
    assert module._metric_log is log


@pytest.mark.parametrize("syncs", [None, True])
def test_only_the_first_rank_counts_if_asked_for(syncs: bool | None) -> None:
    def on_rank(strategy: ThreadedStrategy) -> float:
        log, module = MetricLog(progress=Position(), strategy=strategy), Net()
        log.attach(module)
        log.start_epoch("validate")
        module.log("x", float(strategy.global_rank + 1), sync_dist=syncs, rank_zero_only=True)
        module.log("y", 2.0)
        log.end_epoch()
        return float(log.callback_metrics.get("x", torch.tensor(0)))

    assert on_ranks(2, on_rank) == [1, 0]
