"""Hooks of set-up and data that only the eras before 2.0 have."""

from __future__ import annotations

from camshaft.hooks_core.spec import HookSpec, Receiver

_MODULE = (Receiver.MODULE,)
_CALLBACK = (Receiver.CALLBACK,)
_CALLBACK_AND_MODULE = (Receiver.CALLBACK, Receiver.MODULE)
_SINCE_0_7 = ("0.7", "0.8")
_SINCE_0_7_AND_1_X = (*_SINCE_0_7, "1.x")
_SINCE_0_8 = ("0.8", "1.x")

_SET_UP = (
    HookSpec(
        "on_init_start",
        "When the trainer is made, before it has anything.",
        _CALLBACK,
        stage="setup",
        eras=("1.x",),
    ),
    HookSpec(
        "on_init_end",
        "When the trainer has been made.",
        _CALLBACK,
        stage="setup",
        eras=("1.x",),
    ),
    HookSpec(
        "on_before_accelerator_backend_setup",
        "Before `setup`.",
        _CALLBACK,
        stage="setup",
        eras=("1.x",),
        today=("setup",),
        precedes=True,
    ),
    HookSpec(
        "on_configure_sharded_model",
        "Before `configure_sharded_model`.",
        _CALLBACK,
        stage="setup",
        eras=("1.x",),
        today=("configure_sharded_model",),
        precedes=True,
    ),
    HookSpec(
        "on_post_move_to_device",
        "After the module was moved to a TPU, where it may tie weights again; on other devices never.",
        _MODULE,
        stage="setup",
        eras=("1.x",),
    ),
    HookSpec(
        "init_ddp_connection",
        "To join the process group, in place of the default.",
        _MODULE,
        ("global_rank", "world_size"),
        kind="override",
        stage="setup",
        eras=_SINCE_0_7,
        signatures={"0.7": ("proc_rank", "world_size")},
        optionals=dict.fromkeys(_SINCE_0_7, ("is_slurm_managing_tasks",)),
        fixed={"is_slurm_managing_tasks": False},
    ),
    HookSpec(
        "init_optimizers",
        "To turn what `configure_optimizers` returned into optimizers and schedulers, in place of the default.",
        _MODULE,
        ("optimizers",),
        kind="override",
        stage="setup",
        returns="the optimizers and the schedulers",
        eras=_SINCE_0_7,
    ),
    HookSpec(
        "configure_apex",
        "To prepare model and optimizers for mixed precision by apex.",
        _MODULE,
        ("amp", "model", "optimizers", "amp_level"),
        kind="override",
        stage="setup",
        returns="the model and the optimizers",
        eras=_SINCE_0_7,
    ),
    HookSpec(
        "configure_ddp",
        "To wrap the model for data-parallel training, in place of the default.",
        _MODULE,
        ("model", "device_ids"),
        kind="override",
        stage="setup",
        returns="the wrapped model",
        eras=_SINCE_0_7,
    ),
    HookSpec(
        "summarize",
        "To print a summary of the model before training, in place of the default.",
        _MODULE,
        ("mode",),
        kind="override",
        stage="setup",
        eras=_SINCE_0_7_AND_1_X,
        optionals={"1.x": ("max_depth",)},
        fixed={"max_depth": None},
    ),
    HookSpec(
        "restore_weights",
        "To restore weights before training, in place of the default.",
        _MODULE,
        ("model",),
        kind="override",
        stage="setup",
        eras=_SINCE_0_7,
    ),
    HookSpec(
        "on_pretrain_routine_start",
        "Before the sanity check.",
        _CALLBACK_AND_MODULE,
        eras=_SINCE_0_8,
        today=("on_fit_start",),
    ),
    HookSpec(
        "on_pretrain_routine_end",
        "Before the sanity check, when everything is set up.",
        _CALLBACK_AND_MODULE,
        eras=_SINCE_0_8,
        today=("on_fit_start",),
    ),
)

_DATA = (
    HookSpec(
        "tng_dataloader",
        "When training data is first needed.",
        _MODULE,
        kind="provide",
        stage="data",
        returns="a loader",
        eras=("0.5",),
        today=("train_dataloader",),
    ),
    *(
        HookSpec(
            f"on_{word}_dataloader",
            f"Before `{word}_dataloader` is asked for.",
            _MODULE,
            stage="data",
            eras=("1.x",),
            today=(f"{word}_dataloader",),
            precedes=True,
        )
        for word in ("train", "val", "test", "predict")
    ),
)

HOOKS = (*_SET_UP, *_DATA)
