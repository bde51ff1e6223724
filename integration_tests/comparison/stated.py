"""Differences from Lightning 2.6 that no drawn run shows: each names the test that proves what camshaft does."""

from __future__ import annotations

import attrs

from comparison.difference import Described


@attrs.frozen(kw_only=True)
class Stated(Described):
    """A difference that a test of its own proves.

    Args:
        proof: The test, as `path::name`.
    """

    proof: str


STATED: tuple[Stated, ...] = (
    Stated(
        name="methods with nearly a hook's name",
        topic="hooks",
        lightning="ignores `training_batch_end` and the like",
        camshaft="raises at set-up, with the hook that is meant",
        reason="a hook that is never called is found on the day it is written",
        write="Rename the method, or mark it with `@not_a_hook`.",
        proof="packages/hooks-core/tests/test_inspection.py::test_a_method_with_nearly_a_hooks_name_is_a_fault",
    ),
    Stated(
        name="an old hook's name with arguments of no release",
        topic="hooks",
        lightning="never calls it",
        camshaft="never calls it, and warns",
        reason="it may be the user's own method, or a mistake",
        write="Mark it with `@not_a_hook`.",
        proof=(
            "packages/hooks-core/tests/test_faults.py"
            "::test_an_old_hooks_name_with_a_signature_of_no_era_is_the_users_own_and_a_warning"
        ),
    ),
    Stated(
        name="the module's name in calls of callbacks' methods",
        topic="hooks",
        lightning="`pl_module`",
        camshaft="`module`; under the import names as Lightning",
        reason="it is a module of any framework",
        write="Pass trainer and module by position: `super().setup(trainer, pl_module, stage)`.",
        proof="packages/compat/tests/test_import_names_callbacks.py::test_an_override_hands_everything_on_by_name",
    ),
    Stated(
        name="steps without a place for the loader's index",
        topic="hooks",
        lightning="raises where there are several loaders; raises for a required `dataloader_idx` with a single one",
        camshaft="calls the step without the index; passes 0",
        reason="every step that can be called is called",
        write="Write `dataloader_idx=0` last; it is right in both.",
        proof="integration_tests/test_variadic_against_lightning.py::test_a_step_gets_the_same",
    ),
    Stated(
        name="the stage that `setup` and `teardown` get",
        topic="hooks",
        lightning='a member of `TrainerFn`, which equals "fit" and prints as `TrainerFn.FITTING`',
        camshaft='the text "fit"',
        reason="modules of every release read it",
        write='Compare it with "fit" or `TrainerFn.FITTING` by `==`; `TrainerFn(stage)` is the member.',
        proof=(
            "integration_tests/test_trainer_surface_against_lightning.py"
            "::test_the_stage_of_setup_is_a_plain_text_that_equals_lightnings"
        ),
    ),
    Stated(
        name="totals of validation batches within fit",
        topic="hooks",
        lightning="begin anew with each training epoch in `val_loop.batch_progress.total`",
        camshaft="count all validations of the trainer",
        reason="a total is one",
        write="Read `val_loop.batch_progress.current` for those of the last validation.",
        proof="packages/compat/tests/test_loops_of_lightning.py::test_loops_count_under_lightnings_names",
    ),
    Stated(
        name="rounding in `EMAWeightAveraging`",
        topic="callbacks",
        lightning="rounds `decay * average` and `(1 - decay) * weight`, then their sum",
        camshaft="interpolates in place by torch's `lerp`, which may differ in the last bits",
        reason="it needs no copy of the weights, and one operation for all of them",
        write="Compare with a tolerance; `WeightAveraging(avg_fn=get_ema_avg_fn(decay))` rounds as Lightning.",
        proof=(
            "packages/callbacks/tests/test_weight_averaging.py"
            "::test_the_average_decays_exponentially_from_where_it_begins"
        ),
    ),
    Stated(
        name="order of a loader that shuffles by a generator of its own",
        topic="data",
        lightning="leaves the sampler where a full last batch left it, so that the next epoch has another order",
        camshaft="lets the sampler come to its end, as a loop by hand does; under the import names as Lightning",
        reason="every epoch has the order that it has in a loop by hand",
        write="Run the file by `python -m camshaft.compat run` for Lightning's order.",
        proof=(
            "integration_tests/test_loader_order_against_lightning.py"
            "::test_a_trainer_of_today_has_the_order_of_a_plain_loop"
        ),
    ),
    Stated(
        name="runs that nothing ends",
        topic="optimization",
        lightning="goes on for ever where `max_epochs=-1` and every loss is None",
        camshaft="raises after an epoch without an update, unless `max_time` or code with `should_stop` may end it",
        reason="a job that can never end is a mistake",
        write="Pass `max_epochs` or `max_time`.",
        proof=(
            "packages/loops/tests/test_endless_runs.py"
            "::test_an_epoch_without_any_loss_is_an_error_where_only_updates_could_end_the_run"
        ),
    ),
    Stated(
        name="second evaluation of a closure within an accumulation window",
        topic="optimization",
        lightning="adds the gradients of the second evaluation to those of the window",
        camshaft="raises",
        reason="SAM and its like would follow wrong gradients",
        write="Pass `accumulate_grad_batches=1`, or optimize by hand.",
        proof="packages/loops/tests/test_own_closures.py::test_one_that_evaluates_twice_cannot_accumulate_and_says_so",
    ),
    Stated(
        name="order of a loader with a generator of its own",
        topic="data",
        lightning="leaves its sampler where the last batch was, if that was full",
        camshaft="lets its sampler come to its end in each epoch; `camshaft.compat.Trainer` leaves it there, too",
        reason="the order is that of a plain loop",
        write=(
            "Run the file by `python -m camshaft.compat run`, or expect other shuffling from the second epoch on with "
            "`DataLoader(shuffle=True, generator=...)`."
        ),
        proof=(
            "integration_tests/test_loader_order_against_lightning.py"
            "::test_a_trainer_of_today_has_the_order_of_a_plain_loop"
        ),
    ),
    Stated(
        name="the data module of an earlier verb",
        topic="data",
        lightning="sets it up again for a verb that gets loaders instead, and keeps it as `trainer.datamodule`",
        camshaft="leaves it out, and has no `trainer.datamodule` then",
        reason="a verb prepares what it was given",
        write="Pass `datamodule=` to each verb that needs it.",
        proof="packages/trainer/tests/test_data_module.py::test_a_verb_leaves_out_the_data_module_of_an_earlier_one",
    ),
    Stated(
        name="16-mixed on a CPU",
        topic="optimization",
        lightning="computes in bfloat16, with a warning",
        camshaft="computes in float16 with a gradient scaler; under the import names as Lightning",
        reason="torch has it, and a name means the same on every device",
        write='Pass `precision="bf16-mixed"` for bfloat16.',
        proof=("packages/compat/tests/test_todays_surface.py::test_mixed_float16_on_a_cpu_is_bfloat16_with_a_warning"),
    ),
    Stated(
        name="overrides of `optimizer_step` in strategies and precisions",
        topic="optimization",
        lightning="calls them around forward and backward",
        camshaft="calls them after both, with a closure that returns the loss",
        reason="there is no closure where no optimizer and no module needs one",
        write="Override `optimizer_step` of the module to do something before and after both.",
        proof=(
            "packages/compat/tests/test_import_names_strategies.py"
            "::test_overrides_get_lightnings_arguments_in_their_order"
        ),
    ),
    Stated(
        name="overrides of strategies that nothing calls",
        topic="hooks",
        lightning="calls `all_gather`, `_configure_launcher` and the like",
        camshaft="warns once, when the strategy is used, and names them",
        reason="collectives and launchers are not the strategy's, or work in another way",
        write="Do it in a method that is called, or in a callback.",
        proof=(
            "packages/compat/tests/test_import_names_strategies.py::test_what_is_never_called_is_told_of_once_in_use"
        ),
    ),
    Stated(
        name="`trainer.strategy.all_gather(tensor)`",
        topic="hooks",
        lightning="returns a stacked tensor; the tensor itself on one device",
        camshaft="returns a list of the values of all ranks, of any type",
        reason="callbacks and loops gather what is no tensor",
        write="Call `all_gather` of the module for a stacked tensor.",
        proof=(
            "packages/compat/tests/test_import_names_strategies.py"
            "::test_a_strategy_gathers_a_list_and_the_module_a_tensor"
        ),
    ),
    Stated(
        name="checkpoints of `FSDPStrategy`",
        topic="checkpoints",
        lightning="are one file, unless `state_dict_type` is 'sharded'",
        camshaft="are folders, into which every rank writes its part; a warning says so",
        reason="no rank has room for the whole state of a large model",
        write="Read whole tensors by `camshaft.strategies.read_checkpoint`.",
        proof="packages/compat/tests/test_import_names_strategies.py::test_arguments_without_effect_are_told_of",
    ),
    Stated(
        name="closures under 16-mixed",
        topic="optimization",
        lightning="steps optimizers without their closure",
        camshaft="gives them the closure; an overflow in any evaluation skips the step",
        reason="SAM and its like need it in every precision",
        write="Nothing.",
        proof=(
            "packages/trainer/tests/test_trainer_optimization.py"
            "::test_an_optimizer_that_evaluates_twice_trains_in_every_precision"
        ),
    ),
    Stated(
        name="steps that never read their closure",
        topic="optimization",
        lightning="raises",
        camshaft="computes gradients before the step",
        reason="such optimizers are written for loops by hand",
        write="Nothing.",
        proof=(
            "packages/loops/tests/test_own_closures.py::test_one_that_never_reads_its_closure_is_stepped_with_gradients"
        ),
    ),
    Stated(
        name="what is compiled of `trainer.fit(torch.compile(module))`",
        topic="optimization",
        lightning="the steps and `forward`, with what a step computes by itself, such as the loss",
        camshaft="`forward` and the submodules that the steps call, as by `Trainer(compile=True)`",
        reason="a step keeps its frames, hooks and logging outside of graphs; equal blocks share one graph",
        write="Nothing; `self.training_step = torch.compile(self.training_step)` in `__init__` compiles the loss, too.",
        proof="packages/compat/tests/test_compiled_modules.py::test_a_compiled_module_runs_every_verb",
    ),
    Stated(
        name="the type of what `optimizers()` returns",
        topic="optimization",
        lightning="a `LightningOptimizer` around each optimizer, in `optimizer_step` as well",
        camshaft="the optimizer itself, with `optimizer` and `toggle_model`",
        reason="objects of users stay themselves; what an object lacks of torch's optimizers is put on it",
        write="Nothing; `isinstance(optimizer, LightningOptimizer)` is false.",
        proof="packages/loops/tests/test_foreign_optimizer.py::test_a_wrapper_trains_as_by_hand_and_its_steps_count",
    ),
    Stated(
        name="loaders that give fewer batches than their length",
        topic="data",
        lightning="ends the epoch",
        camshaft="raises",
        reason="schedulers and limits were counted by the length",
        write="Make `__len__` right, or leave it out.",
        proof="packages/loops/tests/test_batches.py::test_a_loader_that_gives_less_than_it_promised_is_an_error",
    ),
    Stated(
        name="batch samplers that shuffle by epoch",
        topic="data",
        lightning="calls `set_epoch` of a sampler, but not of a batch sampler that has it; 1.9 did",
        camshaft="calls it, as that of every sampler within another",
        reason="each epoch has an order of its own",
        write="Nothing.",
        proof="packages/loops/tests/test_batches.py::test_samplers_are_told_the_epoch",
    ),
    Stated(
        name="random numbers and order under `ddp` and `fsdp`",
        topic="data",
        lightning=(
            "seeds again when the strategy is set up, and shuffles by a `DistributedSampler` with the seed of "
            "`seed_everything`, on one device, too"
        ),
        camshaft="leaves random numbers as they are, and shares out the order of one process; import names as well",
        reason="the batches of all processes together are those of one process with larger batches",
        write="Pass a loader with a `DistributedSampler`, and `use_distributed_sampler=False`, for Lightning's order.",
        proof=(
            "packages/loops/tests/test_shared_loader.py"
            "::test_training_batches_of_all_ranks_are_together_those_of_one_with_larger_batches"
        ),
    ),
    Stated(
        name="datasets and loaders that shuffle by epoch",
        topic="data",
        lightning="calls no `set_epoch` of theirs: `shuffle` of `datasets` gives each epoch the same order",
        camshaft="calls it before each epoch; `camshaft.compat.Trainer` does not, either",
        reason="each epoch has an order of its own",
        write="Run the file by `python -m camshaft.compat run` for the same order in all epochs, or call it in a hook.",
        proof="packages/loops/tests/test_stateful_streams.py::test_datasets_are_told_the_epoch",
    ),
    Stated(
        name="batches that are None",
        topic="data",
        lightning="warns, calls `on_train_batch_end` alone, and counts them into accumulation windows",
        camshaft=(
            "warns and calls no hook; they count as batches of the epoch, and belong to no window. A last one closes "
            "none, as in Lightning: what an open window holds is left out"
        ),
        reason="a batch that is skipped is none",
        write="Nothing, or filter the samples in the dataset.",
        proof="packages/loops/tests/test_batches.py::test_batches_of_none_are_counted_and_left_out",
    ),
    Stated(
        name="a fixed `filename` with `save_top_k=-1`",
        topic="checkpoints",
        lightning="writes the same file each time, unless values are monitored",
        camshaft="keeps all, as `name.ckpt`, `name-v1.ckpt` and so on",
        reason="all are asked for",
        write="Leave out `save_top_k` to keep the newest alone.",
        proof="packages/callbacks/tests/test_model_checkpoint.py::test_a_fixed_name_for_all_keeps_a_version_of_each",
    ),
    Stated(
        name='`ckpt_path="last"` without `save_last`',
        topic="checkpoints",
        lightning="warns and loads nothing, since it looks for files named `last` alone",
        camshaft="takes the newest checkpoint in the folders of the callbacks",
        reason="a run that goes on from it loses nothing",
        write="Leave out `ckpt_path` where nothing is to be loaded.",
        proof="packages/trainer/tests/test_ckpt_path.py::test_it_is_found_in_the_folders_that_file_names_ask_for",
    ),
    Stated(
        name="objects in checkpoints",
        topic="checkpoints",
        lightning="refuses the whole file where `weights_only` is true",
        camshaft="reads all else, and names the arguments that are missing",
        reason="weights are of use without the objects",
        write="Pass the argument, or `weights_only=False` if the file is trusted. Torch's variables count, too.",
        proof=(
            "packages/trainer/tests/test_checkpoint_objects.py"
            "::test_without_trust_the_arguments_that_lack_are_named_also_those_with_a_default"
        ),
    ),
    Stated(
        name="slashes in the metrics of a checkpoint's name",
        topic="checkpoints",
        lightning="makes folders: `{val/loss}` becomes `val/loss=0.5`",
        camshaft="writes `val_loss=0.5`; under the import names as Lightning",
        reason="checkpoints lie in one folder",
        write="Pass `auto_insert_metric_name=False`, and write the names into `filename`.",
        proof=(
            "integration_tests/test_model_checkpoint_against_lightning.py"
            "::test_a_name_with_slashes_makes_folders_under_the_import_names_alone"
        ),
    ),
    Stated(
        name="when last.ckpt moves",
        topic="checkpoints",
        lightning="leaves it where it is when no checkpoint is among the best `save_top_k`",
        camshaft="moves it at every time that is due",
        reason="a run that goes on from it loses nothing",
        write="Read `best_model_path` for the best.",
        proof=(
            "integration_tests/test_model_checkpoint_against_lightning.py"
            "::test_last_is_the_newest_also_where_nothing_was_good_enough_to_be_kept"
        ),
    ),
    Stated(
        name="hyperparameters of command lines",
        topic="checkpoints",
        lightning="imports every class that a checkpoint of LightningCLI names, in `load_from_checkpoint` and for "
        "`--ckpt_path`",
        camshaft="imports them where `weights_only=False` says so, and else refuses such a file",
        reason="a name in a file is not imported",
        write="Pass `weights_only=False`, or `--weights_only=false`, for files that you trust.",
        proof=(
            "packages/trainer/tests/test_trainer_cli.py"
            "::test_classes_that_a_checkpoint_names_are_imported_only_where_it_is_trusted"
        ),
    ),
    Stated(
        name="options that `--ckpt_path` replaces",
        topic="checkpoints",
        lightning="replaces the module's options by the hyperparameters of the checkpoint in silence",
        camshaft="does so with a warning that lists them",
        reason="options that were written are of no effect",
        write="Leave them out.",
        proof="packages/trainer/tests/test_trainer_cli.py::test_a_checkpoint_decides_on_the_arguments_of_the_module",
    ),
    Stated(
        name="checkpoints from an address",
        topic="checkpoints",
        lightning="unpickles what http:// and https:// give, unless `weights_only` is true",
        camshaft="unpickles objects only for `weights_only=False`, wherever the file is",
        reason="a file from elsewhere is trusted least",
        write="Pass `weights_only=False` if the address is trusted.",
        proof="packages/strategies/tests/test_contents.py::test_a_checkpoint_is_read_from_a_file_object_and_from_an_address",
    ),
    Stated(
        name="hyperparameters that cannot be pickled",
        topic="checkpoints",
        lightning="drops all hyperparameters, with a warning",
        camshaft="drops and names that one",
        reason="the others are kept",
        write="Pass it to `load_from_checkpoint`.",
        proof=(
            "packages/trainer/tests/test_checkpoint_objects.py"
            "::test_what_could_not_be_pickled_is_named_when_it_is_loaded"
        ),
    ),
    Stated(
        name="arguments that a constructor does not take",
        topic="checkpoints",
        lightning="`load_from_checkpoint` drops them in silence",
        camshaft="drops them with a warning that names them",
        reason="a misspelt argument is noticed",
        write="Leave them out.",
        proof=(
            "packages/trainer/tests/test_checkpoint_objects.py"
            "::test_arguments_that_a_constructor_does_not_take_are_left_out_with_a_warning"
        ),
    ),
    Stated(
        name="numbers of NumPy in checkpoints",
        topic="checkpoints",
        lightning="keeps their type",
        camshaft="keeps Python numbers",
        reason="they are read without unpickling",
        write="Convert them where the type matters.",
        proof=(
            "packages/strategies/tests/test_checkpoint_file.py"
            "::test_numpy_scalars_and_dictionary_subclasses_become_plain"
        ),
    ),
    Stated(
        name="metrics that are missing in a file's name",
        topic="checkpoints",
        lightning="writes 0 in their place",
        camshaft="raises with the names that were logged",
        reason="two files would have one name",
        write=("Log the metric, or leave it out; `ModelCheckpoint` under the import names writes 0 and warns."),
        proof=(
            "packages/callbacks/tests/test_checkpoint_names.py"
            "::test_a_metric_that_was_not_logged_is_named_with_those_that_were"
        ),
    ),
    Stated(
        name="resuming inside an accumulation window",
        topic="checkpoints",
        lightning="forgets the gradients that wait",
        camshaft="restores them, and which of them are still to be averaged over processes",
        reason="resuming is exact",
        write="Nothing.",
        proof=(
            "packages/trainer/tests/test_trainer_ddp.py"
            "::test_a_window_that_was_stopped_inside_averages_what_its_last_batch_leaves_out"
        ),
    ),
    Stated(
        name="overrides that are never called",
        topic="callbacks",
        lightning="calls its private methods",
        camshaft="calls those that libraries override, and warns once in use of the others, with what to use",
        reason="an override that does nothing is a silent mistake",
        write="Follow the warning's advice.",
        proof="integration_tests/test_stock_callback_overrides.py::test_an_override_is_called_or_said_not_to_be",
    ),
    Stated(
        name="weights before the first average",
        topic="callbacks",
        lightning="validates, saves and ends with the untrained copy",
        camshaft="uses the weights of training, and warns if nothing was averaged",
        reason="an average of nothing is no model",
        write="Start averaging earlier.",
        proof=(
            "packages/callbacks/tests/test_weight_averaging.py"
            "::test_before_the_first_average_validation_sees_the_weights_of_training"
        ),
    ),
    Stated(
        name="`BackboneFinetuning(train_bn=False)`",
        topic="callbacks",
        lightning="unfreezes batch normalization all the same",
        camshaft="keeps it frozen",
        reason="the argument says so",
        write="Pass `train_bn=True`.",
        proof=(
            "packages/callbacks/tests/test_finetuning.py"
            "::test_batch_normalisation_stays_frozen_if_it_is_not_to_be_trained"
        ),
    ),
    Stated(
        name="`StochasticWeightAveraging`",
        topic="callbacks",
        lightning=(
            "leaves out the weights after the last epoch, and updates batch normalization in a further epoch that also "
            "steps the optimizer; stopped early, it drops the average"
        ),
        camshaft=(
            "takes them in (not under the import names), recomputes the statistics without an epoch, and always "
            "applies the average"
        ),
        reason="the average is over all epochs, and no step follows it",
        write="Import it from `lightning.pytorch.callbacks` for the average without the last epoch.",
        proof=(
            "integration_tests/test_stock_callbacks_against_lightning.py"
            "::test_the_import_names_swa_averages_as_lightnings"
        ),
    ),
    Stated(
        name="`ModelPruning`'s lottery ticket",
        topic="callbacks",
        lightning="trains the values from before training after the first time",
        camshaft="always goes back to these values",
        reason="the paper does",
        write="Nothing.",
        proof="packages/trainer/tests/test_model_pruning.py::test_a_fit_that_is_resumed_has_the_same_masks",
    ),
    Stated(
        name='`Timer.time_elapsed("validate")`',
        topic="callbacks",
        lightning="counts the sanity check",
        camshaft="does not",
        reason="the sanity check leaves no trace",
        write="Nothing.",
        proof="packages/callbacks/tests/test_timer.py::test_the_sanity_check_is_not_counted",
    ),
    Stated(
        name="losses and batches of `SpikeDetection`",
        topic="callbacks",
        lightning="ends training if the loss of any process jumps, and lists indices of batches in `bad_batches`",
        camshaft="goes by the mean over processes, and lists epoch and index",
        reason="all decide alike without waiting for the device at every batch; an index alone names no batch",
        write='Read `[bad["batch_idx"] for bad in callback.bad_batches]`.',
        proof=(
            "packages/callbacks/tests/test_spike_detection.py"
            "::test_a_spike_raises_with_its_place_and_is_written_with_the_batch_before"
        ),
    ),
    Stated(
        name="indices that a prediction writer cannot know",
        topic="callbacks",
        lightning="passes an empty list",
        camshaft="passes None",
        reason="no samples and unknown samples are told apart",
        write="Test `batch_indices is None`.",
        proof=(
            "packages/callbacks/tests/test_prediction_writer.py"
            "::test_samples_are_known_where_the_order_is_fixed_and_else_not"
        ),
    ),
    Stated(
        name="the suggested learning rate and the margin of a batch size",
        topic="callbacks",
        lightning=(
            "goes by the loss over the rate, also in an exponential search, which is nearly always a small rate; "
            "always leaves the margin"
        ),
        camshaft=(
            "goes by the logarithm of the rate in an exponential search, and suggests none where the loss does not "
            "fall; leaves the margin where memory ran out"
        ),
        reason="the suggestion is one that trains",
        write="Take `Tuner` and the finders under the import names, which follow Lightning's rules.",
        proof="integration_tests/test_tuner_against_lightning.py::test_a_rate",
    ),
    Stated(
        name="steps of a search",
        topic="callbacks",
        lightning="calls every hook of the module, and counts in `global_step`",
        camshaft="calls `training_step`, zeroing, backward and the optimizer's step",
        reason="a search leaves no trace",
        write="Nothing.",
        proof="packages/trainer/tests/test_tuner.py::test_a_search_for_a_rate_leaves_all_but_the_rate_as_it_was",
    ),
    Stated(
        name="`PyTorchProfiler` where validation has fewer than five batches",
        topic="callbacks",
        lightning="records the whole fit",
        camshaft="goes on with the schedule of training",
        reason="memory does not grow with the steps",
        write="Pass `schedule=None` to record everything.",
        proof="packages/trainer/tests/test_trainer_profilers.py::test_reports_lie_in_the_log_folder",
    ),
    Stated(
        name="event files and predictions at URLs",
        topic="callbacks",
        lightning="hands the URL to TensorBoard, and to its writers of predictions",
        camshaft="raises when the logger or callback is made; the other files may be there, "
        "see [files.md](../how-it-works/files.md)",
        reason="such a file would be replaced at every flush, or is written by a library without URLs",
        write="Log with `CSVLogger`, or write to a local folder and copy it afterwards.",
        proof="packages/callbacks/tests/test_logs_in_stores.py::test_what_writes_with_a_library_of_its_own_takes_no_url",
    ),
    Stated(
        name="loaders that do not follow the size that is searched",
        topic="callbacks",
        lightning="tries the same batches again and again, and sets a size that means nothing",
        camshaft="raises",
        reason="the size that was found would be of no use",
        write="Build the loader with the attribute, each time that it is asked for.",
        proof="packages/trainer/tests/test_batch_size_finder.py::test_a_loader_that_does_not_follow_the_size_is_an_error",
    ),
    Stated(
        name="groups of one name in `LearningRateMonitor`",
        topic="callbacks",
        lightning="raises",
        camshaft="appends a number to the name",
        reason="each rate is logged under a name of its own",
        write="Nothing.",
        proof=(
            "packages/callbacks/tests/test_learning_rate_monitor.py"
            "::test_groups_are_told_apart_by_name_or_number_also_those_that_come_later"
        ),
    ),
    Stated(
        name="the first batch in `ThroughputMonitor`",
        topic="callbacks",
        lightning="counts its time, from on_train_start on, and writes a row without rates",
        camshaft="leaves it out, and writes the first row once there is another",
        reason="the first batch warms up, and would lower every later rate of its window",
        write="Nothing.",
        proof=(
            "packages/callbacks/tests/test_throughput_monitor.py"
            "::test_rates_leave_the_first_batch_out_and_rows_come_every_n_updates"
        ),
    ),
    Stated(
        name="rows of `ThroughputMonitor`",
        topic="callbacks",
        lightning=(
            "writes rows within a validation of fit, with its batches as the step, and the epoch in rows of training; "
            "takes the module's `flops_per_batch` in every stage"
        ),
        camshaft=(
            "writes one row at that validation's end, with the step of training, and no epoch; takes "
            "`flops_per_batch` for training, unless it has numbers by stage"
        ),
        reason="rows of one file share their steps, and a validation batch needs fewer operations",
        write='Pass `flops_per_batch={"train": ..., "validate": ...}`; join rows by their `step`.',
        proof=(
            "packages/callbacks/tests/test_throughput_monitor.py"
            "::test_validation_within_training_takes_no_training_time"
        ),
    ),
    Stated(
        name="reports of profilers and of `ModelPruning(verbose=1)`",
        topic="callbacks",
        lightning="writes them by Python's `logging`, at the level INFO",
        camshaft="prints them",
        reason="they are shown without a configuration of logging",
        write="Pass `dirpath` and `filename` to have a profiler's report in a file.",
        proof=(
            "packages/callbacks/tests/test_action_profilers.py"
            "::test_a_report_is_appended_to_the_file_of_its_stage_or_printed"
        ),
    ),
    Stated(
        name="rows of `LearningRateMonitor` within an accumulation window",
        topic="callbacks",
        lightning="writes the same row for each batch of the update",
        camshaft="writes one for each update that is logged",
        reason="a rate belongs to an update",
        write="Nothing.",
        proof=(
            "packages/callbacks/tests/test_learning_rate_monitor.py"
            "::test_an_update_of_several_batches_has_one_row_at_most"
        ),
    ),
    Stated(
        name="files of loggers",
        topic="callbacks",
        lightning="writes hyperparameters to `hparams.yaml`; sorts the columns of `metrics.csv`",
        camshaft="writes them to `hparams.json`, under the import names to `hparams.yaml`; keeps columns as they come",
        reason="JSON needs no further library, and columns do not move when one is added",
        write="Read columns by their names.",
        proof="packages/callbacks/tests/test_csv_logger.py::test_hyperparameters_are_written_at_once_and_added_to",
    ),
    Stated(
        name="paths of checkpoints",
        topic="checkpoints",
        lightning="keeps `best_model_path` and `last_model_path` relative where the logger's folder is",
        camshaft="keeps them absolute",
        reason="they hold after a change of the working directory",
        write="Compare names, or `Path(path).resolve()`.",
        proof="packages/callbacks/tests/test_model_checkpoint.py::test_paths_are_absolute",
    ),
    Stated(
        name="checkpoints beside a logger of one's own",
        topic="checkpoints",
        lightning="puts them into `<save_dir>/<name>/<version>/checkpoints`",
        camshaft="puts them into `<log_dir>/checkpoints`; under the import names as Lightning",
        reason="a logger knows the folder of its run",
        write="Pass `dirpath` if the folder matters.",
        proof=(
            "integration_tests/test_logger_folders_against_lightning.py::test_checkpoints_beside_a_logger_of_ones_own"
        ),
    ),
    Stated(
        name="versions of file loggers",
        topic="callbacks",
        lightning="gives loggers that are made together the same `version_0`",
        camshaft="claims a version by making its folder",
        reason="runs of a sweep do not mix",
        write="Pass `version` to continue a folder.",
        proof="packages/callbacks/tests/test_csv_logger.py::test_loggers_that_are_made_together_do_not_share_one",
    ),
    Stated(
        name="unknown attributes",
        topic="errors",
        lightning="`trainer.max_epoch = 8` sets an attribute that nothing reads",
        camshaft="raises, under the import names with the closest name; its loops take no attributes of the user's own",
        reason="a setting that is lost is a silent mistake",
        write="Set the right name; keep values of your own in a subclass, the module or a callback.",
        proof=(
            "packages/compat/tests/test_earlier_attributes.py::test_a_misspelt_setting_is_refused_with_the_closest_name"
        ),
    ),
    Stated(
        name="a second trainer inside a hook",
        topic="errors",
        lightning="leaves the module with the second trainer",
        camshaft="gives it back, with its modes and logged values",
        reason="the fit goes on as before",
        write="Nothing.",
        proof=(
            "packages/trainer/tests/test_nested_trainers.py"
            "::test_a_fit_goes_on_as_before_after_another_trainer_had_its_module"
        ),
    ),
    Stated(
        name="a rank that hangs",
        topic="errors",
        lightning="ends in the backend's timeout",
        camshaft="names the missing ranks with their last position; a hung process prints its stack",
        reason="the place to look at is known",
        write="Choose `DDPStrategy(timeout=...)`.",
        proof=(
            "packages/trainer/tests/test_hanging_ranks.py"
            "::test_a_rank_that_hangs_is_named_with_its_position_and_prints_its_stack"
        ),
    ),
    Stated(
        name="steps that take `dataloader_iter`",
        topic="data",
        lightning="gives them the iterator of the batches",
        camshaft="refuses them at set-up",
        reason="an exact restart has to know which batches were taken",
        write="Take `batch`; take several at once by a batch size or a `CombinedLoader`.",
        proof="packages/hooks-core/tests/test_binding.py::test_an_iterator_of_batches_is_not_filled_by_a_batch",
    ),
    Stated(
        name="values that are logged for neither step nor epoch",
        topic="logging",
        lightning="takes them, and shows them nowhere",
        camshaft="raises",
        reason="a value that is lost is a silent mistake",
        write="Leave out `on_step=False` or `on_epoch=False`.",
        proof="packages/loops/tests/test_metric_log.py::test_asking_for_neither_step_nor_epoch_is_refused",
    ),
    Stated(
        name="`deterministic`, `benchmark` and `detect_anomaly`",
        topic="errors",
        lightning="are set by the constructor, for the rest of the process",
        camshaft="hold while a verb runs, and are put back",
        reason="a trainer changes nothing for code that does not use it",
        write="Set torch's switches yourself where they are to hold before or after.",
        proof=(
            "packages/trainer/tests/test_trainer_arguments.py"
            "::test_switches_of_torch_hold_while_a_verb_runs_and_are_put_back"
        ),
    ),
    Stated(
        name="Ctrl-C",
        topic="errors",
        lightning="leaves a verb by `SystemExit(1)`",
        camshaft="leaves it by `KeyboardInterrupt`, after hooks and `teardown`",
        reason="a notebook goes on, and so do handlers of a script's own",
        write="Catch `KeyboardInterrupt`.",
        proof=(
            "packages/trainer/tests/test_trainer_exceptions.py"
            "::test_a_fit_that_was_interrupted_can_be_continued_by_the_same_trainer"
        ),
    ),
)
