"""What a checkpoint holds of a run, and how a run takes it back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from camshaft.hooks_core.implementation import implementation
from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.notes import noting
from camshaft.loops.callback_state import state_key
from camshaft.loops.optimizers import Optimization
from camshaft.loops.progress import FitProgress
from camshaft.loops.random_state import random_state
from camshaft.loops.run import Run


def collect(
    run: Run,
    optimization: Optimization | None,
    progress: FitProgress,
    weights_only: bool,
    generators: Sequence[torch.Generator] = (),
) -> dict[str, Any]:
    """Put a checkpoint together: tensors and plain values only.

    Hooks: state_dict of callbacks and data module, on_save_checkpoint.

    Args:
        run: The run.
        optimization: Optimizers and schedulers; None outside of fit.
        progress: Where training is.
        weights_only: Whether to leave out everything that only matters for resuming.
        generators: The loaders' own generators.
    """
    checkpoint: dict[str, Any] = {
        "epoch": max(progress.current_epoch - (progress.num_batches == 0), 0),
        "global_step": progress.global_step,
        "state_dict": run.module.state_dict(),
        "loops": {"fit": progress.state_dict()},
    }
    if not weights_only:
        checkpoint["callbacks"] = _states_of_callbacks(run)
        checkpoint["rng"] = random_state(generators)
        if optimization is not None:
            checkpoint["optimizer_states"] = [optimizer.state_dict() for optimizer in optimization.optimizers]
            checkpoint["lr_schedulers"] = [config.scheduler.state_dict() for config in optimization.schedulers]
        save_data = implementation(run.data, "state_dict") if run.data is not None else None
        if save_data is not None:
            with noting(run.data, "state_dict", run.position):
                checkpoint["data"] = save_data()
    run.hooks.on_save_checkpoint(checkpoint)
    return checkpoint


def restore_module(run: Run, checkpoint: dict[str, Any]) -> None:
    """Take back the weights. Hooks: on_load_checkpoint.

    Raises:
        ValueError: If there are no weights in the checkpoint.
        RuntimeError: If they do not fit the module (from torch).
    """
    run.hooks.on_load_checkpoint(checkpoint)
    if "state_dict" not in checkpoint:
        raise ValueError(
            must_be(
                "checkpoint", "one with the key 'state_dict'", sorted(checkpoint), "restore_module", "Pass another."
            )
        )
    run.module.load_state_dict(checkpoint["state_dict"])


def restore_training(run: Run, checkpoint: dict[str, Any], optimization: Optimization, progress: FitProgress) -> None:
    """Take back what training needs beside the weights, except the random numbers. Hooks: load_state_dict.

    Raises:
        ValueError: If the checkpoint holds weights only, or other optimizers or schedulers than the module has.
        NotImplementedError: If it was taken in the middle of an epoch.
    """
    missing = [key for key in ("optimizer_states", "lr_schedulers", "loops", "rng") if key not in checkpoint]
    if missing:
        raise ValueError(
            must_be(
                "checkpoint",
                f"a whole one to resume from (missing: {', '.join(missing)})",
                sorted(checkpoint),
                "fit",
                "Load its weights with `load_from_checkpoint` and fit without `ckpt_path`.",
            )
        )
    progress.load_state_dict(checkpoint["loops"]["fit"])
    _restore_each(optimization.optimizers, checkpoint["optimizer_states"], "optimizers")
    _restore_each([config.scheduler for config in optimization.schedulers], checkpoint["lr_schedulers"], "schedulers")
    for callback in run.callbacks:
        load = implementation(callback, "load_state_dict")
        state = checkpoint.get("callbacks", {}).get(state_key(callback))
        if load is not None and state is not None:
            with noting(callback, "load_state_dict", run.position):
                load(state)
    load_data = implementation(run.data, "load_state_dict") if run.data is not None else None
    if load_data is not None and "data" in checkpoint:
        with noting(run.data, "load_state_dict", run.position):
            load_data(checkpoint["data"])


def _states_of_callbacks(run: Run) -> dict[str, Any]:
    states: dict[str, Any] = {}
    for callback in run.callbacks:
        save = implementation(callback, "state_dict")
        if save is None:
            continue
        with noting(callback, "state_dict", run.position):
            states[state_key(callback)] = save()
    return states


def _restore_each(owners: list[Any], states: list[Any], what: str) -> None:
    if len(owners) != len(states):
        raise ValueError(
            must_be(
                f"number of {what}",
                f"that of the checkpoint ({len(states)})",
                len(owners),
                "configure_optimizers",
                "Configure the same as when it was saved, or fit without `ckpt_path`.",
            )
        )
    for owner, state in zip(owners, states, strict=True):
        owner.load_state_dict(state)
