"""Base class of callbacks that check losses and gradient norms."""

import sys
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Protocol, get_args

import attrs
import torch
from torch import Tensor

from camshaft.callbacks.arguments import InvalidArgumentError, check_number, check_one_of
from camshaft.hooks_core import Callback, Receiver
from camshaft.hooks_core.protocols import TrainerProtocol
from camshaft.hooks_core.support.devices import widest_float
from camshaft.hooks_core.support.messages import warn_user

Action = Literal["raise", "stop", "skip", "warn"]
"""Reaction to a bad loss."""


class Capture(Protocol):
    """Keeps bad updates, as `camshaft.forensics.StepCapture` does."""

    def start(self, trainer: TrainerProtocol, module: Any) -> bool:
        """Begin when training begins. Raises `ValueError` if the steps of the module cannot be captured.

        Returns:
            Whether `write` has to be called before the update is made; else after its batch.
        """

    def begin_batch(self, batch_idx: int) -> None:
        """Note the index of a batch that begins."""

    def wrap_call(
        self, hook: str, kind: Receiver, receiver: object, function: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return what is called in place of a hook; see `Callback.wrap_call`."""

    def write(self, trainer: TrainerProtocol, reason: str) -> None:
        """Write the update, of which `reason` says what is wrong."""

    def end_update(self) -> None:
        """Forget what was noted: what follows belongs to another update."""

    def stop(self) -> None:
        """End with training."""


@attrs.define(slots=False, eq=False, repr=False)
class LossWatch(Callback):
    """Checks the losses of training batches, on all ranks alike; subclasses define which are bad.

    With logical ranks it decides by the mean of their losses, in their order, and looks at the same batches, whatever
    the number of processes.

    A subclass may set `_checks_loss`, and `_checks_gradients` to check the norm of each update's gradients too.

    Args:
        action: Reaction to a bad loss: "raise" raises the error that `find_fault` returned; "stop" sets
            `trainer.should_stop`; "warn" warns, once for consecutive bad losses; "skip" does so and skips the update.
        check_every_n_batches: Batches between two checks; None: 1 with one process on the CPU, else 50, also with
            logical ranks.
        capture: Keeps bad updates; None keeps none. With it, each update is checked before it is made, as with "skip",
            or after its batch, as the capture needs it.

    Raises:
        InvalidArgumentError: If an argument is out of range.
    """

    action: Action = attrs.field(default="raise", kw_only=True)
    check_every_n_batches: int | None = attrs.field(default=None, kw_only=True)
    _capture: Capture | None = attrs.field(default=None, kw_only=True)
    _checks_loss: bool = attrs.field(default=True, init=False)
    _checks_gradients: bool = attrs.field(default=False, init=False)
    _every: int = attrs.field(default=1, init=False)
    _reads_at_once: bool = attrs.field(default=False, init=False)
    _waiting: list["_Batch"] = attrs.field(factory=list, init=False)
    _zero: Tensor = attrs.field(factory=lambda: torch.zeros(()), init=False)  # of dtype and device of waiting values
    _norm: Tensor | None = attrs.field(default=None, init=False)  # of the current batch's update
    _update_loss: Tensor | None = attrs.field(default=None, init=False)  # sum over the accumulation window so far
    _batch_idx: int = attrs.field(default=0, init=False)
    _was_bad: bool = attrs.field(default=False, init=False)
    _has_checked_any: bool = attrs.field(default=False, init=False)
    _has_warned: bool = attrs.field(default=False, init=False)
    _is_before_update: bool = attrs.field(default=False, init=False)
    _is_scaled: bool = attrs.field(default=False, init=False)
    _logical: "_LogicalLosses | None" = attrs.field(default=None, init=False)
    _ends_otherwise: bool = attrs.field(default=False, init=False)  # than with the loss of one batch of a process
    _trainer: TrainerProtocol | None = attrs.field(default=None, init=False)  # while it trains

    def __attrs_post_init__(self) -> None:
        super().__init__()
        capture, every = self._capture, self.check_every_n_batches
        check_one_of(self, get_args(Action), action=self.action)
        self.only_observes = self.action != "skip"
        checks_each_update = self.action == "skip" or capture is not None
        if checks_each_update and every is not None:
            rule = 'None with action="skip" or `capture`, which check each update'
            raise InvalidArgumentError("check_every_n_batches", rule, every, self, "Leave it out.")
        advice = "Pass 1 to check after each batch."
        check_number(self, advice, least=1, or_none=True, check_every_n_batches=every)
        # Hooks that only some arguments need are set on the instance, so that they cost nothing otherwise.
        if capture is not None:
            if not hasattr(capture, "wrap_call"):
                rule = "an object that keeps steps, such as camshaft.forensics.StepCapture"
                raise InvalidArgumentError("capture", rule, capture, self, "Pass `StepCapture(folder)`.")
            vars(self)["wrap_call"] = capture.wrap_call
        if checks_each_update:
            vars(self)["on_train_batch_start"] = self._note_batch
            vars(self)["on_before_backward"] = self._add_loss
            vars(self)["on_before_optimizer_step"] = self._before_update
        elif self._checks_gradients:
            vars(self)["on_before_optimizer_step"] = self._add_norm

    def find_fault(self, batch: "BatchValues", trainer: TrainerProtocol) -> Exception | None:
        """Return the error of a bad batch, or None. Called for batches in order, on all ranks."""
        raise NotImplementedError

    def is_fine(self, loss: float | None, gradient_norm: float) -> bool:
        """Return whether `find_fault` can be skipped, a shortcut for checks of one batch at a time.

        Args:
            loss: The loss of a batch, if it has one.
            gradient_norm: The norm of its gradients.
        """
        return False

    def on_train_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Start checking. Raises `InvalidArgumentError` if these optimizers do not allow action "skip"."""
        self._trainer = trainer
        self._is_before_update = self.action == "skip"
        if self._is_before_update:
            self._check_can_skip(trainer)
        if self._capture is not None:
            self._is_before_update |= self._capture.start(trainer, module)
        if self._is_before_update:
            # a scaler of losses skips updates whose gradients overflow by itself
            self._is_scaled = hasattr(type(getattr(trainer.strategy, "precision", None)), "scale")
        strategy = trainer.strategy
        # double precision holds any dtype's values exactly
        self._zero = torch.zeros((), dtype=widest_float(strategy.device), device=strategy.device)
        is_alone = strategy.world_size == 1
        if getattr(strategy, "num_logical_ranks", None) is not None:
            self._logical, is_alone = _LogicalLosses(strategy, self._zero), False
            if self._update_loss is not None:
                self._logical.load(self._update_loss)
                self._update_loss = None
        self._ends_otherwise = self._is_before_update or self._logical is not None
        is_free = self._capture is not None or (is_alone and strategy.device.type == "cpu")
        self._every = self.check_every_n_batches or (1 if is_free else 50)
        self._reads_at_once = self._every == 1 and is_alone

    def on_train_batch_end(
        self, trainer: TrainerProtocol, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Add a batch, and check if due. Collective then."""
        if self._ends_otherwise:
            if self._logical is not None and not self._is_before_update:
                self._end_batch_of_rank(self._logical, trainer, outputs, batch_idx)
            return
        loss = _loss_in(outputs, type(self).__name__) if self._checks_loss else None
        norm = self._take_norm(trainer)
        if loss is not None or norm is not None:
            self._has_checked_any = True
        if self._reads_at_once:
            loss_now, norm_now = None if loss is None else loss.item(), 0.0 if norm is None else norm.item()
            if self.is_fine(loss_now, norm_now):
                self._was_bad = False
            else:
                self._judge(BatchValues(trainer.current_epoch, batch_idx, loss_now, norm_now), trainer)
            return
        # copied, since a captured graph may overwrite them; a batch without any is added too: other ranks may have some
        loss, norm = (None if one is None else one.detach().to(self._zero, copy=True) for one in (loss, norm))
        self._waiting.append((trainer.current_epoch, batch_idx, loss, norm))
        if len(self._waiting) == self._every:
            self._check(trainer)

    def _take_norm(self, trainer: TrainerProtocol) -> Tensor | None:
        norm, self._norm = self._norm, None
        # scaled gradients that overflowed are left to the scaler
        return None if norm is not None and trainer.strategy.has_skipped_step else norm

    def _end_batch_of_rank(self, losses: "_LogicalLosses", trainer: TrainerProtocol, outputs: Any, idx: int) -> None:
        """Add the loss of a logical rank; after the last one of this process, check if due. Collective then."""
        loss = _loss_in(outputs, type(self).__name__) if self._checks_loss else None
        if loss is not None:
            losses.add(trainer, loss)
        if losses.is_last(trainer):
            norm = self._take_norm(trainer)
            self._has_checked_any |= loss is not None or norm is not None
            norm = None if norm is None else norm.detach().to(self._zero, copy=True)
            self._waiting.append((trainer.current_epoch, idx, losses.take(), norm))
            if len(self._waiting) == self._every:
                self._check(trainer)

    def on_train_epoch_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Check the remaining batches. Collective."""
        self._check(trainer)
        if self._capture is not None:
            self._capture.end_update()
        if not self._has_checked_any and not self._has_warned:
            self._has_warned = True
            warn_user(
                f"{type(self).__name__} has checked nothing in this epoch: `training_step` returned no loss and there "
                "was no update. Return the loss, also under manual optimization."
            )

    def teardown(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Drop batches that are not checked any more, as after an error."""
        self._waiting = []
        self._trainer = self._norm = self._update_loss = self._logical = None
        if self._capture is not None:
            self._capture.stop()

    def state_dict(self) -> dict[str, Any]:
        """Check the waiting batches first, so that no checkpoint holds unchecked weights. Collective in training."""
        trainer, update_loss = self._trainer, self._update_loss
        if trainer is not None and sys.exception() is None:  # a save after an error must not fail here
            self._check(trainer)
            if self._logical is not None:
                update_loss = self._logical.of_all(trainer)
            elif update_loss is not None and trainer.strategy.world_size > 1:
                update_loss = trainer.strategy.reduce(update_loss, "mean")
        return {"update_loss": None if update_loss is None else update_loss.cpu()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the loss of the current accumulation window."""
        update_loss = state_dict["update_loss"]
        self._update_loss = None if update_loss is None else update_loss.clone()

    def _check(self, trainer: TrainerProtocol) -> None:
        waiting, self._waiting = self._waiting, []
        for batch in self._read(waiting, trainer):
            if self._judge(batch, trainer) and self.action == "stop":
                return  # what follows comes from the same weights

    def _read(self, batches: list["_Batch"], trainer: TrainerProtocol) -> list["BatchValues"]:
        """Return the values of batches. Waits for the device. Collective unless there are none."""
        if not batches:
            return []
        if self._logical is not None:
            return self._logical.read(batches, trainer)
        zero = self._zero
        rows = [[zero if one is None else one.detach().to(zero) for one in batch[2:]] for batch in batches]
        has_loss = zero.new_tensor([loss is not None for _, _, loss, _ in batches])
        values = torch.stack([*(torch.stack(column) for column in zip(*rows, strict=True)), has_loss])
        if trainer.strategy.world_size > 1:
            values = trainer.strategy.reduce(values, "mean")
        return [
            BatchValues(epoch, batch_idx, loss / share if share else None, norm)
            for (epoch, batch_idx, _, _), loss, norm, share in zip(batches, *values.tolist(), strict=True)
        ]

    def _judge(self, batch: "BatchValues", trainer: TrainerProtocol) -> bool:
        fault = self.find_fault(batch, trainer)
        if fault is None:
            self._was_bad = False
            return False
        if self._capture is not None:
            self._capture.write(trainer, str(fault))
        if self.action == "raise":
            raise fault
        if self.action == "stop":
            trainer.should_stop = True
        if not self._was_bad:
            ends = {"stop": " Training stops.", "skip": " The update is left out."}
            warn_user(f"{fault}{ends.get(self.action, '')}", RuntimeWarning)
        self._was_bad = True
        return True

    # with gradients

    def _add_norm(self, trainer: TrainerProtocol, module: Any, optimizer: Any) -> None:
        """Compute the norm of an update's gradients. Collective if parameters are sharded."""
        norm, before = gradient_norm(optimizer, trainer.strategy), self._norm
        if before is not None and trainer.strategy.has_skipped_step:
            before = None  # of another optimizer, whose gradients overflowed
        if norm is not None:
            self._norm = norm if before is None else torch.maximum(norm, before)

    # with "skip" or `capture`

    def _note_batch(self, trainer: TrainerProtocol, module: Any, batch: Any, batch_idx: int) -> None:
        self._batch_idx = batch_idx
        if self._capture is not None:
            self._capture.begin_batch(batch_idx)

    def _add_loss(self, trainer: TrainerProtocol, module: Any, loss: Tensor) -> None:
        """Add a loss, already divided by the length of the accumulation window, to that of the update."""
        if not self._is_before_update:
            return
        loss = loss.detach().reshape(())
        if self._logical is not None:
            self._logical.add(trainer, loss)
            return
        self._update_loss = loss.clone() if self._update_loss is None else self._update_loss + loss

    def _before_update(self, trainer: TrainerProtocol, module: Any, optimizer: Any) -> None:
        """Check an update; with "skip", skip it if it is bad. Waits for the device. Collective."""
        if not self._is_before_update:
            if self._checks_gradients:
                self._add_norm(trainer, module, optimizer)
            return
        loss, self._update_loss = self._update_loss, None
        if self._logical is not None:
            loss = self._logical.take(leaves_out=not self._checks_loss)
        is_known = self._checks_gradients and not self._is_scaled
        norm = gradient_norm(optimizer, trainer.strategy) if is_known else None
        self._has_checked_any = True
        keeps_loss = self._checks_loss or self._logical is not None
        batch = trainer.current_epoch, self._batch_idx, loss if keeps_loss else None, norm
        for update in self._read([batch], trainer):
            if self._judge(update, trainer) and self.action == "skip":
                skip_update(optimizer)
        if self._capture is not None:
            self._capture.end_update()

    def _check_can_skip(self, trainer: TrainerProtocol) -> None:
        action = 'Choose an action other than "skip".'
        if len(trainer.optimizers) > 1:
            rule = 'one with action="skip", so that each loss belongs to one update'
            raise InvalidArgumentError("number of optimizers", rule, len(trainer.optimizers), self, action)
        for optimizer in trainer.optimizers:
            if isinstance(optimizer, torch.optim.LBFGS):
                rule = 'one that does not evaluate the loss itself, with action="skip"'
                raise InvalidArgumentError("optimizer", rule, type(optimizer).__name__, self, action)


class _LogicalLosses:
    """The losses of the logical ranks of a process, and what all have: decisions do not depend on processes.

    Args:
        strategy: Connects the processes.
        zero: Zero, of dtype and device of the losses.
    """

    def __init__(self, strategy: Any, zero: Tensor) -> None:
        self._own: range = strategy.logical_ranks
        self._zero, self._count = zero, strategy.num_logical_ranks
        self._losses: list[Tensor | None] = [None for _ in self._own]

    def add(self, trainer: TrainerProtocol, loss: Tensor) -> None:
        """Add a loss to that of the logical rank that runs."""
        place = self._place(trainer)
        known, loss = self._losses[place], loss.detach().to(self._zero, copy=True)
        self._losses[place] = loss if known is None else known + loss

    def is_last(self, trainer: TrainerProtocol) -> bool:
        """Return whether the last logical rank of this process runs."""
        return self._place(trainer) == len(self._own) - 1

    def take(self, *, leaves_out: bool = False) -> Tensor:
        """Return the losses, and which there are, in two rows with a place for each logical rank; zeros for others'."""
        rows, losses = self._zero.new_zeros(2, self._count), self._losses
        self._losses = [None for _ in self._own]
        for rank, loss in zip(self._own, losses, strict=True):
            if loss is not None and not leaves_out:
                rows[0, rank], rows[1, rank] = loss, 1
        return rows

    def of_all(self, trainer: TrainerProtocol) -> Tensor | None:
        """Return the rows of all logical ranks, which stay; None if there are no losses. Collective."""
        kept = self._losses
        rows = self._reduced(self.take(), trainer)
        self._losses = kept
        return rows if rows[1].any() else None

    def load(self, rows: Tensor) -> None:
        """Go on with the rows of all."""
        values = rows.to(self._zero)
        self._losses = [values[0, rank].clone() if rows[1, rank] else None for rank in self._own]

    def read(self, batches: "list[_Batch]", trainer: TrainerProtocol) -> "list[BatchValues]":
        """Return the values of batches. Waits for the device. Collective."""
        rows = self._reduced(torch.stack([losses for _, _, losses, _ in batches if losses is not None]), trainer)
        norms = torch.stack([self._zero if norm is None else norm.detach().to(self._zero) for *_, norm in batches])
        found = []
        for batch, (losses, has), norm in zip(batches, rows.tolist(), norms.tolist(), strict=True):
            there = [loss for loss, is_there in zip(losses, has, strict=True) if is_there]
            found.append(BatchValues(*batch[:2], sum(there) / len(there) if there else None, norm))
        return found

    def _reduced(self, rows: Tensor, trainer: TrainerProtocol) -> Tensor:
        # to add zeros is exact, and makes 0 of -0
        return rows + 0.0 if trainer.strategy.world_size == 1 else trainer.strategy.reduce(rows, "sum")

    def _place(self, trainer: Any) -> int:
        place: int = trainer.logical_rank - self._own.start
        return place


def skip_update(optimizer: Any) -> None:
    """Make the next step change neither weights nor the optimizer's state.

    Gradients are set to None rather than zeroed: torch's optimizers skip parameters without gradients (see
    `torch.optim.Optimizer.zero_grad`), whereas zeros would still decay weights and update moving averages.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def gradient_norm(optimizer: Any, strategy: Any = None) -> Tensor | None:
    """Return the 2-norm of all gradients of an optimizer's parameters, on their device; None if there are none.

    Collective if parameters are sharded. With the logical ranks of a strategy it has the same bits on any processes.
    """
    if getattr(strategy, "num_logical_ranks", None) is not None and hasattr(strategy, "gradient_norm"):
        of_ranks: Tensor | None = strategy.gradient_norm(optimizer)
        return of_ranks
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return None
    with torch.no_grad():
        dense = [gradient.coalesce().values() if gradient.is_sparse else gradient for gradient in gradients]
        norm: Any = torch.nn.utils.get_total_norm(dense)
        whole: Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    return whole


def _loss_in(outputs: Any, where: str) -> Tensor | None:
    """Return the loss in a step's outputs, the sum over several optimizers; None if there is none."""
    if isinstance(outputs, list):
        losses = [part for each in outputs if (part := _loss_in(each, where)) is not None]
        return torch.stack(losses).sum() if losses else None
    loss = outputs
    if not isinstance(loss, Tensor):  # the usual case
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else None
        if not isinstance(loss, Tensor):
            return None
    if loss.dim() == 0:
        return loss
    if loss.numel() != 1:
        raise InvalidArgumentError("loss", "a scalar", tuple(loss.shape), where, "Return its mean.")
    return loss.reshape(())


class BatchValues(NamedTuple):
    """Values of a batch, as means over all ranks: not finite if they are not on any rank.

    Attributes:
        epoch: Zero-based epoch.
        batch_idx: Zero-based index in the epoch.
        loss: The loss; None if no rank had one.
        gradient_norm: The 2-norm of the gradients of its update; zero if there was none.
    """

    epoch: int
    batch_idx: int
    loss: float | None
    gradient_norm: float


_Batch = tuple[int, int, Tensor | None, Tensor | None]
"""Epoch, index, loss (with logical ranks the rows of `_LogicalLosses`) and norm of a batch that is not read."""
