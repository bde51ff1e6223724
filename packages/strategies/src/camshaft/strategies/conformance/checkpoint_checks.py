"""Checks of checkpoints and resuming."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from camshaft.hooks_core.protocols import Strategy
from camshaft.strategies.conformance.training import StrategyRun, Subject, adam, one, sgd, whole
from camshaft.strategies.conformance.trial import Trial, same, shorten

_PLAIN_TYPES = (bool, int, float, complex, str, bytes, type(None))


def checkpoints_are_restored_exactly(trial: Trial) -> None:
    """A checkpoint is complete when `save_checkpoint`, or the wait for it, ends; every rank loads it on the CPU."""
    path, rank = _path(trial), trial.ranks.rank
    with StrategyRun(trial, Subject(seed=1)) as run:
        state = run.module.state_dict()
        _save(run.strategy, {"state_dict": state, "rank": rank, "plain": _plain(), "tensors": _tensors()}, path)
        _expect_loaded(trial, run.strategy, path, run.weights())  # without a barrier
        other = trial.make_strategy()
        other.connect()
        _expect_loaded(trial, other, path, run.weights())


def checkpoints_are_replaced_as_a_whole(trial: Trial) -> None:
    """A save does not write into an earlier checkpoint, and leaves it if it fails, which raises on all ranks."""
    path = _path(trial)
    strategy = trial.make_strategy()
    strategy.connect()
    tensors = {"a": torch.arange(1000.0)}
    _save(strategy, {"number": 1, **tensors}, path)
    files = [file for file in [Path(path), *Path(path).rglob("*")] if file.is_file()]
    trial.expect(bool(files), "a checkpoint must be at its path once it is saved", "there is nothing")
    trial.stop_if_failed()
    opened = [file.open("rb") for file in files]
    before = [file.read() for file in opened]
    trial.ranks.exchange(None)  # no rank saves before all have read
    _save(strategy, {"number": 2, **tensors}, path)
    for file in opened:
        file.seek(0)
    untouched = [file.read() for file in opened] == before
    trial.expect(untouched, "a save must replace an earlier checkpoint as a whole", "it wrote into the earlier files")
    trial.expect_equal(strategy.load_checkpoint(path)["number"], 2, "a checkpoint that was saved over another")
    for file in opened:
        file.close()
    has_raised = False
    try:
        _save(strategy, {"number": 3, **tensors, "no plain value": threading.Lock()}, path)
    except Exception:
        has_raised = True
    trial.expect(has_raised, "a save of what cannot be saved must raise on every rank", "it did not on this one")
    trial.stop_if_failed()
    trial.expect_equal(strategy.load_checkpoint(path)["number"], 2, "an earlier checkpoint after a save that failed")


def checkpoints_are_snapshots(trial: Trial) -> None:
    """Training may change tensors as soon as `save_checkpoint` returns; the checkpoint holds the former values."""
    path = _path(trial)
    with StrategyRun(trial, Subject(), one(adam)) as run:
        run.update(0)
        weights, extra = run.weights(), torch.ones(100_000)
        checkpoint = {"state_dict": run.module.state_dict(), "extra": extra}
        pending = run.strategy.save_checkpoint(checkpoint, path)
        extra.zero_()
        run.update(1)
        if pending is not None:
            pending.wait()
        loaded = run.strategy.load_checkpoint(path)
        trial.expect(
            bool(loaded["extra"].all()), "a checkpoint must be of the moment of its save", "later zeros are in it"
        )
        saved = {name: whole(value) for name, value in loaded["state_dict"].items()}
        trial.expect(same(saved, weights), "a checkpoint must hold the weights at its save", "it holds others")


def training_resumes_exactly(trial: Trial) -> None:
    """A new strategy that loads weights, optimizers and its own state trains to the same bits as without a stop."""
    path = _path(trial)
    with StrategyRun(trial, Subject(), one(adam)) as run:
        run.update(0)
        run.update(1, 2)
        strategy = run.strategy
        optimizers = [optimizer.state_dict() for optimizer in run.optimizers]
        state = {"state_dict": run.module.state_dict(), "optimizers": optimizers, "strategy": strategy.state_dict()}
        _save(strategy, state, path)
        saved = run.weights()
        run.update(3)
        run.update(4, 5)
        whole_run = run.weights()
    strategy = trial.make_strategy()
    strategy.connect()
    loaded = strategy.load_checkpoint(path)
    with StrategyRun(trial, Subject(seed=7), one(adam), strategy=strategy, checkpoint=loaded) as run:
        trial.expect(
            same(run.weights(), saved), "`load_module_state` must give the weights that were saved", "it did not"
        )
        run.update(3)
        run.update(4, 5)
        resumed = run.weights()
        differing = [name for name, value in whole_run.items() if not same(resumed[name], value)]
        promise = "training from a checkpoint must end with the weights of training that was not stopped"
        trial.expect(not differing, promise, f"{differing} differ")


def strategy_state_is_restored(trial: Trial) -> None:
    """`state_dict` is plain and the same on all ranks; `load_state_dict` takes it back, and ignores another kind's."""
    with StrategyRun(trial, Subject(), one(sgd)) as run:
        run.warm_up()
        run.backward_on(0, factor=float("inf"))
        run.strategy.optimizer_step(run.optimizer)
        state = run.strategy.state_dict()
        trial.expect(_is_plain(state), "`state_dict` of a strategy must hold plain values", f"got {shorten(state)}")
        trial.expect_same_everywhere(state, "`state_dict` of a strategy")
    with StrategyRun(trial, Subject(), one(sgd)) as run:
        own = run.strategy.state_dict()
        run.strategy.load_state_dict({})
        run.strategy.load_state_dict({"of another kind of strategy": 1})
        trial.expect_equal(run.strategy.state_dict(), own, "what a strategy learned, after another kind's was loaded,")
        run.strategy.load_state_dict(state)
        trial.expect_equal(run.strategy.state_dict(), state, "what a strategy learned, after it was loaded,")


