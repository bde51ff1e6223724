"""Losses that are weighted by their numbers of items, over windows and ranks."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from bare_parts import BareStrategy, BareTrainer, Net, Sized, Unsized, hooked, same_bits, seeded, sgd, weights
from bare_ranks import ThreadedStrategy, on_ranks
from hypothesis import given, settings
from hypothesis import strategies as st
from logical_parts import LogicalStrategy
from own_optimizers import Sam
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, TensorDataset

from camshaft.loops import WeightedLoss
from camshaft.loops.metrics.log import MetricLog, MetricLogging
from camshaft.loops.metrics.values import Reduction, join_reductions, load_nested, save_nested
from camshaft.loops.optimization.update import detached

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

Batch = tuple[Tensor, Tensor, Tensor]


def batches_of(num_items: Sequence[int], seed: int = 1) -> list[Batch]:
    """Batches of four samples, of which so many are items that count."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for number in num_items:
        x = torch.randn(4, 3, generator=generator)
        made.append((x, x.sum(1, keepdim=True), (torch.arange(4) < number).float()))
    return made


class Weighted(Net):
    """Returns the mean over the items of a batch, with a weight of some kind."""

    as_number = False

    def mean_of(self, batch: Batch) -> tuple[Tensor, Tensor]:
        x, y, counts = batch
        errors = (self(x) - y).square().squeeze(1)
        return (errors * counts).sum() / counts.sum().clamp(min=1), counts.sum()

    def training_step(self, batch: Batch, batch_idx: int) -> Any:
        loss, weight = self.mean_of(batch)
        return WeightedLoss(loss, int(weight) if self.as_number else weight)


def by_hand(of_ranks: Sequence[Sequence[Batch]], window: int, clip_val: float | None, epochs: int = 2) -> list[Tensor]:
    """Train on one large batch for each update."""
    net = seeded(Weighted)
    optimizer = sgd(net)
    for _ in range(epochs):
        for start in range(0, len(of_ranks[0]), window):
            parts = [one for batches in of_ranks for one in batches[start : start + window]]
            optimizer.zero_grad()
            net.mean_of(tuple(torch.cat(part) for part in zip(*parts, strict=True)))[0].backward()
            if clip_val is not None:
                nn.utils.clip_grad_norm_(net.parameters(), clip_val)
            optimizer.step()
    return weights(net)


