"""The trainer's arguments of releases 0.4 to 1.9, and today's that took other values then: rows and translations."""

from __future__ import annotations

import os
import re
import signal
from ast import literal_eval
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

import torch

import camshaft.callbacks as callbacks  # what it exports is imported when it is asked for, which few trainers do here
from camshaft.compat.arguments.translation import EarlierArgument, Translate, Translation
from camshaft.compat.names.stand_ins import check_not_missing
from camshaft.hooks_core import StrategyDefaults, is_overridden
from camshaft.hooks_core.support.messages import must_be
from camshaft.hooks_core.support.remote_files import absolute
from camshaft.strategies.precision import Precision
from camshaft.trainer import GradientNorms
from camshaft.trainer.configuration import STRATEGY_NAMES, listed

EARLIER_ARGUMENTS: dict[str, EarlierArgument] = {}
"""The arguments of earlier releases by name."""

_WHERE = "Trainer"
_NONE_OR_FALSE = (None, False)
_Given = Mapping[str, Any]


def earlier(
    name: str, first: str, last: str, today: str, nothing: tuple[Any, ...] = (None,), default: Any = None
) -> Callable[[Translate], Translate]:
    """Return a decorator that adds a translation to `EARLIER_ARGUMENTS`; for the arguments see `EarlierArgument`."""

    def add(translate: Translate) -> Translate:
        EARLIER_ARGUMENTS[name] = EarlierArgument(name, (first, last), today, translate, nothing, default)
        return translate

    return add


# what rows of data say


