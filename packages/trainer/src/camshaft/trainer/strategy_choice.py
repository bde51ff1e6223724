"""The trainer's strategy: one that was passed, or one chosen by name, devices and who started this process."""

from __future__ import annotations

from typing import Any

import torch

import camshaft.strategies as strategies
from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.strategy_check import check_strategy
from camshaft.strategies import SingleDeviceStrategy, choose_device
from camshaft.strategies.precision import choose_precision
from camshaft.strategies.processes.process_environment import find_process_environment

_WHERE = "Trainer"
_ALL_DEVICES = ("auto", -1, "-1")
_DDP: dict[str, dict[str, Any]] = {
    "ddp": {},
    "ddp_find_unused_parameters_true": {"find_unused_parameters": True},
    "ddp_find_unused_parameters_false": {"find_unused_parameters": False},
}
_SHARDED = ("sharded", "fsdp")
STRATEGY_NAMES = ("auto", "single_device", *_DDP, *_SHARDED)


def choose_strategy(
    strategy: Any = "auto",
    *,
    accelerator: Any = "auto",
    devices: Any = "auto",
    num_nodes: Any = 1,
    precision: Any = None,
    sync_batchnorm: bool = False,
) -> Any:
    """The strategy: an instance as it is; else that of the name on so many devices.

    "auto" is one device where nobody started several processes and no more are asked for, else DDP.

    Args:
        strategy: An instance or one of `STRATEGY_NAMES`.
        accelerator: Kind of the devices.
        devices: How many a machine, or which.
        num_nodes: How many machines.
        precision: The number format; None is the instance's own, or "32-true".
        sync_batchnorm: Whether batch normalisation is over the batches of all processes; with one it is anyway.

    Raises:
        TypeError: If a strategy object lacks something that a strategy must have.
        ValueError, RuntimeError: If the name is unknown, a strategy object is of other devices or another precision
            than the ones asked for beside it, or as the strategies themselves.
    """
    if not isinstance(strategy, str):
        check_strategy(strategy, _WHERE)
        _check_beside(strategy, accelerator, devices, num_nodes, precision)
        _check_syncs(strategy, sync_batchnorm)
        return strategy
    if strategy not in STRATEGY_NAMES:
        rule = f"one of {', '.join(map(repr, STRATEGY_NAMES))} or a strategy object"
        raise ValueError(must_be("strategy", rule, strategy, _WHERE, "Pass one of these."))
    precision = "32-true" if precision is None else precision
    if strategy == "auto":
        strategy = "single_device" if _is_for_one(accelerator, devices, num_nodes) else "ddp"
    if strategy == "single_device":
        return SingleDeviceStrategy(_only_device(accelerator, devices, num_nodes), precision=precision)
    arguments = {"accelerator": accelerator, "devices": devices, "num_nodes": num_nodes, "precision": precision}
    # these are imported when they are asked for
    if strategy in _SHARDED:
        _check_syncs(strategy, sync_batchnorm)
        return strategies.ShardedStrategy(**arguments)
    return strategies.DDPStrategy(**arguments, **_DDP[strategy], sync_batchnorm=sync_batchnorm)


def num_devices_of(strategy: Any) -> int:
    """How many processes a machine there are, each with a device."""
    return max(1, int(strategy.world_size) // num_nodes_of(strategy))


def num_nodes_of(strategy: Any) -> int:
    """How many machines there are; 1 for a strategy that does not say."""
    return int(getattr(strategy, "num_nodes", 1))


def _is_for_one(accelerator: Any, devices: Any, num_nodes: Any) -> bool:
    if num_nodes != 1 or find_process_environment().world_size > 1:
        return False
    if devices in _ALL_DEVICES:
        return choose_device(accelerator).type != "cuda" or torch.cuda.device_count() == 1
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


def _check_beside(strategy: Any, accelerator: Any, devices: Any, num_nodes: Any, precision: Any) -> None:
    """Raise `ValueError` unless what was asked for beside a strategy object is what that has."""
    action = "Leave it out, and choose it when you make the strategy."
    device, num_devices = torch.device(strategy.device), num_devices_of(strategy)
    kinds = {"auto": (device.type,), "gpu": ("cuda", "mps")}.get(str(accelerator), (accelerator,))
    if device.type not in kinds:
        rule = f"'auto' or that of the strategy object ({device.type})"
        raise ValueError(must_be("accelerator", rule, accelerator, _WHERE, action))
    is_list_of_its = (
        isinstance(devices, (list, tuple))
        and len(devices) == num_devices
        and devices[strategy.local_rank] == (device.index or 0)
    )
    if devices not in ("auto", num_devices, str(num_devices)) and not is_list_of_its:
        rule = f"'auto' or those of the strategy object ({num_devices})"
        raise ValueError(must_be("devices", rule, devices, _WHERE, action))
    if num_nodes not in (1, num_nodes_of(strategy)):
        rule = f"1 or that of the strategy object ({num_nodes_of(strategy)})"
        raise ValueError(must_be("num_nodes", rule, num_nodes, _WHERE, action))
    if precision is None:
        return
    own = getattr(getattr(strategy, "precision", None), "name", None)
    if choose_precision(precision, device.type).name != own:
        rule = f"None or that of the strategy object ({'its own' if own is None else own})"
        raise ValueError(must_be("precision", rule, precision, _WHERE, action))


def _check_syncs(strategy: Any, sync_batchnorm: bool) -> None:
    """Raise `ValueError` if batch normalisation is to be synchronised where only the strategy itself may say so."""
    if sync_batchnorm and not isinstance(strategy, SingleDeviceStrategy):
        rule = f"left out with strategy={strategy!r}"
        action = "Pass strategy=DDPStrategy(sync_batchnorm=True)."
        raise ValueError(must_be("sync_batchnorm", rule, sync_batchnorm, _WHERE, action))
