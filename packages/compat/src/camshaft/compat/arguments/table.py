"""The trainer's arguments of releases 0.4 to 1.9, and today's that took other values then, as data."""

from __future__ import annotations

from collections.abc import Mapping

from camshaft.compat.arguments import readings
from camshaft.compat.arguments.translation import EarlierArgument, needless, refuse, rename

_SELECT_DEVICES = "Pass accelerator='gpu' with devices=[...], or set CUDA_VISIBLE_DEVICES."
_NO_TPU = refuse("there is no strategy for these devices", "Leave it out, and pass `accelerator` and `devices`.")
_IN_UPDATES = "counted in updates, not in batches"

_COUNTS_AND_LIMITS = (
    EarlierArgument("max_nb_epochs", ("0.4", "0.7"), "`max_epochs`", rename("max_epochs")),
    EarlierArgument("min_nb_epochs", ("0.4", "0.7"), "`min_epochs`", rename("min_epochs")),
    EarlierArgument("max_steps", ("0.7", "1.4"), "`max_steps=-1` for None", readings.same),
    EarlierArgument("nb_sanity_val_steps", ("0.4", "0.7"), "`num_sanity_val_steps`", rename("num_sanity_val_steps")),
    EarlierArgument(
        "train_percent_check", ("0.4", "0.9"), "`limit_train_batches`", readings.share_of("limit_train_batches")
    ),
    EarlierArgument("val_percent_check", ("0.4", "0.9"), "`limit_val_batches`", readings.share_of("limit_val_batches")),
    EarlierArgument(
        "test_percent_check", ("0.4", "0.9"), "`limit_test_batches`", readings.share_of("limit_test_batches")
    ),
    EarlierArgument(
        "overfit_pct", ("0.4", "0.9"), "`overfit_batches`", readings.share_of("overfit_batches"), (None, 0, 0.0)
    ),
    EarlierArgument(
        "reload_dataloaders_every_epoch",
        ("0.7", "1.5"),
        "`reload_dataloaders_every_n_epochs=1`",
        rename("reload_dataloaders_every_n_epochs", int),
        (None, False),
    ),
    EarlierArgument(
        "multiple_trainloader_mode",
        ("1.2", "1.9"),
        "`CombinedLoader(loaders, mode)`",
        refuse(
            "the loader itself says how several are combined",
            "Return `CombinedLoader(loaders, mode)` of `camshaft.loops` from `train_dataloader`, or pass it to fit.",
        ),
        (None, "max_size_cycle"),
    ),
    EarlierArgument(
        "replace_sampler_ddp",
        ("0.7", "1.9"),
        "`use_distributed_sampler`",
        rename("use_distributed_sampler"),
        (None, True),
    ),
    EarlierArgument(
        "prepare_data_per_node",
        ("0.8", "1.6"),
        "the attribute `prepare_data_per_node` of module or data module",
        readings.prepare_data_per_node,
        (None, True),
    ),
)

_OPTIMIZATION = (
    EarlierArgument(
        "gradient_clip", ("0.4", "0.7"), "`gradient_clip_val`", rename("gradient_clip_val"), (None, 0, 0.0)
    ),
    EarlierArgument(
        "gradient_clip_val", ("0.5", "1.9"), "`gradient_clip_val=None` for 0", readings.same, (None, 0, 0.0)
    ),
    EarlierArgument(
        "accumulate_grad_batches",
        ("0.4", "1.9"),
        "`GradientAccumulationScheduler(scheduling)` for a dictionary",
        readings.accumulation,
    ),
    EarlierArgument(
        "automatic_optimization",
        ("1.0", "1.2"),
        "`self.automatic_optimization = False` in the module",
        readings.manual_optimization,
        (None, True),
    ),
    EarlierArgument(
        "enable_pl_optimizer",
        ("1.1", "1.2"),
        "nothing: optimizers are torch's own",
        needless("is needless, because `self.optimizers()` gives optimizers whose `step` may be called as it is"),
    ),
    EarlierArgument(
        "stochastic_weight_avg",
        ("1.2", "1.6"),
        "`StochasticWeightAveraging(swa_lrs=None)`",
        readings.stochastic_weight_avg,
        (None, False),
    ),
    EarlierArgument("auto_lr_find", ("0.7", "1.9"), "`LearningRateFinder`", readings.lr_find, (None, False)),
    EarlierArgument(
        "auto_scale_batch_size", ("0.7", "1.9"), "`BatchSizeFinder`", readings.scale_batch_size, (None, False)
    ),
)

_DEVICES = (
    EarlierArgument("gpus", ("0.4", "1.9"), "`accelerator='gpu', devices=...`", readings.gpus),
    EarlierArgument(
        "auto_select_gpus",
        ("0.7", "1.9"),
        "`devices`",
        refuse("devices are never picked by looking which are free", _SELECT_DEVICES),
        (None, False),
    ),
    EarlierArgument(
        "num_processes", ("0.7", "1.9"), "`accelerator='cpu', devices=...`", readings.num_processes, (None, 1)
    ),
    EarlierArgument("nb_gpu_nodes", ("0.4", "0.7"), "`num_nodes`", rename("num_nodes")),
    EarlierArgument("num_tpu_cores", ("0.7", "0.8"), "nothing", _NO_TPU),
    EarlierArgument("tpu_cores", ("0.8", "1.9"), "nothing", _NO_TPU),
    EarlierArgument("ipus", ("1.4", "1.9"), "nothing", _NO_TPU),
    EarlierArgument("devices", ("1.4", "1.9"), "`devices='auto'` for None", readings.same),
    EarlierArgument("distributed_backend", ("0.4", "1.4"), "`strategy`", readings.backend),
    EarlierArgument("accelerator", ("1.0", "1.9"), "`strategy` for 'ddp' and its like", readings.accelerator),
    EarlierArgument(
        "strategy",
        ("1.5", "1.9"),
        "`strategy='ddp'` for 'ddp_spawn', 'sharded' for sharded ones",
        readings.strategy,
    ),
    EarlierArgument("plugins", ("1.0", "2.6"), "`strategy`, `precision`", readings.plugins, (None, [], ())),
)

