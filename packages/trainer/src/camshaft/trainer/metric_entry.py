"""One logged name: how it was asked to be logged, its value of the step, and its values of the epoch."""

from __future__ import annotations

from typing import Any

import attrs
from torch import Tensor

from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.protocols import Moment, Strategy
from camshaft.trainer.kept_tensors import KeptTensors
from camshaft.trainer.log_options import LogOptions
from camshaft.trainer.metric_values import Value, is_metric
from camshaft.trainer.reduce_functions import UNKNOWN_FUNCTION, is_own, load_function
from camshaft.trainer.reductions import Reduction, reduction_for
from camshaft.trainer.saved_tensors import load_value, save_value
from camshaft.trainer.torchmetrics_sync import compute_alone, compute_together, num_updates

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
