"""The strategy for data parallelism by torch's DistributedDataParallel: settings, wrapping, communication hooks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Unpack

import attrs
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from camshaft.hooks_core.support.messages import must_be
from camshaft.strategies.checks import arguments_in, require
from camshaft.strategies.ddp_replica import Replica, SimulatedReplication, trainable_parameters
from camshaft.strategies.parallel import ParallelArguments, ParallelStrategy, broadcast_tensors, check_same_structure

_WHERE = "DDPStrategy"
_LOCAL_GRADIENTS = "holds_local_gradients"
# Renamed in torch 2.13, which deprecates the other name.
_IS_RENAMED = "forward_sync_buffers" in inspect.signature(DistributedDataParallel.__init__).parameters
_SYNC_BUFFERS = "forward_sync_buffers" if _IS_RENAMED else "broadcast_buffers"
_WRAP_ACTION = "Return DistributedDataParallel(model, device_ids=device_ids, ...), or what the strategy makes."
_HOOK_ACTION = "Pass one of torch.distributed.algorithms.ddp_comm_hooks, or a function of these two."
# The attributes of `torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook.PowerSGDState` with past gradients.
_POWER_SGD_MEMORIES = ("error_dict", "p_memory_dict", "q_memory_dict")
_BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_BATCH_NORM_ATTRIBUTES = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked", "training")


class DDPStrategy(ParallelStrategy):
    """Average gradients over ranks that each hold the whole model, by torch's DistributedDataParallel.

    Steps with gradients enabled run inside its forward, whether they call backward themselves or not, and however
    often. Evaluation steps do not communicate. The module itself is never replaced.

    With the same global batch, training equals that on one device up to the order in which gradients are added up.
    Batch normalisation is over the batch of one rank, unless `sync_batchnorm` is set.

    Args:
        find_unused_parameters: Whether a loss may depend on some of the trainable parameters only: with several
            optimizers, or branches. It costs a walk through the graph of each step. Without it, such a loss is an
            error. None is False, unless `finds_unused_in` returns True.
        static_graph: Whether all steps use the same parameters in the same way, which allows reentrant checkpointing
            and saves the walk.
        gradient_as_bucket_view: Whether gradients are views of the communicated buckets, which saves their size in
            memory.
        bucket_cap_mb: The size of a bucket of gradients in mebibytes; one is communicated while the next is computed.
        broadcast_buffers: Whether each training step, and each evaluation, begins with the buffers of rank 0, such as
            running means. Otherwise all ranks begin with the same, and then keep their own.
        comm_hook: A communication hook of DistributedDataParallel, such as those in
            `torch.distributed.algorithms.ddp_comm_hooks`. The default averages gradients as they are.
        comm_state: The first argument of `comm_hook`. PowerSGD's memory in it is cleared when a run begins.
        sync_batchnorm: Whether batch normalisation is over the batches of all ranks, on GPUs.
        logical_ranks: The number of ranks that the training is defined on, a power of two: any number of processes that
            divides it has the same bits, if the steps of each logical rank have (the same data and random numbers, on
            the same kind of device, with as many threads). A process plays one or several: enter each by
            `enter_logical_rank`, and end the step by `leave_logical_ranks`. Gradients are summed by `tree_reduce`, with
            as much communication as without. With several in a process they take log2(their number) + 1 copies, or one
            for each within accumulation windows. None, the default, has a rank for each process.
        **parallel: As for `ParallelStrategy`: `accelerator`, `devices`, `num_nodes`, `precision`, `backend`, `timeout`,
            `max_restarts`, `save_asynchronously`, `compile` and `copy_stream`.

    Attributes:
        wrap_module: A function that makes the DistributedDataParallel in place of this strategy; it must agree with
            the arguments above that are not at their defaults. It is called for a single process, too. None, the
            default, leaves it to this strategy, which does not wrap a single process.
        finds_unused_in: A function of the module that replaces a `find_unused_parameters` of None; None, the default,
            is False for all modules.

    Raises:
        TypeError: If `comm_hook` is not a function of two arguments.
        ValueError: If `bucket_cap_mb` is not positive, or `comm_state` is given without `comm_hook`; if `logical_ranks`
            is not a power of two or not a multiple of the number of processes, or is given with `comm_hook`,
            `static_graph`, `sync_batchnorm` or without `broadcast_buffers`; or as `ParallelStrategy`.
        RuntimeError: As `ParallelStrategy`.
    """

    def __init__(
        self,
        *,
        find_unused_parameters: bool | None = None,
        static_graph: bool = False,
        gradient_as_bucket_view: bool = False,
        bucket_cap_mb: float = 25,
        broadcast_buffers: bool = True,
        comm_hook: Callable[..., Any] | None = None,
        comm_state: Any = None,
        sync_batchnorm: bool = False,
        logical_ranks: int | None = None,
        **parallel: Unpack[ParallelArguments],
    ) -> None:
        self.given_arguments = arguments_in(locals())
        self._arguments = DDPArguments(
            comm_hook=comm_hook,
            comm_state=comm_state,
            find_unused_parameters=find_unused_parameters,
            static_graph=static_graph,
            gradient_as_bucket_view=gradient_as_bucket_view,
            bucket_cap_mb=bucket_cap_mb,
            broadcast_buffers=broadcast_buffers,
        )
        super().__init__(**parallel)
        if logical_ranks is not None:
            self._check_logical(sync_batchnorm)
            self._play(logical_ranks, self._broadcast_buffers)
        if is_power_sgd(comm_state):
            self.precision.agree = self._forget_overflow
        self._sync_batchnorm = sync_batchnorm
        self._batch_norm: SynchronizedBatchNorm | None = None
        self._module: nn.Module | None = None
        self._replica: Replica | None = None
        self._is_wrap_due = False
        self._left_local_gradients = False
        self.wrap_module: WrapModule | None = None
        self.finds_unused_in: Callable[[nn.Module], bool] | None = None

    def setup_module(self, module: nn.Module) -> nn.Module:
        """Move a module to the device, in place, with the weights and buffers of rank 0. Collective.

        Returns:
            A `Computing` of the module, whose forward runs as a training or evaluation step.

        Raises:
            RuntimeError: If another module is set up already.
            ValueError: If the ranks' modules differ in parameters or buffers, or a parameter has no shape yet; if
                `sync_batchnorm` is set and there are such layers on several CPUs, where torch has none.
        """
        self._check_only_module(module, self._module, type(self._module).__qualname__)
        self._release()
        self._left_local_gradients = False
        self._enter("setup_module")
        computing = super().setup_module(module)
        self._module = module
        if self.world_size > 1:
            check_same_structure(module, self.all_gather)
            broadcast_tensors([*module.parameters(), *module.buffers()])
            if self._sync_batchnorm:
                on_cpus = self.device.type == "cpu" and any(isinstance(one, _BATCH_NORM) for one in module.modules())
                rule, action = "False on several CPUs, for which torch has none", "Leave it out, or use GPUs."
                require(not on_cpus, "sync_batchnorm", rule, True, _WHERE, action)
                self._batch_norm = SynchronizedBatchNorm(module)
        self._is_wrap_due = self.world_size > 1 or self.wrap_module is not None
        return computing

    def setup_optimizers(self, optimizers: Sequence[Optimizer]) -> list[Optimizer]:
        """Make optimizers step in this strategy's precision, by averaged gradients, and return them. Collective."""
        if self._is_wrap_due:
            self._wrap()
        return super().setup_optimizers(optimizers)

    def wrap_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return the step with averaged gradients. Collective where it is called with gradients enabled."""
        inner = super().wrap_step(step)

        def run(*args: Any, **kwargs: Any) -> Any:
            if not torch.is_grad_enabled():
                return inner(*args, **kwargs)
            if self._is_wrap_due:
                self._wrap()
            replica = self._replica
            if replica is None:
                return inner(*args, **kwargs)
            if not replica.is_plain:  # never so with logical ranks
                return replica.run(inner, args, kwargs)
            replica.is_inside = True
            try:
                return replica.ddp(inner, *args, **kwargs)
            finally:
                replica.is_inside = False

        return run

    def set_gradient_sync(self, is_on: bool) -> None:
        """Set whether the steps that follow average gradients over ranks; see `no_sync`."""
        super().set_gradient_sync(is_on)
        if self._is_wrap_due:
            self._wrap()
        if self._replica is not None:
            self._replica.set_sync(is_on and (self._logical is None or self._ends_step()))

    def _ends_step(self) -> bool:
        """Return whether the backward of the logical rank that was entered reduces the gradients of all of them."""
        logical, replica = self._logical, self._replica
        if logical is None or replica is None or len(logical.ranks) == 1:
            return True
        # DistributedDataParallel would not accept parameters that are used by others of this process alone.
        return logical.index == logical.ranks[-1] and not replica.ddp.find_unused_parameters

    def enter_logical_rank(self, index: int) -> None:
        """Make the step and the backward that follow those of a logical rank; see `LogicalRanks.enter`. Collective."""
        logical = self._logical_ranks("enter_logical_rank")
        has_left_windows = logical.has_left_windows
        logical.enter(index)
        self.set_gradient_sync(logical.syncs)
        if has_left_windows and self._replica is not None and len(logical.ranks) == 1:
            self._replica.expect_local_gradients()  # it forgot them when it averaged others

    def load_logical_gradients(self, gradients: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Continue the accumulation window whose gradients `logical_gradients` returned in rank 0."""
        super().load_logical_gradients(gradients)
        if self._is_wrap_due:
            self._wrap()
        if self._replica is not None and gradients:
            self._replica.expect_local_gradients()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients inside without communication; the first backward afterwards averages all of them."""
        outer = self._replica is None or self._replica.syncs
        self.set_gradient_sync(False)
        try:
            yield
        finally:
            self.set_gradient_sync(outer)

    def backward(self, loss: Tensor, differentiate: Callable[[Tensor], Any] | None = None) -> None:
        """Differentiate a scalar loss, after its step or inside it. Collective if gradients are averaged.

        Raises:
            RuntimeError: If trainable parameters get no gradients although `find_unused_parameters` is False.
        """
        if self._replica is None:
            super().backward(loss, differentiate)
            return
        scaled = partial(self.precision.backward, differentiate=differentiate)
        if self._logical is None:
            self._replica.backward(loss, scaled)
        else:
            self._logical.backward(loss, partial(self._replica.backward, differentiate=scaled))

    def unscale_gradients(self, optimizer: Optimizer) -> None:
        """Unscale an optimizer's gradients, averaging local ones first. Collective."""
        self._finish_gradients()
        super().unscale_gradients(optimizer)

    def clip_gradients(self, optimizer: Optimizer, clip_val: float, algorithm: str) -> None:
        """Clip an optimizer's gradients, averaging local ones first. Collective."""
        self._finish_gradients()
        super().clip_gradients(optimizer, clip_val, algorithm)

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        """Update the weights, averaging local gradients first, also those of the closure. Collective."""
        if closure is None:
            self._finish_gradients()
            return optimizer.step()

        def finishing() -> Any:
            loss = closure()
            self._finish_gradients()
            return loss

        return optimizer.step(closure=finishing)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the precision and, only if true, that gradients are still local to their ranks."""
        replica = self._replica
        has_local = self._left_local_gradients if replica is None else replica.holds_local_gradients
        has_local = has_local and self._logical is None  # whose state is the same on any number of processes
        return super().state_dict() | ({_LOCAL_GRADIENTS: True} if has_local else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state; the caller restores local gradients before the next step."""
        super().load_state_dict({key: value for key, value in state.items() if key != _LOCAL_GRADIENTS})
        if state.get(_LOCAL_GRADIENTS):
            if self._is_wrap_due:
                self._wrap()
            if self._replica is not None:
                self._replica.expect_local_gradients()

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Wrap the module anew, at an epoch's first batch, if other parameters are trainable now. Collective."""
        if batch_idx == 0 and self._module is not None and self.world_size > 1:
            known = [] if self._replica is None else self._replica.trainable
            now = trainable_parameters(self._module)
            if len(known) != len(now) or any(one is not other for one, other in zip(known, now, strict=True)):
                self._wrap()

    def teardown(self) -> None:
        """Restore the module and the optimizers. Not collective."""
        self._release()
        self._module = None
        super().teardown()

    def _wrap(self) -> None:
        """Wrap the module such that the gradients of its trainable parameters are averaged."""
        assert self._module is not None
        is_simulated = self._enter("DistributedDataParallel").is_simulated
        self._is_wrap_due = False
        known, self._replica = self._replica, None
        if known is not None:
            known.close()
        if trainable_parameters(self._module):
            is_manual = getattr(self._module, "automatic_optimization", True) is False
            arguments = self._arguments.for_module(self._module, self.finds_unused_in)
            logical = self._logical
            if logical is not None:
                rule, action = "None with logical_ranks", "Leave one of both out."
                require(self.wrap_module is None, "wrap_module", rule, self.wrap_module, _WHERE, action)
                from camshaft.strategies.tree import TreeHook  # few runs have them

                hook = TreeHook(logical.number, logical.merge)
                arguments = attrs.evolve(arguments, comm_hook=hook, broadcast_buffers=False)
            # torch broadcasts no quantised parameters, which `setup_module` has broadcast in parts.
            is_dense = not any(map(is_traceable_wrapper_subclass, self._module.parameters()))
            wrap = partial(arguments.wrap, broadcasts_weights=known is None and is_dense, is_simulated=is_simulated)
            custom = self.wrap_module
            # A sum of two is the same in any order, and a hook with a memory must see real gradients only.
            # Sums along a tree are the same in any layout.
            is_alone = custom is None and logical is None
            settles = self.world_size > 2 and self._arguments.comm_state is None and is_alone and not is_simulated
            if custom is not None:
                wrap = partial(custom_wrap, custom, wrap, self._arguments, self.device)
            self._replica = Replica(
                self._module,
                wrap,
                is_manual=is_manual,
                is_logical=logical is not None,
                settles=settles,
            )

    def _finish_gradients(self) -> None:
        if self._logical is not None and self._logical.turns is not None:
            return  # they are averages
        replica = self._replica
        if replica is not None:
            if replica.holds_local_gradients and replica.syncs:
                replica.average()
            replica.check_unused()
        if self._logical is not None:
            self._logical.finish()

    def _begin_evaluation(self, stage: str) -> None:
        """Broadcast the buffers of rank 0. Collective."""
        if self._module is None or self.world_size == 1:
            return
        replica = self._replica if self._logical is None else None
        if self._arguments.broadcast_buffers if replica is None else syncs_buffers(replica.ddp):
            self._enter("evaluation")
            broadcast_tensors(self._module.buffers())

    def _check_logical(self, sync_batchnorm: bool) -> None:
        """Raise `ValueError` for arguments with which a process would compute something else than the others."""
        for name, value, fits in (
            ("comm_hook", self._arguments.comm_hook, self._arguments.comm_hook is None),
            ("static_graph", True, not self._arguments.static_graph),
            ("sync_batchnorm", True, not sync_batchnorm),
            ("broadcast_buffers", False, self._arguments.broadcast_buffers),
        ):
            require(fits, name, "left out with logical_ranks", value, _WHERE, "Leave one of both out.")

    def _forget_overflow(self, found: Tensor) -> bool:
        """Clear PowerSGD's memory after an overflow. All ranks have the same gradients, so they agree already."""
        if has_overflowed := bool(found):
            forget_gradients(self._arguments.comm_state)
        return has_overflowed

    def _release(self) -> None:
        if self._replica is not None:
            self._left_local_gradients = self._replica.holds_local_gradients  # a finished run may still be saved
            self._replica.close()
            self._replica = None
        if self._batch_norm is not None:
            self._batch_norm.revert()
            self._batch_norm = None
        self._is_wrap_due = False


