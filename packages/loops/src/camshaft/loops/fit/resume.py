"""Restoring a run from a checkpoint, in the order of the functions of this file.

`run_verb` restores weights, data module and callbacks once the module is set up (`restore_receivers`). Fit goes on with
the states of this process (`rank_state`), with optimizers and schedulers once they are configured
(`restore_training`), with the position in the data once the loaders are there (`restore_position`), and, last before
training goes on, with metrics and random numbers (`restore_moment`). `Run.checkpoint_adapter` translates the states of
other formats on the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from camshaft.hooks_core import no_op
from camshaft.hooks_core.dispatch.implementation import implementation
from camshaft.hooks_core.protocols import Strategy
from camshaft.hooks_core.support.messages import must_be, note_errors, warn_user
from camshaft.loops.data.fit_data import FitData
from camshaft.loops.fit.save_only import completed
from camshaft.loops.metrics.epoch import joined_logs
from camshaft.loops.optimization.configuration import ConfiguredOptimizers
from camshaft.loops.optimization.joint_optimizer import JointOptimizer
from camshaft.loops.optimization.mode import UpdateMode
from camshaft.loops.optimization.window import mean_window
from camshaft.loops.state.callback_state import state_key, warn_of_absent
from camshaft.loops.state.metric_state import JoinedStates, restore_metric_states
from camshaft.loops.state.progress import FitProgress
from camshaft.loops.state.random_state import derived_random_state, restore_random_state
from camshaft.loops.state.run import Run

_OF_TRAINING = ("optimizer_states", "lr_schedulers", "loops", "rng", "fit")
_NO_SETTINGS = ("params", "param_names", "initial_lr", "base_lrs", "_last_lr")  # or follow from others


def restore_receivers(run: Run, checkpoint: dict[str, Any]) -> None:
    """Restore weights, data module and callbacks, before loaders and optimizers that may depend on them. Collective.

    Hooks: load_state_dict of data module and callbacks.

    Args:
        run: The run.
        checkpoint: The checkpoint.
    """
    if run.restores_weights:
        restore_module(run, checkpoint)
    restore_data_module(run, checkpoint)
    restore_callbacks(run, checkpoint)


def restore_module(run: Run, checkpoint: dict[str, Any]) -> None:
    """Restore the weights. Collective.

    What the checkpoint left out on purpose stays as it is. A module with `strict_loading = False` also keeps what else
    the checkpoint lacks, with a warning that counts it.

    Raises:
        ValueError: If there are no weights in the checkpoint.
        RuntimeError: If they do not fit the module. Names that only one of the two has are no such case if the module
            has `strict_loading = False`.
    """
    if "state_dict" not in checkpoint:
        rule = "one with the key 'state_dict'"
        raise ValueError(must_be("checkpoint", rule, sorted(checkpoint), "restore_module", "Pass another."))
    weights = completed(run.checkpoint_adapter.weights(checkpoint["state_dict"], run.module), run.module, checkpoint)
    load_module_state: Any = run.strategy.load_module_state
    with naming_checkpoint("ckpt_path", run.ckpt_path, run.module, run.verb):
        if getattr(run.module, "strict_loading", True):
            load_module_state(run.module, weights)
            return
        warn_of_other_names(run.module, weights)
        load_module_state(run.module, weights, strict=False)


@contextmanager
def naming_checkpoint(field: str, path: object, module: nn.Module, where: str) -> Iterator[None]:
    """Name the checkpoint in torch's error for weights that do not fit a module.

    Args:
        field: Name of the argument that chose the checkpoint.
        path: The checkpoint; None leaves the error as it is.
        module: The module that takes the weights.
        where: The function that was called.

    Raises:
        RuntimeError: In place of torch's error, whose text it ends with.
    """
    try:
        yield
    except RuntimeError as error:
        if path is None or not str(error).startswith("Error(s) in loading state_dict"):
            raise
        rule = f"a checkpoint whose weights fit {type(module).__qualname__}"
        action = f"Build the module as it was when it was saved.\n{error}"
        raise RuntimeError(must_be(field, rule, path, where, action)) from error


def warn_of_other_names(module: nn.Module, weights: Mapping[str, Any]) -> None:
    """Warn of names that only a module or only the weights for it have, which loading skips unless it is strict."""
    own = module.state_dict().keys()
    for names, place in ((own - weights.keys(), "module"), (weights.keys() - own, "checkpoint")):
        if names:
            shown = ", ".join([*sorted(names)[:3], *(["..."] if len(names) > 3 else [])])
            counted = f"{len(names)} weight{'s' if len(names) > 1 else ''}"
            warn_user(f"Only the {place} has {counted}, left as they are: {shown}. Load strictly to refuse this.")


def restore_data_module(run: Run, checkpoint: dict[str, Any]) -> None:
    """Restore the state of the data module. Hooks: load_state_dict of the data module.

    Args:
        run: The run.
        checkpoint: The checkpoint.
    """
    if run.data is not None and implementation(run.data, "load_state_dict") is not None:
        _load_state(run, run.data, run.checkpoint_adapter.data_state(checkpoint, run.data))


def restore_callbacks(run: Run, checkpoint: dict[str, Any]) -> None:
    """Restore the states of callbacks; warns in fit of callbacks that are absent. Collective where a callback's is.

    Hooks: load_state_dict of callbacks.

    Args:
        run: The run.
        checkpoint: The checkpoint.
    """
    states = run.checkpoint_adapter.callback_states(checkpoint, run)
    if run.verb == "fit" and run.strategy.global_rank == 0:
        warn_of_absent(states, run.callbacks)
    for callback in run.callbacks:
        _load_state(run, callback, states.get(state_key(callback)))


def _load_state(run: Run, owner: object, state: Any) -> None:
    load = implementation(owner, "load_state_dict")
    if load is not None and state is not None:
        with note_errors(owner, "load_state_dict", run.position):
            load(state)


def check_resumable(checkpoint: dict[str, Any]) -> None:
    """Raise `ValueError` unless a checkpoint holds what training needs to go on."""
    missing = [key for key in _OF_TRAINING if key not in checkpoint]
    if missing or "fit" not in checkpoint["loops"]:
        rule = f"a whole one to resume from (missing: {', '.join(missing) or 'the progress of fit'})"
        action = "Load its weights with `load_from_checkpoint` and fit without `ckpt_path`."
        raise ValueError(must_be("checkpoint", rule, sorted(checkpoint), "fit", action))


def rank_state(checkpoint: dict[str, Any], strategy: Strategy) -> dict[str, Any]:
    """Return a checkpoint with the states of this process.

    With another number of processes than it was saved with, each process takes the random numbers of its rank, and a
    further rank derives its own from those of the first. Inside an epoch a process also goes on with what processes
    logged and measured that are gone: that with data rank r of N for those with r, r + N, and so on. Gradients that
    wait for an update are their mean, the same on all.

    Args:
        checkpoint: A checkpoint to resume from.
        strategy: Knows the rank of this process.

    Raises:
        ValueError: If it was saved with other logical ranks.
    """
    count = getattr(strategy, "num_logical_ranks", None)
    saved = checkpoint["fit"].get("logical_ranks", {}).get("count")
    if count != saved:
        action = "Pass as many, or load the weights alone with `load_from_checkpoint`."
        raise ValueError(must_be("logical_ranks", f"that of the checkpoint ({saved})", count, "fit", action))
    if count is not None:
        return checkpoint  # it is the same for all processes
    ranks = checkpoint.get("ranks", [{"fit": checkpoint["fit"], "rng": checkpoint["rng"]}])
    rank, size, progress = strategy.global_rank, strategy.world_size, FitProgress()
    if len(ranks) == size == 1:
        return checkpoint
    own = ranks[rank if rank < len(ranks) else 0]
    rng = own["rng"] if rank < len(ranks) else derived_random_state(own["rng"], rank)
    fit, shared = {**own["fit"]}, checkpoint["fit"].get("gradients", {})
    by_data_rank: dict[int, dict[str, Any]] = {}
    for idx, state in enumerate(ranks):
        by_data_rank.setdefault(state.get("data_rank", idx), state["fit"])
    num_before, num_now = len(by_data_rank), strategy.num_data_ranks
    if len(ranks) != size or num_before != num_now:
        progress.load_state_dict(checkpoint["loops"]["fit"])
    if progress.is_inside_epoch:
        gone_on = [by_data_rank[one] for one in range(strategy.data_rank, num_before, num_now)]
        if num_before == num_now:
            fit = {**gone_on[0]}
        else:
            fit["batches"] = by_data_rank[0]["batches"]
            fit["optimization"] = mean_window([one["optimization"] for one in by_data_rank.values()])
            fit["metrics"] = joined_logs([one["metrics"] for one in gone_on], by_data_rank[0]["metrics"])
            states = [one["metric_states"] for one in gone_on]
            fit["metric_states"] = JoinedStates(states, by_data_rank[0]["metric_states"], num_before > num_now)
        fit["gradients"] = shared | _mean_gradients([state["fit"].get("gradients", {}) for state in ranks])
    elif "gradients" in fit:
        fit["gradients"] = shared | fit["gradients"]
    return {**checkpoint, "fit": fit, "rng": rng}


def _mean_gradients(of_ranks: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Return the means of gradients over ranks; one that a rank has not counts as zero there."""
    names = dict.fromkeys(name for of_rank in of_ranks for name in of_rank)
    found = {name: [of_rank[name] for of_rank in of_ranks if name in of_rank] for name in names}
    return {name: sum(gradients[1:], gradients[0]) / len(of_ranks) for name, gradients in found.items()}


