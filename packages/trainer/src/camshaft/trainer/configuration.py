"""Configuration: the parts of a trainer, chosen from its arguments."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

import attrs
import torch

import camshaft.callbacks as stock  # imports its exports on access
import camshaft.strategies as strategies
from camshaft.hooks_core import CATALOGUE, Callback, Catalogue
from camshaft.hooks_core.dispatch.candidates import candidates
from camshaft.hooks_core.protocols import check_strategy
from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.hooks_core.support.registered_names import CALLBACKS, LOGGERS, STRATEGIES, load_registered, registered
from camshaft.loops import FitLimits, PredictLoop, TestLoop, ValidationLoop
from camshaft.loops.state.callback_state import check_state_keys
from camshaft.strategies import SingleDeviceStrategy, choose_device, find_process_environment
from camshaft.strategies.precision import choose_precision
from camshaft.trainer.hyperparameters import takes_any

_WHERE = "Trainer"
_STOCK: Any = stock  # whose `__all__` type checkers do not see
_Settings = TypeVar("_Settings")


def choose_callbacks(
    callbacks: Any,
    *,
    enable_progress_bar: bool | None,
    enable_model_summary: bool | None,
    enable_checkpointing: bool | None,
    catalogue: Catalogue = CATALOGUE,
) -> list[Any]:
    """Return the callbacks in the order in which they run: those passed, then progress bar, summary, checkpoint.

    Each of the three is added unless it is disabled or one of its kind was passed; a model summary by default only
    where there is a progress bar, so that a run can be quiet. One that was passed is printed in any case.

    Args:
        callbacks: A callback, callbacks, or None.
        enable_progress_bar, enable_model_summary, enable_checkpointing: Arguments of the trainer of these names.
        catalogue: The hooks that there are.

    Raises:
        TypeError: If something is no callback.
        ValueError: If a progress bar, or a callback that saves, was passed although they are disabled; or two callbacks
            would keep their states under the same key.
    """
    chosen = listed(callbacks)
    for callback in chosen:
        _check_callback(callback, catalogue)
    # by name: a class is imported when it is asked for, and a quiet trainer asks for none
    kinds: tuple[tuple[str, str, bool | None, bool | None, str], ...] = (
        ("ProgressBar", "RichProgressBar", enable_progress_bar, True, "enable_progress_bar"),
        ("ModelSummary", "ModelSummary", enable_model_summary, enable_progress_bar, "enable_model_summary"),
        ("Checkpoint", "ModelCheckpoint", enable_checkpointing, True, "enable_checkpointing"),
    )
    for kind, default, enabled, is_default, argument in kinds:
        present = [type(callback).__name__ for callback in chosen if isinstance(callback, getattr(stock, kind))]
        if present and enabled is False and kind != "ModelSummary":
            raise ValueError(_conflict(f"{argument}=False", f"the {present[0]} in `callbacks`"))
        if not present and (is_default if enabled is None else enabled) is not False:
            chosen.append(getattr(stock, default)())
    check_state_keys(chosen, f"{_WHERE}(callbacks=...)")
    return chosen


_PROFILERS = {"simple": "SimpleProfiler", "advanced": "AdvancedProfiler", "pytorch": "PyTorchProfiler"}


def choose_profiler(profiler: Any) -> Any:
    """Return the profiler, or a callback that measures; None for none.

    Raises:
        ValueError: If it is neither, nor the name of one.
    """
    if profiler is None or profiler is False:
        return None
    name = "simple" if profiler is True else profiler.lower() if isinstance(profiler, str) else None
    if name in _PROFILERS:
        return getattr(stock, _PROFILERS[name])()  # imported on access
    if isinstance(profiler, (Callback, stock.ActionProfiler)):
        return profiler
    rule = f"{', '.join(map(repr, _PROFILERS))}, a profiler, or a callback that measures"
    action = "Pass one of these, such as profiler=HookTimeline() of `camshaft.callbacks`."
    raise ValueError(must_be("profiler", rule, profiler, _WHERE, action))


def with_profiler(callbacks: list[Any], profiler: Any, strategy: Any) -> list[Any]:
    """Return callbacks with one that measures behind them, or before them the one with which a profiler measures.

    Args:
        profiler: A callback that measures, a profiler, or None.
        strategy: The strategy, whose class the report names.
    """
    if profiler is None or isinstance(profiler, Callback):
        return callbacks if profiler is None else [*callbacks, profiler]
    return [stock.ProfiledHooks(profiler, type(strategy).__name__), *callbacks]


def switches(deterministic: bool | str | None, benchmark: bool | None, detect_anomaly: bool) -> list[Callback]:
    """Return the callback for these arguments of the trainer, if there is anything to switch.

    Args:
        deterministic, benchmark, detect_anomaly: Arguments of the trainer of these names.

    Raises:
        TypeError, ValueError: If one is none of its values.
    """
    callbacks: list[Callback] = []
    if deterministic and benchmark:
        warn_user(
            "benchmark=True lets cuDNN choose algorithms by their speed, so that runs may differ in spite of "
            "`deterministic`. Leave one of them out."
        )
    if deterministic or detect_anomaly or benchmark is not None:
        from camshaft.trainer.callbacks.torch_switches import TorchSwitches  # rarely needed

        callbacks.append(TorchSwitches(deterministic or None, benchmark, detect_anomaly or None))
    return callbacks


_ATTACHED = (
    *("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary", "num_sanity_val_steps"),
    *("log_every_n_steps", "fast_dev_run", "profiler", "report"),
)
"""Arguments of the trainer that attach something, or need what is attached."""


def check_barebones(given: Mapping[str, Any]) -> None:
    """Refuse what a trainer with nothing attached cannot have.

    Args:
        given: The arguments of the trainer.

    Raises:
        ValueError: If any asks for something.
    """
    needing = (stock.ModelCheckpoint, stock.ProgressBar, stock.ModelSummary, stock.EarlyStopping)  # files or values
    refused = [f"{name}={given[name]!r}" for name in _ATTACHED if given[name] not in (None, False, 0)]
    refused += [f"callbacks=[{type(one).__name__}()]" for one in listed(given["callbacks"]) if isinstance(one, needing)]
    if refused:
        raise ValueError(_conflict(refused[0], "barebones=True"))


def settings_of(kind: type[_Settings], given: Mapping[str, Any]) -> _Settings:
    """Return settings of a kind from the arguments in `given` that its fields name."""
    return kind(**{field.name: given[field.name] for field in attrs.fields(kind)})  # type: ignore[arg-type]


def _conflict(argument: str, other: str) -> str:
    return f"`{argument}` cannot be combined with {other} in {_WHERE}. Leave one of the two out."


def choose_log_interval(log_every_n_steps: Any) -> int:
    """Return the updates between two entries of step values.

    Raises:
        TypeError, ValueError: If it is no int, or negative.
    """
    if log_every_n_steps is None:
        return 50
    action = "Pass a number of updates; 0 sends only the values of epochs."
    _check_int("log_every_n_steps", log_every_n_steps, 0, "an int or None", action)
    return int(log_every_n_steps)


def _check_int(name: str, value: Any, least: int, kind: str, action: str) -> None:
    """Raise `TypeError` unless an argument is an int, and `ValueError` if it is less than the least."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(must_be(name, kind, value, _WHERE, action))
    if value < least:
        raise ValueError(must_be(name, f"at least {least}", value, _WHERE, action))


