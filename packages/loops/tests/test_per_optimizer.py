"""Several optimizers, each in its turn."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from bare_parts import BareTrainer, Net, Sized, hooked, make_batches, same_bits, seeded, weights
from graphs import Graphs
from overriding_parts import override
from torch.optim import LBFGS, SGD

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Two(Net):
    """An optimizer for the layer, and one for the head; `act` is called in each step with the module."""

    def __init__(self, act: Any = None, frequencies: tuple[int, ...] = (), skipped: tuple[Any, ...] = ()) -> None:
        super().__init__()
        object.__setattr__(self, "act", act)
        self.frequencies, self.skipped = frequencies, skipped
        self.steps: list[tuple[int, int]] = []

    def training_step(self, batch: Any, batch_idx: int, optimizer_idx: int) -> Any:
        self.steps.append((batch_idx, optimizer_idx))
        if self.act is not None:
            self.act(self)
        if (batch_idx, optimizer_idx) in self.skipped:
            return None
        return {"loss": self.loss(batch), "whose": optimizer_idx}

    def configure_optimizers(self) -> Any:
        optimizers = [SGD(self.layer.parameters(), lr=0.1), SGD(self.head.parameters(), lr=0.2)]
        if not self.frequencies:
            return optimizers
        pairs = zip(optimizers, self.frequencies, strict=True)
        return [{"optimizer": optimizer, "frequency": frequency} for optimizer, frequency in pairs]


def test_each_optimizer_steps_once_in_each_batch_which_is_one_update() -> None:
    net = seeded(Two)
    trainer = BareTrainer(net, max_epochs=1).fit(Sized(make_batches(3)))
    assert net.steps == [(batch_idx, optimizer_idx) for batch_idx in range(3) for optimizer_idx in range(2)]
    assert trainer.global_step == 3


def test_only_the_parameters_of_the_optimizer_at_work_require_gradients() -> None:
    seen: list[list[bool]] = []
    net = seeded(Two, lambda module: seen.append([parameter.requires_grad for parameter in module.parameters()]))
    net.head.bias.requires_grad = False
    BareTrainer(net, max_epochs=1).fit(Sized(make_batches(2)))
    layer, head = [True, True, False, False], [False, False, True, False]  # what was frozen before stays so
    assert seen == [layer, head, layer, head]
    assert [parameter.requires_grad for parameter in net.parameters()] == [True, True, True, False]


@pytest.mark.parametrize("overrides", [(), ("optimizer_step",)])
def test_parameters_require_gradients_again_after_an_error(overrides: tuple[str, ...]) -> None:
    def fail(module: Any) -> None:
        raise ValueError("on purpose")

    net = override(seeded(Two, fail), *overrides)
    with pytest.raises(ValueError, match="on purpose"):
        BareTrainer(net, max_epochs=1).fit(Sized(make_batches(1)))
    assert all(parameter.requires_grad for parameter in net.parameters())


def test_hooks_get_the_optimizer_that_is_at_work() -> None:
    calls: list[tuple[str, int]] = []

    def noting(name: str) -> Any:
        return lambda trainer, module, optimizer: calls.append(
            (name, trainer.fit_loop.optimization.optimizers.index(optimizer))
        )

    callback = hooked(on_before_zero_grad=noting("zero"), on_before_optimizer_step=noting("update"))
    BareTrainer(seeded(Two), callbacks=[callback], max_epochs=1).fit(Sized(make_batches(1)))
    assert calls == [("zero", 0), ("update", 0), ("zero", 1), ("update", 1)]


def test_an_override_of_optimizer_step_may_step_each_optimizer_at_its_own_pace() -> None:
    class Paced(Two):
        def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any) -> None:
            if optimizer is self.trainer.fit_loop.optimization.optimizers[0] or batch_idx % 2:
                optimizer.step(optimizer_closure)
            else:
                optimizer_closure()

    net, by_hand, batches = seeded(Paced), seeded(Two), make_batches(4)
    trainer = BareTrainer(net, max_epochs=1)
    object.__setattr__(net, "trainer", trainer)
    assert trainer.fit(Sized(batches)).global_step == 4
    for batch_idx, batch in enumerate(batches):
        for idx, optimizer in enumerate(by_hand.configure_optimizers()):
            if idx == 0 or batch_idx % 2:
                by_hand.zero_grad()
                by_hand.loss(batch).backward()
                optimizer.step()
    assert same_bits(weights(net), weights(by_hand))


def test_a_step_without_a_loss_leaves_out_its_optimizer_alone() -> None:
    outputs: list[Any] = []
    callback = hooked(on_train_batch_end=lambda trainer, module, output, *_: outputs.append(output))
    net = seeded(Two, skipped=((0, 0), (1, 1), (2, 0), (2, 1)))
    trainer = BareTrainer(net, callbacks=[callback], max_epochs=1).fit(Sized(make_batches(4)))
    assert trainer.global_step == 3
    assert [[output["whose"] for output in of_batch] for of_batch in outputs] == [[1], [0], [], [0, 1]]


def test_batch_end_gets_what_each_optimizers_step_returned_without_its_graph() -> None:
    outputs: list[Any] = []
    callback = hooked(on_train_batch_end=lambda trainer, module, output, *_: outputs.append(output))
    BareTrainer(seeded(Two), callbacks=[callback], max_epochs=1).fit(Sized(make_batches(1)))
    [[first, second]] = outputs
    assert (first["whose"], second["whose"]) == (0, 1)
    assert not first["loss"].requires_grad and not second["loss"].requires_grad


def test_the_graph_of_one_optimizer_is_gone_when_the_next_one_begins() -> None:
    graphs = Graphs()

    class Watching(Two):
        def training_step(self, batch: Any, batch_idx: int, optimizer_idx: int) -> Any:
            assert graphs.num_alive == 0
            return {"loss": graphs.watched(self.loss(batch))}

    BareTrainer(seeded(Watching), max_epochs=1).fit(Sized(make_batches(3)))
    assert graphs.num_watched == 6


@pytest.mark.parametrize(
    ("frequencies", "accumulate", "due"),
    [
        ((1, 1), 1, [0, 1, 0, 1, 0, 1, 0]),
        ((2, 1), 1, [0, 0, 1, 0, 0, 1, 0]),
        ((1, 3), 1, [0, 1, 1, 1, 0, 1, 1]),
        ((1, 1), 2, [0, 0, 1, 1, 0, 0, 1]),
        ((1, 2), 3, [0, 0, 0, 1, 1, 1, 1]),
    ],
)
def test_frequencies_count_windows_from_each_epochs_start(
    frequencies: tuple[int, ...], accumulate: int, due: list[int]
) -> None:
    net = seeded(Two, frequencies=frequencies)
    trainer = BareTrainer(net, max_epochs=2, accumulate_grad_batches=accumulate).fit(Sized(make_batches(7)))
    assert net.steps == 2 * list(enumerate(due))
    assert trainer.global_step == 2 * -(-7 // accumulate)


def test_an_optimizer_that_evaluates_the_loss_itself_works_beside_others() -> None:
    class Mixed(Two):
        def configure_optimizers(self) -> Any:
            return [LBFGS(self.layer.parameters(), lr=0.5, max_iter=3), SGD(self.head.parameters(), lr=0.1)]

    net, by_hand, batches = seeded(Mixed), seeded(Mixed), make_batches(2)
    assert BareTrainer(net, max_epochs=1).fit(Sized(batches)).global_step == 2
    lbfgs, sgd = by_hand.configure_optimizers()
    for batch in batches:

        def closure(batch: Any = batch) -> Any:
            lbfgs.zero_grad()
            loss = by_hand.loss(batch)
            loss.backward()
            return loss

        lbfgs.step(closure)
        sgd.zero_grad()
        by_hand.loss(batch).backward()
        sgd.step()
    assert same_bits(weights(net), weights(by_hand))


def test_optimizers_may_share_parameters_unless_their_gradients_would_mix() -> None:
    class Shared(Two):
        def configure_optimizers(self) -> Any:
            return [SGD(self.parameters(), lr=0.1), SGD(self.head.parameters(), lr=0.1)]

    net, by_hand, batches = seeded(Shared), seeded(Shared), make_batches(3)
    BareTrainer(net, max_epochs=1).fit(Sized(batches))
    optimizers = by_hand.configure_optimizers()
    for batch in batches:
        for optimizer in optimizers:
            optimizer.zero_grad()
            by_hand.loss(batch).backward()
            optimizer.step()
    assert same_bits(weights(net), weights(by_hand))
    message = "`accumulate_grad_batches` must be 1 if optimizers share parameters, .* but got 2 .* in .*Shared"
    with pytest.raises(ValueError, match=message):
        BareTrainer(net, max_epochs=1, accumulate_grad_batches=2).fit(Sized(batches))


def test_no_hook_of_the_loop_stays_on_the_optimizers_even_if_setting_up_fails() -> None:
    made: list[torch.optim.Optimizer] = []

    class Mixed(Two):
        def configure_optimizers(self) -> Any:
            made[:] = [SGD(self.head.parameters(), lr=0.1), LBFGS(self.layer.parameters())]
            return made

    net = override(seeded(Mixed), "optimizer_step")
    BareTrainer(net, max_epochs=1).fit(Sized(make_batches(1)))
    assert not any(optimizer._optimizer_step_post_hooks for optimizer in made)
    with pytest.raises(ValueError, match="`accumulate_grad_batches` must be 1 with LBFGS"):
        BareTrainer(net, max_epochs=1, accumulate_grad_batches=2).fit(Sized(make_batches(1)))
    assert not any(optimizer._optimizer_step_post_hooks for optimizer in made)
