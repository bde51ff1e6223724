"""What `configure_optimizers` may return, brought into one form."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, Literal

import attrs
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR, ReduceLROnPlateau

from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.user_warnings import warn_user
from camshaft.loops.foreign_optimizer import foreign_optimizer, is_initialized
from camshaft.loops.toggling import OptimizerToggle

_WHERE = "configure_optimizers"
_OF_OPTIMIZERS = frozenset({"optimizer", "lr_scheduler", "monitor", "frequency"})
_ZERO_GRAD_OF_TORCH = Optimizer.zero_grad
_FORMS = (
    "an optimizer, a list of optimizers, two lists (optimizers, schedulers), a dictionary with 'optimizer' and perhaps "
    "'lr_scheduler', 'monitor' and 'frequency', a list of such dictionaries, or None"
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
        reduce_on_plateau: Whether its `step` gets the value that `monitor` names; where it does not, `monitor` is None.
            The default is true for a `ReduceLROnPlateau`, false for torch's other schedulers; one of another kind gets
            the value if there is a `monitor`, unless what its `step` takes first is an `epoch`.
        optimizer_idx: Index of the optimizer whose learning rate it sets; 0 if that is unknown.
    """

    scheduler: Any
    interval: Literal["epoch", "step"] = attrs.field(default="epoch")
    frequency: int = 1
    monitor: str | None = None
    strict: bool = True
    name: str | None = None
    reduce_on_plateau: bool | None = None
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
        if self.reduce_on_plateau is None:
            self.reduce_on_plateau = _takes_value(self.scheduler, self.monitor)
        if not self.reduce_on_plateau:
            self.monitor = None

    def check_stepped(self) -> None:
        """Check what only matters if the loop steps the scheduler; warns of a `OneCycleLR` that steps by epochs.

        Raises:
            ValueError: If its `step` gets a value, but `monitor` names none.
        """
        if self.reduce_on_plateau and self.monitor is None:
            action = "Return it beside the scheduler, as 'monitor'."
            where = f"{_WHERE}, {type(self.scheduler).__name__}"
            raise ValueError(must_be("monitor", "the name of a logged value", None, where, action))
        if isinstance(self.scheduler, OneCycleLR) and self.interval == "epoch":
            rule, action = "'step' for a OneCycleLR that counts updates", "Return 'interval': 'step' beside it."
            warn_user(must_be("interval", rule, self.interval, _WHERE, action))


@attrs.define(eq=False)
class Optimization:
    """The optimizers and schedulers of a fit.

    Attributes:
        optimizers: The optimizers, in the order in which they work.
        schedulers: The schedulers.
        frequencies: For how many accumulation windows running each optimizer is due, in turn; empty if all are due in
            every window.
        steps_schedulers: Whether the loop steps the schedulers; false where the module steps them by hand.
        toggle: Lets the parameters of one optimizer alone require gradients.
    """

    optimizers: list[Optimizer]
    schedulers: list[LRSchedulerConfig]
    frequencies: list[int] = attrs.field(factory=list)
    steps_schedulers: bool = True
    toggle: OptimizerToggle = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.toggle = OptimizerToggle(self.optimizers)
        for config in self.schedulers:
            own_groups = getattr(getattr(config.scheduler, "optimizer", None), "param_groups", ())
            idxs = [idx for idx, one in enumerate(self.optimizers) if _shares_groups(own_groups, one)]
            config.optimizer_idx = idxs[0] if idxs else 0

    def take(self, optimizers: list[Optimizer]) -> None:
        """Work with these in place of the optimizers, as when a strategy has set them up."""
        self.optimizers = optimizers
        self.toggle = OptimizerToggle(optimizers)


def read_configuration(returned: Any, *, steps_schedulers: bool = True, checks_attachment: bool = True) -> Optimization:
    """Bring what `configure_optimizers` returned into one form.

    An optimizer is one of torch's `Optimizer`, or what has the attributes of one; see `foreign_optimizer`. Settings of
    schedulers and optimizers that nobody knows are left out, with a warning.

    Args:
        returned: An optimizer, a list of them, two lists, a dictionary, a list of dictionaries, or None.
        steps_schedulers: Whether the loop steps the schedulers; those that the module steps by hand need not say what
            they monitor.
        checks_attachment: Whether a scheduler must set the learning rate of an optimizer that is returned as well.

    Raises:
        TypeError: If it is none of these, or an object that steps lacks something that optimizers must have.
        ValueError: If a scheduler's settings or the optimizers' frequencies make no sense, or a scheduler sets the
            learning rate of an optimizer that was not returned.
    """
    optimization = _read(returned)
    optimization.steps_schedulers = steps_schedulers
    if checks_attachment:
        for config in optimization.schedulers:
            _check_attached(config.scheduler, optimization.optimizers)
    for config in optimization.schedulers:
        if steps_schedulers:
            config.check_stepped()
        elif config.monitor is not None:
            rule, action = "left out under manual optimization", "Step the scheduler in the module, with the value."
            warn_user(must_be("monitor", rule, config.monitor, _WHERE, action))
    return optimization


