"""Hooks around the gradient: backward, clipping, optimizers and schedulers."""

from __future__ import annotations

from camshaft.hooks_core.spec import HookSpec, Receiver

_MODULE = (Receiver.MODULE,)
_CALLBACK_AND_MODULE = (Receiver.CALLBACK, Receiver.MODULE)
_ALL_ERAS = ("0.5", "0.7", "0.8", "1.x", "2.0", "2.x")
_FIVE_POSITIONAL = ("current_epoch", "batch_nb", "optimizer", "optimizer_i", "second_order_closure")
_OLD_BACKWARD = ("trainer", "loss", "optimizer", "optimizer_idx")
_ZERO_GRAD_BY_INDEX = ("epoch", "batch_idx", "optimizer", "optimizer_idx")
_FIRST_OPTIMIZER = {"optimizer_idx": 0}
_SPECIAL_CASES = ("on_tpu", "using_native_amp", "using_lbfgs")

HOOKS = (
    HookSpec(
        "optimizer_step",
        "To update the weights. Since 2.0 its closure runs forward, zeroing, backward; before, it follows backward.",
        _MODULE,
        ("epoch", "batch_idx", "optimizer", "optimizer_closure"),
        kind="override",
        stage="train",
        eras=_ALL_ERAS,
        signatures={
            "0.5": _FIVE_POSITIONAL,
            "0.7": ("epoch", "batch_idx", "optimizer", "optimizer_idx", "second_order_closure"),
            "0.8": ("epoch", "batch_idx", "optimizer", "optimizer_idx", "second_order_closure"),
            "1.x": (
                "epoch",
                "batch_idx",
                "optimizer",
                "optimizer_idx",
                "optimizer_closure",
                *_SPECIAL_CASES,
            ),
        },
        optionals={"0.8": _SPECIAL_CASES},
        fixed={"optimizer_idx": 0, "on_tpu": False, "using_native_amp": False, "using_lbfgs": False},
    ),
    HookSpec(
        "on_before_zero_grad",
        "Before the gradients are zeroed: after `training_step` by default, after the update up to 0.8, before "
        "`training_step` in 2.x's document.",
        _CALLBACK_AND_MODULE,
        ("optimizer",),
        stage="train",
        eras=_ALL_ERAS,
    ),
    HookSpec(
        "optimizer_zero_grad",
        "To zero the gradients, in place of the default.",
        _MODULE,
        ("epoch", "batch_idx", "optimizer"),
        kind="override",
        stage="train",
        eras=("0.8", "1.x", "2.0", "2.x"),
        signatures={"0.8": _ZERO_GRAD_BY_INDEX, "1.x": _ZERO_GRAD_BY_INDEX},
        fixed=_FIRST_OPTIMIZER,
    ),
    HookSpec(
        "on_before_backward",
        "Before the loss is differentiated.",
        _CALLBACK_AND_MODULE,
        ("loss",),
        stage="train",
    ),
    HookSpec(
        "backward",
        "To differentiate the loss, in place of the default. The loss is already scaled for accumulation.",
        _MODULE,
        ("loss",),
        kind="override",
        stage="train",
        eras=("0.7", "0.8", "1.x", "2.0", "2.x"),
        signatures={"0.7": _OLD_BACKWARD, "0.8": _OLD_BACKWARD, "1.x": ("loss", "optimizer", "optimizer_idx")},
        optionals={"0.7": ("use_amp",)},
        fixed={"optimizer": None, "optimizer_idx": 0, "use_amp": False},
    ),
    HookSpec(
        "on_after_backward",
        "After the loss is differentiated; with a gradient scaler, gradients are still scaled.",
        _CALLBACK_AND_MODULE,
        stage="train",
        eras=_ALL_ERAS,
    ),
    HookSpec(
        "on_before_optimizer_step",
        "Before an optimizer updates: once per accumulation window, gradients unscaled and not yet clipped.",
        _CALLBACK_AND_MODULE,
        ("optimizer",),
        stage="train",
        signatures={"1.x": ("optimizer", "optimizer_idx")},
        fixed=_FIRST_OPTIMIZER,
    ),
    HookSpec(
        "configure_gradient_clipping",
        "To clip gradients, in place of the default.",
        _MODULE,
        ("optimizer", "gradient_clip_val", "gradient_clip_algorithm"),
        kind="override",
        stage="train",
        signatures={"1.x": ("optimizer", "optimizer_idx", "gradient_clip_val", "gradient_clip_algorithm")},
        fixed=_FIRST_OPTIMIZER,
    ),
    HookSpec(
        "lr_scheduler_step",
        "To step a learning-rate scheduler, in place of the default.",
        _MODULE,
        ("scheduler", "metric"),
        kind="override",
        stage="train",
        signatures={"1.x": ("scheduler", "optimizer_idx", "metric")},
        fixed=_FIRST_OPTIMIZER,
    ),
)
