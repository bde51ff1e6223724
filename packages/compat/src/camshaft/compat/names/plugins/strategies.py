"""Strategies under Lightning's names, and the choice of one by a trainer's arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, ClassVar

import torch
from torch import nn

from camshaft.compat.names.plugins.accelerators import Accelerator
from camshaft.compat.names.plugins.base_strategy import SingleDeviceStrategy, Strategy
from camshaft.compat.names.plugins.environments import (
    RECOGNISED,
    LightningEnvironment,
    SLURMEnvironment,
    TorchElasticEnvironment,
    set_variables,
)
from camshaft.compat.names.plugins.overrides import is_overridden
from camshaft.compat.names.plugins.registries import StrategyRegistry
from camshaft.compat.names.stand_ins import same_as, settable
from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.strategies import DDPStrategy as _DDPStrategy
from camshaft.strategies import ParallelStrategy as _ParallelStrategy
from camshaft.strategies import choose_device
from camshaft.trainer.configuration import is_for_one

_KINDS = ("cpu", "cuda", "mps")


class ParallelStrategy(Strategy, _ParallelStrategy):  # type: ignore[misc]  # it takes more arguments than the latter
    """The base class of strategies of several processes under the import names.

    Args:
        accelerator, checkpoint_io, precision_plugin: As in `Strategy`.
        parallel_devices: The devices, one for each process; None are the trainer's.
        cluster_environment: What says which process this is, if it starts the processes.
    """

    of_trainer: ClassVar[Sequence[str]] = ("accelerator", "devices", "num_nodes", "precision")

    _process_group_backend: str | None = None
    _timeout: Any = None

    def __init__(
        self,
        accelerator: Any = None,
        parallel_devices: Any = None,
        cluster_environment: Any = None,
        checkpoint_io: Any = None,
        precision_plugin: Any = None,
    ) -> None:
        super().__init__(accelerator, checkpoint_io, precision_plugin)
        self._parallel_devices, self.cluster_environment = parallel_devices, cluster_environment

    def attach(self, of_trainer: Mapping[str, Any]) -> None:
        """Choose devices and precision, and let the environment know; see `Strategy.attach`."""
        kind = self._accelerator
        if isinstance(kind, Accelerator) and kind.name() not in _KINDS and not self._parallel_devices:
            self._parallel_devices = _devices_of(kind, of_trainer)
        if self.cluster_environment is not None:
            set_variables(self.cluster_environment)
        super().attach(of_trainer)

    def complete(self) -> None:
        """Let the environment know, which is that of the launcher if there is none; see `Strategy.complete`."""
        super().complete()
        if self.cluster_environment is None:
            launchers = (TorchElasticEnvironment, SLURMEnvironment, LightningEnvironment)
            self.cluster_environment = next(kind for kind in launchers if kind.detect())()
        environment = self.cluster_environment
        environment.set_world_size(self.world_size)
        environment.set_global_rank(self.global_rank)
        if type(environment) not in RECOGNISED:
            environment.validate_settings(self.num_processes, self.num_nodes)

    def native_arguments(self) -> dict[str, Any]:
        found = {**super().native_arguments(), "backend": self._process_group_backend, "timeout": self._timeout}
        if self._accelerator is not None and not self._parallel_devices:
            found["accelerator"] = self._accelerator if isinstance(self._accelerator, str) else self._accelerator.name()
        if self._parallel_devices:
            devices = [torch.device(one) for one in self._parallel_devices]
            found["accelerator"] = devices[0].type
            is_cpu = devices[0].type == "cpu"
            found["devices"] = len(devices) if is_cpu else [one.index or 0 for one in devices]
        return found

    @settable
    def parallel_devices(self) -> list[torch.device] | None:
        """The devices of this machine's processes; None while they are the trainer's to choose."""
        if self._parallel_devices is not None or not self._is_attached:
            return self._parallel_devices  # type: ignore[no-any-return]
        kind = self.device.type
        return [torch.device(kind) if kind == "cpu" else torch.device(kind, index) for index in self.device_ids]

    @property
    def num_processes(self) -> int:
        """The number of processes of this machine."""
        return len(self.parallel_devices or ())

    @property
    def node_rank(self) -> int:
        """The index of this machine."""
        return self.global_rank // max(1, self.num_processes)

    process_group_backend: Any = same_as("_process_group_backend")  # that was asked for

    def _get_process_group_backend(self) -> str:
        """Return the backend of the processes."""
        return self._process_group_backend or ("nccl" if self.root_device.type == "cuda" else "gloo")

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Accumulate gradients inside without communication."""
        self.set_gradient_sync(False)
        try:
            yield
        finally:
            self.set_gradient_sync(True)

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """`num_replicas` and `rank`, the share of the data that this process takes."""
        return {"num_replicas": super().num_data_ranks, "rank": super().data_rank}

    @property
    def data_rank(self) -> int:
        """Index of this process among those that share the data."""
        return int(self.distributed_sampler_kwargs["rank"])

    @property
    def num_data_ranks(self) -> int:
        """Number of processes that share the data."""
        return int(self.distributed_sampler_kwargs["num_replicas"])

    def setup_environment(self) -> None:
        """Join the processes, by `setup_distributed`. Collective."""
        self.setup_distributed()

    def setup_distributed(self) -> None:
        """Join the processes. Collective."""
        self.set_world_ranks()
        super().setup_environment()

    def set_world_ranks(self) -> None:
        """Do nothing: the ranks are known."""


