"""Hooks of the four stages: training, validation, test, prediction."""

from __future__ import annotations

from camshaft.hooks_core.spec import HookSpec, Receiver, Stage

_CALLBACK_AND_MODULE = (Receiver.CALLBACK, Receiver.MODULE)
_EVERYONE = (*_CALLBACK_AND_MODULE, Receiver.STRATEGY)
_MODULE = (Receiver.MODULE,)
_ALL_ERAS = ("0.5", "0.7", "0.8", "1.x", "2.0", "2.x")
_BATCH = ("batch", "batch_idx", "dataloader_idx")
_OPTIMIZER_INDEX = (
    *("optimizer_idx", "optimizer_i", "optimizer_index", "optimizer_id", "optimizer_ix", "optimizer_nb"),
    *("optimiser_idx", "optimiser_i", "optim_idx", "optim_i", "optim_index", "optim_id"),
    *("opt_idx", "opt_i", "opt_index", "opt_id", "opt_ix"),
)

_TRAIN = (
    HookSpec(
        "on_train_start",
        "When training begins: after the sanity check, before it in 0.8.",
        _EVERYONE,
        stage="train",
        eras=("0.8", "1.x", "2.0", "2.x"),
    ),
    HookSpec("on_train_epoch_start", "When a training epoch begins.", _CALLBACK_AND_MODULE, stage="train"),
    HookSpec(
        "on_train_batch_start",
        "Before anything happens for a training batch.",
        _EVERYONE,
        ("batch", "batch_idx"),
        stage="train",
        returns="-1 skips the rest of the epoch; its end hooks and epoch schedulers still run",
        eras=("0.8", "1.x", "2.0", "2.x"),
        signatures={"0.8": _BATCH, "1.x": _BATCH},
        fixed={"dataloader_idx": 0},
    ),
    HookSpec(
        "tbptt_split_batch",
        "To split a batch along time for truncated backpropagation, in place of the default.",
        _MODULE,
        ("batch", "split_size"),
        kind="override",
        stage="train",
        returns="a sequence of splits",
        eras=("0.7", "0.8", "1.x"),
        kept=True,
    ),
    HookSpec(
        "training_step",
        "To compute the loss of a batch.",
        _MODULE,
        ("batch", "batch_idx"),
        kind="step",
        stage="train",
        returns="the loss, a dictionary with `loss`, or None to skip the update; anything under manual optimization",
        eras=_ALL_ERAS,
        optional=("optimizer_idx", "hiddens"),
        signatures={
            "0.5": ("batch", "batch_nb", "optimizer_i", "hiddens"),
            "0.7": ("batch", "batch_idx", "optimizer_idx", "hiddens"),
            "0.8": ("batch", "batch_idx", "optimizer_idx", "hiddens"),
            "1.x": ("batch", "batch_idx", "optimizer_idx", "hiddens"),
        },
        aliases={"optimizer_idx": _OPTIMIZER_INDEX, "hiddens": ("hiddens", "hidden", "hidden_state", "hidden_states")},
    ),
    HookSpec(
        "on_train_batch_end",
        "After a training batch and its update.",
        _CALLBACK_AND_MODULE,
        ("outputs", "batch", "batch_idx"),
        stage="train",
        eras=("0.8", "1.x", "2.0", "2.x"),
        signatures={"0.8": _BATCH, "1.x": ("outputs", *_BATCH)},
        fixed={"dataloader_idx": 0},
    ),
    HookSpec(
        "on_train_epoch_end",
        "When a training epoch ends: callbacks that do not monitor, the module, callbacks that monitor.",
        _CALLBACK_AND_MODULE,
        stage="train",
        signatures={"1.x": ("outputs",)},
        fixed={"outputs": None},
    ),
    HookSpec(
        "on_train_end",
        "When training ends, before loggers are closed.",
        _EVERYONE,
        stage="train",
        eras=("0.8", "1.x", "2.0", "2.x"),
    ),
)


def _evaluation(
    stage: Stage, word: str, receivers: tuple[Receiver, ...], eras: tuple[str, ...]
) -> tuple[HookSpec, ...]:
    """The hooks of a stage without gradients; `receivers` are those of its epoch and batch hooks."""
    numbering = {"0.5": ("batch", "batch_nb", "dataloader_i")} if "0.5" in eras else {}
    return (
        HookSpec(
            f"on_{word}_model_eval",
            f"To put the module into evaluation mode before {word}, in place of the default.",
            _MODULE,
            kind="override",
            stage=stage,
        ),
        HookSpec(f"on_{word}_start", f"When {word} begins.", _EVERYONE, stage=stage),
        HookSpec(f"on_{word}_epoch_start", f"When a {word} epoch begins.", receivers, stage=stage),
        HookSpec(
            f"on_{word}_batch_start",
            f"Before anything happens for a {word} batch.",
            receivers,
            _BATCH,
            stage=stage,
        ),
        HookSpec(
            f"{word}_step",
            f"To compute what {word} needs of a batch.",
            _MODULE,
            _BATCH,
            kind="step",
            stage=stage,
            returns="the prediction" if stage == "predict" else "anything; handed to the batch's end hook",
            eras=eras,
            signatures=numbering,
        ),
        HookSpec(f"on_{word}_batch_end", f"After a {word} batch.", receivers, ("outputs", *_BATCH), stage=stage),
        HookSpec(
            f"on_{word}_epoch_end",
            f"When a {word} epoch ends.",
            receivers,
            stage=stage,
            signatures={"1.x": ("outputs",)} if word == "predict" else {},
            fixed={"outputs": None} if word == "predict" else {},
        ),
        HookSpec(f"on_{word}_end", f"When {word} ends.", _EVERYONE, stage=stage),
        HookSpec(
            f"on_{word}_model_train",
            f"To restore the module's modes after {word}, in place of the default.",
            _MODULE,
            kind="override",
            stage=stage,
            eras=("2.0", "2.x") if word == "predict" else ("1.x", "2.0", "2.x"),
        ),
    )


_ZERO_GRAD_BEFORE_VALIDATION = HookSpec(
    "on_validation_model_zero_grad",
    "To free gradients before validation inside training, in place of the default.",
    _MODULE,
    kind="override",
    stage="validate",
    eras=("2.x",),
)

HOOKS = (
    *_TRAIN,
    _ZERO_GRAD_BEFORE_VALIDATION,
    *_evaluation("validate", "validation", _EVERYONE, _ALL_ERAS),
    *_evaluation("test", "test", _EVERYONE, _ALL_ERAS),
    *_evaluation("predict", "predict", _CALLBACK_AND_MODULE, ("1.x", "2.0", "2.x")),
)
