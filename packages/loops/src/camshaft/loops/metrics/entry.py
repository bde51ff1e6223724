"""One logged name: how it was asked to be logged, its value of the step, and its values of the epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import attrs
from torch import Tensor

from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.protocols import Moment, Strategy
from camshaft.hooks_core.user_warnings import warn_user
from camshaft.loops.metrics.reductions import (
    UNKNOWN_FUNCTION,
    Reduction,
    is_own,
    load_function,
    load_value,
    reduction_for,
    save_function,
    save_value,
)
from camshaft.loops.metrics.torchmetrics_sync import compute_alone, compute_together, num_updates
from camshaft.loops.metrics.values import Value, check_number, check_tensor, is_metric

Key = tuple[str | None, str, int | None]
"""A hook, a name that is logged in it, and the index of its loader; None if it belongs to no loader."""

UNKNOWN_HOOK = "?"
"""Stands for the hook of a value in a checkpoint that does not tell it: the first one in which the name is logged."""


class Entry:
    """A name that is logged in one hook in a stage's epoch: numbers and tensors.

    Args:
        name: As it was logged.
        options: As it was logged, with defaults filled in.
        dataloader_idx: Index of its loader; None if there is only one or it belongs to no loader.
        hook: The hook in which it is logged; None outside of hooks.

    Attributes:
        hook: The same.
        moment: Whether its latest call belonged to a batch or to the epoch.
        asked: The arguments of its latest call as they were written; a call that repeats them needs no check.
        step_value: Its latest value; None if there is none since the values of a step were sent to the loggers.
        reduction: Its values of the epoch; None if it is not logged to the epoch.
        needs_weight: Whether its next value is weighted by the size of the batch.
        sends_steps: Whether each value is to be sent to loggers for its batch, as in evaluation.
        plain_name, step_name, epoch_name: How its value, its step's and its epoch's value are published.
    """

    def __init__(self, name: str, options: LogOptions, dataloader_idx: int | None, hook: str | None = None) -> None:
        self.name = name
        self.hook = hook
        self.moment: Moment | None = None
        self.options = options
        self.dataloader_idx = dataloader_idx
        suffix = "" if dataloader_idx is None or not options.add_dataloader_idx else f"/dataloader_idx_{dataloader_idx}"
        both = options.on_step and options.on_epoch
        self.plain_name = name + suffix
        self.step_name = f"{name}_step{suffix}" if both else self.plain_name
        self.epoch_name = f"{name}_epoch{suffix}" if both else self.plain_name
        self.asked: tuple[object, ...] = ()
        self.needs_weight = False
        self.sends_steps = False
        self.step_value: Value | None = None
        self.kept = KeptTensors(name)
        self.reduction: Reduction | None = self.new_reduction() if options.on_epoch else None
        self._sent_value: Value | None = None
        self._overtaken: tuple[frozenset[str], Value | None] = frozenset(), None

    @property
    def key(self) -> Key:
        """The key that tells it from others of its epoch."""
        return self.hook, self.name, self.dataloader_idx

    def new_reduction(self) -> Reduction | None:
        """What collects the epoch's values."""
        return reduction_for(self.options.reduce_fx, self.name, self.kept.inspect)

    def prepare(self, asked: tuple[object, ...], options: LogOptions, moment: Moment | None) -> None:
        """Make ready for calls with other arguments than the one before.

        Raises:
            ValueError: If they ask for anything else than the first call of the epoch did.
        """
        if options != self.options:
            known = self.options
            if known.reduce_fx is UNKNOWN_FUNCTION and is_own(options.reduce_fx):
                known = attrs.evolve(known, reduce_fx=options.reduce_fx)
            before, now = attrs.asdict(known), attrs.asdict(options)
            differing = next((field for field in before if before[field] != now[field]), None)
            if differing is not None:
                rule = f"the same in every call of an epoch ({before[differing]!r} at first)"
                where = f"log({self.name!r})" + ("" if self.hook is None else f" of {self.hook}")
                action = "Log it under another name."
                raise ValueError(must_be(differing, rule, now[differing], where, action))
            self._learn_function(known)
        self.asked = asked
        self.moment = moment
        self.needs_weight = moment == "batch" and self.reduction is not None and self.reduction.is_weighted

    def _learn_function(self, options: LogOptions) -> None:
        """Take the function that a checkpoint could not hold."""
        self.options = options
        if self.reduction is not None:
            collected = self.reduction.state_dict()
            self.reduction = reduction_for(options.reduce_fx, self.name, self.kept.inspect)
            self.reduction.load_state_dict(collected)

    def keep(self, value: object) -> Value | None:
        """Something that keeps a value that was logged; see `KeptTensors.keep`."""
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
            rule = "a number or a tensor as at first"
            raise TypeError(must_be("value", rule, value, f"log({self.name!r})", "Log it under another name."))
        return kept.keep(value)

    def keep_graph(self, value: object) -> None:
        """Let the step's value be differentiated.

        Raises:
            TypeError: If it is no tensor.
            ValueError: If it is not logged for the step.
        """
        where = f"log({self.name!r})"
        if not isinstance(value, Tensor):
            raise TypeError(must_be("value", "a tensor with enable_graph=True", value, where, "Leave one of them out."))
        if not self.options.on_step:
            rule = "True with enable_graph=True, since values of epochs have no graph"
            raise ValueError(must_be("on_step", rule, False, where, "Leave one of the two out."))
        self.step_value = value.reshape(())

    @property
    def last_value(self) -> Value | None:
        """The value that was logged last, whether it was sent to loggers or not."""
        value = self._latest
        if isinstance(value, Tensor):
            self.kept.inspect([value])
        return value

    def give_way(self, names: frozenset[str]) -> None:
        """Let the values stand that another stage has published under these names since the latest step."""
        self._overtaken = names, self._latest

    def gives_way(self, name: str) -> bool:
        """Return whether the latest step's value is older than what another stage has published under a name."""
        names, value = self._overtaken
        return name in names and self._latest is value

    @property
    def _latest(self) -> Value | None:
        return self._sent_value if self.step_value is None else self.step_value

    def take_step_value(self) -> Value | None:
        """The value to send to loggers for a step; None if none was logged since the last time."""
        if self.step_value is None:
            return None
        value = self.last_value
        self._sent_value, self.step_value = self.step_value, None
        return value

    def epoch_value(self) -> Value | None:
        """The value of the epoch so far; None if it has none."""
        return None if self.reduction is None else self.reduction.result()

    @property
    def is_reducible(self) -> bool:
        """False in a resumed epoch until the function of one's own, or the metric, is passed to `log` again."""
        return self.reduction is None or self.options.reduce_fx is not UNKNOWN_FUNCTION

    def reset(self) -> None:
        """Let go of state that lives outside of the log."""

    def state_dict(self) -> dict[str, Any]:
        """Options and values, as copies of tensors and plain values; does not change anything."""
        of_step = self.options.on_step
        return {
            "name": "".join([self.name]),  # of `str` itself, not of a subclass
            "hook": self.hook,
            "options": self.options.state_dict(),
            "is_metric": isinstance(self, MetricEntry),
            "step_value": save_value(self.step_value) if of_step else None,
            "sent_value": save_value(self._sent_value) if of_step else None,
            "overtaken": sorted(name for name in self._overtaken[0] if self.gives_way(name)),
            "kept": self.kept.state_dict(),
            "reduction": None if self.reduction is None else self.reduction.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the values of a state."""
        self.step_value, self._sent_value = load_value(state["step_value"]), load_value(state["sent_value"])
        self.give_way(frozenset(state.get("overtaken", ())))
        self.kept.load_state_dict(state["kept"])
        if self.reduction is not None:
            self.reduction.load_state_dict(state["reduction"])


class MetricEntry(Entry):
    """A name under which a `torchmetrics.Metric` is logged; the metric itself collects the epoch's values.

    Args:
        metric: The metric; None in a resumed epoch until it is logged again.

    Attributes:
        metric: The same.
        is_shared: Whether other processes log it, too, so that values that are read before the epoch's end are of this
            process's batches.

    Raises:
        ValueError: If the options ask for a reduction, since the metric itself is one.
    """

    def __init__(
        self, name: str, options: LogOptions, dataloader_idx: int | None, metric: Any, hook: str | None = None
    ) -> None:
        super().__init__(name, options, dataloader_idx, hook)
        self.metric = metric
        self.is_shared = False
        self._together: tuple[Value | None, tuple[int, ...]] | None = None
        if options.reduce_fx != "mean":
            rule = "left out for a metric, which reduces its values itself"
            raise ValueError(must_be("reduce_fx", rule, options.reduce_fx, f"log({name!r})", "Leave it out."))

    def new_reduction(self) -> Reduction | None:
        """None: the metric itself collects."""
        return None

    def keep(self, value: object) -> Value | None:
        """The value that the metric gave for the batch when it was called; None if only the epoch's is wanted.

        Raises:
            ValueError: If it is another metric than at first, or has no value for the batch.
        """
        if value is not self.metric:
            if self.metric is not None or not is_metric(value):
                rule = "the same metric in every call of an epoch"
                raise ValueError(must_be("value", rule, value, f"log({self.name!r})", "Log it under another name."))
            self.metric = value
        if not self.options.on_step:
            return None
        of_batch = getattr(self.metric, "_forward_cache", None)
        if of_batch is None:
            action = "Call `metric(...)` instead of `metric.update(...)`, or log with on_step=False, on_epoch=True."
            rule = "a metric that was called with the batch"
            raise ValueError(must_be("value", rule, value, f"log({self.name!r})", action))
        return Entry.keep(self, of_batch)  # without `super()`, which costs more than it does

    def epoch_value(self) -> Value | None:
        """What the metric computes of all batches of this process."""
        if not self.options.on_epoch or self.metric is None:
            return None
        return self._checked(compute_alone(self.metric) if self.is_shared else self.metric.compute())

    def compute_together(self, strategy: Strategy) -> None:
        """Let the metric compute of the batches of all processes. Collective."""
        value = self._checked(compute_together(self.metric, strategy))
        self._together = value, num_updates(self.metric)

    @property
    def value_together(self) -> Value | None:
        """What `compute_together` found last."""
        return None if self._together is None else self._together[0]

    @property
    def is_current(self) -> bool:
        """Whether this process's part in `value_together` is what the metric holds now."""
        return self._together is not None and self._together[1] == num_updates(self.metric)

    def _checked(self, value: Any) -> Value:
        if isinstance(value, Tensor) and value.numel() == 1:
            return value.detach().reshape(())
        if isinstance(value, (int, float)):
            return float(value)
        rule = "a metric that computes one number"
        action = "Compute it yourself and log its parts."
        raise ValueError(must_be("value", rule, value, f"log({self.name!r})", action))

    @property
    def is_reducible(self) -> bool:
        """See `Entry`."""
        return self.metric is not None

    def reset(self) -> None:
        """Reset the metric for the next epoch."""
        if self.metric is not None:
            self.metric.reset()


def load_entry(state: dict[str, Any]) -> Entry:
    """An entry of a training epoch from the state of one."""
    options = LogOptions(**state["options"] | {"reduce_fx": load_function(state["options"]["reduce_fx"])})
    name, hook = state["name"], state.get("hook", UNKNOWN_HOOK)
    entry = MetricEntry(name, options, None, None, hook) if state["is_metric"] else Entry(name, options, None, hook)
    entry.load_state_dict(state)
    return entry


NUM_WATCHED = 16
"""How many tensors of one name are copied and watched before they are trusted to be new ones at each step."""


class KeptTensors:
    """Keeps the tensors that are logged under one name.

    A tensor that its owner changes later (a running total, a buffer, a parameter, a loss that is scaled in place) must
    be copied when it is logged; a fresh result of each step need not, and a copy would be one more operation on the
    device. So the first tensors are copied and watched. Tensors in memory of their own that stay as they are, are
    later kept as they are.

    Args:
        name: The name under which they are logged, for messages.
    """

    __slots__ = ("_name", "_num_watched", "_previous", "borrows")

    def __init__(self, name: str) -> None:
        self.borrows = False
        self._name = name
        self._num_watched = 0
        self._previous: Tensor | None = None

    def keep(self, value: object) -> Value:
        """Something that keeps the value: a detached tensor of shape (), or a Python number.

        Raises:
            TypeError, ValueError: If the value is not one that can be logged.
        """
        if not isinstance(value, Tensor):
            return check_number(self._name, value)
        detached = check_tensor(self._name, value)
        if detached.is_inference():
            self._copy_always()  # its changes are not counted
        elif not self.borrows and self._num_watched >= 0:
            self._watch(value)
        return detached.clone()

    def inspect(self, tensors: Iterable[Tensor]) -> None:
        """Warn if a tensor that was kept as it is has been changed since, and copy from then on."""
        if not self.borrows or not any(tensor._version for tensor in tensors):
            return
        self._copy_always()
        warn_user(
            f"`value` must stay as it is after it was logged, but got a change in place (Tensor) in "
            f"log({self._name!r}): its values of up to the last 128 steps may be wrong. Log `value.clone()`.",
            RuntimeWarning,
        )

    def state_dict(self) -> dict[str, Any]:
        """What was learnt about the tensors that are logged."""
        return {"num_watched": self._num_watched, "borrows": self.borrows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with what was learnt."""
        self._num_watched, self.borrows = state["num_watched"], state["borrows"]
        self._previous = None

    def _watch(self, value: Tensor) -> None:
        """Learn from a tensor and the one before whether the next ones may be kept without a copy."""
        previous = self._previous
        if (
            type(value) is not Tensor
            or value._version
            or value.untyped_storage().nbytes() != value.element_size()  # keeping it would keep something larger alive
            or (previous is not None and (previous._version or _same_memory(previous, value)))
        ):
            self._copy_always()
            return
        self._previous = value.detach()  # keeps its memory in use, so that an equal address means the same tensor
        self._num_watched += 1
        if self._num_watched == NUM_WATCHED:
            self._previous = None
            self.borrows = True

    def _copy_always(self) -> None:
        self._previous = None
        self._num_watched = -1
        self.borrows = False


def _same_memory(first: Tensor, second: Tensor) -> bool:
    try:
        return first.data_ptr() == second.data_ptr()
    except RuntimeError:  # memory of a CUDA graph that its next replay has taken back
        return True


ReduceFx = str | Callable[[Tensor], Any]

_WHERE_TO_LOG = "called in a hook or step of training, validation or test, from its epoch's start to its epoch's end"


@attrs.frozen
class LogOptions:
    """What a call of `log` asked for, with its defaults filled in."""

    prog_bar: bool
    logger: bool
    on_step: bool
    on_epoch: bool
    reduce_fx: ReduceFx
    sync_dist: bool | None
    add_dataloader_idx: bool

    def state_dict(self) -> dict[str, Any]:
        """As plain values; None stands for a function of one's own."""
        options = attrs.asdict(self)
        reduce_fx = save_function(options.pop("reduce_fx"))
        return {name: None if value is None else bool(value) for name, value in options.items()} | {
            "reduce_fx": reduce_fx
        }


def resolve_options(
    name: str,
    stage: str,
    moment: Moment | None,
    hook: str | None = None,
    *,
    prog_bar: bool,
    logger: bool | None,
    on_step: bool | None,
    on_epoch: bool | None,
    reduce_fx: ReduceFx,
    sync_dist: bool | None,
    add_dataloader_idx: bool,
) -> LogOptions:
    """Fill in the defaults of `log`: to the step in a training batch, to the epoch everywhere else.

    Raises:
        RuntimeError: If `moment` is None, where nothing can be logged.
        TypeError: If the name is not a string.
        ValueError: If it asks for neither step nor epoch, or for a step where there is none.
    """
    where = f"log({name!r})"
    if moment is None:
        where = "TrainingModule" if hook is None else hook
        raise RuntimeError(must_be("log", _WHERE_TO_LOG, name, where, "Move the call to such a hook."))
    if not isinstance(name, str):
        raise TypeError(must_be("name", "a string", name, "log", "Pass the name of the value first."))
    if moment == "epoch" and on_step:
        action = "Leave `on_step` out, or log in a hook of a batch."
        raise ValueError(must_be("on_step", "False outside of a batch", on_step, where, action))
    logger = True if logger is None else logger
    if isinstance(reduce_fx, str):
        reduce_fx = reduce_fx.lower()
    of_step = moment == "batch" and stage == "train"
    on_step = of_step if on_step is None else bool(on_step)
    on_epoch = not of_step if on_epoch is None else bool(on_epoch)
    if not (on_step or on_epoch):
        action = "Set one of them to True."
        raise ValueError(must_be("on_step or on_epoch", "True", (on_step, on_epoch), where, action))
    return LogOptions(prog_bar, logger, on_step, on_epoch, reduce_fx, sync_dist, add_dataloader_idx)


def check_alone(name: str, sync_dist: bool | None) -> None:
    """Raise `ValueError` if what only one process logs is to be reduced over all."""
    if sync_dist:
        action = "Leave one of the two out."
        raise ValueError(must_be("sync_dist", "left out with rank_zero_only=True", sync_dist, f"log({name!r})", action))


def check_metric_attribute(module: object, attribute: str, name: str, value: object) -> None:
    """Raise `ValueError` unless a module's attribute, of a submodule if there are dots, is the value."""
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if found is not value:
        rule = "the name of the module's attribute that is the logged metric"
        action = "Correct it, or leave it out."
        raise ValueError(must_be("metric_attribute", rule, attribute, f"log({name!r})", action))
