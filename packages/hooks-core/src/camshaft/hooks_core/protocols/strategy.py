"""Where and how a model computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.optim import Optimizer

T = TypeVar("T")

ReduceOp = Literal["mean", "sum", "max", "min"]
"""How the values of all processes become one."""


class PendingSave(Protocol):
    """A checkpoint that is still being written while training goes on."""

    def wait(self) -> None:
        """Return when it is durable and whole. Collective. Raises what its writing raised, on every process."""


class Collectives(Protocol):
    """What the processes of a run tell each other. Every process must call the same ones in the same order."""

    def broadcast(self, value: T, src: int = 0) -> T:
        """The value of the process `src` on every process. Collective. It is anything that can be pickled."""

    def all_gather(self, value: T) -> list[T]:
        """The values of all processes, in their order. Collective. They are anything that can be pickled."""

    def reduce(self, tensor: Tensor, op: ReduceOp = "mean") -> Tensor:
        """A tensor of all processes' tensors, element by element; the argument stays as it is. Collective."""

    def barrier(self) -> None:
        """Return when every process is here. Collective."""


class Strategy(Collectives, Protocol):
    """Where and how a model computes. It receives hooks and never emits them.

    `camshaft.hooks_core.StrategyDefaults` has what a strategy need not define itself.

    Attributes:
        device: Where this process computes.
        global_rank: Index of this process among all.
        local_rank: Index of this process on its machine.
        world_size: Number of processes.
        has_skipped_step: Whether the latest `optimizer_step` left the weights as they were, as a gradient scaler does
            after an overflow.
    """

    device: torch.device
    global_rank: int
    local_rank: int
    world_size: int
    has_skipped_step: bool

    @property
    def data_rank(self) -> int:
        """Index of this process among those that share the data out; ranks of one model replica have the same."""

    @property
    def num_data_ranks(self) -> int:
        """Among how many the data is shared out."""

    def connect(self) -> None:
        """Join the other processes; once that is done, do nothing. Collective.

        Called when a run begins, before anything else of the strategy but its attributes.
        """

    def model_context(self, module: nn.Module) -> AbstractContextManager[None]:
        """What surrounds the hooks that build the model (`configure_sharded_model`, `configure_model`). Collective."""

    def setup_module(self, module: nn.Module) -> nn.Module:
        """Move a module to its device, in place, and prepare what is to surround its steps. Collective.

        Called once per run, after the module is configured, before its weights are loaded and its optimizers are built.

        Returns:
            What computes, for whoever sets a module up by hand. The loops do not use it: they go on with the module
            that they passed, and reach whatever is around it through the steps that `wrap_step` returned.
        """

    def setup_optimizers(self, optimizers: Sequence[Optimizer]) -> list[Optimizer]:
        """Prepare optimizers that were built on the module after `setup_module`. Collective. Called once per fit.

        Returns:
            As many optimizers in the same order. The loops use these from then on, and need of each what torch's
            `Optimizer` has: `param_groups`, `zero_grad`, `state_dict` and `load_state_dict`, the step hooks
            (`register_step_pre_hook` and `register_step_post_hook`), by which they learn of updates, and `step` with
            the signature of the original, which tells whether it evaluates the loss by a closure itself. Where prepared
            ones lack any of it, return the originals and step the prepared ones in `optimizer_step`.
        """

    def batch_to_device(self, batch: Any) -> Any:
        """Move a batch to `device`. Returns the batch on the device, in the same structure.

        Not called where `device` is a CPU and nobody implements a transfer hook, nor where somebody implements
        `transfer_batch_to_device`.
        """

    def wrap_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Let a step run in this strategy's context, such as autocast or a wrapped forward.

        Called once for each step of the module (`training_step`, `validation_step`, `test_step`, `predict_step`) when a
        run resolves its hooks. That is before `setup_module`: what that makes is to be looked up when a step is called.
        Prediction with a module that has no `predict_step` wraps a call of the module likewise, when it begins.

        Args:
            step: The step; it is called with positional and keyword arguments, as its signature asks for them.

        Returns:
            What is called in its place, with the same arguments, and returns what it returns.
        """

    def idle_step(self) -> None:
        """Take part in what other processes do together in a step of evaluation, without a batch of one's own.

        Called once for each batch that another process evaluates after this one has had its last. Collective among
        those that have none left and those that do, whose step it answers.
        """

    def set_gradient_sync(self, is_on: bool) -> None:
        """Say whether the steps that follow end with the same gradients on all processes; at first they do.

        Called before each step of an accumulation window of several: true at its last one.
        """

    def backward(self, loss: Tensor, differentiate: Callable[[Tensor], Any] | None = None) -> None:
        """Differentiate a scalar loss, by `loss.backward()` or by what the module overrides that with.

        Either gets the loss as it is to be differentiated, scaled if need be. Collective if gradients are reduced.
        """

    def unscale_gradients(self, optimizer: Optimizer) -> None:
        """Give an optimizer's gradients their true size, where `backward` scaled them; once per update. Collective.

        Called before `on_before_optimizer_step` and clipping; `optimizer_step` does it itself where nobody did, and a
        second call changes nothing.
        """

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        """Update the weights; the closure, if any, computes the loss with its gradients first. Collective."""

    def clip_gradients(self, optimizer: Optimizer, clip_val: float, algorithm: str) -> None:
        """Clip an optimizer's gradients to a norm ("norm") or to an absolute value ("value"). Collective."""

    def load_module_state(self, module: nn.Module, state: Mapping[str, Any]) -> None:
        """Give a module that was set up the weights of a checkpoint, as `load_checkpoint` returned them. Collective.

        A strategy that can do more takes `strict: bool = True` as well. It gets False for a module with
        `strict_loading = False`: names that only one of the two has are no error then.
        """

    def load_optimizer_state(self, optimizer: Optimizer, state: Mapping[str, Any]) -> None:
        """Give an optimizer that was set up the state of one in a checkpoint, likewise. Collective."""

    def place_like(self, value: Tensor, parameter: Tensor) -> Tensor:
        """A new tensor with a value that `load_checkpoint` returned, placed as a parameter of its shape. Collective."""

    def state_dict(self) -> dict[str, Any]:
        """What this strategy itself has learned, such as the scale of losses: plain values, the same on all ranks."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with what a strategy of this kind, or none, had learned; the state of another kind changes nothing."""

    def save_checkpoint(self, checkpoint: Mapping[str, Any], path: str) -> PendingSave | None:
        """Write a checkpoint. Collective; the first process's plain values count, and every one's sharded tensors.

        What fails on one process raises on all of them.

        Returns:
            None if it is durable and whole now; else what waits until it is. Of the checkpoint's tensors nothing is
            needed any more when this returns.
        """

    def load_checkpoint(self, path: str) -> dict[str, Any]:
        """Read a checkpoint, tensors on the CPU. Collective.

        A strategy that can do more takes `weights_only: bool | None = None` as well. It gets False where the user
        trusts the file, so that objects in it may be unpickled.
        """

    def note_failure(self, error: BaseException) -> None:
        """Learn that this process failed, before anybody else does: from now on it joins in nothing collective."""

    def teardown(self) -> None:
        """Let go of what was set up for one run. Not collective: after an error other processes may not come here."""
