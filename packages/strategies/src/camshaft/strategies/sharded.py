"""The strategy for sharded models, by torch's `fully_shard` (FSDP2)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from types import MethodType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, get_args

import torch
from torch import Tensor, nn
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import _get_default_store  # it has no public name
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from camshaft.hooks_core.support.messages import must_be
from camshaft.hooks_core.support.optimizer_step import replace_step
from camshaft.strategies.checks import arguments_in, require
from camshaft.strategies.parallel import ParallelArguments, ParallelStrategy, broadcast_tensors, check_same_structure
from camshaft.strategies.sharding.accumulation import Accumulation, GradientWindow, groups_of
from camshaft.strategies.sharding.deferred_initialization import DeferredInitialization, shared_randomness
from camshaft.strategies.sharding.policy import (
    REPLICAS,
    SHARDS,
    Policy,
    SavedOperations,
    Sharding,
    check_unchanged,
    class_name,
    make_mesh,
    mesh_shape,
    parts_of,
    warn_of_large_unit,
)
from camshaft.strategies.sharding.state import check_parameters, module_state_for, optimizer_state_for, tensor_like
from camshaft.strategies.torch_strategy import Computing

if TYPE_CHECKING:
    from camshaft.strategies.sharding.logical_ranks import ShardedLogicalRanks

T = TypeVar("T")

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
        policy: The modules that are blocks: a class or several, a function of a module, or a minimum number of
            parameters. The default are the module's children and the members of outermost lists (`nn.ModuleList`). A
            module that shares parameters with one outside of it is no block; nor is, by default, one that holds all
            parameters, unless it is to be cast or compiled.
        data_parallel_replicas: The number of copies of the model, each sharded over its part of the ranks (hybrid
            sharding).
        tensor_parallel: The number of neighbouring ranks that compute each layer together, on the same batches. The
            hooks split the layers.
        mesh_dimensions: Further dimensions of the mesh for the hooks, before "tensor_parallel", with their numbers of
            ranks, such as `{"context_parallel": 4}`. Ranks along them have the same batches. Blocks are sharded over
            them as well, and gradients averaged: hooks that shard modules themselves take the dimension
            "parameter_shards". Blocks with parameters that the hooks distribute over one of them, such as experts, are
            sharded over "data_parallel_shards" alone.
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
        saved_operations: The operations whose results these modules keep in place of computing them again: some, such
            as `torch.ops.aten.mm.default`, or a policy for torch's `create_selective_checkpoint_contexts`.
        prefetch: The number of blocks that are gathered ahead of the one that runs, each of which takes its memory, in
            the order in which the module holds them. 0 leaves it to torch, which overlaps one.
        accumulation: What the steps do that end no accumulation window. "reduce" sums gradients over shards; with one
            optimizer, replicas exchange the sums once per window. "keep" leaves gradients whole on each rank, which
            takes the memory of all of them, and communicates none. "keep_all" keeps parameters whole as well, which
            takes their memory and spares forward's gathers; weights must not change inside of a window. A checkpoint
            that is saved inside of one first reduces what it has.
        logical_ranks: The number of ranks that the training is defined on; see `DDPStrategy`, whose bits it then has
            unless blocks are cast as a whole (see `mixed_precision`). Gradients of a window stay whole, for each
            logical rank; a block's are summed along the tree, into shards, during the window's last backward.
            Optimizers must update each element by itself, as Adam does.
        **parallel: As for `ParallelStrategy`: `accelerator`, `devices`, `num_nodes`, `precision`, `backend`, `timeout`,
            `max_restarts`, `save_asynchronously`, `copy_stream`, and `compile`, which compiles the forward of each
            sharded block.

    Attributes:
        device_mesh: The mesh, after `connect`.

    Raises:
        TypeError: If an argument has another type.
        ValueError: If numbers do not fit the world size, a policy is out of range, `logical_ranks` is not a power of
            two or not a multiple of the number of processes, or is given with `tensor_parallel`, `mesh_dimensions`,
            `accumulation` or `cpu_offload`; or as `ParallelStrategy`.
        RuntimeError: As `ParallelStrategy`.
    """

    device_mesh: DeviceMesh

    def __init__(
        self,
        *,
        policy: Policy | None = None,
        data_parallel_replicas: int = 1,
        tensor_parallel: int = 1,
        mesh_dimensions: Mapping[str, int] | None = None,
        reshard_after_forward: bool | int | None = None,
        mixed_precision: MixedPrecisionPolicy | None = None,
        cpu_offload: bool = False,
        activation_checkpointing: Policy | None = None,
        saved_operations: SavedOperations | None = None,
        prefetch: int = 0,
        accumulation: Accumulation = "reduce",
        logical_ranks: int | None = None,
        **parallel: Unpack[ParallelArguments],
    ) -> None:
        self.given_arguments = arguments_in(locals())
        super().__init__(**parallel)
        kinds = get_args(Accumulation)
        require(accumulation in kinds, "accumulation", f"one of {kinds}", accumulation, "ShardedStrategy")
        self._accumulation: Accumulation = accumulation
        self._shape = mesh_shape(self.world_size, data_parallel_replicas, tensor_parallel, mesh_dimensions or {})
        self._num_shares = self._shape[REPLICAS] * self._shape[SHARDS]
        self._sharding = Sharding(
            num_shards=self.world_size // data_parallel_replicas // tensor_parallel,
            tensor_parallel=tensor_parallel,
            policy=policy,
            reshard_after_forward=reshard_after_forward,
            mixed_precision=mixed_precision,
            cpu_offload=cpu_offload,
            activation_checkpointing=activation_checkpointing,
            saved_operations=saved_operations,
            prefetch=prefetch,
            is_compiled=self.compilation is not None,
        )
        self._is_offloaded = cpu_offload
        self._ranks: ShardedLogicalRanks | None = None
        if logical_ranks is not None:
            self._play_sharded(logical_ranks, cpu_offload)
        if self.world_size > 1:
            self.precision.agree = self._any_overflow
        self._steps: ShardedSteps | None = None
        self._window: GradientWindow | ShardedLogicalRanks | None = None
        self._num_optimizers = 0
        self._replaced: list[tuple[weakref.ref[Tensor], str]] = []
        self._broadcast_versions: dict[int, tuple[Tensor, int]] = {}
        self._restores: list[Callable[[], None]] = []

    @property
    def data_rank(self) -> int:
        """The index of this rank's share of the data; ranks that compute on the same batches have the same."""
        return self.global_rank * self._num_shares // self.world_size

    @property
    def num_data_ranks(self) -> int:
        """The number of shares of the data."""
        return self._num_shares

    def connect(self) -> None:
        """Join the process group, and form the mesh; see `ParallelStrategy.connect`. Collective."""
        before = self._group
        super().connect()
        if self._group is not None and self._group is not before:
            meshes, key = self._group.meshes, (self.device.type, *self._shape.items())
            if key not in meshes:
                meshes[key] = make_mesh(self.device.type, self._shape)
            self.device_mesh = meshes[key]

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
            parts = parts_of(module)
            yield
            check_unchanged(parts, module)
            return
        with shared_randomness(self.broadcast):
            self._broadcast_from_rank_zero(module)
            deferred = DeferredInitialization()
            with deferred:
                yield
                if deferred.has_deferred(module):
                    self._shard(module)
            local_device = torch.device("cpu") if self._is_offloaded else self.device
            deferred.materialize(module, self.device, local_device)

    def setup_module(self, module: nn.Module) -> nn.Module:
        """Shard a module with rank 0's weights, in place, unless it is sharded already. Collective.

        Returns:
            A `Computing` of the module, whose forward runs as a training or evaluation step.

        Raises:
            RuntimeError: If another module is set up already.
            ValueError: If the ranks' modules differ; or as `Sharding.apply` and `Compilation.begin`.
        """
        self._enter("setup_module")
        if self._steps is not None:
            self._check_only_module(module, self._steps.module, class_name(self._steps.module))
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
            self._steps.keeps_parameters = self._accumulation == "keep_all"
            if self._ranks is not None:
                self._ranks.begin(module)
                self._window = self._ranks
            elif self._accumulation != "reduce" or self._shape[REPLICAS] > 1:
                self._window = GradientWindow(self._steps.parts, self._accumulation, self._steps.run)
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
            if self._ranks is not None:
                from camshaft.strategies.sharding.logical_ranks import check_elementwise

                check_elementwise(optimizers)
            for optimizer in optimizers:
                self._restores.append(optimizer.register_step_post_hook(lambda *_: refresh()).remove)
                if self._window is not None:
                    self._restores.append(replace_step(optimizer, partial(_dropping, self._window), "zero_grad"))
            self._num_optimizers += len(optimizers)
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
            return
        scaled = partial(self.precision.backward, differentiate=differentiate)
        run = partial(self._steps.differentiate, backward=scaled)
        if self._logical is None:
            run(loss)
        else:
            self._logical.backward(loss, run)

    def play_logical_ranks(self, step: Callable[[int], T], switch: Callable[[int], None] | None = None) -> list[T]:
        """Raise `ValueError`: steps that update by themselves cannot take turns with sharded parameters."""
        rule = "one that optimizes for the steps, with sharded logical ranks"
        raise ValueError(must_be("loop", rule, "manual optimization", "ShardedStrategy", "Use DDPStrategy."))

    def set_gradient_sync(self, is_on: bool) -> None:
        """Set whether the backwards of the steps that follow end an accumulation window; see `accumulation`."""
        # in the flat sums that replicas keep, gradients of several optimizers would mix
        if self._window is not None and (is_on or self._window.keeps or self._num_optimizers == 1):
            self._window.set_sync(is_on)

    def collect_gradients(self) -> None:
        """Reduce gradients that are held for the end of an accumulation window, into `parameter.grad`. Collective."""
        if self._window is not None:
            self._window.finish()

    def unscale_gradients(self, optimizer: Optimizer) -> None:
        """Unscale an optimizer's gradients, reducing first what is held. Collective."""
        self.collect_gradients()
        super().unscale_gradients(optimizer)

    def clip_gradients(self, optimizer: Optimizer, clip_val: float, algorithm: str) -> None:
        """Clip an optimizer's gradients, reducing first what is held. Collective."""
        self.collect_gradients()
        super().clip_gradients(optimizer, clip_val, algorithm)

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        """Update the weights, reducing first what is held; a closure prepares its own gradients. Collective."""
        if closure is None:
            self.collect_gradients()
        return super().optimizer_step(optimizer, closure)

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
        """Return a copy of a whole or sharded gradient, placed like its parameter and scaled. Collective."""
        self._enter("place_like")
        return self._scaled(tensor_like(value, parameter), parameter)

    def load_checkpoint(self, path: str, weights_only: bool | None = None) -> dict[str, Any]:
        """Read a checkpoint, sharded tensors in parts on the CPU; see `CheckpointWriter.load`. Collective."""
        return self._checkpoints.load(path, sharded=True, weights_only=weights_only)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of the precision.

        Raises:
            ValueError: If it is `DDPStrategy`'s inside of an accumulation window: each rank has gradients of its own.
        """
        rule, action = "one of an accumulation window's end", "Resume from another, or with DDPStrategy."
        is_whole = not state.get("holds_local_gradients")
        require(is_whole, "checkpoint", rule, "gradients of each rank", "ShardedStrategy", action)
        super().load_state_dict(state)

    def teardown(self) -> None:
        """Restore the optimizers; the module stays sharded. Not collective."""
        for restore in self._restores:
            restore()
        self._restores.clear()
        self._num_optimizers = 0
        if self._window is not None:
            self._window.close()
            self._window = None
        if self._steps is not None:
            self._steps.reshard()
            self._steps = None
        super().teardown()

    def _begin_evaluation(self, stage: str) -> None:
        """Broadcast the buffers of rank 0. Collective."""
        if self._steps is not None:
            self._steps.stage = stage
            if self.world_size > 1:
                self._enter("evaluation")
                broadcast_tensors(self._steps.module.buffers())

    def _play_sharded(self, number: int, cpu_offload: bool) -> None:
        """Play this process's share of so many logical ranks; see `ShardedLogicalRanks`."""
        from camshaft.strategies.sharding.logical_ranks import ShardedLogicalRanks  # few runs have them

        for name, value, fits in (
            ("tensor_parallel or mesh_dimensions", self._shape, self._num_shares == self.world_size),
            ("accumulation", self._accumulation, self._accumulation == "reduce"),
            ("cpu_offload", cpu_offload, not cpu_offload),
        ):
            require(fits, name, "left out with logical_ranks", value, "ShardedStrategy", "Leave one of both out.")
        broadcast = self._broadcast_buffers
        ranks = ShardedLogicalRanks(number, self.global_rank, self.world_size, "ShardedStrategy", broadcast)
        self._logical = self._ranks = ranks

    def _shard(self, module: nn.Module) -> None:
        self.precision.convert_module(module)
        self._replaced = [(weakref.ref(parameter), name) for name, parameter in module.named_parameters()]
        self._sharding.apply(module, self.device_mesh, self.precision.autocast_dtype)
        if self.compilation is not None:
            # after sharding: hooks that gather parameters are outside of the graph, activation checkpointing is inside
            blocks = [part for part in module.modules() if isinstance(part, FSDPModule) and part is not module]
            self.compilation.begin(module, blocks)
        assert isinstance(module, FSDPModule)
        if self._sharding.policy is None:
            warn_of_large_unit(module)
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

    def _any_overflow(self, found: Tensor) -> bool:
        return bool(self.reduce(found.to(self.device), "max"))


