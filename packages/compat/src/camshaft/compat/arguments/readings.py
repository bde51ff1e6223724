"""Translations of single arguments of earlier releases that need more than another name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

import camshaft.callbacks as callbacks  # what it exports is imported when it is asked for, which few trainers do here
from camshaft.compat.arguments.translation import Translate, Translation, refusal
from camshaft.hooks_core import StrategyDefaults
from camshaft.hooks_core.messages import must_be
from camshaft.trainer import GradientNorms
from camshaft.trainer.configuration import STRATEGY_NAMES, listed

_WHERE = "Trainer"
_Given = Mapping[str, Any]


def same(name: str, value: Any, given: _Given) -> None:
    """Translate nothing: the value is one of today's."""


def share_of(today: str) -> Translate:
    """Return a translation of a share of the batches, where 1 means all, not one batch."""

    def translate(name: str, value: Any, given: _Given) -> Translation:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
            raise ValueError(must_be(name, "a share from 0 to 1", value, _WHERE, f"Pass `{today}`."))
        return Translation(arguments={today: float(value)})

    return translate


def callback_or_switch(today: str) -> Translate:
    """Return a translation of a callback, or a bool that enables it."""

    def translate(name: str, value: Any, given: _Given) -> Translation:
        if isinstance(value, bool):
            return Translation(arguments={today: value})
        return Translation(callbacks=(value,))

    return translate


def early_stop_callback(name: str, value: Any, given: _Given) -> Translation:
    """Translate a callback, or True for one that monitors `val_loss`."""
    return Translation(callbacks=(callbacks.EarlyStopping("val_loss", verbose=True) if value is True else value,))


def accumulation(name: str, value: Any, given: _Given) -> Translation | None:
    """Translate a schedule; a number is one of today's."""
    if not isinstance(value, Mapping):
        return None
    remark = "" if 0 in value else "epochs count from 0, and not from 1 as up to 0.7"
    return Translation(callbacks=(callbacks.GradientAccumulationScheduler(value),), remark=remark)


def manual_optimization(name: str, value: Any, given: _Given) -> Translation:
    """Translate manual optimization into the module's attribute."""
    remark = "is `self.automatic_optimization = False` in the module"
    return Translation(settings={"of_module": {"automatic_optimization": False}}, remark=remark)


def stochastic_weight_avg(name: str, value: Any, given: _Given) -> Translation:
    """Translate into a callback that keeps the optimizer's learning rates, unless one was passed."""
    kind = callbacks.StochasticWeightAveraging
    if any(isinstance(callback, kind) for callback in listed(given.get("callbacks"))):
        return Translation(remark="is left out: the given callback does it")
    return Translation(callbacks=(kind(swa_lrs=None),))


def move_metrics_to_cpu(name: str, value: Any, given: _Given) -> Translation:
    """Translate into the module's attribute that keeps outputs of steps on the CPU for epoch-end hooks."""
    remark = "is `self.outputs_on_cpu = True` in the module; what is logged takes no memory that grows"
    return Translation(settings={"of_module": {"outputs_on_cpu": True}}, remark=remark)


def prepare_data_per_node(name: str, value: Any, given: _Given) -> Translation:
    """Refuse with several machines: the module or data module has this attribute."""
    if given.get("num_nodes") in (None, 1) and given.get("nb_gpu_nodes") in (None, 1):
        return Translation(remark="is left out: there is one machine")
    why = "the module or data module decides whether every machine prepares data"
    raise refusal(name, value, why, "Set the attribute `prepare_data_per_node` there.")


def lr_find(name: str, value: Any, given: _Given) -> Translation:
    """Translate into a search of the learning rate by `tune`, for the named attribute if any."""
    finder = callbacks.LearningRateFinder(attr_name=value) if isinstance(value, str) else callbacks.LearningRateFinder()
    remark = "is what `trainer.tune(model)` searches for, and only that; `callbacks=[LearningRateFinder()]` does in fit"
    return Translation(settings={"lr_find": finder}, remark=remark)


