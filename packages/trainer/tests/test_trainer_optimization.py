"""How a trainer's module optimizes: splits along time, one optimizer at work, where gradients are zeroed."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from trainer_parts import (
    NO_VALIDATION,
    ListLogger,
    Regression,
    Twins,
    assert_same,
    loader,
    own_frames,
    quiet_trainer,
    weights,
)

from camshaft.callbacks import BatchSizeFinder, LearningRateFinder, ModelCheckpoint
from camshaft.loops.optimization.update import LossError
from camshaft.strategies import SingleDeviceStrategy
from camshaft.strategies.precision import ScaledPrecision
from camshaft.trainer import TrainingModule

pytestmark = pytest.mark.filterwarnings(NO_VALIDATION)

MOST_FRAMES = 7


class Sequences(TrainingModule):
    """Foretells the next number of a sequence."""

    def __init__(self, steps: int | None = None) -> None:
        super().__init__()
        if steps is not None:
            self.truncated_bptt_steps = steps
        self.recurrent = nn.GRU(1, 4, batch_first=True)
        self.head = nn.Linear(4, 1)
        self.frames: list[str] = []
        self.estimate: float = 0

    def training_step(self, batch: list[Tensor], batch_idx: int, hiddens: Tensor | None) -> dict[str, Any]:
        self.frames = own_frames()
        inputs, targets = batch
        outputs, hiddens = self.recurrent(inputs, hiddens)
        loss = nn.functional.mse_loss(self.head(outputs), targets)
        self.log("loss", loss, on_step=True, on_epoch=True)
        return {"loss": loss, "hiddens": hiddens}

    def configure_optimizers(self) -> Any:
        self.estimate = self.trainer.estimated_stepping_batches
        return torch.optim.SGD(self.parameters(), lr=0.1)


def sequences(length: int = 7, num_batches: int = 3) -> DataLoader[Any]:
    series = torch.randn(2 * num_batches, length + 1, 1, generator=torch.Generator().manual_seed(3))
    return DataLoader(TensorDataset(series[:, :-1], series[:, 1:]), batch_size=2)


def test_sequences_are_trained_on_split_by_split_as_by_hand(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Sequences()
    by_hand = copy.deepcopy(module)
    logger = ListLogger()
    trainer = quiet_trainer(tmp_path, truncated_bptt_steps=3, max_epochs=2, logger=logger, log_every_n_steps=1)
    trainer.fit(module, sequences())

    optimizer = torch.optim.SGD(by_hand.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        for inputs, targets in sequences():
            hiddens = None
            for x, y in zip(inputs.split(3, dim=1), targets.split(3, dim=1), strict=True):
                outputs, hiddens = by_hand.recurrent(x, hiddens)
                loss = nn.functional.mse_loss(by_hand.head(outputs), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                hiddens = hiddens.detach()
                losses.append(loss.item())
    assert_same(weights(module), weights(by_hand))
    assert trainer.global_step == 2 * 3 * 3
    rows = [(step, row["loss_step"]) for step, row in logger.rows if "loss_step" in row]
    assert rows == [(idx, pytest.approx(losses[idx])) for idx in range(18)]
    assert len(module.frames) <= MOST_FRAMES, module.frames


def test_the_modules_attribute_splits_as_the_argument_does(tmp_path: Path) -> None:
    trained = []
    for module, arguments in ((Sequences(), {"truncated_bptt_steps": 2}), (Sequences(steps=2), {})):
        torch.manual_seed(0)
        for part in module.modules():
            if hasattr(part, "reset_parameters"):
                part.reset_parameters()
        quiet_trainer(tmp_path, **arguments).fit(module, sequences())
        trained.append(weights(module))
    assert_same(trained[0], trained[1])
    assert Sequences.truncated_bptt_steps is None


@pytest.mark.parametrize(("max_steps", "expected"), [(-1, float("inf")), (5, 5)])
def test_how_many_updates_splits_will_make_is_not_known(max_steps: int, expected: float, tmp_path: Path) -> None:
    module = Sequences(steps=2)
    quiet_trainer(tmp_path, max_steps=max_steps).fit(module, sequences())
    assert module.estimate == expected


def test_checkpoints_every_few_steps_fall_on_the_ends_of_batches(tmp_path: Path) -> None:
    checkpoints = ModelCheckpoint(every_n_train_steps=4, save_top_k=-1, filename="{step}", dirpath=tmp_path)
    trainer = quiet_trainer(
        tmp_path, callbacks=checkpoints, enable_checkpointing=None, max_epochs=1, truncated_bptt_steps=3
    )
    trainer.fit(Sequences(), sequences(num_batches=7))  # three updates each: after 3, 6, 9, 12, 15, 18, 21
    steps = sorted(int(path.stem.split("=")[1]) for path in tmp_path.glob("*.ckpt"))
    assert steps == [6, 9, 12, 18, 21]


def test_one_optimizer_at_work_freezes_the_others_by_hand(tmp_path: Path) -> None:
    class ByHand(Twins):
        automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            first, second = self.optimizers()
            self.toggle_optimizer(first)
            assert self.requiring() == [True, False]
            with pytest.raises(ValueError, match=r"`optimizer` must be the one that was toggled, but got SGD"):
                self.untoggle_optimizer(second)
            self.step(first, batch)
            self.untoggle_optimizer(first)
            assert self.requiring() == [True, True]
            with self.toggled_optimizer(second):
                assert self.requiring() == [False, True]
                self.step(second, batch)
            assert self.requiring() == [True, True]
            self.untoggle_optimizer()
            if batch_idx == 2:
                self.toggle_optimizer(first)
                self.toggle_optimizer(second)
                assert self.requiring() == [False, True]

        def requiring(self) -> list[bool]:
            return [layer.weight.requires_grad for layer in (self.first, self.second)]

        def step(self, optimizer: Any, batch: Any) -> None:
            optimizer.zero_grad()
            self.manual_backward(self.loss(batch))
            optimizer.step()

    module = ByHand()
    before = weights(module)
    quiet_trainer(tmp_path).fit(module, loader(3))
    assert module.requiring() == [True, True]  # the fit ended what the last batch left toggled
    assert not any(torch.equal(before[name], value) for name, value in weights(module).items())


def test_toggling_is_undone_after_an_error_too(tmp_path: Path) -> None:
    class Failing(Twins):
        automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            self.toggle_optimizer(self.optimizers()[1])
            raise KeyError("lost")

    module = Failing()
    with pytest.raises(KeyError, match="lost"):
        quiet_trainer(tmp_path).fit(module, loader())
    assert all(parameter.requires_grad for parameter in module.parameters())


def test_an_optimizer_of_nobody_cannot_be_toggled(tmp_path: Path) -> None:
    module = Regression()
    with pytest.raises(RuntimeError, match=r"`trainer` must be attached"):
        module.toggle_optimizer(torch.optim.SGD(module.parameters(), lr=0.1))
    quiet_trainer(tmp_path).fit(module, loader())
    with pytest.raises(ValueError, match=r"`optimizer` must be one of the fit's optimizers, but got SGD"):
        module.toggle_optimizer(torch.optim.SGD(module.parameters(), lr=0.1))


@pytest.mark.parametrize(
    ("zero_grad", "order"),
    [
        ("before_training_step", ["on_before_zero_grad", "training_step", "backward", "optimizer_step"]),
        ("before_backward", ["training_step", "on_before_zero_grad", "backward", "optimizer_step"]),
        ("after_optimizer_step", ["training_step", "backward", "optimizer_step", "on_before_zero_grad"]),
    ],
)
def test_gradients_are_zeroed_where_it_was_chosen(zero_grad: Any, order: list[str], tmp_path: Path) -> None:
    called: list[str] = []

    class Recording(Regression):
        def on_before_zero_grad(self, optimizer: Any) -> None:
            called.append("on_before_zero_grad")

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            called.append("training_step")
            return super().training_step(batch, batch_idx)

        def on_after_backward(self) -> None:
            called.append("backward")

        def configure_optimizers(self) -> Any:
            optimizer = super().configure_optimizers()
            optimizer.register_step_post_hook(lambda *_: called.append("optimizer_step"))
            return optimizer

    quiet_trainer(tmp_path, zero_grad=zero_grad).fit(Recording(), loader(2))
    assert called == 2 * order


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda loss: loss.repeat(2),
            r"`manual_backward` must be called in `training_step` with a loss with one element, .* \(2,\) in .*ByHand",
        ),
        (lambda loss: loss.detach(), r"with a loss that depends on parameters .* without a graph, of shape \(\), in"),
    ],
)
def test_manual_backward_tells_what_is_wrong_with_a_loss(tmp_path: Path, spoil: Any, message: str) -> None:
    class ByHand(Regression):
        automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            self.manual_backward(spoil(self.loss(batch)))

    with pytest.raises(LossError, match=message):
        quiet_trainer(tmp_path, max_epochs=1).fit(ByHand(), loader())


class Sam(torch.optim.Optimizer):
    """Steps by the gradients at the worst weights nearby."""

    def __init__(self, parameters: Any, lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr})
        self.base = torch.optim.SGD(self.param_groups, lr=lr)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        loss = closure()
        changes = [(one, 0.05 * one.grad.sign()) for group in self.param_groups for one in group["params"]]
        for parameter, change in changes:
            parameter.add_(change)
        closure()
        for parameter, change in changes:
            parameter.sub_(change)
        self.base.step()
        return loss


class Wrapper:
    """An optimizer by its attributes."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


