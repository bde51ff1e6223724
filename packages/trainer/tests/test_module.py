"""The module without and with a trainer, and built from a checkpoint."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from camshaft.hooks_core import CATALOGUE, Receiver, is_overridden, resolve
from camshaft.loops import WeightedLoss
from camshaft.loops.metrics import MetricLog
from camshaft.strategies import SingleDeviceStrategy
from camshaft.trainer.module import TrainingModule
from camshaft.trainer.running import attach_module


class Regression(TrainingModule):
    def __init__(self, width: int = 2, scale: float = 1.0) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layer = nn.Linear(width, 1)
        self.part = TrainingModule()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.hparams.scale

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        loss = self(batch).square().mean()
        self.log("loss", loss)
        return loss


def trainer_for(module: nn.Module, **attributes: object) -> SimpleNamespace:
    strategy = SingleDeviceStrategy("cpu")
    trainer = SimpleNamespace(
        strategy=strategy,
        hooks=resolve(module=module),
        current_epoch=3,
        global_step=12,
        logger="first",
        loggers=["first", "second"],
        optimizers=[],
        lr_scheduler_configs=[],
    )
    vars(trainer).update(attributes)
    attach_module(module, trainer, None)
    return trainer


def test_a_step_can_be_tested_without_a_trainer() -> None:
    module = Regression()
    loss = module.training_step(torch.ones(3, 2), 0)
    assert module.logged_metrics == {"loss": loss.detach()}
    module.log_dict({"a": 1.0, "b": 2.0}, prog_bar=True)
    assert module.logged_metrics == {"loss": loss.detach(), "a": 1.0, "b": 2.0}


def test_without_a_trainer_the_run_looks_unstarted() -> None:
    module = Regression()
    assert (module.current_epoch, module.global_step, module.global_rank, module.local_rank) == (0, 0, 0, 0)
    assert (module.logger, module.loggers) == (None, [])
    for ask in (lambda: module.trainer, module.optimizers, module.lr_schedulers):
        with pytest.raises(RuntimeError, match=r"`trainer` must be attached, but got None \(NoneType\) in Regression"):
            ask()


def test_the_device_is_that_of_the_weights() -> None:
    assert Regression().device == torch.device("cpu")
    assert Regression().to("meta").device == torch.device("meta")
    module = TrainingModule()
    assert module.device == torch.device("cpu")
    trainer_for(module, strategy=SimpleNamespace(device=torch.device("meta")))
    assert module.device == torch.device("meta")
    module.register_buffer("mean", torch.zeros(1))
    assert module.device == torch.device("cpu")


def test_nothing_of_the_base_class_counts_as_implemented() -> None:
    for spec in CATALOGUE.received_by(Receiver.MODULE):
        assert not is_overridden(TrainingModule(), spec.name), spec.name
    assert resolve(module=TrainingModule()).predict_step is None
    assert resolve(module=Regression()).training_step is not None


def test_every_hook_of_a_module_can_be_overridden_with_its_name() -> None:
    for spec in CATALOGUE.received_by(Receiver.MODULE):
        assert hasattr(TrainingModule, spec.name), spec.name


@pytest.mark.parametrize("step", ["training_step", "validation_step", "test_step", "configure_optimizers"])
def test_a_missing_step_says_so_when_it_is_called(step: str) -> None:
    with pytest.raises(NotImplementedError, match=rf"`{step}` is not implemented in .*Define `{step}\("):
        getattr(TrainingModule(), step)()


def test_predicting_calls_the_module_by_default() -> None:
    module, batch = Regression(), torch.ones(3, 2)
    assert torch.equal(module.predict_step(batch, 0), module(batch))
    assert torch.equal(module.predict_step(batch=batch, batch_idx=0), module(batch))


def test_an_attached_module_reads_its_trainer() -> None:
    module = Regression()
    trainer = trainer_for(module)
    for held in (module, module.part):
        assert held.trainer is trainer
        assert (held.current_epoch, held.global_step, held.logger) == (3, 12, "first")
        assert held.loggers == ["first", "second"]


def test_being_attached_leaves_no_trace_in_the_module() -> None:
    module = Regression()
    names, keys = [name for name, _ in module.named_modules()], list(module.state_dict())
    trainer_for(module, a_module=nn.Linear(1, 1))
    module.log("x", 1.0)
    assert [name for name, _ in module.named_modules()] == names
    assert list(module.state_dict()) == keys


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, lambda module: pickle.loads(pickle.dumps(module))])
def test_copies_leave_the_trainer_and_the_log_behind(copied) -> None:
    module = Regression(width=4)
    trainer_for(module, unpicklable=lambda: None)
    module.training_step(torch.ones(3, 4), 0)
    other = copied(module)
    assert other.hparams == {"width": 4, "scale": 1.0}
    assert torch.equal(other.layer.weight, module.layer.weight)
    assert other.logged_metrics == {}
    with pytest.raises(RuntimeError, match="`trainer` must be attached"):
        _ = other.trainer
    assert module.trainer is not None


def test_an_attached_module_and_its_parts_log_to_the_metric_log() -> None:
    metrics = MetricLog(progress=SimpleNamespace(current_epoch=0, global_step=0))
    module = Regression()
    attach_module(module, SimpleNamespace(), metrics)
    metrics.start_epoch("train")
    metrics.moment, metrics.batch = "batch", torch.ones(3, 2)
    module.training_step(torch.ones(3, 2), 0)
    module.part.log_dict({"a": 1.0}, on_epoch=True, batch_size=2)
    assert set(metrics.callback_metrics) == {"loss", "a", "a_step"}
    assert set(module.logged_metrics) == {"loss", "a_step"}


def test_attaching_a_foreign_module_does_nothing() -> None:
    module = nn.Linear(1, 1)
    attributes = set(vars(module))
    attach_module(module, SimpleNamespace(), None)
    assert set(vars(module)) == attributes


def test_one_optimizer_comes_alone_and_several_as_a_list() -> None:
    module = Regression()
    trainer = trainer_for(module, optimizers=["a"], lr_scheduler_configs=[SimpleNamespace(scheduler="s")])
    assert (module.optimizers(), module.lr_schedulers()) == ("a", "s")
    trainer.optimizers, trainer.lr_scheduler_configs = ["a", "b"], [SimpleNamespace(scheduler=name) for name in "st"]
    assert (module.optimizers(), module.lr_schedulers()) == (["a", "b"], ["s", "t"])
    trainer.lr_scheduler_configs = []
    assert module.lr_schedulers() is None


class Manual(Regression):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.calls: list[str] = []

    def on_before_backward(self, loss: torch.Tensor) -> None:
        self.calls.append(f"before {loss.item()} {self.layer.weight.grad is None}")

    def on_after_backward(self) -> None:
        self.calls.append(f"after {self.layer.weight.grad is None}")


class ManualWithBackward(Manual):
    def backward(self, loss: torch.Tensor) -> None:
        self.calls.append("backward")
        super().backward(loss)


@pytest.mark.parametrize(("kind", "own"), [(Manual, []), (ManualWithBackward, ["backward"])])
def test_manual_backward_calls_the_hooks_around_it(kind: type[Manual], own: list[str]) -> None:
    module = kind()
    trainer_for(module)
    module.manual_backward(module.layer.weight.sum() * 0 + 2)
    assert module.calls == ["before 2.0 True", *own, "after False"]


def test_backward_goes_through_the_strategy_of_the_trainer() -> None:
    module, given = ManualWithBackward(), []
    strategy = SimpleNamespace(backward=lambda loss, differentiate: given.append(loss))
    trainer_for(module, strategy=strategy)
    module.manual_backward(torch.tensor(2.0))
    assert given == [torch.tensor(2.0)]


def test_manual_backward_is_for_manual_optimization() -> None:
    module = Regression()
    with pytest.raises(RuntimeError, match="`trainer` must be attached"):
        module.manual_backward(torch.tensor(1.0))
    trainer_for(module)
    with pytest.raises(RuntimeError, match=r"`automatic_optimization` must be False, but got True .*manual_backward"):
        module.manual_backward(torch.tensor(1.0))


def test_manual_backward_takes_no_weighted_loss() -> None:
    module = Regression()
    module.automatic_optimization = False
    trainer_for(module)
    with pytest.raises(TypeError, match=r"`loss` must be a tensor, but got .*WeightedLoss.* in Regression\.manual"):
        module.manual_backward(WeightedLoss(torch.tensor(1.0, requires_grad=True), 3))  # type: ignore[arg-type]


@pytest.mark.parametrize("attached", [False, True])
def test_gradients_are_clipped(attached: bool) -> None:
    module = Regression()
    if attached:
        trainer_for(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)

    def gradient_after(*arguments: object) -> torch.Tensor:
        for parameter in module.parameters():
            parameter.grad = torch.full_like(parameter, 3.0)
        module.clip_gradients(optimizer, *arguments)
        return torch.cat([parameter.grad.flatten() for parameter in module.parameters()])

    assert float(gradient_after(1.0).norm()) == pytest.approx(1.0, rel=1e-4)
    assert float(gradient_after(1.0, "norm").norm()) == pytest.approx(1.0, rel=1e-4)
    assert gradient_after(0.5, "value").tolist() == [0.5, 0.5, 0.5]
    assert gradient_after(None).tolist() == [3.0, 3.0, 3.0]
    with pytest.raises(ValueError, match="algorithm` must be 'norm' or 'value', but got 'l1'"):
        gradient_after(1.0, "l1")


def test_only_the_first_process_prints(capsys: pytest.CaptureFixture[str]) -> None:
    module = Regression()
    module.print("one", "two", sep="-")
    trainer_for(module, global_rank=1)
    module.print("three")
    assert capsys.readouterr().out == "one-two\n"


def test_its_type_is_that_of_its_weights() -> None:
    module = Regression()
    assert module.dtype == torch.float32
    assert module.half().dtype == torch.float16
    assert module.double().dtype == torch.float64
    assert TrainingModule().dtype == torch.get_default_dtype()


def test_gathering_on_one_device_leaves_data_as_it_is() -> None:
    module = Regression()
    with pytest.raises(RuntimeError, match="`trainer` must be attached"):
        module.all_gather(1.0)
    attach_module(module, trainer_for(module), None)
    tensor = torch.ones(2)
    gathered = module.all_gather({"a": [tensor, 1, 2.0, True, "text"]})["a"]
    assert torch.equal(gathered[0], tensor) and gathered[4] == "text"
    assert [one.dtype for one in gathered[1:4]] == [torch.int32, torch.float32, torch.uint8]


def test_freezing_and_unfreezing() -> None:
    module = Regression()
    module.freeze()
    assert not module.training
    assert not any(parameter.requires_grad for parameter in module.parameters())
    module.unfreeze()
    assert module.training
    assert all(parameter.requires_grad for parameter in module.parameters())


def test_a_trainer_can_be_assigned_and_deleted() -> None:
    class Outer(TrainingModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner = TrainingModule()

    module, trainer = Outer(), SimpleNamespace(current_epoch=3)
    module.trainer = trainer
    assert module.trainer is trainer and module.inner.trainer is trainer and module.current_epoch == 3
    del module.trainer
    for part in (module, module.inner):
        with pytest.raises(RuntimeError, match="`trainer` must be attached"):
            _ = part.trainer
    assert module.current_epoch == 0


@pytest.mark.parametrize("example", [torch.zeros(2, 3), (torch.zeros(2, 3),), {"inputs": torch.zeros(2, 3)}])
@pytest.mark.parametrize("method", ["script", "trace"])
def test_torchscript_is_made_of_a_module_with_an_example(method: str, example: Any) -> None:
    class Own(TrainingModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 1)
            self.example_input_array = example

        def forward(self, inputs: Tensor) -> Tensor:
            outputs: Tensor = self.layer(inputs)
            return outputs

    module = Own()
    inputs = torch.ones(4, 3)
    assert torch.equal(module.to_torchscript(method=method)(inputs), module(inputs))
