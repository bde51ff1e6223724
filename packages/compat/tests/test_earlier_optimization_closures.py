"""Modules of 1.x: what `optimizer_step` and its neighbours get, counting, turns, splits, toggling, steps by hand."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs
import pytest
import torch
from bare_parts import BareStrategy, same_bits, seeded, weights
from earlier_parts import EarlierModelHooks, OneNet, TwoNets, differentiate, fit, make_inputs, of_era, step_by_hand
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import LBFGS, SGD
from torch.optim.lr_scheduler import StepLR

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Told(TwoNets):
    """Notes what its hooks get."""

    hook_era = "1.5"

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Any] = []

    def optimizer_step(
        self,
        epoch: int,
        batch_idx: int,
        optimizer: Any,
        optimizer_idx: int,
        optimizer_closure: Any,
        on_tpu: bool,
        using_native_amp: bool,
        using_lbfgs: bool,
    ) -> None:
        self.told.append(("step", epoch, batch_idx, optimizer_idx, on_tpu, using_native_amp, using_lbfgs))
        optimizer.step(closure=optimizer_closure)

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_idx: int) -> None:
        self.told.append(("zero", epoch, batch_idx, optimizer_idx))
        optimizer.zero_grad()

    def backward(self, loss: Tensor, optimizer: Any, optimizer_idx: int) -> None:
        self.told.append(("backward", [optimizer is one for one in self.trainer.fit_loop.optimization.optimizers]))
        loss.backward()

    def on_before_optimizer_step(self, optimizer: Any, optimizer_idx: int) -> None:
        self.told.append(("before", optimizer_idx))

    def configure_gradient_clipping(
        self, optimizer: Any, optimizer_idx: int, gradient_clip_val: Any, gradient_clip_algorithm: Any
    ) -> None:
        self.told.append(("clip", optimizer_idx, gradient_clip_val, gradient_clip_algorithm))

    def lr_scheduler_step(self, scheduler: Any, optimizer_idx: int, metric: Any) -> None:
        self.told.append(("scheduler", optimizer_idx, metric))
        scheduler.step()

    def configure_optimizers(self) -> Any:
        first, _ = self.optimizers_by_hand()
        second = LBFGS(self.discriminator.parameters(), max_iter=1)
        return [first, second], [StepLR(second, 1), StepLR(first, 1)]


class Autocasting(BareStrategy):
    """Tells, as strategies with a precision do, what autocast computes in."""

    def __init__(self, dtype: Any) -> None:
        super().__init__()
        self.precision = type("Precision", (), {"autocast_dtype": dtype})()


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_hooks_get_the_arguments_of_the_era_with_true_values(dtype: Any) -> None:
    module = seeded(Told)
    fit(module, make_inputs(1), gradient_clip_val=0.5, strategy=Autocasting(dtype))

    def turn(idx: int) -> list[Any]:
        return [
            ("step", 0, 0, idx, False, dtype is not None, idx == 1),
            ("zero", 0, 0, idx),
            ("backward", [idx == 0, idx == 1]),
            ("before", idx),
            ("clip", idx, 0.5, "norm"),
        ]

    assert module.told == [*turn(0), *turn(1), ("scheduler", 1, None), ("scheduler", 0, None)]


@pytest.mark.parametrize("form", range(6))
def test_an_override_may_call_the_default_in_any_form(form: int) -> None:
    class Calling(OneNet, EarlierModelHooks):
        def optimizer_step(
            self,
            epoch: int,
            batch_idx: int,
            optimizer: Any,
            optimizer_idx: int,
            optimizer_closure: Any,
            on_tpu: bool,
            using_native_amp: bool,
            using_lbfgs: bool,
        ) -> None:
            cases = {"on_tpu": on_tpu, "using_native_amp": using_native_amp, "using_lbfgs": using_lbfgs}
            start, closure = (epoch, batch_idx, optimizer), optimizer_closure
            step = super().optimizer_step
            calls: list[Any] = [
                lambda: step(*start, optimizer_idx, closure, on_tpu, using_native_amp, using_lbfgs),
                lambda: step(*start, optimizer_idx, closure, **cases),
                lambda: step(*start, optimizer_idx, optimizer_closure=closure, **cases),
                lambda: step(*start, optimizer_idx=optimizer_idx, optimizer_closure=closure, **cases),
                lambda: step(
                    epoch=epoch,
                    batch_idx=batch_idx,
                    optimizer=optimizer,
                    optimizer_idx=optimizer_idx,
                    optimizer_closure=closure,
                    **cases,
                ),
                lambda: step(*start, closure),
            ]
            calls[form]()
            calls[form]()  # some repeat it

    module, by_hand, inputs = seeded(Calling), seeded(OneNet), make_inputs(3)
    fit(module, inputs)
    optimizer = by_hand.optimizers_by_hand()[0]
    for x in inputs:
        for _ in range(2):
            optimizer.zero_grad()
            by_hand.loss(x).backward()
            optimizer.step()
    assert same_bits(weights(module), weights(by_hand))


class Leaving(TwoNets):
    """The recipe of the first releases of 1.x: a batch that is not an optimizer's is left out."""

    hook_era = "1.0.8"

    def optimizer_step(
        self,
        epoch: int,
        batch_idx: int,
        optimizer: Any,
        optimizer_idx: int,
        optimizer_closure: Any,
        on_tpu: bool,
        using_native_amp: bool,
        using_lbfgs: bool,
    ) -> None:
        if batch_idx % (2, 4)[optimizer_idx] == 0:  # the generator every 2 batches, the discriminator every 4
            optimizer.step(closure=optimizer_closure)
            optimizer.zero_grad()


