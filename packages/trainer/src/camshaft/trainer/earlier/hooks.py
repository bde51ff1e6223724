"""What `super()` of a hook of earlier releases does: hooks that are no more, and today's with arguments of then.

Nothing here counts as overridden.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from torch import Tensor
from torch.optim import Optimizer

from camshaft.callbacks import summarize
from camshaft.hooks_core import DataHooks, ModelHooks
from camshaft.hooks_core.messages import must_be
from camshaft.loops.earlier_processes import default_of
from camshaft.loops.optimizers import read_configuration
from camshaft.loops.resume import restore_module


class EarlierDataHooks:
    """Hooks of data that took other arguments."""

    __hook_base__: ClassVar[bool] = True


class EarlierHooks:
    """Hooks of a module that are no more, or took other arguments."""

    __hook_base__: ClassVar[bool] = True

    def init_optimizers(self, optimizers: Any) -> tuple[list[Any], list[Any], list[int]]:
        """Optimizers, schedulers and frequencies of what `configure_optimizers` returned."""
        read = read_configuration(optimizers)
        names = ("scheduler", "interval", "frequency", "monitor", "strict", "name")
        schedulers = [{name: getattr(config, name) for name in names} for config in read.schedulers]
        return read.optimizers, schedulers, read.frequencies

    def summarize(self, mode: str | None = "top") -> None:
        """Print a summary of the model: of its parts with "top", of their parts as well with "full"."""
        if mode not in ("top", "full", None):
            where, action = f"{type(self).__qualname__}.summarize", "Pass one of these."
            raise ValueError(must_be("mode", "'top', 'full' or None", mode, where, action))
        if mode is not None:
            print(summarize(self, 1 if mode == "top" else -1))  # type: ignore[arg-type]

    def restore_weights(self, model: Any) -> None:
        """Take the weights of the checkpoint that fit resumes from, if it does. Collective."""
        run = self.trainer._run  # type: ignore[attr-defined]
        if run is not None and run.checkpoint is not None:
            restore_module(run, run.checkpoint)

    def configure_apex(self, amp: Any, model: Any, optimizers: Any, amp_level: str) -> Any:
        """What `amp` makes of the module and its optimizers at a level."""
        return amp.initialize(model, optimizers, opt_level=amp_level)

    def configure_ddp(self, model: Any, device_ids: Any = None) -> Any:
        """Wrap what the module's override was given as the strategy would. Collective."""
        return _default(self, "configure_ddp")(model)

    def init_ddp_connection(self, *args: Any, **kwargs: Any) -> None:
        """Join the processes as the strategy would, whatever the arguments are. Collective."""
        _default(self, "init_ddp_connection")()


def _default(module: object, hook: str) -> Callable[..., Any]:
    default = default_of(hook)
    if default is None:
        action = f"Call it in an override of `{hook}` alone: the strategy does this where there is none."
        raise NotImplementedError(_refusal(module, hook, action))
    return default


def _refusal(module: object, hook: str, action: str) -> str:
    return must_be(hook, "left to the trainer's strategy", "a call", f"{type(module).__qualname__}.{hook}", action)


def _do_nothing(self: Any, *args: Any, **kwargs: Any) -> None:
    """Nothing, whatever the arguments are."""


def _optimizer_zero_grad(self: Any, epoch: int, batch_idx: int, optimizer: Any, optimizer_idx: int = 0) -> None:
    """Zero the gradients: `optimizer.zero_grad()`."""
    ModelHooks.optimizer_zero_grad(self, epoch, batch_idx, optimizer)


def _backward(self: Any, *args: Any, loss: Any = None, **kwargs: Any) -> None:
    """Differentiate the loss: `(loss)`, `(loss, optimizer, optimizer_idx, ...)` or `(trainer, loss, optimizer, ...)`.

    What follows is passed to `loss.backward`.
    """
    rest = list(args)
    while loss is None and rest:
        first = rest.pop(0)
        loss = first if isinstance(first, Tensor) else None
    if rest and (rest[0] is None or isinstance(rest[0], Optimizer)):
        rest = rest[2:]
    for name in ("trainer", "optimizer", "optimizer_idx", "use_amp"):
        kwargs.pop(name, None)
    loss.backward(*rest, **kwargs)


def _configure_gradient_clipping(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
    """Clip the gradients of one optimizer: `(optimizer, gradient_clip_val, gradient_clip_algorithm)`, perhaps with
    `optimizer_idx` before the value."""
    kwargs.pop("optimizer_idx", None)
    ModelHooks.configure_gradient_clipping(self, optimizer, *(args[1:] if len(args) == 3 else args), **kwargs)


def _lr_scheduler_step(self: Any, scheduler: Any, *args: Any, **kwargs: Any) -> None:
    """Step a learning-rate scheduler: `(scheduler, metric)`, perhaps with `optimizer_idx` before the metric."""
    kwargs.pop("optimizer_idx", None)
    ModelHooks.lr_scheduler_step(self, scheduler, *(args[1:] if len(args) == 2 else args), **kwargs)


def _transfer_batch_to_device(self: Any, batch: Any, device: Any, dataloader_idx: int = 0) -> Any:
    """Move a batch to its device."""
    return DataHooks.transfer_batch_to_device(self, batch, device, dataloader_idx)


_OF_DATA: Mapping[str, Callable[..., Any]] = {
    "setup": _do_nothing,
    "teardown": _do_nothing,
    "transfer_batch_to_device": _transfer_batch_to_device,
}

_OF_EARLIER_RELEASES = (
    "on_epoch_start",
    "on_epoch_end",
    "on_batch_start",
    "on_batch_end",
    "on_tng_metrics",
    "on_pre_performance_check",
    "on_post_performance_check",
    "on_pretrain_routine_start",
    "on_pretrain_routine_end",
    "on_hpc_save",
    "on_hpc_load",
    "training_step_end",
    "training_end",
    "training_epoch_end",
    "validation_step_end",
    "validation_end",
    "validation_epoch_end",
    "test_step_end",
    "test_end",
    "test_epoch_end",
)

_WITH_OTHER_ARGUMENTS = (
    "on_before_optimizer_step",
    "on_train_batch_start",
    "on_train_batch_end",
    "on_train_epoch_end",
    "on_validation_batch_end",
    "on_validation_epoch_end",
    "on_test_batch_end",
    "on_test_epoch_end",
    "on_predict_epoch_end",
)

_OF_MODULES: Mapping[str, Callable[..., Any]] = {
    **_OF_DATA,
    **dict.fromkeys((*_OF_EARLIER_RELEASES, *_WITH_OTHER_ARGUMENTS), _do_nothing),
    "optimizer_zero_grad": _optimizer_zero_grad,
    "backward": _backward,
    "configure_gradient_clipping": _configure_gradient_clipping,
    "lr_scheduler_step": _lr_scheduler_step,
}

# Put in here and not written out above, so that editors and type checkers compare an override with today's signature.
for _owner, _hooks in ((EarlierDataHooks, _OF_DATA), (EarlierHooks, _OF_MODULES)):
    for _name, _hook in _hooks.items():
        setattr(_owner, _name, _hook)