def _validate_hook(arguments: DDPArguments, attribute: Any, hook: Any) -> None:
    """Raise `TypeError` unless a hook is None or can be called with a state and a bucket."""
    if hook is None:
        return
    try:
        inspect.signature(hook).bind(None, None)
    except TypeError as error:  # also of `inspect.signature`, for what cannot be called
        raise TypeError(must_be("comm_hook", "a function of (state, bucket)", hook, _WHERE, _HOOK_ACTION)) from error
    except ValueError:
        return  # written in C: its signature is not known


def _validate_state(arguments: DDPArguments, attribute: Any, state: Any) -> None:
    """Raise `ValueError` for a state without a hook."""
    rule, fits = "None if there is no `comm_hook`", state is None or arguments.comm_hook is not None
    require(fits, "comm_state", rule, state, _WHERE, "Pass the hook that it belongs to.")


def _validate_bucket(arguments: DDPArguments, attribute: Any, value: Any) -> None:
    """Raise `ValueError` unless a size is positive."""
    is_valid = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    require(is_valid, "bucket_cap_mb", "a positive number of mebibytes", value, _WHERE)


@attrs.frozen(kw_only=True)
class DDPArguments:
    """The arguments of `DDPStrategy` that are DistributedDataParallel's, under the same names.

    Raises:
        TypeError: If `comm_hook` is not a function of two arguments.
        ValueError: If `bucket_cap_mb` is not positive, or `comm_state` is given without `comm_hook`.
    """

    comm_hook: Callable[..., Any] | None = attrs.field(default=None, validator=_validate_hook)
    comm_state: Any = attrs.field(default=None, validator=_validate_state)
    find_unused_parameters: bool | None = None
    static_graph: bool = False
    gradient_as_bucket_view: bool = False
    bucket_cap_mb: float = attrs.field(default=25, validator=_validate_bucket)
    broadcast_buffers: bool = True

    def for_module(self, module: nn.Module, finds_unused_in: Callable[[nn.Module], bool] | None) -> DDPArguments:
        """Return the arguments for a module, with `find_unused_parameters` by `finds_unused_in` where it is None."""
        if self.find_unused_parameters is not None or self.static_graph or finds_unused_in is None:
            return self
        return attrs.evolve(self, find_unused_parameters=finds_unused_in(module))

    def wrap(self, module: nn.Module, *, broadcasts_weights: bool, is_simulated: bool = False) -> Any:
        """Wrap a module. Collective.

        Args:
            broadcasts_weights: Whether all ranks get rank 0's weights and buffers, or have them already.
            is_simulated: Whether there are no other ranks; then there is no communication hook.

        Returns:
            The DistributedDataParallel, or a `SimulatedReplication`.
        """
        arguments: dict[str, Any] = {} if self.broadcast_buffers else {_SYNC_BUFFERS: False}
        if is_simulated:
            arguments |= {name: self.broadcast_buffers for name in ("broadcast_buffers", _SYNC_BUFFERS)}
        ddp: Any = (SimulatedReplication if is_simulated else DistributedDataParallel)(
            module,
            find_unused_parameters=bool(self.find_unused_parameters),
            static_graph=self.static_graph,
            gradient_as_bucket_view=self.gradient_as_bucket_view,
            bucket_cap_mb=self.bucket_cap_mb,
            init_sync=broadcasts_weights,
            **arguments,
        )
        if self.comm_hook is not None and not is_simulated:
            register_communication_hook(ddp, self.comm_hook, self.comm_state)
        return ddp

    def check_agrees(self, ddp: DistributedDataParallel) -> None:
        """Raise `ValueError` if a custom DistributedDataParallel contradicts an argument that is not at its default."""
        found = {
            "find_unused_parameters": ddp.find_unused_parameters,
            "static_graph": ddp.static_graph,
            "gradient_as_bucket_view": ddp.gradient_as_bucket_view,
            "bucket_cap_mb": ddp.bucket_bytes_cap / 2**20,
            "broadcast_buffers": syncs_buffers(ddp),
        }
        defaults = DDPArguments()
        for name, value in found.items():
            given, rule = getattr(self, name), f"{value!r}, as `wrap_module` of the strategy sets it, or left out"
            fits = given in (getattr(defaults, name), value)
            require(fits, name, rule, given, _WHERE, "Set it in one of both places.")


