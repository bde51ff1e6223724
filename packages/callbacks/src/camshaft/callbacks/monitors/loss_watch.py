"""What callbacks that look for bad losses share: when they look, and what follows."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.hooks_core import Callback
from camshaft.hooks_core.user_warnings import warn_user

if TYPE_CHECKING:
    from camshaft.hooks_core.protocols import TrainerProtocol


Action = Literal["raise", "stop", "skip", "warn"]
"""What follows on a bad loss."""

_ACTIONS = ("raise", "stop", "skip", "warn")


class LossWatch(Callback):
    """Looks at the losses of training batches, all processes alike; subclasses say which are bad.

    Args:
        action: What follows: "raise" raises what `find_fault` returned; "stop" sets `trainer.should_stop`; "warn"
            warns, once where bad losses follow one another; "skip" does too, and leaves the update out.
        check_every_n_batches: Batches between two looks; None: 1 with one process on the CPU, else 50.
        checks_loss: Whether losses are looked at.
        checks_gradients: Whether the norm of each update's gradients is looked at too.

    Raises:
        InvalidArgumentError: If an argument is out of range.
    """

    def __init__(
        self,
        action: Action,
        check_every_n_batches: int | None,
        *,
        checks_loss: bool = True,
        checks_gradients: bool = False,
    ) -> None:
        where = type(self).__name__
        if action not in _ACTIONS:
            raise InvalidArgumentError("action", f"one of {', '.join(_ACTIONS)}", action, where, "Pass one of these.")
        if action == "skip" and check_every_n_batches is not None:
            rule = 'None with action="skip", which looks before each update'
            raise InvalidArgumentError("check_every_n_batches", rule, check_every_n_batches, where, "Leave it out.")
        if check_every_n_batches is not None and check_every_n_batches < 1:
            rule, advice = "1 or more, or None", "Pass 1 to look after each batch."
            raise InvalidArgumentError("check_every_n_batches", rule, check_every_n_batches, where, advice)
        self.action = action
        self.check_every_n_batches = check_every_n_batches
        self._checks_loss = checks_loss
        self._checks_gradients = checks_gradients
        self._waiting: LossWindow | None = None
        self._norm: Tensor | None = None  # of the update of the batch that runs
        self._update_loss: Tensor | None = None  # of the accumulation window, as far as it was differentiated
        self._batch_idx = 0
        self._was_bad = self._has_seen_any = self._has_warned = False
        self._is_scaled = False
        self._trainer: TrainerProtocol | None = None  # while it trains
        # Hooks that only some arguments need are the instance's own: for the others they cost nothing.
        if action == "skip":
            vars(self)["on_train_batch_start"] = self._note_batch
            vars(self)["on_before_backward"] = self._add_loss
            vars(self)["on_before_optimizer_step"] = self._look_before_update
        elif checks_gradients:
            vars(self)["on_before_optimizer_step"] = self._take_norm

    def find_fault(self, batch: BatchValues, trainer: TrainerProtocol) -> Exception | None:
        """Judge a batch, in the order of batches, on all processes. Returns what to raise if it is bad, else None."""
        raise NotImplementedError

    def is_fine(self, loss: float | None, gradient_norm: float) -> bool:
        """Whether a batch needs no judgement; for those who judge each by itself, and most of them fine."""
        return False

    def on_train_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Begin to look. Raises `InvalidArgumentError` if action "skip" cannot be obeyed with these optimizers."""
        self._trainer = trainer
        if self.action == "skip":
            self._check_can_skip(trainer)
            # where losses are scaled, the scaler leaves out updates whose gradients overflow
            self._is_scaled = hasattr(type(getattr(trainer.strategy, "precision", None)), "scale")
        every = self.check_every_n_batches
        if every is None:
            strategy = trainer.strategy
            every = 1 if strategy.world_size == 1 and strategy.device.type == "cpu" else 50
        # what is read at once needs no place to wait
        reads_at_once = every == 1 and trainer.strategy.world_size == 1
        self._waiting = None if reads_at_once else LossWindow(every, trainer.strategy.device)

    def on_train_batch_end(
        self, trainer: TrainerProtocol, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Take a batch in, and look if it is time. Collective when it is."""
        if self.action == "skip":
            return
        loss = _loss_in(outputs, type(self).__name__) if self._checks_loss else None
        norm = self._norm
        if norm is not None:
            self._norm = None
            if trainer.strategy.has_skipped_step:
                norm = None  # scaled gradients overflowed: that is the scaler's affair
        if loss is not None or norm is not None:
            self._has_seen_any = True
        waiting = self._waiting
        if waiting is None:
            loss_now, norm_now = None if loss is None else loss.item(), 0.0 if norm is None else norm.item()
            if self.is_fine(loss_now, norm_now):
                self._was_bad = False
            else:
                self._judge(BatchValues(trainer.current_epoch, batch_idx, loss_now, norm_now), trainer)
            return
        waiting.add(trainer.current_epoch, batch_idx, loss, norm)
        if waiting.is_full:
            self._look(trainer)

    def on_train_epoch_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Look at what is left. Collective."""
        self._look(trainer)
        if not self._has_seen_any and not self._has_warned:
            self._has_warned = True
            warn_user(
                f"{type(self).__name__} has seen nothing in this epoch: `training_step` returned no loss and no update "
                "was announced. Return the loss, also under manual optimization."
            )

    def teardown(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Let go of what nobody looks at any more, as after an error."""
        self._trainer = None
        self._waiting = None
        self._norm = self._update_loss = None

    def state_dict(self) -> dict[str, Any]:
        """Looks at what waits, so that no checkpoint holds weights that nobody looked at. Collective in training."""
        trainer, update_loss = self._trainer, self._update_loss
        if trainer is not None and sys.exception() is None:  # a checkpoint that an error asks for must not fail here
            self._look(trainer)
            if update_loss is not None and trainer.strategy.world_size > 1:
                update_loss = trainer.strategy.reduce(update_loss, "mean")
        return {"update_loss": None if update_loss is None else update_loss.cpu()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on, also within an accumulation window."""
        update_loss = state_dict["update_loss"]
        self._update_loss = None if update_loss is None else update_loss.clone()

    def _look(self, trainer: TrainerProtocol) -> None:
        for batch in self._waiting.take(trainer) if self._waiting is not None else ():
            if self._judge(batch, trainer) and self.action == "stop":
                return  # what follows comes from the same weights

    def _judge(self, batch: BatchValues, trainer: TrainerProtocol) -> bool:
        fault = self.find_fault(batch, trainer)
        if fault is None:
            self._was_bad = False
            return False
        if self.action == "raise":
            raise fault
        if self.action == "stop":
            trainer.should_stop = True
        if not self._was_bad and trainer.is_global_zero:
            ends = {"stop": " Training stops.", "skip": " The update is left out."}
            warn_user(f"{fault}{ends.get(self.action, '')}", RuntimeWarning)
        self._was_bad = True
        return True

    # with gradients

    def _take_norm(self, trainer: TrainerProtocol, module: Any, optimizer: Any) -> None:
        """Measure an update's gradients. Collective if parameters are sharded."""
        norm, before = gradient_norm(optimizer), self._norm
        if before is not None and trainer.strategy.has_skipped_step:
            before = None  # that of another optimizer, which overflowed
        if norm is not None:
            self._norm = norm if before is None else torch.maximum(norm, before)

    # with "skip"

    def _note_batch(self, trainer: TrainerProtocol, module: Any, batch: Any, batch_idx: int) -> None:
        self._batch_idx = batch_idx

    def _add_loss(self, trainer: TrainerProtocol, module: Any, loss: Tensor) -> None:
        """Add a loss, which was divided by its accumulation window's length, to that of the update."""
        loss = loss.detach().reshape(())
        self._update_loss = loss.clone() if self._update_loss is None else self._update_loss + loss

    def _look_before_update(self, trainer: TrainerProtocol, module: Any, optimizer: Any) -> None:
        """Look at an update, and leave it out if it is bad. Waits for the device. Collective."""
        loss, self._update_loss = self._update_loss, None
        norm = gradient_norm(optimizer) if self._checks_gradients and not self._is_scaled else None
        window = LossWindow(1, trainer.strategy.device)
        window.add(trainer.current_epoch, self._batch_idx, loss if self._checks_loss else None, norm)
        self._has_seen_any = True
        for update in window.take(trainer):
            if self._judge(update, trainer):
                skip_update(optimizer)

    def _check_can_skip(self, trainer: TrainerProtocol) -> None:
        where, action = type(self).__name__, 'Choose another action than "skip".'
        if len(trainer.optimizers) > 1:
            rule = 'one, where action="skip" is to know which loss belongs to which update'
            raise InvalidArgumentError("number of optimizers", rule, len(trainer.optimizers), where, action)
        for optimizer in trainer.optimizers:
            if isinstance(optimizer, torch.optim.LBFGS):
                rule = 'one that does not evaluate the loss itself, with action="skip"'
                raise InvalidArgumentError("optimizer", rule, type(optimizer).__name__, where, action)


def skip_update(optimizer: Any) -> None:
    """Let the step that follows change nothing: neither weights nor the optimizer's state.

    Gradients are taken away rather than zeroed. torch's optimizers leave a parameter without gradient alone (see
    `torch.optim.Optimizer.zero_grad`), where a zero would still decay weights and move averages.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def gradient_norm(optimizer: Any) -> Tensor | None:
    """The 2-norm of all gradients of an optimizer's parameters, on their device; None if there are none.

    Collective if parameters are sharded.
    """
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
    """The loss that `training_step` returned, the sum of those of several optimizers, or None if there was none."""
    if isinstance(outputs, list):
        losses = [part for each in outputs if (part := _loss_in(each, where)) is not None]
        return torch.stack(losses).sum() if losses else None
    loss = outputs
    if not isinstance(loss, Tensor):  # as it is as a rule
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else None
        if not isinstance(loss, Tensor):
            return None
    if loss.dim() == 0:
        return loss
    if loss.numel() != 1:
        raise InvalidArgumentError("loss", "a scalar", tuple(loss.shape), where, "Return its mean.")
    return loss.reshape(())


class BatchValues(NamedTuple):
    """What a batch gave, as means over all processes: not finite if it is not in any of them.

    Attributes:
        epoch: Zero-based epoch.
        batch_idx: Zero-based index in the epoch.
        loss: The loss; None if no process had one.
        gradient_norm: The 2-norm of the gradients of its update; zero if there was none.
    """

    epoch: int
    batch_idx: int
    loss: float | None
    gradient_norm: float


class LossWindow:
    """Keeps values of batches on their device until they are read.

    Args:
        size: Number of batches that are held at most.
        device: The device.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        # double precision holds any dtype's values exactly; mps has none
        dtype = torch.float32 if device.type == "mps" else torch.float64
        self._size = size
        self._values = torch.zeros(2, size, dtype=dtype, device=device)
        self._losses, self._norms = (list(row.unbind()) for row in self._values)
        self._batches: list[tuple[int, int]] = []
        self._has_loss: list[bool] = []

    @property
    def is_full(self) -> bool:
        """Whether no further batch has room."""
        return len(self._batches) == self._size

    def add(self, epoch: int, batch_idx: int, loss: Tensor | None, gradient_norm: Tensor | None = None) -> None:
        """Take in a batch's scalars. They are copied: what computed them may use their memory again.

        A batch that has none of them is taken in as well, since it may have some in other processes.
        """
        idx = len(self._batches)
        if loss is not None:
            self._losses[idx].copy_(loss.detach())
        if gradient_norm is not None:
            self._norms[idx].copy_(gradient_norm)
        self._batches.append((epoch, batch_idx))
        self._has_loss.append(loss is not None)

    def take(self, trainer: TrainerProtocol) -> list[BatchValues]:
        """What was added since the last time, in its order. Waits for the device. Collective if there is anything."""
        batches, has_loss = self._batches, self._has_loss
        if not batches:
            return []
        self._batches, self._has_loss = [], []
        if trainer.strategy.world_size > 1:
            shares = torch.tensor(has_loss, dtype=self._values.dtype, device=self._values.device)
            mine = torch.cat([self._values[:, : len(batches)], shares[None]])
            losses, norms, weights = trainer.strategy.reduce(mine, "mean").tolist()
        else:
            losses, norms = self._values[:, : len(batches)].tolist()
            weights = has_loss
        self._values.zero_()
        return [
            BatchValues(*batch, loss / weight if weight else None, norm)
            for batch, loss, norm, weight in zip(batches, losses, norms, weights, strict=True)
        ]