def restore_training(run: Run, checkpoint: dict[str, Any], configured: ConfiguredOptimizers) -> None:
    """Restore optimizers, schedulers and strategy. Collective.

    Raises:
        ValueError: If the checkpoint holds another number of optimizers or schedulers than the module has, or ones of
            other classes with other settings.
    """
    checkpoint = run.checkpoint_adapter.training(checkpoint, run)
    optimizers, optimizer_states = configured.optimizers, checkpoint["optimizer_states"]
    schedulers, scheduler_states = [config.scheduler for config in configured.schedulers], checkpoint["lr_schedulers"]
    pairs = ("optimizers", optimizers, optimizer_states), ("schedulers", schedulers, scheduler_states)
    for what, owners, states in pairs:
        if len(owners) != len(states):
            rule, action = f"that of the checkpoint ({len(states)})", "Configure as many, or fit without `ckpt_path`."
            raise ValueError(must_be(f"number of {what}", rule, len(owners), "configure_optimizers", action))
    classes = checkpoint["fit"].get("optimizer_classes") or [None] * len(optimizers)
    own_names = parameter_names_of(optimizers, run.module)
    names = checkpoint["fit"].get("optimizer_parameters") or own_names
    for idx, (optimizer, state, saved_class) in enumerate(zip(optimizers, optimizer_states, classes, strict=True)):
        groups = state.get("param_groups", ()) if isinstance(state, Mapping) else ()
        own, saved = _names_of_settings(optimizer.param_groups), _names_of_settings(groups)
        is_other = bool(own - saved and saved - own) if saved_class is None else own != saved
        _check_class("optimizer", optimizer, saved_class, saved - own, is_other=is_other)
        if names[idx] != own_names[idx]:
            state = _by_names(state, names[idx], own_names[idx])
        run.strategy.load_optimizer_state(optimizer, state)
    classes = checkpoint["fit"].get("scheduler_classes") or [None] * len(schedulers)
    for scheduler, state, saved_class in zip(schedulers, scheduler_states, classes, strict=True):
        is_other = saved_class is not None and set(scheduler.state_dict()) != set(state)
        _check_class("scheduler", scheduler, saved_class, (), is_other=is_other)
        scheduler.load_state_dict(state)
    run.strategy.load_state_dict(checkpoint.get("strategy", {}))
    run.checkpoint_adapter.finish(run)