def listed(callbacks: Any) -> list[Any]:
    """Return a new list of the argument `callbacks` or `logger`: none, one or a collection of any kind."""
    if callbacks is None:
        return []
    is_several = isinstance(callbacks, Collection) and not isinstance(callbacks, (str, Mapping))
    return list(callbacks) if is_several else [callbacks]


def made_callbacks(callbacks: Any) -> list[Any]:
    """Return a list of the argument `callbacks`, with objects in place of names.

    Raises:
        TypeError, ValueError: If a name is that of no callback, or of one that needs arguments.
        ImportError: If what a distribution registers under it cannot be imported.
    """
    return [_made("callbacks", one, CALLBACKS) if isinstance(one, str) else one for one in listed(callbacks)]


def made_loggers(loggers: Any, save_dir: str) -> list[Any]:
    """Return a list of the argument `logger`, with objects in place of names; see `made_callbacks`.

    Args:
        loggers: The argument.
        save_dir: The folder for loggers by name that require one.
    """
    return [
        _made("logger", one, LOGGERS, save_dir=save_dir) if isinstance(one, str) else one for one in listed(loggers)
    ]


def _made(argument: str, name: str, group: str, **required: Any) -> Any:
    """Return an object that a name stands for: a stock class by its own, else what a distribution registers.

    Args:
        argument: The argument of the trainer.
        name: The name.
        group: The group of entry points.
        **required: Arguments for parameters of these names without a default.
    """
    is_stock = name in _STOCK.__all__ and _is_kind(argument, getattr(stock, name))
    make = getattr(stock, name) if is_stock else load_registered(group, name)
    if make is None:
        stock_names = [one for one in _STOCK.__all__ if _is_kind(argument, getattr(stock, one))]
        near = get_close_matches(name, [*stock_names, *(one.name for one in registered(group))], n=1)
        action = f"Did you mean {near[0]!r}?" if near else "`python -m camshaft.trainer plugins` lists the latter."
        rule = f"an object, the class name of one in `camshaft.callbacks`, or a name of the entry points {group!r}"
        raise ValueError(must_be(argument, rule, name, _WHERE, action))
    parameters = inspect.signature(make).parameters
    given = {one: value for one, value in required.items() if one in parameters and _needs(parameters[one])}
    missing = [one for one, parameter in parameters.items() if one not in given and _needs(parameter)]
    if missing:
        rule = f"an object, or the name of one that needs no arguments ({', '.join(missing)})"
        raise TypeError(must_be(argument, rule, name, _WHERE, "Pass the object."))
    return make(**given)


