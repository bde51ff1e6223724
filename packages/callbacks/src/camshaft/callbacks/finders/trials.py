"""Trial training steps that are rolled back, and the base class of callbacks that make them before a fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.callbacks.module_snapshot import save_gradient, save_module, save_optimizer
from camshaft.hooks_core import Callback
from camshaft.hooks_core.dispatch.binding import BindingError, bind
from camshaft.hooks_core.dispatch.implementation import implementation
from camshaft.hooks_core.protocols import Strategy, TrainerProtocol
from camshaft.hooks_core.support.messages import warn_user
from camshaft.hooks_core.support.optimizer_step import needs_closure, steps_with_closure

_DEFAULTS = {"optimizer_idx": 0, "hiddens": None}
"""Arguments of a step that takes these: there is one optimizer, and batches are not split."""


class TrialSteps:
    """Makes steps of automatic optimization with one optimizer, as the strategy makes them.

    A step is `training_step`, zeroing, backward (the module's own, if it has one), clipping as the trainer is set up to
    clip (its `gradient_clip_val` and `gradient_clip_algorithm`, if it has these), and the optimizer's step. No other
    hook is called, batches are not split along time, and schedulers do not step. The caller wraps the steps in
    `trainer.trial()` and `restored`.

    Args:
        trainer: The trainer, after `configure_optimizers`.
        where: The class to name in errors.

    Raises:
        InvalidArgumentError: If the module optimizes manually, does not have exactly one optimizer or has one that
            evaluates the loss itself, or its `training_step` has further arguments.
    """

    def __init__(self, trainer: TrainerProtocol, module: Any, where: object) -> None:
        check_optimization(trainer, module, where)
        self.optimizer: Optimizer = trainer.optimizers[0]
        self._strategy = trainer.strategy
        self._where = where
        try:
            self._arguments = bind(module.training_step, ("batch", "batch_idx"), tuple(_DEFAULTS))
        except BindingError as error:
            action = "Leave the callback out, or give its other arguments defaults."
            rule = "a function of (batch, batch_idx)"
            raise InvalidArgumentError("training_step", rule, str(error), where, action) from error
        self._step = trainer.strategy.wrap_step(module.training_step)
        self._differentiate = implementation(module, "backward")
        self._with_closure = steps_with_closure(self.optimizer)
        self._clip_val: float | None = getattr(trainer, "gradient_clip_val", None)
        self._clip_algorithm: str = getattr(trainer, "gradient_clip_algorithm", None) or "norm"

    def run(self, batches: Sequence[Any], batch_idx: int) -> Tensor | None:
        """Make one update from the mean gradients of some batches. Collective.

        Args:
            batches: An accumulation window.
            batch_idx: Index of its first batch.

        Returns:
            The mean loss of the batches, detached, on its device; None if no step gave a loss, so that there is no
            update.
        """
        if self._with_closure:
            return self.update(partial(self.evaluate, batches, batch_idx))
        loss = self.evaluate(batches, batch_idx)
        if loss is not None:
            self.update()
        return loss

    def evaluate(self, batches: Sequence[Any], batch_idx: int) -> Tensor | None:
        """Compute the mean gradients of some batches; arguments and result are those of `run`."""
        losses: list[Tensor] = []
        for idx, batch in enumerate(batches):
            if len(batches) > 1:
                self._strategy.set_gradient_sync(idx == len(batches) - 1)
            loss = self.forward(batch, batch_idx + idx)
            if loss is None:
                continue
            self.backward(loss / len(batches), zeroes=not losses)
            losses.append(loss.detach())
        if not losses:
            return None
        return torch.stack([loss.reshape(()) for loss in losses]).mean()

    def forward(self, batch: Any, batch_idx: int) -> Tensor | None:
        """Return the loss of a batch; None if the step returned none.

        Args:
            batch: The batch.
            batch_idx: Its index.

        Raises:
            InvalidArgumentError: If the step returned something else.
        """
        values = {"batch": batch, "batch_idx": batch_idx, **_DEFAULTS}
        positional = [values[one.source] for one in self._arguments if one.keyword is None]
        keywords = {one.keyword: values[one.source] for one in self._arguments if one.keyword is not None}
        outputs = self._step(*positional, **keywords)
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if loss is not None and not isinstance(loss, Tensor):
            rule = "a tensor, a dictionary with a tensor as 'loss', or None"
            raise InvalidArgumentError("return value of training_step", rule, outputs, self._where, "Return the loss.")
        return loss

    def backward(self, loss: Tensor | None, *, zeroes: bool = True) -> None:
        """Differentiate a loss, if there is one, after zeroing the gradients if `zeroes` is true."""
        if loss is None:
            return
        if zeroes:
            self.optimizer.zero_grad()
        self._strategy.backward(loss, *(() if self._differentiate is None else (self._differentiate,)))

    def update(self, evaluate: Callable[[], Tensor | None] | None = None) -> Tensor | None:
        """Clip the gradients as the trainer is set up to, and update the weights.

        Args:
            evaluate: Computes the gradients and returns the loss; called by optimizers that are not torch's own. Others
                use the present gradients.

        Returns:
            The loss of the first evaluation; None if there was none.
        """
        if evaluate is None or not self._with_closure:
            self._clip()
            self._strategy.optimizer_step(self.optimizer)
            return None
        first: Tensor | None = None

        @torch.enable_grad()
        def closure() -> Tensor:
            nonlocal first
            loss = evaluate()
            if loss is None:
                raise _NoLossError
            first = loss if first is None else first
            self._clip()
            return loss

        with suppress(_NoLossError):
            self._strategy.optimizer_step(self.optimizer, closure)
        return first

    def _clip(self) -> None:
        if self._clip_val is not None:
            self._strategy.unscale_gradients(self.optimizer)
            self._strategy.clip_gradients(self.optimizer, self._clip_val, self._clip_algorithm)


class _NoLossError(Exception):
    """Leaves an optimizer that calls the closure, if a step returned no loss."""


def check_optimization(trainer: TrainerProtocol, module: Any, where: object) -> None:
    """Raise unless a module is optimized automatically, with one optimizer that does not evaluate the loss itself.

    Raises:
        InvalidArgumentError: If it is not.
    """
    check_automatic(module, where)
    if len(trainer.optimizers) != 1:
        action = "Leave the callback out: it needs exactly one optimizer."
        raise InvalidArgumentError("number of optimizers", "1", len(trainer.optimizers), where, action)
    if needs_closure(trainer.optimizers[0]):
        kind = type(trainer.optimizers[0]).__name__
        action = "Leave the callback out, or use another optimizer."
        raise InvalidArgumentError("optimizer", "one that does not evaluate the loss itself", kind, where, action)


def check_automatic(module: Any, where: object) -> None:
    """Raise `InvalidArgumentError` if a module optimizes manually."""
    if not getattr(module, "automatic_optimization", True):
        action = "Leave the callback out: under manual optimization only the module can make its steps."
        raise InvalidArgumentError("automatic_optimization", "True", False, where, action)


def endless(batches: Iterable[Any], max_passes: float = math.inf) -> Iterator[Any]:
    """Yield batches, one pass after the other, until a pass has none or `max_passes` are over."""
    while max_passes > 0:
        num_batches = 0
        for num_batches, batch in enumerate(batches, 1):  # noqa: B007
            yield batch
        max_passes = max_passes - 1 if num_batches else 0


def mean_of_ranks(strategy: Strategy, loss: Tensor | None) -> float | None:
    """Return the mean loss of the ranks that have one; None if none has. Collective. Waits for the device."""
    own = None if loss is None else float(loss)
    if strategy.world_size == 1:
        return own
    losses = [each for each in strategy.all_gather(own) if each is not None]
    return sum(losses) / len(losses) if losses else None


def any_rank(strategy: Strategy, flag: bool) -> bool:
    """Return whether a flag is true on any rank. Collective."""
    return flag if strategy.world_size == 1 else any(strategy.all_gather(flag))


@contextmanager
def restored(
    module: nn.Module, optimizers: Sequence[Optimizer], strategy: Strategy, *, with_weights: bool = True
) -> Iterator[None]:
    """Restore bit for bit afterwards what training steps change, also if they raise.

    Restored are weights, buffers, gradients, the strategy's state (such as the scale of losses), state and groups of
    optimizers, attributes of modules, and what tensors, lists, dictionaries, sets and deques among these hold. Copies
    are kept in the host's memory. Changes inside of other objects stay.

    Args:
        module: The module, set up.
        optimizers: Its optimizers, set up.
        strategy: The strategy that set them up.
        with_weights: False for steps that leave the weights as they are, so that these are not copied.
    """
    strategy_state = strategy.state_dict()
    restores = [*save_module(module, with_parameters=with_weights), *map(save_gradient, module.parameters())]
    for optimizer in optimizers:
        restores += save_optimizer(optimizer)
    try:
        yield
    finally:
        with torch.no_grad():
            for restore in restores:
                restore()
        strategy.state_dict()  # applies what the last step has left pending
        strategy.load_state_dict(strategy_state)


class SearchBeforeFit(Callback):
    """Base class of callbacks that search when a fit starts; a resumed fit uses the result in its checkpoint."""

    _resumes = False

    def setup(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Check that trial steps are possible, and that there is an attribute to set."""
        self._resumes = False
        if stage == "fit":
            check_automatic(module, self)
            self._check_attribute(trainer, module)

    def on_load_checkpoint(self, trainer: TrainerProtocol, module: Any, checkpoint: dict[str, Any]) -> None:
        """Use the loaded result, before loaders are requested and optimizers are configured."""
        self._resumes = True
        state = checkpoint.get("callbacks", {}).get(self.state_key)
        if state is not None:
            self._use_loaded(trainer, module, state)

    def on_fit_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Search, unless the fit resumes. Collective."""
        if self._resumes:
            return
        if trainer.fast_dev_run:
            warn_user(f"{type(self).__name__} does not search under `fast_dev_run`. Leave that out to search.")
            return
        self._run_search(trainer, module)

    def _check_attribute(self, trainer: TrainerProtocol, module: Any) -> None:
        """Raise `InvalidArgumentError` if there is no attribute for the result."""

    def _use_loaded(self, trainer: TrainerProtocol, module: Any, state: dict[str, Any]) -> None:
        """Set the loaded result; `state` is that of `state_dict`."""

    def _run_search(self, trainer: TrainerProtocol, module: Any) -> None:
        """Search, and set the result. Collective."""


def find_attribute(owners: Sequence[Any], names: Sequence[str], field: str, where: object) -> str:
    """Return the first name that is an attribute or a hyperparameter of any owner.

    Args:
        owners: The module, and the data module or None.
        names: The names, in order of preference.
        field: The argument by which a user names the attribute, for the error.
        where: The class to name in the error.

    Raises:
        InvalidArgumentError: If there is none.
    """
    for name in names:
        if any(hasattr(owner, name) or name in _hparams(owner) for owner in owners):
            return name
    kinds = " or ".join(type(owner).__qualname__ for owner in owners if owner is not None)
    rule = f"the name of an attribute or a hyperparameter of {kinds}"
    asked = names[0] if len(names) == 1 else tuple(names)
    raise InvalidArgumentError(field, rule, asked, where, f"Define it, or pass another name as `{field}`.")


def get_attribute(owners: Sequence[Any], name: str) -> Any:
    """Return the value of an attribute or hyperparameter of the first owner that has it.

    Args:
        owners: The module, and the data module or None.
        name: The name.

    Raises:
        AttributeError: If none has it.
    """
    for owner in owners:
        if hasattr(owner, name):
            return getattr(owner, name)
        if name in _hparams(owner):
            return _hparams(owner)[name]
    raise AttributeError(name)


def set_attribute(owners: Sequence[Any], name: str, value: Any) -> None:
    """Set an attribute and a hyperparameter, on all owners that have it.

    Args:
        owners: The module, and the data module or None.
        name: The name.
        value: The value.
    """
    for owner in owners:
        if hasattr(owner, name):
            setattr(owner, name, value)
        if name in _hparams(owner):
            _hparams(owner)[name] = value


def _hparams(owner: Any) -> Any:
    """Return an owner's hyperparameters by name; of a namespace its dictionary, so that they can be set."""
    hparams = getattr(owner, "hparams", None)
    if hparams is None:
        return {}
    return hparams if isinstance(hparams, Mapping) else vars(hparams)