def _check_class(
    what: str, owner: object, saved_class: str | None, only_saved: Iterable[str], *, is_other: bool
) -> None:
    """Refuse the state of an optimizer or scheduler of another class, or warn of it where both have the same settings.

    Args:
        what: "optimizer" or "scheduler".
        owner: The one that is to load the state.
        saved_class: The class whose state it is; None where the checkpoint does not name it.
        only_saved: Names of settings in the state that the owner has not.
        is_other: Whether the settings in the state are others than the owner's.
    """
    [own_class] = classes_of([owner])
    if saved_class == own_class:
        return
    if is_other:
        of_checkpoint = saved_class or f"which has the settings {', '.join(sorted(only_saved))}"
        rule, action = f"that of the checkpoint, {of_checkpoint}", "Configure it, or fit without `ckpt_path`."
        raise ValueError(must_be(what, rule, own_class, "configure_optimizers", action))
    if saved_class is not None:
        warn_user(
            f"The state of {saved_class} in the checkpoint is loaded into {own_class} of configure_optimizers, which "
            "has the same settings; those of the checkpoint count. Configure the class of the checkpoint to be sure."
        )


def _by_names(state: Any, saved: list[Any], own: list[Any]) -> Any:
    """Return an optimizer's state with the parameters in its own order, or as it is, with a warning, if it has others.

    An optimizer takes the states of parameters by their places, so those of a module that declares its parts in another
    order would go to wrong ones.

    Raises:
        ValueError: If a parameter is in the place of a group that has other settings than its own one had.
    """
    if set(saved) == set(own) and None not in own and isinstance(state, Mapping):
        places = [(idx, place) for idx, group in enumerate(state["param_groups"]) for place in group["params"]]
        by_name, names, groups = dict(zip(saved, places, strict=True)), iter(own), []
        settings = [
            {name: repr(value) for name, value in group.items() if name not in ("params", "param_names")}
            for group in state["param_groups"]
        ]
        for idx, group in enumerate(state["param_groups"]):
            taken = [next(names) for _ in group["params"]]
            moved = next((name for name in taken if settings[by_name[name][0]] != settings[idx]), None)
            if moved is not None:
                rule = "in the order of the checkpoint, since each takes the settings of the one in its place"
                got = f"{moved} in the place of group {idx}, but it was in group {by_name[moved][0]}"
                action = "Give groups, or the optimizers of a JointOptimizer, in that order."
                raise ValueError(must_be("param_groups", rule, got, "configure_optimizers", action))
            groups.append({**group, "params": [by_name[name][1] for name in taken]})
        return {**state, "param_groups": groups}
    unlike = next(((before, now) for before, now in zip(saved, own, strict=False) if before != now), None)
    if unlike is not None:
        warn_user(
            "The optimizer's state in the checkpoint is of other parameters. It is taken by their places: that of "
            f"{unlike[0]!r} for {unlike[1]!r}, and so on. Unless they were only renamed, load the weights alone, by "
            "`load_from_checkpoint`, and fit without `ckpt_path`."
        )
    return state


