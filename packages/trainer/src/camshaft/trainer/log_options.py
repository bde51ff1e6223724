"""How a call of `log` asks for a value to be logged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
from torch import Tensor

from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.protocols import Moment
from camshaft.trainer.reduce_functions import save_function

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
