"""One logged name: its settings, its value of the step, and its values of the epoch or its metric of torchmetrics."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from camshaft.hooks_core.protocols import Moment
from camshaft.hooks_core.support.messages import must_be
from camshaft.loops.metrics.values import (
    UNKNOWN_FUNCTION,
    KeptTensors,
    ReduceFx,
    Reduction,
    Value,
    as_single_value,
    is_metric,
    log_error,
    reduction_name,
)

Asked = tuple[bool, bool | None, bool | None, bool | None, ReduceFx, bool | None, bool]
"""Arguments of a call of `log` as they were written, in the order of the fields of `LogOptions`."""

Key = tuple[str | None, str, int | None]
"""A hook, a name that is logged in it, and the index of its loader; None if it belongs to no loader."""

_WHERE_TO_LOG = "called in a hook or step of training, validation or test, from its epoch's start to its epoch's end"


class LogOptions(NamedTuple):
    """Settings of a log call with defaults filled in, made once per name and hook of an epoch.

    `reduce_fx` is a user's function, or the name of a reduction, also for the function of torch or Python of that name.
    """

    prog_bar: bool
    logger: bool
    on_step: bool
    on_epoch: bool
    reduce_fx: ReduceFx
    sync_dist: bool | None
    add_dataloader_idx: bool

    @classmethod
    def resolve(
        cls, name: str, asked: Asked, stage: str = "train", moment: Moment | None = "batch", hook: str | None = None
    ) -> LogOptions:
        """Fill in the defaults of `log`: to the step in a training batch, to the epoch everywhere else.

        Raises:
            RuntimeError: If `moment` is None, where nothing can be logged.
            TypeError: If the name is not a string.
            ValueError: If neither step nor epoch is asked for, or a step where there is none.
        """
        if moment is None:
            raise RuntimeError(must_be("log", _WHERE_TO_LOG, name, hook or "TrainingModule", "Move it to such a hook."))
        if not isinstance(name, str):
            raise TypeError(must_be("name", "a string", name, "log", "Pass the name of the value first."))
        prog_bar, logger, on_step, on_epoch, reduce_fx, sync_dist, add_dataloader_idx = asked
        if moment == "epoch" and on_step:
            raise log_error(name, "on_step", "False outside of a batch", on_step, "Log it in a hook of a batch.")
        of_step = moment == "batch" and stage == "train"
        on_step = of_step if on_step is None else bool(on_step)
        on_epoch = not of_step if on_epoch is None else bool(on_epoch)
        if not (on_step or on_epoch):
            raise log_error(name, "on_step or on_epoch", "True", (on_step, on_epoch), "Set one of them to True.")
        logger = True if logger is None else bool(logger)
        reduce_fx = reduce_fx.lower() if isinstance(reduce_fx, str) else reduce_fx
        reduce_fx = reduction_name(reduce_fx) or reduce_fx
        sync_dist = None if sync_dist is None else bool(sync_dist)
        return cls(bool(prog_bar), logger, on_step, on_epoch, reduce_fx, sync_dist, bool(add_dataloader_idx))

    def plain(self) -> LogOptions:
        """Return the options as checkpoints and other processes hold them: `UNKNOWN_FUNCTION` for a user's."""
        return self._replace(reduce_fx=UNKNOWN_FUNCTION) if callable(self.reduce_fx) else self


