"""The kit on torchtnt's entry points and its `AutoUnit`."""

from __future__ import annotations

from typing import Any

from certify.framework import OF_A_TRAINER, Framework, Line, Stage, loader, sgd
from torchtnt.framework.auto_unit import AutoUnit
from torchtnt.framework.callback import Callback
from torchtnt.framework.evaluate import evaluate
from torchtnt.framework.fit import fit
from torchtnt.framework.predict import predict
from torchtnt.framework.state import ActivePhase
from torchtnt.framework.train import train

from camshaft.hooks_core import resolve
from camshaft.hooks_core.conformance import Adapter, Scenario

PHASES = {"train": ActivePhase.TRAIN, "eval": ActivePhase.EVALUATE, "predict": ActivePhase.PREDICT}
MOMENTS = ("start", "epoch_start", "step_start", "step_end", "epoch_end", "end")


class Unit(AutoUnit[Any]):
    def __init__(self, module: Line, hooks: Any, accumulate_grad_batches: int) -> None:
        super().__init__(module=module, gradient_accumulation_steps=accumulate_grad_batches)
        self.hooks = hooks
        stages = {ActivePhase.TRAIN: "train", ActivePhase.EVALUATE: "validate", ActivePhase.PREDICT: "predict"}
        self.stages = {phase: Stage(hooks, stage) for phase, stage in stages.items()}

    def configure_optimizers_and_lr_scheduler(self, module: Line) -> Any:
        return sgd(module, self.hooks), None

    def compute_loss(self, state: Any, data: Any) -> Any:
        return self.stages[state.active_phase].step(data), None

    def predict_step(self, state: Any, data: Any) -> Any:
        return self.stages[ActivePhase.PREDICT].step(data)


def forwarding(phase: str, moment: str) -> Any:
    """Return a method of a torchtnt callback that calls our hook."""

    def method(callback: Callback, state: Any, unit: Unit) -> None:
        unit.stages[PHASES[phase]].call(moment.replace("step", "batch"))

    return method


def on_exception(callback: Callback, state: Any, unit: Unit, error: BaseException) -> None:
    unit.hooks.on_exception(error)


METHODS = {f"on_{phase}_{moment}": forwarding(phase, moment) for phase in PHASES for moment in MOMENTS}
Forwarding = type("Forwarding", (Callback,), {**METHODS, "on_exception": on_exception})


def run(scenario: Scenario, module: Line, callbacks: list[Any]) -> None:
    unit = Unit(module, resolve(callbacks=callbacks, module=module), scenario.accumulate_grad_batches)
    settings: dict[str, Any] = {"callbacks": [Forwarding()]}
    if scenario.verb != "fit":
        {"validate": evaluate, "predict": predict}[scenario.verb](unit, loader(scenario.num_batches), **settings)
    elif not scenario.num_val_batches:
        train(unit, loader(scenario.num_batches), max_epochs=scenario.num_epochs, **settings)
    else:
        every = scenario.val_check_interval
        settings |= {"evaluate_every_n_steps": every, "evaluate_every_n_epochs": None if every else 1}
        data = (loader(scenario.num_batches), loader(scenario.num_val_batches))
        fit(unit, *data, max_epochs=scenario.num_epochs, **settings)


FRAMEWORK = Framework(
    title="torchtnt",
    about="`train`, `fit`, `evaluate` and `predict` with an `AutoUnit`, and a callback of torchtnt.",
    distributions=("torchtnt",),
    adapter=Adapter(run, Line),
    verbs=("fit", "validate", "predict"),
    features=("validation", "mid_epoch_validation", "accumulation", "exceptions"),
    without=(*OF_A_TRAINER, "on_before_zero_grad"),
)
