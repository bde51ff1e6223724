"""One logged name: its settings, its value of the step, and its values of the epoch."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs
from torch import Tensor

from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.protocols import Moment
from camshaft.loops.metrics.reductions import (
    UNKNOWN_FUNCTION,
    FunctionReduction,
    ReduceFx,
    Reduction,
    is_user_function,
    load_function,
    reduction_for,
    save_function,
)
from camshaft.loops.metrics.values import KeptTensors, Value, is_metric, load_value, save_value

Asked = tuple[bool, bool | None, bool | None, bool | None, ReduceFx, bool | None, bool]
"""Arguments of a call of `log` as they were written, in the order of the fields of `LogOptions`."""

Key = tuple[str | None, str, int | None]
"""A hook, a name that is logged in it, and the index of its loader; None if it belongs to no loader."""

UNKNOWN_HOOK = "?"
"""Stands for the hook of a value in a checkpoint that does not tell it: the first one in which the name is logged."""

_WHERE_TO_LOG = "called in a hook or step of training, validation or test, from its epoch's start to its epoch's end"


@attrs.frozen
class LogOptions:
    """Settings of a log call with defaults filled in, made once per name and hook of an epoch."""

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
        where = f"log({name!r})"
        if moment is None:
            where = "TrainingModule" if hook is None else hook
            raise RuntimeError(must_be("log", _WHERE_TO_LOG, name, where, "Move the call to such a hook."))
        if not isinstance(name, str):
            raise TypeError(must_be("name", "a string", name, "log", "Pass the name of the value first."))
        prog_bar, logger, on_step, on_epoch, reduce_fx, sync_dist, add_dataloader_idx = asked
        if moment == "epoch" and on_step:
            action = "Leave `on_step` out, or log in a hook of a batch."
            raise ValueError(must_be("on_step", "False outside of a batch", on_step, where, action))
        of_step = moment == "batch" and stage == "train"
        on_step = of_step if on_step is None else bool(on_step)
        on_epoch = not of_step if on_epoch is None else bool(on_epoch)
        if not (on_step or on_epoch):
            action = "Set one of them to True."
            raise ValueError(must_be("on_step or on_epoch", "True", (on_step, on_epoch), where, action))
        logger = True if logger is None else logger
        reduce_fx = reduce_fx.lower() if isinstance(reduce_fx, str) else reduce_fx
        return cls(prog_bar, logger, on_step, on_epoch, reduce_fx, sync_dist, add_dataloader_idx)

    def state_dict(self) -> dict[str, Any]:
        """Return plain values; None stands for a user's function."""
        options = {name: None if value is None else bool(value) for name, value in attrs.asdict(self).items()}
        return options | {"reduce_fx": save_function(self.reduce_fx)}


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
        self.name, self.hook, self.dataloader_idx, self.options = name, hook, dataloader_idx, options
        suffix = "" if dataloader_idx is None or not options.add_dataloader_idx else f"/dataloader_idx_{dataloader_idx}"
        both = options.on_step and options.on_epoch
        self.plain_name = name + suffix
        self.step_name = f"{name}_step{suffix}" if both else self.plain_name
        self.epoch_name = f"{name}_epoch{suffix}" if both else self.plain_name
        self.moment: Moment | None = None
        self.asked: Asked | None = None
        self.needs_weight = self.sends_steps = False
        self.step_value: Value | None = None
        self.kept = KeptTensors(name)
        self.reduction = self.new_reduction() if options.on_epoch else None
        self._sent_value: Value | None = None
        self._superseded: tuple[frozenset[str], Value | None] = frozenset(), None

    @property
    def key(self) -> Key:
        """The key that tells it from others of its epoch."""
        return self.hook, self.name, self.dataloader_idx

    def new_reduction(self) -> Reduction | None:
        """Return the reduction that collects the epoch's values."""
        return reduction_for(self.options.reduce_fx, self.name, self.kept.inspect)

    def prepare(self, asked: Asked, options: LogOptions, moment: Moment | None) -> None:
        """Prepare for calls with other arguments than the latest.

        Raises:
            ValueError: If their settings differ from those of the epoch's first call.
        """
        if options != self.options:
            known = self.options
            if known.reduce_fx is UNKNOWN_FUNCTION and is_user_function(options.reduce_fx):
                known = attrs.evolve(known, reduce_fx=options.reduce_fx)
            before, now = attrs.asdict(known), attrs.asdict(options)
            differing = next((field for field in before if before[field] != now[field]), None)
            if differing is not None:
                rule = f"the same in every call of an epoch ({before[differing]!r} at first)"
                where = f"log({self.name!r})" + ("" if self.hook is None else f" of {self.hook}")
                action = "Log it under another name."
                raise ValueError(must_be(differing, rule, now[differing], where, action))
            self.options = known
            if isinstance(self.reduction, FunctionReduction):
                self.reduction.function = known.reduce_fx  # type: ignore[assignment]
        self.asked, self.moment = asked, moment
        self.needs_weight = moment == "batch" and self.reduction is not None and self.reduction.is_weighted

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
            rule = "a number or a tensor as at first"
            raise TypeError(must_be("value", rule, value, f"log({self.name!r})", "Log it under another name."))
        return kept.keep(value)

    def keep_graph(self, value: object) -> None:
        """Let the step's value, which was just logged, be differentiated.

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

    @property
    def _latest(self) -> Value | None:
        return self._sent_value if self.step_value is None else self.step_value

    def take_step_value(self) -> Value | None:
        """Return the value to send to loggers for a step; None if none was logged since the last time."""
        if self.step_value is None:
            return None
        value = self.last_value
        self._sent_value, self.step_value = self.step_value, None
        return value

    def epoch_value(self) -> Value | None:
        """Return the value of the epoch so far; None if it has none."""
        return None if self.reduction is None else self.reduction.result()

    def supersede(self, names: frozenset[str]) -> None:
        """Note that another stage has published these names since the latest step."""
        self._superseded = names, self._latest

    def is_superseded(self, name: str) -> bool:
        """Return whether the latest step's value is older than another stage's value of a name."""
        names, value = self._superseded
        return name in names and self._latest is value

    @property
    def is_reducible(self) -> bool:
        """False in a resumed epoch until the user's function, or the metric, is passed to `log` again."""
        return self.reduction is None or self.options.reduce_fx is not UNKNOWN_FUNCTION

    def reset(self) -> None:
        """Reset state outside of the log."""

    def state_dict(self) -> dict[str, Any]:
        """Return settings and values, as copies of tensors and plain values; changes nothing."""
        of_step = self.options.on_step
        return {
            "name": "".join([self.name]),  # of `str` itself, not of a subclass
            "hook": self.hook,
            "options": self.options.state_dict(),
            "is_metric": self.holds_metric,
            "step_value": save_value(self.step_value) if of_step else None,
            "sent_value": save_value(self._sent_value) if of_step else None,
            "overtaken": sorted(name for name in self._superseded[0] if self.is_superseded(name)),
            "kept": self.kept.state_dict(),
            "reduction": None if self.reduction is None else self.reduction.state_dict(),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any], *beside: Any) -> Entry:
        """Return an entry of a training epoch as it was saved; `beside` is what the class takes beside the hook."""
        options = LogOptions(**state["options"] | {"reduce_fx": load_function(state["options"]["reduce_fx"])})
        entry = cls(state["name"], options, None, state.get("hook", UNKNOWN_HOOK), *beside)
        entry.step_value, entry._sent_value = load_value(state["step_value"]), load_value(state["sent_value"])
        entry.supersede(frozenset(state.get("overtaken", ())))
        entry.kept.load_state_dict(state["kept"])
        if entry.reduction is not None:
            entry.reduction.load_state_dict(state["reduction"])
        return entry
