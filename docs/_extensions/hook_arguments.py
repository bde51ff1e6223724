"""What the arguments of hooks hold, in words: by name, and where a hook's argument holds something of its own."""

from __future__ import annotations

import inspect
import re

from camshaft.hooks_core.bases import Callback, CheckpointHooks, DataHooks, ModelHooks, ModuleSteps, RunHooks
from camshaft.hooks_core.dispatch.binding import CANONICAL_NAMES
from camshaft.hooks_core.eras.hooks import EARLIER_HOOKS, EraSpec
from camshaft.hooks_core.spec import Receiver

CONTENTS = {
    "trainer": "The trainer that runs the verb.",
    "module": "The module of the run.",
    "stage": 'The verb: "fit", "validate", "test" or "predict".',
    "batch": "The batch, on its device.",
    "batch_idx": "Index of the batch: within the epoch, and within its loader where there are several.",
    "dataloader_idx": "Index of the loader that gave the batch. With a single loader it goes only to functions that "
    "require it.",
    "optimizer": "The optimizer.",
    "optimizer_idx": "Index of the optimizer among those of `configure_optimizers`.",
    "optimizers": "What `configure_optimizers` returned.",
    "optimizer_closure": "Computes and returns the loss, with gradients in place.",
    "epoch": "Index of the epoch.",
    "loss": "The loss, scaled for accumulation.",
    "outputs": "What the step returned, without its graph.",
    "metrics": "The metrics that are about to be logged.",
    "checkpoint": "The dictionary that is written, or that was read.",
    "state_dict": "What `state_dict` returned when the checkpoint was written.",
    "exception": "What was raised.",
    "hiddens": "The hidden state that `training_step` returned for the split before; None for the first split.",
    "on_tpu": "Whether the device is a TPU: False.",
    "using_native_amp": "Whether the loop scales gradients for mixed precision.",
    "using_lbfgs": "Whether the optimizer is LBFGS.",
    "use_amp": "Whether gradients are scaled for mixed precision.",
    "gradient_clip_val": "The largest norm or absolute value; None clips nothing.",
    "gradient_clip_algorithm": 'How to clip: "norm" (None means the same) or "value".',
    "global_rank": "Rank of this process among all.",
    "world_size": "The number of processes.",
    "is_slurm_managing_tasks": "Whether SLURM started the processes.",
    "amp": "The module `apex.amp`.",
    "amp_level": "The optimization level of apex.",
    "model": "The module.",
    "device_ids": "The devices of this process.",
    "mode": 'How deep the summary goes: "top" or "full".',
    "max_depth": "The levels of submodules that the summary shows.",
}
"""By name. An argument of an earlier era that has another name today holds the same as that."""

OF_HOOKS = {
    "on_before_batch_transfer": {"batch": "The batch as the loader gave it."},
    "on_train_batch_start": {"dataloader_idx": "0."},
    "on_train_batch_end": {
        "outputs": "What `training_step` returned, without its graph.",
        "dataloader_idx": "0.",
    },
    "on_before_zero_grad": {"optimizer": "The optimizer whose gradients are zeroed."},
    "on_before_optimizer_step": {"optimizer": "The optimizer that is about to update."},
    "optimizer_zero_grad": {"optimizer": "The optimizer whose gradients are zeroed."},
    "on_train_epoch_end": {"outputs": "What `training_step` returned for the batches of the epoch."},
    "on_predict_epoch_end": {"outputs": "The predictions of the epoch."},
    "training_epoch_end": {"outputs": "A list of what `training_step` returned for each batch."},
    "validation_epoch_end": {"outputs": "A list of what `validation_step` returned for each batch."},
    "validation_end": {"outputs": "A list of what `validation_step` returned for each batch."},
    "test_epoch_end": {"outputs": "A list of what `test_step` returned for each batch."},
    "test_end": {"outputs": "A list of what `test_step` returned for each batch."},
}

_BASES = (DataHooks, RunHooks, ModelHooks, ModuleSteps, CheckpointHooks, Callback)
_ARGUMENTS = re.compile(r"^Args:\n((?: {4}.*\n?|\n)+)", re.MULTILINE)
_ARGUMENT = re.compile(r"^ {4}(\w+): ((?:.*\n?)(?: {8}.*\n?)*)", re.MULTILINE)


def docstring_of(hook: str) -> str:
    """Return the docstring of the method that states a hook, without its indent; the moment of an earlier one."""
    if hook in EARLIER_HOOKS:
        return EARLIER_HOOKS[hook].when
    return inspect.cleandoc(next(vars(base)[hook].__doc__ for base in _BASES if hook in vars(base)))


def contents_of(spec: EraSpec) -> dict[str, str]:
    """Return what each argument of a hook holds, in every era: from its docstring, or from the tables above.

    Raises:
        KeyError: If there is no word about an argument.
    """
    section = _ARGUMENTS.search(docstring_of(spec.name) + "\n")
    documented = {name: " ".join(text.split()) for name, text in _ARGUMENT.findall(section[1] if section else "")}
    own = OF_HOOKS.get(spec.name, {}) | documented
    return {name: own.get(name) or own.get(today) or CONTENTS[today] for name, today in _arguments(spec).items()}


def _arguments(spec: EraSpec) -> dict[str, str]:
    """Return the names of a hook's arguments in every era, each with its name of today."""
    names = ["trainer", "module"] * (Receiver.CALLBACK in spec.receivers and spec.kind == "event")
    for era in (None, *reversed(spec.eras)):
        names += [*spec.parameters_in(era), *spec.optional_in(era)]
    return {name: CANONICAL_NAMES.get(name, name) for name in names}
