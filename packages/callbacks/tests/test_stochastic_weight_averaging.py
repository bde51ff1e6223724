from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from attrs import define
from recording_trainer import OneProcess, RecordingTrainer
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.lr_scheduler import ExponentialLR, StepLR
from torch.optim.swa_utils import SWALR, update_bn

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.callbacks.weights.stochastic_weight_averaging import (
    StochasticWeightAveraging,
    batch_norm_buffers,
    batch_norms,
    update_batch_norm,
)

pytestmark = pytest.mark.filterwarnings("ignore:Detected call of")


class Alone(OneProcess):
    """A strategy that computes as it is told."""

    def wrap_step(self, step: Any) -> Any:
        return step


@define(eq=False)
class LendingTrainer(RecordingTrainer):
    """Lends training batches."""

    num_trials: int = 0

    @contextmanager
    def trial(self, *, reload: bool = False) -> Iterator[list[list[Tensor]]]:
        self.num_trials += 1
        yield [[torch.full((4, 1), value) + torch.arange(4.0)[:, None]] for value in (1.0, 2.0)]


class Line(nn.Module):
    """One weight, perhaps behind batch normalisation."""

    def __init__(self, *, has_batch_norm: bool = False) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1, bias=False)
        self.norm = nn.BatchNorm1d(1) if has_batch_norm else nn.Identity()

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.norm(self.layer(inputs))
        return outputs


class Fit:
    """A fit in which each epoch ends with a weight that is its number, from 1."""

    def __init__(self, folder: Path, callback: StochasticWeightAveraging, *configs: Any, **options: Any) -> None:
        self.trainer: Any = LendingTrainer(str(folder), callbacks=[callback], strategy=Alone(), max_epochs=6)
        for name, value in options.items():
            if name not in ("module", "checkpoint"):
                setattr(self.trainer, name, value)
        self.callback, self.module = callback, options.get("module", Line())
        checkpoint = options.get("checkpoint")
        self.set(0.0)
        self.optimizer = SGD(self.module.parameters(), lr=0.8)
        self.trainer.optimizers = [self.optimizer]
        self.trainer.lr_scheduler_configs = [
            SimpleNamespace(scheduler=make(self.optimizer), interval=interval, frequency=3, monitor="loss", name=None)
            for make, interval in configs
        ]
        callback.setup(self.trainer, self.module, "fit")
        if checkpoint is not None:
            callback.on_load_checkpoint(self.trainer, self.module, checkpoint)
            self.module.load_state_dict(checkpoint["state_dict"])
        callback.on_fit_start(self.trainer, self.module)
        if checkpoint is not None:
            callback.load_state_dict(checkpoint["callbacks"][callback.state_key])

    def set(self, value: float) -> None:
        with torch.no_grad():
            self.module.layer.weight.fill_(value)

    @property
    def value(self) -> float:
        return float(self.module.layer.weight.detach())

    def epochs(self, first: int, last: int) -> list[float]:
        """Run epochs. Returns the learning rates."""
        rates = []
        for epoch in range(first, last):
            self.trainer.current_epoch = epoch
            self.callback.on_train_epoch_start(self.trainer, self.module)
            self.set(epoch + 1.0)
            rates.append(self.optimizer.param_groups[0]["lr"])
            for config in self.trainer.lr_scheduler_configs:
                if config.interval == "epoch":
                    config.scheduler.step()
        self.trainer.current_epoch = last
        return rates

    def end(self) -> None:
        self.callback.on_train_end(self.trainer, self.module)
        self.callback.on_fit_end(self.trainer, self.module)

    def checkpoint(self) -> dict[str, Any]:
        path = Path(self.trainer.default_root_dir, "saved.ckpt")
        callbacks = {self.callback.state_key: self.callback.state_dict()}
        checkpoint = {"state_dict": self.module.state_dict(), "callbacks": callbacks}
        self.callback.on_save_checkpoint(self.trainer, self.module, checkpoint)
        torch.save(checkpoint, path)
        loaded: dict[str, Any] = torch.load(path, weights_only=True)
        return loaded


@pytest.mark.parametrize(
    ("start", "first_weight"), [(0.5, 2.0), (3, 2.0), (0.99, 4.0), (6, 5.0), (0.0, 0.0), (1, 0.0), (1.0, 5.0)]
)
def test_the_average_has_the_weights_before_and_after_each_of_the_last_epochs(
    tmp_path: Path, start: Any, first_weight: float
) -> None:
    fit = Fit(tmp_path, StochasticWeightAveraging(0.1, start))
    fit.epochs(0, 6)
    assert fit.value == 6.0
    fit.end()
    values = [value for value in range(7) if value >= first_weight]
    assert fit.value == pytest.approx(sum(values) / len(values))


def test_an_epoch_that_is_cut_short_is_not_averaged(tmp_path: Path) -> None:
    fit = Fit(tmp_path, StochasticWeightAveraging(0.1, 2))
    fit.epochs(0, 4)
    fit.trainer.current_epoch = 3  # as where training ends inside it
    fit.end()
    assert fit.value == pytest.approx((1.0 + 2.0 + 3.0) / 3)