def _is_kind(argument: str, value: Any) -> bool:
    """Return whether an export is a class that may be made for an argument of the trainer."""
    if not inspect.isclass(value) or inspect.isabstract(value):
        return False
    return issubclass(value, Callback) if argument == "callbacks" else hasattr(value, "log_metrics")


def _needs(parameter: inspect.Parameter) -> bool:
    is_one = parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return is_one and parameter.default is parameter.empty


_LIGHTNING = ("lightning", "pytorch_lightning")


def _check_callback(callback: Any, catalogue: Catalogue) -> None:
    """Raise `TypeError` unless it is an object with a hook, be it a misspelt one, which set-up reports.

    One of Lightning's own would fail where it needs that trainer's inside.
    """
    if isinstance(callback, type):
        action = f"Pass an instance: `{callback.__name__}(...)`."
        raise TypeError(must_be("callbacks", "callback objects", callback, _WHERE, action))
    if isinstance(callback, Callback):
        return
    for base in type(callback).__mro__:
        if base.__module__.partition(".")[0] in _LIGHTNING and base.__name__ != "Callback":
            rule = "without callbacks of Lightning, which need its trainer"
            where = f"`{base.__name__}` from `camshaft.callbacks`" if hasattr(stock, base.__name__) else "what it needs"
            action = f"Import {where}, or run the script with `python -m camshaft.compat run`."
            raise TypeError(must_be("callbacks", rule, callback, _WHERE, action))
    if not any(name in catalogue or name.startswith("on_") for name in candidates(callback)):
        rule = "a callback (an object with at least one hook) or a list of callbacks"
        raise TypeError(must_be("callbacks", rule, callback, _WHERE, "Pass one of these."))


