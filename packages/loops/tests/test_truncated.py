"""Truncated backpropagation through time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from bare_parts import BareTrainer, Sized, hooked, same_bits, seeded, weights
from sequence_parts import Plan, Recurrent, fit, make_sequences
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Sum(nn.Module):
    """A module whose hidden state counts the time steps that it has seen."""

    truncated_bptt_steps = 2

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.seen: list[tuple[int, int, Any]] = []
        for name, value in attributes.items():
            object.__setattr__(self, name, value)

    def training_step(self, batch: Any, batch_idx: int, hiddens: Any) -> Any:
        self.seen.append((batch_idx, batch.shape[1], hiddens))
        hidden = (0 if hiddens is None else hiddens["count"]) + self.weight * batch.shape[1]
        return {"loss": hidden.sum(), "hiddens": {"count": hidden}}

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.0)


def sequences(*lengths: int) -> Sized:
    return Sized([torch.ones(1, length) for length in lengths])


def test_a_batch_is_trained_on_in_splits_with_the_hidden_state_carried_on() -> None:
    module = Sum()
    trainer = BareTrainer(module, max_epochs=1).fit(sequences(5, 2))
    seen = [(batch_idx, length, hiddens and hiddens["count"].item()) for batch_idx, length, hiddens in module.seen]
    assert seen == [(0, 2, None), (0, 2, 2.0), (0, 1, 4.0), (1, 2, None)]
    assert not any(hiddens["count"].requires_grad for *_, hiddens in module.seen if hiddens is not None)
    assert trainer.global_step == 4


@pytest.mark.parametrize(("of_module", "of_loop"), [(3, None), (0, 3), (None, 3), (3, 3)])
def test_the_loop_or_the_module_says_how_long_splits_are(of_module: Any, of_loop: Any) -> None:
    module = Sum(truncated_bptt_steps=of_module)
    BareTrainer(module, max_epochs=1, truncated_bptt_steps=of_loop).fit(sequences(5))
    assert [length for _, length, _ in module.seen] == [3, 2]


@pytest.mark.parametrize("of_module", [0, None])
def test_without_either_batches_stay_whole_and_hiddens_is_none(of_module: Any) -> None:
    module = Sum(truncated_bptt_steps=of_module)
    BareTrainer(module, max_epochs=1).fit(sequences(5, 4))
    assert module.seen == [(0, 5, None), (1, 4, None)]


def test_batch_end_gets_what_the_last_split_returned_without_any_graph() -> None:
    outputs: list[Any] = []
    callback = hooked(on_train_batch_end=lambda trainer, module, output, *_: outputs.append(output))
    BareTrainer(Sum(), callbacks=[callback], max_epochs=1).fit(sequences(5))
    [output] = outputs
    assert output["loss"].item() == output["hiddens"]["count"].item() == 5.0
    assert not output["loss"].requires_grad and not output["hiddens"]["count"].requires_grad


def test_with_several_optimizers_batch_end_gets_that_of_each() -> None:
    outputs: list[Any] = []
    callback = hooked(on_train_batch_end=lambda trainer, module, output, *_: outputs.append(output))
    plan = Plan(num_optimizers=2, split_size=2, lengths=(4,), none_at=frozenset({(0, 0, 0)}))
    fit(seeded(Recurrent, plan), plan, callbacks=[callback])
    assert len(outputs[0]) == 2
    assert not any(output[key].requires_grad for output in outputs[0] for key in ("loss", "hiddens"))


def test_each_optimizer_carries_its_own_hidden_state() -> None:
    """A split's state is not handed from one optimizer to the next, which would see its time steps twice."""
    plan = Plan(num_optimizers=2, split_size=2, lengths=(4,), none_at=frozenset({(0, 0, 1)}))
    module = seeded(Recurrent, plan)
    fit(module, plan)
    assert module.calls == [(0, 0, True), (0, 1, True), (0, 0, False), (0, 1, True)]


def test_the_modules_own_split_takes_the_place_of_the_default() -> None:
    asked: list[Any] = []

    def split(batch: Any, split_size: int) -> list[Any]:
        asked.append(split_size)
        return [batch[:, :1], batch[:, 1:]]

    module = Sum(tbptt_split_batch=split)
    BareTrainer(module, max_epochs=1).fit(sequences(5))
    assert [length for _, length, _ in module.seen] == [1, 4]
    assert asked == [2]


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        ([], ValueError, r"must be a list of at least one split, but got \[\]"),
        (iter([1]), TypeError, "must be a list of at least one split, but got <list_iterator"),
        (torch.ones(2, 2), TypeError, "must be a list of at least one split, but got tensor"),
    ],
)
def test_an_own_split_that_makes_no_sense_is_an_error(returned: Any, error: Any, message: str) -> None:
    module = Sum(tbptt_split_batch=lambda batch, split_size: returned)
    with pytest.raises(error, match=rf"`return value` {message}[\s\S]* in Sum\.tbptt_split_batch"):
        BareTrainer(module, max_epochs=1).fit(sequences(5))


def test_a_batch_without_time_is_an_error() -> None:
    with pytest.raises(ValueError, match="`batch` must be made of parts of one and the same length in time"):
        BareTrainer(Sum(), max_epochs=1).fit(Sized([torch.ones(3)]))


