"""Checks of the protocol's members, collectives, life cycle and checkpoints."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from camshaft.hooks_core.protocols import ReduceOp, Strategy
from camshaft.hooks_core.strategy_defaults import STRATEGY_METHODS
from camshaft.strategies.conformance.training import (
    Reference,
    StrategyRun,
    Subject,
    adam,
    global_batch,
    momentum,
    one,
    sgd,
    share_of,
    whole,
)
from camshaft.strategies.conformance.trial import Trial, same, shorten

_ATTRIBUTES: dict[str, tuple[type, ...]] = {
    "device": (torch.device,),
    "global_rank": (int,),
    "local_rank": (int,),
    "world_size": (int,),
    "has_skipped_step": (bool,),
    "data_rank": (int,),
    "num_data_ranks": (int,),
}


def members_are_those_of_the_protocol(trial: Trial) -> None:
    """A strategy has every member of the protocol, with its arguments and types."""
    strategy = trial.make_strategy()
    for name, types in _ATTRIBUTES.items():
        value = getattr(strategy, name, None)
        kind = types[0].__name__
        trial.expect(type(value) in types, f"`{name}` must be a {kind}", f"got {value!r} ({type(value).__name__})")
    for name, promised in _methods():
        method = getattr(strategy, name, None)
        if trial.expect(callable(method), f"`{name}` must be a method", f"got {shorten(method)}"):
            fault = _fault_of_call(method, promised)
            trial.expect(fault is None, f"`{name}` must take {promised}", fault)


def processes_are_numbered(trial: Trial) -> None:
    """Ranks are numbered from 0, the same world has the same size everywhere, and connecting again changes nothing."""
    strategy = trial.make_strategy()
    before = _numbers(strategy)
    strategy.connect()
    strategy.connect()
    trial.expect_equal(_numbers(strategy), before, "what a strategy says of its place, before and after `connect`,")
    everywhere = trial.ranks.exchange(before)
    size = trial.ranks.size
    ranks = [numbers["global_rank"] for numbers in everywhere]
    trial.expect_equal(ranks, list(range(size)), "`global_rank` of all processes")
    trial.expect_equal([n["world_size"] for n in everywhere], [size] * size, "`world_size` of all processes")
    data_ranks, num_data_ranks = {n["data_rank"] for n in everywhere}, before["num_data_ranks"]
    trial.expect_equal(data_ranks, set(range(num_data_ranks)), "the `data_rank`s of all processes")
    alike = len({n["num_data_ranks"] for n in everywhere}) == 1 and size % num_data_ranks == 0
    trial.expect(alike, "`num_data_ranks` must be the same everywhere and divide `world_size`", f"got {everywhere}")
    trial.expect(0 <= before["local_rank"] < size, f"`local_rank` must be from 0 to {size - 1}", f"got {before}")


def _numbers(strategy: Strategy) -> dict[str, int]:
    return {name: int(getattr(strategy, name)) for name, types in _ATTRIBUTES.items() if types == (int,)}


def _methods() -> Iterator[tuple[str, inspect.Signature]]:
    for name in STRATEGY_METHODS:
        signature = inspect.signature(getattr(Strategy, name))
        yield name, signature.replace(parameters=list(signature.parameters.values())[1:])


def _fault_of_call(method: Any, promised: inspect.Signature) -> str | None:
    """Return why a method cannot be called with all arguments, or without those that have defaults; None if it can."""
    parameters = list(promised.parameters.values())
    required = [parameter for parameter in parameters if parameter.default is inspect.Parameter.empty]
    signature = inspect.signature(method)
    for arguments in (parameters, required):
        try:
            signature.bind(*[None for _ in arguments])
        except TypeError as error:
            return f"{error}: its signature is {signature}"
    return None


_DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
)
_LATE_SECONDS = 0.15


def broadcast_returns_the_value_of_src(trial: Trial) -> None:
    """`broadcast` returns the value of the process `src`, the first by default, on every process."""
    strategy = _connected(trial)
    rank, size = trial.ranks.rank, trial.ranks.size
    for src in range(size):
        received = strategy.broadcast(_anything(rank), src)
        trial.expect_equal(received, _anything(src), f"what rank {src} broadcasts")
    trial.expect_equal(strategy.broadcast(f"of {rank}"), "of 0", "what is broadcast by default")
    for src in (0, size - 1):
        tensor = torch.full((2,), float(rank), device=strategy.device)
        trial.expect_equal(
            strategy.broadcast(tensor, src).cpu(), torch.full((2,), float(src)), f"a tensor that rank {src} broadcasts"
        )
        kept = torch.full((2,), float(rank))
        trial.expect_equal(tensor.cpu(), kept, "the argument of `broadcast`, afterwards,")


def all_gather_returns_all_values_in_order(trial: Trial) -> None:
    """`all_gather` returns the values of all processes in the order of their ranks, on every process."""
    strategy = _connected(trial)
    rank, size = trial.ranks.rank, trial.ranks.size
    trial.expect_equal(
        strategy.all_gather(_anything(rank)), [_anything(src) for src in range(size)], "what is gathered"
    )
    trial.expect_equal(strategy.all_gather(None), [None] * size, "nothing, gathered,")
    own = torch.full((2,), float(rank), device=strategy.device)
    gathered = [value.cpu() for value in strategy.all_gather(own)]
    trial.expect_equal(gathered, [torch.full((2,), float(src)) for src in range(size)], "the tensors that are gathered")


def reduce_combines_element_by_element(trial: Trial) -> None:
    """`reduce` gives mean, sum, max or min over the processes, whatever the dtype; its argument stays as it is."""
    strategy = _connected(trial)
    rank, size = trial.ranks.rank, trial.ranks.size
    for device in dict.fromkeys(("cpu", strategy.device.type)):
        place = strategy.device if device == strategy.device.type else torch.device(device)
        for dtype in _DTYPES:
            tensors = [_of_rank(src, dtype) for src in range(size)]
            for op in get_args(ReduceOp):
                own = tensors[rank].to(place)
                _expect_reduced(trial, strategy, own, tensors, op)
        own = torch.tensor(2**53 + rank, device=place)  # too large for floating point
        largest = torch.tensor(2**53 + size - 1)
        trial.expect_equal(strategy.reduce(own, "max").cpu(), largest, "the largest of 64-bit integers")
        own = torch.tensor(rank, dtype=torch.float64, device=place)
        mean = torch.tensor((size - 1) / 2, dtype=torch.float64)  # halves have no rounding
        trial.expect_equal(strategy.reduce(own).cpu(), mean, "what is reduced by default, the mean,")


def barriers_wait_for_all(trial: Trial) -> None:
    """`barrier` returns when every process has called it, not before."""
    strategy = _connected(trial)
    rank, size = trial.ranks.rank, trial.ranks.size
    strategy.barrier()
    for late in range(size):
        note = trial.directory / f"late.{late}"
        if rank == late:
            time.sleep(_LATE_SECONDS)
            note.touch()
        strategy.barrier()
        trial.expect(note.exists(), f"`barrier` must wait for rank {late}", f"it returned before rank {late} called it")
        trial.stop_if_failed()


def _connected(trial: Trial) -> Strategy:
    strategy = trial.make_strategy()
    strategy.connect()
    return strategy


def _anything(rank: int) -> dict[str, Any]:
    """Return an object that can be pickled, with another size on each rank."""
    return {
        "rank": rank,
        "tuple": (rank, [None, 0.5]),
        "set": {rank, "x"},
        "path": Path(f"folder{rank}"),
        "text": "é" * (1 + 100 * rank),
        "tensor": torch.arange(3 * rank + 1, dtype=torch.float64),
    }


def _of_rank(rank: int, dtype: torch.dtype) -> Tensor:
    """Return a tensor that is not contiguous."""
    if dtype is torch.bool:
        return torch.tensor([[True, False], [rank == 0, rank != 0]]).T
    values = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]) + torch.tensor([[rank], [-rank]])
    return values.abs().to(dtype).T


def _expect_reduced(trial: Trial, strategy: Strategy, own: Tensor, tensors: list[Tensor], op: ReduceOp) -> None:
    what = f"`reduce` of {own.dtype} on {own.device.type} by {op!r}"
    before = own.clone()
    result = strategy.reduce(own, op)
    trial.expect(same(own, before), f"{what} must leave its argument as it is", "it changed")
    stacked = torch.stack(tensors).double()
    reduced = {"mean": stacked.mean(0), "sum": stacked.sum(0), "max": stacked.amax(0), "min": stacked.amin(0)}[op]
    if not trial.expect(isinstance(result, Tensor), f"{what} must be a tensor", f"got {result!r}"):
        return
    trial.expect_equal(result.device.type, own.device.type, f"the device of {what}")
    if own.is_floating_point():
        trial.expect_equal(result.dtype, own.dtype, f"the dtype of {what}")
    # All but means are exact here; means may be rounded in their dtype, those of integers in 32 bits.
    eps = torch.finfo(own.dtype if own.is_floating_point() else torch.float32).eps if op == "mean" else 0.0
    close = result.shape == reduced.shape and torch.allclose(result.cpu().double(), reduced, rtol=4 * eps, atol=0.0)
    trial.expect(close, f"{what} must be {shorten(reduced)}", f"got {shorten(result)}")


def teardown_is_not_collective(trial: Trial) -> None:
    """`teardown` works on one rank after another, and before anything was set up."""
    strategy = trial.make_strategy()
    strategy.teardown()
    strategy.connect()
    strategy.teardown()
    run = StrategyRun(trial, Subject())
    run.__enter__()
    run.update(0)
    for rank in range(trial.ranks.size):
        if rank == trial.ranks.rank:
            run.strategy.teardown()
        trial.ranks.exchange(None)


def modules_can_be_reused_after_teardown(trial: Trial) -> None:
    """After `teardown` the module keeps its weights, and the same strategy evaluates it and trains it further."""
    with StrategyRun(trial, Subject()) as run:
        reference = Reference(run.strategy.num_data_ranks)
        run.update(0)
        reference.update(0)
        module, strategy = run.module, run.strategy
        trained = run.weights()
    after = run.weights()
    trial.expect(same(after, trained), "weights must stay as they were trained after `teardown`", "they changed")
    with StrategyRun(trial, module, lambda _: [], strategy=strategy) as run:
        module.eval()
        with torch.inference_mode():
            output = run.steps["test_step"](run.share(1), 0).cpu()
        share = share_of(global_batch(1, reference.num_data_ranks), run.data_rank, reference.num_data_ranks)
        trial.expect_close({"test_step": output}, {"test_step": reference.module(share["inputs"])}, "in another run,")
    for batch_idx in (1, 2):
        with StrategyRun(trial, module, strategy=strategy) as run:
            run.update(batch_idx)
            reference.update(batch_idx)
            weights = run.weights()
            what = f"after {batch_idx + 1} runs of training of one module,"
            trial.expect_close(weights, reference.weights(), what)
            trial.expect_same_everywhere(weights, f"weights {what.rstrip(',')}")


def strategies_follow_each_other(trial: Trial) -> None:
    """A second strategy in the same process trains another module as the first one did its own."""
    weights = []
    for _ in range(2):
        with StrategyRun(trial, Subject(), one(momentum)) as run:
            run.update(0)
            run.update(1, 2)
            weights.append(run.weights())
    trial.expect_equal(weights[1], weights[0], "weights that a second strategy trains alike")
    trial.stop_if_failed()
    with StrategyRun(trial, Subject()) as first, StrategyRun(trial, Subject(seed=1)) as second:
        before = first.weights()
        second.update(0)
        trial.expect_equal(first.weights(), before, "weights of one strategy while another trains")


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
