"""Data parallelism: every process has the whole model and a share of each batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from camshaft.hooks_core.messages import must_be
from camshaft.strategies.ddp.communication_hook import check_communication_hook, forget_gradients, is_power_sgd
from camshaft.strategies.ddp.custom_wrap import WrapModule, wrap_by
from camshaft.strategies.ddp.ddp_arguments import DDPArguments, syncs_buffers
from camshaft.strategies.ddp.replica import Replica, trainable_parameters
from camshaft.strategies.ddp.same_weights import broadcast_tensors, check_same_structure
from camshaft.strategies.ddp.synchronized_batch_norm import SynchronizedBatchNorm
from camshaft.strategies.parallel import ParallelStrategy
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
