"""Hooks that only the eras before 2.0 have, stated like those of today; no class of users derives from these."""

from __future__ import annotations

from typing import Any

from camshaft.hooks_core.spec import Receiver, hook

_CALLBACK, _MODULE = Receiver.CALLBACK, Receiver.MODULE
_0_X, _1_X = ("0.5", "0.7", "0.8"), ("1.x",)
_BEFORE_2_0 = (*_0_X, *_1_X)
_SINCE_0_7 = ("0.7", "0.8")
_SINCE_0_7_AND_1_X = (*_SINCE_0_7, *_1_X)
_0_8_AND_1_X = ("0.8", *_1_X)
_TO_LOG = "a dictionary with `log`, `progress_bar` or metrics; nothing in 1.x"
_TO_GO_ON_WITH = "the output to go on with; None keeps the step's own"
_TO_SHOW = "a dictionary with what the progress bar shows"


def _epochs(word: str) -> dict[str, tuple[str, ...]]:
    """Return the moments of a hook of epochs: those of training, and since 1.2 those of validation and test as well."""
    of_training = (f"on_train_epoch_{word}",)
    of_all = (*of_training, f"on_validation_epoch_{word}", f"on_test_epoch_{word}")
    return {"1.0": of_training, "1.1": of_training, "1.x": of_all}


