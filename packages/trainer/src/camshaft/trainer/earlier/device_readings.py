"""What the arguments of earlier releases about devices and processes are today."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from camshaft.hooks_core import StrategyDefaults
from camshaft.hooks_core.messages import must_be
from camshaft.trainer.earlier.argument_translation import Translation, refusal
from camshaft.trainer.strategy_choice import STRATEGY_NAMES

_WHERE = "Trainer"
_Given = Mapping[str, Any]

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
    """How many GPUs, or which; none is the CPU."""
    devices = _read_gpus(name, value)
    if devices in (0, []):
        return Translation(arguments={"accelerator": "cpu"})
    arguments: dict[str, Any] = {"accelerator": "gpu", "devices": devices}
    names_strategy = any(given.get(other) is not None for other in ("strategy", "distributed_backend", "accelerator"))
    if not names_strategy and _count(devices) > 1:
        arguments["strategy"] = _UNUSED_PARAMETERS
    return Translation(arguments=arguments)


def num_processes(name: str, value: Any, given: _Given) -> Translation:
    """How many processes on the CPU; on GPUs there is one for each."""
    if given.get("gpus") not in (None, 0, []):
        return Translation(remark="is left out: there is a process for each GPU")
    return Translation(arguments={"accelerator": "cpu", "devices": value})


def backend(name: str, value: Any, given: _Given) -> Translation:
    """How several processes train together."""
    if value not in _BACKENDS:
        return _refuse(name, value, given)
    return _of(value, _BACKENDS)


def accelerator(name: str, value: Any, given: _Given) -> Translation | None:
    """The same, where it names no kind of device."""
    if value in _BACKENDS:
        return _of(value, _BACKENDS)
    if value in ("tpu", "ipu", "hpu"):
        return None  # a kind of device, which is refused as any other that is unknown
    return _refuse(name, value, given) if value == "dp" or _is_refused(value) else None


def strategy(name: str, value: Any, given: _Given) -> Translation | None:
    """The same, where it is not today's name of a strategy."""
    if not isinstance(value, str):
        return None
    if value in _STRATEGIES:
        return _of(value, _STRATEGIES)
    return _refuse(name, value, given) if value == "dp" or _is_refused(value) else None


def plugins(name: str, value: Any, given: _Given) -> Translation:
    """Names of strategies; what else a plugin was is part of a strategy today."""
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
    """A number, or a list of indexes.

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
