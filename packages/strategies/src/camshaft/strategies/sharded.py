"""The strategy for sharded models, by torch's `fully_shard` (FSDP2)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from camshaft.hooks_core.messages import must_be
from camshaft.strategies.parallel import ParallelStrategy, broadcast_tensors, check_same_structure
from camshaft.strategies.precision import Precision
from camshaft.strategies.sharding.deferred_initialization import DeferredInitialization, shared_randomness
from camshaft.strategies.sharding.policy import (
    ModelParts,
    Policy,
    Sharding,
    class_name,
    data_parallel_mesh,
    make_mesh,
    mesh_shape,
)
from camshaft.strategies.sharding.state import check_parameters, module_state_for, optimizer_state_for, tensor_like
from camshaft.strategies.sharding.steps import ShardedSteps
from camshaft.strategies.torch_strategy import Computing

_WHERE = "ShardedStrategy"
_STEPS = "_camshaft_steps"


class ShardedStrategy(ParallelStrategy):
    """Shard parameters, gradients and optimizer state over ranks, by torch's `fully_shard` (FSDP2).

    The ranks form a mesh, `device_mesh`, with the dimensions "data_parallel_replicas", "data_parallel_shards" and
    "tensor_parallel". The module's hooks `configure_sharded_model` and `configure_model` find it as `self.device_mesh`.
    Parameters that they create take no memory until they are sharded, and then have the weights that the same seed
    gives on one device; see `DeferredInitialization`, also for its limits. Parameters that exist before have rank 0's
    values. The hooks may shard modules themselves (`fully_shard` on `self.device_mesh["data_parallel_shards"]`,
    `parallelize_module` on `self.device_mesh["tensor_parallel"]`); the policy shards the rest, and the root module
    holds the parameters outside of blocks. The hooks run in every stage, and must be idempotent.

    A block is gathered when its forward is called. The root's own parameters are whole during each of its steps;
    parameters of a block must not be used outside of it. Evaluation steps run without gradients, and those of one
    stage enter the blocks in one order. With the same global batch, training equals that on one device up to the
    order of floating-point additions; batch normalisation is over the batch of one rank.

    Args:
        accelerator: See `ParallelStrategy`; likewise `devices`, `num_nodes`, `precision`, `backend`, `timeout`,
            `max_restarts` and `save_asynchronously`.
        policy: The modules that are blocks: a class or several, a function of a module, or a minimum number of
            parameters. The default are the module's children and the members of outermost lists (`nn.ModuleList`). A
            module that shares parameters with one outside of it is no block; nor is, by default, one that holds all
            parameters, unless it is to be cast or compiled.
        data_parallel_replicas: The number of copies of the model, each sharded over its part of the ranks (hybrid
            sharding).
        tensor_parallel: The number of neighbouring ranks that compute each layer together, on the same batches. The
            hooks split the layers.
        reshard_after_forward: Whether a block's parameters are freed between forward and backward; a number keeps them
            sharded over that many ranks. The root's own parameters stay, and by default those of a block that holds
            all parameters, which backward would gather again at once.
        mixed_precision: The dtypes in which blocks are gathered, compute and reduce gradients. The default follows
            from `precision`: the dtype of autocast, to which a block's inputs are cast, with gradients reduced in
            float32.
        cpu_offload: Whether parameters, gradients and optimizer state stay in the CPU's memory. Without a GPU they
            are there anyway.
        activation_checkpointing: The modules that compute their forward again during backward, to save memory, as
            `policy`; none by default.
        compile: Whether the forward of each block is compiled; a dictionary holds arguments of `torch.compile`.

    Attributes:
        device_mesh: The mesh, after `connect`.

    Raises:
        TypeError: If an argument has another type.
        ValueError: If numbers do not fit the world size, a policy is out of range, or as `ParallelStrategy`.
        RuntimeError: As `ParallelStrategy`.
    """

    device_mesh: DeviceMesh

    def __init__(
        self,
        *,
        accelerator: str = "auto",
        devices: int | str | Sequence[int] = "auto",
        num_nodes: int = 1,
        precision: str | int | Precision = "32-true",
        backend: str | None = None,
        timeout: timedelta | float = timedelta(minutes=10),
        max_restarts: int = 0,
        save_asynchronously: bool = False,
        policy: Policy | None = None,
        data_parallel_replicas: int = 1,
        tensor_parallel: int = 1,
        reshard_after_forward: bool | int | None = None,
        mixed_precision: MixedPrecisionPolicy | None = None,
        cpu_offload: bool = False,
        activation_checkpointing: Policy | None = None,
        compile: bool | Mapping[str, Any] = False,
    ) -> None:
        super().__init__(
            accelerator=accelerator,
            devices=devices,
            num_nodes=num_nodes,
            precision=precision,
            backend=backend,
            timeout=timeout,
            max_restarts=max_restarts,
            save_asynchronously=save_asynchronously,
        )
        self._shape = mesh_shape(self.world_size, data_parallel_replicas, tensor_parallel, _WHERE)
        self._sharding = Sharding(
            where=_WHERE,
            num_shards=self._shape[1],
            tensor_parallel=tensor_parallel,
            policy=policy,
            reshard_after_forward=reshard_after_forward,
            mixed_precision=mixed_precision,
            cpu_offload=cpu_offload,
            activation_checkpointing=activation_checkpointing,
            compile=compile,
        )
        self._local_device = torch.device("cpu") if cpu_offload else self.device
        if self.world_size > 1:
            self.precision.agree = self._any_overflow
        self._steps: ShardedSteps | None = None
        self._replaced: list[tuple[weakref.ref[Tensor], str]] = []
        self._broadcast_versions: dict[int, tuple[Tensor, int]] = {}
        self._handles: list[Any] = []

    @property
    def data_rank(self) -> int:
        """The index of this rank's share of the data; ranks that compute a layer together have the same."""
        return self.global_rank // self._shape[2]

    @property
    def num_data_ranks(self) -> int:
        """The number of shares of the data."""
        return self.world_size // self._shape[2]

    def connect(self) -> None:
        """Join the process group, and form the mesh; see `ParallelStrategy.connect`. Collective."""
        before = self._group
        super().connect()
        if self._group is not before:
            self.device_mesh = make_mesh(self.device.type, self._shape)

    @contextmanager
    def model_context(self, module: nn.Module) -> Iterator[None]:
        """Defer what the hooks inside initialise, and shard the module that they build. Collective.

        Raises:
            RuntimeError: If the module is set up already, and the hooks change it.
        """
        self._enter("model_context")
        vars(module)["device_mesh"] = self.device_mesh
        if _STEPS in vars(module):
            vars(module)[_STEPS].reshard()
            parts = ModelParts(module)
            yield
            parts.check_unchanged(module)
            return
        with shared_randomness(self.broadcast):
            self._broadcast_from_rank_zero(module)
            deferred = DeferredInitialization()
            with deferred:
                yield
                if deferred.has_deferred(module):
                    self._shard(module)
            deferred.materialize(module, self.device, self._local_device)

    def setup_module(self, module: nn.Module) -> nn.Module:
        """Shard a module with rank 0's weights, in place, unless it is sharded already. Collective.

        Returns:
            A `Computing` of the module, whose forward runs as a training or evaluation step.

        Raises:
            RuntimeError: If another module is set up already.
            ValueError: If the ranks' modules differ; or as `Sharding.apply`.
        """
        self._enter("setup_module")
        if self._steps is not None and self._steps.module is not module:
            rule = f"the one that is set up ({class_name(self._steps.module)}) until `teardown`"
            action = "Make both submodules of one nn.Module, and set that up."
            raise RuntimeError(must_be("module", rule, class_name(module), f"{_WHERE}.setup_module", action))
        vars(module)["device_mesh"] = self.device_mesh
        if _STEPS not in vars(module):
            self._broadcast_from_rank_zero(module)
            self._shard(module)
        self._broadcast_versions.clear()
        for part in module.modules():
            for name, buffer in part._buffers.items():
                if buffer is not None and buffer.device != self.device:
                    part._buffers[name] = buffer.to(self.device)
        if self._steps is None:
            self._steps = vars(module)[_STEPS]
            self._steps.begin(self.global_rank, self.world_size)
        return Computing(module, self.wrap_step(module))

    def setup_optimizers(self, optimizers: Sequence[Optimizer]) -> list[Optimizer]:
        """Make optimizers step in this strategy's precision, and return them. Collective.

        Raises:
            ValueError: If one has parameters that are not the module's, such as those before sharding.
        """
        if self._steps is not None:
            self._steps.reshard()
            check_parameters(optimizers, self._steps.module, self._replaced)
            refresh = self._steps.refresh
            for optimizer in optimizers:
                self._handles.append(optimizer.register_step_post_hook(lambda *_: refresh()))
        return super().setup_optimizers(optimizers)

    def wrap_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return the step in this strategy's precision, with the root's own parameters whole during it. Collective."""
        inner = super().wrap_step(step)

        def run(*args: Any, **kwargs: Any) -> Any:
            steps = self._steps
            if steps is None:
                return inner(*args, **kwargs)
            call = partial(inner, *args, **kwargs)
            return steps.train(call) if torch.is_grad_enabled() else steps.evaluate(call)

        return run

    def idle_step(self) -> None:
        """Gather parameters for another rank's evaluation step, without a batch. Collective."""
        if self._steps is not None:
            self._steps.answer()

    def backward(self, loss: Tensor, differentiate: Callable[[Tensor], Any] | None = None) -> None:
        """Differentiate a scalar loss, after its step or inside it, and reduce gradients. Collective."""
        if self._steps is None:
            super().backward(loss, differentiate)
        else:
            self._steps.differentiate(loss, partial(super().backward, differentiate=differentiate))

    def load_module_state(self, module: nn.Module, state: Mapping[str, Any], strict: bool = True) -> None:
        """Load whole or sharded tensors into a module that was set up. Collective.

        Raises:
            RuntimeError: As `torch.nn.Module.load_state_dict` with this `strict`, if they do not fit.
        """
        self._enter("load_module_state")
        if self._steps is not None:
            self._steps.reshard()
        module.load_state_dict(module_state_for(module, state), strict=strict)

    def load_optimizer_state(self, optimizer: Optimizer, state: Mapping[str, Any]) -> None:
        """Load whole or sharded tensors into an optimizer that was set up. Collective.

        Raises:
            ValueError: As `torch.optim.Optimizer.load_state_dict`, if it has other groups.
        """
        self._enter("load_optimizer_state")
        optimizer.load_state_dict(optimizer_state_for(optimizer, state))

    def place_like(self, value: Tensor, parameter: Tensor) -> Tensor:
        """Return a copy of a whole or sharded tensor, placed like a parameter of its shape. Collective."""
        self._enter("place_like")
        return tensor_like(value, parameter)

    def load_checkpoint(self, path: str, weights_only: bool | None = None) -> dict[str, Any]:
        """Read a checkpoint, sharded tensors in parts on the CPU; see `CheckpointWriter.load`. Collective."""
        return self._checkpoints.load(path, sharded=True, weights_only=weights_only)

    def on_validation_start(self) -> None:
        """Broadcast the buffers of rank 0. Collective."""
        self._begin_stage("validate")

    def on_test_start(self) -> None:
        """Broadcast the buffers of rank 0. Collective."""
        self._begin_stage("test")

    def on_predict_start(self) -> None:
        """Broadcast the buffers of rank 0. Collective."""
        self._begin_stage("predict")

    def teardown(self) -> None:
        """Restore the optimizers; the module stays sharded. Not collective."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if self._steps is not None:
            self._steps.reshard()
            self._steps = None
        super().teardown()

    def _begin_stage(self, stage: str) -> None:
        if self._steps is not None:
            self._steps.stage = stage
            if self.world_size > 1:
                self._enter("evaluation")
                broadcast_tensors(self._steps.module.buffers())

    def _shard(self, module: nn.Module) -> None:
        self.precision.convert_module(module)
        self._replaced = [(weakref.ref(parameter), name) for name, parameter in module.named_parameters()]
        self._sharding.apply(module, data_parallel_mesh(self.device_mesh), self.precision.autocast_dtype)
        assert isinstance(module, FSDPModule)
        vars(module)[_STEPS] = ShardedSteps(module)

    def _broadcast_from_rank_zero(self, module: nn.Module) -> None:
        """Broadcast rank 0's values into whole tensors that have changed since the last broadcast."""
        if self.world_size == 1:
            return
        check_same_structure(module, self.all_gather)
        new: list[Tensor] = []
        for tensor in (*module.parameters(), *module.buffers()):
            if not isinstance(tensor, DTensor) and tensor.device.type != "meta":
                known, version = self._broadcast_versions.get(id(tensor), (None, -1))
                if known is not tensor or version != tensor._version:
                    new.append(tensor)
        broadcast_tensors(new)
        self._broadcast_versions |= {id(tensor): (tensor, tensor._version) for tensor in new}

    def _any_overflow(self, has_overflowed: bool) -> bool:
        flag = torch.tensor(float(has_overflowed), device=self.device)
        return bool(self.reduce(flag, "max"))
