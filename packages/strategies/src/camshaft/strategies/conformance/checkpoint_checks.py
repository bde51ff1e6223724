"""Checkpoints, and going on from them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from camshaft.hooks_core.protocols import Strategy
from camshaft.strategies.conformance.training import Life, Subject, adam, one, sgd, whole
from camshaft.strategies.conformance.trial import Trial, same, shown

_PLAIN_TYPES = (bool, int, float, complex, str, bytes, type(None))


def checkpoints_come_back_as_they_were(trial: Trial) -> None:
    """What `save_checkpoint` wrote is there when it, or the wait for it, ends; every rank loads it, on the CPU."""
    path, rank = _path(trial), trial.ranks.rank
    with Life(trial, Subject(seed=1)) as life:
        state = life.module.state_dict()
        _save(life.strategy, {"state_dict": state, "rank": rank, "plain": _plain(), "tensors": _tensors()}, path)
        _expect_loaded(trial, life.strategy, path, life.weights())  # with no further word between the ranks
        other = trial.make_strategy()
        other.connect()
        _expect_loaded(trial, other, path, life.weights())


def checkpoints_are_replaced_as_a_whole(trial: Trial) -> None:
    """A save does not write into an earlier checkpoint, and leaves it if it fails, which raises on all ranks."""
    path = _path(trial)
    strategy = trial.make_strategy()
    strategy.connect()
    tensors = {"a": torch.arange(1000.0)}
    _save(strategy, {"number": 1, **tensors}, path)
    files = [file for file in [Path(path), *Path(path).rglob("*")] if file.is_file()]
    trial.expect(bool(files), "a checkpoint must be at its path once it is saved", "there is nothing")
    trial.settle()
    opened = [file.open("rb") for file in files]
    before = [file.read() for file in opened]
    trial.ranks.exchange(None)  # nobody saves before everybody has read
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
    trial.settle()
    trial.expect_equal(strategy.load_checkpoint(path)["number"], 2, "an earlier checkpoint after a save that failed")


def checkpoints_are_of_the_moment_of_their_save(trial: Trial) -> None:
    """Training may change tensors as soon as `save_checkpoint` returns; the checkpoint holds them as they were."""
    path = _path(trial)
    with Life(trial, Subject(), one(adam)) as life:
        life.update(0)
        weights, extra = life.weights(), torch.ones(100_000)
        checkpoint = {"state_dict": life.module.state_dict(), "extra": extra}
        pending = life.strategy.save_checkpoint(checkpoint, path)
        extra.zero_()
        life.update(1)
        if pending is not None:
            pending.wait()
        loaded = life.strategy.load_checkpoint(path)
        trial.expect(
            bool(loaded["extra"].all()), "a checkpoint must be of the moment of its save", "later zeros are in it"
        )
        saved = {name: whole(value) for name, value in loaded["state_dict"].items()}
        trial.expect(same(saved, weights), "a checkpoint must hold the weights at its save", "it holds others")


def training_goes_on_from_a_checkpoint(trial: Trial) -> None:
    """A new strategy that loads weights, optimizers and its own state goes on to the same bits as one not stopped."""
    path = _path(trial)
    with Life(trial, Subject(), one(adam)) as life:
        life.update(0)
        life.update(1, 2)
        strategy = life.strategy
        optimizers = [optimizer.state_dict() for optimizer in life.optimizers]
        state = {"state_dict": life.module.state_dict(), "optimizers": optimizers, "strategy": strategy.state_dict()}
        _save(strategy, state, path)
        saved = life.weights()
        life.update(3)
        life.update(4, 5)
        whole_run = life.weights()
    strategy = trial.make_strategy()
    strategy.connect()
    loaded = strategy.load_checkpoint(path)
    with Life(trial, Subject(seed=7), one(adam), strategy=strategy, checkpoint=loaded) as life:
        trial.expect(
            same(life.weights(), saved), "`load_module_state` must give the weights that were saved", "it did not"
        )
        life.update(3)
        life.update(4, 5)
        resumed = life.weights()
        differing = [name for name, value in whole_run.items() if not same(resumed[name], value)]
        promise = "training from a checkpoint must end with the weights of training that was not stopped"
        trial.expect(not differing, promise, f"{differing} differ")


def what_a_strategy_learned_comes_back(trial: Trial) -> None:
    """`state_dict` is plain and the same on all ranks; `load_state_dict` takes it back, and ignores another kind's."""
    with Life(trial, Subject(), one(sgd)) as life:
        life.warm_up()
        life.backward_on(0, factor=float("inf"))
        life.strategy.optimizer_step(life.optimizer)
        state = life.strategy.state_dict()
        trial.expect(_is_plain(state), "`state_dict` of a strategy must hold plain values", f"got {shown(state)}")
        trial.expect_same_everywhere(state, "`state_dict` of a strategy")
    with Life(trial, Subject(), one(sgd)) as life:
        own = life.strategy.state_dict()
        life.strategy.load_state_dict({})
        life.strategy.load_state_dict({"of another kind of strategy": 1})
        trial.expect_equal(life.strategy.state_dict(), own, "what a strategy learned, after another kind's was loaded,")
        life.strategy.load_state_dict(state)
        trial.expect_equal(life.strategy.state_dict(), state, "what a strategy learned, after it was loaded,")


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
