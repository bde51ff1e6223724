"""The kit on a training loop on Accelerate, in the order that Accelerate's documentation shows."""

from __future__ import annotations

from typing import Any

from accelerate import Accelerator
from certify.framework import Framework, Line, Stage, life_of, loader, sanity_check, sgd

from camshaft.hooks_core import resolve
from camshaft.hooks_core.conformance import FEATURES, Adapter, Scenario
from camshaft.hooks_core.spec import SKIP_EPOCH


def fit(accelerator: Accelerator, hooks: Any, module: Any, scenario: Scenario) -> None:
    module, optimizer, batches = accelerator.prepare(module, sgd(module), loader(scenario.num_batches))
    every = scenario.val_check_interval or scenario.num_batches
    stage = Stage(hooks, "train")
    hooks.on_fit_start()
    if scenario.num_sanity_val_batches:
        sanity_check(hooks, accelerator.prepare(loader(scenario.num_sanity_val_batches)))
    stage.call("start")
    for _ in range(scenario.num_epochs):
        stage.call("epoch_start")
        for batch in batches:
            if stage.call("batch_start", batch) == SKIP_EPOCH:
                break
            with accelerator.accumulate(module):
                loss = update(accelerator, hooks, optimizer, stage.step(batch))
            stage.call("batch_end", batch, loss)
            if scenario.num_val_batches and stage.batch_idx % every == 0:
                Stage(hooks, "validate").run(accelerator.prepare(loader(scenario.num_val_batches)))
        stage.call("epoch_end")
    stage.call("end")
    hooks.on_fit_end()


def update(accelerator: Accelerator, hooks: Any, optimizer: Any, loss: Any) -> Any:
    """Go back from the loss and update; within a window, Accelerate leaves the update and the zeroing out."""
    if loss is None:
        return None
    hooks.on_before_backward(loss)
    accelerator.backward(loss)
    hooks.on_after_backward()
    if accelerator.sync_gradients:
        hooks.on_before_optimizer_step(optimizer)
    optimizer.step()
    if accelerator.sync_gradients:
        hooks.on_before_zero_grad(optimizer)
    optimizer.zero_grad()
    return loss.detach()


def run(scenario: Scenario, module: Line, callbacks: list[Any]) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=scenario.accumulate_grad_batches)
    hooks: Any = resolve(callbacks=callbacks, module=module)
    with life_of(hooks, scenario.verb):
        if scenario.verb == "fit":
            fit(accelerator, hooks, module, scenario)
        else:
            Stage(hooks, scenario.verb).run(accelerator.prepare(loader(scenario.num_batches)))


FRAMEWORK = Framework(
    title="Accelerate",
    about="A loop of one page on an `Accelerator`, in the order of its documentation, which calls every hook itself.",
    distributions=("accelerate",),
    adapter=Adapter(run, Line),
    features=tuple(FEATURES.keys() - {"optimizer_step"}),
    zero_grad="after_optimizer_step",
)
