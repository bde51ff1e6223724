"""Hooks that only the eras before 2.0 have, and which no method of a base class states."""

from __future__ import annotations

from camshaft.hooks_core.spec import HookSpec, Receiver, Stage

_MODULE = (Receiver.MODULE,)
_CALLBACK = (Receiver.CALLBACK,)
_CALLBACK_AND_MODULE = (Receiver.CALLBACK, Receiver.MODULE)
_0_X = ("0.5", "0.7", "0.8")
_BEFORE_2_0 = (*_0_X, "1.x")
_SINCE_0_7 = ("0.7", "0.8")
_SINCE_0_7_AND_1_X = (*_SINCE_0_7, "1.x")
_0_8_AND_1_X = ("0.8", "1.x")
_TO_LOG = "a dictionary with `log`, `progress_bar` or metrics; nothing in 1.x"
_TO_GO_ON_WITH = "the output to go on with; None keeps the step's own"

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
        eras=_0_8_AND_1_X,
        today=("on_fit_start",),
    ),
    HookSpec(
        "on_pretrain_routine_end",
        "Before the sanity check, when everything is set up.",
        _CALLBACK_AND_MODULE,
        eras=_0_8_AND_1_X,
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

_TRAINING = (
    HookSpec(
        "on_epoch_start",
        "When an epoch begins: of training, and since 1.2 of validation and test as well.",
        _CALLBACK_AND_MODULE,
        stage="train",
        eras=_BEFORE_2_0,
        today=("on_train_epoch_start",),
        moments={
            "1.0": ("on_train_epoch_start",),
            "1.1": ("on_train_epoch_start",),
            "1.x": ("on_train_epoch_start", "on_validation_epoch_start", "on_test_epoch_start"),
        },
        precedes=True,
    ),
    HookSpec(
        "on_batch_start",
        "Before anything happens for a training batch.",
        _CALLBACK_AND_MODULE,
        ("batch",),
        stage="train",
        returns="-1 skips the rest of the epoch",
        eras=_BEFORE_2_0,
        signatures={"0.5": (), "1.x": ()},
        today=("on_train_batch_start",),
        precedes=True,
    ),
    HookSpec(
        "training_step_end",
        "After `training_step`, with what it returned.",
        _MODULE,
        ("outputs",),
        kind="override",
        stage="train",
        returns=_TO_GO_ON_WITH,
        eras=_SINCE_0_7_AND_1_X,
    ),
    HookSpec(
        "training_end",
        "After `training_step`, with what it returned: `training_step_end` by its name up to 0.6.",
        _MODULE,
        ("outputs",),
        kind="override",
        stage="train",
        returns=_TO_GO_ON_WITH,
        eras=_0_X,
        today=("training_step_end",),
    ),
    HookSpec(
        "on_batch_end",
        "After a training batch and its update.",
        _CALLBACK_AND_MODULE,
        stage="train",
        eras=_BEFORE_2_0,
        today=("on_train_batch_end",),
    ),
    HookSpec(
        "on_tng_metrics",
        "When metrics of training are about to be logged: what it puts into them is logged as well. Up to 0.4.",
        _MODULE,
        ("metrics",),
        stage="train",
        eras=("0.5",),
    ),
    HookSpec(
        "get_progress_bar_dict",
        "When a progress bar is drawn.",
        _MODULE,
        kind="provide",
        stage="train",
        returns="a dictionary with what the progress bar shows",
        eras=_SINCE_0_7_AND_1_X,
    ),
    HookSpec(
        "get_tqdm_dict",
        "When a progress bar is drawn: `get_progress_bar_dict` by its first name.",
        _MODULE,
        kind="provide",
        stage="train",
        returns="a dictionary with what the progress bar shows",
        eras=_SINCE_0_7,
        today=("get_progress_bar_dict",),
    ),
    HookSpec(
        "training_epoch_end",
        "When a training epoch ends, with what its steps returned.",
        _MODULE,
        ("outputs",),
        kind="override",
        stage="train",
        returns=_TO_LOG,
        eras=_SINCE_0_7_AND_1_X,
    ),
    HookSpec(
        "on_epoch_end",
        "When an epoch ends: of training, and since 1.2 of validation and test as well.",
        _CALLBACK_AND_MODULE,
        stage="train",
        eras=_BEFORE_2_0,
        today=("on_train_epoch_end",),
        moments={
            "1.0": ("on_train_epoch_end",),
            "1.1": ("on_train_epoch_end",),
            "1.x": ("on_train_epoch_end", "on_validation_epoch_end", "on_test_epoch_end"),
        },
    ),
)


def _evaluation(word: str, stage: Stage) -> tuple[HookSpec, ...]:
    """Return the hooks after the steps of validation or test."""
    return (
        HookSpec(
            f"{word}_step_end",
            f"After `{word}_step`, with what it returned.",
            _MODULE,
            ("outputs",),
            kind="override",
            stage=stage,
            returns=_TO_GO_ON_WITH,
            eras=_SINCE_0_7_AND_1_X,
        ),
        HookSpec(
            f"{word}_epoch_end",
            f"When {word} ends, with what its steps returned.",
            _MODULE,
            ("outputs",),
            kind="override",
            stage=stage,
            returns=_TO_LOG,
            eras=_SINCE_0_7_AND_1_X,
        ),
        HookSpec(
            f"{word}_end",
            f"When {word} ends, with what its steps returned: `{word}_epoch_end` by its name up to 0.6.",
            _MODULE,
            ("outputs",),
            kind="override",
            stage=stage,
            returns=_TO_LOG,
            eras=_0_X,
            today=(f"{word}_epoch_end",),
        ),
    )


_AROUND_EVALUATION = (
    HookSpec(
        "on_pre_performance_check",
        "When validation begins.",
        _MODULE,
        stage="validate",
        eras=_0_X,
        today=("on_validation_start",),
        precedes=True,
    ),
    HookSpec(
        "on_post_performance_check",
        "When validation or a test ends.",
        _MODULE,
        stage="validate",
        eras=_0_X,
        today=("on_validation_end", "on_test_end"),
    ),
)

_CHECKPOINTS_AND_EXCEPTIONS = (
    HookSpec(
        "on_hpc_save",
        "When a checkpoint is about to be written, after `on_save_checkpoint`; before 2.0 only as a job of a cluster "
        "was about to end.",
        _MODULE,
        ("checkpoint",),
        stage="checkpoint",
        eras=_BEFORE_2_0,
        today=("on_save_checkpoint",),
    ),
    HookSpec(
        "on_hpc_load",
        "When a checkpoint is loaded, after `on_load_checkpoint`; before 2.0 only one that `on_hpc_save` took part in.",
        _MODULE,
        ("checkpoint",),
        stage="checkpoint",
        eras=_BEFORE_2_0,
        today=("on_load_checkpoint",),
    ),
    HookSpec(
        "on_keyboard_interrupt",
        "When the user interrupts a verb.",
        _CALLBACK,
        stage="exception",
        eras=("1.x",),
        today=("on_exception",),
        condition="isinstance(exception, KeyboardInterrupt)",
        precedes=True,
    ),
)

EARLIER_HOOKS = (
    *_SET_UP,
    *_DATA,
    *_TRAINING,
    *_AROUND_EVALUATION,
    *_evaluation("validation", "validate"),
    *_evaluation("test", "test"),
    *_CHECKPOINTS_AND_EXCEPTIONS,
)

EVERYDAY_NAMES = frozenset({"summarize", "init_optimizers", "restore_weights"})
"""Names of old hooks that a class of today may well use for a method of its own: no evidence by themselves."""
