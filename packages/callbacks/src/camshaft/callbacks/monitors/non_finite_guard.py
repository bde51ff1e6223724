"""Callback that detects losses and gradients that are NaN or infinite."""

import math
from typing import Any

import attrs

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.callbacks.monitors.loss_watch import Action, BatchValues, LossWatch
from camshaft.hooks_core.protocols import TrainerProtocol

_ADVICE = (
    "Look at this batch, and find the operation with `Trainer(detect_anomaly=True)`. A lower learning rate or "
    "`gradient_clip_val` may avoid it; `NonFiniteGuard(action='skip')` leaves such updates out."
)


class NonFiniteError(FloatingPointError):
    """A loss or a gradient norm is NaN or infinite.

    Attributes:
        what: "loss" or "gradient norm".
        epoch: Zero-based epoch.
        batch_idx: Zero-based index of the batch in it.
        value: The mean over all ranks.
    """

    def __init__(self, what: str, epoch: int, batch_idx: int, value: float) -> None:
        super().__init__(f"The {what} must be finite, but is {value} in epoch {epoch}, batch {batch_idx}.")
        self.add_note(_ADVICE)
        self.what, self.epoch, self.batch_idx, self.value = what, epoch, batch_idx, value

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the constructor's arguments, so that the error can be sent to other processes."""
        return type(self), (self.what, self.epoch, self.batch_idx, self.value)


@attrs.define(slots=False, eq=False, repr=False)
class NonFiniteGuard(LossWatch):
    """Detects losses, and optionally gradients, that are NaN or infinite on any rank.

    Losses (as returned by `training_step`) and gradient norms stay on the device and are checked every
    `check_every_n_batches` batches, at an epoch's end and before a checkpoint is saved: together, in order, so that the
    first bad batch is named exactly, but up to that many batches later. With several processes a check is one
    reduction. Gradients that overflow because of a loss scaler ("16-mixed") are left to the scaler: updates that it
    skips are not checked.

    Args:
        action: Reaction to a bad batch: "raise" raises; "stop" ends training as `trainer.should_stop` does; "warn"
            warns, once for consecutive bad batches. "skip" skips the update: weights and optimizer state stay as they
            are, while `global_step` and learning-rate schedulers advance. Then the loss (its mean over the update's
            accumulation window) and the gradients are checked before each update, which waits for the device, and is
            one reduction with several processes.
        check_loss: Whether to check losses.
        check_gradients: Whether to check the 2-norm of each update's gradients, before clipping. Computing it is a
            reduction if parameters are sharded.
        check_every_n_batches: Batches between two checks. None: 1 with one process on the CPU, where checks are free,
            else 50, also with logical ranks. Must be left out with "skip" and with `capture`.
        capture: Keeps bad updates, such as `camshaft.forensics.StepCapture(folder)`, from which the step can be made
            again. Then losses and gradients are checked before each update, as with "skip", or with several
            optimizers or manual optimization after each batch. None keeps none.

    Attributes:
        num_bad: Number of bad batches (with "skip", of bad updates).

    Raises:
        InvalidArgumentError: If an argument is out of range, or nothing is checked; at the start of training, if action
            "skip" finds several optimizers, or LBFGS, or if `capture` cannot keep steps of the module.
        NonFiniteError: If something is not finite and the action is "raise".
    """

    action: Action = "raise"
    _checks_loss: bool = attrs.field(default=True, alias="check_loss")
    _checks_gradients: bool = attrs.field(default=False, alias="check_gradients")
    check_every_n_batches: int | None = None
    num_bad: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        if not self._checks_loss and not self._checks_gradients:
            rule, advice = "True if `check_loss` is False", "Choose one of them, or both."
            raise InvalidArgumentError("check_gradients", rule, False, self, advice)
        super().__attrs_post_init__()

    @property
    def state_key(self) -> str:
        """Class name and the arguments that tell the states of two guards apart."""
        what = f"check_loss={self._checks_loss}, check_gradients={self._checks_gradients}"
        return f"{type(self).__qualname__}(action={self.action!r}, {what})"

    def state_dict(self) -> dict[str, Any]:
        """Check the waiting batches, and return the number of bad ones. Collective in training."""
        waiting = super().state_dict()  # checks, which may change the number
        return {**waiting, "num_bad": self.num_bad}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the number of bad batches."""
        super().load_state_dict(state_dict)
        self.num_bad = state_dict["num_bad"]

    def is_fine(self, loss: float | None, gradient_norm: float) -> bool:
        """Return whether both are finite.

        Args:
            loss: The loss of a batch, if it has one.
            gradient_norm: The norm of its gradients.
        """
        return math.isfinite(gradient_norm) and (loss is None or math.isfinite(loss))

    def find_fault(self, batch: BatchValues, trainer: TrainerProtocol) -> NonFiniteError | None:
        """Return an error if either value is not finite."""
        for what, value in (("loss", batch.loss), ("gradient norm", batch.gradient_norm)):
            if value is not None and not math.isfinite(value):
                self.num_bad += 1
                return NonFiniteError(what, batch.epoch, batch.batch_idx, value)
        return None
