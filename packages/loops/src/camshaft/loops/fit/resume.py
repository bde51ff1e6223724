"""Collecting a checkpoint of a run, with the part that each process has of its own, and restoring a run from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from camshaft.hooks_core.dispatch.implementation import implementation
from camshaft.hooks_core.messages import must_be, note_errors, warn_user
from camshaft.hooks_core.protocols import Strategy
from camshaft.loops.optimization.configuration import ConfiguredOptimizers
from camshaft.loops.state.callback_state import state_key, warn_of_absent
from camshaft.loops.state.progress import FitProgress
from camshaft.loops.state.random_state import derived_random_state
from camshaft.loops.state.run import Run

if TYPE_CHECKING:
    from camshaft.loops.fit.loop import FitLoop

_OF_TRAINING = ("optimizer_states", "lr_schedulers", "loops", "rng", "fit")

ADAPTER_KEY = "adapter"
"""Key of the `CheckpointAdapter` in a checkpoint of another format, where its reader puts it."""


class CheckpointAdapter(Protocol):
    """Adapts a checkpoint of another format to a run, step by step as the parts of the run are made."""

    def weights(self, saved: Mapping[str, Any], module: nn.Module) -> Mapping[str, Any]:
        """Return the weights under their names in the module.

        Args:
            saved: The weights under the names in the checkpoint.
            module: The module.
        """

    def data_state(self, checkpoint: dict[str, Any], data: object) -> dict[str, Any]:
        """Return the state of the data module, as "data"; an empty dictionary without one.

        Args:
            checkpoint: The checkpoint.
            data: The data module; None without one.
        """

    def callback_states(self, checkpoint: dict[str, Any], run: Run) -> dict[str, dict[str, Any]]:
        """Return the states of the run's callbacks by their keys.

        Args:
            checkpoint: The checkpoint.
            run: The run.
        """

    def training(self, checkpoint: dict[str, Any], run: Run) -> dict[str, Any]:
        """Restore progress and random numbers; return states that replace those of the checkpoint.

        Returns:
            The states.
        """

    def finish(self, run: Run) -> None:
        """Finish, once everything else is restored."""


def collect(
    run: Run, loop: FitLoop | None, *, weights_only: bool = False, facts: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return a checkpoint of a run.

    Hooks: state_dict of callbacks and data module, on_save_checkpoint.

    Args:
        run: The run.
        loop: The loop that trains or trained the run's module; None if there is none to go on with.
        weights_only: Whether to leave out all that only resuming needs.
        facts: Further entries, there when `on_save_checkpoint` is called.
    """
    checkpoint: dict[str, Any] = {"epoch": 0, "global_step": 0, "state_dict": run.module.state_dict(), "loops": {}}
    checkpoint |= facts or {}
    if loop is not None:
        checkpoint["loops"] = {**checkpoint["loops"], **loop.progress_state()}
        checkpoint["epoch"] = loop.current_epoch
        checkpoint["global_step"] = loop.progress.global_step
    if not weights_only:
        checkpoint["callbacks"] = _states_of_callbacks(run)
        if loop is not None:
            of_strategy = run.strategy.state_dict()
            if of_strategy:
                checkpoint["strategy"] = of_strategy
            configured = loop.optimization
            state_of = getattr(run.strategy, "optimizer_state", methodcaller("state_dict"))
            checkpoint["optimizer_states"] = [state_of(optimizer) for optimizer in configured.optimizers]
            checkpoint["lr_schedulers"] = [config.scheduler.state_dict() for config in configured.schedulers]
            checkpoint |= of_all_ranks(loop.state_dict(run), run.strategy)
        save_data = implementation(run.data, "state_dict") if run.data is not None else None
        if save_data is not None:
            with note_errors(run.data, "state_dict", run.position):
                checkpoint["data"] = save_data()
    run.hooks.on_save_checkpoint(checkpoint)
    return checkpoint


def _states_of_callbacks(run: Run) -> dict[str, Any]:
    states: dict[str, Any] = {}
    for callback in run.callbacks:
        save = implementation(callback, "state_dict")
        if save is None:
            continue
        with note_errors(callback, "state_dict", run.position):
            states[state_key(callback)] = save()
    return states


def restore_module(run: Run, checkpoint: dict[str, Any]) -> None:
    """Restore the weights. Collective.

    A module with `strict_loading = False` keeps what the checkpoint lacks, with a warning that names it.

    Raises:
        ValueError: If there are no weights in the checkpoint.
        RuntimeError: If they do not fit the module (from torch). Names that only one of the two has are no such case if
            the module has `strict_loading = False`.
    """
    if "state_dict" not in checkpoint:
        rule = "one with the key 'state_dict'"
        raise ValueError(must_be("checkpoint", rule, sorted(checkpoint), "restore_module", "Pass another."))
    adapter: CheckpointAdapter | None = checkpoint.get(ADAPTER_KEY)
    weights = checkpoint["state_dict"]
    if adapter is not None:
        weights = adapter.weights(weights, run.module)
    load_module_state: Any = run.strategy.load_module_state
    if getattr(run.module, "strict_loading", True):
        load_module_state(run.module, weights)
        return
    if run.strategy.global_rank == 0:
        warn_of_other_names(run.module, weights)
    load_module_state(run.module, weights, strict=False)


