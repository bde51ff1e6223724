"""Data parallelism: every process has the whole model and a share of each batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

import attrs
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from camshaft.hooks_core.messages import must_be
from camshaft.strategies.ddp_replica import Replica, trainable_parameters
from camshaft.strategies.parallel import ParallelStrategy, broadcast_tensors, check_same_structure
from camshaft.strategies.precision import Precision

_WHERE = "DDPStrategy"
_LOCAL_GRADIENTS = "holds_local_gradients"


class DDPStrategy(ParallelStrategy):
    """Average gradients over processes that each have the whole model, by torch's DistributedDataParallel.

    Steps that run with gradients enabled run inside of its forward, whoever calls backward, and however often. Steps
    of evaluation communicate nothing. The module itself is never replaced.

    With the same global batch, training equals that on one device up to the order in which gradients are added up.
    Batch normalisation and its like see the batch of their process; see `sync_batchnorm`.

    Args:
        accelerator: As `ParallelStrategy` has it; likewise `devices`, `num_nodes`, `precision`, `backend`, `timeout`,
            `max_restarts` and `save_asynchronously`.
        find_unused_parameters: Whether a loss may depend on some of the trainable parameters only: with several
            optimizers, or branches. It costs a walk through the graph of each step. Where a loss does that without it,
            an error says so. None is False, unless `finds_unused_in` says otherwise.
        static_graph: Whether all steps use the same parameters in the same way, which allows for reentrant
            checkpointing and saves the walk. What the first step uses, the others must.
        gradient_as_bucket_view: Whether gradients are views of what is communicated, which saves their size in memory.
        bucket_cap_mb: How many mebibytes of gradients are communicated together, while others are computed.
        broadcast_buffers: Whether each training step begins with the buffers of the first process, such as running
            means, and evaluation does. Else each process keeps its own, once all have begun with the same.
        comm_hook: How gradients are exchanged: a communication hook of DistributedDataParallel, such as those in
            `torch.distributed.algorithms.ddp_comm_hooks`. The default averages them as they are.
        comm_state: The first argument of `comm_hook`. What PowerSGD remembers in it does not outlast a run.
        sync_batchnorm: Whether batch normalisation is over the batches of all processes, on GPUs.

    Attributes:
        wrap_module: Makes the DistributedDataParallel in place of this strategy, for every training that is set up; it
            must agree with all arguments above that are given. None, the default, leaves it to this strategy.
        finds_unused_in: Says of a module what `find_unused_parameters` is where that is None; None, the default, says
            False of all.

    Raises:
        TypeError: If `comm_hook` is no function of two arguments.
        ValueError: If `bucket_cap_mb` is not positive, there is a `comm_state` without a `comm_hook`, or
            `sync_batchnorm` is asked for on CPUs, for which torch has none; or as `ParallelStrategy` raises it.
        RuntimeError: As `ParallelStrategy` raises it.
    """

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
        find_unused_parameters: bool | None = None,
        static_graph: bool = False,
        gradient_as_bucket_view: bool = False,
        bucket_cap_mb: float = 25,
        broadcast_buffers: bool = True,
        comm_hook: Callable[..., Any] | None = None,
        comm_state: Any = None,
        sync_batchnorm: bool = False,
    ) -> None:
        check_communication_hook(comm_hook, comm_state, _WHERE)
        if isinstance(bucket_cap_mb, bool) or not isinstance(bucket_cap_mb, int | float) or not bucket_cap_mb > 0:
            rule = "a positive number of mebibytes"
            raise ValueError(must_be("bucket_cap_mb", rule, bucket_cap_mb, _WHERE, "Pass such a number."))
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
        if sync_batchnorm and self.device.type == "cpu":
            rule = "False on CPUs, for which torch.nn.SyncBatchNorm computes nothing"
            raise ValueError(must_be("sync_batchnorm", rule, True, _WHERE, "Leave it out, or use GPUs."))
        self._arguments = DDPArguments(
            find_unused_parameters=find_unused_parameters,
            static_graph=static_graph,
            gradient_as_bucket_view=gradient_as_bucket_view,
            bucket_cap_mb=bucket_cap_mb,
            broadcast_buffers=broadcast_buffers,
            comm_hook=comm_hook,
            comm_state=comm_state,
        )
        if is_power_sgd(comm_state):
            self.precision.agree = self._after_overflow
        self._sync_batchnorm = sync_batchnorm
        self._batch_norm: SynchronizedBatchNorm | None = None
        self._module: nn.Module | None = None
        self._replica: Replica | None = None
        self._is_wrap_due = False
        self._left_local_gradients = False
        self.wrap_module: WrapModule | None = None
        self.finds_unused_in: Callable[[nn.Module], bool] | None = None

    def setup_module(self, module: nn.Module) -> nn.Module:
        """Move a module to the device, in place, with the weights and buffers of the first process. Collective.

        Returns:
            Another module, whose forward is the module's as part of a training or evaluation step.

        Raises:
            RuntimeError: If another module is set up already.
            ValueError: If the processes' modules do not have the same parameters and buffers, or some have no shape.
        """
        if self._module is not None and self._module is not module:
            rule = f"the one that is set up ({type(self._module).__qualname__}) until `teardown`"
            action = "Make both submodules of one nn.Module, and set that up."
            raise RuntimeError(must_be("module", rule, type(module).__qualname__, f"{_WHERE}.setup_module", action))
        self._release()
        self._left_local_gradients = False
        self._enter("setup_module")
        computing = super().setup_module(module)
        self._module = module
        if self.world_size > 1:
            check_same_structure(module, self.all_gather)
            broadcast_tensors([*module.parameters(), *module.buffers()])
            if self._sync_batchnorm:
                self._batch_norm = SynchronizedBatchNorm(module)
            self._is_wrap_due = True
        return computing

    def setup_optimizers(self, optimizers: Sequence[Optimizer]) -> list[Optimizer]:
        """Make optimizers step in this strategy's precision, and gradients be averaged. Collective. Returns them."""
        if self._is_wrap_due:
            self._wrap()
        return super().setup_optimizers(optimizers)

    def wrap_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """The step, whose gradients are averaged if it is called with gradients enabled. Collective then."""
        inner = super().wrap_step(step)

        def run(*args: Any, **kwargs: Any) -> Any:
            if not torch.is_grad_enabled():
                return inner(*args, **kwargs)
            if self._is_wrap_due:
                self._wrap()
            replica = self._replica
            if replica is None:
                return inner(*args, **kwargs)
            if not replica.is_plain:
                return replica.run(inner, args, kwargs)
            replica.is_inside = True
            try:
                return replica.ddp(inner, *args, **kwargs)
            finally:
                replica.is_inside = False

        return run

    def set_gradient_sync(self, is_on: bool) -> None:
        """Say whether the steps that follow end with the same gradients on all processes; see `no_sync`."""
        if self._is_wrap_due:
            self._wrap()
        if self._replica is not None:
            self._replica.set_sync(is_on)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Leave gradients as each process computed them: those of steps, and of backwards inside of steps, in it.

        The first backward after it averages them all, together with its own.
        """
        outer = self._replica is None or self._replica.syncs
        self.set_gradient_sync(False)
        try:
            yield
        finally:
            self.set_gradient_sync(outer)

    def backward(self, loss: Tensor, differentiate: Callable[[Tensor], Any] | None = None) -> None:
        """Differentiate a scalar loss, after its step or inside of it. Collective if gradients are averaged.

        Raises:
            RuntimeError: If it leaves trainable parameters without gradients, which `find_unused_parameters` forbids.
        """
        if self._replica is None:
            self.precision.backward(loss, differentiate)
        else:
            self._replica.backward(loss, partial(self.precision.backward, differentiate=differentiate))

    def unscale_gradients(self, optimizer: Optimizer) -> None:
        """Give an optimizer's gradients their true size. Collective: gradients that still wait are averaged."""
        self._finish_gradients()
        super().unscale_gradients(optimizer)

    def clip_gradients(self, optimizer: Optimizer, clip_val: float, algorithm: str) -> None:
        """Clip an optimizer's gradients. Collective: gradients that still wait are averaged."""
        self._finish_gradients()
        super().clip_gradients(optimizer, clip_val, algorithm)

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        """Update the weights. Collective: gradients that still wait, also after the closure, are averaged."""
        if closure is None:
            self._finish_gradients()
            return optimizer.step()

        def finishing() -> Any:
            loss = closure()
            self._finish_gradients()
            return loss

        return optimizer.step(closure=finishing)

    def state_dict(self) -> dict[str, Any]:
        """Return what the precision has learned and, only if so, that gradients wait which were not averaged."""
        replica = self._replica
        waits = self._left_local_gradients if replica is None else replica.holds_local_gradients
        return super().state_dict() | ({_LOCAL_GRADIENTS: True} if waits else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with it; gradients that were not averaged have to be restored before the next step."""
        super().load_state_dict({key: value for key, value in state.items() if key != _LOCAL_GRADIENTS})
        if state.get(_LOCAL_GRADIENTS):
            if self._is_wrap_due:
                self._wrap()
            if self._replica is not None:
                self._replica.expect_local_gradients()

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """At an epoch's first batch: average the gradients of what is trainable now. Collective."""
        if batch_idx == 0 and self._module is not None and self.world_size > 1:
            known = [] if self._replica is None else self._replica.trainable
            now = trainable_parameters(self._module)
            if len(known) != len(now) or any(one is not other for one, other in zip(known, now, strict=True)):
                self._wrap()

    def on_validation_start(self) -> None:
        """Let all processes validate with the buffers of the first. Collective."""
        self._broadcast_buffers()

    def on_test_start(self) -> None:
        """Let all processes test with the buffers of the first. Collective."""
        self._broadcast_buffers()

    def on_predict_start(self) -> None:
        """Let all processes predict with the buffers of the first. Collective."""
        self._broadcast_buffers()

    def teardown(self) -> None:
        """Leave the module and the optimizers as they were. Not collective."""
        self._release()
        self._module = None
        super().teardown()

    def _wrap(self) -> None:
        """Average the gradients of what is trainable now."""
        assert self._module is not None
        self._enter("DistributedDataParallel")
        self._is_wrap_due = False
        known, self._replica = self._replica, None
        if known is not None:
            known.close()
        if trainable_parameters(self._module):
            is_manual = getattr(self._module, "automatic_optimization", True) is False
            arguments = self._arguments.for_module(self._module, self.finds_unused_in)
            wrap = partial(arguments.wrap, broadcasts_weights=known is None)
            own = self.wrap_module
            # a sum of two is the same in any order, and a hook that remembers gradients is to see real ones only
            settles = self.world_size > 2 and self._arguments.comm_state is None and own is None
            if own is not None:
                wrap = partial(wrap_by, own, wrap, self._arguments, self.device)
            self._replica = Replica(self._module, wrap, is_manual=is_manual, settles=settles)

    def _finish_gradients(self) -> None:
        replica = self._replica
        if replica is not None:
            if replica.holds_local_gradients and replica.syncs:
                replica.average()
            replica.check_unused()

    def _broadcast_buffers(self) -> None:
        if self._module is not None and self.world_size > 1 and self._syncs_buffers():
            self._enter("evaluation")
            broadcast_tensors(self._module.buffers())

    def _syncs_buffers(self) -> bool:
        return self._arguments.broadcast_buffers if self._replica is None else syncs_buffers(self._replica.ddp)

    def _after_overflow(self, has_overflowed: bool) -> bool:
        """All processes have the same gradients, so they agree; what PowerSGD remembers has overflowed as well."""
        if has_overflowed:
            forget_gradients(self._arguments.comm_state)
        return has_overflowed

    def _release(self) -> None:
        if self._replica is not None:
            self._left_local_gradients = self._replica.holds_local_gradients  # a finished run may be saved as well
            self._replica.close()
            self._replica = None
        if self._batch_norm is not None:
            self._batch_norm.revert()
            self._batch_norm = None
        self._is_wrap_due = False


@attrs.frozen(kw_only=True)
class DDPArguments:
    """The arguments of `DDPStrategy` that are DistributedDataParallel's, under the same names."""

    find_unused_parameters: bool | None = None
    static_graph: bool = False
    gradient_as_bucket_view: bool = False
    bucket_cap_mb: float = 25
    broadcast_buffers: bool = True
    comm_hook: Callable[..., Any] | None = None
    comm_state: Any = None

    def for_module(self, module: nn.Module, finds_unused_in: Callable[[nn.Module], bool] | None) -> DDPArguments:
        """Return the same with what is right for a module, where nobody said whether to look for unused parameters."""
        if self.find_unused_parameters is not None or self.static_graph or finds_unused_in is None:
            return self
        return attrs.evolve(self, find_unused_parameters=finds_unused_in(module))

    def wrap(self, module: nn.Module, *, broadcasts_weights: bool) -> DistributedDataParallel:
        """Wrap a module. Collective.

        Args:
            module: What is to be wrapped.
            broadcasts_weights: Whether all processes get the first one's weights and buffers, or have them already.
        """
        arguments: dict[str, Any] = {}
        if not self.broadcast_buffers:
            known = inspect.signature(DistributedDataParallel.__init__).parameters
            # its name since torch 2.13, which warns of the other one
            arguments["forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"] = False
        ddp = DistributedDataParallel(
            module,
            find_unused_parameters=bool(self.find_unused_parameters),
            static_graph=self.static_graph,
            gradient_as_bucket_view=self.gradient_as_bucket_view,
            bucket_cap_mb=self.bucket_cap_mb,
            init_sync=broadcasts_weights,
            **arguments,
        )
        if self.comm_hook is not None:
            register_communication_hook(ddp, self.comm_hook, self.comm_state)
        return ddp

    def check_agrees(self, ddp: DistributedDataParallel) -> None:
        """Raise `ValueError` if one that somebody else made was told otherwise than what is not at its default here."""
        found = {
            "find_unused_parameters": ddp.find_unused_parameters,
            "static_graph": ddp.static_graph,
            "gradient_as_bucket_view": ddp.gradient_as_bucket_view,
            "bucket_cap_mb": ddp.bucket_bytes_cap / 2**20,
            "broadcast_buffers": syncs_buffers(ddp),
        }
        defaults = DDPArguments()
        for name, value in found.items():
            asked = getattr(self, name)
            if asked not in (getattr(defaults, name), value):
                rule = f"{value!r}, as `wrap_module` of the strategy sets it, or left out"
                raise ValueError(must_be(name, rule, asked, "DDPStrategy", "Say it in one of both places."))


def syncs_buffers(ddp: DistributedDataParallel) -> bool:
    """Whether each training step begins with the buffers of the first process."""
    name = "forward_sync_buffers" if hasattr(ddp, "forward_sync_buffers") else "broadcast_buffers"
    return bool(getattr(ddp, name))


_ACTION = (
    "Return torch.nn.parallel.DistributedDataParallel(model, device_ids=device_ids, ...), or what the strategy makes."
)


class WrapModule(Protocol):
    """Makes the DistributedDataParallel of a module, in place of a strategy."""

    def __call__(
        self, wrap: Callable[[nn.Module], nn.Module], module: nn.Module, device_ids: list[int] | None, /
    ) -> nn.Module:
        """Return what wraps a module. Collective.

        Args:
            wrap: Wraps it as the strategy would.
            module: What is to be wrapped: its forward runs the steps.
            device_ids: A list with the index of this process's GPU; None on a CPU.
        """


def wrap_by(
    wrap: WrapModule,
    default: Callable[[nn.Module], DistributedDataParallel],
    arguments: DDPArguments,
    device: torch.device,
    steps: nn.Module,
) -> DistributedDataParallel:
    """Let somebody else wrap a module. Collective.

    Args:
        wrap: Who does.
        default: Wraps it as it would be otherwise.
        arguments: What the strategy was told. What is made must agree with all that is not left at its default; the
            communication hook is put on it.
        device: Where the module is.
        steps: The module.

    Raises:
        TypeError: If what is made is no DistributedDataParallel, or its forward does not call the module's.
        ValueError: If it wraps another module, or disagrees with the arguments.
        Exception: Whatever `wrap` raises.
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
        raise TypeError(must_be("return value", rule, type(ddp), where, _ACTION))
    if ddp.module is not steps:
        rule = "a DistributedDataParallel of the `model` that it got, whose forward runs the steps"
        raise ValueError(must_be("return value", rule, type(ddp.module), where, _ACTION))
    _check_forward(ddp, steps)
    if not any(ddp is one for one in by_default):
        arguments.check_agrees(ddp)
        if arguments.comm_hook is not None:
            register_communication_hook(ddp, arguments.comm_hook, arguments.comm_state)
    return ddp


def _check_forward(ddp: DistributedDataParallel, steps: nn.Module) -> None:
    """Notice the forward of a subclass that calls a step by itself, with arguments that it does not understand."""
    if type(ddp).forward is DistributedDataParallel.forward:
        return
    expected = object()
    syncs, ddp.require_forward_param_sync = ddp.require_forward_param_sync, False
    reason: Exception | None = None
    found: object = None
    try:
        with torch.no_grad():
            found = ddp(lambda: expected)
    except Exception as error:
        reason = error
    finally:
        ddp.require_forward_param_sync = syncs
    if found is not expected:
        rule = f"one that passes its arguments on to the forward of `module` ({type(steps).__name__}), as super's does"
        action = "Leave its forward out, which runs the step that is due by itself."
        raise TypeError(must_be("forward", rule, type(ddp).forward, type(ddp).__qualname__, action)) from reason


_HOOK_ACTION = "Pass one of torch.distributed.algorithms.ddp_comm_hooks, or a function of these two."
# What `torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook.PowerSGDState` remembers of earlier gradients.
_MEMORIES = ("error_dict", "p_memory_dict", "q_memory_dict")


def check_communication_hook(hook: Any, state: Any, where: str) -> None:
    """Raise unless a hook can be called as DistributedDataParallel does, and there is a hook if there is a state.

    Args:
        hook: A function of a state and a `torch.distributed.GradBucket`, which returns a future tensor; or None.
        state: Its state.
        where: How to call the strategy in an error.

    Raises:
        TypeError: If the hook cannot be called with two arguments.
        ValueError: If there is a state without a hook.
    """
    if hook is None:
        if state is not None:
            rule = "None if there is no `comm_hook`"
            raise ValueError(must_be("comm_state", rule, state, where, "Pass the hook that it belongs to."))
        return
    rule = "a function of (state, bucket)"
    if not callable(hook):
        raise TypeError(must_be("comm_hook", rule, hook, where, _HOOK_ACTION))
    try:
        inspect.signature(hook).bind(None, None)
    except TypeError as error:
        raise TypeError(must_be("comm_hook", rule, hook, where, _HOOK_ACTION)) from error
    except ValueError:
        return  # written in C: its signature is not known


def register_communication_hook(ddp: DistributedDataParallel, hook: Callable[..., Any], state: Any) -> None:
    """Let a hook exchange the gradients of a wrapped module; what its state remembers of another one is forgotten.

    Args:
        ddp: The wrapped module, which has no hook yet.
        hook: The hook.
        state: Its state.
    """
    forget_gradients(state, buckets_change=True)

    # It is registered without its annotations and its name: torch takes no annotations that are strings, no partial
    # functions, and no compression to bfloat16 without NCCL, which gloo can do as well.
    def communicate(state: Any, bucket: Any) -> Any:
        return hook(state, bucket)

    communicate.__annotations__.clear()
    ddp.register_comm_hook(state, communicate)


def forget_gradients(state: Any, *, buckets_change: bool = False) -> None:
    """Let PowerSGD forget what it remembers of earlier gradients; other states stay as they are.

    An overflow would stay in its memory for ever, and other buckets do not fit to it.

    Args:
        state: The state of a hook.
        buckets_change: Whether the buckets are about to change; it then begins anew, after its first iterations.
    """
    if not is_power_sgd(state):
        return
    for memory in _MEMORIES:
        getattr(state, memory).clear()
    if buckets_change:
        state.iter = 0


def is_power_sgd(state: Any) -> bool:
    """Whether a hook's state is one of PowerSGD's."""
    return all(hasattr(state, memory) for memory in (*_MEMORIES, "iter"))


_SHARED = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked", "training")


class SynchronizedBatchNorm:
    """Replaces the batch normalisation layers in a module by `torch.nn.SyncBatchNorm`, until `revert`.

    Parameters and buffers are shared, so names in checkpoints and parameters in optimizers stay.

    Args:
        module: The module, on its device.

    Raises:
        ValueError: If the module is itself such a layer.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        layers = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
        every_name = module.named_modules(remove_duplicate=False)
        self._originals = {name: layer for name, layer in every_name if isinstance(layer, layers)}
        if "" in self._originals:
            rule = "a module with layers, where sync_batchnorm=True replaces some"
            action = "Put it into an nn.Sequential."
            raise ValueError(must_be("module", rule, type(module).__name__, "setup_module", action))
        convert: Callable[[nn.Module], nn.Module] = nn.SyncBatchNorm.convert_sync_batchnorm
        converted = {id(layer): convert(layer) for layer in self._originals.values()}
        for name, layer in self._originals.items():
            module.set_submodule(name, converted[id(layer)])

    def revert(self) -> None:
        """Put the layers back, with what was learned meanwhile."""
        for name, layer in self._originals.items():
            converted = self._module.get_submodule(name)
            for attribute in _SHARED:
                setattr(layer, attribute, getattr(converted, attribute))
            self._module.set_submodule(name, layer)
        self._originals.clear()