def _read(returned: Any) -> Optimization:
    if returned is None:
        return Optimization([], [])
    if isinstance(returned, Mapping):
        return _from_dictionaries([returned])
    if not isinstance(returned, (list, tuple)):
        return Optimization([_optimizer(returned)], [])
    if len(returned) == 2 and isinstance(returned[0], (list, tuple)):
        optimizers, schedulers = returned
        schedulers = schedulers if isinstance(schedulers, (list, tuple)) else [schedulers]
        return Optimization([_optimizer(one) for one in optimizers], [_scheduler(one) for one in schedulers])
    if returned and all(isinstance(part, Mapping) for part in returned):
        return _from_dictionaries(returned)
    return Optimization([_optimizer(one) for one in returned], [])


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
        if "optimizer" not in dictionary:
            rule = "a dictionary with the keys 'optimizer' and perhaps 'lr_scheduler', 'monitor' and 'frequency'"
            raise TypeError(must_be("return value", rule, sorted(dictionary), _WHERE, "Return these keys only."))
        _warn_of_unknown("optimizer", dictionary, _OF_OPTIMIZERS)
        optimizers.append(_optimizer(dictionary["optimizer"]))
        if dictionary.get("lr_scheduler") is not None:
            schedulers.append(_scheduler(dictionary["lr_scheduler"], dictionary.get("monitor")))
    return Optimization(optimizers, schedulers, _frequencies(dictionaries))


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


def _optimizer(given: Any) -> Optimizer:
    if is_initialized(given):
        return given  # type: ignore[no-any-return]
    if not callable(getattr(given, "step", None)) or isinstance(given, LRScheduler):
        raise TypeError(must_be("return value", _FORMS, given, _WHERE, "Return one of these."))
    return foreign_optimizer(given, _WHERE)


def _scheduler(given: Any, monitor: str | None = None) -> LRSchedulerConfig:
    """A scheduler with its settings; `monitor` is the value that was named beside its optimizer."""
    if not isinstance(given, Mapping):
        return LRSchedulerConfig(given, monitor=monitor)
    known = {name for name, field in attrs.fields_dict(LRSchedulerConfig).items() if field.init}
    if "scheduler" not in given:
        rule = f"a dictionary with 'scheduler' and any of {', '.join(sorted(known - {'scheduler'}))}"
        raise TypeError(must_be("lr_scheduler", rule, sorted(given), _WHERE, "Return these keys only."))
    _warn_of_unknown("lr_scheduler", given, known)
    settings = {name: value for name, value in given.items() if name in known}
    if settings.get("monitor") is None:
        settings["monitor"] = monitor
    return LRSchedulerConfig(**settings)


def _warn_of_unknown(what: str, given: Mapping[str, Any], known: Set[str]) -> None:
    unknown = sorted(str(name) for name in given if name not in known)
    if unknown:
        rule = f"any of {', '.join(sorted(known))}; others make no difference"
        warn_user(must_be(f"keys beside '{what}'", rule, unknown, _WHERE, "Leave these out."))


def _takes_value(scheduler: Any, monitor: str | None) -> bool:
    """Return whether the `step` of a scheduler gets what it monitors, where its settings do not say so."""
    if isinstance(scheduler, LRScheduler) or monitor is None:
        return isinstance(scheduler, ReduceLROnPlateau)
    return next(iter(inspect.signature(scheduler.step).parameters), None) != "epoch"


def _check_attached(scheduler: Any, optimizers: Sequence[Optimizer]) -> None:
    """Raise `ValueError` if a scheduler sets the learning rate of none of the optimizers.

    A wrapper and what it wraps share their groups, or the list of them.
    """
    own = getattr(scheduler, "optimizer", None)
    groups = getattr(own, "param_groups", None)
    if groups is None or any(own is one or _shares_groups(groups, one) for one in optimizers):
        return
    rule = "one for an optimizer that is returned as well, since it would change the rate of no other"
    got = f"{type(scheduler).__name__} for another {type(own).__name__}"
    action = "Make the scheduler with the optimizer that you return, or return that one."
    raise ValueError(must_be("lr_scheduler", rule, got, _WHERE, action))


def _shares_groups(groups: Sequence[Any], optimizer: Optimizer) -> bool:
    others = optimizer.param_groups
    return groups is others or any(one is other for one in groups for other in others)