def _dropping(window: GradientWindow | ShardedLogicalRanks, zero_grad: Callable[..., None]) -> Callable[..., None]:
    """Return an optimizer's `zero_grad` that also drops what is held for the end of an accumulation window."""

    def run(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        window.drop(parameter for group in optimizer.param_groups for parameter in group["params"])
        zero_grad(*args, **kwargs)

    return run


_RUN = "_camshaft_run"
_END = "end"
_runs_begun = count()


class ShardedSteps:
    """The steps of a module that `fully_shard` was applied to.

    A step runs as the module's forward, so that parameters outside of the blocks are whole during it. After an
    evaluation step all are sharded again. The order in which a step enters the blocks is recorded, so that a rank
    without a batch can gather them in the same order. A rank that never had a batch follows rank 0, which has one
    whenever another rank has, and publishes the blocks that it enters in the first step of a stage.

    Args:
        module: The sharded module. Its parameters may have no values yet.

    Attributes:
        parts: The module and the blocks.
        run: Runs a function as the module's forward.
        keeps_parameters: Whether blocks may stay whole after a backward.
        stage: The stage of evaluation, if any. All its steps enter the same blocks in the same order.
        is_training: Whether a training step is running.
    """

    def __init__(self, module: FSDPModule) -> None:
        assert isinstance(module, nn.Module)
        self.module = module
        self.stage = "evaluation"
        self.is_training = False
        self.keeps_parameters = False
        self.run: Callable[[Callable[[], Any]], Any] = _forward_method(module)
        self.parts: list[Any] = [part for part in module.modules() if isinstance(part, FSDPModule)]
        self._blocks = [part for part in self.parts if part is not module]
        self._in_groups = _in_groups(self._blocks)
        self._enter = [_forward_method(block) for block in self._blocks]
        self._store: Store | None = None
        self._publishes = self._is_publishing = False
        self._orders: dict[str, list[int]] = {}
        self._entered: list[int] | None = None
        self._published: set[str] = set()
        self._is_initialised = self._has_failed = False
        for block_idx, block in enumerate(self._blocks):
            block.register_forward_pre_hook(partial(self._record, block_idx), prepend=True)
            _record_methods(block, partial(self._record, block_idx, block, ()))

    def begin(self, rank: int, world_size: int) -> None:
        """Prepare for a run. Collective.

        The first run gathers every parameter once, so that no memory for it is allocated in inference mode.

        Args:
            rank: This process's rank.
            world_size: Number of ranks.
        """
        # all ranks begin runs in the same order
        self._store = PrefixStore(f"camshaft/steps/{next(_runs_begun)}", _get_default_store())
        self._publishes = rank == 0 and world_size > 1
        self._orders.clear()
        self._published.clear()
        self.stage = "evaluation"
        if self._has_failed:
            self.module.reset_iter_state()
            self._has_failed = False
        if not self._is_initialised:
            with torch.inference_mode(False), torch.no_grad():
                self.run(_no_op)
                for block in self.parts:
                    block.unshard()
                    block.reshard()
            self._is_initialised = True

    def reshard(self) -> None:
        """Free gathered parameters. Not collective."""
        for part in self.parts:
            for group in groups_of(part):
                if group._all_gather_result is not None:  # gathered ahead for a step that did not come to it
                    group.wait_for_unshard()
            part.reshard()

    def train(self, step: Callable[[], T]) -> T:
        """Run a training step. Collective.

        Its backward may follow it, or be part of it through `differentiate`.
        """
        self.is_training = True
        try:
            return self.run(step)  # type: ignore[no-any-return]
        except BaseException as error:
            self._note_failure(error)
            raise
        finally:
            self.is_training = False

    def evaluate(self, step: Callable[[], T]) -> T:
        """Run an evaluation step. Collective with the steps of other ranks, or their `answer`."""
        self._entered = []
        self._is_publishing = self._publishes and self.stage not in self._published
        try:
            result = self.run(step)
            if self._is_publishing:
                self._publish(_END)
            self._orders[self.stage] = self._entered
        except BaseException as error:
            self._note_failure(error)
            raise
        finally:
            self._entered, self._is_publishing = None, False
            self._published.add(self.stage)
        self.reshard()
        return result  # type: ignore[no-any-return]

    def answer(self) -> None:
        """Gather parameters with the evaluation steps of other ranks. Collective with these."""
        known = self._orders.get(self.stage)
        with torch.no_grad():
            self.run(partial(self._enter_all, self._follow() if known is None else known))
        self.reshard()

    def differentiate(self, loss: Tensor, backward: Callable[[Tensor], None]) -> None:
        """Differentiate a loss, after a step or inside of one, and reduce gradients. Collective."""
        if not self.is_training:
            backward(loss)
            return
        # The loss passes through the module's forward, whose backward hooks reduce its own gradients.
        backward(self.run(lambda: loss))
        self.module.unshard()

    def refresh(self) -> None:
        """Gather updated parameters again, now for the rest of a training step, later for the next. Collective."""
        if self.keeps_parameters:
            self.reshard()
        if self.is_training:
            self.module.reshard()
            self.module.unshard()

    def _note_failure(self, error: BaseException) -> None:
        self._has_failed = True
        if "mixed torch.Tensor and DTensor" in str(error):
            error.add_note(
                "A sharded block's parameter is used while its forward is not running. Call the block, register the "
                "method that uses it (torch.distributed.fsdp.register_fsdp_forward_method), or pass a `policy` that "
                "leaves it to the module around it."
            )

    def _record(self, block_idx: int, block: nn.Module, args: tuple[Any, ...]) -> None:
        if self._entered is None:
            return
        if block_idx in self._in_groups and not isinstance(next(block.parameters()), DTensor):
            return  # gathered already, with another module of its group
        if self._is_publishing:
            self._publish(str(block_idx))
        self._entered.append(block_idx)

    def _publish(self, value: str) -> None:
        assert self._store is not None and self._entered is not None
        self._store.set(f"{self.stage}/{len(self._entered)}", value)

    def _follow(self) -> Iterator[int]:
        """Yield the blocks that rank 0 enters, as soon as it does."""
        assert self._store is not None
        order: list[int] = []
        while (value := self._store.get(f"{self.stage}/{len(order)}").decode()) != _END:
            order.append(int(value))
            yield order[-1]
        self._orders[self.stage] = order

    def _enter_all(self, order: Iterable[int]) -> None:
        for block_idx in order:
            if block_idx in self._in_groups:
                self._blocks[block_idx].unshard()
                self._blocks[block_idx].reshard()
            else:
                self._enter[block_idx](_no_op)


def _forward_method(module: Any) -> Callable[[Callable[[], Any]], Any]:
    """Return a function that calls another one as a sharded module's forward."""
    if _RUN not in vars(module):
        vars(module)[_RUN] = _call
        register_fsdp_forward_method(module, _RUN)
    return vars(module)[_RUN]  # type: ignore[no-any-return]


def _call(step: Callable[[], T]) -> T:
    return step()


def _no_op() -> None:
    """Do nothing; called where only the gathering is needed."""


def _in_groups(blocks: list[Any]) -> set[int]:
    """Return the indexes of modules that were sharded together with others in one call of `fully_shard`."""
    states = [id(fully_shard.state(block)) for block in blocks]  # type: ignore[attr-defined]
    return {block_idx for block_idx, state in enumerate(states) if states.count(state) > 1}


def _record_methods(block: nn.Module, record: Callable[[], None]) -> None:
    """Make registered forward methods record that the module is entered, as its forward does."""
    for name, value in list(vars(block).items()):
        if name != _RUN and isinstance(value, MethodType) and hasattr(value, "__wrapped__"):
            vars(block)[name] = _recording(value, record)


def _recording(method: Callable[..., Any], record: Callable[[], None]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        record()
        return method(*args, **kwargs)

    return run