def choose_evaluation_loops(
    given: Mapping[str, Any],
    *,
    overfit_batches: int | float,
    num_trial_batches: int,
    classes: tuple[type[ValidationLoop], type[TestLoop], type[PredictLoop]] = (ValidationLoop, TestLoop, PredictLoop),
) -> tuple[ValidationLoop, ValidationLoop, TestLoop, PredictLoop]:
    """Return the loops of validation in fit, validate, test and predict.

    Args:
        given: The arguments of the trainer.
        overfit_batches: Part of each loader that validation takes instead of its limit, if it is not 0.
        num_trial_batches: Batches that a trial takes instead of all limits; 0 if it is none.
        classes: The classes of the loops.

    Raises:
        TypeError, ValueError: As the loops.
    """
    if overfit_batches and given["limit_val_batches"] not in (None, overfit_batches):
        overridden = f"`limit_val_batches={given['limit_val_batches']}`"
        warn_user(f"`overfit_batches={overfit_batches}` overrides {overridden}. Leave one of the two out.")

    def limit(name: str) -> int | float:
        return num_trial_batches or (1.0 if given[name] is None else given[name])

    settings: dict[str, Any] = {name: given[name] for name in ("inference_mode", "use_distributed_sampler")}
    of_validation, of_test, of_prediction = classes
    in_fit, validate = (
        of_validation(limit_batches=1.0 if overfit_batches else limit("limit_val_batches"), **settings)
        for _ in range(2)
    )
    if overfit_batches:
        for loop in (in_fit, validate):
            loop.limit_batches, loop.limit_argument = overfit_batches, "overfit_batches"
    test = of_test(limit_batches=limit("limit_test_batches"), **settings)
    return in_fit, validate, test, of_prediction(limit_batches=limit("limit_predict_batches"), **settings)


_ALL_DEVICES = ("auto", -1, "-1")
_DDP: dict[str, dict[str, Any]] = {
    f"ddp{start}{unused}": {**by_fork, **finds}
    for start, by_fork in (("", {}), ("_fork", {"start_method": "fork"}), ("_notebook", {"start_method": "fork"}))
    for unused, finds in (
        ("", {}),
        ("_find_unused_parameters_true", {"find_unused_parameters": True}),
        ("_find_unused_parameters_false", {"find_unused_parameters": False}),
    )
}
_SHARDED = ("sharded", "fsdp")
STRATEGY_NAMES = ("auto", "single_device", *_DDP, *_SHARDED)
"""Names that `Trainer(strategy=...)` takes."""


def choose_strategy(
    strategy: Any = "auto",
    *,
    accelerator: Any = "auto",
    devices: Any = "auto",
    num_nodes: Any = 1,
    precision: Any = None,
    compile: bool | Mapping[str, Any] | None = None,
    sync_batchnorm: bool = False,
    logical_ranks: int | None = None,
) -> Any:
    """Return the strategy: an instance as it is; else the one of that name on so many devices.

    A name that is none of ours is looked for among the entry points "camshaft.strategies" of installed distributions.
    What is found there is called with the other arguments, as far as they were given.

    "auto" is one device if one process was started and one device is asked for, else DDP.

    Args:
        strategy: An instance, one of `STRATEGY_NAMES`, in upper or lower case, or a registered name.
        accelerator: Kind of the devices.
        devices: Number per machine, or their indexes.
        num_nodes: Number of machines.
        precision: The number format; None is the instance's own, or "32-true".
        compile: What is compiled; None is the instance's own, or nothing.
        sync_batchnorm: If true, batch normalisation is over the batches of all processes.
        logical_ranks: Number of logical ranks of the run; None is the instance's own, or none.

    Raises:
        TypeError: If a strategy object lacks something that a strategy must have, or a registered one does not take an
            argument.
        ImportError: If what a distribution registers under the name cannot be imported.
        ValueError, RuntimeError: If the name is unknown, a strategy object is of other devices or another precision
            than the ones asked for beside it, or as the strategies themselves.
    """
    if not isinstance(strategy, str):
        check_strategy(strategy, _WHERE)
        _check_beside(strategy, accelerator, devices, num_nodes, precision, compile, logical_ranks)
        _check_syncs(strategy, sync_batchnorm)
        return strategy
    name = strategy.lower()
    if name not in STRATEGY_NAMES:
        make = load_registered(STRATEGIES, strategy)
        if make is not None:
            values = (accelerator, devices, num_nodes, precision, compile, sync_batchnorm, logical_ranks)
            return _registered_strategy(make, strategy, dict(zip(_OF_STRATEGIES, values, strict=True)))
        rule = f"one of {', '.join(map(repr, STRATEGY_NAMES))}, a registered name, or a strategy object"
        near = get_close_matches(name, STRATEGY_NAMES, n=1)
        action = f"Did you mean {near[0]!r}?" if near else "Pass one of these."
        raise ValueError(must_be("strategy", rule, strategy, _WHERE, action))
    precision, compile = "32-true" if precision is None else precision, False if compile is None else compile
    if isinstance(devices, Sequence) and not isinstance(devices, str):
        devices = list(devices)
    ranks: dict[str, Any] = {}
    if logical_ranks is not None:
        _check_int("logical_ranks", logical_ranks, 1, "an int or None", "Pass a power of two, or None for none.")
        ranks["logical_ranks"] = logical_ranks
    if name == "auto":
        name = "single_device" if is_for_one(accelerator, devices, num_nodes) else "ddp"
    if name == "single_device":
        device = _only_device(accelerator, devices, num_nodes)
        return SingleDeviceStrategy(device, precision=precision, compile=compile, **ranks)
    arguments = {"accelerator": accelerator, "devices": devices, "num_nodes": num_nodes}
    arguments |= {"precision": precision, "compile": compile}
    # imported on access
    if name in _SHARDED:
        _check_syncs(name, sync_batchnorm)
        return strategies.ShardedStrategy(**arguments, **ranks)
    return strategies.DDPStrategy(**arguments, **_DDP[name], **ranks, sync_batchnorm=sync_batchnorm)