def assert_close(found: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@settings(max_examples=25, deadline=None)
@given(
    num_ranks=st.integers(1, 3),
    num_batches=st.integers(1, 6),
    window=st.integers(1, 4),
    sized=st.booleans(),
    as_number=st.booleans(),
    clip_val=st.sampled_from([None, 0.05]),
    data=st.data(),
)
def test_an_update_is_that_of_one_large_batch(
    num_ranks: int, num_batches: int, window: int, sized: bool, as_number: bool, clip_val: Any, data: st.DataObject
) -> None:
    counts = st.lists(st.integers(0, 4), min_size=num_batches, max_size=num_batches)
    of_ranks = [batches_of(data.draw(counts), seed) for seed in range(num_ranks)]

    def fit(strategy: ThreadedStrategy) -> list[Tensor]:
        net = seeded(type("Kind", (Weighted,), {"as_number": as_number}))
        trainer = BareTrainer(
            net, strategy=strategy, max_epochs=2, accumulate_grad_batches=window, gradient_clip_val=clip_val
        )
        trainer.fit((Sized if sized else Unsized)(of_ranks[strategy.global_rank]))
        assert trainer.global_step == 2 * -(-num_batches // window)
        return weights(net)

    expected = by_hand(of_ranks, window, clip_val)
    for found in on_ranks(num_ranks, fit):
        assert_close(found, expected)


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("batch_idx", [0, 1, 2, 4])
def test_going_on_inside_an_epoch_and_its_windows_is_exact(num_ranks: int, batch_idx: int) -> None:
    def fit(strategy: ThreadedStrategy, checkpoint: Any = None) -> BareTrainer:
        def save(trainer: BareTrainer, _: Any, outputs: Any, batch: Any, idx: int) -> None:
            if idx == batch_idx and trainer.progress.current_epoch == 1:
                trainer.save_checkpoint("inside")

        net = seeded(Weighted)
        trainer = BareTrainer(
            net,
            callbacks=[hooked(on_train_batch_end=save)],
            strategy=strategy,
            max_epochs=3,
            accumulate_grad_batches=2,
            stateless_loaders="fast_forward",
        )
        return trainer.fit(Sized(batches_of([4, 1, 3, 2, 4], strategy.global_rank)), checkpoint=checkpoint)

    def both(strategy: ThreadedStrategy) -> None:
        whole = fit(strategy)
        assert same_bits(weights(whole.module), weights(fit(strategy, whole.load("inside")).module))

    on_ranks(num_ranks, both)


def test_a_window_goes_on_on_other_ranks_with_the_weights_of_all() -> None:
    """Two ranks begin it, and one ends it, with a batch of half as many samples as theirs together."""
    samples = [torch.cat(part) for part in zip(*batches_of([4, 1, 3, 2, 1, 4]), strict=True)]

    def fit(strategy: ThreadedStrategy, checkpoint: Any = None) -> BareTrainer:
        def save(trainer: BareTrainer, *_: Any) -> None:
            if trainer.progress.batches.ready == 2:
                trainer.save_checkpoint("inside")

        callback, arguments = hooked(on_train_batch_end=save), {"max_epochs": 1, "accumulate_grad_batches": 3}
        trainer = BareTrainer(seeded(Weighted), callbacks=[callback], strategy=strategy, **arguments)
        return trainer.fit(DataLoader(TensorDataset(*samples), batch_size=4), checkpoint=checkpoint)

    checkpoint = on_ranks(2, fit)[0].load("inside")
    [trainer] = on_ranks(1, lambda strategy: fit(strategy, checkpoint))
    net = seeded(Weighted)
    optimizer = sgd(net)
    for part in (slice(0, 20), slice(20, 24)):
        optimizer.zero_grad()
        net.mean_of(tuple(one[part] for one in samples))[0].backward()
        optimizer.step()
    assert_close(weights(trainer.module), weights(net))


def test_a_window_without_items_changes_nothing_by_itself() -> None:
    net = seeded(Weighted, lambda module: torch.optim.SGD(module.parameters(), lr=0.1))
    before = weights(net)
    gradients: list[Tensor] = []
    look = hooked(on_before_optimizer_step=lambda *_: gradients.extend(one.grad.clone() for one in net.parameters()))
    trainer = BareTrainer(net, callbacks=[look], max_epochs=1, accumulate_grad_batches=2)
    trainer.fit(Sized(batches_of([0, 0])))
    assert trainer.global_step == 1 and same_bits(weights(net), before) and not any(one.any() for one in gradients)


def test_hooks_get_the_loss_and_its_weight_without_a_graph() -> None:
    seen: list[Any] = []
    callback = hooked(on_train_batch_end=lambda trainer, module, outputs, batch, batch_idx: seen.append(outputs))
    BareTrainer(seeded(Weighted), callbacks=[callback], max_epochs=1).fit(Sized(batches_of([3])))
    assert seen[0]["weight"] == 3 and not seen[0]["loss"].requires_grad and seen[0]["loss"].shape == ()


@pytest.mark.parametrize("owner", ["lbfgs", "line search", "sam", "optimizer_step", "configure_gradient_clipping"])
def test_updates_with_an_owner_follow_the_mean_over_items_of_all_ranks(owner: str) -> None:
    """Against one rank that has the batches of both, and with logical ranks."""
    of_ranks = [batches_of([4, 1, 2], 0), batches_of([1, 3, 4], 1)]
    both = [tuple(map(torch.cat, zip(*pair, strict=True))) for pair in zip(*of_ranks, strict=True)]
    parts = [list(map(torch.cat, zip(*batches, strict=True))) for batches in of_ranks]
    in_turns = TensorDataset(*(torch.stack(pair, 1).flatten(0, 1) for pair in zip(*parts, strict=True)))

    class Owned(Weighted):
        if owner == "optimizer_step":

            def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any) -> None:
                optimizer.step(closure=optimizer_closure)

        if owner == "configure_gradient_clipping":

            def configure_gradient_clipping(self, optimizer: Any, clip_val: Any, algorithm: Any) -> None:
                nn.utils.clip_grad_norm_(self.parameters(), 0.1)

    def configure(module: nn.Module) -> Any:
        if owner == "sam":
            return Sam(module.parameters())
        if owner in ("lbfgs", "line search"):
            search = None if owner == "lbfgs" else "strong_wolfe"
            return torch.optim.LBFGS(module.parameters(), max_iter=3, line_search_fn=search)
        return sgd(module)

    def fit(strategy: BareStrategy, loader: Any) -> list[Tensor]:
        net = seeded(Owned, configure)
        BareTrainer(net, strategy=strategy, max_epochs=2).fit(loader)
        return weights(net)

    expected = fit(BareStrategy(), Sized(both))
    assert_close(fit(LogicalStrategy(2), DataLoader(in_turns, batch_size=4)), expected)
    if owner != "line search":  # which each rank decides by its own loss
        for found in on_ranks(2, lambda strategy: fit(strategy, Sized(of_ranks[strategy.global_rank]))):
            assert_close(found, expected)


def test_each_of_several_optimizers_and_each_split_has_its_own_window() -> None:
    """Splits of unlike weights make one update each two, of the first optimizer alone; the other's loss is plain."""

    class Split(Weighted):
        truncated_bptt_steps = 1

        def tbptt_split_batch(self, batch: Any, split_size: int) -> list[Any]:
            return list(batch)

        def training_step(self, batch: Any, batch_idx: int, optimizer_idx: int, hiddens: Any) -> Any:
            loss, weight = self.mean_of(batch)
            if optimizer_idx == 0:
                return WeightedLoss(loss, weight, hiddens=torch.zeros(()))
            return {"loss": loss, "hiddens": torch.zeros(())}

    def configure(module: Any) -> Any:
        return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (module.layer, module.head)]

    def step(part: nn.Module, gradients: Sequence[Tensor]) -> None:
        with torch.no_grad():
            for parameter, gradient in zip(part.parameters(), gradients, strict=True):
                parameter -= 0.1 * gradient

    one, two = batches_of([4, 1])
    net, hand = seeded(Split, configure), seeded(Weighted)
    BareTrainer(net, max_epochs=1, accumulate_grad_batches=2).fit(Sized([(one, two)]))
    joined = tuple(map(torch.cat, zip(one, two, strict=True)))
    of_head = torch.autograd.grad(hand.mean_of(one)[0] / 2, list(hand.head.parameters()))
    step(hand.layer, torch.autograd.grad(hand.mean_of(joined)[0], list(hand.layer.parameters())))
    of_second = torch.autograd.grad(hand.mean_of(two)[0] / 2, list(hand.head.parameters()))
    step(hand.head, [a + b for a, b in zip(of_head, of_second, strict=True)])
    assert_close(weights(net), weights(hand))


