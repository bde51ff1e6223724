"""Reading what `configure_optimizers` returned."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from typing import Any, Literal

import attrs
import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR, ReduceLROnPlateau
from torch.utils.hooks import RemovableHandle

from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.hooks_core.support.optimizer_step import accepts_closure, replace_step
from camshaft.loops.optimization.joint_optimizer import JointOptimizer
from camshaft.loops.optimization.toggling import OptimizerToggle

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
        name: Its name where learning rates are shown or logged.
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
        if not hasattr(self.scheduler, "state_dict"):
            rule = "a learning-rate scheduler (with `step`, `state_dict` and `load_state_dict`)"
            raise TypeError(must_be("lr_scheduler", rule, self.scheduler, _WHERE, "Return a scheduler."))
        if self.interval not in ("epoch", "step"):
            raise ValueError(must_be("interval", "'epoch' or 'step'", self.interval, _WHERE, "Return one of these."))
        _check_frequency(self.frequency)
        if self.reduce_on_plateau is None:
            self.reduce_on_plateau = _takes_value(self.scheduler, self.monitor)
        if not self.reduce_on_plateau:
            self.monitor = None

    def check_stepped(self) -> None:
        """Check what only matters if the loop steps the scheduler; warns of a `OneCycleLR` that steps by epochs.

        Raises:
            TypeError: If it has no `step`.
            ValueError: If its `step` gets a value, but `monitor` names none.
        """
        if not callable(getattr(self.scheduler, "step", None)):
            rule = "one with a `step`, which is called under automatic optimization"
            raise TypeError(must_be("lr_scheduler", rule, self.scheduler, _WHERE, "Give it that method."))
        if self.reduce_on_plateau and self.monitor is None:
            where, action = f"{_WHERE}, {type(self.scheduler).__name__}", "Return it beside the scheduler."
            raise ValueError(must_be("monitor", "the name of a logged value", None, where, action))
        if isinstance(self.scheduler, OneCycleLR) and self.interval == "epoch":
            rule, action = "'step' for a OneCycleLR that counts updates", "Return 'interval': 'step' beside it."
            warn_user(must_be("interval", rule, self.interval, _WHERE, action))


@attrs.define(eq=False, repr=False)
class ConfiguredOptimizers:
    """The optimizers and schedulers of a fit.

    Attributes:
        optimizers: The optimizers, in the order in which they work.
        schedulers: The schedulers.
        frequencies: Number of consecutive accumulation windows that each optimizer is due, in turn; empty if all are in
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
        """Replace the optimizers by those that the strategy has set up."""
        self.optimizers = optimizers
        self.toggle = OptimizerToggle(optimizers)


def read_configuration(
    returned: Any, *, steps_schedulers: bool = True, checks_attachment: bool = True
) -> ConfiguredOptimizers:
    """Bring what `configure_optimizers` returned into one form.

    An optimizer is one of torch's `Optimizer`, or what has the attributes of one; see `complete_optimizer`. Settings of
    schedulers and optimizers that are unknown are left out, with a warning.

    Args:
        returned: An optimizer, a list of them, two lists, a dictionary, a list of dictionaries, or None.
        steps_schedulers: Whether the loop steps the schedulers; those that the module steps by hand need not say what
            they monitor.
        checks_attachment: Whether a scheduler must set the learning rate of an optimizer that is returned as well.

    Returns:
        Optimizers and schedulers.

    Raises:
        TypeError: If it is none of these, or an object that steps lacks something that optimizers must have.
        ValueError: If a scheduler's settings or the optimizers' frequencies make no sense, or a scheduler sets the
            learning rate of an optimizer that was not returned.
    """
    configured = _read(returned)
    configured.steps_schedulers = steps_schedulers
    if checks_attachment:
        for config in configured.schedulers:
            _check_attached(config.scheduler, configured.optimizers)
    for config in configured.schedulers:
        if steps_schedulers:
            config.check_stepped()
        elif config.monitor is not None:
            rule, action = "left out under manual optimization", "Step the scheduler in the module, with the value."
            warn_user(must_be("monitor", rule, config.monitor, _WHERE, action))
    return configured