def _share(name: str, value: Any, today: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ValueError(must_be(name, "a share from 0 to 1", value, _WHERE, f"Pass `{today}`."))
    return float(value)


_CONVERSIONS: Mapping[str, Callable[[str, Any, str], Any]] = {
    "renamed": lambda name, value, today: value,
    "flag": lambda name, value, today: bool(value),
    "count": lambda name, value, today: int(value),
    "share": _share,
}


def _add_row(kind: str, name: str, releases: str, today: str, nothing: str, *words: str) -> None:
    """Add a row of `earlier.txt`, which describes its parts."""

    def translate(name: str, value: Any, given: _Given) -> Translation | None:
        if kind == "refused":
            raise refusal(name, value, *words)
        if kind in _CONVERSIONS:
            return Translation(arguments={today: _CONVERSIONS[kind](name, value, today)}, remark=" ".join(words))
        return None if kind == "same" else Translation(remark=words[0])

    first, last = releases.split()
    told = f"`{today}`" if kind in _CONVERSIONS else today
    earlier(name, first, last, told, literal_eval(f"({nothing},)"))(translate)


for _line in files("camshaft.compat.arguments").joinpath("earlier.txt").read_text(encoding="utf-8").splitlines():
    if not _line.startswith("#"):
        _add_row(*_line.split(" | "))


# what takes a function


def refusal(name: str, value: Any, why: str, action: str) -> ValueError:
    """Return the error about an argument of earlier releases that has no counterpart."""
    return ValueError(must_be(name, f"left out, because {why}", value, _WHERE, action))


def callback(make: Callable[[Any], Any]) -> Translate:
    """Return a translation into the callback that a function makes of the value."""
    return lambda name, value, given: Translation(callbacks=(make(value),))


def callback_or_switch(today: str) -> Translate:
    """Return a translation of a callback, or a bool that enables it."""
    return lambda name, value, given: (
        Translation(arguments={today: value}) if isinstance(value, bool) else Translation(callbacks=(value,))
    )


def attribute_of_module(name: str, value: Any, remark: str) -> Translate:
    """Return a translation into an attribute that the module gets."""
    return lambda *_: Translation(settings={"of_module": {name: value}}, remark=remark)


def search(setting: str, finder: str, option: str) -> Translate:
    """Return a translation into a search by `tune`, with an option of the finder if a text is given."""
    remark = f"is what `trainer.tune(model)` searches for, and only that; `callbacks=[{finder}()]` does in fit"

    def translate(name: str, value: Any, given: _Given) -> Translation:
        found = getattr(callbacks, finder)(**({option: value} if isinstance(value, str) else {}))
        return Translation(settings={setting: found}, remark=remark)

    return translate


_PER_NODE = "the attribute `prepare_data_per_node` of module or data module"


@earlier("prepare_data_per_node", "0.8", "1.6", _PER_NODE, (None, True))
def prepare_data_per_node(name: str, value: Any, given: _Given) -> Translation:
    """Refuse with several machines: the module or data module has this attribute."""
    if given.get("num_nodes") in (None, 1) and given.get("nb_gpu_nodes") in (None, 1):
        return Translation(remark="is left out: there is one machine")
    why = "the module or data module decides whether every machine prepares data"
    raise refusal(name, value, why, "Set the attribute `prepare_data_per_node` there.")


# optimization


@earlier("accumulate_grad_batches", "0.4", "1.9", "`GradientAccumulationScheduler(scheduling)` for a dictionary")
def accumulation(name: str, value: Any, given: _Given) -> Translation | None:
    """Translate a schedule; a number is one of today's."""
    if not isinstance(value, Mapping):
        return None
    remark = "" if 0 in value else "epochs count from 0, and not from 1 as up to 0.7"
    return Translation(callbacks=(callbacks.GradientAccumulationScheduler(value),), remark=remark)


earlier("automatic_optimization", "1.0", "1.2", "`self.automatic_optimization = False` in the module", (None, True))(
    attribute_of_module("automatic_optimization", False, "is `self.automatic_optimization = False` in the module")
)


@earlier("stochastic_weight_avg", "1.2", "1.6", "`StochasticWeightAveraging(swa_lrs=None)`", _NONE_OR_FALSE)
def stochastic_weight_avg(name: str, value: Any, given: _Given) -> Translation:
    """Translate into a callback that keeps the optimizer's learning rates, unless one was passed."""
    kind = callbacks.StochasticWeightAveraging
    if any(isinstance(callback, kind) for callback in listed(given.get("callbacks"))):
        return Translation(remark="is left out: the given callback does it")
    return Translation(callbacks=(kind(swa_lrs=None),))


earlier("auto_lr_find", "0.7", "1.9", "`LearningRateFinder`", _NONE_OR_FALSE)(
    search("lr_find", "LearningRateFinder", "attr_name")
)
earlier("auto_scale_batch_size", "0.7", "1.9", "`BatchSizeFinder`", _NONE_OR_FALSE)(
    search("scale_batch_size", "BatchSizeFinder", "mode")
)

# devices and processes


_UNUSED_PARAMETERS = "ddp_find_unused_parameters_true"  # as those releases had it by default

_FORMS: Mapping[str, str] = {
    r"ddp_sharded(_spawn)?(_find_unused_parameters_false)?|(ddp_)?fully_sharded|fsdp_native": "sharded",
    r"ddp_spawn_find_unused_parameters_(true|false)": r"ddp_find_unused_parameters_\1",
    "ddp_spawn": _UNUSED_PARAMETERS,
}
"""Names of strategies, and today's."""

_BACKENDS: Mapping[str, str] = {**_FORMS, "ddp|ddp_cpu": _UNUSED_PARAMETERS}
"""Names of `distributed_backend`, then of `accelerator` and `plugins`."""

_WITHOUT_STRATEGY = ["bagua", "collaborative", "colossalai", "deepspeed", "hivemind", "horovod", "hpu", "ipu", "tpu"]
"""First words of refused names."""

_PASS_STRATEGY = "Pass strategy='ddp', or 'sharded' where parameters do not fit."


@earlier("gpus", "0.4", "1.9", "`accelerator='gpu', devices=...`")
def gpus(name: str, value: Any, given: _Given) -> Translation:
    """Translate the number or indexes of GPUs; none means the CPU."""
    devices = _read_gpus(name, value)
    if devices in (0, []):
        return Translation(arguments={"accelerator": "cpu"})
    arguments: dict[str, Any] = {"accelerator": "gpu", "devices": devices}
    names_strategy = any(given.get(other) is not None for other in ("strategy", "distributed_backend", "accelerator"))
    if not names_strategy and _count(devices) > 1:
        arguments["strategy"] = _UNUSED_PARAMETERS
    return Translation(arguments=arguments)


@earlier("num_processes", "0.7", "1.9", "`accelerator='cpu', devices=...`", (None, 1))
def num_processes(name: str, value: Any, given: _Given) -> Translation:
    """Translate the number of processes on the CPU; with GPUs there is one for each."""
    if given.get("gpus") not in (None, 0, []):
        return Translation(remark="is left out: there is a process for each GPU")
    return Translation(arguments={"accelerator": "cpu", "devices": value})


@earlier("distributed_backend", "0.4", "1.4", "`strategy`")
def backend(name: str, value: Any, given: _Given) -> Translation:
    """Translate the kind of distributed training into a strategy."""
    found = _by_name(name, value, given, _BACKENDS)
    if found is None:
        raise ValueError(must_be(name, "one of 'ddp', 'ddp_cpu', 'dp' or None", value, _WHERE, _PASS_STRATEGY))
    return found


earlier("accelerator", "1.0", "1.9", "`strategy` for 'ddp' and its like")(
    # a kind of device without a strategy is refused as any other that is unknown
    lambda name, value, given: None if value in ("tpu", "ipu", "hpu") else _by_name(name, value, given, _BACKENDS)
)
earlier("strategy", "1.5", "1.9", "`strategy='ddp'` for 'ddp_spawn', 'sharded' for sharded ones")(
    lambda name, value, given: _by_name(name, value.lower(), given, _FORMS) if isinstance(value, str) else None
)


@earlier("plugins", "1.0", "2.6", "`strategy`, `precision`", (None, [], ()))
def plugins(name: str, value: Any, given: _Given) -> Translation:
    """Translate names of strategies, precisions and environments; other plugins are parts of a strategy today."""
    found = [_plugin(name, plugin) for plugin in (value if isinstance(value, (list, tuple)) else [value])]
    settings: dict[str, dict[str, Any]] = {"arguments": {}, "settings": {}}
    for kind, collected in settings.items():
        for one in (getattr(translation, kind) for translation in found):
            if collected.keys() & one.keys():
                raise ValueError(must_be(name, "one of each kind", value, _WHERE, "Leave one of them out."))
            collected |= one
    added = tuple(one for translation in found for one in translation.callbacks)
    remark = "; ".join(translation.remark for translation in found if translation.remark)
    return Translation(callbacks=added, remark=remark, **settings)


def _plugin(name: str, plugin: Any) -> Translation:
    if (found := _strategy(plugin, _FORMS)) is not None:
        return found
    if isinstance(plugin, StrategyDefaults) or (isinstance(plugin, str) and plugin in STRATEGY_NAMES):
        return Translation(arguments={"strategy": plugin})
    if isinstance(plugin, Precision):
        return Translation(arguments={"precision": plugin})
    from camshaft.compat.names.plugins import checkpoint_io, environments  # rarely passed

    if isinstance(plugin, environments.SLURMEnvironment) and plugin.auto_requeue and plugin.detect():
        requeued = "SIGUSR1" if plugin.requeue_signal is None else signal.Signals(plugin.requeue_signal).name
        return Translation(callbacks=(callbacks.PreemptionCheckpoint([requeued], requeue=True),))
    if type(plugin) in environments.RECOGNISED:
        return Translation(remark="is left out: what launched the processes is recognised")
    kinds = {"cluster_environment": environments.ClusterEnvironment, "checkpoint_io": checkpoint_io.CheckpointIO}
    for setting, kind in kinds.items():
        if isinstance(plugin, kind):
            return Translation(settings={setting: plugin}, remark="is a part of the strategy")
    check_not_missing(plugin)
    raise refusal(name, plugin, "there are no plugins", "Pass a strategy object and `precision`.")


def _strategy(value: Any, forms: Mapping[str, str]) -> Translation | None:
    """Return the translation of a strategy's name; None if it has none of these forms."""
    text = value if isinstance(value, str) else ""
    found = [one.expand(today) for form, today in forms.items() if (one := re.fullmatch(form, text))]
    if not found:
        return None
    arguments = {"strategy": found[0], **({"accelerator": "cpu"} if value == "ddp_cpu" else {})}
    remark = "the script itself is started once for each process" if "spawn" in text else ""
    return Translation(arguments=arguments, remark=remark)


def _by_name(name: str, value: Any, given: _Given, forms: Mapping[str, str]) -> Translation | None:
    """Return the translation of a strategy's name; None for one that no earlier release had.

    Raises:
        ValueError: If there is no such strategy any more.
    """
    if (found := _strategy(value, forms)) is not None:
        return found
    if value == "dp" and _num_asked_for(given) <= 1:
        return Translation(remark="is left out: there is one device")
    kind = value.partition("_")[0] if isinstance(value, str) else None
    if kind in ("dp", "ddp2"):
        action = "Pass strategy='ddp', where each process takes batches of its own, and divide the batch size."
        raise refusal(name, value, "one process cannot compute on several devices", action)
    if kind in _WITHOUT_STRATEGY:
        raise refusal(name, value, f"there is no strategy for {kind!r}", _PASS_STRATEGY)
    return None


def _read_gpus(name: str, value: Any) -> int | list[int]:
    """Return a number, or a list of indexes.

    Raises:
        ValueError: If it is neither, or a text that was a number for some releases and an index for others.
    """
    if isinstance(value, str) and "," in value:
        value = [part for part in value.split(",") if part.strip()]
    if isinstance(value, str) and value.strip() == "-1":
        return -1
    if isinstance(value, (list, tuple)) and all(re.fullmatch(r"\s*\d+\s*", str(one)) for one in value):
        return [int(one) for one in value]
    if isinstance(value, int) and not isinstance(value, bool) and value >= -1:
        return value
    action = "Pass `devices=3` for three GPUs, `devices=[3]` for the fourth."
    raise ValueError(must_be(name, "a number of GPUs, -1, or the indexes of some", value, _WHERE, action))


def _num_asked_for(given: _Given) -> int:
    devices = given.get("gpus") if given.get("gpus") is not None else given.get("devices")
    return 1 if devices in (None, "auto") else _count(_read_gpus("gpus", devices))


def _count(devices: int | list[int]) -> int:
    if isinstance(devices, list):
        return len(devices)
    return torch.accelerator.device_count() if devices == -1 else devices


# precision


@earlier("use_amp", "0.4", "0.8", "`precision='16-mixed'`", _NONE_OR_FALSE)
def use_amp(name: str, value: Any, given: _Given) -> Translation:
    """Translate into torch's mixed precision."""
    if str(given.get("precision")) in ("16", "16-mixed"):
        return Translation(remark="says the same as `precision`")
    return Translation(arguments={"precision": "16-mixed"})


_APEX = "is left out: apex no longer exists, and torch's own mixed precision, which has no levels, takes its place"


@earlier("amp_level", "0.4", "1.9", "`precision`")
def amp_level(name: str, value: Any, given: _Given) -> Translation:
    """Translate a level of apex; those of mixed precision are torch's."""
    if value in ("O1", "O2"):
        return Translation(remark=_APEX)
    action = "Pass `precision`: '32-true' for 'O0', '16-true' for 'O3'."
    raise refusal(name, value, "it is for apex, which no longer exists", action)


@earlier("amp_backend", "0.9", "1.9", "`precision`", (None, "native"))
def amp_backend(name: str, value: Any, given: _Given) -> Translation:
    """Translate the library for mixed precision; only torch's is left."""
    if value != "apex":
        raise ValueError(must_be(name, "'native' or 'apex'", value, _WHERE, "Leave it out."))
    return Translation(remark=_APEX)


# observation


@earlier("log_save_interval", "0.4", "0.9", "`CSVLogger(flush_logs_every_n_steps=...)`", (None, 100))
@earlier("flush_logs_every_n_steps", "1.0", "1.6", "`CSVLogger(flush_logs_every_n_steps=...)`", (None, 100))
def flush_logs(name: str, value: Any, given: _Given) -> Translation:
    """Translate into a setting of the trainer's own logger; other loggers have their own."""
    if given.get("logger") not in (None, True):
        return Translation(remark="is left out: loggers write by their own arguments")
    root = given.get("default_root_dir") or given.get("default_save_path") or os.curdir
    logger = callbacks.CSVLogger(absolute(root), flush_logs_every_n_steps=value)
    return Translation(arguments={"logger": logger})


@earlier("log_gpu_memory", "0.4", "1.6", "`DeviceStatsMonitor()`", _NONE_OR_FALSE)
def log_gpu_memory(name: str, value: Any, given: _Given) -> Translation:
    """Translate into statistics of the devices, if there are GPUs."""
    if not torch.accelerator.is_available():
        return Translation(remark="is left out: this machine has no GPU")
    return Translation(callbacks=(callbacks.DeviceStatsMonitor(cpu_stats=False),))


class EarlierGradientNorms(GradientNorms):
    """Logs what `grad_norm` of the module returns, if it overrides that, and through `log_grad_norm`, if it does that.

    Args:
        norm_type: As of `GradientNorms`.

    Raises:
        ValueError: As of `GradientNorms`.
    """

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        """Log, if it is due; at every update where the module decides."""
        if not is_overridden(module, "log_grad_norm"):
            super().on_before_optimizer_step(trainer, module, optimizer)
        elif norms := self.norms(module, optimizer):
            module.log_grad_norm(norms)

    def norms(self, module: Any, optimizer: Any) -> dict[str, Any]:
        """Return the norms by the names to log them under."""
        if is_overridden(module, "grad_norm"):
            return dict(module.grad_norm(self.norm_type))
        return super().norms(module, optimizer)


earlier("track_grad_norm", "0.4", "1.9", "`GradientNorms(norm_type)`", (None, -1, -1.0))(callback(EarlierGradientNorms))
earlier("print_nan_grads", "0.4", "0.8", "`NonFiniteGuard(action='warn', check_gradients=True)`", _NONE_OR_FALSE)(
    callback(lambda _: callbacks.NonFiniteGuard("warn", check_loss=False, check_gradients=True))
)
earlier("terminate_on_nan", "0.7", "1.6", "`NonFiniteGuard()`", _NONE_OR_FALSE)(
    callback(lambda _: callbacks.NonFiniteGuard())
)
earlier("move_metrics_to_cpu", "1.1", "1.9", "the attribute `outputs_on_cpu` of the module", _NONE_OR_FALSE)(
    attribute_of_module("outputs_on_cpu", True, "is `self.outputs_on_cpu = True` in the module")
)


@earlier("progress_bar_refresh_rate", "0.7", "1.6", "`enable_progress_bar`, `RichProgressBar(refresh_rate)`")
def progress_bar_refresh_rate(name: str, value: Any, given: _Given) -> Translation:
    """Translate batches between two refreshes, 0 for no bar; today a bar is refreshed by time."""
    if value == 0:
        return Translation(arguments={"enable_progress_bar": False})
    return Translation(remark="is left out: `RichProgressBar(refresh_rate_seconds=...)` is refreshed by time")


earlier("progress_bar_callback", "0.7", "0.7", "`callbacks`, `enable_progress_bar`")(
    callback_or_switch("enable_progress_bar")
)


@earlier("weights_summary", "0.5", "1.6", "`enable_model_summary`, `ModelSummary(max_depth)`", ("top",), default="top")
def weights_summary(name: str, value: Any, given: _Given) -> Translation:
    """Translate into the depth of the model's summary."""
    if value is None:
        return Translation(arguments={"enable_model_summary": False})
    if value != "full":
        raise ValueError(must_be(name, "'top', 'full' or None", value, _WHERE, "Pass `enable_model_summary`."))
    return Translation(callbacks=(callbacks.ModelSummary(max_depth=-1),))


# files

earlier("checkpoint_callback", "0.4", "1.6", "`enable_checkpointing`, `callbacks`")(
    callback_or_switch("enable_checkpointing")
)
earlier("early_stop_callback", "0.4", "0.9", "`callbacks=[EarlyStopping('val_loss')]`", _NONE_OR_FALSE)(
    callback(lambda value: callbacks.EarlyStopping("val_loss", verbose=True) if value is True else value)
)


@earlier("weights_save_path", "0.4", "1.7", "`ModelCheckpoint(dirpath)`")
def weights_save_path(name: str, value: Any, given: _Given) -> Translation:
    """Translate into the directory of the checkpoint callback."""
    switches = (given.get("checkpoint_callback"), given.get("enable_checkpointing"))
    passed = [*listed(given.get("callbacks")), *switches]
    if False in switches or any(isinstance(one, callbacks.ModelCheckpoint) for one in passed):
        why = "the callback that saves has the folder, and the trainer makes none here"
        raise refusal(name, value, why, "Pass `ModelCheckpoint(dirpath=...)`.")
    return Translation(callbacks=(callbacks.ModelCheckpoint(dirpath=value),))


@earlier("resume_from_checkpoint", "0.6", "1.9", "`fit(ckpt_path=...)`")
def resume_from_checkpoint(name: str, value: Any, given: _Given) -> Translation:
    """Translate into the checkpoint from which every fit resumes."""
    return Translation(settings={"ckpt_path": value}, remark=f"is `trainer.fit(..., ckpt_path={value!r})` today")