_PRECISION = (
    EarlierArgument("use_amp", ("0.4", "0.8"), "`precision='16-mixed'`", readings.use_amp, (None, False)),
    EarlierArgument("amp_level", ("0.4", "1.9"), "`precision`", readings.amp_level),
    EarlierArgument("amp_backend", ("0.9", "1.9"), "`precision`", readings.amp_backend, (None, "native")),
)

_OBSERVATION = (
    EarlierArgument("experiment", ("0.4", "0.5.0"), "`logger`", rename("logger")),
    EarlierArgument(
        "row_log_interval", ("0.5", "0.9"), "`log_every_n_steps`", rename("log_every_n_steps", remark=_IN_UPDATES)
    ),
    EarlierArgument(
        "add_row_log_interval", ("0.5", "0.7"), "`log_every_n_steps`", rename("log_every_n_steps", remark=_IN_UPDATES)
    ),
    EarlierArgument(
        "add_log_row_interval", ("0.4", "0.4"), "`log_every_n_steps`", rename("log_every_n_steps", remark=_IN_UPDATES)
    ),
    EarlierArgument(
        "log_save_interval",
        ("0.4", "0.9"),
        "`CSVLogger(flush_logs_every_n_steps=...)`",
        readings.flush_logs,
        (None, 100),
    ),
    EarlierArgument(
        "flush_logs_every_n_steps",
        ("1.0", "1.6"),
        "`CSVLogger(flush_logs_every_n_steps=...)`",
        readings.flush_logs,
        (None, 100),
    ),
    EarlierArgument("log_gpu_memory", ("0.4", "1.6"), "`DeviceStatsMonitor()`", readings.log_gpu_memory, (None, False)),
    EarlierArgument(
        "track_grad_norm", ("0.4", "1.9"), "`GradientNorms(norm_type)`", readings.track_grad_norm, (None, -1, -1.0)
    ),
    EarlierArgument(
        "print_nan_grads",
        ("0.4", "0.8"),
        "`NonFiniteGuard(action='warn', check_gradients=True)`",
        readings.print_nan_grads,
        (None, False),
    ),
    EarlierArgument("terminate_on_nan", ("0.7", "1.6"), "`NonFiniteGuard()`", readings.terminate_on_nan, (None, False)),
    EarlierArgument(
        "move_metrics_to_cpu",
        ("1.1", "1.9"),
        "the attribute `outputs_on_cpu` of the module",
        readings.move_metrics_to_cpu,
        (None, False),
    ),
    EarlierArgument("show_progress_bar", ("0.4", "0.8"), "`enable_progress_bar`", rename("enable_progress_bar", bool)),
    EarlierArgument(
        "progress_bar_refresh_rate",
        ("0.7", "1.6"),
        "`enable_progress_bar`, `RichProgressBar(refresh_rate)`",
        readings.progress_bar_refresh_rate,
    ),
    EarlierArgument(
        "progress_bar_callback",
        ("0.7", "0.7"),
        "`callbacks`, `enable_progress_bar`",
        readings.callback_or_switch("enable_progress_bar"),
    ),
    EarlierArgument(
        "process_position",
        ("0.4", "1.6"),
        "nothing",
        refuse(
            "a progress bar draws at the end of the output",
            "Leave it out, and let one of the runs have enable_progress_bar=False.",
        ),
        (None, 0),
    ),
    EarlierArgument(
        "weights_summary",
        ("0.5", "1.6"),
        "`enable_model_summary`, `ModelSummary(max_depth)`",
        readings.weights_summary,
        ("top",),
        default="top",
    ),
    EarlierArgument(
        "print_weights_summary",
        ("0.4", "0.5.0"),
        "`enable_model_summary`",
        rename("enable_model_summary", bool),
        (None, True),
    ),
)

_FILES = (
    EarlierArgument(
        "checkpoint_callback",
        ("0.4", "1.6"),
        "`enable_checkpointing`, `callbacks`",
        readings.callback_or_switch("enable_checkpointing"),
    ),
    EarlierArgument(
        "early_stop_callback",
        ("0.4", "0.9"),
        "`callbacks=[EarlyStopping('val_loss')]`",
        readings.early_stop_callback,
        (None, False),
    ),
    EarlierArgument("default_save_path", ("0.5", "0.7"), "`default_root_dir`", rename("default_root_dir")),
    EarlierArgument("weights_save_path", ("0.4", "1.7"), "`ModelCheckpoint(dirpath)`", readings.weights_save_path),
    EarlierArgument("resume_from_checkpoint", ("0.6", "1.9"), "`fit(ckpt_path=...)`", readings.resume_from_checkpoint),
)

EARLIER_ARGUMENTS: Mapping[str, EarlierArgument] = {
    row.name: row for row in (*_COUNTS_AND_LIMITS, *_OPTIMIZATION, *_DEVICES, *_PRECISION, *_OBSERVATION, *_FILES)
}
"""The arguments of earlier releases by name."""
