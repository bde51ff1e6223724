"""Checks of the protocol's members, collectives, modules, batches and steps."""

from __future__ import annotations

import inspect
import time
from collections import namedtuple
from functools import partialmethod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from camshaft.hooks_core.protocols import STRATEGY_METHODS, ReduceOp, Strategy
from camshaft.strategies.conformance.training import STEPS, DeferredModel, StrategyRun, Subject, whole
from camshaft.strategies.conformance.trial import Trial, same, shorten

_NUMBERS = ("global_rank", "local_rank", "world_size", "data_rank", "num_data_ranks")
_ATTRIBUTES = {"device": torch.device, "has_skipped_step": bool, **dict.fromkeys(_NUMBERS, int)}


def members_are_those_of_the_protocol(trial: Trial) -> None:
    """A strategy has every member of the protocol, with its arguments and types."""
    strategy = trial.make_strategy()
    for name, kind in _ATTRIBUTES.items():
        value = getattr(strategy, name, None)
        seen = f"got {value!r} ({type(value).__name__})"
        trial.expect(type(value) is kind, f"`{name}` must be a {kind.__name__}", seen)
    for name in STRATEGY_METHODS:
        signature = inspect.signature(getattr(Strategy, name))
        promised = signature.replace(parameters=list(signature.parameters.values())[1:])
        parameters = promised.parameters.values()
        required = [parameter for parameter in parameters if parameter.default is inspect.Parameter.empty]
        for arguments in (parameters, required):
            try:
                inspect.signature(getattr(strategy, name)).bind(*arguments)
            except (AttributeError, TypeError) as error:
                trial.expect(False, f"`{name}` must take {promised}", error)


def processes_are_numbered(trial: Trial) -> None:
    """Ranks are numbered from 0, the same world has the same size everywhere, and connecting again changes nothing."""
    strategy = trial.make_strategy()
    before = {name: int(getattr(strategy, name)) for name in _NUMBERS}
    strategy.connect()
    strategy.connect()
    after = {name: int(getattr(strategy, name)) for name in _NUMBERS}
    trial.expect_equal(after, before, "the numbers of a process before and after `connect`")
    size, num_data_ranks = trial.ranks.size, before["num_data_ranks"]
    expected = {
        "global_rank": list(range(size)),
        "world_size": [size] * size,
        "num_data_ranks": [num_data_ranks] * size,
    }
    by_rank = trial.ranks.exchange(before)
    for name, numbers in expected.items():
        trial.expect_equal([rank[name] for rank in by_rank], numbers, f"`{name}` of all processes")
    shares = {rank["data_rank"] for rank in by_rank}
    trial.expect_equal(shares, set(range(num_data_ranks)), "the `data_rank`s of all processes")
    trial.expect_equal(size % num_data_ranks, 0, "the remainder of `world_size` divided by `num_data_ranks`")
    trial.expect(0 <= before["local_rank"] < size, f"`local_rank` must be from 0 to {size - 1}", f"got {before}")


_DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.uint8, torch.bool),
)
_LATE_SECONDS = 0.15


def broadcast_returns_the_value_of_src(trial: Trial) -> None:
    """`broadcast` returns the value of the process `src`, the first by default, on every process."""
    strategy = trial.connect()
    rank, size = trial.ranks.rank, trial.ranks.size
    for src in range(size):
        received = strategy.broadcast(_anything(rank), src)
        trial.expect_equal(received, _anything(src), f"the result of `broadcast` from rank {src}")
    trial.expect_equal(strategy.broadcast(f"of {rank}"), "of 0", "the result of `broadcast` without `src`")
    for src in (0, size - 1):
        tensor = _filled(rank).to(strategy.device)
        trial.expect_equal(strategy.broadcast(tensor, src).cpu(), _filled(src), f"the tensor of rank {src}")
        trial.expect_equal(tensor.cpu(), _filled(rank), "the argument of `broadcast`, afterwards,")