_OF_STRATEGIES = {
    **{"accelerator": "auto", "devices": "auto", "num_nodes": 1, "precision": None, "compile": None},
    **{"sync_batchnorm": False, "logical_ranks": None},
}
"""Arguments of the trainer that strategies take, with their defaults."""


def _registered_strategy(make: Any, name: str, arguments: Mapping[str, Any]) -> Any:
    """Return the strategy that a distribution registers, made with the arguments that differ from their defaults."""
    given = {one: value for one, value in arguments.items() if value != _OF_STRATEGIES[one]}
    parameters = inspect.signature(make).parameters
    for one in given:
        if one not in parameters and not takes_any(make):
            rule = f"left out with strategy={name!r}, which does not take it"
            raise TypeError(must_be(one, rule, given[one], _WHERE, "Make the strategy yourself, and pass the object."))
    made = make(**given)
    check_strategy(made, _WHERE)
    return made


def num_devices_of(strategy: Any) -> int:
    """Return the number of processes per machine, each with a device."""
    return max(1, int(strategy.world_size) // num_nodes_of(strategy))


def precision_of(strategy: Any) -> str | None:
    """Return the name of a strategy's precision; None if it does not tell."""
    name: str | None = getattr(getattr(strategy, "precision", None), "name", None)
    return name


def num_nodes_of(strategy: Any) -> int:
    """Return the number of machines; 1 for a strategy without `num_nodes`."""
    return int(getattr(strategy, "num_nodes", 1))


def is_for_one(accelerator: Any, devices: Any, num_nodes: Any) -> bool:
    """Return whether arguments of a trainer ask for a single device, in a job of one process.

    Args:
        accelerator: As `Trainer` takes it.
        devices: Likewise.
        num_nodes: Likewise.
    """
    if num_nodes != 1 or find_process_environment().world_size > 1:
        return False
    if devices in _ALL_DEVICES:
        return choose_device(accelerator).type == "cpu" or torch.accelerator.device_count() == 1
    return devices in (1, "1") or (isinstance(devices, (list, tuple)) and len(devices) == 1)


def _only_device(accelerator: Any, devices: Any, num_nodes: Any) -> torch.device:
    if num_nodes != 1:
        rule, action = "1 for one device", "Pass strategy='ddp' or 'sharded'."
        raise ValueError(must_be("num_nodes", rule, num_nodes, _WHERE, action))
    if isinstance(devices, (list, tuple)) and len(devices) == 1 and type(devices[0]) is int:
        return choose_device(accelerator, devices[0])
    if devices not in (*_ALL_DEVICES, 1, "1") or isinstance(devices, bool):
        rule, action = "'auto', 1 or a list with one index for one device", "Pass strategy='ddp' or 'sharded' for more."
        raise ValueError(must_be("devices", rule, devices, _WHERE, action))
    return choose_device(accelerator)


def _check_beside(
    strategy: Any,
    accelerator: Any,
    devices: Any,
    num_nodes: Any,
    precision: Any,
    compile: Any,
    logical_ranks: int | None,
) -> None:
    """Raise `ValueError` unless the other arguments agree with a strategy object."""
    device, num_devices, own_precision = torch.device(strategy.device), num_devices_of(strategy), precision_of(strategy)
    is_own = accelerator in ("auto", device.type) or (accelerator == "gpu" and device.type != "cpu")
    if isinstance(devices, (list, tuple)):
        has_devices = len(devices) == num_devices and devices[strategy.local_rank] == (device.index or 0)
    else:
        has_devices = devices in ("auto", num_devices, str(num_devices))
    has_precision = precision is None or choose_precision(precision, device.type).name == own_precision
    own_compile, own_ranks = getattr(strategy, "compile", False), getattr(strategy, "num_logical_ranks", None)
    for name, value, agrees, default, own in (
        ("accelerator", accelerator, is_own, "auto", device.type),
        ("devices", devices, has_devices, "auto", num_devices),
        ("num_nodes", num_nodes, num_nodes in (1, num_nodes_of(strategy)), 1, num_nodes_of(strategy)),
        ("precision", precision, has_precision, None, own_precision or "its own"),
        ("compile", compile, compile in (None, own_compile), None, own_compile),
        ("logical_ranks", logical_ranks, logical_ranks in (None, own_ranks), None, own_ranks or "none"),
    ):
        if not agrees:
            rule = f"{default!r} or that of the strategy object ({own})"
            raise ValueError(
                must_be(name, rule, value, _WHERE, "Leave it out, and choose it when you make the strategy.")
            )


def _check_syncs(strategy: Any, sync_batchnorm: bool) -> None:
    """Raise `ValueError` if batch normalisation is to be synchronised where only the strategy itself may say so."""
    if sync_batchnorm and not isinstance(strategy, SingleDeviceStrategy):
        action = "Pass strategy=DDPStrategy(sync_batchnorm=True)."
        raise ValueError(f"`sync_batchnorm=True` cannot be combined with strategy={strategy!r} in {_WHERE}. {action}")


def check_fast_dev_run(fast_dev_run: bool | int) -> bool | int:
    """Return the number of batches of a trial run; True for one, False for none.

    Raises:
        TypeError: If it is neither a bool nor an int.
        ValueError: If it is negative.
    """
    if not isinstance(fast_dev_run, bool):
        _check_int("fast_dev_run", fast_dev_run, 0, "a bool or an int", "Pass a number of batches.")
    return fast_dev_run == 1 or fast_dev_run or False


def check_save_only(save_only: Any) -> Any:
    """Return the choice of parameters that checkpoints hold.

    Raises:
        TypeError: If it is none.
    """
    if save_only is None or save_only == "trainable" or callable(save_only):
        return save_only
    rule, action = "'trainable', a function of a name, or None", "Pass one of these."
    raise TypeError(must_be("save_only", rule, save_only, _WHERE, action))


def limits_of_trial(limits: FitLimits, num_batches: int) -> FitLimits:
    """Return the limits of a trial run: one epoch of so many batches, with validation at its end.

    Args:
        limits: Those of the real run; its time and reloading hold for the trial as well.
        num_batches: Batches of the epoch.
    """
    return FitLimits(
        max_epochs=1,
        max_steps=num_batches,
        max_time=limits.max_time,
        limit_train_batches=num_batches,
        num_sanity_val_steps=0,
        reload_dataloaders_every_n_epochs=limits.reload_dataloaders_every_n_epochs,
    )