class DDPStrategy(ParallelStrategy, _DDPStrategy):  # type: ignore[misc]
    """`camshaft.strategies.DDPStrategy`, whose devices and precision are the trainer's.

    Args:
        accelerator, parallel_devices, cluster_environment, checkpoint_io, precision_plugin: As in `ParallelStrategy`.
        ddp_comm_state, ddp_comm_hook, ddp_comm_wrapper: State, hook, and a wrapper of the hook.
        model_averaging_period: The updates between averages of models, with a state of post-local SGD.
        process_group_backend: The backend of torch.
        timeout: How long processes wait for each other.
        start_method: How the trainer starts processes; whatever it is, it starts the script once for each.
        kwargs: Further arguments of today.
    """

    of_trainer: ClassVar[Sequence[str]] = (*ParallelStrategy.of_trainer, "sync_batchnorm")
    strategy_name: Any = "ddp"
    is_distributed: Any = True

    def __init__(
        self,
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
    ) -> None:
        super().__init__(accelerator, parallel_devices, cluster_environment, checkpoint_io, precision_plugin)
        self._ddp_comm_state, self._ddp_comm_hook = ddp_comm_state, ddp_comm_hook
        self._ddp_comm_wrapper, self._model_averaging_period = ddp_comm_wrapper, model_averaging_period
        self._process_group_backend, self._timeout, self._start_method = process_group_backend, timeout, start_method
        unused = {} if find_unused_parameters is None else {"find_unused_parameters": find_unused_parameters}
        self._ddp_kwargs: dict[str, Any] = {**unused, **kwargs}

    def attach(self, of_trainer: Mapping[str, Any]) -> None:
        """Choose devices and precision; see `Strategy.attach`."""
        super().attach(of_trainer)
        if self._start_method != "popen" and self.world_size > 1:
            warn_user(f"start_method={self._start_method!r} has no effect: each process runs the script. Leave it out.")
        if is_overridden(self, "configure_ddp") or is_overridden(self, "_setup_model"):
            self.wrap_module = self._wrap_by_override

    def native_arguments(self) -> dict[str, Any]:
        state, hook, wrapper = self._ddp_comm_state, self._ddp_comm_hook, self._ddp_comm_wrapper
        if self._model_averaging_period is not None and type(state).__name__ == "PostLocalSGDState":
            rule, action = "left out, since nothing averages models", "Average in `optimizer_step` of the module."
            where = type(self).__name__
            raise ValueError(must_be("model_averaging_period", rule, self._model_averaging_period, where, action))
        hook = wrapper(hook) if wrapper is not None and hook is not None else hook
        communication = {} if hook is None else {"comm_hook": hook, "comm_state": state}
        return {**super().native_arguments(), **communication, **self._ddp_kwargs}

    def _wrap_by_override(self, wrap: Callable[[nn.Module], nn.Module], steps: nn.Module, _: Any, /) -> Any:
        self.model, self._wrap_steps = steps, wrap
        try:
            self.configure_ddp()
        finally:
            self._wrap_steps = None
        return self.model

    _wrap_steps: Callable[[nn.Module], nn.Module] | None = None

    def configure_ddp(self) -> None:
        """Wrap the module by `_setup_model`. Collective."""
        if self._wrap_steps is not None:
            self.model = self._setup_model(self.model)

    def _setup_model(self, model: nn.Module) -> nn.Module:
        """Return the DistributedDataParallel of the module's steps. Collective."""
        return model if self._wrap_steps is None else self._wrap_steps(model)

    def _register_ddp_hooks(self) -> None:
        """Do nothing: hooks are registered when the module is wrapped."""

    def determine_ddp_device_ids(self) -> list[int] | None:
        """Return a list with the index of this rank's device; None on the CPU."""
        return None if self.root_device.type == "cpu" else [self.root_device.index]


