"""The entries of the table of differences that concern batches and updates: how each is taken out of the recordings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from comparison.calls import change, in_batches, in_verbs, is_empty_window, map_loss, single, unseen, window_of
from comparison.configuration import Configuration
from comparison.recording import Call, Recording

_ZEROING = ("on_before_zero_grad", "optimizer_zero_grad")
_BEFORE_UPDATE = ("on_before_optimizer_step", "configure_gradient_clipping")


def epoch_schedulers(theirs: Recording, own: Recording, configuration: Configuration) -> None:
    """Move their steps behind the epoch's end, or forget them if it never came."""
    scheduling = configuration.scheduling
    if scheduling is None or scheduling.interval != "epoch" or scheduling.monitor is not None:
        return
    calls: list[Call] = []
    waiting: list[Call] = []
    for call in theirs.calls:
        if calls and calls[-1].hook == "on_train_epoch_end" and call.hook != "on_train_epoch_end":
            calls += [attrs.evolve(one, seen=calls[-1].seen) for one in waiting]
            waiting = []
        (waiting if call.hook == "lr_scheduler_step" else calls).append(call)
    theirs.calls = calls


def scheduler_at_each_step(configuration: Configuration) -> Configuration:
    """Let Lightning try at each step, where the adapted module counts."""
    scheduling = configuration.scheduling
    if scheduling is None or scheduling.interval != "step":
        return configuration
    return attrs.evolve(configuration, scheduling=attrs.evolve(scheduling, frequency=1))


def loss_of_batch_end(theirs: Recording, own: Recording, configuration: Configuration) -> None:
    """Divide ours as Lightning does, after what was done to its loss for a short window."""
    if configuration.is_manual or configuration.window == 1:
        return

    def divided(loss: float, batch_idx: int) -> float:
        real = configuration.real_window(batch_idx)
        loss = loss if real == configuration.window else single(loss * configuration.window / real)
        return single(loss / configuration.window)

    def divide(call: Call) -> Call:
        batch_idx = call.arguments["batch_idx"]
        return _with_loss(call, "outputs", lambda loss: divided(loss, batch_idx))

    change(own, ("on_train_batch_end",), divide)


def short_windows_of_streams(theirs: Recording, own: Recording, configuration: Configuration) -> None:
    """Divide our losses by the real length: where it is not known beforehand, gradients are corrected afterwards."""
    if not configuration.is_stream or configuration.is_manual:
        return
    calls = []
    for batch_idx, call in in_batches(own.calls):
        real = configuration.window if batch_idx is None else configuration.real_window(batch_idx)
        if call.hook in ("on_before_backward", "backward") and real != 1:  # a single last batch is known as the last
            factor = configuration.window / real
            call = _with_loss(call, "loss", lambda loss, factor=factor: single(loss * factor))
        calls.append(call)
    own.calls = calls


def _with_loss(call: Call, argument: str, function: Callable[[float], float]) -> Call:
    value = call.arguments[argument]
    if not value:
        return call
    return attrs.evolve(call, arguments={**call.arguments, argument: map_loss(value, function)})


def batches_without_loss(theirs: Recording, own: Recording, configuration: Configuration) -> None:
    """Forget zeroing in windows that begin without a loss, their updates without gradients, and their count of these.

    Which gradients can be seen, and the step of a row, differ from then on.
    """
    if configuration.is_manual or not configuration.no_loss_at:
        return
    for recording in (theirs, own):
        recording.calls = [
            unseen(call, "has_gradients")
            for batch_idx, call in in_batches(recording.calls)
            if batch_idx is None or not _is_of_empty_update(call, batch_idx, configuration)
        ]
        recording.rows = [[{**row, "step": -1.0} for row in rows] for rows in recording.rows]
    num_empty, counted = 0, True
    calls = []
    for number, verb in enumerate(in_verbs(theirs.calls)):
        for batch_idx, call in in_batches(verb):
            if call.hook == "training_step":
                counted = False
            is_after_update = call.hook in ("lr_scheduler_step", "on_train_batch_end") and not counted
            if is_after_update and batch_idx is not None:
                counted = True
                is_last = batch_idx == window_of(configuration, batch_idx)[-1]
                num_empty += is_last and is_empty_window(configuration, batch_idx)
            calls.append(_with_step(call, lambda step, less=num_empty: step - less))
        theirs.progress[number]["step"] -= num_empty
    theirs.calls = calls