def warn_of_other_names(module: nn.Module, weights: Mapping[str, Any]) -> None:
    """Warn of names that only a module or only the weights for it have, which loading skips unless it is strict."""
    own = module.state_dict().keys()
    for names, place in ((own - weights.keys(), "module"), (weights.keys() - own, "checkpoint")):
        if names:
            warn_user(
                f"Only the {place} has these weights, which stay as they are: {', '.join(sorted(names))}. Load "
                "strictly to refuse this."
            )


def check_resumable(checkpoint: dict[str, Any]) -> None:
    """Raise `ValueError` unless a checkpoint holds what training needs to go on."""
    missing = [key for key in _OF_TRAINING if key not in checkpoint]
    if missing or "fit" not in checkpoint["loops"]:
        rule = f"a whole one to resume from (missing: {', '.join(missing) or 'the progress of fit'})"
        action = "Load its weights with `load_from_checkpoint` and fit without `ckpt_path`."
        raise ValueError(must_be("checkpoint", rule, sorted(checkpoint), "fit", action))


def restore_data_module(run: Run, checkpoint: dict[str, Any]) -> None:
    """Restore the state of the data module. Hooks: load_state_dict of the data module.

    Args:
        run: The run.
        checkpoint: The checkpoint.
    """
    load = implementation(run.data, "load_state_dict") if run.data is not None else None
    if load is None:
        return
    adapter: CheckpointAdapter | None = checkpoint.get(ADAPTER_KEY)
    saved = checkpoint if adapter is None else adapter.data_state(checkpoint, run.data)
    if "data" in saved:
        with note_errors(run.data, "load_state_dict", run.position):
            load(saved["data"])


def restore_callbacks(run: Run, checkpoint: dict[str, Any]) -> None:
    """Restore the states of callbacks; warns in fit of callbacks that are absent. Collective where a callback's is.

    Hooks: load_state_dict of callbacks.

    Args:
        run: The run.
        checkpoint: The checkpoint.
    """
    adapter: CheckpointAdapter | None = checkpoint.get(ADAPTER_KEY)
    states = checkpoint.get("callbacks", {}) if adapter is None else adapter.callback_states(checkpoint, run)
    if run.verb == "fit" and run.strategy.global_rank == 0:
        warn_of_absent(states, run.callbacks)
    for callback in run.callbacks:
        load = implementation(callback, "load_state_dict")
        state = states.get(state_key(callback))
        if load is not None and state is not None:
            with note_errors(callback, "load_state_dict", run.position):
                load(state)


def restore_training(run: Run, checkpoint: dict[str, Any], configured: ConfiguredOptimizers) -> None:
    """Restore optimizers, schedulers and strategy. Collective.

    Raises:
        ValueError: If the checkpoint holds other optimizers or schedulers than the module has, or optimizers of other
            classes with other settings.
    """
    adapter: CheckpointAdapter | None = checkpoint.get(ADAPTER_KEY)
    if adapter is not None:
        checkpoint = {**checkpoint, **adapter.training(checkpoint, run)}
    optimizers, optimizer_states = configured.optimizers, checkpoint["optimizer_states"]
    schedulers, scheduler_states = [config.scheduler for config in configured.schedulers], checkpoint["lr_schedulers"]
    _check_number("optimizers", optimizers, optimizer_states)
    _check_number("schedulers", schedulers, scheduler_states)
    classes = checkpoint["fit"].get("optimizer_classes") or [None] * len(optimizers)
    for optimizer, state, saved_class in zip(optimizers, optimizer_states, classes, strict=True):
        _check_class(optimizer, state, saved_class)
        run.strategy.load_optimizer_state(optimizer, state)
    for scheduler, state in zip(schedulers, scheduler_states, strict=True):
        scheduler.load_state_dict(state)
    run.strategy.load_state_dict(checkpoint.get("strategy", {}))
    if adapter is not None:
        adapter.finish(run)