class EarlierHooks:
    """Hooks of modules and callbacks, in the order in which those of one moment are called."""

    @hook(_CALLBACK, stage="setup", eras=_1_X, precedes_module=True)
    def on_init_start(self) -> None:
        """When the trainer is made, before it has anything."""

    @hook(_CALLBACK, stage="setup", eras=_1_X, precedes_module=True)
    def on_init_end(self) -> None:
        """When the trainer has been made."""

    @hook(_CALLBACK, stage="setup", eras=_1_X, today=("setup",), precedes=True)
    def on_before_accelerator_backend_setup(self) -> None:
        """Before `setup`."""

    @hook(_CALLBACK, stage="setup", eras=_1_X, today=("configure_sharded_model",), precedes=True)
    def on_configure_sharded_model(self) -> None:
        """Before `configure_sharded_model`."""

    @hook(_MODULE, stage="setup", eras=_1_X)
    def on_post_move_to_device(self) -> None:
        """After the module was moved to a TPU, where it may tie weights again; on other devices never."""

    @hook(
        _MODULE,
        kind="override",
        stage="setup",
        eras=_SINCE_0_7,
        signatures={"0.7": ("proc_rank", "world_size")},
        optionals=dict.fromkeys(_SINCE_0_7, ("is_slurm_managing_tasks",)),
        fixed={"is_slurm_managing_tasks": False},
    )
    def init_ddp_connection(self, global_rank: int, world_size: int) -> None:
        """Join the process group, in place of the default."""

    @hook(_MODULE, kind="override", stage="setup", returns="the optimizers and the schedulers", eras=_SINCE_0_7)
    def init_optimizers(self, optimizers: Any) -> Any:
        """Turn what `configure_optimizers` returned into optimizers and schedulers, in place of the default."""

    @hook(_MODULE, kind="override", stage="setup", returns="the model and the optimizers", eras=_SINCE_0_7)
    def configure_apex(self, amp: Any, model: Any, optimizers: Any, amp_level: str) -> Any:
        """Prepare model and optimizers for mixed precision by apex."""

    @hook(_MODULE, kind="override", stage="setup", returns="the wrapped model", eras=_SINCE_0_7)
    def configure_ddp(self, model: Any, device_ids: Any) -> Any:
        """Wrap the model for data-parallel training, in place of the default."""

    @hook(
        _MODULE,
        kind="override",
        stage="setup",
        eras=_SINCE_0_7_AND_1_X,
        optionals={"1.x": ("max_depth",)},
        fixed={"max_depth": None},
    )
    def summarize(self, mode: str) -> Any:
        """Print a summary of the model before training, in place of the default."""

    @hook(_MODULE, kind="override", stage="setup", eras=_SINCE_0_7)
    def restore_weights(self, model: Any) -> None:
        """Restore weights before training, in place of the default."""

    @hook(_CALLBACK, _MODULE, eras=_0_8_AND_1_X, today=("on_fit_start",))
    def on_pretrain_routine_start(self) -> None:
        """Before the sanity check."""

    @hook(_CALLBACK, _MODULE, eras=_0_8_AND_1_X, today=("on_fit_start",))
    def on_pretrain_routine_end(self) -> None:
        """Before the sanity check, when everything is set up."""

    @hook(_MODULE, kind="provide", stage="data", returns="a loader", eras=("0.5",), today=("train_dataloader",))
    def tng_dataloader(self) -> Any:
        """When training data is first needed."""

    @hook(_MODULE, stage="data", eras=_1_X, today=("train_dataloader",), precedes=True)
    def on_train_dataloader(self) -> None:
        """Before `train_dataloader` is asked for."""

    @hook(_MODULE, stage="data", eras=_1_X, today=("val_dataloader",), precedes=True)
    def on_val_dataloader(self) -> None:
        """Before `val_dataloader` is asked for."""

    @hook(_MODULE, stage="data", eras=_1_X, today=("test_dataloader",), precedes=True)
    def on_test_dataloader(self) -> None:
        """Before `test_dataloader` is asked for."""

    @hook(_MODULE, stage="data", eras=_1_X, today=("predict_dataloader",), precedes=True)
    def on_predict_dataloader(self) -> None:
        """Before `predict_dataloader` is asked for."""

    @hook(
        _CALLBACK,
        _MODULE,
        stage="train",
        eras=_BEFORE_2_0,
        today=("on_train_epoch_start",),
        moments=_epochs("start"),
        precedes=True,
    )
    def on_epoch_start(self) -> None:
        """When an epoch begins: of training, and since 1.2 of validation and test as well."""

    @hook(
        _CALLBACK,
        _MODULE,
        stage="train",
        returns="-1 skips the rest of the epoch",
        eras=_BEFORE_2_0,
        signatures={"0.5": (), "1.x": ()},
        today=("on_train_batch_start",),
        precedes=True,
    )
    def on_batch_start(self, batch: Any) -> int | None:
        """Before anything happens for a training batch."""

    @hook(_MODULE, kind="override", stage="train", returns=_TO_GO_ON_WITH, eras=_SINCE_0_7_AND_1_X)
    def training_step_end(self, outputs: Any) -> Any:
        """After `training_step`, with what it returned."""

    @hook(_MODULE, kind="override", stage="train", returns=_TO_GO_ON_WITH, eras=_0_X, today=("training_step_end",))
    def training_end(self, outputs: Any) -> Any:
        """After `training_step`, with what it returned: `training_step_end` by its name up to 0.6."""

    @hook(_CALLBACK, _MODULE, stage="train", eras=_BEFORE_2_0, today=("on_train_batch_end",))
    def on_batch_end(self) -> None:
        """After a training batch and its update."""

    @hook(_MODULE, stage="train", eras=("0.5",))
    def on_tng_metrics(self, metrics: Any) -> None:
        """When metrics of training are about to be logged: what it puts into them is logged as well. Up to 0.4."""

    @hook(_MODULE, kind="provide", stage="train", returns=_TO_SHOW, eras=_SINCE_0_7_AND_1_X)
    def get_progress_bar_dict(self) -> Any:
        """When a progress bar is drawn."""

    @hook(_MODULE, kind="provide", stage="train", returns=_TO_SHOW, eras=_SINCE_0_7, today=("get_progress_bar_dict",))
    def get_tqdm_dict(self) -> Any:
        """When a progress bar is drawn: `get_progress_bar_dict` by its first name."""

    @hook(_MODULE, kind="override", stage="train", returns=_TO_LOG, eras=_SINCE_0_7_AND_1_X)
    def training_epoch_end(self, outputs: Any) -> Any:
        """When a training epoch ends, with what its steps returned."""

    @hook(
        _CALLBACK,
        _MODULE,
        stage="train",
        eras=_BEFORE_2_0,
        today=("on_train_epoch_end",),
        moments=_epochs("end"),
    )
    def on_epoch_end(self) -> None:
        """When an epoch ends: of training, and since 1.2 of validation and test as well."""

    @hook(_MODULE, stage="validate", eras=_0_X, today=("on_validation_start",), precedes=True)
    def on_pre_performance_check(self) -> None:
        """When validation begins."""

    @hook(_MODULE, stage="validate", eras=_0_X, today=("on_validation_end", "on_test_end"))
    def on_post_performance_check(self) -> None:
        """When validation or a test ends."""

    @hook(_MODULE, kind="override", stage="validate", returns=_TO_GO_ON_WITH, eras=_SINCE_0_7_AND_1_X)
    def validation_step_end(self, outputs: Any) -> Any:
        """After `validation_step`, with what it returned."""

    @hook(_MODULE, kind="override", stage="validate", returns=_TO_LOG, eras=_SINCE_0_7_AND_1_X)
    def validation_epoch_end(self, outputs: Any) -> Any:
        """When validation ends, with what its steps returned."""

    @hook(_MODULE, kind="override", stage="validate", returns=_TO_LOG, eras=_0_X, today=("validation_epoch_end",))
    def validation_end(self, outputs: Any) -> Any:
        """When validation ends, with what its steps returned: `validation_epoch_end` by its name up to 0.6."""

    @hook(_MODULE, kind="override", stage="test", returns=_TO_GO_ON_WITH, eras=_SINCE_0_7_AND_1_X)
    def test_step_end(self, outputs: Any) -> Any:
        """After `test_step`, with what it returned."""

    @hook(_MODULE, kind="override", stage="test", returns=_TO_LOG, eras=_SINCE_0_7_AND_1_X)
    def test_epoch_end(self, outputs: Any) -> Any:
        """When test ends, with what its steps returned."""

    @hook(_MODULE, kind="override", stage="test", returns=_TO_LOG, eras=_0_X, today=("test_epoch_end",))
    def test_end(self, outputs: Any) -> Any:
        """When test ends, with what its steps returned: `test_epoch_end` by its name up to 0.6."""

    @hook(_MODULE, stage="checkpoint", eras=_BEFORE_2_0, today=("on_save_checkpoint",))
    def on_hpc_save(self, checkpoint: dict[str, Any]) -> None:
        """When a checkpoint is about to be written, after `on_save_checkpoint`; before 2.0 only as a job of a cluster
        was about to end.
        """

    @hook(_MODULE, stage="checkpoint", eras=_BEFORE_2_0, today=("on_load_checkpoint",))
    def on_hpc_load(self, checkpoint: dict[str, Any]) -> None:
        """When a checkpoint is loaded, after `on_load_checkpoint`; before 2.0 only one that `on_hpc_save` took part
        in.
        """

    @hook(
        _CALLBACK,
        stage="exception",
        eras=_1_X,
        today=("on_exception",),
        condition="isinstance(exception, KeyboardInterrupt)",
        precedes=True,
    )
    def on_keyboard_interrupt(self) -> None:
        """When the user interrupts a verb."""


EVERYDAY_NAMES = frozenset({"summarize", "init_optimizers", "restore_weights"})
"""Names of old hooks that a class of today may well use for a method of its own: no evidence by themselves."""