def scale_batch_size(name: str, value: Any, given: _Given) -> Translation:
    """Translate into a search of the batch size by `tune`, in the named mode if any."""
    finder = callbacks.BatchSizeFinder(mode=value) if isinstance(value, str) else callbacks.BatchSizeFinder()
    remark = "is what `trainer.tune(model)` searches for, and only that; `callbacks=[BatchSizeFinder()]` does in fit"
    return Translation(settings={"scale_batch_size": finder}, remark=remark)


def use_amp(name: str, value: Any, given: _Given) -> Translation:
    """Translate into torch's mixed precision."""
    if str(given.get("precision")) in ("16", "16-mixed"):
        return Translation(remark="says the same as `precision`")
    return Translation(arguments={"precision": "16-mixed"})


def amp_level(name: str, value: Any, given: _Given) -> Translation:
    """Translate a level of apex; those of mixed precision are torch's."""
    if value in ("O1", "O2"):
        remark = "is left out: it is for apex, which no longer exists, and torch's own mixed precision has no levels"
        return Translation(remark=remark)
    why = "it is for apex, which no longer exists"
    raise refusal(name, value, why, "Pass `precision`: '32-true' for 'O0', '16-true' for 'O3'.")


def amp_backend(name: str, value: Any, given: _Given) -> Translation:
    """Translate the library for mixed precision; only torch's is left."""
    if value != "apex":
        raise ValueError(must_be(name, "'native' or 'apex'", value, _WHERE, "Leave it out."))
    return Translation(remark="is left out: apex no longer exists, and torch's own mixed precision takes its place")


def flush_logs(name: str, value: Any, given: _Given) -> Translation:
    """Translate into a setting of the trainer's own logger; other loggers have their own."""
    if given.get("logger") not in (None, True):
        return Translation(remark="is left out: loggers write by their own arguments")
    root = given.get("default_root_dir") or given.get("default_save_path") or os.curdir
    logger = callbacks.CSVLogger(os.path.abspath(os.path.expanduser(root)), flush_logs_every_n_steps=value)
    return Translation(arguments={"logger": logger})


def log_gpu_memory(name: str, value: Any, given: _Given) -> Translation:
    """Translate into statistics of the devices, if there are GPUs."""
    if not torch.cuda.is_available():
        return Translation(remark="is left out: this machine has no GPU")
    return Translation(callbacks=(callbacks.DeviceStatsMonitor(cpu_stats=False),))


def track_grad_norm(name: str, value: Any, given: _Given) -> Translation:
    """Translate into a callback that logs the norms of the gradients."""
    return Translation(callbacks=(GradientNorms(value),))


def print_nan_grads(name: str, value: Any, given: _Given) -> Translation:
    """Translate into a warning about gradients that are not finite."""
    return Translation(callbacks=(callbacks.NonFiniteGuard("warn", check_loss=False, check_gradients=True),))


def terminate_on_nan(name: str, value: Any, given: _Given) -> Translation:
    """Translate into an error about losses that are not finite."""
    return Translation(callbacks=(callbacks.NonFiniteGuard(),))


def progress_bar_refresh_rate(name: str, value: Any, given: _Given) -> Translation:
    """Translate batches between two refreshes, 0 for no bar; today a bar is refreshed by time."""
    if value == 0:
        return Translation(arguments={"enable_progress_bar": False})
    remark = "is left out: the bar is refreshed by time, by `RichProgressBar(refresh_rate_seconds=...)`"
    return Translation(remark=remark)


def weights_summary(name: str, value: Any, given: _Given) -> Translation:
    """Translate into the depth of the model's summary."""
    if value is None:
        return Translation(arguments={"enable_model_summary": False})
    if value != "full":
        raise ValueError(must_be(name, "'top', 'full' or None", value, _WHERE, "Pass `enable_model_summary`."))
    return Translation(callbacks=(callbacks.ModelSummary(max_depth=-1),))


