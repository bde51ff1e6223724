"""The kit on Ignite's engines for supervised training and evaluation."""

from __future__ import annotations

from typing import Any

from certify.framework import OF_A_TRAINER, RECEIVERS, Framework, Line, Stage, loader, sgd
from ignite.engine import Engine, Events, create_supervised_evaluator, create_supervised_trainer

from camshaft.hooks_core import resolve
from camshaft.hooks_core.conformance import FEATURES, Adapter, Scenario
from camshaft.hooks_core.spec import SKIP_EPOCH

BATCH = {"prepare_batch": lambda batch, device, non_blocking: (batch, None)}
MOMENTS = {
    Events.STARTED: "start",
    Events.EPOCH_STARTED: "epoch_start",
    Events.ITERATION_COMPLETED: "batch_end",
    Events.EPOCH_COMPLETED: "epoch_end",
    Events.COMPLETED: "end",
}


def forward(engine: Engine, stage: Stage) -> Engine:
    """Let an engine's events call a stage's hooks."""
    for event, moment in MOMENTS.items():
        engine.add_event_handler(event, lambda _, moment: stage.call(moment), moment)

    @engine.on(Events.ITERATION_STARTED)
    def start_batch() -> None:
        if stage.call("batch_start", engine.state.batch) == SKIP_EPOCH:
            engine.terminate_epoch()

    return engine


def evaluator(module: Line, stage: Stage) -> Engine:
    return forward(create_supervised_evaluator(module, **BATCH, model_fn=lambda _, batch: stage.step(batch)), stage)


def trainer(module: Line, hooks: Any, scenario: Scenario) -> Engine:
    stage = Stage(hooks, "train")
    engine = create_supervised_trainer(
        module,
        sgd(module, hooks),
        loss_fn=lambda loss, _: loss,
        **BATCH,
        model_fn=lambda _, batch: stage.step(batch),
        gradient_accumulation_steps=scenario.accumulate_grad_batches,
    )
    forward(engine, stage)
    if scenario.num_val_batches:
        validation, data = evaluator(module, Stage(hooks, "validate")), loader(scenario.num_val_batches)
        every = Events.ITERATION_COMPLETED(every=scenario.val_check_interval or scenario.num_batches)
        engine.add_event_handler(every, lambda: validation.run(data))
    return engine


def run(scenario: Scenario, module: Line, callbacks: list[Any]) -> None:
    hooks: Any = resolve(callbacks=callbacks, module=module)
    fits = scenario.verb == "fit"
    engine = trainer(module, hooks, scenario) if fits else evaluator(module, Stage(hooks, scenario.verb))

    @engine.on(Events.EXCEPTION_RAISED)
    def report(error: BaseException) -> None:
        hooks.on_exception(error)
        raise error

    engine.run(loader(scenario.num_batches), max_epochs=scenario.num_epochs)


FRAMEWORK = Framework(
    title="Ignite",
    about="`create_supervised_trainer` and `create_supervised_evaluator`, with handlers of their events.",
    distributions=("pytorch-ignite",),
    adapter=Adapter(run, Line),
    features=tuple(FEATURES.keys() - {"sanity_check", "skip_update", "optimizer_step", *RECEIVERS}),
    without=(*OF_A_TRAINER, "on_before_zero_grad"),
)
