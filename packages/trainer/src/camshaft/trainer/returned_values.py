"""How values are logged that steps and epoch ends return, beside what is logged under their names already."""

from __future__ import annotations

from typing import TypedDict

from camshaft.hooks_core.protocols import Moment
from camshaft.trainer.stage_log import StageLog


class Readers(TypedDict):
    """Who reads a value."""

    logger: bool
    prog_bar: bool


def options_beside(
    stage: StageLog, name: str, moment: Moment | None, *, logger: bool, prog_bar: bool
) -> Readers | None:
    """The options with which a returned value is logged.

    What is returned may differ from step to step, and an epoch's end may return a name that steps have returned before:
    values of steps alone make room for it, and who has read a name goes on reading it. Values of an epoch that the
    module logs itself stay as they are.

    Args:
        stage: The epoch of the stage.
        name: The value's name.
        moment: Where the value belongs.
        logger: Whether it is meant for loggers.
        prog_bar: Whether it is meant for progress bars.

    Returns:
        The options; None if the value is to be left out, since the module logs the epoch's value itself.
    """
    known = stage.latest.get(name) or next((one for key, one in stage.entries.items() if key[1] == name), None)
    if known is None:
        return Readers(logger=logger, prog_bar=prog_bar)
    options = known.options
    if options.on_epoch:
        return None if moment == "epoch" else Readers(logger=options.logger, prog_bar=options.prog_bar)
    is_of_step = moment == "batch"
    if is_of_step:
        logger, prog_bar = logger or options.logger, prog_bar or options.prog_bar
    if not is_of_step or (logger, prog_bar) != (options.logger, options.prog_bar):
        for key in [key for key in stage.entries if key[:2] == (None, name)]:  # what is returned is of no hook
            del stage.entries[key]
        stage.latest.pop(name, None)
    return Readers(logger=logger, prog_bar=prog_bar)
