"""The kit on the `Trainer` of MosaicML's Composer."""

from __future__ import annotations

from functools import partial
from typing import Any

import certify.without_torchvision  # noqa: F401
from certify.framework import AROUND_BACKWARD, OF_A_TRAINER, Framework, Line, Stage, loader, sgd
from composer import Callback, Event, Trainer
from composer.models import ComposerModel

from camshaft.hooks_core import resolve
from camshaft.hooks_core.conformance import Adapter, Scenario

TRAIN_CALLS = {"fit_start": "start", "epoch_start": "epoch_start", "batch_start": "batch_start"}
TRAIN_CALLS |= {"batch_end": "batch_end", "epoch_end": "epoch_end", "fit_end": "end"}
CALLS = {"eval_before_all": "start", "eval_standalone_start": "start", "eval_start": "epoch_start"}
CALLS |= {"eval_end": "epoch_end", "eval_after_all": "end", "eval_standalone_end": "end"}
CALLS |= {"eval_batch_start": "batch_start", "eval_batch_end": "batch_end", "predict_start": "start"}
CALLS |= {"predict_batch_start": "batch_start", "predict_batch_end": "batch_end", "predict_end": "end"}
OTHER_CALLS = {"before_train_batch": "on_before_zero_grad", "before_backward": "on_before_backward"}
OTHER_CALLS |= {"after_train_batch": "on_before_optimizer_step"}


class Forwarding(Callback):
    def __init__(self, hooks: Any, train: Stage, evaluation: Stage) -> None:
        self.calls = {event: partial(train.call, moment) for event, moment in TRAIN_CALLS.items()}
        self.calls |= {event: partial(evaluation.call, moment) for event, moment in CALLS.items()}
        self.calls |= {event: partial(getattr(hooks, hook), None) for event, hook in OTHER_CALLS.items()}
        self.calls["after_backward"] = hooks.on_after_backward

    def run_event(self, event: Event, state: Any, logger: Any) -> None:
        self.calls.get(event.value, lambda: None)()


class Model(ComposerModel):
    """Takes its steps from the module; every model of Composer defines these methods."""

    def __init__(self, module: Line, train: Stage, evaluation: Stage) -> None:
        super().__init__()
        self.module, self.train_stage, self.evaluation_stage = module, train, evaluation

    def forward(self, batch: Any) -> Any:
        return (self.train_stage if self.training else self.evaluation_stage).step(batch)

    def loss(self, outputs: Any, batch: Any) -> Any:
        return outputs


def run(scenario: Scenario, module: Line, callbacks: list[Any]) -> None:
    hooks: Any = resolve(callbacks=callbacks, module=module)
    stages = Stage(hooks, "train"), Stage(hooks, "predict" if scenario.verb == "predict" else "validate")
    every = f"{scenario.val_check_interval}ba" if scenario.val_check_interval else "1ep"
    settings: dict[str, Any] = {"device": "cpu", "device_train_microbatch_size": 1, "progress_bar": False}
    settings |= {"max_duration": f"{scenario.num_epochs}ep", "eval_interval": every, "optimizers": sgd(module)}
    settings["train_dataloader"] = loader(scenario.num_batches, scenario.accumulate_grad_batches)
    if scenario.num_val_batches:
        settings["eval_dataloader"] = loader(scenario.num_val_batches)
    trainer = Trainer(model=Model(module, *stages), callbacks=Forwarding(hooks, *stages), **settings)
    data = () if scenario.verb == "fit" else (loader(scenario.num_batches),)
    {"fit": trainer.fit, "validate": trainer.eval, "predict": trainer.predict}[scenario.verb](*data)
    trainer.close()


FRAMEWORK = Framework(
    title="Composer",
    about="`Trainer` with a `ComposerModel`, and a callback of Composer.",
    distributions=("mosaicml",),
    adapter=Adapter(run, Line),
    verbs=("fit", "validate", "predict"),
    features=("validation", "mid_epoch_validation", "accumulation"),
    without=(
        *set(OF_A_TRAINER) - set(AROUND_BACKWARD),
        "on_exception",
        "on_predict_epoch_start",
        "on_predict_epoch_end",
    ),
    zero_grad="before_training_step",
)