def _expect_loaded(trial: Trial, strategy: Strategy, path: str, weights: Mapping[str, Tensor]) -> None:
    loaded = strategy.load_checkpoint(path)
    keys = ["plain", "rank", "state_dict", "tensors"]
    if not trial.expect_equal(sorted(loaded), keys, "the keys of a checkpoint"):
        return
    trial.expect_equal(loaded["plain"], _plain(), "plain values of a checkpoint")
    trial.expect_equal(loaded["rank"], 0, "the rank whose plain values are in a checkpoint")
    trial.expect_equal(loaded["tensors"], _tensors(), "tensors of a checkpoint")
    devices = {value.device.type for value in (*loaded["tensors"].values(), *loaded["state_dict"].values())}
    trial.expect_equal(devices, {"cpu"}, "the devices of a loaded checkpoint's tensors")
    trial.expect_equal(list(loaded["state_dict"]), list(weights), "the names of a module's state in a checkpoint")
    for name, value in loaded["state_dict"].items():
        trial.expect_equal(whole(value), weights[name], f"`{name}` of a module's state in a checkpoint")


def _save(strategy: Strategy, checkpoint: Mapping[str, Any], path: str) -> None:
    pending = strategy.save_checkpoint(checkpoint, path)
    if pending is not None:
        pending.wait()


def _path(trial: Trial) -> str:
    return str(trial.directory / "a.ckpt")


def _plain() -> dict[str, Any]:
    numbers = {"epoch": 3, "ratio": 0.1, "infinite": float("inf"), "flag": True, "none": None}
    return numbers | {
        "text": "é",
        "raw": b"\x00\xff",
        "list": [1, [2.5, "x"]],
        "tuple": (1, ("a",)),
        "by int": {1: {2: 3}},
    }


def _tensors() -> dict[str, Tensor]:
    return {
        "float": torch.arange(6.0).reshape(2, 3),
        "half": torch.arange(3).to(torch.bfloat16),
        "double": torch.tensor([1 / 3], dtype=torch.float64),
        "int": torch.tensor([2**60]),
        "bool": torch.tensor([True, False]),
        "scalar": torch.tensor(5),
        "empty": torch.empty(0, 4),
        "transposed": torch.arange(6.0).reshape(2, 3).T,
    }


def _is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(map(_is_plain, value)) and all(map(_is_plain, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return type(value) in _PLAIN_TYPES