def syncs_buffers(ddp: DistributedDataParallel) -> bool:
    """Return whether each training step begins with the buffers of rank 0."""
    return bool(getattr(ddp, _SYNC_BUFFERS))


WrapModule = Callable[[Callable[[nn.Module], nn.Module], nn.Module, list[int] | None], nn.Module]
"""A function that makes the DistributedDataParallel of a module in place of a strategy, on every rank.

It is called with the strategy's own function, the module, whose forward runs the steps, and a list with the index of
this rank's GPU, None on a CPU.
"""


def custom_wrap(
    wrap: WrapModule,
    default: Callable[[nn.Module], DistributedDataParallel],
    arguments: DDPArguments,
    device: torch.device,
    steps: nn.Module,
) -> DistributedDataParallel:
    """Wrap a module by a custom function. Collective.

    Args:
        default: The strategy's own function.
        arguments: The arguments of the strategy. The result must agree with those that are not at their defaults; the
            communication hook is registered on it.
        device: The module's device.

    Raises:
        TypeError: If the result is not a DistributedDataParallel, or its forward does not call the module's.
        ValueError: If it wraps another module, or contradicts the arguments.
        Exception: Any error of `wrap`.
    """
    by_default: list[nn.Module] = []

    def wrap_by_default(module: nn.Module) -> nn.Module:
        by_default.append(default(module))
        return by_default[-1]

    device_ids = None if device.index is None or device.type == "cpu" else [device.index]
    ddp = wrap(wrap_by_default, steps, device_ids)
    where = getattr(wrap, "__qualname__", type(wrap).__qualname__)
    if not isinstance(ddp, DistributedDataParallel):
        rule = "a torch.nn.parallel.DistributedDataParallel"
        raise TypeError(must_be("return value", rule, type(ddp), where, _WRAP_ACTION))
    rule = "a DistributedDataParallel of its argument `model`, whose forward runs the steps"
    require(ddp.module is steps, "return value", rule, type(ddp.module), where, _WRAP_ACTION)
    _check_forward(ddp, steps)
    if not any(ddp is one for one in by_default):
        arguments.check_agrees(ddp)
        if arguments.comm_hook is not None:
            register_communication_hook(ddp, arguments.comm_hook, arguments.comm_state)
    return ddp