def depends_on_empty_updates(configuration: Configuration) -> bool:
    """Whether what is logged or saved, or when training ends, follows from the number of updates without a loss.

    Lightning, which clips gradients there, fails to clip by value where there are none.
    """
    trainer = configuration.trainer
    is_counted = trainer.get("log_every_n_steps", 50) < 50 or trainer.get("max_steps", -1) != -1
    is_saved = configuration.checkpoints is not None
    has_no_loss = bool(configuration.no_loss_at) and not configuration.is_manual
    return has_no_loss and (is_counted or is_saved or trainer.get("gradient_clip_algorithm") == "value")


def _with_step(call: Call, function: Callable[[int], int]) -> Call:
    return attrs.evolve(call, seen={**call.seen, "step": function(call.seen["step"])}) if call.seen else call


def _is_of_empty_update(call: Call, batch_idx: int, configuration: Configuration) -> bool:
    window = window_of(configuration, batch_idx)
    if call.hook in _ZEROING:
        return window[0] in configuration.no_loss_at
    if call.hook == "on_validation_model_zero_grad":  # nothing is held, but Lightning sees an open window
        return batch_idx != window[-1] and all(idx in configuration.no_loss_at for idx in window if idx <= batch_idx)
    return call.hook in _BEFORE_UPDATE and is_empty_window(configuration, batch_idx)


def output_without_loss(theirs: Recording, own: Recording, configuration: Configuration) -> None:
    """Put None in the place of their empty dictionary."""

    def emptied(call: Call) -> Call:
        if call.arguments["outputs"] != {}:
            return call
        return attrs.evolve(call, arguments={**call.arguments, "outputs": None})

    change(theirs, ("on_train_batch_end",), emptied)


def steps_of_both_optimizers(configuration: Configuration) -> Configuration:
    """Twice as many steps, where Lightning counts those of both optimizers."""
    max_steps = configuration.trainer.get("max_steps", -1)
    if not configuration.is_manual or max_steps == -1:
        return configuration
    return attrs.evolve(configuration, trainer={**configuration.trainer, "max_steps": 2 * max_steps})


