"""Callback that detects spikes of the loss."""

import json
import math
import os
from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar, cast

import attrs

from camshaft.callbacks.arguments import InvalidArgumentError, check_number, usable_path
from camshaft.callbacks.monitoring import Mode, check_mode, is_better
from camshaft.callbacks.monitors.loss_watch import BatchValues, LossWatch
from camshaft.hooks_core.protocols import TrainerProtocol
from camshaft.hooks_core.support.remote_files import join, replace_file


class TrainingSpikeException(RuntimeError):
    """The loss of a batch jumped.

    Attributes:
        epoch: Zero-based epoch.
        batch_idx: Zero-based index of the batch in it.
        value: Its loss, the mean over all ranks.
        reference: Mean of the losses before it; NaN if there were none.
    """

    def __init__(self, epoch: int, batch_idx: int, value: float, reference: float) -> None:
        mean = "there is none before it" if math.isnan(reference) else f"the mean of those before is {reference:.6g}"
        super().__init__(f"The loss jumped in epoch {epoch}, batch {batch_idx}: it is {value:.6g}, and {mean}.")
        self.epoch, self.batch_idx, self.value, self.reference = epoch, batch_idx, value, reference

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the constructor's arguments, so that the error can be sent to other processes."""
        return type(self), (self.epoch, self.batch_idx, self.value, self.reference)


_OWN_RULES = "Pass `mode`, `atol`, `rtol` and `window`, or override `find_fault`."


