"""What `configure_optimizers` returned in earlier eras."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from bare_parts import BareStrategy, Net, Sized, StepsByHand, hooked, make_batches, same_bits, seeded, weights
from compat_parts import BareTrainer
from earlier_parts import OneNet, make_inputs
from recording_sink import RecordingSink
from torch import Tensor
from torch.optim import SGD
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from camshaft.compat.eras import extend
from camshaft.compat.eras.optimization import EraOptimization, configuration_of
from camshaft.hooks_core.eras.releases import behaviour_of
from camshaft.loops import FitLimits, FitProgress, OptimizationSettings, Run

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

ONE, TWO = (SGD(Net().parameters(), lr=0.1) for _ in range(2))
STEP, PLATEAU = StepLR(ONE, 1), ReduceLROnPlateau(TWO)


class OfTheirOwn:
    def __init__(self) -> None:
        self.optimizer = ONE

    def step(self, metrics: Any = None) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return {}

    load_state_dict = state_dict


@pytest.mark.parametrize(
    ("era", "returned", "monitors"),
    [
        ("0.5", ([ONE, TWO], [STEP, PLATEAU]), [None, "val_loss"]),
        ("0.8", ([ONE, TWO], [STEP, PLATEAU]), [None, "val_loss"]),
        ("0.8", {"optimizer": TWO, "lr_scheduler": PLATEAU}, ["val_loss"]),
        ("0.9", ([TWO], [{"scheduler": PLATEAU, "monitor": "acc", "reduce_on_plateau": True}]), ["acc"]),
        ("0.9", ([TWO], [{"scheduler": PLATEAU, "reduce_on_plateau": False}]), ["val_loss"]),
        ("1.0", {"optimizer": TWO, "lr_scheduler": PLATEAU, "monitor": "loss"}, ["loss"]),
        ("1.5", {"optimizer": TWO, "lr_scheduler": {"scheduler": PLATEAU, "opt_idx": 0}, "monitor": "loss"}, ["loss"]),
        ("1.5", {"optimizer": ONE, "lr_scheduler": STEP, "monitor": "loss"}, [None]),
        ("1.5", ([ONE], [{"scheduler": STEP, "monitor": "loss"}]), [None]),
        ("1.5", ([ONE], [{"scheduler": STEP, "monitor": "loss", "reduce_on_plateau": True}]), [None]),
        ("1.6", ([ONE], [{"scheduler": STEP, "monitor": "loss", "reduce_on_plateau": True}]), ["loss"]),
        ("2.1", ([ONE], [{"scheduler": OfTheirOwn(), "monitor": "loss"}]), [None]),
        ("2.1", ([ONE], [{"scheduler": OfTheirOwn(), "monitor": "loss", "reduce_on_plateau": True}]), ["loss"]),
        ("1.0", ([ONE], STEP), [None]),
        ("0.8", [{"optimizer": ONE, "lr_scheduler": []}, {"optimizer": TWO, "lr_scheduler": PLATEAU}], ["val_loss"]),
        ("1.5", {"optimizer": ONE, "frequency": 3}, []),
        ("1.5", [{"optimizer": ONE, "frequency": 3}], []),
    ],
)
def test_forms_of_the_eras(era: str, returned: Any, monitors: list[str | None]) -> None:
    optimization = configuration_of(returned, behaviour_of(era))
    assert [config.monitor for config in optimization.schedulers] == monitors
    assert all(config.interval == "epoch" for config in optimization.schedulers)
    assert optimization.frequencies == []


def test_frequencies_of_several_optimizers_are_kept() -> None:
    returned = [{"optimizer": ONE, "frequency": 1}, {"optimizer": TWO, "frequency": 5}]
    assert configuration_of(returned, behaviour_of("1.4")).frequencies == [1, 5]


def test_what_was_returned_is_not_changed() -> None:
    settings = {"scheduler": PLATEAU, "reduce_on_plateau": True}
    configuration_of(([TWO], [settings]), behaviour_of("0.8"))
    assert settings == {"scheduler": PLATEAU, "reduce_on_plateau": True}


def test_schedulers_know_whose_rate_they_set() -> None:
    configs = configuration_of(([ONE, TWO], [PLATEAU, STEP]), behaviour_of("0.8")).schedulers
    assert [config.optimizer_idx for config in configs] == [1, 0]


@pytest.mark.parametrize(
    "returned",
    [([TWO], [PLATEAU]), {"optimizer": TWO, "lr_scheduler": {"scheduler": PLATEAU}}],
)
def test_from_1_0_on_a_scheduler_on_plateau_needs_to_be_told(returned: Any) -> None:
    message = "`monitor` must be the name of a logged value, but got None .* ReduceLROnPlateau"
    with pytest.raises(ValueError, match=message):
        configuration_of(returned, behaviour_of("1.0"))


@pytest.mark.parametrize(("era", "is_error"), [("1.1", False), ("1.2", True), ("1.9", True), ("2.x", True)])
def test_a_scheduler_of_an_optimizer_that_was_not_returned_is_refused_from_1_2_on(era: str, is_error: bool) -> None:
    returned = ([TWO], [STEP])
    if is_error:
        with pytest.raises(ValueError, match="`lr_scheduler` must be one for an optimizer that is returned"):
            configuration_of(returned, behaviour_of(era))
    else:
        assert len(configuration_of(returned, behaviour_of(era)).schedulers) == 1


class Lars:
    """A wrapper in the style of those days: scales gradients, then lets the optimizer that it holds step."""

    def __init__(self, optimizer: SGD) -> None:
        self.optim = optimizer
        self.trust = 0.5

    @property
    def param_groups(self) -> Any:
        return self.optim.param_groups

    def state_dict(self) -> Any:
        return self.optim.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.optim.load_state_dict(state)

    def zero_grad(self) -> None:
        self.optim.zero_grad()

    def step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(self.trust)
        self.optim.step()


class Wrapped(OneNet):
    def training_step(self, batch: Tensor, batch_idx: int) -> Any:
        return {"loss": self.loss(batch)}

    def configure_optimizers(self) -> Any:
        return Lars(SGD(self.parameters(), lr=0.1, momentum=0.9))


@pytest.mark.parametrize("overrides", [False, True])
@pytest.mark.parametrize("era", ["0.5", "0.8", "1.0", "1.1", "1.9"])
def test_a_wrapper_trains_as_by_hand(era: str, overrides: bool) -> None:
    class OfEra(Wrapped):
        hook_era = era
        num_announced = 0

        def on_before_zero_grad(self, optimizer: Any) -> None:
            assert optimizer.trust == 0.5
            self.num_announced += 1

    class Stepping(OfEra):
        def optimizer_step(
            self, epoch: int, batch_idx: int, optimizer: Any, optimizer_idx: int, closure: Any = None
        ) -> None:
            if era[0] == "0":
                optimizer.step()
                optimizer.zero_grad()
            else:
                optimizer.step(closure=closure)

    module, by_hand, inputs = seeded(Stepping if overrides else OfEra), seeded(OfEra), make_inputs(4)
    run = Run(verb="fit", module=module, strategy=BareStrategy(), trainer=None)
    extend(run)
    run.resolve_hooks(("training_step",))
    factory, progress = EraOptimization(), FitProgress()
    optimization = factory.configure(run)
    mode = factory.make_mode(run, optimization, progress, FitLimits(max_epochs=1), OptimizationSettings())
    wrapper = by_hand.configure_optimizers()
    for batch_idx, x in enumerate(inputs):
        mode.run_batch(x, batch_idx, batch_idx == 3)
        wrapper.zero_grad()
        by_hand.loss(x).backward()
        wrapper.step()
    assert same_bits(weights(module), weights(by_hand))
    assert (progress.global_step, module.num_announced) == (4, 4)
    [optimizer] = optimization.optimizers
    assert same_values(optimizer.state_dict(), wrapper.state_dict())


def same_values(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_values(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same_values, one, other))
    return same_bits([one], [other]) if isinstance(one, Tensor) else bool(one == other)


def test_a_fit_with_a_wrapper_resumes_exactly() -> None:
    class OfEra(Wrapped):
        hook_era = "1.1"

    def save(trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        trainer.save_checkpoint(f"batch {batch_idx}")

    def fit(module: Any, checkpoint: Any = None) -> BareTrainer:
        trainer = BareTrainer(
            module,
            callbacks=[hooked(on_train_batch_end=save)],
            max_epochs=1,
            zero_grad=None,
            stateless_loaders="fast_forward",
        )
        return trainer.fit(Sized(make_inputs(4)), checkpoint=checkpoint)

    whole, resumed = seeded(OfEra), seeded(OfEra, seed=7)
    fit(resumed, fit(whole).load("batch 1"))
    assert same_bits(weights(whole), weights(resumed))


def test_before_1_0_a_scheduler_on_plateau_follows_val_loss() -> None:
    class Flat(OneNet):
        hook_era = "0.8"

        def training_step(self, batch: Tensor, batch_idx: int) -> Any:
            return {"loss": self.loss(batch)}

        def configure_optimizers(self) -> Any:
            optimizer = SGD(self.parameters(), lr=1.0)
            return [optimizer], [ReduceLROnPlateau(optimizer, patience=0, factor=0.5)]

    sink = RecordingSink(val_loss=torch.tensor(1.0))
    trainer = BareTrainer(seeded(Flat), metrics=sink, max_epochs=3, zero_grad=None).fit(Sized(make_inputs(1)))
    assert trainer.fit_loop.optimization.optimizers[0].param_groups[0]["lr"] == 0.25
    message = "`monitor` must be a logged value .* but got 'val_loss'"
    with pytest.raises(LookupError, match=message):
        BareTrainer(seeded(Flat), metrics=RecordingSink(), max_epochs=1).fit(Sized(make_inputs(1)))


@pytest.mark.parametrize("interval", ["epoch", "step"])
@pytest.mark.parametrize(
    ("era", "steps"), [(None, False), ("1.0", True), ("1.1", True), ("1.2.10", True), ("1.3", False), ("1.9", False)]
)
def test_who_optimizes_by_hand_steps_schedulers_by_hand_but_from_1_0_to_1_2(
    interval: str, era: str | None, steps: bool
) -> None:
    module = type("OfEra", (StepsByHand,), {"interval": interval, "hook_era": era} if era else {"interval": interval})()
    trainer = BareTrainer(module, max_epochs=1).fit(Sized(make_batches(3)))
    assert trainer.fit_loop.optimization.schedulers[0].interval == interval
    rate = module.optimizer.param_groups[0]["lr"]
    assert rate == ({"epoch": 0.5, "step": 0.125}[interval] if steps else 1.0)