def all_gather_returns_all_values_in_order(trial: Trial) -> None:
    """`all_gather` returns the values of all processes in the order of their ranks, on every process."""
    strategy = trial.connect()
    rank, size = trial.ranks.rank, trial.ranks.size
    gathered = strategy.all_gather(_anything(rank))
    trial.expect_equal(gathered, list(map(_anything, range(size))), "the result of `all_gather`")
    trial.expect_equal(strategy.all_gather(None), [None] * size, "the result of `all_gather` of None")
    tensors = [value.cpu() for value in strategy.all_gather(_filled(rank).to(strategy.device))]
    trial.expect_equal(tensors, list(map(_filled, range(size))), "the result of `all_gather` of tensors")


def reduce_combines_element_by_element(trial: Trial) -> None:
    """`reduce` gives mean, sum, max or min over the processes, whatever the dtype; its argument stays as it is."""
    strategy = trial.connect()
    rank, size = trial.ranks.rank, trial.ranks.size
    for device in {"cpu": torch.device("cpu"), strategy.device.type: strategy.device}.values():
        for dtype in _DTYPES:
            tensors = [_of_rank(src, dtype) for src in range(size)]
            all_values = torch.stack(tensors).double()
            _expect_reduced(trial, strategy, tensors[rank].to(device), "mean", all_values.mean(0))
            _expect_reduced(trial, strategy, tensors[rank].to(device), "sum", all_values.sum(0))
            _expect_reduced(trial, strategy, tensors[rank].to(device), "max", all_values.amax(0))
            _expect_reduced(trial, strategy, tensors[rank].to(device), "min", all_values.amin(0))
        own = torch.tensor(2**53 + rank, device=device)  # too large for floating point
        largest = torch.tensor(2**53 + size - 1)
        trial.expect_equal(strategy.reduce(own, "max").cpu(), largest, "the largest of 64-bit integers")
        own = torch.tensor(rank, dtype=torch.float64, device=device)
        mean = torch.tensor((size - 1) / 2, dtype=torch.float64)  # halves have no rounding
        trial.expect_equal(strategy.reduce(own).cpu(), mean, "the result of `reduce` without `op`, the mean,")


def barriers_wait_for_all(trial: Trial) -> None:
    """`barrier` returns when every process has called it, not before."""
    strategy = trial.connect()
    strategy.barrier()
    for late in range(trial.ranks.size):
        note = trial.directory / f"late.{late}"
        if trial.ranks.rank == late:
            time.sleep(_LATE_SECONDS)
            note.touch()
        strategy.barrier()
        trial.expect(note.exists(), f"`barrier` must wait for rank {late}", f"it returned before rank {late} called it")
        trial.stop_if_failed()


def _anything(rank: int) -> dict[str, Any]:
    """Return an object that can be pickled, with another size on each rank."""
    return {
        "rank": rank,
        "tuple": (rank, [None, 0.5], {rank, "x"}),
        "path": Path(f"folder{rank}"),
        "text": "é" * (1 + 100 * rank),
        "tensor": torch.arange(3 * rank + 1, dtype=torch.float64),
    }


def _filled(rank: int) -> Tensor:
    return torch.full((2,), float(rank))


def _of_rank(rank: int, dtype: torch.dtype) -> Tensor:
    """Return a tensor that is not contiguous."""
    if dtype is torch.bool:
        return torch.tensor([[True, False], [rank == 0, rank != 0]]).T
    values = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]) + torch.tensor([[rank], [-rank]])
    return values.abs().to(dtype).T


def _expect_reduced(trial: Trial, strategy: Strategy, own: Tensor, op: ReduceOp, expected: Tensor) -> None:
    what = f"`reduce` of {own.dtype} on {own.device.type} by {op!r}"
    before = own.clone()
    result = strategy.reduce(own, op)
    trial.expect(same(own, before), f"{what} must leave its argument as it is", "it changed")
    trial.expect_equal(result.device.type, own.device.type, f"the device of {what}")
    if own.is_floating_point():
        trial.expect_equal(result.dtype, own.dtype, f"the dtype of {what}")
    # All but means are exact here; means may be rounded in their dtype, those of integers in 32 bits.
    eps = torch.finfo(own.dtype if own.is_floating_point() else torch.float32).eps if op == "mean" else 0.0
    close = result.shape == expected.shape and torch.allclose(result.cpu().double(), expected, rtol=4 * eps, atol=0.0)
    trial.expect(close, f"{what} must be {shorten(expected)}", f"got {shorten(result)}")


