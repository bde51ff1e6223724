"""Hooks of training, evaluation and what ends a run that only the eras before 2.0 have."""

from __future__ import annotations

from camshaft.hooks_core.spec import HookSpec, Receiver, Stage

_MODULE = (Receiver.MODULE,)
_CALLBACK = (Receiver.CALLBACK,)
_CALLBACK_AND_MODULE = (Receiver.CALLBACK, Receiver.MODULE)
_0_X = ("0.5", "0.7", "0.8")
_BEFORE_2_0 = (*_0_X, "1.x")
_SINCE_0_7 = ("0.7", "0.8")
_SINCE_0_7_AND_1_X = (*_SINCE_0_7, "1.x")
_TO_LOG = "a dictionary with `log`, `progress_bar` or metrics; nothing in 1.x"
_TO_GO_ON_WITH = "the output to go on with; None keeps the step's own"

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
    """What follows the steps of validation or test."""
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

HOOKS = (
    *_TRAINING,
    *_AROUND_EVALUATION,
    *_evaluation("validation", "validate"),
    *_evaluation("test", "test"),
    *_CHECKPOINTS_AND_EXCEPTIONS,
)
