"""The kit on the `Trainer` of Hugging Face's transformers."""

from __future__ import annotations

import tempfile
from functools import partial
from typing import Any

import torch
from certify.framework import OF_A_TRAINER, RECEIVERS, Framework, Line, Stage
from transformers import Trainer, TrainerCallback, TrainingArguments

from camshaft.hooks_core import resolve
from camshaft.hooks_core.conformance import FEATURES, Adapter, Scenario
from camshaft.hooks_core.spec import SKIP_EPOCH

CALLS = {"on_train_begin": "start", "on_epoch_begin": "epoch_start", "on_step_begin": "batch_start"}
CALLS |= {"on_substep_end": "batch_end", "on_step_end": "batch_end", "on_epoch_end": "epoch_end", "on_train_end": "end"}
EVALUATION_CALLS = {"on_prediction_step": "batch_end", "on_evaluate": "end", "on_predict": "end"}
NOT_IN_EVALUATION = ("start", "epoch_start", "batch_start", "epoch_end")
WITHOUT = [f"on_{word}_{moment}" for word in ("validation", "predict") for moment in NOT_IN_EVALUATION]
OPTIMIZER_CALLS = {"on_pre_optimizer_step": "on_before_optimizer_step", "on_optimizer_step": "on_before_zero_grad"}


class Forwarding(TrainerCallback):
    def __init__(self, hooks: Any, train: Stage, evaluation: Stage) -> None:
        forwarded = {event: partial(train.call, moment) for event, moment in CALLS.items()}
        forwarded |= {event: partial(evaluation.call, moment) for event, moment in EVALUATION_CALLS.items()}
        forwarded |= {event: partial(getattr(hooks, hook), None) for event, hook in OPTIMIZER_CALLS.items()}
        for event, function in forwarded.items():
            setattr(self, event, self.forward(function))

    def forward(self, function: Any) -> Any:
        def call(args: Any, state: Any, control: Any, **others: Any) -> None:
            if function() == SKIP_EPOCH:
                control.should_epoch_stop = True

        return call


class SteppingTrainer(Trainer):
    """Takes its steps from the module; overriding these methods is how the class is customized."""

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        return self.train_stage.step(inputs["batch"])

    def prediction_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        self.evaluation_stage.step(inputs["batch"])
        return None, None, None


def run(scenario: Scenario, module: Line, callbacks: list[Any]) -> None:
    hooks: Any = resolve(callbacks=callbacks, module=module)
    stages = Stage(hooks, "train"), Stage(hooks, "predict" if scenario.verb == "predict" else "validate")
    data, val_data = ([{"batch": torch.ones(2)}] * num for num in (scenario.num_batches, scenario.num_val_batches))
    settings: dict[str, Any] = {"eval_strategy": "epoch"} if scenario.num_val_batches else {}
    if scenario.val_check_interval:
        settings = {"eval_strategy": "steps", "eval_steps": scenario.val_check_interval}
    settings |= {"per_device_train_batch_size": 1, "per_device_eval_batch_size": 1, "remove_unused_columns": False}
    settings |= {"use_cpu": True, "report_to": "none", "save_strategy": "no", "disable_tqdm": True}
    settings |= {"num_train_epochs": scenario.num_epochs, "eval_on_start": scenario.num_sanity_val_batches > 0}
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(folder, gradient_accumulation_steps=scenario.accumulate_grad_batches, **settings)
        trainer = SteppingTrainer(module, arguments, train_dataset=data, eval_dataset=val_data or data)
        trainer.train_stage, trainer.evaluation_stage = stages
        trainer.add_callback(Forwarding(hooks, *stages))
        {"fit": trainer.train, "validate": trainer.evaluate, "predict": lambda: trainer.predict(data)}[scenario.verb]()


FRAMEWORK = Framework(
    title="transformers",
    about="`Trainer`, with a `TrainerCallback` and the methods overridden that compute a loss and evaluate a batch.",
    distributions=("transformers", "accelerate"),
    adapter=Adapter(run, Line),
    verbs=("fit", "validate", "predict"),
    features=tuple(FEATURES.keys() - {"skip_update", "optimizer_step", "exceptions", *RECEIVERS}),
    without=(*OF_A_TRAINER, "on_exception", *WITHOUT),
    zero_grad="after_optimizer_step",
)
