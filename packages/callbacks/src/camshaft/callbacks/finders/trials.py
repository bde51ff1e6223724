"""Training steps on trial, which leave no trace."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.hooks_core import Callback
from camshaft.hooks_core.binding import Argument, BindingError, bind
from camshaft.hooks_core.implementation import implementation
from camshaft.hooks_core.optimizer_step import needs_closure, steps_with_closure
from camshaft.hooks_core.user_warnings import warn_user

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from camshaft.hooks_core.protocols import Strategy, TrainerProtocol


_NOTHING = {"optimizer_idx": 0, "hiddens": None}
"""What a step gets that asks for these: batches are not split, and there is one optimizer."""


class TrialSteps:
    """Makes steps of automatic optimization with one optimizer, as the strategy makes them.

    A step is `training_step`, zeroing, backward (the module's own, if it has one), clipping as the trainer is set up to
    clip (its `gradient_clip_val` and `gradient_clip_algorithm`, where it has these), and the optimizer's step. No hook
    is called beside these two, batches are not split along time, and schedulers do not step. What surrounds the steps
    is the caller's: `trainer.trial()` and `put_back`.

    Args:
        trainer: The trainer, after `configure_optimizers`.
        module: The module.
        where: Who makes the steps, for errors.

    Attributes:
        optimizer: The optimizer.

    Raises:
        InvalidArgumentError: If the module optimizes by hand, has not exactly one optimizer, or one that evaluates the
            loss itself, or a `training_step` with further arguments.
    """

    def __init__(self, trainer: TrainerProtocol, module: Any, where: str) -> None:
        check_optimization(trainer, module, where)
        self.optimizer: Optimizer = trainer.optimizers[0]
        self._strategy = trainer.strategy
        self._where = where
        self._arguments = _arguments_of(module.training_step, where)
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
        """Compute the mean gradients of some batches, from zeroed ones; arguments and result are those of `run`."""
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
        """The loss of a batch, or None if the step returned none."""
        values = {"batch": batch, "batch_idx": batch_idx, **_NOTHING}
        positional = [values[one.source] for one in self._arguments if one.keyword is None]
        keywords = {one.keyword: values[one.source] for one in self._arguments if one.keyword is not None}
        outputs = self._step(*positional, **keywords)
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if loss is not None and not isinstance(loss, Tensor):
            action = "Return the loss."
            rule = "a tensor, a dictionary with a tensor as 'loss', or None"
            raise InvalidArgumentError("return value of training_step", rule, outputs, self._where, action)
        return loss

    def backward(self, loss: Tensor, *, zeroes: bool = True) -> None:
        """Differentiate a loss; gradients are zeroed before if `zeroes` is true."""
        if zeroes:
            self.optimizer.zero_grad()
        if self._differentiate is None:
            self._strategy.backward(loss)
        else:
            self._strategy.backward(loss, self._differentiate)

    def update(self, evaluate: Callable[[], Tensor | None] | None = None) -> Tensor | None:
        """Clip the gradients, if that is asked for, and update the weights.

        Args:
            evaluate: Computes the gradients and returns the loss, as often as an optimizer wants that is not torch's
                own; others go by the gradients that are there.

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
    """Leaves an optimizer that evaluates the loss itself, when a step gave none."""


def check_optimization(trainer: TrainerProtocol, module: Any, where: str) -> None:
    """Raise unless a module is optimized automatically, with one optimizer that does not evaluate the loss itself.

    Raises:
        InvalidArgumentError: If it is not.
    """
    check_automatic(module, where)
    if len(trainer.optimizers) != 1:
        action = "Leave the callback out: with several optimizers, or none, nobody knows what a step is."
        raise InvalidArgumentError("number of optimizers", "1", len(trainer.optimizers), where, action)
    if needs_closure(trainer.optimizers[0]):
        kind = type(trainer.optimizers[0]).__name__
        action = "Leave the callback out, or use another optimizer."
        raise InvalidArgumentError("optimizer", "one that does not evaluate the loss itself", kind, where, action)


def check_automatic(module: Any, where: str) -> None:
    """Raise `InvalidArgumentError` if a module optimizes by hand."""
    if not getattr(module, "automatic_optimization", True):
        action = "Leave the callback out: under manual optimization nobody else can make the module's steps."
        raise InvalidArgumentError("automatic_optimization", "True", False, where, action)


def endless(batches: Iterable[Any]) -> Iterator[Any]:
    """The batches, one pass after the other; it ends if a pass gives none."""
    while True:
        is_empty = True
        for batch in batches:
            is_empty = False
            yield batch
        if is_empty:
            return


def mean_of_ranks(strategy: Strategy, loss: Tensor | None) -> float | None:
    """The mean loss of the processes that have one; None if none has. Collective. Waits for the device."""
    own = None if loss is None else float(loss)
    if strategy.world_size == 1:
        return own
    losses = [each for each in strategy.all_gather(own) if each is not None]
    return sum(losses) / len(losses) if losses else None


def any_rank(strategy: Strategy, flag: bool) -> bool:
    """Whether something is so in any process. Collective."""
    return flag if strategy.world_size == 1 else any(strategy.all_gather(flag))


def _arguments_of(step: Callable[..., Any], where: str) -> tuple[Argument, ...]:
    try:
        return bind(step, ("batch", "batch_idx"), tuple(_NOTHING))
    except BindingError as error:
        action = "Leave the callback out, or give its other arguments defaults."
        rule = "one of (batch, batch_idx)"
        raise InvalidArgumentError("training_step", rule, str(error), where, action) from error


_OWN = frozenset(vars(nn.Module())) - {"training"}
"""Attributes in which `nn.Module` keeps parameters, buffers, submodules and hooks."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None))

Restore = Callable[[], None]


@contextmanager
def put_back(module: nn.Module, optimizers: Sequence[Optimizer], strategy: Strategy) -> Iterator[None]:
    """Whatever training steps change inside is as before afterwards, to the bit, also if they raise.

    That is weights, buffers, gradients, what the strategy has learned (such as the scale of losses), the state and the
    groups of optimizers, and attributes of modules that are tensors, plain values, or lists, dictionaries, sets and
    deques of these. Copies are held in the memory of the host. Other objects that a step changes stay changed.

    Args:
        module: The module, set up.
        optimizers: Its optimizers, set up.
        strategy: The strategy that set them up.
    """
    learned = strategy.state_dict()
    restores = [_remember_module(module), *map(_remember_optimizer, optimizers)]
    try:
        yield
    finally:
        with torch.no_grad():
            for restore in restores:
                restore()
        strategy.state_dict()  # brings up to date what else would follow from the last step later
        strategy.load_state_dict(learned)


def _remember_module(module: nn.Module) -> Restore:
    restores: list[Restore] = []
    seen: set[int] = set()
    for parameter in module.parameters():
        restores += [_remember_tensor(parameter), _remember_gradient(parameter)]
    for submodule in module.modules():
        restores.append(_remember_buffers(submodule))
        restores.append(_remember_attributes(submodule, seen))

    def restore() -> None:
        for each in restores:
            each()

    return restore


def _local(tensor: Tensor) -> Tensor:
    """This process's part of a tensor, which shares its memory."""
    to_local = getattr(tensor, "to_local", None)
    local: Tensor = tensor.detach() if to_local is None else to_local().detach()
    return local


def _remember_tensor(tensor: Tensor) -> Restore:
    saved = _local(tensor).to("cpu", copy=True)

    def restore() -> None:
        _local(tensor).copy_(saved)

    return restore


def _remember_gradient(parameter: nn.Parameter) -> Restore:
    gradient = parameter.grad
    restore_values = None if gradient is None else _remember_tensor(gradient)

    def restore() -> None:
        parameter.grad = gradient
        if restore_values is not None:
            restore_values()

    return restore


def _remember_buffers(module: nn.Module) -> Restore:
    buffers = dict(module._buffers)
    values = [_remember_tensor(buffer) for buffer in buffers.values() if buffer is not None]

    def restore() -> None:
        module._buffers.clear()
        module._buffers.update(buffers)
        for restore_values in values:
            restore_values()

    return restore


def _remember_attributes(module: nn.Module, seen: set[int]) -> Restore:
    attributes = {name: value for name, value in vars(module).items() if name not in _OWN and _is_known(value)}
    contents = [restore for value in attributes.values() for restore in _remember_contents(value, seen)]
    names = set(vars(module))

    def restore() -> None:
        own = vars(module)
        for name in set(own) - names:
            if _is_known(own[name]):
                del own[name]
        own.update(attributes)
        for restore_contents in contents:
            restore_contents()

    return restore


def _is_known(value: Any) -> bool:
    return isinstance(value, (*_PLAIN, Tensor, list, tuple, dict, set, deque))


def _remember_contents(value: Any, seen: set[int]) -> Iterator[Restore]:
    """How to put back what is in tensors and containers of any nesting, each once."""
    if isinstance(value, _PLAIN) or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        if (
            value.is_leaf and value.layout is torch.strided and not value.is_inference()
        ):  # what has a graph is not changed in place
            yield _remember_tensor(value)
    elif isinstance(value, dict):
        yield _refill_dict(value)
        for item in value.values():
            yield from _remember_contents(item, seen)
    elif isinstance(value, (list, deque)):
        yield _refill(value, list(value), value.extend)
        for item in value:
            yield from _remember_contents(item, seen)
    elif isinstance(value, set):
        yield _refill(value, set(value), value.update)
    elif isinstance(value, tuple):
        for item in value:
            yield from _remember_contents(item, seen)


def _refill_dict(container: dict[Any, Any]) -> Restore:
    items = list(container.items())

    def restore() -> None:
        now = list(container.items())
        if len(now) == len(items) and all(a is c and b is d for (a, b), (c, d) in zip(now, items, strict=True)):
            return
        base: Any = OrderedDict if isinstance(container, OrderedDict) else dict  # a subclass may refuse to be changed
        base.clear(container)
        for key, item in items:
            base.__setitem__(container, key, item)

    return restore


def _refill(container: Any, items: Any, fill: Callable[[Any], Any]) -> Restore:
    def restore() -> None:
        container.clear()
        fill(items)

    return restore


def _remember_optimizer(optimizer: Optimizer) -> Restore:
    """The groups' settings and the state. That is not what `load_state_dict` restores: it converts to other types."""
    seen: set[int] = set()
    settings = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    members = [group["params"] for group in optimizer.param_groups]
    states = {parameter: dict(state) for parameter, state in optimizer.state.items()}
    values = [
        restore
        for each in (*settings, *states.values())
        for value in each.values()
        for restore in _remember_contents(value, seen)
    ]
    has_stepped = vars(optimizer).get("_opt_called")  # by which schedulers find that they step too early

    def restore() -> None:
        for group, params, its_settings in zip(optimizer.param_groups, members, settings, strict=True):
            group.clear()
            group.update({"params": params, **its_settings})
        optimizer.state.clear()
        for parameter, state in states.items():
            optimizer.state[parameter] = state
        for restore_values in values:
            restore_values()
        if has_stepped is not None:
            optimizer._opt_called = has_stepped  # type: ignore[attr-defined]
        else:
            vars(optimizer).pop("_opt_called", None)

    return restore


class SearchBeforeFit(Callback):
    """Searches when a fit starts; one that resumes takes over what its checkpoint knows."""

    _resumes = False

    def setup(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Check that the module's steps can be made, and that there is an attribute to set."""
        self._resumes = False
        if stage == "fit":
            check_automatic(module, type(self).__name__)
            self._check_attribute(trainer, module)

    def on_load_checkpoint(self, trainer: TrainerProtocol, module: Any, checkpoint: dict[str, Any]) -> None:
        """Take over what was found, before loaders are asked for and optimizers are configured."""
        self._resumes = True
        state = checkpoint.get("callbacks", {}).get(self.state_key)
        if state is not None:
            self._take_over(trainer, module, state)

    def on_fit_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Search, unless the fit resumes. Collective."""
        if self._resumes:
            return
        if trainer.fast_dev_run:
            warn_user(f"{type(self).__name__} does not search under `fast_dev_run`.")
            return
        self._find(trainer, module)

    def _check_attribute(self, trainer: TrainerProtocol, module: Any) -> None:
        """Raise `InvalidArgumentError` if nobody keeps what is to be set."""
        raise NotImplementedError

    def _take_over(self, trainer: TrainerProtocol, module: Any, state: dict[str, Any]) -> None:
        """Set what was found; `state` is what `state_dict` returned."""
        raise NotImplementedError

    def _find(self, trainer: TrainerProtocol, module: Any) -> None:
        """Search, and set what was found. Collective."""
        raise NotImplementedError


def find_attribute(owners: Sequence[Any], names: Sequence[str], field: str, where: str) -> str:
    """The first of some names under which any owner keeps a value.

    Args:
        owners: The module, and the data module if there is one; None is skipped.
        names: The names, those that are looked for first before others.
        field: The argument by which a user names the attribute, for the error.
        where: Who looks, for the error.

    Raises:
        InvalidArgumentError: If there is none.
    """
    for name in names:
        if any(_keeps(owner, name) for owner in owners):
            return name
    kinds = " or ".join(type(owner).__qualname__ for owner in owners if owner is not None)
    rule = f"the name of an attribute or a hyperparameter of {kinds}"
    asked = names[0] if len(names) == 1 else tuple(names)
    raise InvalidArgumentError(field, rule, asked, where, f"Keep the value there, or name it by `{field}`.")


def get_attribute(owners: Sequence[Any], name: str) -> Any:
    """The value of the first owner that keeps one."""
    for owner in owners:
        if hasattr(owner, name):
            return getattr(owner, name)
        hparams = _hparams(owner)
        if name in hparams:
            return hparams[name]
    raise AttributeError(name)


def set_attribute(owners: Sequence[Any], name: str, value: Any) -> None:
    """Set a value wherever it is kept: attributes and hyperparameters of all owners."""
    for owner in owners:
        if owner is not None and hasattr(owner, name):
            setattr(owner, name, value)
        hparams = _hparams(owner)
        if name in hparams:
            hparams[name] = value


def _keeps(owner: Any, name: str) -> bool:
    return owner is not None and (hasattr(owner, name) or name in _hparams(owner))


def _hparams(owner: Any) -> Any:
    """Hyperparameters by name; a namespace as its dictionary, so that they can be set."""
    hparams = getattr(owner, "hparams", None)
    if hparams is None:
        return {}
    return hparams if isinstance(hparams, Mapping) else vars(hparams)