class Mixing(Weighted):
    def training_step(self, batch: Batch, batch_idx: int) -> Any:
        loss, weight = self.mean_of(batch)
        return WeightedLoss(loss, weight) if batch[2].sum() > 1 else loss


def test_losses_of_both_kinds_are_refused_on_every_rank() -> None:
    message = r"`loss` must be of one kind in all batches and on all ranks, .* but got {} in Mixing\.training_step"
    for items, got in ([3, 1], "plain after WeightedLoss"), ([1, 3], "WeightedLoss after plain"):
        with pytest.raises(TypeError, match=message.format(got)):
            BareTrainer(seeded(Mixing), max_epochs=1).fit(Sized(batches_of(items)))

    def fit(strategy: ThreadedStrategy) -> None:
        with pytest.raises(TypeError, match=message.format(r"\['WeightedLoss', 'plain'\] on the ranks")):
            BareTrainer(seeded(Mixing), strategy=strategy, max_epochs=1).fit(
                Sized(batches_of([3 - 2 * strategy.global_rank]))
            )

    on_ranks(2, fit)


def test_weights_where_nothing_weighs_them_and_values_that_are_none_are_refused() -> None:
    class ByHand(Weighted):
        automatic_optimization = False

    with pytest.raises(TypeError, match=r"under manual optimization, .*\.ByHand\.training_step\. Weigh by hand"):
        BareTrainer(seeded(ByHand), max_epochs=1).fit(Sized(batches_of([3])))
    loss = torch.tensor(1.0)
    for weight, kind in ((-1, ValueError), (float("nan"), ValueError), (torch.ones(2), ValueError), ("3", TypeError)):
        with pytest.raises(kind, match="`weight` must be a finite number or a tensor with one element, 0 or more"):
            WeightedLoss(loss, weight)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="`loss` must be a tensor"):
        WeightedLoss(1.0, 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`batch_size` must be left out for a WeightedLoss"):
        MetricLogging().log("loss", WeightedLoss(loss, 3), batch_size=2)


@pytest.mark.parametrize(
    "again",
    [
        copy.deepcopy,
        lambda one: pickle.loads(pickle.dumps(one)),
        detached,
        lambda one: tree_map(lambda leaf: leaf, one),
    ],
)
def test_a_copy_is_of_its_class(again: Any) -> None:
    made = again(WeightedLoss(torch.tensor(1.0), 3, logits=torch.ones(2)))
    assert type(made) is WeightedLoss and made.loss == 1 and made.weight == 3 and made["logits"].shape == (2,)


@pytest.mark.exhaustive
def test_a_compiled_step_may_return_one() -> None:
    class Compiled(Weighted):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            object.__setattr__(self, "mean_and_weight", torch.compile(self._step, backend="aot_eager"))

        def _step(self, batch: Batch) -> Any:
            return WeightedLoss(*self.mean_of(batch))

        def training_step(self, batch: Batch, batch_idx: int) -> Any:
            return self.mean_and_weight(batch)

    batches = batches_of([4, 1, 3])
    net = seeded(Compiled)
    BareTrainer(net, max_epochs=2, accumulate_grad_batches=2).fit(Sized(batches))
    assert_close(weights(net), by_hand([batches], 2, None))


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_logged_one_weighs_the_epochs_mean_over_batches_and_ranks(num_ranks: int) -> None:
    of_ranks = [batches_of([4, 1, 0], 0), batches_of([1, 3, 2], 1)][:num_ranks]

    class Logging(MetricLogging, Weighted):
        def training_step(self, batch: Batch, batch_idx: int) -> Any:
            weighted = WeightedLoss(*self.mean_of(batch))
            self.log("loss", weighted, on_step=True, on_epoch=True)
            self.log("number", WeightedLoss(weighted.loss, int(weighted["weight"])), on_step=False, on_epoch=True)
            return weighted

    def fit(strategy: ThreadedStrategy) -> dict[str, Any]:
        net = seeded(Logging, lambda module: torch.optim.SGD(module.parameters(), lr=0.0))
        trainer = BareTrainer(net, strategy=strategy, max_epochs=1)
        trainer.metrics = MetricLog(progress=trainer.progress, strategy=strategy)
        trainer.metrics.attach(net)
        trainer.fit(Sized(of_ranks[strategy.global_rank]))
        return trainer.metrics.callback_metrics

    parts = [one for batches in of_ranks for one in batches]
    expected = seeded(Weighted).mean_of(tuple(map(torch.cat, zip(*parts, strict=True))))[0]
    for rank, values in enumerate(on_ranks(num_ranks, fit)):
        assert values["loss_epoch"] == values["number"] == pytest.approx(float(expected), rel=1e-5)
        assert values["loss_step"] == pytest.approx(float(seeded(Weighted).mean_of(of_ranks[rank][-1])[0]))


@pytest.mark.parametrize("automatic", [True, False])
def test_an_epoch_without_an_update_warns_once(automatic: bool) -> None:
    class Forgetful(Net):
        automatic_optimization = automatic

        def training_step(self, batch: Any, batch_idx: int) -> None:
            self.loss(batch[:2])

    did = "returned no loss" if automatic else "stepped no optimizer"
    with pytest.warns(UserWarning) as warned:
        BareTrainer(seeded(Forgetful), max_epochs=3).fit(Sized(batches_of([1])))
    messages = [str(one.message) for one in warned if "No update was made" in str(one.message)]
    assert len(messages) == 1 and "in epoch 0: `" in messages[0] and f"Forgetful.training_step` {did}" in messages[0]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.floats(-5, 5), st.integers(0, 9), st.booleans()), min_size=1, max_size=300), st.data())
def test_weights_on_a_device_count_as_numbers_do_across_saving_and_joining(parts: Any, data: st.DataObject) -> None:
    """Tensors stand for those on an accelerator, which `log` hands on unread."""

    def make() -> Reduction:
        return Reduction("mean", "loss", lambda tensors: None)

    split, numbers, halves = data.draw(st.integers(0, len(parts))), make(), [make(), make()]
    for idx, (value, weight, is_tensor) in enumerate(parts):
        kept = torch.tensor(value, dtype=torch.float64)
        numbers.add(kept, weight)
        halves[idx >= split].add(kept, torch.tensor(float(weight), dtype=torch.float64) if is_tensor else weight)
    saved, joined = [load_nested(save_nested(one.state_dict())) for one in halves], make()
    joined.load_state_dict(join_reductions(*saved, "mean"))
    found, expected = joined.part(), numbers.part()
    assert found is not None and expected is not None
    assert float(found.weight) == expected.weight and float(found.value) == pytest.approx(float(expected.value))