def weights_save_path(name: str, value: Any, given: _Given) -> Translation:
    """Translate into the directory of the checkpoint callback."""
    passed = [*listed(given.get("callbacks")), given.get("checkpoint_callback")]
    is_off = False in (given.get("checkpoint_callback"), given.get("enable_checkpointing"))
    if is_off or any(isinstance(callback, callbacks.ModelCheckpoint) for callback in passed):
        why = "the callback that saves has the folder, and the trainer makes none here"
        raise refusal(name, value, why, "Pass `ModelCheckpoint(dirpath=...)`.")
    return Translation(callbacks=(callbacks.ModelCheckpoint(dirpath=value),))


def resume_from_checkpoint(name: str, value: Any, given: _Given) -> Translation:
    """Translate into the checkpoint from which every fit resumes."""
    remark = f"is `trainer.fit(..., ckpt_path={value!r})` today"
    return Translation(settings={"ckpt_path": value}, remark=remark)


# devices and processes

_UNUSED_PARAMETERS = "ddp_find_unused_parameters_true"  # as those releases had it by default

_BACKENDS: dict[str, dict[str, Any]] = {
    "ddp": {"strategy": _UNUSED_PARAMETERS},
    "ddp_spawn": {"strategy": _UNUSED_PARAMETERS},
    "ddp_cpu": {"strategy": _UNUSED_PARAMETERS, "accelerator": "cpu"},
    "ddp_sharded": {"strategy": "sharded"},
    "ddp_sharded_spawn": {"strategy": "sharded"},
    "ddp_fully_sharded": {"strategy": "sharded"},
    "fully_sharded": {"strategy": "sharded"},
}
"""Names of `distributed_backend`, then of `accelerator` and `plugins`."""

_STRATEGIES: dict[str, dict[str, Any]] = {
    **{name: arguments for name, arguments in _BACKENDS.items() if name not in ("ddp", "ddp_cpu")},
    "ddp_spawn_find_unused_parameters_true": {"strategy": _UNUSED_PARAMETERS},
    "ddp_spawn_find_unused_parameters_false": {"strategy": "ddp_find_unused_parameters_false"},
    "ddp_sharded_find_unused_parameters_false": {"strategy": "sharded"},
    "ddp_sharded_spawn_find_unused_parameters_false": {"strategy": "sharded"},
    "fsdp_native": {"strategy": "sharded"},
}

_REFUSED = {
    "ddp2": "one process cannot compute on several devices",
    "horovod": "there is no strategy for Horovod",
    "deepspeed": "there is no strategy for DeepSpeed",
    "tpu": "there is no strategy for TPUs",
    "tpu_spawn": "there is no strategy for TPUs",
    "ipu": "there is no strategy for IPUs",
    "ipu_strategy": "there is no strategy for IPUs",
    "hpu": "there is no strategy for HPUs",
    "hpu_parallel": "there is no strategy for HPUs",
    "hpu_single": "there is no strategy for HPUs",
    "bagua": "there is no strategy for Bagua",
    "colossalai": "there is no strategy for Colossal-AI",
    "hivemind": "there is no strategy for Hivemind",
    "collaborative": "there is no strategy for Hivemind",
}
_PASS_STRATEGY = "Pass strategy='ddp', or 'sharded' where parameters do not fit."


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


def num_processes(name: str, value: Any, given: _Given) -> Translation:
    """Translate the number of processes on the CPU; with GPUs there is one for each."""
    if given.get("gpus") not in (None, 0, []):
        return Translation(remark="is left out: there is a process for each GPU")
    return Translation(arguments={"accelerator": "cpu", "devices": value})


def backend(name: str, value: Any, given: _Given) -> Translation:
    """Translate the kind of distributed training into a strategy."""
    if value not in _BACKENDS:
        return _refuse(name, value, given)
    return _of(value, _BACKENDS)