def _check_forward(ddp: DistributedDataParallel, steps: nn.Module) -> None:
    """Raise `TypeError` if a subclass's forward does not pass its arguments on to the module's."""
    if type(ddp).forward is DistributedDataParallel.forward:
        return
    expected, found = object(), None
    reason: Exception | None = None
    syncs, ddp.require_forward_param_sync = ddp.require_forward_param_sync, False
    try:
        with torch.no_grad():
            found = ddp(lambda: expected)
    except Exception as error:
        reason = error
    finally:
        ddp.require_forward_param_sync = syncs
    if found is not expected:
        rule = f"one that passes its arguments on to the forward of `module` ({type(steps).__name__}), as super's does"
        action = "Leave the forward out: DistributedDataParallel's own runs the step."
        raise TypeError(must_be("forward", rule, type(ddp).forward, type(ddp).__qualname__, action)) from reason


def register_communication_hook(ddp: DistributedDataParallel, hook: Callable[..., Any], state: Any) -> None:
    """Register a communication hook, whose state forgets the gradients of other modules.

    Args:
        ddp: The wrapped module, which has no hook yet.
        hook: A function of a state and a `torch.distributed.GradBucket`, which returns a future tensor.
        state: Its state.
    """
    forget_gradients(state, buckets_change=True)

    # Without the hook's annotations and name: torch refuses annotations that are strings, partial functions, and
    # compression to bfloat16 without NCCL, although gloo supports it.
    def communicate(state: Any, bucket: Any) -> Any:
        return hook(state, bucket)

    communicate.__annotations__.clear()
    ddp.register_comm_hook(state, communicate)