@attrs.define(slots=False, eq=False, repr=False)
class SpikeDetection(LossWatch):
    """Detects losses far above (or below) the mean of those before.

    A loss is a spike if it is worse than the good loss before, and differs from the mean of the latest `window` good
    ones by at least `atol` and by at least `rtol` times the mean. Spikes do not enter the mean. The loss is the one
    that `training_step` returned (for several optimizers the sum), as a mean over all ranks, so all decide alike.

    Losses stay on the device and are checked every `check_every_n_batches` batches, at an epoch's end and before a
    checkpoint is saved: together, in order, so that the first bad batch is named exactly, but up to that many batches
    later. With several processes a check is one reduction.

    The batch of each spike and the one before it, which may have damaged the weights, are written to a JSON file as a
    list of `{"epoch": ..., "batch_idx": ...}`, so that they can be excluded from the data.

    Args:
        mode: "min" if spikes go up, "max" if they go down.
        window: Number of good losses in the mean.
        warmup: Number of losses before the first that can be a spike, unless it is not finite; at least 1.
        atol: Smallest distance of a spike from the mean; None: any.
        rtol: The same as a multiple of the mean's absolute value; None: any.
        exclude_batches_path: The JSON file, or a folder, for "skip_batches.json" in it. None: `trainer.log_dir`, or
            `trainer.default_root_dir` if there is none. Rank 0 writes it.
        finite_only: Whether a loss that is NaN or infinite is a spike; otherwise it is ignored.
        action: Reaction to a spike: "raise" raises; "stop" ends training as `trainer.should_stop` does; "warn" warns.
            "skip" skips the update: weights and optimizer state stay as they are, while `global_step` and learning-rate
            schedulers advance. The loss is then checked before each update, which waits for the device, and is one
            reduction with several processes; it is the mean over the update's accumulation window.
        check_every_n_batches: Batches between two checks. None: 1 with one process on the CPU, where checks are free,
            else 50, also with logical ranks. Must be left out with "skip" and with `capture`.
        capture: Keeps bad updates, such as `camshaft.forensics.StepCapture(folder)`, from which the step can be made
            again. Then losses are checked before each update, as with "skip", or with several
            optimizers or manual optimization after each batch. None keeps none.

    Attributes:
        bad_batches: Epoch and index of the batches in the file.

    Raises:
        InvalidArgumentError: If an argument is out of range; at the start of training, if action
            "skip" finds several optimizers, or LBFGS, or if `capture` cannot keep steps of the module.
        TrainingSpikeException: If there is a spike and the action is "raise".
    """

    _uncalled_methods: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("_is_spike", "_check_atol", "_check_rtol", "_is_better", "_update_stats", "_handle_spike"), _OWN_RULES
    )
    mode: str = "min"
    window: int = 10
    warmup: int = 1
    atol: float | None = None
    rtol: float | None = 2.0
    exclude_batches_path: str | os.PathLike[str] | None = None
    finite_only: bool = True
    bad_batches: list[tuple[int, int]] = attrs.field(factory=list, init=False)
    _good: deque[float] = attrs.field(factory=deque, init=False)
    _num_seen: int = attrs.field(default=0, init=False)
    _previous: tuple[int, int] | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        check_number(self, least=1, window=self.window, warmup=self.warmup)
        check_number(self, "Pass its absolute value.", least=0, or_none=True, atol=self.atol, rtol=self.rtol)
        if self.atol is None and self.rtol is None:
            rule = "given if `atol` is not, since any worse loss would be a spike"
            raise InvalidArgumentError("rtol", rule, None, self, "Pass one of them.")
        super().__attrs_post_init__()
        check_mode(self.mode, self)
        if self.exclude_batches_path:
            self.exclude_batches_path = usable_path("exclude_batches_path", self.exclude_batches_path, self)
        self._good = deque(maxlen=self.window)

    @property
    def state_key(self) -> str:
        """Class name and the arguments that tell the states of two detectors apart."""
        arguments = f"mode={self.mode!r}, window={self.window}, atol={self.atol}, rtol={self.rtol}"
        return f"{type(self).__qualname__}({arguments}, action={self.action!r})"

    def state_dict(self) -> dict[str, Any]:
        """Check the waiting batches, and return the good losses, their number and the bad batches. Collective."""
        waiting = super().state_dict()  # checks, which may change the rest
        return {
            **waiting,
            "good_losses": list(self._good),
            "num_seen": self._num_seen,
            "before": None if self._previous is None else list(self._previous),
            "bad_batches": [list(each) for each in self.bad_batches],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state; the constructor's arguments stay as they are."""
        super().load_state_dict(state_dict)
        self._good = deque(state_dict["good_losses"], maxlen=self.window)
        self._num_seen = state_dict["num_seen"]
        before = state_dict["before"]
        self._previous = before and (before[0], before[1])
        self.bad_batches = [(epoch, batch_idx) for epoch, batch_idx in state_dict["bad_batches"]]

    def find_fault(self, batch: BatchValues, trainer: TrainerProtocol) -> TrainingSpikeException | None:
        """Compare a loss with those before, and add it to them.

        Returns:
            The error if the loss is a spike, None else.
        """
        loss, previous = batch.loss, self._previous
        if loss is None:
            return None
        self._previous = batch.epoch, batch.batch_idx
        reference = sum(self._good) / len(self._good) if self._good else math.nan
        if not math.isfinite(loss):
            is_spike = self.finite_only
        else:
            is_spike = self._num_seen >= self.warmup and self._departs(loss, reference)
            self._num_seen += 1
            if not is_spike:
                self._good.append(loss)
        if not is_spike:
            return None
        self.bad_batches += [each for each in (previous, self._previous) if each and each not in self.bad_batches]
        self._write_bad_batches(trainer)
        return TrainingSpikeException(batch.epoch, batch.batch_idx, loss, reference)

    def _departs(self, loss: float, reference: float) -> bool:
        if not self._good or not is_better(self._good[-1], loss, cast(Mode, self.mode)):
            return False
        distance = abs(loss - reference)
        if self.atol is not None and distance < self.atol:
            return False
        return self.rtol is None or distance >= self.rtol * abs(reference)

    def _write_bad_batches(self, trainer: TrainerProtocol) -> None:
        if not trainer.is_global_zero or getattr(trainer, "is_replaying", False):
            return
        path = os.fspath(self.exclude_batches_path or trainer.log_dir or trainer.default_root_dir)
        if os.path.splitext(path)[1] != ".json":
            path = join(path, "skip_batches.json")
        rows = [{"epoch": epoch, "batch_idx": batch_idx} for epoch, batch_idx in self.bad_batches]
        with replace_file(path) as fresh:
            fresh.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
