"""Several ranks as threads of one process: what they tell each other is real, only the wire is not."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from bare_parts import BareStrategy
from torch import Tensor, nn

T = TypeVar("T")
_SECONDS = 60.0


class Exchange:
    """Where ranks leave what the others take."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.num_rounds = 0
        self._slots: list[bytes] = [b""] * size
        self._barrier = threading.Barrier(size)

    def gather(self, rank: int, value: Any) -> list[Any]:
        self._slots[rank] = pickle.dumps(value)
        if self._barrier.wait(_SECONDS) == 0:
            self.num_rounds += 1
        values = [pickle.loads(slot) for slot in self._slots]
        self._barrier.wait(_SECONDS)
        return values

    def leave(self) -> None:
        """Let nobody wait any more."""
        self._barrier.abort()


class ThreadedStrategy(BareStrategy):
    """One of several ranks; it averages gradients after each step that synchronises them."""

    def __init__(self, exchange: Exchange, rank: int) -> None:
        super().__init__()
        self.exchange = exchange
        self.global_rank = self.local_rank = rank
        self.world_size = exchange.size
        self.synced: list[bool] = []
        self.num_idle_steps = 0
        self.failures: list[BaseException] = []
        self._is_synced = True
        self._module: nn.Module | None = None

    def setup_module(self, module: nn.Module) -> nn.Module:
        self._module = module
        return module

    def set_gradient_sync(self, is_on: bool) -> None:
        self.synced.append(is_on)
        self._is_synced = is_on

    def backward(self, loss: Tensor, differentiate: Callable[[Tensor], Any] | None = None) -> None:
        super().backward(loss, differentiate)
        if self._is_synced and self._module is not None:
            for parameter in self._module.parameters():
                if parameter.grad is not None:
                    parameter.grad = self.reduce(parameter.grad)

    def idle_step(self) -> None:
        self.num_idle_steps += 1

    def broadcast(self, value: T, src: int = 0) -> T:
        return self.exchange.gather(self.global_rank, value)[src]

    def all_gather(self, value: T) -> list[T]:
        return self.exchange.gather(self.global_rank, value)

    def reduce(self, tensor: Tensor, op: str = "mean") -> Tensor:
        stacked = torch.stack(self.exchange.gather(self.global_rank, tensor))
        if op in ("max", "min"):
            return stacked.amax(0) if op == "max" else stacked.amin(0)
        return stacked.sum(0) if op == "sum" else stacked.mean(0)

    def barrier(self) -> None:
        self.exchange.gather(self.global_rank, None)

    def note_failure(self, error: BaseException) -> None:
        self.failures.append(error)


def on_ranks(size: int, function: Callable[[ThreadedStrategy], T]) -> list[T]:
    """Call a function on each rank. Returns what they returned; raises what the first that failed raised."""
    exchange = Exchange(size)
    first: list[BaseException] = []

    def run(rank: int) -> T:
        try:
            return function(ThreadedStrategy(exchange, rank))
        except BaseException as error:
            first.append(error)
            exchange.leave()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(run, rank) for rank in range(size)]
    if first:
        raise first[0]
    return [future.result() for future in futures]