def modules_keep_their_identity_and_move_to_the_device(trial: Trial) -> None:
    """`setup_module` keeps the module, its names, shapes and flags, and brings all of it to the device."""
    module = Subject()
    before, submodules = _described(module), list(module.modules())
    with StrategyRun(trial, module) as run:
        trial.expect_equal(_described(module), before, "the parameters and buffers of a module that was set up")
        kept = all(one is other for one, other in zip(module.modules(), submodules, strict=False))
        trial.expect(kept, "submodules must be the same objects after `setup_module`", "some were replaced")
        device = run.strategy.device
        for name, value in module.state_dict().items():
            # a sharded one may be offloaded to the CPU
            placed = value.device.type == device.type or (hasattr(value, "full_tensor") and value.device.type == "cpu")
            trial.expect(placed, f"`{name}` must be on {device}", f"it is on {value.device}")


def _described(module: nn.Module) -> dict[str, tuple[Any, ...]]:
    return {
        name: (isinstance(value, nn.Parameter), tuple(value.shape), value.requires_grad, value.is_floating_point())
        for name, value in module.state_dict(keep_vars=True).items()
    }


def weights_begin_the_same_on_all_ranks(trial: Trial) -> None:
    """After `setup_module` every rank has the weights of the first, though ranks were initialised differently."""
    with StrategyRun(trial, Subject(seed=trial.ranks.rank)) as run:
        weights = run.weights()
        trial.expect_same_everywhere(weights, "weights after `setup_module`")
        trial.expect_close(weights, Subject(seed=0).state_dict(), "weights after `setup_module`, those of rank 0,")


def models_built_in_model_context_train(trial: Trial) -> None:
    """A model whose layers are made within `model_context` has weights, the same everywhere, after `setup_module`."""
    with StrategyRun(trial, DeferredModel()) as run:
        weights = run.weights()
        varied = all(bool(value.isfinite().all()) and value.double().std() > 0 for value in weights.values())
        trial.expect(varied, "weights made in `model_context` must be initialised", f"got {weights}")
        trial.expect_same_everywhere(weights, "weights made in `model_context`")
        run.update(0)
        after = run.weights()
        kept = [name for name, value in weights.items() if torch.equal(after[name], value)]
        trial.expect_equal(kept, [], "weights made in `model_context` that training leaves as they were")
        trial.expect_same_everywhere(after, "weights made in `model_context`, once trained,")


Pair = namedtuple("Pair", ["left", "right"])


def batches_move_to_the_device(trial: Trial) -> None:
    """`batch_to_device` moves every tensor of a batch and keeps its structure and whatever else is in it."""
    strategy = trial.connect()
    x, anything = torch.arange(4.0), object()
    batch = {"list": [x, 3], "tuple": (x.long(), "text"), "pair": Pair(x, None), "object": anything}
    moved = strategy.batch_to_device(batch)
    devices = {leaf.device.type for leaf in pytree.tree_leaves(moved) if isinstance(leaf, Tensor)}
    trial.expect_equal(devices, {strategy.device.type}, "the devices of a moved batch")
    back = pytree.tree_map_only(Tensor, Tensor.cpu, moved)
    trial.expect(same(back, batch), f"a moved batch must hold {batch}", f"it holds {back}")


def values_are_placed_like_parameters(trial: Trial) -> None:
    """`place_like` makes a new tensor of a whole value on the CPU, placed as the parameter is."""
    with StrategyRun(trial, Subject()) as run:
        for number, (name, parameter) in enumerate(run.module.named_parameters()):
            value = torch.full(parameter.shape, 1.0 + number)
            placed = run.strategy.place_like(value, parameter)
            what = f"the type, device and placements of a tensor placed like `{name}`"
            trial.expect_equal(_placement(placed), _placement(parameter.data), what)
            trial.expect_equal(whole(placed).float(), value, f"the value that was placed like `{name}`")
            value.zero_()
            promise = "the tensor that `place_like` returns must be a copy"
            trial.expect(bool(whole(placed).all()), promise, "it changes with the value")


def _placement(tensor: Tensor) -> tuple[Any, ...]:
    return type(tensor), tensor.device, getattr(tensor, "placements", None)