def _read(returned: Any) -> ConfiguredOptimizers:
    if isinstance(returned, Mapping):
        return _from_dictionaries([returned])
    optimizers, schedulers = [] if returned is None else returned, []
    if not isinstance(optimizers, (list, tuple)):
        optimizers = [optimizers]
    elif len(optimizers) == 2 and isinstance(optimizers[0], (list, tuple)):
        optimizers, schedulers = optimizers
        schedulers = schedulers if isinstance(schedulers, (list, tuple)) else [schedulers]
    elif optimizers and all(isinstance(part, Mapping) for part in optimizers):
        return _from_dictionaries(optimizers)
    return ConfiguredOptimizers([_optimizer(one) for one in optimizers], [_scheduler(one) for one in schedulers])


def dropping_gradients(optimizer: Optimizer) -> Callable[[], None]:
    """Return a fast `zero_grad` of an optimizer: its own method, unless that is torch's.

    A `JointOptimizer` has those of its parts. In place of torch's, gradients are only set to None. This avoids torch's
    label for profilers, which then do not show the zeroing, and takes a tenth of the time for a small model.
    """
    if isinstance(optimizer, JointOptimizer):
        drops = [dropping_gradients(one) for one in optimizer.optimizers]

        def drop_all() -> None:
            for drop in drops:
                drop()

        return drop_all
    if getattr(type(optimizer), "zero_grad", None) is not _ZERO_GRAD_OF_TORCH or "zero_grad" in vars(optimizer):
        return optimizer.zero_grad

    def drop_gradients() -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    return drop_gradients


def parameters_of(optimizer: Optimizer) -> list[torch.Tensor]:
    """Return the parameters of all groups of an optimizer."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _from_dictionaries(dictionaries: Sequence[Mapping[str, Any]]) -> ConfiguredOptimizers:
    optimizers, schedulers = [], []
    for dictionary in dictionaries:
        if "optimizer" not in dictionary:
            rule = "a dictionary with the keys 'optimizer' and perhaps 'lr_scheduler', 'monitor' and 'frequency'"
            raise TypeError(must_be("return value", rule, sorted(dictionary), _WHERE, "Return these keys only."))
        _warn_of_unknown("optimizer", dictionary, _OF_OPTIMIZERS)
        optimizers.append(_optimizer(dictionary["optimizer"]))
        if dictionary.get("lr_scheduler") is not None:
            schedulers.append(_scheduler(dictionary["lr_scheduler"], dictionary.get("monitor")))
    return ConfiguredOptimizers(optimizers, schedulers, _frequencies(dictionaries))


def _frequencies(dictionaries: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the optimizers' frequencies; empty if no dictionary has one."""
    given = [dictionary.get("frequency") for dictionary in dictionaries]
    frequencies = [frequency for frequency in given if frequency is not None]
    if frequencies and len(frequencies) != len(given):
        rule = "given for every optimizer or for none"
        raise ValueError(must_be("frequency", rule, given, _WHERE, "Return one in each dictionary."))
    for frequency in frequencies:
        _check_frequency(frequency)
    if len(frequencies) == 1:
        rule, action = "left out if there is one optimizer, which is due always", "Pass accumulate_grad_batches."
        raise ValueError(must_be("frequency", rule, frequencies[0], _WHERE, action))
    return frequencies


def _check_frequency(frequency: Any) -> None:
    if isinstance(frequency, bool) or not isinstance(frequency, int) or frequency < 1:
        raise ValueError(must_be("frequency", "a positive int", frequency, _WHERE, "Return 1 or more."))


def _optimizer(given: Any) -> Optimizer:
    if not callable(getattr(given, "step", None)) or isinstance(given, LRScheduler):
        raise TypeError(must_be("return value", _FORMS, given, _WHERE, "Return one of these."))
    return complete_optimizer(given, _WHERE)


def _scheduler(given: Any, monitor: str | None = None) -> LRSchedulerConfig:
    """Return a scheduler with its settings; `monitor` is the value that was named beside its optimizer."""
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
    step = getattr(scheduler, "step", None)
    return step is None or next(iter(inspect.signature(step).parameters), None) != "epoch"


def _check_attached(scheduler: Any, optimizers: Sequence[Optimizer]) -> None:
    """Raise `ValueError` if a scheduler sets the learning rate of none of the optimizers.

    A wrapper and what it wraps share their groups, or the list of them.
    """
    own = getattr(scheduler, "optimizer", None)
    groups = getattr(own, "param_groups", None)
    if groups is not None and not any(own is one or _shares_groups(groups, one) for one in optimizers):
        rule, got = "one for an optimizer that is returned as well", f"{type(scheduler).__name__} for another "
        action = "Make the scheduler with the optimizer that you return, or return that one."
        raise ValueError(must_be("lr_scheduler", rule, got + type(own).__name__, _WHERE, action))


