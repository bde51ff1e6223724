"""Checks of gradients, accumulation, clipping and optimizer steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from camshaft.hooks_core.optimizer_step import needs_closure
from camshaft.strategies.conformance.training import (
    Clip,
    Reference,
    StrategyRun,
    Subject,
    adam,
    midpoint,
    momentum,
    one,
    sgd,
)
from camshaft.strategies.conformance.trial import Trial, same


def prepared_optimizers_serve_as_the_originals(trial: Trial) -> None:
    """Prepared optimizers have the groups, state, step hooks and zeroing of the originals, in order."""
    with StrategyRun(trial, Subject(), _two) as run:
        num_prepared = len(run.optimizers)
        if not trial.expect(
            num_prepared == 2, "`setup_optimizers` must return as many as it got", f"got {num_prepared}"
        ):
            return
        for optimizer, layer in zip(run.optimizers, (run.module.first, run.module.last), strict=True):
            held = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
            own = [id(parameter) for parameter in layer.parameters()]
            trial.expect(held == own, "`param_groups` must hold the parameters of the original", "they hold others")
            needs = needs_closure(optimizer)
            trial.expect(not needs, "`step` must need a closure only where that of the original does", "it always does")
            for name in ("register_step_pre_hook", "register_step_post_hook"):
                has_it = callable(getattr(optimizer, name, None))
                trial.expect(has_it, f"what `setup_optimizers` returns must have `{name}`", "it has not")
        run.update(0)
        for optimizer in run.optimizers:
            num_states = len(optimizer.state_dict()["state"])
            trial.expect(
                num_states == 2, "`state_dict` must hold the state of each parameter", f"it holds {num_states}"
            )
            optimizer.load_state_dict(optimizer.state_dict())
        run.backward_on(1)
        for optimizer in run.optimizers:
            optimizer.zero_grad()
        left = [name for name, value in run.gradients().items() if bool(value.any())]
        trial.expect(not left, "`zero_grad` must leave no gradients", f"there are some of {left}")


def closures_are_evaluated(trial: Trial) -> None:
    """`optimizer_step` evaluates a closure: once for most optimizers, repeatedly for those that require it."""
    with StrategyRun(trial, Subject(), one(sgd)) as run:
        reference = Reference(run.strategy.num_data_ranks, one(sgd))
        scales = run.warm_up()
        for update_idx in range(2):  # unscaled by the closure, and not
            num_calls = _step_with_closure(run, update_idx, unscales=update_idx == 0)
            reference.update(update_idx)
            trial.expect(num_calls == 1, "SGD must evaluate its closure once", f"it did {num_calls} times")
        trial.expect_close(run.weights(), reference.weights(), "after two updates by closures,")
    reference = Reference(reference.num_data_ranks, one(midpoint))
    try:
        with StrategyRun(trial, Subject(), one(midpoint)) as run:
            needs = needs_closure(run.optimizer)
            trial.expect(needs, "`step` must need a closure where that of the original does", "it needs none")
            num_calls = _step_with_closure(run, 0, unscales=True)
            weights = run.weights()
    except (NotImplementedError, RuntimeError, TypeError, ValueError):
        if scales:
            return  # impossible with scaled losses; an error is enough
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
    with StrategyRun(trial, Subject(), one(sgd)) as run:
        run.warm_up()
        counts = _count_steps(run.optimizer)
        run.backward_on(0)
        run.strategy.unscale_gradients(run.optimizer)
        run.strategy.clip_gradients(run.optimizer, 1.0, "norm")
        trial.expect_equal(dict(counts), {"pre": 0, "post": 0}, "calls of step hooks before the step")
        run.strategy.optimizer_step(run.optimizer)
        trial.expect_equal(dict(counts), {"pre": 1, "post": 1}, "calls of step hooks after one step")
        _step_with_closure(run, 1, unscales=True)
        trial.expect_equal(dict(counts), {"pre": 2, "post": 2}, "calls of step hooks after another by a closure")


def skipped_updates_are_reported(trial: Trial) -> None:
    """`has_skipped_step` is true exactly if an update was skipped: then weights stay and no step hook runs."""
    with StrategyRun(trial, Subject(), one(sgd)) as run:
        run.warm_up()
        before, counts = run.weights(), _count_steps(run.optimizer)
        overflows = run.data_rank == 0  # on one rank; all must agree
        run.backward_on(0, factor=float("inf") if overflows else 1.0)
        run.strategy.unscale_gradients(run.optimizer)
        run.strategy.optimizer_step(run.optimizer)
        skipped, after = run.strategy.has_skipped_step, run.weights()
        trial.expect_same_everywhere(skipped, "`has_skipped_step` after gradients that are not finite on one rank")
        trial.stop_if_failed()
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
        run.update(1)
        changed = not same(run.weights(), before)
        trial.expect(changed, "the update after a skipped one must change the weights", "they stayed as they were")
        trial.expect_equal(counts["post"], 1, "calls of step hooks after a skipped update and one that was not")


def _step_with_closure(run: StrategyRun[Subject], batch_idx: int, *, unscales: bool) -> int:
    """Make an update by a closure, and return the number of its evaluations."""
    num_calls = 0

    def closure() -> Tensor:
        nonlocal num_calls
        num_calls += 1
        run.backward_on(batch_idx)
        if unscales:
            run.strategy.unscale_gradients(run.optimizer)
        return torch.zeros((), device=run.strategy.device)

    run.strategy.optimizer_step(run.optimizer, closure)
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
    with StrategyRun(trial, Subject(), one(momentum)) as run:
        reference = Reference(run.strategy.num_data_ranks, one(momentum))
        for batch_idx in range(4):
            run.update(batch_idx)
            reference.update(batch_idx)
        _expect_same_training(trial, run, reference, "after four updates,")


def custom_differentiation_gives_the_same_gradients(trial: Trial) -> None:
    """`backward` calls `differentiate` if it is given, and the gradients are those of the loss all the same."""
    num_calls = 0

    def differentiate(loss: Tensor) -> None:
        nonlocal num_calls
        num_calls += 1
        loss.backward()  # type: ignore[no-untyped-call]

    with StrategyRun(trial, Subject()) as run:
        run.warm_up()
        reference = Reference(run.strategy.num_data_ranks)
        run.backward_on(0, differentiate=differentiate)
        seen = f"it did {num_calls} times"
        trial.expect(num_calls == 1, "`backward` must call `differentiate` once if it is given", seen)
        run.strategy.unscale_gradients(run.optimizer)
        run.strategy.optimizer_step(run.optimizer)
        reference.update(0)
        _expect_same_training(trial, run, reference, "after an update with a custom `differentiate`,")


def accumulation_equals_one_device(trial: Trial) -> None:
    """Gradients of several steps add up, and are averaged after the step for which `set_gradient_sync` is on."""
    with StrategyRun(trial, Subject(), one(momentum)) as run:
        reference = Reference(run.strategy.num_data_ranks, one(momentum))
        for window in ((0, 1, 2), (3, 4), (5,)):
            run.update(*window)
            reference.update(*window)
        _expect_same_training(trial, run, reference, "after windows of 3, 2 and 1 steps,")


def clipping_by_norm_equals_one_device(trial: Trial) -> None:
    """`clip_gradients` by "norm" limits the norm of one optimizer's gradients of the whole batch."""
    _expect_clipped_alike(trial, "norm")