def _names_of_settings(groups: Sequence[Mapping[str, Any]]) -> set[str]:
    return {name for group in groups for name in group} - {"params", "initial_lr"}


def settings_of(configured: ConfiguredOptimizers) -> list[list[Any]]:
    """Return the settings of optimizers and of torch's schedulers as texts, to tell by whether others were configured.

    Returns:
        For each the name of its class, and the settings of each parameter group, or of the scheduler, by name.
    """
    schedulers = [config.scheduler for config in configured.schedulers if isinstance(config.scheduler, LRScheduler)]
    pairs = [(one, one.param_groups) for one in configured.optimizers] + [
        (one, [one.state_dict()]) for one in schedulers
    ]
    return [[type(one).__name__, [_texts(values) for values in groups]] for one, groups in pairs]


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    texts = {name: repr(value) for name, value in values.items() if name not in _NO_SETTINGS}
    return {name: text for name, text in texts.items() if " at 0x" not in text}  # an object is another in each process


def first_settings(run: Run, own: list[list[Any]]) -> list[list[Any]]:
    """Return the settings with which a run began; warn where other ones are configured now, which do not count.

    Args:
        run: The run, with its checkpoint.
        own: The settings of now, as `settings_of` returns them.
    """
    assert run.checkpoint is not None
    first: list[list[Any]] = run.checkpoint["fit"].get("settings", own)  # 0.1.0 saved none
    others = [
        f"{name} of {kind} is {text}, but was {then[name]}"
        for (kind, groups), (kind_then, groups_then) in zip(own, first, strict=False)
        for now, then in zip(groups, groups_then, strict=False)
        for name, text in now.items()
        if kind == kind_then and then.get(name, text) != text
    ]
    if others:
        warn_user(
            f"`configure_optimizers` gives other settings than when the run began, and those of the checkpoint count: "
            f"{'; '.join(dict.fromkeys(others))}. Set what is to be changed in `on_train_start`."
        )
    return first