class EchoModule(Subject):
    """A module whose steps return their arguments and the modes in which they run."""

    marker = object()

    def _answer(self, name: str, batch: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        inputs = batch["inputs"]
        nested = [inputs, (None, {"ones": torch.ones_like(inputs, dtype=torch.int64)})]
        answer = {"step": name, "args": args, "kwargs": kwargs, "modes": _modes(self.training), "marker": self.marker}
        return {**answer, "loss": self(inputs).square().mean(), "nested": nested}

    training_step = partialmethod(_answer, "training_step")
    validation_step = partialmethod(_answer, "validation_step")
    test_step = partialmethod(_answer, "test_step")
    predict_step = partialmethod(_answer, "predict_step")


def steps_keep_arguments_and_results(trial: Trial) -> None:
    """Wrapped steps of all stages get every argument as it is, by position or name, and return what the step does."""
    marker = EchoModule.marker
    with StrategyRun(trial, EchoModule()) as run:
        run.module.eval()
        for batch_idx, name in enumerate(STEPS):
            batch = run.share(batch_idx)
            with torch.no_grad():
                result = run.steps[name](batch, batch_idx, dataloader_idx=1, extra=marker)
            promise = f"the result of `{name}` must be its dictionary"
            if not trial.expect(type(result) is dict, promise, f"got {result}"):
                continue
            trial.expect_equal(result["step"], name, "the step that a wrapped step runs")
            trial.expect_equal(result["args"], (batch_idx,), f"positional arguments of `{name}`")
            trial.expect_equal(list(result["kwargs"]), ["dataloader_idx", "extra"], f"keyword arguments of `{name}`")
            objects = result["marker"] is marker and result["kwargs"]["extra"] is marker
            trial.expect(objects, f"objects must go through `{name}` as they are", f"got {result['marker']}")
            inputs, nested = whole(batch["inputs"]), pytree.tree_map_only(Tensor, whole, result["nested"])
            # floats may have another precision
            expected = [nested[0], (None, {"ones": torch.ones_like(inputs, dtype=torch.int64)})]
            trial.expect_equal(nested, expected, f"the nested result of `{name}`")
            computed = {"inputs": nested[0], "loss": whole(result["loss"])}
            loss = Subject()(inputs).square().mean()
            trial.expect_close(computed, {"inputs": inputs, "loss": loss}, f"in the result of `{name}`,")


def steps_see_the_modes_of_their_caller(trial: Trial) -> None:
    """A wrapped step runs in the train or evaluation mode and the gradient mode that its caller set."""
    with StrategyRun(trial, EchoModule()) as run:
        for name in STEPS:
            for training, context in ((False, torch.no_grad), (False, torch.inference_mode), (True, torch.no_grad)):
                run.module.train(training)
                with context():
                    expected = _modes(training)
                    result = run.steps[name](run.share(0), 0)
                trial.expect_equal(result["modes"], expected, f"the modes in which `{name}` runs")
        run.module.train()
        result = run.steps["training_step"](run.share(0), 0)
        trial.expect_equal(result["modes"], _modes(True), "the modes in which `training_step` runs")
        promise = "the loss of `training_step` must require gradients"
        trial.expect(result["loss"].requires_grad, promise, "it does not")
        run.strategy.backward(result["loss"])


def evaluation_allows_different_numbers_of_batches(trial: Trial) -> None:
    """Ranks evaluate different numbers of batches; `idle_step` answers the others' steps, and training goes on."""
    with StrategyRun(trial, Subject()) as run:
        run.update_both(0)
        num_own, num_most = 1 + run.strategy.data_rank, run.strategy.num_data_ranks
        run.module.eval()
        with torch.inference_mode():
            for name in STEPS[1:]:
                for batch_idx in range(num_own):
                    run.expect_output(name, batch_idx, "the output of")
                # without other ranks, it must change nothing
                for _ in range(num_most - num_own if num_most > 1 else 1):
                    run.strategy.idle_step()
        run.update_both(1)
        run.expect_alike("after evaluation and an update,")


def _modes(training: bool) -> dict[str, bool]:
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    return {"training": training, "grad": grad, "inference": inference}
