"""States of callbacks of earlier releases, for those of today."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from camshaft.callbacks import EarlyStopping, ModelCheckpoint, StochasticWeightAveraging, Timer
from camshaft.callbacks.weights.finetuning import BaseFinetuning
from camshaft.callbacks.weights.weight_averaging import AVERAGING_KEY
from camshaft.compat.eras.evidence import takes_state
from camshaft.hooks_core.dispatch.implementation import implementation
from camshaft.loops.state.callback_state import state_key


def callback_states(
    checkpoint: Mapping[str, Any], callbacks: Sequence[object]
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return the states of the given callbacks, and the names of states without a callback.

    `ModelCheckpoint`, `EarlyStopping`, `Timer` and `StochasticWeightAveraging` take what they can from any release;
    callbacks that are no part of camshaft get what one of their class's name saved, if they can load it. Where two of a
    kind are there, it must be clear which one is meant.

    Args:
        checkpoint: The checkpoint.
        callbacks: The callbacks of the run.

    Returns:
        States by `state_key`; names.
    """
    states: dict[str, dict[str, Any]] = {}
    left_out: list[str] = []
    for name, arguments, state in _saved(checkpoint):
        takers = [(callback, read) for callback in callbacks if (read := _reader(callback, name))]
        matching = [(callback, read) for callback, read in takers if _fits(callback, arguments)]
        if len(matching) == 1:
            callback, read = matching[0]
            states[state_key(callback)] = read(callback, state)
        elif not any(takes_state(callback) and type(callback).__qualname__ == name for callback in callbacks):
            left_out.append(name)  # else its own `on_load_checkpoint` has got it
    return states, left_out


def averages(checkpoint: Mapping[str, Any], callbacks: Sequence[object]) -> dict[str, Any]:
    """Return the entries for `StochasticWeightAveraging`, of the average that releases from 1.8 on saved.

    Earlier releases saved nothing: with these the average begins anew.

    Returns:
        Entries of the checkpoint; none without an average, or without such a callback.
    """
    if not any(isinstance(callback, StochasticWeightAveraging) for callback in callbacks):
        return {}
    for name, _, state in _saved(checkpoint):
        if name == "StochasticWeightAveraging" and _has_average(state):
            count = torch.tensor(int(state["n_averaged"]))
            return {AVERAGING_KEY: {"n_averaged": count, "weights": state["average_model_state"]}}
    return {}


