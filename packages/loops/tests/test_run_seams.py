"""Attributes of a run for other protocols: adapters, another order, state of an epoch, another optimization."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from bare_parts import BareStrategy, BareTrainer, Net, Sized, hooked, make_batches, same_bits, seeded, weights

from camshaft.loops import ConfiguredOptimizers, FitOrder, LRSchedulerConfig, Run, StandardOptimizationFactory
from camshaft.loops.optimization.update import OptimizerUpdate

pytestmark = pytest.mark.filterwarnings("ignore:.*train loader.*state")


def trainer_with(extend: Any, module: Any = None, **arguments: Any) -> BareTrainer:
    trainer = BareTrainer(module or seeded(), **{"max_epochs": 1, **arguments})
    trainer.extend = extend
    return trainer


def test_adapters_are_called_in_order_with_resolved_hooks_before_any_hook_is() -> None:
    calls: list[str] = []

    def adapter(name: str) -> Any:
        def adapt(run: Run) -> None:
            calls.append(name)
            run.hooks.wrap("setup", lambda setup: lambda stage: (calls.append(f"{name} {stage}"), setup(stage)))

        return adapt

    def extend(run: Run) -> None:
        run.adapters += [adapter("first"), adapter("second")]

    trainer_with(extend, callbacks=[hooked(setup=lambda *_, **__: calls.append("setup"))]).fit(Sized(make_batches(1)))
    assert calls == ["first", "second", "second fit", "first fit", "setup"]


def test_what_an_adapter_raises_comes_before_any_hook() -> None:
    def refuse(run: Run) -> None:
        raise NotImplementedError("no place for it")

    class Failing(Net):
        def setup(self, stage: str) -> None:
            raise AssertionError

    with pytest.raises(NotImplementedError, match="no place for it"):
        trainer_with(lambda run: run.adapters.append(refuse), Failing()).fit(Sized(make_batches(1)))


def test_calls_of_all_receivers_can_be_wrapped_inside_of_what_callbacks_wrap() -> None:
    seen: list[str] = []

    class Wrapper:
        def __init__(self, name: str) -> None:
            self.name = name

        def wrap_call(self, hook: str, kind: Any, receiver: object, function: Any) -> Any:
            if hook != "on_fit_start":
                return function
            return lambda *arguments: (seen.append(f"{self.name} of {kind}"), function(*arguments))[1]

    callback = hooked(on_fit_start=lambda *_: None)
    type(callback).wrap_call = Wrapper("callback").wrap_call
    trainer_with(lambda run: run.call_wrappers.append(Wrapper("run")), callbacks=[callback]).fit(Sized(make_batches(1)))
    assert seen == ["callback of callback", "run of callback"]


ORDERS = {
    FitOrder(): ["sanity", "train start", "validation", "epoch end"],
    FitOrder(train_start_first=True): ["train start", "sanity", "validation", "epoch end"],
    FitOrder(epoch_end_first=True): ["sanity", "train start", "epoch end", "validation"],
}


@pytest.mark.parametrize("order", ORDERS)
def test_the_order_of_a_fit_can_be_another(order: FitOrder) -> None:
    calls: list[str] = []
    names = {"on_sanity_check_end": "sanity", "on_train_start": "train start", "on_train_epoch_end": "epoch end"}
    hooks = {hook: (lambda *_, name=name: calls.append(name)) for hook, name in names.items()}

    def validated(trainer: Any, module: Any) -> None:
        if not trainer.fit_loop.sanity_checking:
            calls.append("validation")

    callback = hooked(on_validation_end=validated, **hooks)
    trainer = trainer_with(lambda run: setattr(run, "order", order), callbacks=[callback], num_sanity_val_steps=1)
    trainer.fit(Sized(make_batches(2)), Sized(make_batches(1)))
    assert calls == ORDERS[order]


def save_at(batch_idx: int) -> Any:
    def save(trainer: Any, module: Any, outputs: Any, batch: Any, idx: int) -> None:
        if idx == batch_idx:
            trainer.save_checkpoint("inside")

    return hooked(on_train_batch_end=save, on_train_epoch_end=lambda trainer, module: trainer.save_checkpoint("end"))


def test_weights_are_left_alone_where_something_else_restores_them() -> None:
    checkpoint = BareTrainer(seeded(), callbacks=[save_at(0)], max_epochs=1).fit(Sized(make_batches(2))).load("end")
    module = seeded(seed=7)
    before = weights(module)
    trainer_with(lambda run: setattr(run, "restores_weights", False), module).fit(
        Sized(make_batches(2)), None, checkpoint
    )
    assert same_bits(weights(module), before)


class Losses:
    """The losses of an epoch."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self.calls: list[str] = []

    def adapt(self, run: Run) -> None:
        run.epoch_state["losses"] = self
        run.hooks.wrap("training_step", self.keep)

    def keep(self, step: Any) -> Any:
        def kept(*arguments: Any, **keywords: Any) -> Any:
            loss = step(*arguments, **keywords)
            self.values.append(loss.item())
            return loss

        return kept

    def reset(self) -> None:
        self.calls.append(f"reset {len(self.values)}")
        self.values = []

    def state_dict(self) -> dict[str, Any]:
        return {"values": list(self.values)}

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        self.calls.append("load" if state else "load nothing")
        self.values = list(state["values"]) if state else []


