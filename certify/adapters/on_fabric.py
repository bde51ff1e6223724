"""The kit on a training loop on Lightning Fabric, which calls the callbacks by `Fabric.call`."""

from __future__ import annotations

from typing import Any

from certify.framework import Framework, Line, Stage, life_of, loader, sanity_check, sgd
from lightning.fabric import Fabric

from camshaft.hooks_core import resolve
from camshaft.hooks_core.conformance import FEATURES, Adapter, Scenario
from camshaft.hooks_core.spec import SKIP_EPOCH


class Calls:
    """Calls a hook on Fabric's callbacks and then on the module, whose result alone comes back."""

    def __init__(self, fabric: Fabric, module: Any) -> None:
        self.fabric, self.module, self.of_module = fabric, module, resolve(module=module)

    def __getattr__(self, hook: str) -> Any:
        def call(*arguments: Any) -> Any:
            self.fabric.call(hook, self, self.module, *arguments)
            return getattr(self.of_module, hook)(*arguments)

        return call


def fit(fabric: Fabric, hooks: Any, module: Any, scenario: Scenario) -> None:
    module, optimizer = fabric.setup(module, sgd(module))
    every = scenario.val_check_interval or scenario.num_batches
    stage = Stage(hooks, "train")
    hooks.on_fit_start()
    if scenario.num_sanity_val_batches:
        sanity_check(hooks, fabric.setup_dataloaders(loader(scenario.num_sanity_val_batches)))
    stage.call("start")
    for _ in range(scenario.num_epochs):
        stage.call("epoch_start")
        for batch in fabric.setup_dataloaders(loader(scenario.num_batches)):
            if stage.call("batch_start", batch) == SKIP_EPOCH:
                break
            num_done = stage.batch_idx + 1
            updates = num_done % scenario.accumulate_grad_batches == 0 or num_done == scenario.num_batches
            with fabric.no_backward_sync(module, enabled=not updates):
                loss = stage.step(batch)
                if loss is not None:
                    hooks.on_before_backward(loss)
                    fabric.backward(loss)
                    hooks.on_after_backward()
            if updates and loss is not None:
                hooks.on_before_optimizer_step(optimizer)
                optimizer.step()
                hooks.on_before_zero_grad(optimizer)
                optimizer.zero_grad()
            stage.call("batch_end", batch, loss)
            if scenario.num_val_batches and stage.batch_idx % every == 0:
                Stage(hooks, "validate").run(fabric.setup_dataloaders(loader(scenario.num_val_batches)))
        stage.call("epoch_end")
    stage.call("end")
    hooks.on_fit_end()


def run(scenario: Scenario, module: Line, callbacks: list[Any]) -> None:
    fabric = Fabric(accelerator="cpu", devices=1, callbacks=callbacks)
    hooks: Any = Calls(fabric, module)
    with life_of(hooks, scenario.verb):
        if scenario.verb == "fit":
            fit(fabric, hooks, module, scenario)
        else:
            Stage(hooks, scenario.verb).run(fabric.setup_dataloaders(loader(scenario.num_batches)))


FRAMEWORK = Framework(
    title="Fabric",
    about="A loop of one page on a `Fabric`: callbacks are called by `Fabric.call`, the module by the loop.",
    distributions=("lightning",),
    adapter=Adapter(run, Line),
    features=tuple(FEATURES.keys() - {"optimizer_step", "skip_epoch_by_callback", "monitoring", "after_module"}),
    zero_grad="after_optimizer_step",
)
