"""`FSDPStrategy` with the arguments of Lightning's, on torch's `fully_shard`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar

from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy, transformer_auto_wrap_policy

from camshaft.compat.names.plugins.overrides import is_overridden
from camshaft.compat.names.plugins.registries import StrategyRegistry
from camshaft.compat.names.plugins.strategies import ParallelStrategy
from camshaft.compat.names.stand_ins import same_as
from camshaft.compat.names.table import uncalled
from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.strategies import ShardedStrategy as _ShardedStrategy

_RESHARDS = {"FULL_SHARD": None, "HYBRID_SHARD": None, "SHARD_GRAD_OP": False, "_HYBRID_SHARD_ZERO2": False}
_TODAY = "Pass `camshaft.strategies.ShardedStrategy(...)`, which has"
_WITHOUT_EFFECT = (
    *("use_orig_params", "limit_all_gathers", "backward_prefetch"),
    *("sync_module_states", "device_id"),
)
"""Arguments of torch's FullyShardedDataParallel for what `fully_shard` does by itself."""


class FSDPStrategy(ParallelStrategy, _ShardedStrategy):  # type: ignore[misc]
    """`camshaft.strategies.ShardedStrategy`, whose devices and precision are the trainer's.

    Args:
        accelerator, parallel_devices, cluster_environment, checkpoint_io, precision_plugin: As in `DDPStrategy`; there
            can be no plugin that writes checkpoints.
        process_group_backend, timeout: As in `DDPStrategy`.
        cpu_offload: Whether parameters stay in the CPU's memory; a bool, or torch's `CPUOffload`.
        mixed_precision: A `torch.distributed.fsdp.MixedPrecisionPolicy`.
        auto_wrap_policy: Classes of modules, or torch's policy of classes or of a size.
        activation_checkpointing, activation_checkpointing_policy: Likewise, of modules that compute again.
        sharding_strategy: "FULL_SHARD", "SHARD_GRAD_OP" or "HYBRID_SHARD", or torch's member of that name.
        state_dict_type: Of checkpoints, which are sharded: `read_checkpoint` reads whole tensors of one.
        device_mesh: For "HYBRID_SHARD": numbers of copies, and of processes that share one.
        kwargs: Further arguments of `camshaft.strategies.ShardedStrategy`.
    """

    __stands_for__: ClassVar[type] = _ShardedStrategy
    never_called = (*ParallelStrategy.never_called, *uncalled()["plugins.FSDPStrategy"])
    writes_whole: ClassVar[bool] = False
    strategy_name: Any = "fsdp"

    def __init__(
        self,
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
    ) -> None:
        super().__init__(accelerator, parallel_devices, cluster_environment, checkpoint_io, precision_plugin)
        self._process_group_backend, self._timeout = process_group_backend, timeout
        self.cpu_offload, self.mixed_precision, self.sharding_strategy = cpu_offload, mixed_precision, sharding_strategy
        self._checkpointing = (activation_checkpointing, activation_checkpointing_policy)
        self._state_dict_type, self._mesh = state_dict_type, device_mesh
        self.kwargs: dict[str, Any] = {"auto_wrap_policy": auto_wrap_policy, **kwargs}

    mixed_precision_config: Any = same_as("mixed_precision")

    @classmethod
    def get_registered_strategies(cls) -> list[str]:
        """Return the names under which it is registered."""
        return [name for name, entry in StrategyRegistry.items() if entry["strategy"] is cls]

    def native_arguments(self) -> dict[str, Any]:
        """Return the arguments of `ShardedStrategy`.

        Raises:
            TypeError, ValueError: If an argument has no counterpart.
        """
        where, kwargs = type(self).__name__, {**self.kwargs}
        if self._checkpoint_io is not None and not is_overridden(self, "save_checkpoint"):
            rule, action = "left out, since all ranks write a checkpoint", "Override `save_checkpoint`."
            raise ValueError(must_be("checkpoint_io", rule, self._checkpoint_io, where, action))
        if self._state_dict_type == "full":
            warn_user(
                "state_dict_type='full': checkpoints are folders of all ranks. Read whole tensors by `read_checkpoint`."
            )
        dropped = [name for name in _WITHOUT_EFFECT if kwargs.pop(name, None) is not None]
        if dropped:
            warn_user(f"{where}: {', '.join(dropped)} have no effect on `fully_shard` of torch. Leave them out.")
        if self.mixed_precision is not None and not isinstance(self.mixed_precision, MixedPrecisionPolicy):
            rule, action = "a torch.distributed.fsdp.MixedPrecisionPolicy", "Pass that, or `Trainer(precision=...)`."
            raise TypeError(must_be("mixed_precision", rule, self.mixed_precision, where, action))
        classes, policy = self._checkpointing
        if classes is not None and policy is not None:
            rule, action = "left out beside `activation_checkpointing`", "Pass one of them."
            raise ValueError(must_be("activation_checkpointing_policy", rule, policy, where, action))
        return {
            **super().native_arguments(),
            "cpu_offload": bool(getattr(self.cpu_offload, "offload_params", self.cpu_offload)) or None,
            "mixed_precision": self.mixed_precision,
            "policy": _policy("auto_wrap_policy", kwargs.pop("auto_wrap_policy", None)),
            "activation_checkpointing": _policy("activation_checkpointing", classes or policy),
            "prefetch": 1 if kwargs.pop("forward_prefetch", False) else None,
            **_sharding(self.sharding_strategy, self._mesh),
            **kwargs,
        }


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


StrategyRegistry.register("fsdp", FSDPStrategy, "Sharded data parallelism")
StrategyRegistry.register("fsdp_cpu_offload", FSDPStrategy, "The same, with parameters on the CPU", cpu_offload=True)