def fitted(root: Path, configure: Any, **arguments: Any) -> Any:
    class Configured(Regression):
        def configure_optimizers(self) -> Any:
            return configure(self.parameters())

    torch.manual_seed(0)
    module = Configured()
    trainer = quiet_trainer(root, **{"max_epochs": 2, **arguments})
    trainer.fit(module, loader(), ckpt_path=arguments.get("ckpt_path"))
    return module


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
def test_an_optimizer_that_evaluates_twice_trains_in_every_precision(tmp_path: Path, precision: str) -> None:
    by_hand = fitted(tmp_path, Sam)
    chosen = ScaledPrecision("cpu", init_scale=64.0) if precision == "16-mixed" else precision
    module = fitted(tmp_path, Sam, strategy=SingleDeviceStrategy("cpu", precision=chosen))
    assert module.trainer.global_step == by_hand.trainer.global_step == 8
    for name, value in weights(module).items():
        torch.testing.assert_close(value, weights(by_hand)[name], rtol=0, atol=2e-2)
    assert not torch.equal(weights(by_hand)["layer.weight"], weights(fitted(tmp_path, torch.optim.SGD))["layer.weight"])


@pytest.mark.parametrize("precision", ["32-true", "16-mixed"])
@pytest.mark.parametrize("strategy", ["auto", "ddp", "fsdp"])
def test_a_wrapper_trains_as_what_it_wraps_under_every_strategy(tmp_path: Path, precision: str, strategy: str) -> None:
    def sgd(parameters: Any) -> Any:
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    arguments: dict[str, Any] = {"precision": precision, "strategy": strategy, "accelerator": "cpu", "devices": 1}
    plain = fitted(tmp_path, sgd, **arguments)
    wrapped = fitted(tmp_path, lambda parameters: Wrapper(sgd(parameters)), **arguments)
    assert_same(weights(wrapped), weights(plain))