class DDPPlugin(DDPStrategy):
    """`DDPStrategy` under its name up to 1.5, when it looked for unused parameters by default."""

    __stands_for__: ClassVar[type] = _DDPStrategy

    def __init__(self, *args: Any, find_unused_parameters: bool | None = True, **kwargs: Any) -> None:
        super().__init__(*args, find_unused_parameters=find_unused_parameters, **kwargs)


def attach_strategy(arguments: dict[str, Any], *, cluster_environment: Any = None, checkpoint_io: Any = None) -> None:
    """Give a trainer's strategy its devices, precision and plugins, in place; make it if it is a name.

    Args:
        arguments: Arguments of the trainer.
        cluster_environment, checkpoint_io: Plugins that were passed.

    Raises:
        TypeError, ValueError: As the strategy, or if it can have no plugins.
    """
    strategy, accelerator = arguments.get("strategy") or "auto", arguments.get("accelerator")
    if isinstance(accelerator, Accelerator):
        arguments["accelerator"] = accelerator.name() if accelerator.name() in _KINDS else "auto"
    if isinstance(strategy, str):
        name = strategy.lower()
        if name == "auto":
            asked = (arguments.get("accelerator"), arguments.get("devices"), arguments.get("num_nodes") or 1)
            name = "single_device" if is_for_one(*(one or "auto" for one in asked)) else "ddp"
        strategy = StrategyRegistry.get({"sharded": "fsdp"}.get(name, name))
        if name == "single_device":
            strategy = type(strategy)(_device_of(accelerator, arguments))
    if not hasattr(strategy, "attach"):
        plugin = next(one for one in (cluster_environment, checkpoint_io, accelerator) if one is not None)
        rule = f"left out with {type(strategy).__name__}, which has no place for it"
        action = "Pass a strategy of `lightning.pytorch.strategies`."
        raise ValueError(must_be("plugins", rule, plugin, "Trainer", action))
    given = {"cluster_environment": cluster_environment, "checkpoint_io": checkpoint_io}
    for name, plugin in given.items():
        if plugin is not None:
            setattr(strategy, name, plugin)
    if isinstance(accelerator, Accelerator):
        strategy.accelerator = accelerator
    strategy.attach(arguments)
    arguments["strategy"] = strategy
    if isinstance(strategy, _DDPStrategy):
        arguments.pop("sync_batchnorm", None)


def _devices_of(accelerator: Accelerator, arguments: Mapping[str, Any]) -> list[torch.device]:
    devices = arguments.get("devices") or "auto"
    asked = accelerator.auto_device_count() if devices in ("auto", -1, "-1") else devices
    return list(accelerator.get_parallel_devices(accelerator.parse_devices(asked)))


def _device_of(accelerator: Any, arguments: Mapping[str, Any]) -> torch.device:
    if isinstance(accelerator, Accelerator):
        return _devices_of(accelerator, arguments)[0]
    devices = arguments.get("devices")
    return choose_device(accelerator or "auto", devices[0] if isinstance(devices, (list, tuple)) else 0)


StrategyRegistry.register("single_device", SingleDeviceStrategy, "One process on one device")
StrategyRegistry.register("ddp", DDPStrategy, "Data parallelism, a process for each device")
StrategyRegistry.register("ddp_find_unused_parameters_true", DDPStrategy, "The same", find_unused_parameters=True)
StrategyRegistry.register("ddp_find_unused_parameters_false", DDPStrategy, "The same", find_unused_parameters=False)