def without_finetuning(
    checkpoint: Mapping[str, Any], callbacks: Sequence[object]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the states of callbacks in a checkpoint, and separately those of callbacks that fine-tune.

    These do not say what is frozen, which ours look up as soon as they see the checkpoint.
    """
    keys = {state_key(callback) for callback in callbacks if isinstance(callback, BaseFinetuning)}
    states = dict(checkpoint.get("callbacks") or {})
    return states, {key: states.pop(key) for key in list(states) if str(key) in keys}


def _saved(checkpoint: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield the class name, known arguments and state of each callback with a state."""
    callbacks = checkpoint.get("callbacks")
    for key, state in callbacks.items() if isinstance(callbacks, Mapping) else ():
        found = re.fullmatch(r"(\w[\w.]*)(\{.*\})?", str(key), re.DOTALL)
        if isinstance(state, dict) and state:
            arguments = _literal(found[2]) if found and found[2] else {}
            monitored = {"monitor": state["monitor"]} if state.get("monitor") is not None else {}
            yield found[1] if found else str(key), {**monitored, **arguments}, state
    before_1 = {"best_model_score": "checkpoint_callback_best"}  # replaced by later names where these are there
    later = {name: f"checkpoint_callback_{name}" for name in ("best_model_score", "best_model_path")}
    best = {new: checkpoint[old] for names in (before_1, later) for new, old in names.items() if old in checkpoint}
    if best:
        yield "ModelCheckpoint", {}, best
    if "early_stop_callback_state_dict" in checkpoint:
        yield "EarlyStopping", {}, dict(checkpoint["early_stop_callback_state_dict"])
    elif "early_stop_callback_wait" in checkpoint:
        yield "EarlyStopping", {}, {"wait_count": checkpoint["early_stop_callback_wait"]}


def _literal(text: str) -> dict[str, Any]:
    try:
        arguments = ast.literal_eval(text)
    except (ValueError, SyntaxError):  # a duration, say, which no other callback has either
        return {}
    return {key: arguments[key] for key in ("monitor", "mode", "interval") if key in arguments}


def _fits(callback: object, arguments: dict[str, Any]) -> bool:
    return all(getattr(callback, name, value) == value for name, value in arguments.items())


def _reader(callback: object, name: str) -> Callable[[Any, dict[str, Any]], dict[str, Any]] | None:
    """Return a function that converts a state, saved by a class of this name, for a callback; None if it takes none."""
    kind, read = _READERS.get(name, (None, None))
    if kind is not None and isinstance(callback, kind):
        return read
    if isinstance(callback, BaseFinetuning):
        return None
    is_own = type(callback).__module__.partition(".")[0] == "camshaft"
    if is_own or type(callback).__qualname__ != name or implementation(callback, "load_state_dict") is None:
        return None
    return lambda _, state: state


def _of_early_stopping(callback: EarlyStopping, saved: dict[str, Any]) -> dict[str, Any]:
    state = callback.state_dict()
    if saved.get("best_score") is not None:
        state["best_score"] = _scalar(saved["best_score"])
    for name in ("wait_count", "stopped_epoch"):
        state[name] = int(saved.get(name, state[name]))
    return state


def _of_timer(callback: Timer, saved: dict[str, Any]) -> dict[str, Any]:
    stages = callback.state_dict()["time_elapsed"]
    return {"time_elapsed": {stage: float(saved.get("time_elapsed", {}).get(stage, 0.0)) for stage in stages}}


def _of_averaging(callback: StochasticWeightAveraging, saved: dict[str, Any]) -> dict[str, Any]:
    """Return the state of an average of the weights at the beginning of each of its epochs."""
    if not _has_average(saved):
        return callback.state_dict()
    latest = int(saved["latest_update_epoch"])
    return {"begun_epoch": latest + 1 - int(saved["n_averaged"]), "latest_epoch": latest}


def _has_average(saved: Mapping[str, Any]) -> bool:
    return bool(saved.get("n_averaged")) and isinstance(saved.get("average_model_state"), Mapping)


def _of_model_checkpoint(callback: ModelCheckpoint, saved: dict[str, Any]) -> dict[str, Any]:
    state = callback.state_dict()
    best = str(saved.get("best_model_path") or "")
    scores = {str(path): _scalar(score) for path, score in (saved.get("best_k_models") or {}).items()}
    if not scores and best and saved.get("best_model_score") is not None and callback.monitor is not None:
        scores = {best: _scalar(saved["best_model_score"])}
    current = saved.get("current_score")
    return state | {
        "best_k_models": scores,
        "best_model_path": best,
        "last_model_path": str(saved.get("last_model_path") or ""),
        "current_score": None if current is None else _scalar(current),
        "dirpath": saved.get("dirpath") or state["dirpath"],
    }


def _scalar(value: Any) -> Tensor:
    return value.detach().cpu().reshape(()) if isinstance(value, Tensor) else torch.tensor(float(value))


_READERS: Mapping[str, tuple[type, Callable[[Any, dict[str, Any]], dict[str, Any]]]] = {
    "ModelCheckpoint": (ModelCheckpoint, _of_model_checkpoint),
    "EarlyStopping": (EarlyStopping, _of_early_stopping),
    "Timer": (Timer, _of_timer),
    "StochasticWeightAveraging": (StochasticWeightAveraging, _of_averaging),
}
"""By class of a release, the class of today that takes its state, and the function that converts it."""