@pytest.mark.parametrize("make", [LearningRateFinder, BatchSizeFinder])
def test_finders_step_an_optimizer_that_evaluates_twice(tmp_path: Path, make: Any) -> None:
    class Sized(Regression):
        lr = 0.1

        def __init__(self) -> None:
            super().__init__()
            self.batch_size = 2

        def train_dataloader(self) -> Any:
            return DataLoader(loader().dataset, batch_size=self.batch_size)

        def configure_optimizers(self) -> Any:
            return Sam(self.parameters(), lr=self.lr)

    module = Sized()
    callback = make() if make is LearningRateFinder else make(max_trials=2)
    quiet_trainer(tmp_path, callbacks=[callback], max_epochs=1).fit(module)
    assert module.lr != 0.1 if make is LearningRateFinder else module.batch_size > 2


def test_a_wrapper_is_toggled_as_it_was_returned(tmp_path: Path) -> None:
    class Two(Regression):
        automatic_optimization = False

        def configure_optimizers(self) -> Any:
            self.mine = Wrapper(torch.optim.SGD([self.layer.weight], lr=0.1))
            return [self.mine, torch.optim.SGD([self.layer.bias], lr=0.1)]

        def training_step(self, batch: Any, batch_idx: int) -> None:
            for optimizer in (self.mine, self.optimizers()[0]):
                with self.toggled_optimizer(optimizer):
                    assert (self.layer.weight.requires_grad, self.layer.bias.requires_grad) == (True, False)
            assert self.layer.bias.requires_grad

    quiet_trainer(tmp_path, max_epochs=1).fit(Two(), loader())