class Entry:
    """A name that is logged in one hook of a stage's epoch: numbers and tensors.

    Args:
        name: As it was logged.
        options: Settings of its calls.
        dataloader_idx: Index of its loader; None if there is only one or it belongs to no loader.
        hook: The hook in which it is logged; None outside of hooks.

    Attributes:
        moment: Moment of its latest call.
        asked: Arguments of its latest call; a call that repeats them needs no check.
        step_value: Its latest value; None if there is none since the values of a step were sent to loggers.
        reduction: Its values of the epoch; None if it is not logged to the epoch.
        needs_weight: Whether its next value is weighted by the size of the batch.
        sends_steps: Whether each value is sent to loggers for its batch, as in evaluation.
        plain_name, step_name, epoch_name: Published names of its value, of its step's and of its epoch's value.
    """

    holds_metric: ClassVar[bool] = False

    def __init__(
        self, name: str, options: LogOptions, dataloader_idx: int | None = None, hook: str | None = None
    ) -> None:
        name = "".join([name])  # of `str` itself, which checkpoints and other processes know, not of a subclass
        self.name, self.hook, self.dataloader_idx = name, hook, dataloader_idx
        self.moment: Moment | None = None
        self.asked: Asked | None = None
        self.needs_weight = self.sends_steps = False
        self.step_value: Value | None = None
        self.kept = KeptTensors(name)
        self._of_epoch: Reduction | None = None  # also while the options do not ask for the epoch's value
        self.take(options)
        self._sent_value: Value | None = None
        self._superseded: tuple[frozenset[str], Value | None] = frozenset(), None

    @property
    def key(self) -> Key:
        """The key that tells it from others of its epoch."""
        return self.hook, self.name, self.dataloader_idx

    def take(self, options: LogOptions) -> None:
        """Take other settings from here on; values of the epoch so far count, if it is asked for."""
        name, dataloader_idx = self.name, self.dataloader_idx
        self.options = options
        suffix = "" if dataloader_idx is None or not options.add_dataloader_idx else f"/dataloader_idx_{dataloader_idx}"
        both = options.on_step and options.on_epoch
        self.plain_name = name + suffix
        self.step_name = f"{name}_step{suffix}" if both else self.plain_name
        self.epoch_name = f"{name}_epoch{suffix}" if both else self.plain_name
        if options.on_epoch and self._of_epoch is None and not self.holds_metric:
            self._of_epoch = Reduction(options.reduce_fx, name, self.kept.inspect)
        self.reduction = self._of_epoch if options.on_epoch else None

    def prepare(self, asked: Asked, options: LogOptions, moment: Moment | None) -> None:
        """Prepare for calls with other arguments than the latest.

        Raises:
            ValueError: If their settings differ from those of the epoch's first call.
        """
        reduction, function = self.reduction, options.reduce_fx
        if self.options.reduce_fx == UNKNOWN_FUNCTION and callable(function):
            self.options = self.options._replace(reduce_fx=function)
        for field, before, now in zip(options._fields, self.options, options, strict=True):
            if before != now:
                rule = f"the same in every call of an epoch ({before!r} at first)"
                where = f"log({self.name!r})" + ("" if self.hook is None else f" of {self.hook}")
                raise ValueError(must_be(field, rule, now, where, "Log it under another name."))
        if reduction is not None and reduction.function == UNKNOWN_FUNCTION and callable(function):
            reduction.function = function
        self.asked, self.moment = asked, moment
        self.needs_weight = moment == "batch" and reduction is not None and reduction.is_weighted

    def keep(self, value: object) -> Value | None:
        """Return a logged value in a form that does not change; see `KeptTensors.keep`."""
        kept = self.kept
        if type(value) is Tensor:
            try:
                if kept.borrows and not (value.ndim or value._version):
                    return value.detach() if value.requires_grad else value
            except RuntimeError:  # a tensor of inference mode does not count its changes
                pass
        elif type(value) is float:
            return value
        elif is_metric(value):
            rule, action = "a number or a tensor as at first", "Log it under another name."
            raise log_error(self.name, "value", rule, value, action, TypeError)
        return kept.keep(value)

    def keep_graph(self, value: object) -> None:
        """Let the step's value, which was just logged, be differentiated.

        Raises:
            TypeError: If it is no tensor.
            ValueError: If it is not logged for the step.
        """
        if not isinstance(value, Tensor):
            rule = "a tensor with enable_graph=True"
            raise log_error(self.name, "value", rule, value, "Leave enable_graph out.", TypeError)
        if not self.options.on_step:
            rule = "True with enable_graph=True, since values of epochs have no graph"
            raise log_error(self.name, "on_step", rule, False, "Leave one of them out.")
        self.step_value = value.reshape(())

    @property
    def last_value(self) -> Value | None:
        """The value that was logged last, whether it was sent to loggers or not."""
        value = self._sent_value if self.step_value is None else self.step_value
        if isinstance(value, Tensor):
            self.kept.inspect([value])
        return value

    def take_step_value(self) -> Value | None:
        """Return the value to send to loggers for a step; None if none was logged since the last time."""
        if self.step_value is None:
            return None
        self._sent_value, self.step_value = self.step_value, None
        return self.last_value

    def epoch_value(self) -> Value | None:
        """Return the value of the epoch so far; None if it has none."""
        return None if self.reduction is None else self.reduction.result()

    def supersede(self, names: frozenset[str]) -> None:
        """Note that another stage has published these names since the latest step."""
        self._superseded = names, self.last_value

    def is_superseded(self, name: str) -> bool:
        """Return whether the latest step's value is older than another stage's value of a name."""
        names, value = self._superseded
        return name in names and self.last_value is value

    @property
    def is_reducible(self) -> bool:
        """False in a resumed epoch until the user's function, or the metric, is passed to `log` again."""
        return self.options.reduce_fx != UNKNOWN_FUNCTION

    def state_dict(self) -> dict[str, Any]:
        """Return settings and values; changes nothing."""
        values = (self.step_value, self._sent_value) if self.options.on_step else (None, None)
        return {
            **{"name": self.name, "hook": self.hook, "options": self.options.plain()._asdict()},
            **{"is_metric": self.holds_metric, "step_value": values[0], "sent_value": values[1]},
            "superseded": sorted(name for name in self._superseded[0] if self.is_superseded(name)),
            "kept": self.kept.state_dict(),
            "reduction": None if self.reduction is None else self.reduction.state_dict(),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Entry:
        """Return an entry of a training epoch as it was saved."""
        entry = cls(state["name"], LogOptions(**state["options"]), None, state["hook"])
        entry.step_value, entry._sent_value = state["step_value"], state["sent_value"]
        entry.supersede(frozenset(state["superseded"]))
        entry.kept.load_state_dict(state["kept"])
        if entry.reduction is not None:
            entry.reduction.load_state_dict(state["reduction"])
        return entry


Gather = Callable[[Any], list[tuple[Any, bool]]]
"""Collective: returns the states of a metric on all processes, each with whether it counts; see `states_of`."""


class MetricEntry(Entry):
    """A name under which a `torchmetrics.Metric` is logged.

    Args:
        name, options: Those of `Entry`.
        place: Its `dataloader_idx` and `hook`.
        metric: The metric; None in a resumed epoch until it is logged again.

    Attributes:
        metric: The same.
        is_shared: True if other processes log it too, so that values read before the epoch's end are of this process's
            batches.
        value_of_all: What `compute_of_all` computed last.

    Raises:
        ValueError: If the options ask for a reduction, since the metric itself is one.
    """

    holds_metric: ClassVar[bool] = True

    def __init__(self, name: str, options: LogOptions, *place: Any, metric: Any = None) -> None:
        super().__init__(name, options, *place)
        self.metric = metric
        self.is_shared = False
        self.value_of_all: Value | None = None
        self._num_computed: tuple[int, ...] | None = None
        if options.reduce_fx != "mean":
            rule = "left out for a metric, which reduces its values itself"
            raise log_error(name, "reduce_fx", rule, options.reduce_fx, "Leave it out.")

    def keep(self, value: object) -> Value | None:
        """Return the metric's value of the batch; None if only the epoch's is asked for.

        Raises:
            ValueError: If it is another metric than at first, or has no value of the batch.
        """
        if value is not self.metric:
            if self.metric is not None or not is_metric(value):
                rule = "the same metric in every call of an epoch"
                raise log_error(self.name, "value", rule, value, "Log it under another name.")
            self.metric = value
        if not self.options.on_step:
            return None
        of_batch = getattr(self.metric, "_forward_cache", None)
        if of_batch is None:
            action = "Call `metric(...)`, not `metric.update(...)`, or log with on_step=False, on_epoch=True."
            raise log_error(self.name, "value", "a metric that was called with the batch", value, action)
        return Entry.keep(self, of_batch)  # hot path: `super()` costs more

    def epoch_value(self) -> Value | None:
        """Return the value of all batches of this process."""
        if not self.options.on_epoch or self.metric is None:
            return None
        return self._checked(compute_alone(self.metric) if self.is_shared else self.metric.compute())

    def compute_of_all(self, gather: Gather) -> None:
        """Compute the value of the batches of all processes. Collective."""
        self.value_of_all = self._checked(compute_of_all(self.metric, gather))
        self._num_computed = _num_updates(self.metric)

    @property
    def is_current(self) -> bool:
        """Return whether the metric was not updated since `compute_of_all`."""
        return self._num_computed is not None and self._num_computed == _num_updates(self.metric)

    @property
    def is_reducible(self) -> bool:
        """See `Entry`."""
        return self.metric is not None

    def _checked(self, result: Any) -> Value:
        value = as_single_value(result)
        if value is None:
            action = "Compute it yourself and log its parts."
            raise log_error(self.name, "value", "a metric that computes one number", result, action)
        return value


def compute_alone(metric: Any) -> Any:
    """Return what a metric computes of this process's batches. Not collective; the metric does not cache it."""
    changed = {"distributed_available_fn": lambda: False, "_computed": None}
    return _compute(metric, [(part, changed) for part in _parts(metric)])


def compute_of_all(metric: Any, gather: Gather) -> Any:
    """Return what a metric computes of the batches of all processes. Collective, also where it was never updated.

    torchmetrics gathers each tensor of each metric by itself, and hangs where processes hold different numbers of them,
    as after different numbers of batches. Here all states of a metric travel together, through the strategy, which also
    notices a process that failed.

    A metric with a `process_group`, a `dist_sync_fn` or an override of its synchronization keeps to that.
    """
    parts = _parts(metric)
    for part in parts:
        part._computed = None  # a cached value on one process may be missing on another
    synced = [part for part in parts if has_default_sync(part)]
    available = {"distributed_available_fn": lambda: True}
    return _compute(
        metric, [(part, {"_sync_dist": partial(gather_states, part, gather), **available}) for part in synced]
    )


def _num_updates(metric: Any) -> tuple[int, ...]:
    return tuple(part.update_count for part in _parts(metric))


def _parts(metric: Any) -> list[Any]:
    return [part for part in metric.modules() if is_metric(part)]


def _compute(metric: Any, changes: list[tuple[Any, dict[str, Any]]]) -> Any:
    """Return what a metric computes while parts of it have other attributes."""
    before = [(vars(part), dict(vars(part)), changed) for part, changed in changes]
    for own, _, changed in before:
        own.update(changed)
    try:
        with warnings.catch_warnings():
            # rightly so on a process without a batch
            warnings.filterwarnings("ignore", message=r"The ``compute`` method of metric .* was called before the")
            return metric.compute()
    finally:
        for own, values, changed in before:
            for name in changed:
                own.pop(name, None)
            own.update({name: values[name] for name in changed if name in values})


def has_default_sync(part: Any) -> bool:
    """Return whether a metric is synchronised over processes by torchmetrics' own methods."""
    from torchmetrics import Metric

    return (
        type(part)._sync_dist is Metric._sync_dist
        and type(part).sync is Metric.sync
        and getattr(part, "dist_sync_fn", None) is None
        and getattr(part, "process_group", None) is None
    )


def gather_states(metric: Any, gather: Gather, *_: Any, **__: Any) -> None:
    """Give a metric the reduced states of all processes; torchmetrics restores its own afterwards."""
    gathered = gather(metric)
    for position, name in enumerate(metric._reductions):
        states = [of_process[position] for of_process, counts in gathered if counts]
        reduction, current = metric._reductions[name], getattr(metric, name)
        if isinstance(metric._defaults[name], Tensor):
            reduced = torch.stack(states).to(current.device)
            setattr(metric, name, reduced if reduction is None else reduction(reduced))
            continue
        device = torch.device("cpu") if metric.compute_on_cpu else metric.device
        items = [moved(item, device) for state in states for item in (state if isinstance(state, list) else [state])]
        if reduction is None:
            setattr(metric, name, items)
        else:
            setattr(metric, name, reduction(items) if items else torch.empty(0, device=device))


def states_of(attributes: Mapping[str, Any], metric: Any) -> list[Any]:
    """Return the states of a metric on the CPU, in its order, given its attributes or those of another copy of it."""
    return [moved(attributes[name], torch.device("cpu")) for name in metric._reductions]


def moved(state: Any, device: torch.device) -> Any:
    """Return a state, or a list of states, on a device."""
    if isinstance(state, Tensor):
        return state.detach().to(device)
    return [moved(item, device) for item in state] if isinstance(state, list) else state