def test_state_of_an_epoch_is_in_checkpoints_inside_of_it_and_goes_on_from_there() -> None:
    def fit(losses: Any, module: Any, checkpoint: Any = None) -> BareTrainer:
        adapters = [] if losses is None else [losses.adapt]
        trainer = trainer_with(
            lambda run: run.adapters.extend(adapters), module, callbacks=[save_at(1)], stateless_loaders="fast_forward"
        )
        return trainer.fit(Sized(make_batches(4)), None, checkpoint)

    whole, resumed, without = Losses(), Losses(), Losses()
    first = fit(whole, seeded())
    assert whole.calls == ["reset 0", "reset 4"]
    inside = first.load("inside")
    assert len(inside["fit"]["losses"]["values"]) == 2 and "losses" not in first.load("end")["fit"]
    fit(resumed, seeded(seed=5), inside)
    assert resumed.calls == ["load", "reset 4"]
    fit(without, seeded(seed=5), fit(None, seeded()).load("inside"))
    assert without.calls == ["load nothing", "reset 2"]


def test_another_factory_configures_and_updates() -> None:
    class Halving(OptimizerUpdate):
        def run(self, batch: Any, batch_idx: int, ends_window: bool) -> Any:
            outputs = super().run(batch, batch_idx, ends_window)
            with torch.no_grad():
                for group in self.optimizer.param_groups:
                    for parameter in group["params"]:
                        parameter.mul_(0.5)
            return outputs

    class Factory(StandardOptimizationFactory):
        def configure(self, run: Run) -> ConfiguredOptimizers:
            return ConfiguredOptimizers([torch.optim.SGD(run.module.parameters(), lr=0.0)], [])

        def make_update(self, context: Any, optimizer: Any, optimizer_idx: int) -> OptimizerUpdate:
            return Halving(context, optimizer, optimizer_idx)

    module = seeded()
    before = weights(module)
    trainer = trainer_with(lambda run: setattr(run, "optimization_factory", Factory()), module)
    trainer.fit(Sized(make_batches(2)))
    assert trainer.global_step == 2
    assert same_bits(weights(module), [one / 4 for one in before])


def test_a_configuration_says_who_steps_the_schedulers() -> None:
    class Factory(StandardOptimizationFactory):
        def configure(self, run: Run) -> ConfiguredOptimizers:
            optimizer = torch.optim.SGD(run.module.parameters(), lr=1.0)
            scheduler = LRSchedulerConfig(torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5))
            return ConfiguredOptimizers([optimizer], [scheduler], steps_schedulers=False)

    trainer = trainer_with(lambda run: setattr(run, "optimization_factory", Factory())).fit(Sized(make_batches(2)))
    assert trainer.fit_loop.optimization.optimizers[0].param_groups[0]["lr"] == 1.0


def test_predictions_and_the_number_of_loaders_are_told_while_they_are_there() -> None:
    from camshaft.loops import PredictLoop

    told: list[Any] = []

    def tell(trainer: Any, module: Any) -> None:
        told.append((trainer.run.num_loaders, [len(of_loader) for of_loader in trainer.run.predictions]))

    trainer = BareTrainer(seeded(), strategy=BareStrategy(), callbacks=[hooked(on_predict_epoch_end=tell)])
    trainer.verb("predict", PredictLoop(), [Sized(make_batches(2)), Sized(make_batches(1))])
    assert told == [(2, [2, 1])] and trainer.run.predictions == []


@pytest.mark.parametrize("is_connected", [False, True])
def test_the_strategy_is_connected_once_by_the_caller_or_by_the_verb(is_connected: bool) -> None:
    class Counting(BareStrategy):
        num_connects = 0

        def connect(self) -> None:
            self.num_connects += 1
            super().connect()

    strategy = Counting()
    if is_connected:
        strategy.connect()
    trainer_with(lambda run: setattr(run, "is_connected", is_connected), strategy=strategy).fit(Sized(make_batches(1)))
    assert strategy.num_connects == 1
