"""Modules of 0.x: forward and backward first, then `optimizer_step`; two optimizers as by hand in every era."""

from __future__ import annotations

import copy
from typing import Any

import attrs
import pytest
import torch
from bare_parts import Sized, hooked, same_bits, seeded, weights
from compat_parts import BareTrainer
from earlier_parts import (
    EarlierModelHooks,
    OneNet,
    Stepping,
    TwoNets,
    differentiate,
    fit,
    make_inputs,
    of_era,
    own,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import LBFGS, SGD

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class WarmUp(OneNet):
    """The second recipe of the document of 0.5, as written there but for its length."""

    def __init__(self) -> None:
        super().__init__()
        self.hparams = type("Namespace", (), {"learning_rate": 0.3})()
        self.rates: list[float] = []

    def training_step(self, batch: Tensor, batch_nb: int) -> Any:
        return {"loss": self.loss(batch)}

    def optimizer_step(
        self, current_epoch: int, batch_nb: int, optimizer: Any, optimizer_i: int, second_order_closure: Any = None
    ) -> None:
        # warm up lr
        if self.trainer.global_step < 5:
            lr_scale = min(1.0, float(self.trainer.global_step + 1) / 5.0)
            for pg in optimizer.param_groups:
                pg["lr"] = lr_scale * self.hparams.learning_rate
        self.rates.append(optimizer.param_groups[0]["lr"])

        # update params
        optimizer.step()
        optimizer.zero_grad()


def test_warm_up_by_the_trainers_global_step() -> None:
    module, by_hand, inputs = seeded(WarmUp), seeded(WarmUp), make_inputs(4)
    fit(module, inputs, max_epochs=2)
    optimizer = by_hand.optimizers_by_hand()[0]
    rates = [min(1.0, (step + 1) / 5) * 0.3 for step in range(8)]
    for rate, x in zip(rates, inputs * 2, strict=True):
        optimizer.param_groups[0]["lr"] = rate
        by_hand.loss(x).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert module.rates == rates
    assert same_bits(weights(module), weights(by_hand))


def test_gradients_can_be_inspected_after_backward() -> None:
    class Inspected(OneNet):
        """The third recipe of the document of 0.5, with a list in place of tensorboard."""

        def __init__(self) -> None:
            super().__init__()
            self.seen: list[tuple[int, str]] = []
            self.gradients: list[Tensor] = []

        def training_step(self, batch: Tensor, batch_nb: int) -> Any:
            return {"loss": self.loss(batch)}

        def on_epoch_start(self) -> None:
            pass

        def on_after_backward(self) -> None:
            if self.trainer.global_step % 25 == 0:  # don't make the tf file huge
                for k, _ in self.state_dict().items():
                    self.seen.append((self.trainer.global_step, k))
                self.gradients.append(self.head.weight.grad.clone())

    module, x = seeded(Inspected), make_inputs(1)[0]
    fit(module, [x] * 30)
    assert module.seen == [(step, name) for step in (0, 25) for name in module.state_dict()]
    by_hand = seeded(Inspected)
    by_hand.loss(x).backward()
    assert torch.equal(module.gradients[0], by_hand.head.weight.grad)


@pytest.mark.parametrize("era", ["0.5", "0.7", "0.8", "1.1", "1.5"])
@pytest.mark.parametrize("form", ["no override", "override", "super"])
def test_lbfgs_evaluates_the_loss_as_often_as_it_likes(era: str, form: str) -> None:
    def quasi_newton(module: nn.Module) -> LBFGS:
        return LBFGS(module.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe")

    class Fitted(OneNet):
        hook_era = era
        num_evaluations = 0

        def training_step(self, batch: Tensor, batch_idx: int) -> Any:
            self.num_evaluations += 1
            return {"loss": self.loss(batch)}

        def configure_optimizers(self) -> Any:
            return quasi_newton(self)

    class Override(Fitted):
        def optimizer_step(
            self, epoch: int, batch_idx: int, optimizer: Any, optimizer_idx: int, second_order_closure: Any = None
        ) -> None:
            optimizer.step(second_order_closure)
            if era in ("0.5", "0.7"):
                optimizer.zero_grad()

    class Super(Fitted, EarlierModelHooks):
        def optimizer_step(
            self, epoch: int, batch_idx: int, optimizer: Any, optimizer_idx: int, second_order_closure: Any = None
        ) -> None:
            super().optimizer_step(epoch, batch_idx, optimizer, optimizer_idx, second_order_closure)

    make = {"no override": Fitted, "override": Override, "super": Super}[form]
    module, by_hand, inputs = seeded(make), seeded(Fitted), make_inputs(3)
    trainer = fit(module, inputs)
    optimizer = quasi_newton(by_hand)
    num_evaluations = 0
    for x in inputs:

        def closure(x: Tensor = x) -> Tensor:
            nonlocal num_evaluations
            num_evaluations += 1
            optimizer.zero_grad()
            loss = by_hand.loss(x)
            loss.backward()
            return loss

        optimizer.step(closure)
    assert same_bits(weights(module), weights(by_hand))
    assert trainer.global_step == 3
    runs_first = era[0] == "0"
    assert module.num_evaluations == num_evaluations + 3 * runs_first


@pytest.mark.parametrize("era", ["0.5", "0.7", "0.8"])
def test_the_default_of_optimizer_step_can_be_called_by_an_override(era: str) -> None:
    plain = of_era(era, OneNet)

    class Calling(plain, EarlierModelHooks):
        def optimizer_step(
            self, epoch: int, batch_idx: int, optimizer: Any, optimizer_idx: int, second_order_closure: Any = None
        ) -> None:
            super().optimizer_step(epoch, batch_idx, optimizer, optimizer_idx, second_order_closure)

    results = []
    for make in (plain, Calling):
        module = seeded(make)
        fit(module, make_inputs(5), gradient_clip_val=0.1, accumulate_grad_batches=2)
        results.append(weights(module))
    assert same_bits(*results)


def test_the_closure_is_refused_where_gradients_of_other_batches_wait() -> None:
    class Hoarding(OneNet):
        hook_era = "0.5"

        def training_step(self, batch: Tensor, batch_nb: int) -> Any:
            return {"loss": self.loss(batch)}

        def optimizer_step(
            self, current_epoch: int, batch_nb: int, optimizer: Any, optimizer_i: int, second_order_closure: Any = None
        ) -> None:
            if batch_nb:
                second_order_closure()

    message = "`second_order_closure` must be called only without gradients of other steps"
    with pytest.raises(RuntimeError, match=message):
        fit(Hoarding(), make_inputs(2))


class Clipped(OneNet):
    """Everything that is called around a step, with its arguments."""

    hook_era = "0.8"

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def training_step(self, batch: Tensor, batch_idx: int) -> Any:
        self.calls.append("training_step")
        return {"loss": self.loss(batch)}

    def backward(self, trainer: Any, loss: Tensor, optimizer: Any, optimizer_idx: int) -> None:
        self.calls.append(("backward", trainer is self.trainer, type(optimizer).__name__, optimizer_idx))
        loss.backward()

    def on_after_backward(self) -> None:
        self.calls.append(("on_after_backward", self.head.weight.grad is not None))

    def optimizer_step(
        self,
        epoch: int,
        batch_idx: int,
        optimizer: Any,
        optimizer_idx: int,
        second_order_closure: Any = None,
        using_native_amp: bool = True,
    ) -> None:
        norm = torch.cat([parameter.grad.flatten() for parameter in own(optimizer)]).norm()
        self.calls.append(("optimizer_step", epoch, batch_idx, optimizer_idx, using_native_amp, bool(norm < 0.0101)))
        optimizer.step()

    def on_before_zero_grad(self, optimizer: Any) -> None:
        self.calls.append(("on_before_zero_grad", self.head.weight.grad is not None))


def test_backward_clipping_and_step_come_in_this_order_with_the_eras_arguments() -> None:
    module = seeded(Clipped)
    fit(module, make_inputs(2), gradient_clip_val=0.01, accumulate_grad_batches=2)
    of_step = ["training_step", ("backward", True, "SGD", 0), ("on_after_backward", True)]
    update = [("optimizer_step", 0, 1, 0, False, True), ("on_before_zero_grad", True)]
    assert module.calls == [*of_step, *of_step, *update]


@pytest.mark.parametrize("era", ["0.5", "0.8", "1.1", "1.4", "1.5"])
def test_an_override_that_never_steps_cannot_keep_training_from_its_end(era: str) -> None:
    class Idle(OneNet):
        hook_era = era

        def optimizer_step(
            self, epoch: int, batch_idx: int, optimizer: Any, optimizer_idx: int, closure: Any = None
        ) -> None:
            if era == "1.5":
                closure()

    module = seeded(Idle)
    before = weights(module)
    assert fit(module, make_inputs(2), max_epochs=-1, max_steps=5).global_step == 5
    assert same_bits(weights(module), before)


@attrs.frozen
class Schedule:
    """How an old GAN is trained."""

    era: str
    num_batches: int
    num_epochs: int
    accumulate: int
    clip: float | None
    overrides: bool


@settings(max_examples=80, deadline=None)
@given(
    st.builds(
        Schedule,
        st.sampled_from(["0.4", "0.5", "0.7", "0.8", "0.9", "1.0", "1.3", "1.5", "1.9"]),
        st.integers(1, 6),
        st.integers(1, 2),
        st.integers(1, 3),
        st.sampled_from([None, 0.05]),
        st.booleans(),
    )
)
def test_every_era_trains_two_optimizers_as_a_loop_by_hand(schedule: Schedule) -> None:
    gan, stepping = of_era(schedule.era, TwoNets), of_era(schedule.era, Stepping, TwoNets)
    module, by_hand = seeded(stepping if schedule.overrides else gan), seeded(gan)
    inputs, length = make_inputs(schedule.num_batches), schedule.accumulate
    trainer = fit(
        module,
        inputs,
        max_epochs=schedule.num_epochs,
        accumulate_grad_batches=length,
        gradient_clip_val=schedule.clip,
    )
    optimizers = by_hand.optimizers_by_hand()
    num_windows = 0
    for _ in range(schedule.num_epochs):
        for first in range(0, len(inputs), length):
            window = inputs[first : first + length]
            num_windows += 1
            for x in window:
                for idx, optimizer in enumerate(optimizers):
                    divisor = len(window)
                    if schedule.era in ("0.4", "0.5"):
                        (by_hand.loss(x, idx) / divisor).backward()
                    else:
                        differentiate(lambda x=x, idx=idx, divisor=divisor: by_hand.loss(x, idx) / divisor, optimizer)
                    if x is window[-1]:
                        if schedule.clip is not None:
                            nn.utils.clip_grad_norm_(own(optimizer), schedule.clip)
                        optimizer.step()
                        optimizer.zero_grad()
    assert same_bits(weights(module), weights(by_hand))
    assert trainer.global_step == num_windows


class Reusing(TwoNets):
    """A GAN whose generator learns by the graph that the discriminator's turn, which comes first, has built."""

    def training_step(self, batch: Tensor, batch_idx: int, optimizer_idx: int) -> Any:
        if optimizer_idx == 0:
            self.faked = torch.tanh(self.generator(batch))
            loss = self.discriminator(self.faked.detach()).square().mean()
            return {"loss": loss + (self.discriminator(batch) - 1).square().mean()}
        return {"loss": (self.discriminator(self.faked) - 1).square().mean()}

    def configure_optimizers(self) -> Any:
        return self.optimizers_by_hand()[::-1]


@pytest.mark.parametrize("era", ["0.4", "0.5"])
def test_up_to_0_5_a_later_optimizer_may_use_the_graph_of_an_earlier_one(era: str) -> None:
    module, by_hand = (seeded(of_era(era, Reusing)) for _ in range(2))
    inputs = make_inputs(4)
    before = weights(module.generator)
    fit(module, inputs)
    optimizers = by_hand.configure_optimizers()
    for x in inputs:
        for idx, optimizer in enumerate(optimizers):
            by_hand.training_step(x, 0, idx)["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
    assert same_bits(weights(module), weights(by_hand))
    assert not same_bits(weights(module.generator), before)


@pytest.mark.parametrize("batch_idx", range(4))
def test_gradients_that_reach_another_optimizer_survive_a_resume(batch_idx: int) -> None:
    def save(trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        trainer.save_checkpoint(f"epoch {trainer.progress.current_epoch} batch {batch_idx}")

    arguments: dict[str, Any] = {"max_epochs": 2, "zero_grad": None, "stateless_loaders": "fast_forward"}
    gan = of_era("0.5", TwoNets)
    whole, resumed = seeded(gan), seeded(gan, seed=7)
    trainer = BareTrainer(whole, callbacks=[hooked(on_train_batch_end=save)], **arguments).fit(Sized(make_inputs(4)))
    checkpoint = trainer.load(f"epoch 0 batch {batch_idx}")
    BareTrainer(resumed, **arguments).fit(Sized(make_inputs(4)), checkpoint=checkpoint)
    assert same_bits(weights(whole), weights(resumed))


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("batch_idx", range(5))
@pytest.mark.parametrize("era", ["0.5", "0.8", "1.1", "1.4"])
def test_resuming_inside_an_epoch_is_exact(era: str, batch_idx: int, accumulate: int) -> None:
    class Gan(Stepping, TwoNets):
        hook_era = era

        def optimizer_step(
            self, epoch: int, batch_idx: int, optimizer: Any, optimizer_idx: int, closure: Any = None
        ) -> None:
            if batch_idx % 4 >= 2 or optimizer_idx == 0:
                super().optimizer_step(epoch, batch_idx, optimizer, optimizer_idx, closure)

    inputs = make_inputs(5)

    def save(trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        trainer.save_checkpoint(f"epoch {trainer.progress.current_epoch} batch {batch_idx}")

    whole = seeded(Gan)
    saved = fit(
        whole, inputs, max_epochs=2, callbacks=[hooked(on_train_batch_end=save)], accumulate_grad_batches=accumulate
    )
    for epoch in range(2):
        resumed = seeded(Gan, seed=7)
        checkpoint = copy.deepcopy(saved.load(f"epoch {epoch} batch {batch_idx}"))
        trainer = fit(
            resumed,
            inputs,
            checkpoint,
            max_epochs=2,
            accumulate_grad_batches=accumulate,
            stateless_loaders="fast_forward",
        )
        assert trainer.global_step == saved.global_step
        assert same_bits(weights(resumed), weights(whole))


def test_a_step_without_a_loss_leaves_its_optimizer_as_it_is() -> None:
    class Skipping(OneNet):
        hook_era = "0.8"

        def training_step(self, batch: Tensor, batch_idx: int) -> Any:
            return None if batch_idx == 1 else {"loss": self.loss(batch)}

    module, by_hand, inputs = seeded(Skipping), seeded(Skipping), make_inputs(3)
    assert fit(module, inputs).global_step == 3
    optimizer = SGD(by_hand.parameters(), lr=0.1, momentum=0.9)
    for x in (inputs[0], inputs[2]):
        optimizer.zero_grad()
        by_hand.loss(x).backward()
        optimizer.step()
    assert same_bits(weights(module), weights(by_hand))
