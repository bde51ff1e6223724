"""How optimizers are stepped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from camshaft.hooks_core.optimizer_step import needs_closure
from camshaft.strategies.conformance.training import Clip, Life, Reference, Subject, adam, midpoint, momentum, one, sgd
from camshaft.strategies.conformance.trial import Trial, same


def prepared_optimizers_serve_as_the_originals(trial: Trial) -> None:
    """What `setup_optimizers` returns has the groups, state, step hooks and zeroing of the originals, in order."""
    with Life(trial, Subject(), _two) as life:
        num_prepared = len(life.optimizers)
        if not trial.expect(
            num_prepared == 2, "`setup_optimizers` must return as many as it got", f"got {num_prepared}"
        ):
            return
        for optimizer, layer in zip(life.optimizers, (life.module.first, life.module.last), strict=True):
            held = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
            own = [id(parameter) for parameter in layer.parameters()]
            trial.expect(held == own, "`param_groups` must hold the parameters of the original", "they hold others")
            needs = needs_closure(optimizer)
            trial.expect(not needs, "`step` must need a closure only where that of the original does", "it always does")
            for name in ("register_step_pre_hook", "register_step_post_hook"):
                has_it = callable(getattr(optimizer, name, None))
                trial.expect(has_it, f"what `setup_optimizers` returns must have `{name}`", "it has not")
        life.update(0)
        for optimizer in life.optimizers:
            num_states = len(optimizer.state_dict()["state"])
            trial.expect(
                num_states == 2, "`state_dict` must hold the state of each parameter", f"it holds {num_states}"
            )
            optimizer.load_state_dict(optimizer.state_dict())
        life.backward_on(1)
        for optimizer in life.optimizers:
            optimizer.zero_grad()
        left = [name for name, value in life.gradients().items() if bool(value.any())]
        trial.expect(not left, "`zero_grad` must leave no gradients", f"there are some of {left}")


def closures_are_evaluated(trial: Trial) -> None:
    """`optimizer_step` evaluates a closure: once for most optimizers, more often for those that want it themselves."""
    with Life(trial, Subject(), one(sgd)) as life:
        reference = Reference(life.strategy.num_data_ranks, one(sgd))
        scales = life.warm_up()
        for update_idx in range(2):  # unscaled by the closure, and not
            num_calls = _step_with_closure(life, update_idx, unscales=update_idx == 0)
            reference.update(update_idx)
            trial.expect(num_calls == 1, "SGD must evaluate its closure once", f"it did {num_calls} times")
        trial.expect_close(life.weights(), reference.weights(), "after two updates by closures,")
    reference = Reference(reference.num_data_ranks, one(midpoint))
    try:
        with Life(trial, Subject(), one(midpoint)) as life:
            needs = needs_closure(life.optimizer)
            trial.expect(needs, "`step` must need a closure where that of the original does", "it needs none")
            num_calls = _step_with_closure(life, 0, unscales=True)
            weights = life.weights()
    except (NotImplementedError, RuntimeError, TypeError, ValueError):
        if scales:
            return  # with scaled losses it cannot be done; saying so is enough
        raise

    def closure() -> Tensor:
        reference.backward_on(0)
        return torch.zeros(())

    reference.optimizers[0].step(closure)  # type: ignore[arg-type]  # torch says that a loss is a float
    trial.expect(
        num_calls == 2, "an optimizer must evaluate its closure as often as it wants", f"it did {num_calls} times"
    )
    trial.expect_close(weights, reference.weights(), "after an update with two evaluations,")


def step_hooks_run_for_each_update(trial: Trial) -> None:
    """The step hooks of an optimizer run once for each `optimizer_step`, and at no other time."""
    with Life(trial, Subject(), one(sgd)) as life:
        life.warm_up()
        counts = _count_steps(life.optimizer)
        life.backward_on(0)
        life.strategy.unscale_gradients(life.optimizer)
        life.strategy.clip_gradients(life.optimizer, 1.0, "norm")
        trial.expect_equal(dict(counts), {"pre": 0, "post": 0}, "calls of step hooks before the step")
        life.strategy.optimizer_step(life.optimizer)
        trial.expect_equal(dict(counts), {"pre": 1, "post": 1}, "calls of step hooks after one step")
        _step_with_closure(life, 1, unscales=True)
        trial.expect_equal(dict(counts), {"pre": 2, "post": 2}, "calls of step hooks after another by a closure")


def skipped_updates_are_told(trial: Trial) -> None:
    """`has_skipped_step` is true exactly if an update was skipped: then weights stay and no step hook runs."""
    with Life(trial, Subject(), one(sgd)) as life:
        life.warm_up()
        before, counts = life.weights(), _count_steps(life.optimizer)
        overflows = life.data_rank == 0  # on one rank; all must agree
        life.backward_on(0, factor=float("inf") if overflows else 1.0)
        life.strategy.unscale_gradients(life.optimizer)
        life.strategy.optimizer_step(life.optimizer)
        skipped, after = life.strategy.has_skipped_step, life.weights()
        trial.expect_same_everywhere(skipped, "`has_skipped_step` after gradients that are not finite on one rank")
        trial.settle()
        expected = {"pre": 0, "post": 0} if skipped else {"pre": 1, "post": 1}
        told = f"calls of step hooks where `has_skipped_step` is {skipped}"
        trial.expect_equal(counts["post"], expected["post"], told)
        if not skipped:
            finite = [name for name, value in before.items() if name.startswith("first") and same(after[name], value)]
            trial.expect(
                not finite, "weights must follow an update that was not skipped", f"{finite} stayed as they were"
            )
            return
        trial.expect(same(after, before), "weights must stay as they were in a skipped update", "they changed")
        life.update(1)
        changed = not same(life.weights(), before)
        trial.expect(changed, "the update after a skipped one must change the weights", "they stayed as they were")
        trial.expect_equal(counts["post"], 1, "calls of step hooks after a skipped update and one that was not")


def _step_with_closure(life: Life[Subject], batch_idx: int, *, unscales: bool) -> int:
    """Make an update by a closure. Returns how often it was evaluated."""
    num_calls = 0

    def closure() -> Tensor:
        nonlocal num_calls
        num_calls += 1
        life.backward_on(batch_idx)
        if unscales:
            life.strategy.unscale_gradients(life.optimizer)
        return torch.zeros((), device=life.strategy.device)

    life.strategy.optimizer_step(life.optimizer, closure)
    return num_calls


def _count_steps(optimizer: Any) -> dict[str, int]:
    counts = {"pre": 0, "post": 0}

    def count(name: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            counts[name] += 1

        return hook

    optimizer.register_step_pre_hook(count("pre"))
    optimizer.register_step_post_hook(count("post"))
    return counts


def _two(module: Any) -> list[Optimizer]:
    return [adam(module.first.parameters()), momentum(module.last.parameters())]


def training_equals_one_device(trial: Trial) -> None:
    """Updates on shares of batches give the weights of one device on the whole batches, the same on all ranks."""
    with Life(trial, Subject(), one(momentum)) as life:
        reference = Reference(life.strategy.num_data_ranks, one(momentum))
        for batch_idx in range(4):
            life.update(batch_idx)
            reference.update(batch_idx)
        _expect_same_training(trial, life, reference, "after four updates,")


def others_may_differentiate(trial: Trial) -> None:
    """`backward` lets `differentiate` do it, if given, and gradients are then those of the loss all the same."""
    num_calls = 0

    def differentiate(loss: Tensor) -> None:
        nonlocal num_calls
        num_calls += 1
        loss.backward()  # type: ignore[no-untyped-call]

    with Life(trial, Subject()) as life:
        life.warm_up()
        reference = Reference(life.strategy.num_data_ranks)
        life.backward_on(0, differentiate=differentiate)
        seen = f"it did {num_calls} times"
        trial.expect(num_calls == 1, "`backward` must call `differentiate` once if it is given", seen)
        life.strategy.unscale_gradients(life.optimizer)
        life.strategy.optimizer_step(life.optimizer)
        reference.update(0)
        _expect_same_training(trial, life, reference, "after an update that another differentiated,")


def accumulation_equals_one_device(trial: Trial) -> None:
    """Gradients of several steps add up, and are everybody's after the step for which `set_gradient_sync` is on."""
    with Life(trial, Subject(), one(momentum)) as life:
        reference = Reference(life.strategy.num_data_ranks, one(momentum))
        for window in ((0, 1, 2), (3, 4), (5,)):
            life.update(*window)
            reference.update(*window)
        _expect_same_training(trial, life, reference, "after windows of 3, 2 and 1 steps,")