def test_a_step_that_does_not_return_its_hidden_state_is_an_error() -> None:
    class Forgetful(Sum):
        def training_step(self, batch: Any, batch_idx: int, hiddens: Any) -> Any:
            return self.weight.sum()

    with pytest.raises(TypeError, match=r"`return value` must be a dictionary with 'hiddens'.* in .*Forgetful"):
        BareTrainer(Forgetful(), max_epochs=1).fit(sequences(5))


@pytest.mark.parametrize(
    ("attribute", "argument", "error", "message"),
    [
        (3, 2, ValueError, r"`truncated_bptt_steps` must be that of the fit \(2\) or not set, but got 3 .* in Sum"),
        (-1, None, ValueError, "`truncated_bptt_steps` must be at least 0, but got -1 .* in Sum"),
        (2.0, None, TypeError, r"`truncated_bptt_steps` must be an int or None, but got 2\.0 .* in Sum"),
        (True, None, TypeError, "`truncated_bptt_steps` must be an int or None, but got True .* in Sum"),
    ],
)
def test_lengths_of_splits_that_make_no_sense_are_refused(
    attribute: Any, argument: Any, error: Any, message: str
) -> None:
    module = Sum(truncated_bptt_steps=attribute)
    with pytest.raises(error, match=message):
        BareTrainer(module, max_epochs=1, truncated_bptt_steps=argument).fit(sequences(5))
    assert not module.seen


@pytest.mark.parametrize("automatic", [True, False])
def test_a_step_that_does_not_name_hiddens_is_refused_before_anything_runs(automatic: bool) -> None:
    class Nameless(Sum):
        automatic_optimization = automatic

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            raise AssertionError

    message = (
        r"`training_step` must be one that names `hiddens`, since batches are split into 2 time steps each, but got"
    )
    with pytest.raises(ValueError, match=rf"{message}[\s\S]* in .*Nameless\. Take `hiddens`"):
        BareTrainer(Nameless(), max_epochs=1).fit(sequences(5))


def test_windows_count_splits_and_cross_batches() -> None:
    counts: list[int] = []
    callback = hooked(on_train_batch_end=lambda trainer, *_: counts.append(trainer.global_step))
    trainer = BareTrainer(Sum(), callbacks=[callback], max_epochs=1, accumulate_grad_batches=3)
    trainer.fit(sequences(4, 2, 6, 2))  # splits: 2, 1, 3, 1
    assert counts == [0, 1, 2, 3]


def test_the_batch_in_which_max_steps_is_reached_is_finished() -> None:
    module = Sum()
    assert BareTrainer(module, max_steps=3).fit(sequences(4, 8, 2)).global_step == 6
    assert len(module.seen) == 6


def test_an_optimizer_that_evaluates_the_loss_itself_begins_each_time_with_the_splits_hidden_state() -> None:
    plan = Plan(split_size=2, lengths=(5, 4))

    class ByLBFGS(Recurrent):
        def make_optimizers(self) -> Any:
            return [torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=3)]

    module, by_hand = seeded(ByLBFGS, plan), seeded(ByLBFGS, plan)
    assert fit(module, plan).global_step == 5
    [optimizer] = by_hand.make_optimizers()
    for x, _ in make_sequences(plan):
        hiddens = last = None
        for piece in x.split(2, dim=1):

            def closure(piece: Any = piece, hiddens: Any = hiddens) -> Any:
                nonlocal last
                optimizer.zero_grad()
                loss, last = by_hand.unroll(piece, 0, hiddens)
                loss.backward()
                return loss

            optimizer.step(closure)
            hiddens = last.detach()
    assert same_bits(weights(module), weights(by_hand))


class ByHand(Sum):
    """Steps in every split but the second of a batch."""

    automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int, hiddens: Any) -> Any:
        outputs = super().training_step(batch, batch_idx, hiddens)
        if hiddens is None or hiddens["count"].item() != 2.0:
            self.optimizer.zero_grad()
            outputs["loss"].backward()
            self.optimizer.step()
        return outputs

    def configure_optimizers(self) -> Any:
        self.optimizer = super().configure_optimizers()
        return self.optimizer


def test_manual_optimization_runs_split_by_split_and_counts_those_with_a_step() -> None:
    module, outputs = ByHand(), []
    callback = hooked(on_train_batch_end=lambda trainer, module, output, *_: outputs.append(output))
    trainer = BareTrainer(module, callbacks=[callback], max_epochs=1).fit(sequences(6, 2))
    seen = [(batch_idx, length, hiddens and hiddens["count"].item()) for batch_idx, length, hiddens in module.seen]
    assert seen == [(0, 2, None), (0, 2, 2.0), (0, 2, 4.0), (1, 2, None)]
    assert trainer.global_step == 3
    assert not any(output["hiddens"]["count"].requires_grad for output in outputs)
    assert BareTrainer(ByHand(), max_steps=1).fit(sequences(6, 2)).global_step == 2


def test_without_an_optimizer_batches_are_split_too() -> None:
    module = Sum(configure_optimizers=lambda: None)
    BareTrainer(module, max_epochs=1).fit(sequences(5))
    assert [length for _, length, _ in module.seen] == [2, 2, 1]