def one_step_per_batch(theirs: Recording, own: Recording, configuration: Configuration) -> None:
    """Halve their count of steps, as there are two optimizers."""
    if not configuration.is_manual:
        return
    theirs.calls = [_with_step(call, lambda step: step // 2) for call in theirs.calls]
    theirs.progress = [{**progress, "step": progress["step"] // 2} for progress in theirs.progress]


def algorithm_of_clipping(theirs: Recording, own: Recording, configuration: Configuration) -> None:
    """Say "norm" where they hand out None."""

    def filled(call: Call) -> Call:
        algorithm = call.arguments["gradient_clip_algorithm"] or "norm"
        return attrs.evolve(call, arguments={**call.arguments, "gradient_clip_algorithm": algorithm})

    change(theirs, ("configure_gradient_clipping",), filled)


def rows_before_the_first_update(theirs: Recording, own: Recording, configuration: Configuration) -> None:
    """Begin with 0."""
    theirs.rows = [[{**row, "step": max(row["step"], 0.0)} for row in rows] for rows in theirs.rows]


def rows_of_steps_that_stop(theirs: Recording, own: Recording, configuration: Configuration) -> None:
    """Forget theirs that log_every_n_steps does not ask for."""
    every = configuration.trainer.get("log_every_n_steps", 50)
    theirs.rows = [
        [row for row in rows if "plain" not in row or (row["step"] + 1) % every == 0] for rows in theirs.rows
    ]


def gradients_of_manual_optimization(theirs: Recording, own: Recording, configuration: Configuration) -> None:
    """Forget whether there are gradients, which lasts until the module zeroes them."""
    if configuration.is_manual:
        for recording in (theirs, own):
            recording.calls = [unseen(call, "has_gradients") for call in recording.calls]


def gradients_left_by_fit(theirs: Recording, own: Recording, configuration: Configuration) -> None:
    """Forget them in the verbs that do not train, and in those that train on until they are zeroed."""
    for recording in (theirs, own):
        verbs = in_verbs(recording.calls)
        recording.calls = []
        for number, verb in enumerate(verbs):
            zeroing = next((idx for idx, call in enumerate(verb) if call.hook in _ZEROING), len(verb))
            end = next((idx for idx in range(zeroing, len(verb)) if verb[idx].hook not in _ZEROING), len(verb))
            num_unseen = len(verb) if not _trains(verb) else end if number > 0 else 0
            recording.calls += [unseen(call, "has_gradients") for call in verb[:num_unseen]] + list(verb[num_unseen:])


def _trains(verb: Sequence[Call]) -> bool:
    return any(call.hook == "on_fit_start" for call in verb)


def epochs_cut_short(theirs: Recording, own: Recording, configuration: Configuration) -> None:
    """Do not count them."""
    num_cut, num_run = 0, 0
    calls: list[Call] = []
    for number, verb in enumerate(in_verbs(theirs.calls)):
        is_cut = False
        for call in verb:
            if call.hook == "on_train_batch_start":
                num_run = call.arguments["batch_idx"] + 1
            elif call.hook == "on_train_epoch_end":
                is_cut = num_run < configuration.num_epoch_batches and num_run - 1 != configuration.skips_from
            elif is_cut:
                is_cut = False
                num_cut += 1
            calls.append(attrs.evolve(call, seen=_earlier(call.seen, num_cut)))
        if number < len(theirs.progress):
            theirs.progress[number] = _earlier(theirs.progress[number], num_cut)
            if not _trains(verb):
                theirs.rows[number] = [_earlier(row, num_cut) for row in theirs.rows[number]]
                told = theirs.loading[number]["epochs"]
                theirs.loading[number]["epochs"] = {name: [one - num_cut for one in told[name]] for name in told}
    theirs.calls = calls


def _earlier(facts: Mapping[str, Any], num_epochs: int) -> dict[str, Any]:
    return {**facts, "epoch": facts["epoch"] - num_epochs} if "epoch" in facts else dict(facts)


def steps_of_validation_rows(theirs: Recording, own: Recording, configuration: Configuration) -> None:
    """Write the index of the latest update."""
    for number, verb in enumerate(in_verbs(theirs.calls)):
        if not _trains(verb):
            continue
        ends = [call for call in verb if call.hook == "on_validation_end" and call.receiver == "module"]
        steps = iter([max(call.seen["step"] - 1, 0) for call in ends if not call.seen["sanity"]])
        theirs.rows[number] = [
            {**row, "step": next(steps)} if any(name.startswith("val_loss") for name in row) else row
            for row in theirs.rows[number]
        ]


def iterations_of_loaders(theirs: Recording, own: Recording, configuration: Configuration) -> None:
    """Forget that theirs begins more iterations than ours."""
    for there, here in zip(theirs.loading, own.loading, strict=True):
        if all(number >= here["iterations"].get(name, 0) for name, number in there["iterations"].items()):
            there["iterations"] = here["iterations"]


def sanity_check_without_training(theirs: Recording, own: Recording, configuration: Configuration) -> None:
    """Forget theirs, and what it did to the loaders."""
    calls = []
    for verb, there, here in zip(in_verbs(theirs.calls), theirs.loading, own.loading, strict=True):
        if not any(call.hook == "on_train_start" for call in verb):
            if any(call.seen.get("sanity") for call in verb):
                there.update({"iterations": here["iterations"], "epochs": here["epochs"]})
            verb = [call for call in verb if not call.seen.get("sanity")]
        calls += verb
    theirs.calls = calls


def gradients_enabled_after_a_closure(theirs: Recording, own: Recording, configuration: Configuration) -> None:
    """Forget whether they are."""
    if configuration.optimizer in ("own", "sam"):
        for recording in (theirs, own):
            change(recording, _BEFORE_UPDATE, lambda call: unseen(call, "grad"))


def steps_of_rows_after_a_reload(theirs: Recording, own: Recording, configuration: Configuration) -> None:
    """Forget them in the rows of a batch of evaluation."""
    if configuration.trainer.get("reload_dataloaders_every_n_epochs"):
        for recording in (theirs, own):
            recording.rows = [
                [{**row, "step": -1} if any("val_each_step" in name for name in row) else row for row in rows]
                for rows in recording.rows
            ]
