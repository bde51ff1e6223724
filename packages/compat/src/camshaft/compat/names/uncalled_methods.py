"""Methods of Lightning's callbacks that ours never call: overrides of them are warned of when a run is set up."""

from __future__ import annotations

_TABLE = {
    "BaseFinetuning": {"`state_dict` keeps the groups' parameters.": "_apply_mapping_to_param_groups _store"},
    "DeviceStatsMonitor": {"Override `on_train_batch_start` and `on_train_batch_end`.": "_get_and_log_device_stats"},
    "GradientAccumulationScheduler": {
        "Override `get_accumulate_grad_batches`.": "going_to_accumulate_grad_batches",
    },
    "LearningRateMonitor": {
        "Name the schedulers and groups with `name`, or log the values in a callback of your own.": """
            _add_prefix _add_suffix _check_duplicates_and_update_name _duplicate_param_group_names
            _find_names_from_optimizers _find_names_from_schedulers _remap_keys""",
    },
    "ModelPruning": {
        "Override `apply_pruning`, `apply_lottery_ticket_hypothesis` or `make_pruning_permanent`.": """
            _apply_global_pruning _apply_local_pruning _copy_param _create_pruning_fn _get_pruned_stats
            _is_pruning_method _log_sparsity_stats _make_pruning_permanent_on_state_dict _resolve_global_kwargs
            _wrap_pruning_fn""",
    },
    "ModelSummary": {
        "Override `print(summary)`, or `on_fit_start`, and use `camshaft.callbacks.summarize(module)`.": """
            _summary summarize""",
    },
    "StochasticWeightAveraging": {
        "Pass `swa_epoch_start`.": "swa_start swa_end",
        "Pass `swa_lrs`.": "_clear_schedulers",
        "Subclass `WeightAveraging` for averages of your own.": """
            transfer_weights update_parameters reset_batch_norm_and_save_state reset_momenta
            pl_module_contains_batch_norm _load_average_model_state""",
    },
    "ThroughputMonitor": {"Use `Throughput` in a callback of your own.": "_start _update _compute"},
    "Timer": {
        "Override `time_elapsed`.": "start_time end_time",
        "Set `trainer.should_stop` in `on_train_batch_end`.": "_check_time_remaining",
    },
}

UNCALLED = {
    cls: {name: action for action, names in actions.items() for name in names.split()}
    for cls, actions in _TABLE.items()
}
"""By class of `camshaft.callbacks`, the methods and what to do instead; hooks-core reads it as `_uncalled_methods`."""