@pytest.mark.parametrize(("era", "num_steps"), [("1.0.8", 14), ("1.5", 14), ("1.x", 14), ("1.6", 8)])
def test_before_2_0_an_override_may_leave_a_batch_out(era: str, num_steps: int) -> None:
    module, by_hand, inputs = seeded(of_era(era, Leaving)), seeded(Leaving), make_inputs(7)
    trainer = fit(module, inputs, max_epochs=2)
    optimizers = by_hand.optimizers_by_hand()
    for batch_idx, x in [*enumerate(inputs)] * 2:
        step_by_hand(by_hand, optimizers, x, *(idx for idx in range(2) if batch_idx % (2, 4)[idx] == 0))
    assert same_bits(weights(module), weights(by_hand))
    assert module.num_steps == by_hand.num_steps
    assert trainer.global_step == num_steps


def test_from_2_0_on_the_closure_must_be_called() -> None:
    class Leaving2(OneNet):
        def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any) -> None:
            """Does nothing."""

    with pytest.raises(RuntimeError, match="`optimizer_closure` must be called in `optimizer_step`"):
        fit(seeded(Leaving2), make_inputs(2))


@pytest.mark.parametrize("era", ["1.0", "1.4", "1.5", "1.9"])
def test_a_step_without_the_closure_would_train_on_nothing(era: str) -> None:
    class Deaf(OneNet):
        hook_era = era

        def optimizer_step(
            self, epoch: int, batch_idx: int, optimizer: Any, optimizer_idx: int, optimizer_closure: Any
        ) -> None:
            self.unused = optimizer_closure
            optimizer.step()

    with pytest.raises(RuntimeError, match="`optimizer_closure` must be called in `optimizer_step`"):
        fit(seeded(Deaf), make_inputs(1))


@pytest.mark.parametrize(
    ("era", "due"),
    [
        ("1.2", [0, 0, 1, 0, 0, 1, 0, 0]),  # turns go on from epoch to epoch
        ("1.3", [0, 0, 1, 0, 0, 0, 1, 0]),  # turns begin anew
        ("1.9", [0, 0, 1, 0, 0, 0, 1, 0]),
    ],
)
def test_frequencies_count_batches_from_where_the_era_did(era: str, due: list[int]) -> None:
    class Frequent(TwoNets):
        hook_era = era

        def __init__(self) -> None:
            super().__init__()
            self.due: list[int] = []

        def training_step(self, batch: Tensor, batch_idx: int, optimizer_idx: int) -> Any:
            self.due.append(optimizer_idx)
            return super().training_step(batch, batch_idx, optimizer_idx)

        def configure_optimizers(self) -> Any:
            pairs = zip(self.optimizers_by_hand(), (2, 1), strict=True)
            return [{"optimizer": optimizer, "frequency": frequency} for optimizer, frequency in pairs]

    module, by_hand, inputs = seeded(Frequent), seeded(TwoNets), make_inputs(4)
    trainer = fit(module, inputs, max_epochs=2)
    assert module.due == due
    assert trainer.global_step == 8
    optimizers = by_hand.optimizers_by_hand()
    for x, idx in zip(inputs * 2, due, strict=True):
        step_by_hand(by_hand, optimizers, x, idx)
    assert same_bits(weights(module), weights(by_hand))


@attrs.frozen
class Text:
    """How a language model is trained."""

    era: str
    lengths: tuple[int, ...]
    split_size: int
    num_optimizers: int
    frequencies: tuple[int, ...]
    num_epochs: int


