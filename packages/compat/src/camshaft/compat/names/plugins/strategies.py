"""Strategies with the arguments of Lightning's, whose devices are those of the trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy, transformer_auto_wrap_policy

from camshaft.compat.arguments.later_strategy import LaterStrategy
from camshaft.compat.names.plugins.environments import RECOGNISED
from camshaft.compat.names.stand_ins import StandIn, refuse_argument
from camshaft.hooks_core.messages import must_be
from camshaft.strategies import DDPStrategy as _DDPStrategy
from camshaft.strategies import ShardedStrategy as _ShardedStrategy
from camshaft.strategies import SingleDeviceStrategy as _SingleDeviceStrategy
from camshaft.strategies.precision import Precision

_UNUSED = {True: "ddp_find_unused_parameters_true", False: "ddp_find_unused_parameters_false", None: "ddp"}


class _Named(StandIn):
    """A metaclass whose calls return a strategy's name if possible, so that the trainer chooses devices."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls.make(*args, **kwargs)  # type: ignore[attr-defined]

    def __instancecheck__(cls, instance: Any) -> bool:
        if isinstance(instance, LaterStrategy):
            return issubclass(instance.kind, cls.__dict__["__stands_for__"])
        return super().__instancecheck__(instance)


def _refuse_files(where: str, checkpoint_io: Any) -> None:
    action = "Pass a strategy of your own: see `camshaft.hooks_core.protocols`."
    refuse_argument("checkpoint_io", checkpoint_io, where, "the strategy itself writes and reads checkpoints", action)


def _precision_of(where: str, plugin: Any) -> dict[str, Any]:
    """Return the argument of a precision plugin.

    Raises:
        TypeError: If it is no precision.
    """
    if plugin is not None and not isinstance(plugin, Precision):
        action = 'Pass one of `lightning.pytorch.plugins`, or `Trainer(precision="16-mixed")`.'
        raise TypeError(must_be("precision_plugin", "a precision", plugin, where, action))
    return {} if plugin is None else {"precision": plugin}


def _parallel(
    where: str,
    *,
    accelerator: Any = None,
    parallel_devices: Any = None,
    cluster_environment: Any = None,
    checkpoint_io: Any = None,
    precision_plugin: Any = None,
    process_group_backend: str | None = None,
    timeout: timedelta | None = None,
) -> dict[str, Any]:
    """Return today's arguments of a strategy of several processes.

    Raises:
        TypeError, ValueError: If one has no counterpart.
    """
    _refuse_files(where, checkpoint_io)
    if cluster_environment is not None and type(cluster_environment) not in RECOGNISED:
        why, action = "an environment of one's own is not asked", "Set RANK, WORLD_SIZE and the like, as torchrun does."
        refuse_argument("cluster_environment", cluster_environment, where, why, action)
    given = {**_precision_of(where, precision_plugin), "backend": process_group_backend, "timeout": timeout}
    if accelerator is not None:
        given["accelerator"] = accelerator if isinstance(accelerator, str) else accelerator.name()
    if parallel_devices:
        devices = [torch.device(one) for one in parallel_devices]
        given["accelerator"] = devices[0].type
        is_cpu = devices[0].type == "cpu"
        given["devices"] = len(devices) if is_cpu else [one.index or 0 for one in devices]
    return {name: value for name, value in given.items() if value is not None}