@pytest.mark.parametrize("strategy", ["cos", "linear"])
def test_learning_rates_go_to_their_goal_from_where_they_are(tmp_path: Path, strategy: str) -> None:
    step = (lambda optimizer: ExponentialLR(optimizer, 0.5), "epoch")
    fit = Fit(tmp_path, StochasticWeightAveraging(0.2, 3, 2, strategy), step, step)
    rates = fit.epochs(0, 6)
    assert rates == pytest.approx([0.8, 0.2, 0.05, 0.125, 0.2, 0.2])
    first, second = fit.trainer.lr_scheduler_configs
    assert isinstance(first.scheduler, SWALR) and second.scheduler.state_dict() == {}
    assert (first.interval, first.frequency, first.monitor) == ("epoch", 1, None)


def test_without_annealing_the_goal_is_there_at_once_and_without_schedulers_one_is_added(tmp_path: Path) -> None:
    fit = Fit(tmp_path, StochasticWeightAveraging([0.2], 3, 0))
    assert fit.epochs(0, 4) == pytest.approx([0.8, 0.8, 0.2, 0.2])
    assert [type(config.scheduler) for config in fit.trainer.lr_scheduler_configs] == [SWALR]


def test_without_a_rate_each_group_keeps_the_one_that_it_has(tmp_path: Path) -> None:
    step = (lambda optimizer: ExponentialLR(optimizer, 0.7), "epoch")
    fit = Fit(tmp_path, StochasticWeightAveraging(None, 3), step)
    fit.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))], "lr": 0.3})
    rates = fit.epochs(0, 6)
    assert rates == pytest.approx([0.8, 0.56, 0.392, 0.392, 0.392, 0.392])
    assert rates[2:] == [rates[2]] * 4  # to the bit
    assert fit.optimizer.param_groups[1]["lr"] == pytest.approx(0.147)


def test_a_trainer_that_steps_no_later_scheduler_anneals_as_well(tmp_path: Path) -> None:
    fit = Fit(tmp_path, StochasticWeightAveraging(0.2, 3, 2, "linear"))
    rates = []
    for epoch in range(6):
        rates += fit.epochs(epoch, epoch + 1)
        fit.trainer.lr_scheduler_configs = []
    assert rates == pytest.approx([0.8, 0.8, 0.8, 0.5, 0.2, 0.2])


@pytest.mark.parametrize("num_epochs", [1, 2, 3, 5, 6])
@pytest.mark.parametrize("has_ended", [False, True])
def test_going_on_from_a_checkpoint_averages_the_same(tmp_path: Path, num_epochs: int, has_ended: bool) -> None:
    def schedule(optimizer: Any) -> Any:
        return StepLR(optimizer, 1)

    options: dict[str, Any] = {"max_epochs": 8}
    fit = Fit(tmp_path, StochasticWeightAveraging(0.2, 3), (schedule, "step"), **options)
    fit.epochs(0, num_epochs)
    if has_ended:
        fit.end()
    saved = fit.checkpoint()
    resumed = Fit(tmp_path, StochasticWeightAveraging(0.2, 3), (schedule, "step"), checkpoint=saved, **options)
    assert resumed.value == num_epochs
    assert isinstance(resumed.trainer.lr_scheduler_configs[0].scheduler, SWALR) == (num_epochs > 2)
    resumed.epochs(num_epochs, 8)
    resumed.end()
    assert resumed.value == pytest.approx(sum(range(2, 9)) / 7)


def test_statistics_of_batch_normalisation_fit_the_average(tmp_path: Path) -> None:
    module = Line(has_batch_norm=True)
    fit = Fit(tmp_path, StochasticWeightAveraging(0.1, 5), module=module)
    fit.epochs(0, 6)
    module.norm.running_mean.fill_(9.0)
    fit.end()
    assert fit.value == 5.0 and fit.trainer.num_trials == 2
    assert float(module.norm.running_mean) == pytest.approx(5.0 * 3.0)  # batches with the means 2.5 and 3.5
    saved = fit.checkpoint()
    assert float(saved["state_dict"]["norm.running_mean"]) == pytest.approx(15.0)
    assert float(saved["current_model_state"]["norm.running_mean"]) == 9.0
    assert float(saved["current_model_state"]["layer.weight"]) == 6.0


def test_a_forward_of_ones_own_serves_for_the_statistics(tmp_path: Path) -> None:
    class Stepping(StochasticWeightAveraging):
        def forward_batch(self, module: Any, batch: Any) -> Any:
            return module.norm(batch[0])

    class WithoutForward(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.norm = nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1)

    fit = Fit(tmp_path, Stepping(0.1, 5), module=WithoutForward())
    fit.epochs(0, 6)
    fit.end()
    assert float(fit.module.norm.running_mean) == pytest.approx(3.0)
    with pytest.raises(ValueError, match="`forward` must be implemented to recompute batch-norm statistics"):
        Fit(tmp_path, StochasticWeightAveraging(0.1), module=WithoutForward())


