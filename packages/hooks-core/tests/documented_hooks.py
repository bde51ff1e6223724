"""What the five specification documents say, as tables."""

from __future__ import annotations

NO_ARGUMENTS: tuple[str, ...] = ()

ERA_0_5 = {
    "on_epoch_start": NO_ARGUMENTS,
    "on_epoch_end": NO_ARGUMENTS,
    "on_batch_start": NO_ARGUMENTS,
    "on_batch_end": NO_ARGUMENTS,
    "on_pre_performance_check": NO_ARGUMENTS,
    "on_post_performance_check": NO_ARGUMENTS,
    "optimizer_step": ("current_epoch", "batch_nb", "optimizer", "optimizer_i", "second_order_closure"),
    "on_before_zero_grad": ("optimizer",),
    "on_after_backward": NO_ARGUMENTS,
}
"""The nine hooks of the document of 0.5, with their arguments."""

ERA_0_7_TRAINING = (
    "on_epoch_start",
    "on_batch_start",
    "tbptt_split_batch",
    "training_step",
    "training_step_end",
    "on_before_zero_grad",
    "backward",
    "on_after_backward",
    "on_batch_end",
    "training_epoch_end",
    "on_epoch_end",
)
"""The training loop of the document of 0.7, in its order."""

ERA_0_7_SET_UP = (
    "init_ddp_connection",
    "init_optimizers",
    "configure_apex",
    "configure_ddp",
    "train_dataloader",
    "test_dataloader",
    "val_dataloader",
    "summarize",
    "restore_weights",
)

ERA_0_7_VALIDATION = ("validation_step", "validation_step_end", "validation_epoch_end", "on_post_performance_check")
ERA_0_7_TEST = ("test_step", "test_step_end", "test_epoch_end", "on_post_performance_check")

ERA_0_8 = {
    "backward": ("trainer", "loss", "optimizer", "optimizer_idx"),
    "on_after_backward": NO_ARGUMENTS,
    "on_batch_end": NO_ARGUMENTS,
    "on_batch_start": ("batch",),
    "on_before_zero_grad": ("optimizer",),
    "on_epoch_end": NO_ARGUMENTS,
    "on_epoch_start": NO_ARGUMENTS,
    "on_fit_end": NO_ARGUMENTS,
    "on_fit_start": NO_ARGUMENTS,
    "on_post_performance_check": NO_ARGUMENTS,
    "on_pre_performance_check": NO_ARGUMENTS,
    "on_sanity_check_start": NO_ARGUMENTS,
    "on_train_end": NO_ARGUMENTS,
    "on_train_start": NO_ARGUMENTS,
    "prepare_data": NO_ARGUMENTS,
    "setup": ("stage",),
    "teardown": ("stage",),
    "transfer_batch_to_device": ("batch", "device"),
}

ERA_2_0 = {
    "configure_sharded_model": NO_ARGUMENTS,
    "on_after_backward": NO_ARGUMENTS,
    "on_before_optimizer_step": ("optimizer",),
    "on_before_zero_grad": ("optimizer",),
    "on_fit_start": NO_ARGUMENTS,
    "on_predict_batch_end": ("outputs", "batch", "batch_idx", "dataloader_idx"),
    "on_predict_batch_start": ("batch", "batch_idx", "dataloader_idx"),
    "on_test_batch_end": ("outputs", "batch", "batch_idx", "dataloader_idx"),
    "on_test_batch_start": ("batch", "batch_idx", "dataloader_idx"),
    "on_train_batch_start": ("batch", "batch_idx"),
    "on_train_epoch_end": NO_ARGUMENTS,
    "on_validation_batch_end": ("outputs", "batch", "batch_idx", "dataloader_idx"),
    "on_validation_batch_start": ("batch", "batch_idx", "dataloader_idx"),
}

CALLBACKS, MODULE, STRATEGY = "callback", "module", "strategy"
EVERYONE = (CALLBACKS, MODULE, STRATEGY)
WITHOUT_STRATEGY = (CALLBACKS, MODULE)
ONLY_CALLBACKS = (CALLBACKS,)

_VALIDATION_2_X = (
    ("on_validation_start", EVERYONE),
    ("on_validation_epoch_start", EVERYONE),
    ("on_validation_batch_start", EVERYONE),
    ("on_validation_batch_end", EVERYONE),
    ("on_validation_epoch_end", EVERYONE),
    ("on_validation_end", EVERYONE),
)

FIT_2_X = (
    ("setup", ONLY_CALLBACKS),
    ("on_fit_start", EVERYONE),
    ("on_sanity_check_start", EVERYONE),
    *_VALIDATION_2_X,
    ("on_sanity_check_end", EVERYONE),
    ("on_train_start", EVERYONE),
    ("on_train_epoch_start", WITHOUT_STRATEGY),
    ("on_train_batch_start", EVERYONE),
    ("on_before_zero_grad", WITHOUT_STRATEGY),
    ("training_step", (STRATEGY,)),
    ("on_before_backward", WITHOUT_STRATEGY),
    ("backward", (STRATEGY,)),
    ("on_after_backward", WITHOUT_STRATEGY),
    ("on_before_optimizer_step", WITHOUT_STRATEGY),
    ("optimizer_step", (MODULE,)),
    ("on_train_batch_end", WITHOUT_STRATEGY),
    *_VALIDATION_2_X,
    ("on_train_epoch_end", WITHOUT_STRATEGY),
    ("on_train_end", EVERYONE),
    ("on_fit_end", EVERYONE),
    ("teardown", ONLY_CALLBACKS),
)
"""The tree of fit in the document of 2.x: each hook with its receivers, from top to bottom."""

TEST_2_X = (
    ("setup", ONLY_CALLBACKS),
    ("on_test_start", EVERYONE),
    ("on_test_epoch_start", EVERYONE),
    ("on_test_batch_start", EVERYONE),
    ("on_test_batch_end", EVERYONE),
    ("on_test_epoch_end", EVERYONE),
    ("on_test_end", EVERYONE),
    ("teardown", ONLY_CALLBACKS),
)

PREDICT_2_X = (
    ("setup", ONLY_CALLBACKS),
    ("on_predict_start", EVERYONE),
    ("on_predict_epoch_start", WITHOUT_STRATEGY),
    ("on_predict_batch_start", WITHOUT_STRATEGY),
    ("on_predict_batch_end", WITHOUT_STRATEGY),
    ("on_predict_epoch_end", WITHOUT_STRATEGY),
    ("on_predict_end", EVERYONE),
    ("teardown", ONLY_CALLBACKS),
)

DEVIATIONS_2_X = {
    "setup": (("callback", "data", "module"), "the document of 0.8 gives it to the module; data modules need it too"),
    "teardown": (("callback", "data", "module"), "as setup"),
    "training_step": (("module",), "the strategy runs the step, but the module is who defines it"),
    "backward": (("module",), "the strategy runs the default, but the module is who may replace it"),
}
"""Where the receivers differ from the document of 2.x: the receivers, and why."""
