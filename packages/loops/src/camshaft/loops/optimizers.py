"""What `configure_optimizers` may return, brought into one form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import attrs
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from camshaft.hooks_core.eras import TODAY, Behaviour
from camshaft.hooks_core.messages import must_be
from camshaft.loops.earlier_configuration import in_form_of_today
from camshaft.loops.toggling import OptimizerToggle

_WHERE = "configure_optimizers"
_FIRST_OF_TODAY = (2, 0)
_ZERO_GRAD_OF_TORCH = Optimizer.zero_grad
_FORMS = (
    "an optimizer, a list of optimizers, two lists (optimizers, schedulers), a dictionary with 'optimizer' and perhaps "
    "'lr_scheduler' and 'frequency', a list of such dictionaries, or None"
)


@attrs.define(eq=False)
class LRSchedulerConfig:
    """A learning-rate scheduler and when it steps.

    Attributes:
        scheduler: Anything with `step`, `state_dict` and `load_state_dict`.
        interval: "epoch" steps it after each training epoch, "step" after each update.
        frequency: It steps every so many intervals.
        monitor: Name of the logged value that its `step` gets; None calls it without.
        strict: Whether a missing value is an error; if false the step is skipped with a warning.
        name: Its name for whoever shows learning rates.
        optimizer_idx: Index of the optimizer whose learning rate it sets; 0 if that is unknown.
    """

    scheduler: Any
    interval: Literal["epoch", "step"] = attrs.field(default="epoch")
    frequency: int = 1
    monitor: str | None = None
    strict: bool = True
    name: str | None = None
    optimizer_idx: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        if not callable(getattr(self.scheduler, "step", None)) or not hasattr(self.scheduler, "state_dict"):
            rule = "a learning-rate scheduler (with `step`, `state_dict` and `load_state_dict`)"
            raise TypeError(must_be("lr_scheduler", rule, self.scheduler, _WHERE, "Return a scheduler."))
        if self.interval not in ("epoch", "step"):
            rule = "'epoch' or 'step'"
            raise ValueError(must_be("interval", rule, self.interval, _WHERE, "Return one of the two."))
        if not isinstance(self.frequency, int) or self.frequency < 1:
            raise ValueError(must_be("frequency", "a positive int", self.frequency, _WHERE, "Return 1 or more."))
        if isinstance(self.scheduler, ReduceLROnPlateau) and self.monitor is None:
            action = "Return a dictionary with 'scheduler' and 'monitor'."
            raise ValueError(must_be("monitor", "the name of a logged value", None, _WHERE, action))


@attrs.define(eq=False)
class Optimization:
    """The optimizers and schedulers of a fit.

    Attributes:
        optimizers: The optimizers, in the order in which they work.
        schedulers: The schedulers.
        frequencies: For how many accumulation windows running each optimizer is due, in turn; empty if all are due in
            every window.
        toggle: Lets the parameters of one optimizer alone require gradients.
    """

    optimizers: list[Optimizer]
    schedulers: list[LRSchedulerConfig]
    frequencies: list[int] = attrs.field(factory=list)
    toggle: OptimizerToggle = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.toggle = OptimizerToggle(self.optimizers)
        for config in self.schedulers:
            own_groups = getattr(getattr(config.scheduler, "optimizer", None), "param_groups", None)
            idxs = [idx for idx, one in enumerate(self.optimizers) if one.param_groups is own_groups]
            config.optimizer_idx = idxs[0] if idxs else 0

    def take(self, optimizers: list[Optimizer]) -> None:
        """Work with these in place of the optimizers, as when a strategy has set them up."""
        self.optimizers = optimizers
        self.toggle = OptimizerToggle(optimizers)


def read_configuration(returned: Any, behaviour: Behaviour = TODAY) -> Optimization:
    """Bring what `configure_optimizers` returned into one form.

    Args:
        returned: An optimizer, a list of them, two lists, a dictionary, a list of dictionaries, or None.
        behaviour: What the module's era did; before 2.0 there are more forms, see `in_form_of_today`.

    Raises:
        TypeError: If it is none of these.
        ValueError: If a scheduler's settings or the optimizers' frequencies make no sense.
    """
    if behaviour.since < _FIRST_OF_TODAY:
        returned = in_form_of_today(returned, behaviour)
    if returned is None:
        return Optimization([], [])
    if isinstance(returned, Optimizer):
        return Optimization([returned], [])
    if isinstance(returned, Mapping):
        return _from_dictionaries([returned])
    if isinstance(returned, (list, tuple)):
        if len(returned) == 2 and all(isinstance(part, (list, tuple)) for part in returned):
            optimizers, schedulers = returned
            return Optimization(_checked(optimizers), [_scheduler(scheduler) for scheduler in schedulers])
        if returned and all(isinstance(part, Mapping) for part in returned):
            return _from_dictionaries(returned)
        return Optimization(_checked(returned), [])
    raise TypeError(must_be("return value", _FORMS, returned, _WHERE, "Return one of these."))


def dropping_gradients(optimizer: Optimizer) -> Callable[[], None]:
    """What does for an optimizer what its `zero_grad()` does: that method, unless it is torch's own.

    In place of torch's, gradients are set to None and no more, without the label that profilers show for it; that takes
    a tenth of the time for a small model.
    """
    if getattr(type(optimizer), "zero_grad", None) is not _ZERO_GRAD_OF_TORCH or "zero_grad" in vars(optimizer):
        return optimizer.zero_grad

    def drop_gradients() -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    return drop_gradients


def _from_dictionaries(dictionaries: Sequence[Mapping[str, Any]]) -> Optimization:
    optimizers, schedulers = [], []
    for dictionary in dictionaries:
        unknown = set(dictionary) - {"optimizer", "lr_scheduler", "frequency"}
        if unknown or "optimizer" not in dictionary:
            rule = "a dictionary with the keys 'optimizer' and perhaps 'lr_scheduler' and 'frequency'"
            raise TypeError(must_be("return value", rule, sorted(dictionary), _WHERE, "Return these keys only."))
        optimizers.append(dictionary["optimizer"])
        if dictionary.get("lr_scheduler") is not None:
            schedulers.append(_scheduler(dictionary["lr_scheduler"]))
    return Optimization(_checked(optimizers), schedulers, _frequencies(dictionaries))


def _frequencies(dictionaries: Sequence[Mapping[str, Any]]) -> list[int]:
    """The optimizers' frequencies, or none if no dictionary has one (or has None)."""
    frequencies = [dictionary.get("frequency") for dictionary in dictionaries]
    if all(frequency is None for frequency in frequencies):
        return []
    for frequency in frequencies:
        if frequency is None:
            rule = "given for every optimizer or for none"
            raise ValueError(must_be("frequency", rule, frequencies, _WHERE, "Return one in each dictionary."))
        if isinstance(frequency, bool) or not isinstance(frequency, int) or frequency < 1:
            raise ValueError(must_be("frequency", "a positive int", frequency, _WHERE, "Return 1 or more."))
    if len(frequencies) == 1:
        rule = "left out if there is one optimizer, which is due always"
        action = "Leave it out, or pass accumulate_grad_batches for fewer updates."
        raise ValueError(must_be("frequency", rule, frequencies[0], _WHERE, action))
    return [int(frequency) for frequency in frequencies if frequency is not None]


def _checked(optimizers: Sequence[Any]) -> list[Optimizer]:
    for optimizer in optimizers:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(must_be("return value", _FORMS, optimizer, _WHERE, "Return one of these."))
    return list(optimizers)


def _scheduler(given: Any) -> LRSchedulerConfig:
    if not isinstance(given, Mapping):
        return LRSchedulerConfig(given)
    settings = dict(given)
    known = {name for name, field in attrs.fields_dict(LRSchedulerConfig).items() if field.init}
    unknown = sorted(set(settings) - known)
    if unknown or "scheduler" not in settings:
        rule = f"a dictionary with 'scheduler' and any of {', '.join(sorted(known - {'scheduler'}))}"
        raise TypeError(must_be("lr_scheduler", rule, sorted(given), _WHERE, "Return these keys only."))
    return LRSchedulerConfig(**settings)