def restore_position(run: Run, data: FitData, mode: UpdateMode, progress: FitProgress) -> None:
    """Restore data position and accumulation state. Collective.

    Args:
        run: The run, with its checkpoint.
        data: The loaders.
        mode: The optimization.
        progress: The restored counters.

    Raises:
        ValueError: If a loader cannot go on there.
    """
    assert run.checkpoint is not None
    fit, batches = run.checkpoint["fit"], progress.batches
    is_moved = isinstance(fit.get("metric_states"), JoinedStates)  # inside an epoch, to other processes
    if "batches" in fit:
        if batches.ready != batches.completed:
            warn_user(
                f"The checkpoint was taken inside of batch {batches.ready - 1} of epoch {progress.current_epoch}, "
                "as after an error: that batch is left out, so the run differs from one that was not stopped. "
                "Resume from an earlier checkpoint to repeat it."
            )
        data.set_epoch()
        data.go_on(fit, batches.ready)
        if progress.is_inside_epoch:
            mode.num_batches = data.num_batches
            mode.load_state_dict(fit["optimization"])
        else:
            mode.load_accumulation(fit["optimization"])
        if any(isinstance(key, int) for key in fit["gradients"]):
            run.strategy.load_logical_gradients(fit["gradients"])  # type: ignore[attr-defined]
        else:
            _restore_gradients(run, data, mode, progress, is_moved=is_moved)
    if progress.is_inside_epoch:
        for key, part in run.epoch_state.items():
            if is_moved:
                rule = "that of the checkpoint, which was saved inside an epoch whose outputs a hook of its end gets"
                action = "Use as many processes, or resume from a checkpoint that was saved at an epoch's end."
                raise ValueError(must_be("number of processes", rule, run.strategy.world_size, "fit", action))
            part.load_state_dict(fit.get(key))


def _restore_gradients(run: Run, data: FitData, mode: UpdateMode, progress: FitProgress, *, is_moved: bool) -> None:
    """Restore the gradients of the accumulation window that is open, weighed for the processes of now."""
    assert run.checkpoint is not None
    ratio = data.batches.step_ratio
    factor = mode.reweigh_window(ratio) if progress.is_inside_epoch else 1.0
    if is_moved and mode.holds_gradients and progress.batches.ready >= data.num_batches:
        rule = "one with which samples are left for the accumulation window that is open"
        action = "Use fewer, or resume from the end of a window."
        raise ValueError(must_be("number of processes", rule, run.strategy.world_size, "fit", action))
    gradients = run.checkpoint["fit"]["gradients"]
    for name, parameter in run.module.named_parameters():
        gradient = gradients.get(name)
        placed = None if gradient is None else run.strategy.place_like(gradient, parameter)
        parameter.grad = None if placed is None else placed.to(parameter.dtype)  # the precision may be another
        if parameter.grad is not None and factor != 1:
            parameter.grad.mul_(factor)


def restore_moment(run: Run, data: FitData, *, is_inside_epoch: bool) -> None:
    """Restore metrics and random numbers, right before training goes on.

    Args:
        run: The run, with its checkpoint.
        data: The loaders, whose generators are restored.
        is_inside_epoch: Whether training goes on inside an epoch.
    """
    assert run.checkpoint is not None
    fit = run.checkpoint["fit"]
    if run.metrics is not None and fit["metrics"] is not None:
        run.metrics.load_state_dict(fit["metrics"])
        run.metrics.moment = "batch" if is_inside_epoch else "epoch"
    states = fit["metric_states"]
    if run.logical is not None and run.logical.metrics is not None:
        run.logical.metrics.load_state_dict(states)
    else:
        restore_metric_states(run.module, states.of(run.module) if isinstance(states, JoinedStates) else states)
    restore_random_state(run.checkpoint["rng"], data.generators)


def gradients_of(run: Run) -> dict[Any, Any]:
    """Return copies of the gradients of a run's module, by the names of its parameters. Collective.

    With logical ranks such a dictionary for each of them, by its index, on the first process, unless all have the same.
    """
    if run.logical is not None:
        of_ranks: dict[int, dict[str, torch.Tensor]] = run.strategy.logical_gradients()  # type: ignore[attr-defined]
        if of_ranks:
            return {rank: {name: one.detach().clone() for name, one in own.items()} for rank, own in of_ranks.items()}
    getattr(run.strategy, "collect_gradients", no_op)()
    named = run.module.named_parameters()
    return {name: one.grad.detach().clone() for name, one in named if one.grad is not None}


def parameter_names_of(optimizers: Sequence[Any], module: nn.Module) -> list[list[str | None]]:
    """Return the names of each optimizer's parameters, in its order, as a checkpoint keeps them."""
    names = {id(one): name for name, one in module.named_parameters()}
    return [[names.get(id(one)) for group in each.param_groups for one in group["params"]] for each in optimizers]


def classes_of(owners: Sequence[Any]) -> list[str]:
    """Return the names of the classes of optimizers or schedulers, as a checkpoint keeps them."""
    parts = [", ".join(classes_of(one.optimizers)) if isinstance(one, JointOptimizer) else "" for one in owners]
    return [type(one).__name__ + (f"({of})" if of else "") for one, of in zip(owners, parts, strict=True)]