class Language(nn.Module):
    """Two recurrent cells, each with its optimizer if there are two, and the head with the first."""

    def __init__(self, text: Text) -> None:
        super().__init__()
        self.text = text
        self.hook_era = text.era
        self.cells = nn.ModuleList(nn.RNNCell(1, 2) for _ in range(2))
        self.head = nn.Linear(2, 1)
        self.begins: list[bool] = []

    def unroll(self, x: Tensor, idx: int, hidden: Tensor | None) -> tuple[Tensor, Tensor]:
        for step in x.unbind(1):
            hidden = self.cells[idx](step, hidden)
        assert hidden is not None
        return (self.head(hidden) - 1).square().mean(), hidden

    def training_step(self, batch: Tensor, batch_idx: int, optimizer_idx: int, hiddens: Any) -> Any:
        self.begins.append(hiddens is None)
        loss, hidden = self.unroll(batch, optimizer_idx, hiddens)
        return {"loss": loss, "hiddens": hidden}

    def optimizers_by_hand(self) -> list[SGD]:
        first, second = (list(cell.parameters()) for cell in self.cells)
        first += self.head.parameters()
        if self.text.num_optimizers == 1:
            return [SGD(first + second, lr=0.1, momentum=0.9)]
        return [SGD(first, lr=0.1, momentum=0.9), SGD(second, lr=0.2)]

    def configure_optimizers(self) -> Any:
        optimizers = self.optimizers_by_hand()
        if not self.text.frequencies:
            return optimizers
        pairs = zip(optimizers, self.text.frequencies, strict=True)
        return [{"optimizer": optimizer, "frequency": frequency} for optimizer, frequency in pairs]


@st.composite
def texts(draw: Any) -> Text:
    num_optimizers = draw(st.integers(1, 2))
    some = st.tuples(*[st.integers(1, 2)] * num_optimizers) if num_optimizers > 1 else st.just(())
    return Text(
        draw(st.sampled_from(["0.7", "0.8", "1.1", "1.3", "1.5"])),
        tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))),
        draw(st.integers(1, 3)),
        num_optimizers,
        draw(st.just(()) | some),
        draw(st.integers(1, 2)),
    )


@settings(max_examples=80, deadline=None)
@given(texts())
def test_splits_step_one_by_one_and_count_as_one_batch(text: Text) -> None:
    module, by_hand = seeded(Language, text), seeded(Language, text)
    generator = torch.Generator().manual_seed(3)
    inputs = [torch.randn(2, length, 1, generator=generator) for length in text.lengths]
    trainer = fit(module, inputs, max_epochs=text.num_epochs, truncated_bptt_steps=text.split_size)
    optimizers = by_hand.optimizers_by_hand()
    turns = [[idx] for idx, frequency in enumerate(text.frequencies) for _ in range(frequency)]
    turns = turns or [list(range(len(optimizers)))]
    num_batches, begins = 0, []
    for _ in range(text.num_epochs):
        for batch_idx, x in enumerate(inputs):
            hiddens: list[Any] = [None, None]
            for split_idx, split in enumerate(x.split(text.split_size, dim=1)):
                place = num_batches if text.era in ("0.7", "0.8", "1.1") else batch_idx
                for idx in turns[place % len(turns)]:
                    begins.append(split_idx == 0)
                    optimizers[idx].zero_grad()
                    loss, hidden = by_hand.unroll(split, idx, hiddens[idx])
                    wanted = [one for one in optimizers[idx].param_groups[0]["params"]]
                    gradients = torch.autograd.grad(loss, wanted, allow_unused=True)
                    for parameter, gradient in zip(wanted, gradients, strict=True):
                        parameter.grad = gradient
                    optimizers[idx].step()
                    hiddens[idx] = hidden.detach()
            num_batches += 1
    assert module.begins == begins
    assert same_bits(weights(module), weights(by_hand))
    assert trainer.global_step == num_batches


class Toggling(TwoNets):
    """Chooses by itself what requires gradients."""

    hook_era = "1.4"

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []
        self.generator.bias.requires_grad = False

    def training_step(self, batch: Tensor, batch_idx: int, optimizer_idx: int) -> Any:
        self.seen.append([parameter.requires_grad for parameter in self.parameters()])
        return self.loss(batch, optimizer_idx)

    def toggle_optimizer(self, optimizer: Any, optimizer_idx: int) -> None:
        self.seen.append(optimizer_idx)
        for parameter in self.generator.parameters():
            parameter.requires_grad = optimizer_idx == 0