def accelerator(name: str, value: Any, given: _Given) -> Translation | None:
    """Translate a backend, unless it names a kind of device."""
    if value in _BACKENDS:
        return _of(value, _BACKENDS)
    if value in ("tpu", "ipu", "hpu"):
        return None  # a kind of device, which is refused as any other that is unknown
    return _refuse(name, value, given) if value == "dp" or _is_refused(value) else None


def strategy(name: str, value: Any, given: _Given) -> Translation | None:
    """Translate a backend, unless it is today's name of a strategy."""
    if not isinstance(value, str):
        return None
    if value in _STRATEGIES:
        return _of(value, _STRATEGIES)
    return _refuse(name, value, given) if value == "dp" or _is_refused(value) else None


def plugins(name: str, value: Any, given: _Given) -> Translation:
    """Translate names of strategies; other plugins are parts of a strategy today."""
    several = isinstance(value, (list, tuple))
    if several and len(value) != 1:
        raise refusal(name, value, "there are no plugins", "Pass a strategy object and `precision`.")
    plugin = value[0] if several else value
    if isinstance(plugin, str) and plugin in _STRATEGIES:
        return _of(plugin, _STRATEGIES)
    if isinstance(plugin, StrategyDefaults) or (isinstance(plugin, str) and plugin in STRATEGY_NAMES):
        return Translation(arguments={"strategy": plugin})
    raise refusal(name, value, "there are no plugins", "Pass a strategy object and `precision`.")


def _of(value: str, table: Mapping[str, dict[str, Any]]) -> Translation:
    remark = "the script itself is started once for each process" if "spawn" in value else ""
    return Translation(arguments=table[value], remark=remark)


def _refuse(name: str, value: Any, given: _Given) -> Translation:
    if value == "dp":
        if _num_asked_for(given) <= 1:
            return Translation(remark="is left out: there is one device")
        why = "one process cannot compute on several devices"
        action = "Pass strategy='ddp', where each process takes batches of its own, and divide the batch size."
        raise refusal(name, value, why, action)
    if _is_refused(value):
        why = next(reason for prefix, reason in _REFUSED.items() if value == prefix or value.startswith(f"{prefix}_"))
        raise refusal(name, value, why, _PASS_STRATEGY)
    rule = f"one of {', '.join(map(repr, [*_BACKENDS, 'dp']))} or None"
    raise ValueError(must_be(name, rule, value, _WHERE, _PASS_STRATEGY))


def _is_refused(value: Any) -> bool:
    return isinstance(value, str) and any(value == prefix or value.startswith(f"{prefix}_") for prefix in _REFUSED)


def _read_gpus(name: str, value: Any) -> int | list[int]:
    """Return a number, or a list of indexes.

    Raises:
        ValueError: If it is neither, or a text that was a number for some releases and an index for others.
    """
    if isinstance(value, str) and "," in value:
        value = [part for part in value.split(",") if part.strip()]
    if isinstance(value, str) and value.strip() == "-1":
        return -1
    if isinstance(value, (list, tuple)) and all(_is_index(one) for one in value):
        return [int(one) for one in value]
    if isinstance(value, int) and not isinstance(value, bool) and value >= -1:
        return value
    rule = "a number of GPUs, -1, or the indexes of some"
    action = "Pass `devices=3` for three GPUs, `devices=[3]` for the fourth."
    raise ValueError(must_be(name, rule, value, _WHERE, action))


def _is_index(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().isdecimal()
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _num_asked_for(given: _Given) -> int:
    devices = given.get("gpus") if given.get("gpus") is not None else given.get("devices")
    return 1 if devices in (None, "auto") else _count(_read_gpus("gpus", devices))


def _count(devices: int | list[int]) -> int:
    if isinstance(devices, list):
        return len(devices)
    return torch.cuda.device_count() if devices == -1 else devices
