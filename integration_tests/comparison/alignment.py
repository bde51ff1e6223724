"""The entries of the table of differences that concern who is called when: how each is taken out of the recordings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import attrs

from comparison.calls import change, drop, in_verbs, reorder, single, take, unseen
from comparison.configuration import Configuration
from comparison.recording import Call, Recording

_CALLBACKS_FIRST = {"first": 0, "second": 0, "monitor": 0, "data": 1, "module": 2}
_MONITOR_LAST = {"first": 0, "second": 0, "monitor": 1}
_LOADERS = ("train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader")
_STARTS = ("on_validation_start", "on_test_start", "on_predict_start")
_MODEL_MODES = tuple(
    f"on_{stage}_model_{mode}" for stage in ("validation", "test", "predict") for mode in ("eval", "train")
)
_STRATEGY_HOOKS_OF_LIGHTNING = (
    "on_train_start",
    "on_train_end",
    "on_train_batch_start",
    "on_validation_start",
    "on_validation_end",
    "on_test_start",
    "on_test_end",
    "on_predict_start",
    "on_predict_end",
    "on_exception",
)


def sanity_check_receivers(theirs: Recording, own: Recording, configuration: Configuration) -> None:
    """Forget our calls on module and strategy."""
    hooks = ("on_sanity_check_start", "on_sanity_check_end")
    drop(own, lambda call: call.hook in hooks and call.receiver in ("module", "strategy"))


def strategy_hooks(theirs: Recording, own: Recording, configuration: Configuration) -> None:
    """Forget our calls of hooks that Lightning's strategies do not have."""
    drop(own, lambda call: call.receiver == "strategy" and call.hook not in _STRATEGY_HOOKS_OF_LIGHTNING)


def setup_order(theirs: Recording, own: Recording, configuration: Configuration) -> None:
    """Bring their calls into our order."""
    reorder(theirs, _CALLBACKS_FIRST, ("setup", "teardown"))


def checkpoint_hooks(theirs: Recording, own: Recording, configuration: Configuration) -> None:
    """Bring their calls into our order, and forget the data module, which they do not call."""
    drop(own, lambda call: call.hook in ("on_load_checkpoint", "on_save_checkpoint") and call.receiver == "data")
    reorder(theirs, _CALLBACKS_FIRST, ("on_load_checkpoint",))


def order_of_callbacks(theirs: Recording, own: Recording, configuration: Configuration) -> None:
    """Move our monitoring callback behind the others."""
    if configuration.monitoring_first:
        reorder(own, _MONITOR_LAST)


def saves_of_last(theirs: Recording, own: Recording, configuration: Configuration) -> None:
    """Forget for which files hooks were called, and the epoch in "last"."""
    if configuration.checkpoints is not None and "save_last" in configuration.checkpoints:
        for recording in (theirs, own):
            drop(recording, lambda call: call.hook == "on_save_checkpoint")
            recording.checkpoints.get("last.ckpt", {}).pop("epoch", None)


def loaders_first(theirs: Recording, own: Recording, configuration: Configuration) -> None:
    """Move their requests before configure_optimizers, forget those for what is never evaluated, and what was seen.

    Where loaders are asked for again, forget all requests.
    """
    if configuration.loads_again:
        for recording in (theirs, own):
            drop(recording, lambda call: call.hook in _LOADERS)
    theirs.calls = [call for verb in in_verbs(theirs.calls) for call in _with_loaders_first(verb)]
    for recording in (theirs, own):
        recording.calls = [call for verb in in_verbs(recording.calls) for call in _with_used_loaders(verb)]
        change(recording, _LOADERS, lambda call: attrs.evolve(call, seen={}))
        for loading in recording.loading:  # samplers of what is never evaluated are told nothing
            loading["epochs"] = {name: told for name, told in loading["epochs"].items() if told}


def _with_loaders_first(verb: Sequence[Call]) -> Sequence[Call]:
    position = next((idx for idx, call in enumerate(verb) if call.hook == "configure_optimizers"), None)
    if position is None:
        return verb
    requests = sorted((call for call in verb if call.hook in _LOADERS), key=lambda call: call.hook)
    rest = [call for call in verb if call.hook not in _LOADERS]
    return rest[:position] + requests + rest[position:]


def _with_used_loaders(verb: Sequence[Call]) -> Sequence[Call]:
    is_used = any(call.hook in _STARTS for call in verb)
    return [call for call in verb if is_used or call.hook not in _LOADERS[1:]]


def model_modes(theirs: Recording, own: Recording, configuration: Configuration) -> None:
    """Forget our call that they lack, and the modes of gradients."""
    drop(own, lambda call: call.hook == "on_predict_model_train")
    for recording in (theirs, own):
        change(recording, _MODEL_MODES, lambda call: unseen(call, "grad", "inference"))