def clipping_by_value_equals_one_device(trial: Trial) -> None:
    """`clip_gradients` by "value" limits each of one optimizer's gradients of the whole batch."""
    _expect_clipped_alike(trial, "value")


def unscaled_gradients_have_their_true_size(trial: Trial) -> None:
    """`unscale_gradients` gives gradients their true size, however often it is called; updates use that size anyway."""
    with StrategyRun(trial, Subject()) as run:
        run.warm_up()
        reference = Reference(run.strategy.num_data_ranks)
        for update_idx, num_calls in enumerate((1, 2, 0)):
            run.backward_on(update_idx)
            reference.update(update_idx)
            for _ in range(num_calls):
                run.strategy.unscale_gradients(run.optimizer)
            if num_calls:
                what = f"gradients after {num_calls} x `unscale_gradients`:"
                trial.expect_close(run.gradients(), reference.gradients(), what)
            run.strategy.optimizer_step(run.optimizer)
            what = f"after an update with {num_calls} x `unscale_gradients`,"
            trial.expect_close(run.weights(), reference.weights(), what)


def _expect_clipped_alike(trial: Trial, algorithm: str) -> None:
    with StrategyRun(trial, Subject(), _two_sgd) as run:
        run.warm_up()
        reference = Reference(run.strategy.num_data_ranks, _two_sgd)
        for batch_idx in range(2):
            clip = _half(reference, batch_idx, algorithm)
            run.update(batch_idx, clip=clip)
            reference.update(batch_idx, clip=clip)
        _expect_same_training(trial, run, reference, f"after two updates clipped by {algorithm},")


def _two_sgd(module: nn.Module) -> list[Optimizer]:
    """Return two optimizers; gradients of the second are not clipped."""
    clipped = [value for name, value in module.named_parameters() if name.startswith("first")]
    others = [value for name, value in module.named_parameters() if not name.startswith("first")]
    return [sgd(clipped), sgd(others)]


def _half(reference: Reference, batch_idx: int, algorithm: str) -> Clip:
    """Return a limit of half of the norm or largest value of the first optimizer's gradients."""
    reference.backward_on(batch_idx)
    gradients = [value for name, value in reference.gradients().items() if name.startswith("first")]
    if algorithm == "norm":
        return 0.5 * float(nn.utils.get_total_norm(gradients)), algorithm
    return 0.5 * max(float(gradient.abs().max()) for gradient in gradients), algorithm


def _expect_same_training(trial: Trial, run: StrategyRun[Subject], reference: Reference, what: str) -> None:
    weights = run.weights()
    trial.expect_close(weights, reference.weights(), what)
    trial.expect_same_everywhere(weights, f"weights {what.rstrip(',')}")
