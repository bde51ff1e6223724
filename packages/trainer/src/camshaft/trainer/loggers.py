"""Loggers of the trainer: their choice, hyperparameters, begin and end of a verb."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import torch
from torch import Tensor

import camshaft.callbacks as stock  # imports its exports on access
from camshaft.callbacks.monitoring import from_rank_zero
from camshaft.hooks_core.protocols import Strategy
from camshaft.hooks_core.spec import Verb
from camshaft.hooks_core.support.messages import describe, must_be
from camshaft.hooks_core.support.remote_files import absolute, is_url
from camshaft.trainer.configuration import made_loggers
from camshaft.trainer.hyperparameters import hyperparameters_for_loggers

_DUMPS, _DUMP_NAME = "TORCH_FR_DUMP_TEMP_FILE", "nccl_trace_"
"""Torch's variable with the beginning of the paths of NCCL's dumps, and the names of those."""
_METHODS = ("log_metrics", "log_hyperparams", "save", "finalize")
_FACTS = ("name", "version", "save_dir", "log_dir")


def choose_loggers(
    logger: Any, make_default: Callable[[], Any], save_dir: str, report: str | os.PathLike[str] | None = None
) -> list[Any]:
    """Return the loggers.

    Args:
        logger: A logger, its name, or a collection of them; None and True mean the default, False none.
        make_default: Returns the default logger.
        save_dir: Folder for loggers by name that require one.
        report: Folder into which a further logger draws curves, if it is not None.

    Raises:
        TypeError, ValueError: If something is no logger, nor the name of one.
        ImportError: If what a distribution registers under a name cannot be imported.
    """
    if logger is None or logger is True:
        loggers = [make_default()]
    elif logger is False:
        loggers = []
    else:
        loggers = made_loggers(logger, save_dir)
        for each in loggers:
            _check_logger(each)
    return loggers if report is None else [*loggers, stock.CurveReport(absolute(report))]


def share_log_dir(strategy: Strategy, loggers: list[Any], find_log_dir: Callable[[], str]) -> str | None:
    """Return the directory of rank 0's first logger; the silent loggers of other ranks get the facts of rank 0's.

    Collective.

    Args:
        strategy: Connects the processes.
        loggers: Those of this process; on ranks but 0 replaced in place by as many that write nothing.
        find_log_dir: Returns the directory of the first logger; called on rank 0 alone.

    Returns:
        The directory, the same on all ranks; None with one process. Until `end_dumps`, torch and the failure watch dump
        there what each rank did last when a collective times out, unless `TORCH_FR_DUMP_TEMP_FILE` is set already.
    """
    if strategy.world_size == 1:
        return None

    def look() -> tuple[str, list[dict[str, Any]]]:
        facts = [{name: getattr(logger, name, None) for name in _FACTS} for logger in loggers]
        return find_log_dir(), facts

    log_dir, facts_of_loggers = from_rank_zero(strategy, look)
    _dump_collectives_to(log_dir, is_on_host=strategy.device.type == "cpu")
    if strategy.global_rank != 0:
        silent = [logger for logger in loggers if isinstance(logger, SilentLogger)]
        silent += [SilentLogger() for _ in facts_of_loggers]  # scripts may pass loggers to one process only
        loggers[:] = silent[: len(facts_of_loggers)]
        for logger, facts in zip(loggers, facts_of_loggers, strict=True):
            vars(logger).update(facts)
    return log_dir


def _dump_collectives_to(log_dir: str, *, is_on_host: bool) -> None:
    is_chosen = _DUMPS in os.environ or "TORCH_NCCL_DEBUG_INFO_TEMP_FILE" in os.environ  # its earlier name
    if not is_chosen and not is_url(log_dir):
        if not is_on_host:
            os.makedirs(log_dir, exist_ok=True)  # NCCL's thread makes no directory
        os.environ[_DUMPS] = os.path.join(log_dir, _DUMP_NAME)


def end_dumps(log_dir: str | None) -> None:
    """Let later dumps go where they went before `share_log_dir`, which returned the directory."""
    if log_dir is not None and os.environ.get(_DUMPS) == os.path.join(log_dir, _DUMP_NAME):
        del os.environ[_DUMPS]  # other processes, which this one starts, are not of the run


def log_hyperparameters(loggers: Sequence[Any], module: object, data: object | None) -> None:
    """Send the hyperparameters of a module and its data module to the loggers.

    Raises:
        ValueError: If the two give one name to different values.
    """
    of_module, of_data = hyperparameters_for_loggers(module), hyperparameters_for_loggers(data)
    for name in of_module.keys() & of_data.keys():
        if not _is_same(of_module[name], of_data[name]):
            rule = f"the same in module and data module ({of_module[name]!r} in {type(module).__qualname__})"
            action = "Rename one, or leave it out with `save_hyperparameters(ignore=...)`."
            raise ValueError(must_be(f"hparams[{name!r}]", rule, of_data[name], type(data).__qualname__, action))
    hparams = {**of_data, **of_module}
    for logger in loggers if hparams else ():
        logger.log_hyperparams(hparams)


def begin_verb(loggers: Sequence[Any], module: object, verb: Verb, resumed_step: int | None = None) -> None:
    """Pass the module of a fit to the loggers by `begin_fit`; to those without it, of every verb, by `log_graph`.

    Args:
        loggers: The loggers.
        module: The module.
        verb: The verb.
        resumed_step: Number of updates after which a fit goes on with an earlier one, for `resume_fit`; else None.
    """
    for logger in loggers:
        if resumed_step is not None and hasattr(logger, "resume_fit"):
            logger.resume_fit(resumed_step)
        begin_fit = getattr(logger, "begin_fit", None)
        begin = getattr(logger, "log_graph", None) if begin_fit is None else begin_fit if verb == "fit" else None
        if begin is not None:
            begin(module)


def finalize_loggers(loggers: Sequence[Any], error: BaseException | None) -> None:
    """Close every logger, even if another one fails to: with "failed" after an error, else with "success".

    Args:
        error: Error of the verb; those of loggers are noted on it.

    Raises:
        Exception: The first error of a logger, if the verb raised none.
    """
    first = error
    for logger in loggers:
        try:
            logger.finalize("success" if error is None else "failed")
        except Exception as further:
            if first is not None:
                first.add_note(f"Afterwards, {type(logger).__qualname__}.finalize raised {describe(further)}")
            first = further if first is None else first
    if first is not None and error is None:
        raise first


def _is_same(value: Any, other: Any) -> bool:
    if value is other:
        return True
    if isinstance(value, Tensor) or isinstance(other, Tensor):
        return isinstance(value, Tensor) and isinstance(other, Tensor) and torch.equal(value, other)
    try:
        same = value == other
        return bool(same.all() if hasattr(same, "all") else same)  # arrays compare item by item
    except Exception:  # whatever the code of an object raises
        return False


def _check_logger(logger: Any) -> None:
    if isinstance(logger, type):
        action = f"Pass an instance: `{logger.__name__}(...)`."
        raise TypeError(must_be("logger", "a logger object", logger, "Trainer", action))
    missing = [name for name in _METHODS if not callable(getattr(logger, name, None))]
    if missing:
        rule = f"a logger, a list of them, True or False (missing: {', '.join(missing)})"
        action = "See `camshaft.hooks_core.protocols.Logger`."
        raise TypeError(must_be("logger", rule, logger, "Trainer", action))


class SilentLogger:
    """A logger that takes every call and writes nothing, for trial runs and for ranks that do not write.

    Every attribute of other loggers exists, such as `self.logger.experiment.add_image(...)`.

    Attributes:
        log_dir, save_dir: None in a trial, as there are no files; else those of the logger of the process that writes.
        name, version: Likewise empty, or those of that logger.
    """

    log_dir: str | None = None
    save_dir: str | None = None
    name: str | None = ""
    version: int | str | None = ""

    def __getattr__(self, name: str) -> Self:
        """Return this logger, for any attribute."""
        if name.startswith("__"):  # of Python, as `copy` and `pickle` look for it
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Self:
        """Do nothing."""
        return self

    def __getitem__(self, key: Any) -> Self:
        """Return this logger, for any key."""
        return self

    def __iter__(self) -> Iterator[Self]:
        """Return an empty iterator."""
        return iter(())