def forget_gradients(state: Any, *, buckets_change: bool = False) -> None:
    """Clear the past gradients in PowerSGD's state; other states stay as they are.

    An overflow would stay in them for ever, and they do not fit other buckets.

    Args:
        state: The state of a hook.
        buckets_change: Whether the buckets are about to change; PowerSGD then counts its iterations from 0 again.
    """
    if not is_power_sgd(state):
        return
    for memory in _POWER_SGD_MEMORIES:
        getattr(state, memory).clear()
    if buckets_change:
        state.iter = 0


def is_power_sgd(state: Any) -> bool:
    """Return whether a hook's state is PowerSGD's."""
    return all(hasattr(state, name) for name in (*_POWER_SGD_MEMORIES, "iter"))


class SynchronizedBatchNorm:
    """A replacement of the batch normalisation layers in a module by `torch.nn.SyncBatchNorm`, until `revert`.

    Parameters and buffers are shared, so names in checkpoints and parameters in optimizers stay the same.

    Args:
        module: The module, on its device.

    Raises:
        ValueError: If the module itself is such a layer.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        every_name = module.named_modules(remove_duplicate=False)
        self._originals = {name: layer for name, layer in every_name if isinstance(layer, _BATCH_NORM)}
        kind, action = type(module).__name__, "Wrap it in an nn.Sequential."
        rule = "a module that contains its batch normalisation layers, for sync_batchnorm=True"
        require("" not in self._originals, "module", rule, kind, "setup_module", action)
        convert: Callable[[nn.Module], nn.Module] = nn.SyncBatchNorm.convert_sync_batchnorm
        converted = {id(layer): convert(layer) for layer in self._originals.values()}
        for name, layer in self._originals.items():
            module.set_submodule(name, converted[id(layer)])

    def revert(self) -> None:
        """Put the layers back, with their current parameters and buffers."""
        for name, layer in self._originals.items():
            converted = self._module.get_submodule(name)
            for attribute in _BATCH_NORM_ATTRIBUTES:
                setattr(layer, attribute, getattr(converted, attribute))
            self._module.set_submodule(name, layer)
        self._originals.clear()
