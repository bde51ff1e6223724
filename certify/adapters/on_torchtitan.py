"""The kit on torchtitan's `Trainer`, of which methods are overridden that train and validate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from certify.framework import OF_A_TRAINER, Framework, Line, Stage
from certify.torchtitan_on_cpu import Part, configuration, one_process
from torchtitan.components.validate import Validator
from torchtitan.trainer import Trainer

from camshaft.hooks_core import resolve
from camshaft.hooks_core.conformance import Adapter, Scenario


class SteppingTrainer(Trainer):
    """Calls the hooks of training; a batch of the protocol is one forward and backward."""

    def train(self) -> None:
        self.num_done = 0
        with self.stage.around(("start", "epoch_start"), ("epoch_end", "end")):
            super().train()

    def train_step(self, data_iterator: Any) -> None:
        super().train_step(data_iterator)
        self.stage.call("batch_end")

    def forward_backward_step(self, **batch: Any) -> Any:
        self.num_done += 1
        is_last = self.num_done % self.gradient_accumulation_steps == 0
        with self.stage.around(("batch_start",), () if is_last else ("batch_end",)):
            return super().forward_backward_step(**batch)


class SteppingValidator(Validator):
    @dataclass(kw_only=True, slots=True)
    class Config(Validator.Config):
        stage: Any

    def validate(self, model_parts: Any, step: int) -> None:
        stage = self.config.stage
        self.validation_context = lambda: stage.around(("batch_start",), ("batch_end",))
        with stage.around(("start", "epoch_start"), ("epoch_end", "end")):
            super().validate(model_parts, step)


def run(scenario: Scenario, module: Line, callbacks: list[Any]) -> None:
    hooks: Any = resolve(callbacks=callbacks, module=module)
    train, validate = Stage(hooks, "train"), Stage(hooks, "validate")
    num_batches, window = scenario.num_epochs * scenario.num_batches, scenario.accumulate_grad_batches
    data = [({"input": torch.ones(1, 2)}, torch.zeros(1, dtype=torch.int64))] * num_batches
    every, num_val_batches = scenario.val_check_interval or scenario.num_batches, scenario.num_val_batches
    validator = SteppingValidator.Config(stage=validate, freq=every, steps=num_val_batches or -1, dataloader=Part(data))
    validator.enable = num_val_batches > 0

    def step(model: Any, batch: Any) -> Any:
        return (train if model.training else validate).step(batch)

    with one_process():
        trainer = SteppingTrainer(configuration(module, step, data, num_batches, window, validator=validator))
        trainer.stage = train
        trainer.optimizers.register_step_pre_hook(lambda *_: hooks.on_before_optimizer_step(None))
        trainer.train()
        trainer.close()


FRAMEWORK = Framework(
    title="torchtitan",
    about="`Trainer` and `Validator`, with methods overridden that train and validate. A run is one epoch.",
    distributions=("torchtitan",),
    adapter=Adapter(run, Line),
    verbs=("fit",),
    features=("validation", "mid_epoch_validation", "accumulation"),
    without=(*OF_A_TRAINER, "on_before_zero_grad", "on_exception"),
)