def sanity_check_metrics(theirs: Recording, own: Recording, configuration: Configuration) -> None:
    """Forget what ours shows of each loader."""

    def of_no_loader(call: Call) -> Call:
        if call.metrics is None or not call.seen["sanity"]:
            return call
        shown = {name: value for name, value in call.metrics.items() if "/dataloader_idx_" not in name}
        return attrs.evolve(call, metrics=shown)

    change(own, ("on_validation_end",), of_no_loader)


def single_precision(theirs: Recording, own: Recording, configuration: Configuration) -> None:
    """Round every logged number."""
    for recording in (theirs, own):
        recording.calls = [
            call if call.metrics is None else attrs.evolve(call, metrics=_rounded(call.metrics))
            for call in recording.calls
        ]
        recording.rows = _rounded(recording.rows)
        recording.returned = _rounded(recording.returned)
        recording.callback_metrics = _rounded(recording.callback_metrics)


def _rounded(value: object) -> object:
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return single(value) if isinstance(value, float) else value


def after_an_exception(theirs: Recording, own: Recording, configuration: Configuration) -> None:
    """Forget our calls that Lightning does not make, and the mode that the others see."""
    for recording in (theirs, own):
        change(recording, ("on_exception",), lambda call: unseen(call, "training"))
    calls = []
    for verb in in_verbs(own.calls):
        is_broken = any(call.hook == "on_exception" for call in verb)
        for call in verb:
            is_ours_alone = call.hook == "teardown" or (call.hook == "on_exception" and call.receiver == "module")
            if not (is_broken and is_ours_alone):
                calls.append(call)
    own.calls = calls


def rows_of_cut_off_evaluation(theirs: Recording, own: Recording, configuration: Configuration) -> None:
    """Forget their rows of batches at the end of a verb that raised."""
    for verb, rows in zip(in_verbs(theirs.calls), theirs.rows, strict=True):
        if any(call.hook == "on_exception" for call in verb):
            while rows and any(name.startswith("val_each_step") for name in rows[-1]):
                rows.pop()


def save_points(theirs: Recording, own: Recording, configuration: Configuration) -> None:
    """Compare what was saved, not between which other calls; learning rates only if no scheduler steps in between."""
    for recording in (theirs, own):
        saves = take(recording, ("on_save_checkpoint",))
        recording.calls += [attrs.evolve(call, seen={}) for call in saves]
        if is_saved_between_schedulers(configuration):
            for parts in recording.checkpoints.values():
                del parts["optimizer_states"], parts["lr_schedulers"]


def is_saved_between_schedulers(configuration: Configuration) -> bool:
    """Whether a scheduler steps between the moments at which the frameworks save."""
    saving, scheduling = configuration.checkpoints, configuration.scheduling
    if saving is None or scheduling is None:
        return False
    return scheduling.monitor is not None or (scheduling.interval == "epoch" and "every_n_train_steps" in saving)


def sanity_check_of_resumed_run(theirs: Recording, own: Recording, configuration: Configuration) -> None:
    """Forget theirs."""
    calls = []
    for verb in in_verbs(theirs.calls):
        is_resumed = any(call.hook == "on_load_checkpoint" for call in verb)
        calls += [call for call in verb if not (is_resumed and call.seen.get("sanity"))]
    theirs.calls = calls
    for recording in (theirs, own):  # it tells the sampler the epoch; ours is told again where a run goes on
        for loading in recording.loading:
            told = loading["epochs"]
            loading["epochs"] = {name: [epoch for epoch, _ in groupby(told[name])] for name in told}


def metrics_of_resumed_run(theirs: Recording, own: Recording, configuration: Configuration) -> None:
    """Forget what our resumed run has from before: values that theirs lacks, and the count of evaluated batches."""
    verbs = in_verbs(own.calls)
    for number, (their_verb, our_verb) in enumerate(zip(in_verbs(theirs.calls), verbs, strict=True)):
        if not any(call.hook == "on_load_checkpoint" for call in our_verb):
            continue
        restored = next((call.metrics for call in our_verb if call.metrics is not None), {})
        for idx, (there, here) in enumerate(zip(their_verb, our_verb, strict=False)):
            if there.metrics is not None and here.metrics is not None:
                our_verb[idx] = attrs.evolve(here, metrics=_without_restored(here.metrics, restored, there.metrics))
        if number < len(own.callback_metrics):
            shown = theirs.callback_metrics[number]
            own.callback_metrics[number] = _without_restored(own.callback_metrics[number], restored, shown)
            own.rows[number] = _counted_anew(own.rows[number])
    own.calls = [call for verb in verbs for call in verb]


def _without_restored(
    ours: Mapping[str, float], restored: Mapping[str, float], theirs: Mapping[str, float]
) -> dict[str, float]:
    """What theirs has as well, and what has changed since it was restored."""
    return {
        name: value for name, value in ours.items() if name in theirs or name not in restored or restored[name] != value
    }


def _counted_anew(rows: Sequence[dict[str, float]]) -> list[dict[str, float]]:
    """The rows of evaluated batches counted from 0."""
    first = next((row["step"] for row in rows if "val_each_step" in row), 0.0)
    return [{**row, "step": row["step"] - first} if "val_each_step" in row else row for row in rows]