def _shares_groups(groups: Sequence[Any], optimizer: Optimizer) -> bool:
    others = optimizer.param_groups
    return groups is others or any(one is other for one in groups for other in others)


_STEP_HOOKS = ("register_step_pre_hook", "register_step_post_hook")
_ADDED = frozenset({"step", *_STEP_HOOKS, "state_dict", "load_state_dict", "toggle_model"})
_NEEDED = ("param_groups", "step", "zero_grad", "state_dict", "load_state_dict", "__dict__")


def complete_optimizer(given: Any, where: str) -> Optimizer:
    """Put on an object that torch's constructor has not made what it lacks of an optimizer, and return that object.

    Some libraries' optimizers wrap another one and are no `Optimizer`, or do not call its constructor. What they may
    lack: step hooks, a `step` that calls them and can be given a closure, `defaults` and `state`; and what torch's
    constructor sets, where a class inherits from `Optimizer` and does not call it.

    Args:
        given: The optimizer, with `param_groups`, `step`, `zero_grad`, `state_dict` and `load_state_dict`.
        where: Name of the caller, for errors.

    Raises:
        TypeError: If it lacks one of these.
    """
    missing = [name for name in _NEEDED if not hasattr(given, name)]
    if missing:
        rule = f"an optimizer, or an object with {', '.join(_NEEDED)} (missing: {', '.join(missing)})"
        raise TypeError(must_be("optimizer", rule, given, where, "Give it those of the optimizer that it wraps."))
    own, is_own = vars(given), issubclass(type(given), Optimizer)
    if "register_step_pre_hook" in own or (is_own and "_optimizer_step_pre_hooks" in own):
        return given  # type: ignore[no-any-return]
    if is_own:
        made = vars(torch.optim.SGD([torch.zeros(0)], lr=0.0))
        own.update({name: made[name] for name in made if name.startswith("_") and name not in own})
    own.update({name: {} for name in ("defaults", "state") if not hasattr(given, name)})
    load = given.load_state_dict if "param_groups" in own else partial(_load_wrapped, given, given.load_state_dict)
    _add_step_hooks(given)
    own.update(state_dict=_without_additions(given, given.state_dict), load_state_dict=_without_additions(given, load))
    return given  # type: ignore[no-any-return]


def _add_step_hooks(given: Any) -> None:
    """Let an object's `step` call hooks, and evaluate a closure that it does not take."""
    before: OrderedDict[int, Callable[..., Any]] = OrderedDict()
    after: OrderedDict[int, Callable[..., Any]] = OrderedDict()
    takes_closure = accepts_closure(given.step)

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            for hook in [*before.values()]:
                args, kwargs = hook(given, args, kwargs) or (args, kwargs)
            if len(args) > 1 and callable(args[1]):  # where it is a keyword's alone
                args, kwargs = (args[0], *args[2:]), {**kwargs, "closure": args[1]}
            closure = None if takes_closure else kwargs.pop("closure", None)
            with torch.enable_grad():
                loss = None if closure is None else closure()
            result = original(*args[1:], **kwargs)
            for hook in [*after.values()]:
                hook(given, args, kwargs)
            return result if closure is None else loss

        return step

    def register(hooks: OrderedDict[int, Callable[..., Any]], hook: Callable[..., Any]) -> RemovableHandle:
        handle = RemovableHandle(hooks)
        hooks[handle.id] = hook
        return handle

    replace_step(given, around)
    vars(given).update(zip(_STEP_HOOKS, (partial(register, before), partial(register, after)), strict=True))


def _without_additions(given: Any, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that finds nothing among the object's attributes that was put there; a state may be all these."""

    def call(*args: Any, **kwargs: Any) -> Any:
        own = vars(given)
        added = {name: value for name, value in own.items() if name in _ADDED or value is given}
        for name in added:
            del own[name]
        try:
            return method(*args, **kwargs)
        finally:
            own.update(added)

    return call


def _load_wrapped(given: Any, load: Callable[[Any], Any], state_dict: Any) -> None:
    """Load a state into an object with the groups of what it wraps, and into that.

    A `load_state_dict` of torch's that it has inherited sets its own groups, beside them.
    """
    groups, state, own = given.param_groups, given.state, vars(given)
    load(state_dict)
    if "param_groups" in own:
        for group, loaded in zip(groups, own.pop("param_groups"), strict=True):
            group.update(loaded)
        state.clear()
        state.update(own.pop("state"))