class DDPStrategy(metaclass=_Named):
    """A value of `Trainer(strategy=...)`: a name, or for more than unused parameters a strategy in the making.

    Calling it returns "ddp", "ddp_find_unused_parameters_true" or "ddp_find_unused_parameters_false", or with further
    arguments a `LaterStrategy`. Devices and precision that are not given are those of the trainer. Subclasses are
    refused: they would override methods that are not called.
    """

    __stands_for__: ClassVar[type] = _DDPStrategy

    def __init_subclass__(cls, **kwargs: Any) -> None:
        if cls.__module__ != __name__:
            action = "Subclass the one of `camshaft.strategies`."
            raise TypeError(must_be(cls.__mro__[1].__name__, "used as it is", cls, cls.__qualname__, action))
        super().__init_subclass__(**kwargs)

    def __init__(self, *, find_unused_parameters: bool | None = None, **kwargs: Any) -> None:
        """Do nothing, as `make` is called in its place; tell parsers of a command line the arguments."""

    @classmethod
    def make(
        cls,
        accelerator: Any = None,
        parallel_devices: Any = None,
        cluster_environment: Any = None,
        checkpoint_io: Any = None,
        precision_plugin: Any = None,
        ddp_comm_state: Any = None,
        ddp_comm_hook: Callable[..., Any] | None = None,
        ddp_comm_wrapper: Callable[..., Any] | None = None,
        model_averaging_period: int | None = None,
        process_group_backend: str | None = None,
        timeout: timedelta | None = None,
        start_method: str = "popen",
        *,
        find_unused_parameters: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return the name or the strategy.

        Args:
            accelerator, parallel_devices, precision_plugin: Kind of devices, devices, precision.
            cluster_environment: One that is recognised without it.
            checkpoint_io, model_averaging_period: None.
            ddp_comm_state, ddp_comm_hook, ddp_comm_wrapper: State, hook, and a wrapper of the hook.
            process_group_backend: The backend of torch.
            timeout: How long processes wait for each other.
            start_method: "popen".
            find_unused_parameters: As today.
            kwargs: Further arguments of today.

        Raises:
            TypeError, ValueError: If an argument has no counterpart.
        """
        where = "DDPStrategy"
        action = "Average in `optimizer_step`, or leave it out."
        refuse_argument("model_averaging_period", model_averaging_period, where, "nothing averages models", action)
        why = "the script itself is started once for each process"
        refuse_argument("start_method", start_method, where, why, "Leave it out.", accepted=("popen",))
        given = _parallel(
            where,
            accelerator=accelerator,
            parallel_devices=parallel_devices,
            cluster_environment=cluster_environment,
            checkpoint_io=checkpoint_io,
            precision_plugin=precision_plugin,
            process_group_backend=process_group_backend,
            timeout=timeout,
        )
        hook = ddp_comm_hook if ddp_comm_wrapper is None else ddp_comm_wrapper(ddp_comm_hook)
        given |= {} if hook is None else {"comm_hook": hook}
        given |= {} if ddp_comm_state is None else {"comm_state": ddp_comm_state}
        given |= kwargs
        if not given:
            return _UNUSED[find_unused_parameters]
        return LaterStrategy(_DDPStrategy, {"find_unused_parameters": find_unused_parameters, **given})


class DDPPlugin(DDPStrategy):
    """`DDPStrategy` under its name up to 1.5, when it looked for unused parameters by default."""

    __stands_for__: ClassVar[type] = _DDPStrategy

    @classmethod
    def make(cls, *args: Any, find_unused_parameters: bool | None = True, **kwargs: Any) -> Any:
        """Return the name or the strategy; see `DDPStrategy`."""
        return super().make(*args, find_unused_parameters=find_unused_parameters, **kwargs)


_RESHARDS = {"FULL_SHARD": None, "HYBRID_SHARD": None, "SHARD_GRAD_OP": False, "_HYBRID_SHARD_ZERO2": False}
_TODAY = "Pass `camshaft.strategies.ShardedStrategy(...)`, which has"


class FSDPStrategy(DDPStrategy):
    """A value of `Trainer(strategy=...)`: "fsdp", or with further arguments a `ShardedStrategy` in the making."""

    __stands_for__: ClassVar[type] = _ShardedStrategy

    def __init__(self, **kwargs: Any) -> None:
        """Do nothing, as in `DDPStrategy`."""

    @classmethod
    def make(  # type: ignore[override]  # other arguments than those of the base, which is there for its refusals
        cls,
        accelerator: Any = None,
        parallel_devices: Any = None,
        cluster_environment: Any = None,
        checkpoint_io: Any = None,
        precision_plugin: Any = None,
        process_group_backend: str | None = None,
        timeout: timedelta | None = None,
        cpu_offload: Any = None,
        mixed_precision: Any = None,
        auto_wrap_policy: Any = None,
        activation_checkpointing: Any = None,
        activation_checkpointing_policy: Any = None,
        sharding_strategy: Any = "FULL_SHARD",
        state_dict_type: str | None = None,
        device_mesh: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Return the name or the strategy.

        Args:
            accelerator, parallel_devices, cluster_environment, checkpoint_io, precision_plugin, process_group_backend,
                timeout: As in `DDPStrategy`.
            cpu_offload: Whether parameters stay in the CPU's memory; a bool, or torch's `CPUOffload`.
            mixed_precision: A `torch.distributed.fsdp.MixedPrecisionPolicy`.
            auto_wrap_policy: Classes of modules, or torch's policy of classes or of a size.
            activation_checkpointing, activation_checkpointing_policy: Likewise, of modules that compute again.
            sharding_strategy: "FULL_SHARD", "SHARD_GRAD_OP" or "HYBRID_SHARD", or torch's member of that name.
            state_dict_type: "sharded": that is how it saves.
            device_mesh: For "HYBRID_SHARD": numbers of copies, and of processes that share one.
            kwargs: Further arguments of `camshaft.strategies.ShardedStrategy`.

        Raises:
            TypeError, ValueError: If an argument has no counterpart.
        """
        where = "FSDPStrategy"
        why, action = "checkpoints are saved by all ranks", "Leave it out, and read whole weights by `read_checkpoint`."
        refuse_argument("state_dict_type", state_dict_type, where, why, action, accepted=("sharded",))
        if mixed_precision is not None and not isinstance(mixed_precision, MixedPrecisionPolicy):
            action = "Pass that, or `Trainer(precision=...)`."
            rule = "a torch.distributed.fsdp.MixedPrecisionPolicy"
            raise TypeError(must_be("mixed_precision", rule, mixed_precision, where, action))
        if activation_checkpointing is not None and activation_checkpointing_policy is not None:
            rule, action = "left out beside `activation_checkpointing`", "Pass one of them."
            raise ValueError(
                must_be("activation_checkpointing_policy", rule, activation_checkpointing_policy, where, action)
            )
        checkpointing = activation_checkpointing or activation_checkpointing_policy
        given = _parallel(
            where,
            accelerator=accelerator,
            parallel_devices=parallel_devices,
            cluster_environment=cluster_environment,
            checkpoint_io=checkpoint_io,
            precision_plugin=precision_plugin,
            process_group_backend=process_group_backend,
            timeout=timeout,
        )
        further = {
            "cpu_offload": bool(getattr(cpu_offload, "offload_params", cpu_offload)) or None,
            "mixed_precision": mixed_precision,
            "policy": _policy("auto_wrap_policy", auto_wrap_policy),
            "activation_checkpointing": _policy("activation_checkpointing", checkpointing),
            **_sharding(sharding_strategy, device_mesh),
            **kwargs,
        }
        given |= {name: value for name, value in further.items() if value is not None}
        return LaterStrategy(_ShardedStrategy, given) if given else "fsdp"


def _sharding(strategy: Any, mesh: Any) -> Mapping[str, Any]:
    """Return arguments for a way of sharding.

    Raises:
        ValueError: If there is none for it.
    """
    where, name = "FSDPStrategy", getattr(strategy, "name", strategy)
    if name not in _RESHARDS:
        action = "Pass one of these, or strategy='ddp' to shard nothing."
        raise ValueError(must_be("sharding_strategy", f"one of {', '.join(_RESHARDS)}", strategy, where, action))
    is_hybrid = "HYBRID" in name
    is_pair = isinstance(mesh, tuple) and len(mesh) == 2
    if is_hybrid != is_pair or (mesh is not None and not is_pair):
        rule = "a tuple of two numbers for 'HYBRID_SHARD', and left out else"
        raise ValueError(must_be("device_mesh", rule, mesh, where, f"{_TODAY} `data_parallel_replicas`."))
    return {"data_parallel_replicas": mesh[0] if is_hybrid else None, "reshard_after_forward": _RESHARDS[name]}


def _policy(field: str, value: Any) -> Any:
    """Return classes of modules or a size, from these or from torch's policies of them.

    Raises:
        TypeError: If it is another function, whose arguments differ.
    """
    if isinstance(value, partial) and value.func in (transformer_auto_wrap_policy, size_based_auto_wrap_policy):
        found = {**dict.fromkeys(("transformer_layer_cls", "min_num_params")), **value.keywords}
        return found["transformer_layer_cls"] or found["min_num_params"] or 100_000_000  # torch's own default
    classes = getattr(value, "_module_classes", value)  # of torch's `ModuleWrapPolicy`
    if classes is size_based_auto_wrap_policy:
        return 100_000_000
    if callable(classes) and not isinstance(classes, type):
        rule = "classes of modules, or torch's policy of classes or of a size"
        raise TypeError(must_be(field, rule, value, "FSDPStrategy", f"{_TODAY} functions of a module."))
    return classes


class SingleDeviceStrategy(_SingleDeviceStrategy, metaclass=StandIn):
    """`camshaft.strategies.SingleDeviceStrategy`, on the CPU by default.

    Args:
        device: As today.
        accelerator: None, or one for devices of that kind.
        checkpoint_io: None.
        precision_plugin: A precision.
        kwargs: Today's further arguments.

    Raises:
        TypeError, ValueError: If an argument has no counterpart, or contradicts another.
    """

    __stands_for__: ClassVar[type] = _SingleDeviceStrategy

    def __init__(
        self,
        device: Any = "cpu",
        accelerator: Any = None,
        checkpoint_io: Any = None,
        precision_plugin: Any = None,
        **kwargs: Any,
    ) -> None:
        where = type(self).__name__
        _refuse_files(where, checkpoint_io)
        super().__init__(device, **{**_precision_of(where, precision_plugin), **kwargs})
        if accelerator is not None and accelerator.name() != self.device.type:
            rule, action = f"one for {self.device.type!r}, as `device` is", "Leave it out."
            raise ValueError(must_be("accelerator", rule, accelerator, where, action))