def clipping_by_norm_equals_one_device(trial: Trial) -> None:
    """`clip_gradients` by "norm" limits the norm of one optimizer's gradients of the whole batch."""
    _expect_clipped_alike(trial, "norm")


def clipping_by_value_equals_one_device(trial: Trial) -> None:
    """`clip_gradients` by "value" limits each of one optimizer's gradients of the whole batch."""
    _expect_clipped_alike(trial, "value")


def unscaled_gradients_have_their_true_size(trial: Trial) -> None:
    """`unscale_gradients` gives gradients their true size, however often it is called; updates use that size anyway."""
    with Life(trial, Subject()) as life:
        life.warm_up()
        reference = Reference(life.strategy.num_data_ranks)
        for update_idx, num_calls in enumerate((1, 2, 0)):
            life.backward_on(update_idx)
            reference.update(update_idx)
            for _ in range(num_calls):
                life.strategy.unscale_gradients(life.optimizer)
            if num_calls:
                what = f"gradients after {num_calls} x `unscale_gradients`:"
                trial.expect_close(life.gradients(), reference.gradients(), what)
            life.strategy.optimizer_step(life.optimizer)
            what = f"after an update with {num_calls} x `unscale_gradients`,"
            trial.expect_close(life.weights(), reference.weights(), what)


def _expect_clipped_alike(trial: Trial, algorithm: str) -> None:
    with Life(trial, Subject(), _two_of_training_checks) as life:
        life.warm_up()
        reference = Reference(life.strategy.num_data_ranks, _two_of_training_checks)
        for batch_idx in range(2):
            clip = _half(reference, batch_idx, algorithm)
            life.update(batch_idx, clip=clip)
            reference.update(batch_idx, clip=clip)
        _expect_same_training(trial, life, reference, f"after two updates clipped by {algorithm},")


def _two_of_training_checks(module: nn.Module) -> list[Optimizer]:
    """Two optimizers; gradients of the second are not clipped."""
    clipped = [value for name, value in module.named_parameters() if name.startswith("first")]
    others = [value for name, value in module.named_parameters() if not name.startswith("first")]
    return [sgd(clipped), sgd(others)]


def _half(reference: Reference, batch_idx: int, algorithm: str) -> Clip:
    """A limit of half of what the first optimizer's gradients reach."""
    reference.backward_on(batch_idx)
    gradients = [value for name, value in reference.gradients().items() if name.startswith("first")]
    if algorithm == "norm":
        return 0.5 * float(nn.utils.get_total_norm(gradients)), algorithm
    return 0.5 * max(float(gradient.abs().max()) for gradient in gradients), algorithm


def _expect_same_training(trial: Trial, life: Life[Subject], reference: Reference, what: str) -> None:
    weights = life.weights()
    trial.expect_close(weights, reference.weights(), what)
    trial.expect_same_everywhere(weights, f"weights {what.rstrip(',')}")
