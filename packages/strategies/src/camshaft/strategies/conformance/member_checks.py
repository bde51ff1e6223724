"""Members and attributes of a strategy."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch

from camshaft.hooks_core.protocols import Strategy
from camshaft.hooks_core.strategy_check import STRATEGY_METHODS
from camshaft.strategies.conformance.trial import Trial, shown

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
        if trial.expect(callable(method), f"`{name}` must be a method", f"got {shown(method)}"):
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
    """Why a method cannot be called as promised: with all arguments, and without those that have defaults."""
    parameters = list(promised.parameters.values())
    required = [parameter for parameter in parameters if parameter.default is inspect.Parameter.empty]
    signature = inspect.signature(method)
    for arguments in (parameters, required):
        try:
            signature.bind(*[None for _ in arguments])
        except TypeError as error:
            return f"{error}: its signature is {signature}"
    return None