def gradients_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return copies of the gradients of a module, by the names of its parameters."""
    return {
        name: parameter.grad.detach().clone()
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }


def restore_gradients(run: Run, gradients: dict[str, torch.Tensor]) -> None:
    """Restore the gradient of every parameter of the module, also where there was none. Collective.

    Args:
        run: The run.
        gradients: The gradients by the parameters' names.
    """
    for name, parameter in run.module.named_parameters():
        gradient = gradients.get(name)
        parameter.grad = None if gradient is None else run.strategy.place_like(gradient, parameter)


def classes_of(optimizers: Sequence[Any]) -> list[str]:
    """Return the names of the classes of optimizers, as a checkpoint keeps them."""
    return [type(one).__name__ for one in optimizers]


def _check_class(optimizer: Any, state: Any, saved_class: str | None) -> None:
    """Refuse the state of an optimizer of another class, or warn of it where both have the same settings.

    Checkpoints that do not name the class are refused where either has settings that the other has not.
    """
    [own_class] = classes_of([optimizer])
    if saved_class == own_class:
        return
    groups = state.get("param_groups", ()) if isinstance(state, Mapping) else ()
    own, saved = _settings(optimizer.param_groups), _settings(groups)
    where, action = "configure_optimizers", "Configure the same class, or fit without `ckpt_path`."
    if saved_class is None:
        if own - saved and saved - own:
            rule = f"that of the checkpoint, which has the settings {', '.join(sorted(saved - own))}"
            raise ValueError(must_be("optimizer", rule, own_class, where, action))
    elif own == saved:
        warn_user(
            f"The state of {saved_class} in the checkpoint is loaded into {own_class} of configure_optimizers, which "
            "has the same settings; those of the checkpoint count. Configure the class of the checkpoint to be sure."
        )
    else:
        raise ValueError(must_be("optimizer", f"that of the checkpoint, {saved_class}", own_class, where, action))


def _settings(groups: Sequence[Mapping[str, Any]]) -> set[str]:
    return {name for group in groups for name in group} - {"params", "initial_lr"}


def _check_number(what: str, owners: list[Any], states: list[Any]) -> None:
    if len(owners) != len(states):
        rule = f"that of the checkpoint ({len(states)})"
        action = "Configure the same as when it was saved, or fit without `ckpt_path`."
        raise ValueError(must_be(f"number of {what}", rule, len(owners), "configure_optimizers", action))


def of_all_ranks(state: dict[str, Any], strategy: Strategy) -> dict[str, Any]:
    """Combine the states of all processes into one for the checkpoint. Collective.

    Gradients that are sharded, or the same everywhere, are kept once.

    Args:
        state: "fit" and "rng" of this process.
        strategy: Connects the processes.

    Returns:
        The first process's state and, with several processes, "ranks": the states of all.
    """
    if strategy.world_size == 1:
        return state
    gradients = state["fit"].get("gradients", {})
    own = _differing(gradients, strategy)
    of_rank = {**state, "fit": {**state["fit"], "gradients": {name: gradients[name].cpu() for name in own}}}
    ranks = strategy.all_gather(of_rank)
    shared = {name: gradient for name, gradient in gradients.items() if name not in own}
    return {**ranks[0], "fit": {**ranks[0]["fit"], "gradients": shared}, "ranks": ranks}


def of_this_rank(checkpoint: dict[str, Any], strategy: Strategy) -> dict[str, Any]:
    """Return a checkpoint with the states of this process.

    With another number of processes than it was saved with, training goes on from the end of an epoch only: each
    process takes the random numbers of its rank, and a further rank derives its own from those of the first.

    Args:
        checkpoint: A checkpoint to resume from.
        strategy: Knows the rank of this process.

    Raises:
        ValueError: If it was saved inside an epoch, by another number of processes.
    """
    ranks = checkpoint.get("ranks", [{"fit": checkpoint["fit"], "rng": checkpoint["rng"]}])
    rank, size = strategy.global_rank, strategy.world_size
    if len(ranks) == size == 1:
        return checkpoint
    if len(ranks) != size:
        _check_at_epoch_end(checkpoint, len(ranks), size)
    own = ranks[rank if rank < len(ranks) else 0]
    fit = {**own["fit"]}
    if "gradients" in fit:
        fit["gradients"] = checkpoint["fit"]["gradients"] | fit["gradients"]
    rng = own["rng"] if rank < len(ranks) else derived_random_state(own["rng"], rank)
    return {**checkpoint, "fit": fit, "rng": rng}


def _check_at_epoch_end(checkpoint: dict[str, Any], num_then: int, num_now: int) -> None:
    progress = FitProgress()
    progress.load_state_dict(checkpoint["loops"]["fit"])
    if progress.is_inside_epoch:
        rule = f"that of the checkpoint ({num_then}), which was saved inside of epoch {progress.current_epoch}"
        action = "Use as many processes, or resume from a checkpoint that was saved at an epoch's end."
        raise ValueError(must_be("number of processes", rule, num_now, "fit", action))


def _differing(gradients: dict[str, Tensor], strategy: Strategy) -> set[str]:
    """Return the names of gradients that differ between processes. Collective."""
    from torch.distributed.tensor import DTensor  # only several processes pay for its import

    whole = {name: gradient for name, gradient in gradients.items() if not isinstance(gradient, DTensor)}
    if not any(strategy.all_gather(bool(whole))):
        return set()
    first = strategy.broadcast({name: gradient.cpu() for name, gradient in whole.items()})
    mine = {name for name in whole if name not in first or not torch.equal(whole[name].cpu(), first[name])}
    return set().union(*strategy.all_gather(mine | (first.keys() - whole.keys()))) & whole.keys()
