"""Hooks around a run: set-up, model building, checkpoints, exceptions, tear-down."""

from __future__ import annotations

from camshaft.hooks_core.spec import HookSpec, Receiver

_CALLBACK, _DATA, _MODULE, _STRATEGY = Receiver.CALLBACK, Receiver.DATA, Receiver.MODULE, Receiver.STRATEGY
_EVERYONE = (_CALLBACK, _MODULE, _STRATEGY)
_SINCE_0_8 = ("0.8", "1.x", "2.0", "2.x")

HOOKS = (
    HookSpec(
        "prepare_data",
        "Before anything else, on one process only: download or preprocess to disk; assign no state.",
        (_DATA, _MODULE),
        stage="setup",
        eras=_SINCE_0_8,
    ),
    HookSpec(
        "configure_callbacks",
        "Before `setup`: the module adds callbacks of its own.",
        (_MODULE,),
        kind="provide",
        stage="setup",
        returns="a callback or a list of callbacks; one of the same type as a callback of the trainer replaces it",
    ),
    HookSpec(
        "setup",
        "At the beginning of every verb, on every process.",
        (_CALLBACK, _DATA, _MODULE),
        ("stage",),
        stage="setup",
        eras=_SINCE_0_8,
    ),
    HookSpec(
        "configure_sharded_model",
        "After `setup`, in the strategy's context: create or shard submodules. Called in every stage, so idempotent.",
        (_MODULE,),
        stage="setup",
    ),
    HookSpec(
        "configure_model",
        "After `configure_sharded_model`, in the strategy's context. Called in every stage, so idempotent.",
        (_MODULE,),
        stage="setup",
        eras=("2.x",),
    ),
    HookSpec(
        "configure_optimizers",
        "After the module is on its device: choose optimizers and learning-rate schedulers.",
        (_MODULE,),
        kind="provide",
        stage="setup",
        returns="an optimizer, a list of them, two lists (optimizers, schedulers), a dictionary, or None",
        eras=("0.5", "0.7", "0.8", "1.x", "2.0", "2.x"),
    ),
    HookSpec(
        "on_fit_start",
        "At the very beginning of fit, on every process, after the module is on its device.",
        _EVERYONE,
        eras=_SINCE_0_8,
    ),
    HookSpec(
        "on_sanity_check_start",
        "Before the sanity check: a few validation batches ahead of training.",
        _EVERYONE,
        eras=_SINCE_0_8,
    ),
    HookSpec("on_sanity_check_end", "After the sanity check.", _EVERYONE),
    HookSpec(
        "on_load_checkpoint",
        "When a checkpoint is loaded, before its contents are restored.",
        (_CALLBACK, _DATA, _MODULE),
        ("checkpoint",),
        stage="checkpoint",
    ),
    HookSpec(
        "on_save_checkpoint",
        "When a checkpoint is about to be written: add to it or change it.",
        (_CALLBACK, _DATA, _MODULE),
        ("checkpoint",),
        stage="checkpoint",
    ),
    HookSpec(
        "state_dict",
        "When a checkpoint is put together: the receiver's own memory.",
        (_CALLBACK, _DATA),
        kind="state",
        stage="checkpoint",
        returns="a dictionary of tensors and plain values",
    ),
    HookSpec(
        "load_state_dict",
        "When a checkpoint is restored: the memory that `state_dict` returned.",
        (_CALLBACK, _DATA),
        ("state_dict",),
        kind="state",
        stage="checkpoint",
    ),
    HookSpec(
        "on_exception",
        "When anything raises during a verb, before `teardown`.",
        (_CALLBACK, _DATA, _MODULE, _STRATEGY),
        ("exception",),
        stage="exception",
        isolated=True,
    ),
    HookSpec("on_fit_end", "At the very end of fit, on every process.", _EVERYONE, eras=_SINCE_0_8),
    HookSpec(
        "teardown",
        "At the end of every verb, also after an exception, once.",
        (_CALLBACK, _DATA, _MODULE),
        ("stage",),
        stage="setup",
        isolated=True,
        eras=_SINCE_0_8,
    ),
)