def test_a_module_may_toggle_optimizers_by_itself() -> None:
    module = seeded(Toggling)
    fit(module, make_inputs(2))
    assert module.seen == [0, [True] * 4, 1, [False, False, True, True]] * 2
    assert [parameter.requires_grad for parameter in module.parameters()] == [True, False, True, True]


def test_a_module_may_end_a_turn_by_itself_as_well() -> None:
    class Ending(Toggling):
        def untoggle_optimizer(self, optimizer_idx: int) -> None:
            self.seen.append(f"ends {optimizer_idx}")

    module = seeded(Ending)
    fit(module, make_inputs(1))
    assert module.seen == [0, [True] * 4, "ends 0", 1, [False, False, True, True], "ends 1"]


class ByHand(TwoNets):
    """Steps both optimizers by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Any] = []

    @property
    def automatic_optimization(self) -> bool:
        return False

    def training_step(self, batch: Tensor, batch_idx: int, optimizer_idx: int) -> None:
        self.told.append((batch_idx, optimizer_idx))
        for idx, optimizer in enumerate(self.trainer.fit_loop.optimization.optimizers):
            differentiate(lambda idx=idx: self.loss(batch, idx), optimizer)
            optimizer.step()
            if not self.hook_era.startswith("1.1"):
                optimizer.zero_grad()


@pytest.mark.parametrize("era", ["1.1.8", "1.3", "1.4"])
def test_before_1_5_a_step_that_optimizes_by_hand_gets_the_first_index(era: str) -> None:
    module, by_hand, inputs = seeded(of_era(era, ByHand)), seeded(ByHand), make_inputs(3)
    trainer = fit(module, inputs)
    assert module.told == [(0, 0), (1, 0), (2, 0)]
    assert trainer.global_step == 3
    optimizers = by_hand.optimizers_by_hand()
    for x in inputs:
        step_by_hand(by_hand, optimizers, x, 0, 1)
    assert same_bits(weights(module), weights(by_hand))


def test_steps_by_hand_zero_gradients_in_1_1_and_no_earlier() -> None:
    class InTwoSteps(ByHand):
        seen: ClassVar[list[bool]]

        def training_step(self, batch: Tensor, batch_idx: int, optimizer_idx: int) -> None:
            optimizer = self.trainer.fit_loop.optimization.optimizers[0]
            differentiate(lambda: self.loss(batch, 0), optimizer)
            optimizer.step()
            self.seen.append(any(one.grad is not None for group in optimizer.param_groups for one in group["params"]))

    for era, keeps in (("1.0", True), ("1.0.8", True), ("1.1", False), ("1.1.8", False), ("1.2", True)):
        kind = type("OfEra", (InTwoSteps,), {"hook_era": era, "seen": []})
        fit(seeded(kind), make_inputs(2))
        assert kind.seen == [keeps, keeps], era


def test_in_1_1_a_step_by_hand_may_be_left_at_its_closure() -> None:
    class Accumulating(ByHand):
        hook_era = "1.1"

        def training_step(self, batch: Tensor, batch_idx: int, optimizer_idx: int) -> None:
            first, second = self.trainer.fit_loop.optimization.optimizers

            def closure() -> None:
                self.loss(batch, 0).backward()

            first.step(closure=closure, make_optimizer_step=batch_idx % 2 == 1)
            second.step(make_optimizer_step=False)

    module, by_hand, inputs = seeded(Accumulating), seeded(ByHand), make_inputs(4)
    trainer = fit(module, inputs)
    optimizer = by_hand.optimizers_by_hand()[0]
    for batch_idx, x in enumerate(inputs):
        by_hand.loss(x, 0).backward()
        if batch_idx % 2 == 1:
            optimizer.step()
            optimizer.zero_grad()
    assert same_bits(weights(module), weights(by_hand))
    assert trainer.global_step == 4
    for used in trainer.fit_loop.optimization.optimizers:
        with pytest.raises(TypeError, match="make_optimizer_step"):
            used.step(make_optimizer_step=True)  # as it was before the fit


def test_in_1_5_it_is_an_error_that_names_the_way_out() -> None:
    with pytest.raises(ValueError, match="`training_step` must be one without `optimizer_idx` under manual") as caught:
        fit(seeded(of_era("1.5", ByHand)), make_inputs(1))
    assert 'declare it: `hook_era = "1.4"`' in "".join(caught.value.__notes__)


def test_by_hand_a_batch_counts_even_if_nothing_steps() -> None:
    class Idle(ByHand):
        hook_era = "1.4"

        def training_step(self, batch: Tensor, batch_idx: int) -> None:
            pass

    assert fit(seeded(Idle), make_inputs(2), max_epochs=-1, max_steps=5).global_step == 5
