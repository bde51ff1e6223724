"""The one table of what camshaft does otherwise than Lightning 2.6; nothing else may differ."""

from __future__ import annotations

import attrs

from comparison import adaptation, alignment, training_alignment
from comparison.configuration import Configuration, Scheduling
from comparison.difference import Difference

DIFFERENCES: tuple[Difference, ...] = (
    Difference(
        name="receivers of the sanity check's own hooks",
        topic="hooks",
        lightning="calls them on callbacks",
        camshaft="calls them on callbacks, module and strategy",
        reason="the documented order of 2.x has it so",
        write=(
            "Define `on_sanity_check_start` or `on_sanity_check_end` on a callback alone if the module must not get it."
        ),
        witness=Configuration(),
        align=alignment.sanity_check_receivers,
    ),
    Difference(
        name="sanity check of a fit that trains nothing",
        topic="hooks",
        lightning="runs it, also where `should_stop` was set in `setup`, or the limits are reached",
        camshaft="leaves it out",
        reason="nothing is trained that a failing validation would spoil",
        write="Call `trainer.validate(model)` if the validation is to run.",
        witness=Configuration(stops_in="setup"),
        align=training_alignment.sanity_check_without_training,
    ),
    Difference(
        name="hooks of the strategy",
        topic="hooks",
        lightning="calls it for the start and end of stages and for training batches only",
        camshaft="calls it for every hook for which the documented order has it",
        reason="the documented order of 2.x has it so",
        write="Nothing: a strategy that does not define a hook is not called.",
        witness=Configuration(),
        align=alignment.strategy_hooks,
    ),
    Difference(
        name="order of setup and teardown",
        topic="hooks",
        lightning="data module, callbacks, module",
        camshaft="callbacks, data module, module",
        reason="callbacks come first in every hook",
        write=(
            "In a callback's `setup`, call `trainer.datamodule.setup(stage)` yourself if you need the data there,"
            " and make it safe to call twice."
        ),
        witness=Configuration(loaders_from="data"),
        align=alignment.setup_order,
    ),
    Difference(
        name="receivers of on_load_checkpoint and on_save_checkpoint",
        topic="checkpoints",
        lightning="loads the module before callbacks, and leaves out data modules in both",
        camshaft="callbacks, data module, module",
        reason="callbacks come first in every hook",
        write="Do not rely on the module's `on_load_checkpoint` having run when a callback's runs.",
        witness=Configuration(loaders_from="data", checkpoints={"save_top_k": -1}, resumes_to=3),
        align=alignment.checkpoint_hooks,
    ),
    Difference(
        name="place of callbacks that monitor",
        topic="hooks",
        lightning="moves callbacks that save checkpoints behind the others, for every hook",
        camshaft="keeps the order in which they were passed; they are last in on_train_epoch_end alone",
        reason="nothing is reordered silently",
        write=(
            "Pass callbacks in the order in which they are to run; `after_module` on a callback class moves "
            "single hooks behind the module."
        ),
        witness=Configuration(monitoring_first=True),
        align=alignment.order_of_callbacks,
        # an exception comes before other callbacks then
        excludes=lambda configuration: configuration.monitoring_first and configuration.raises_in is not None,
    ),
    Difference(
        name="when loaders are asked for",
        topic="data",
        lightning="where they are needed, evaluation loaders without gradients, or never if nothing is evaluated",
        camshaft="training's, then validation's, before configure_optimizers; a resumed fit with the epoch of then",
        reason="configure_optimizers can know the number of batches, bad loaders are found early, resuming is exact",
        write=(
            "Do not read what `configure_optimizers` makes in `train_dataloader`; reading the loaders in "
            "`configure_optimizers` works."
        ),
        witness=Configuration(loaders_from="module"),
        align=alignment.loaders_first,
    ),
    Difference(
        name="modes in which on_*_model_eval and on_*_model_train are called",
        topic="hooks",
        lightning="without gradients, and on_predict_model_train not at all",
        camshaft="as training goes, since only what lies between them evaluates; all six alike",
        reason="they belong to the module as it is outside of the evaluation",
        write="Wrap what must not build a graph in these hooks in `torch.no_grad()`.",
        witness=Configuration(verbs=("predict",), overrides={"on_predict_model_train", "on_predict_model_eval"}),
        align=alignment.model_modes,
    ),
    Difference(
        name="metrics of the sanity check of several loaders",
        topic="logging",
        lightning="shows in its on_validation_end those that belong to no loader",
        camshaft="shows all, as in other validations",
        reason="a hook finds what it will find later",
        write="Nothing, or skip the sanity check with `if trainer.sanity_checking: return`.",
        witness=Configuration(num_eval_batches=(2, 1)),
        align=alignment.sanity_check_metrics,
    ),
    Difference(
        name="precision of logged numbers",
        topic="logging",
        lightning="keeps Python numbers in single precision, and adds up in it",
        camshaft="adds up and writes in double precision; `callback_metrics` are of torch's default type, those of "
        "integer tensors over an epoch in double precision",
        reason="nothing is lost without need: single precision holds no integer beyond 2**24",
        write="Nothing; means of an epoch may differ in the last digit of single precision.",
        witness=Configuration(),
        align=alignment.single_precision,
    ),
    Difference(
        name="schedulers of epochs",
        topic="optimization",
        lightning="steps those that do not monitor before on_train_batch_end of the epoch's last batch",
        camshaft="steps all of them after on_train_epoch_end",
        reason="an epoch's scheduler steps once the epoch is over, whatever it monitors",
        write=(
            "Read a learning rate that the epoch used before its end; in `on_train_batch_end` of the last batch "
            "it is still the old one."
        ),
        witness=Configuration(scheduling=Scheduling(), overrides={"lr_scheduler_step"}),
        align=training_alignment.epoch_schedulers,
    ),
    Difference(
        name="schedulers of steps",
        topic="optimization",
        lightning="counts batches of the epoch where an accumulation window ends; steps also where -1 ended the epoch",
        camshaft="steps after each `frequency` updates",
        reason="a step is an update, as it is for `max_steps`",
        write="Give `frequency` in updates, not in batches.",
        witness=Configuration(scheduling=Scheduling(interval="step", frequency=2), overrides={"lr_scheduler_step"}),
        prepare=training_alignment.scheduler_at_each_step,
        adapt=adaptation.schedules_by_updates,
    ),
    Difference(
        name="loss in on_train_batch_end",
        topic="optimization",
        lightning="hands out the loss divided by the accumulation window",
        camshaft="hands out the loss that training_step returned",
        reason="it is training_step's output",
        write="Leave out a multiplication by `accumulate_grad_batches` that undid the division.",
        witness=Configuration(trainer={"accumulate_grad_batches": 3}),
        align=training_alignment.loss_of_batch_end,
    ),
    Difference(
        name="a short last accumulation window",
        topic="optimization",
        lightning="divides its losses by the length that was asked for",
        camshaft="averages over its real length",
        reason="an update follows the mean of its batches, none of them counts less",
        write=(
            "Nothing. `drop_last=True` and a number of batches that the window divides give the same weights in both."
        ),
        witness=Configuration(trainer={"accumulate_grad_batches": 2}),
        adapt=adaptation.averages_short_windows,
        align=training_alignment.short_windows_of_streams,
        # a division more or less rounds otherwise then
        excludes=lambda configuration: (
            configuration.short_window > 0
            and (configuration.window == 3 or (configuration.is_stream and configuration.short_window == 3))
        ),
    ),
    Difference(
        name="output of a batch without a loss",
        topic="optimization",
        lightning="hands out an empty dictionary",
        camshaft="hands out None",
        reason="it is training_step's output",
        write="Test `outputs is None` (or `not outputs`, which is true in both).",
        witness=Configuration(no_loss_at={1}, is_manual=True),
        align=training_alignment.output_without_loss,
    ),
    Difference(
        name="steps of manual optimization",
        topic="optimization",
        lightning="counts each step of each optimizer",
        camshaft="counts one update for each batch in which any optimizer stepped",
        reason="one step counter, whatever the number of optimizers, serves stopping, checkpoints and loggers",
        write=(
            "Give `max_steps`, `every_n_train_steps` and the like in batches, not in optimizer steps; under the import "
            "names a warning says so."
        ),
        witness=Configuration(is_manual=True),
        prepare=training_alignment.steps_of_both_optimizers,
        align=training_alignment.one_step_per_batch,
    ),
    Difference(
        name="gradients in on_before_optimizer_step of an optimizer with a closure",
        topic="optimization",
        lightning="are off where `step` of the optimizer is decorated with `torch.no_grad()`",
        camshaft="are on, as in the rest of the closure",
        reason="hooks find what they find with any other optimizer",
        write="Use `torch.no_grad()` in the hook to change weights there, as with any other optimizer.",
        witness=Configuration(optimizer="own"),
        align=training_alignment.gradients_enabled_after_a_closure,
    ),
    Difference(
        name="algorithm that configure_gradient_clipping gets",
        topic="optimization",
        lightning="hands out None unless one was asked for",
        camshaft="hands out the one that will be used",
        reason="an override need not know the default",
        write="Nothing: `self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)` takes it.",
        witness=Configuration(overrides={"configure_gradient_clipping"}),
        align=training_alignment.algorithm_of_clipping,
    ),
    Difference(
        name="gradients of manual optimization at validation",
        topic="optimization",
        lightning="frees them before each validation inside fit",
        camshaft="leaves them to the module, unless it overrides on_validation_model_zero_grad",
        reason="the module may be accumulating them over batches",
        write="Call `optimizer.zero_grad()` after the step if the memory is needed during validation.",
        witness=Configuration(is_manual=True),
        align=training_alignment.gradients_of_manual_optimization,
    ),
    Difference(
        name="gradients that fit left",
        topic="optimization",
        lightning="frees them before the first hook of another verb's stage",
        camshaft="leaves them where they are",
        reason="a verb that does not train does not touch gradients",
        write="Call `model.zero_grad()` between the verbs if the memory is needed.",
        witness=Configuration(verbs=("fit", "test"), num_eval_batches=(2,), trainer={"limit_val_batches": 0}),
        align=training_alignment.gradients_left_by_fit,
    ),
    Difference(
        name="epochs that end early",
        topic="optimization",
        lightning="counts an epoch that max_steps or should_stop cut short",
        camshaft="does not count it, since its last batches are still to come",
        reason="training can go on where it stopped",
        write="Read `trainer.global_step` for how far training went; `current_epoch` counts whole epochs.",
        witness=Configuration(trainer={"max_steps": 4}),
        align=training_alignment.epochs_cut_short,
        # samplers of a later verb are told another epoch then
        excludes=lambda configuration: (
            configuration.samplers_know_epoch and len(configuration.verbs) > 1 and configuration.may_end_early
        ),
    ),
    Difference(
        name="-1 from callbacks",
        topic="hooks",
        lightning="obeys the module only",
        camshaft="obeys any receiver of on_train_batch_start",
        reason="a callback gets the same hook, and is documented to end the epoch by -1",
        write="Return nothing from a callback's `on_train_batch_start` unless the epoch is to end.",
        witness=Configuration(callback_skips=True, skips_from=1),
        prepare=lambda configuration: attrs.evolve(configuration, callback_skips=False),
    ),
    Difference(
        name="batches between validations across epochs",
        topic="optimization",
        lightning="counts the batch for which -1 was returned",
        camshaft="counts batches that were trained on",
        reason="a batch that is skipped is none",
        write="Nothing.",
        witness=Configuration(
            skips_from=2, num_batches=4, trainer={"check_val_every_n_epoch": None, "val_check_interval": 3}
        ),
        excludes=lambda configuration: (
            configuration.skips_from is not None and configuration.trainer.get("check_val_every_n_epoch", 1) is None
        ),
    ),
    Difference(
        name="step of rows before the first update",
        topic="logging",
        lightning="writes -1",
        camshaft="writes 0",
        reason="steps are counts",
        write="Expect 0 where a script filters rows by `step == -1`.",
        witness=Configuration(skips_from=0),
        align=training_alignment.rows_before_the_first_update,
    ),
    Difference(
        name="step of validation rows within an accumulation window",
        topic="logging",
        lightning="writes the index of the update to come",
        camshaft="writes the index of the latest update, whose weights were validated",
        reason="two rows with one step hold values of the same weights",
        write="Nothing; join rows of training and validation by their `step`.",
        witness=Configuration(num_batches=4, trainer={"accumulate_grad_batches": 2, "val_check_interval": 1}),
        align=training_alignment.steps_of_validation_rows,
    ),
    Difference(
        name="step of evaluation rows after a reload",
        topic="logging",
        lightning="counts the batches of evaluation from 0 again where `reload_dataloaders_every_n_epochs` asks anew",
        camshaft="goes on counting",
        reason="no two rows of a run have the same step",
        write="Nothing.",
        witness=Configuration(
            loaders_from="module", trainer={"reload_dataloaders_every_n_epochs": 1}, shuffle=False, dropout=0.0
        ),
        align=training_alignment.steps_of_rows_after_a_reload,
    ),
    Difference(
        name="row of the step that stops",
        topic="logging",
        lightning="writes the values of each step while should_stop is set",
        camshaft="writes those for which log_every_n_steps asks",
        reason="the epoch's values are written in any case",
        write="Set `log_every_n_steps=1` if the last step's row matters; the epoch's values are there in any case.",
        witness=Configuration(stops_at=(0, 1), trainer={"log_every_n_steps": 50}),
        align=training_alignment.rows_of_steps_that_stop,
    ),
    Difference(
        name="batches without a loss",
        topic="optimization",
        lightning="zeroes and steps all the same, and counts an update",
        camshaft="zeroes with the next loss, and counts only updates that had gradients",
        reason="without a loss there is nothing to update",
        write=(
            "Return a loss, or step by hand with `automatic_optimization = False`, if an update without gradients"
            " is wanted."
        ),
        witness=Configuration(no_loss_at={1}, num_batches=4, trainer={"log_every_n_steps": 50}),
        align=training_alignment.batches_without_loss,
        excludes=training_alignment.depends_on_empty_updates,
    ),
    Difference(
        name="exceptions",
        topic="hooks",
        lightning="calls on_exception on callbacks, data module and strategy; nothing is torn down or restored",
        camshaft="restores train and eval modes, calls it on the module too, then calls every teardown",
        reason="whoever set something up can take it down, and the module can be used afterwards",
        write="Free resources in `teardown`, which comes after an exception too.",
        witness=Configuration(raises_in="on_train_batch_end"),
        align=alignment.after_an_exception,
        # Lightning's counters stand half-way then
        excludes=lambda configuration: configuration.raises_in is not None and len(configuration.verbs) > 1,
    ),
    Difference(
        name="rows of an evaluation that raised",
        topic="logging",
        lightning="has written those of the batches before",
        camshaft="has not sent them to loggers yet",
        reason="loggers get the values of many batches in one transfer from the device",
        write="Nothing.",
        witness=Configuration(raises_in="on_validation_epoch_end"),
        align=alignment.rows_of_cut_off_evaluation,
    ),
    Difference(
        name="saving last.ckpt",
        topic="checkpoints",
        lightning="saves a second time, calls on_save_checkpoint again; after training its epoch is one more",
        camshaft="gives the file that was saved a second name; its epoch is the one that has ended",
        reason="the same data need not be written twice",
        write="Nothing.",
        witness=Configuration(checkpoints={"save_top_k": -1, "save_last": True}),
        align=alignment.saves_of_last,
    ),
    Difference(
        name="when checkpoints are saved",
        topic="checkpoints",
        lightning="within the hook of the callback that saves, while others still wait for it",
        camshaft="at the save point behind all hooks of the batch, or of the epoch and its schedulers",
        reason="a checkpoint never holds half a step, and the order of callbacks cannot make it stale",
        write=(
            "Ask `trainer.save_checkpoint(path)` for a file at once; read a stock callback's file after the hook "
            "that follows, or after `fit`."
        ),
        witness=Configuration(checkpoints={"save_top_k": -1, "every_n_train_steps": 2}),
        align=alignment.save_points,
        # a scheduler that stepped for one and not yet for the other goes on otherwise
        excludes=lambda configuration: (
            configuration.resumes_to is not None and alignment.is_saved_between_schedulers(configuration)
        ),
    ),
    Difference(
        name="steps to save that monitor",
        topic="checkpoints",
        lightning="ranks by the value there is, and saves nothing as long as there is none",
        camshaft="waits for the validation that follows the step; a value that is missing there is an error",
        reason="a checkpoint is ranked by its own weights",
        write="Log the monitored value in `training_step` too if a checkpoint is wanted where no validation follows.",
        witness=Configuration(num_batches=2, checkpoints={"every_n_train_steps": 2, "monitor": "val_loss"}),
        excludes=lambda configuration: (
            configuration.checkpoints is not None
            and {"every_n_train_steps", "monitor"} <= configuration.checkpoints.keys()
        ),
    ),
    Difference(
        name="sanity check of a resumed run",
        topic="checkpoints",
        lightning="runs it, with a current_epoch that is behind",
        camshaft="leaves it out",
        reason="the checkpoint is there because validation worked",
        write="Call `trainer.validate(model, ckpt_path=path)` first if it is wanted.",
        witness=Configuration(checkpoints={"save_top_k": -1}, resumes_to=3),
        align=alignment.sanity_check_of_resumed_run,
    ),
    Difference(
        name="fits without an optimizer",
        topic="optimization",
        lightning="differentiates the loss and counts an update for each batch, so that checkpoints are saved",
        camshaft="warns that nothing will be updated, counts no update, and saves no checkpoint; under the import "
        "names as Lightning",
        reason="`global_step` counts updates, and the weights stay as they were",
        write="Call `trainer.save_checkpoint(path)` after the fit if what its hooks have kept is to be saved.",
        witness=Configuration(optimizer="none"),
        excludes=lambda configuration: configuration.optimizer == "none",
        is_under_import_names=False,
    ),
    Difference(
        name="trace of the sanity check",
        topic="data",
        lightning="puts back the global random numbers and forgets what was logged; generators and states of loaders, "
        "callbacks and metrics stay as it left them",
        camshaft="puts back these, too: callbacks and data modules whose `state_dict` has changed get the one of "
        "before by `load_state_dict`; under the import names as Lightning",
        reason="training goes alike with and without it",
        write="Nothing; expect another order of a loader that has a generator of its own.",
        witness=Configuration(has_generators=True),
        excludes=lambda configuration: configuration.has_generators,
        is_under_import_names=False,
    ),
    Difference(
        name="iterations of loaders",
        topic="data",
        lightning="calls `iter(loader)` when it sets up the data, and again for several loaders of evaluation",
        camshaft="calls it once for each epoch and each evaluation; under the import names as Lightning",
        reason="a loader that counts its epochs, or reads as soon as it is asked, is begun as often as it is read",
        write=(
            "Run the file by `python -m camshaft.compat run`, which draws their random numbers as Lightning does, or "
            "do not expect equal weights with `reload_dataloaders_every_n_epochs` or in a second fit."
        ),
        witness=Configuration(loaders="own", shuffle=False, num_eval_batches=(2, 2)),
        align=training_alignment.iterations_of_loaders,
        # and draws random numbers whenever it does
        excludes=lambda configuration: (
            configuration.loaders == "drawing" or (configuration.loads_again and configuration.is_random)
        ),
        is_under_import_names=False,
    ),
    Difference(
        name="random numbers before the first epoch",
        topic="data",
        lightning="begins to iterate over the first epoch's data before on_train_start",
        camshaft="begins after on_train_epoch_start, in every epoch; under the import names as Lightning, but for the "
        "first batch of a loader of unknown length, which is read then",
        reason="every epoch goes alike",
        write=(
            "Do not expect equal weights in both if `on_train_start` or `on_train_epoch_start` draws random numbers."
        ),
        witness=Configuration(draws_at_start=True),
        excludes=lambda configuration: configuration.draws_at_start,
        is_under_import_names=False,
    ),
    Difference(
        name="random numbers of a resumed run",
        topic="checkpoints",
        lightning="does not restore the random number generators",
        camshaft="restores them",
        reason="resuming is exact",
        write="Draw what must differ after a restart from a generator of your own.",
        witness=Configuration(checkpoints={"save_top_k": -1}, resumes_to=3, trainer={"max_epochs": 1}),
        adapt=adaptation.restores_random_state,
    ),
    Difference(
        name="metrics of a resumed run",
        topic="checkpoints",
        lightning="forgets the values of before, until they are logged again",
        camshaft="shows them, as if the run had not been stopped",
        reason="resuming is exact",
        write="Nothing.",
        witness=Configuration(checkpoints={"save_top_k": -1}, resumes_to=3, trainer={"max_epochs": 1}),
        align=alignment.metrics_of_resumed_run,
    ),
)

UNDER_IMPORT_NAMES = tuple(difference for difference in DIFFERENCES if difference.is_under_import_names)
"""The differences that are left under Lightning's import names."""
