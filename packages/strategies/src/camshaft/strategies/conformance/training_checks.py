"""Gradients and updates against one device on whole batches."""

from __future__ import annotations

from torch import Tensor, nn
from torch.optim import Optimizer

from camshaft.strategies.conformance.life import Clip, Life, Reference, one
from camshaft.strategies.conformance.subject import Subject, momentum, sgd
from camshaft.strategies.conformance.trial import Trial


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
    with Life(trial, Subject(), _two) as life:
        life.warm_up()
        reference = Reference(life.strategy.num_data_ranks, _two)
        for batch_idx in range(2):
            clip = _half(reference, batch_idx, algorithm)
            life.update(batch_idx, clip=clip)
            reference.update(batch_idx, clip=clip)
        _expect_same_training(trial, life, reference, f"after two updates clipped by {algorithm},")


def _two(module: nn.Module) -> list[Optimizer]:
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