def test_a_fit_that_does_not_allow_for_it_is_refused_at_set_up(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"`max_epochs` must be set when `swa_epoch_start` is a fraction, but got None"
    ):
        Fit(tmp_path, StochasticWeightAveraging(0.1), max_epochs=None)
    with pytest.raises(InvalidArgumentError, match=r"`swa_epoch_start` must be at most `max_epochs` \(6\), but got 7"):
        Fit(tmp_path, StochasticWeightAveraging(0.1, 7))
    with pytest.raises(InvalidArgumentError, match="`swa_lrs` must be one number or 1"):
        fit = Fit(tmp_path, StochasticWeightAveraging([0.1, 0.2], 1))
        fit.epochs(0, 1)
    callback = StochasticWeightAveraging(0.1)
    trainer: Any = LendingTrainer(str(tmp_path), callbacks=[callback], optimizers=[1, 2])
    callback.setup(trainer, None, "fit")
    with pytest.raises(ValueError, match="`optimizers` must be one optimizer, but got 2"):
        callback.on_fit_start(trainer, Line())
    Fit(tmp_path, StochasticWeightAveraging(0.1, 7), fast_dev_run=True, max_epochs=1)
    Fit(tmp_path, StochasticWeightAveraging(0.1, 7), max_epochs=None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"swa_lrs": 0.0}, "`swa_lrs` must be a positive number"),
        ({"swa_lrs": []}, "`swa_lrs` must be a positive number"),
        ({"swa_lrs": [0.1, -1.0]}, "`swa_lrs` must be a positive number"),
        ({"swa_epoch_start": 0}, "`swa_epoch_start` must be the number of an epoch"),
        ({"swa_epoch_start": 1.5}, "`swa_epoch_start` must be the number of an epoch"),
        ({"swa_epoch_start": True}, "`swa_epoch_start` must be the number of an epoch"),
        ({"annealing_epochs": -1}, "`annealing_epochs` must be an int, 0 or more"),
        ({"annealing_strategy": "exp"}, "`annealing_strategy` must be 'cos' or 'linear'"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        StochasticWeightAveraging(**{"swa_lrs": 0.1, **arguments})


def network() -> nn.Module:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2), nn.BatchNorm1d(2, momentum=0.3))
    module(torch.randn(4, 2))
    return module


def batches(num_batches: int = 5) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(4, 2, generator=generator) for _ in range(num_batches)]


class TwoRanks(OneProcess):
    """The first of two processes; it is told what the other one answers."""

    world_size = 2
    num_data_ranks = 2  # type: ignore[assignment]

    def __init__(self, answers: list[Any]) -> None:
        self.answers = answers
        self.asked: list[Tensor] = []

    def all_gather(self, value: Any) -> list[Any]:
        self.asked.append(value)
        return [value, self.answers.pop(0)]


def test_one_process_has_the_statistics_of_torch() -> None:
    own, reference = network(), network()
    update_batch_norm(own, batches(), own, OneProcess())  # type: ignore[arg-type]
    update_bn(batches(), reference)
    for name, value in reference.state_dict().items():
        assert torch.equal(own.state_dict()[name], value), name
    assert [layer.momentum for layer in batch_norms(own)] == [0.1, 0.3]


def test_two_processes_have_the_mean_over_the_batches_of_both() -> None:
    reference, other = network(), network()
    other_batches = [batch + 1 for batch in batches(3)]
    update_bn(other_batches, other)
    count = torch.tensor(3.0)
    sums = torch.cat(
        [part for layer in batch_norms(other) for part in (count[None], layer.running_mean * 3, layer.running_var * 3)]
    )
    own = network()
    # the other process has three batches, so the fourth of this one is not used
    strategy = TwoRanks([torch.tensor(1)] * 3 + [torch.tensor(0), sums])
    update_batch_norm(own, batches(5), own, strategy)  # type: ignore[arg-type]
    assert not strategy.answers
    update_bn([*batches(3), *other_batches], reference)
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(own.state_dict()[name], value, msg=name)


def test_frozen_layers_stay_as_they_are() -> None:
    module = network()
    module[1].eval()
    module[3].track_running_stats = False
    before = {name: value.clone() for name, value in module.state_dict().items()}
    module.append(nn.BatchNorm1d(2))
    assert batch_norms(module) == [module[4]] and batch_norm_buffers(module).keys() == {
        "4.running_mean",
        "4.running_var",
        "4.num_batches_tracked",
    }
    update_batch_norm(module, batches(), module, OneProcess())  # type: ignore[arg-type]
    for name, value in before.items():
        assert torch.equal(module.state_dict()[name], value), name
    assert module[4].num_batches_tracked == 5


def test_an_error_or_no_batch_leaves_the_momentum_as_it_was() -> None:
    module = network()
    with pytest.raises(RuntimeError, match="`train loader` must give batches again after training"):
        update_batch_norm(module, iter(()), module, OneProcess())  # type: ignore[arg-type]
    with pytest.raises(ZeroDivisionError):
        update_batch_norm(module, batches(), lambda batch: 1 / 0, OneProcess())  # type: ignore[arg-type]
    assert [layer.momentum for layer in batch_norms(module)] == [0.1, 0.3]
