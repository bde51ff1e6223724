"""A second trainer in a hook of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torchmetrics
from torch import Tensor
from trainer_parts import ListLogger, Regression, RegressionData, assert_same, loader, quiet_trainer, weights

from camshaft.hooks_core import Callback

pytestmark = pytest.mark.exhaustive

HOOKS = [
    *("setup", "on_fit_start", "on_train_start", "on_train_epoch_start", "on_train_batch_start", "on_train_batch_end"),
    *("on_validation_start", "on_validation_batch_end", "on_validation_epoch_end", "on_validation_end"),
    *("on_train_epoch_end", "on_train_end"),
]


class Measuring(Regression):
    """Has a metric, a buffer and a frozen part in evaluation mode."""

    def __init__(self) -> None:
        super().__init__(dropout=0.5)
        self.metric = torchmetrics.MeanMetric()
        self.register_buffer("offset", torch.zeros(1))
        self.frozen = torch.nn.Dropout(0.5).eval()

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        self.metric(batch_idx)
        self.log("metric", self.metric, on_step=False, on_epoch=True)

    def on_train_epoch_end(self) -> None:
        if self.training:
            self.log("end", 1.0)


def state_of(trainer: Any, module: Any) -> dict[str, Any]:
    return {
        "trainer": module.trainer is trainer,
        "modes": [part.training for part in module.modules()],
        "grad": torch.is_grad_enabled(),
        "metric": module.metric.metric_state,
        "tensors": {name: (value.device, value.dtype, value.clone()) for name, value in module.state_dict().items()},
        "metrics": dict(trainer.callback_metrics),
        "epoch": (trainer.current_epoch, trainer.global_step),
    }


class Nesting(Callback):
    """Does something once in a hook; random numbers are as before."""

    def __init__(self, hook: str, action: Any) -> None:
        self.action, self.num_calls = action, 0

        def call(trainer: Any, module: Any, *rest: Any) -> None:
            if self.num_calls:
                return
            self.num_calls += 1
            with torch.random.fork_rng():
                before = state_of(trainer, module)
                self.action(trainer, module)
                assert_same(state_of(trainer, module), before)

        rest = {"setup": "stage", "on_train_batch_start": "batch, batch_idx"}
        rest |= dict.fromkeys(("on_train_batch_end", "on_validation_batch_end"), "outputs, batch, batch_idx")
        names = f"trainer, module, {rest[hook]}" if hook in rest else "trainer, module"
        setattr(self, hook, eval(f"lambda {names}: call(trainer, module)", {"call": call}))


def fitted(tmp_path: Path, *callbacks: Any) -> tuple[Any, Any, ListLogger]:
    torch.manual_seed(0)
    module, logger = Measuring(), ListLogger()
    trainer = quiet_trainer(
        tmp_path, callbacks=list(callbacks), logger=logger, log_every_n_steps=1, max_epochs=2, num_sanity_val_steps=0
    )
    trainer.fit(module, loader(4), loader(3))
    return trainer, module, logger


@pytest.mark.parametrize(
    ("verb", "hook"),
    [*(("validate", hook) for hook in HOOKS), ("test", "on_train_batch_end"), ("predict", "on_validation_epoch_end")],
)
def test_a_fit_goes_on_as_before_after_another_trainer_had_its_module(tmp_path: Path, verb: str, hook: str) -> None:
    def use(trainer: Any, module: Any) -> None:
        other = quiet_trainer(tmp_path, precision="64-true")
        keywords = {} if verb == "predict" else {"verbose": False}
        assert len(getattr(other, verb)(module, loader(3), **keywords)) > 0

    plain_trainer, plain_module, plain_logger = fitted(tmp_path)
    nesting = Nesting(hook, use)
    trainer, module, logger = fitted(tmp_path, nesting)
    assert nesting.num_calls == 1
    assert_same(weights(module), weights(plain_module))
    assert logger.rows == plain_logger.rows
    assert_same(dict(trainer.callback_metrics), dict(plain_trainer.callback_metrics))


@pytest.mark.parametrize(
    "hook", ["on_fit_start", "on_train_batch_end", "on_validation_epoch_end", "on_train_epoch_end"]
)
def test_a_fit_goes_on_as_before_after_another_trainer_fitted_another_module(tmp_path: Path, hook: str) -> None:
    def use(trainer: Any, module: Any) -> None:
        other = quiet_trainer(tmp_path)
        other.fit(student := Regression(), loader(2))
        assert other.global_step == 2 and student.trainer is other

    _, plain_module, plain_logger = fitted(tmp_path)
    _, module, logger = fitted(tmp_path, Nesting(hook, use))
    assert_same(weights(module), weights(plain_module))
    assert logger.rows == plain_logger.rows


def test_an_error_in_the_other_trainer_that_a_hook_catches_leaves_the_fit_alone(tmp_path: Path) -> None:
    def use(trainer: Any, module: Any) -> None:
        with pytest.raises(TypeError, match="no batch"):
            quiet_trainer(tmp_path).validate(module, loader(1), verbose=False)

    def loss(self: Any, batch: Any) -> Any:
        raise TypeError("no batch")

    class Failing(Callback):
        def on_train_start(self, trainer: Any, module: Any) -> None:
            real, type(module).loss = type(module).loss, loss
            try:
                use(trainer, module)
            finally:
                type(module).loss = real
            assert module.trainer is trainer and module.training

    assert fitted(tmp_path, Failing())[0].global_step == 8


def test_weights_that_another_trainer_trained_stay_trained_in_their_number_format(tmp_path: Path) -> None:
    class Training(Callback):
        def on_fit_start(self, trainer: Any, module: Any) -> None:
            before = module.layer.weight.detach().clone()
            quiet_trainer(tmp_path, precision="64-true").fit(module, loader(2))
            assert module.layer.weight.dtype == torch.float32 and not torch.equal(module.layer.weight, before)
            assert module.trainer is trainer

    fitted(tmp_path, Training())


def test_a_data_module_knows_the_trainer_that_runs_again(tmp_path: Path) -> None:
    data = RegressionData()

    class Sharing(Callback):
        def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
            quiet_trainer(tmp_path).validate(module, datamodule=data, verbose=False)
            assert data.trainer is trainer and module.trainer is trainer

    trainer = quiet_trainer(tmp_path, callbacks=Sharing())
    trainer.fit(Regression(), datamodule=data)
    assert data.trainer is trainer


def test_a_callback_of_both_trainers_logs_for_the_one_that_runs(tmp_path: Path) -> None:
    class Shared(Callback):
        def on_validation_epoch_end(self, trainer: Any, module: Any) -> None:
            self.log("shared", 1.0)

        def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
            quiet_trainer(tmp_path, callbacks=self).validate(Regression(), loader(1), verbose=False)
            self.log("after", 2.0)

    trainer = quiet_trainer(tmp_path, callbacks=Shared())
    trainer.fit(Regression(), loader(1), loader(1))
    assert trainer.callback_metrics["after"] == 2


def test_a_module_that_no_run_has_stays_with_the_latest_trainer(tmp_path: Path) -> None:
    first, second, module = quiet_trainer(tmp_path), quiet_trainer(tmp_path), Regression()
    first.validate(module, loader(1), verbose=False)
    second.validate(module, loader(1), verbose=False)
    assert module.trainer is second


@pytest.mark.parametrize("verb", ["fit", "validate", "test", "predict"])
def test_a_verb_of_the_trainer_that_runs_is_refused_and_the_fit_may_go_on(tmp_path: Path, verb: str) -> None:
    class Again(Callback):
        def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
            with pytest.raises(RuntimeError, match=rf"`{verb}` cannot be called while .* Use another trainer"):
                getattr(trainer, verb)(module, loader(1))
            assert module.trainer is trainer

    trainer = quiet_trainer(tmp_path, callbacks=Again(), max_epochs=2)
    trainer.fit(Regression(), loader(2), loader(1))
    assert trainer.global_step == 4
