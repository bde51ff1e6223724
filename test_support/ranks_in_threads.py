"""Several ranks as threads of one process: what they tell each other is real, only the wire is not."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T")


class Exchange:
    """Where ranks leave what the others take.

    Args:
        size: Number of ranks.
        seconds: Time after which a rank that waits for the others fails.
    """

    def __init__(self, size: int, seconds: float = 60.0) -> None:
        self.size = size
        self.num_rounds = 0
        self._seconds = seconds
        self._slots: list[bytes] = [b""] * size
        self._barrier = threading.Barrier(size)

    def gather(self, rank: int, value: Any) -> list[Any]:
        self._slots[rank] = pickle.dumps(value)
        if self._barrier.wait(self._seconds) == 0:
            self.num_rounds += 1
        values = [pickle.loads(slot) for slot in self._slots]
        self._barrier.wait(self._seconds)
        return values

    def leave(self) -> None:
        """Let nobody wait any more."""
        self._barrier.abort()


class RankInThreads:
    """What makes a strategy one of several ranks; it averages gradients after each step that synchronises them.

    Put it before the class of a strategy for one process.
    """

    def __init__(self, exchange: Exchange, rank: int, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.exchange = exchange
        self.global_rank = self.local_rank = rank
        self.world_size = exchange.size
        self.is_synced = True
        self.module: nn.Module = nn.Identity()

    def setup_module(self, module: nn.Module) -> nn.Module:
        self.module = super().setup_module(module)  # type: ignore[misc]
        return self.module

    def set_gradient_sync(self, is_on: bool) -> None:
        self.is_synced = is_on

    def backward(self, loss: Tensor, differentiate: Callable[[Tensor], Any] | None = None) -> None:
        super().backward(loss, differentiate)  # type: ignore[misc]
        if self.is_synced:
            for parameter in self.module.parameters():
                if parameter.grad is not None:
                    parameter.grad = self.reduce(parameter.grad)

    def broadcast(self, value: T, src: int = 0) -> T:
        return self.all_gather(value)[src]

    def all_gather(self, value: T) -> list[T]:
        return self.exchange.gather(self.global_rank, value)

    def reduce(self, tensor: Tensor, op: str = "mean") -> Tensor:
        values = torch.stack(self.all_gather(tensor))
        if op == "mean" and not values.is_floating_point():
            values = values.double()
        return {"mean": torch.mean, "sum": torch.sum, "max": torch.amax, "min": torch.amin}[op](values, dim=0)

    def barrier(self) -> None:
        self.all_gather(None)


def call_on_ranks(size: int, function: Callable[[Exchange, int], T], seconds: float = 60.0) -> list[T]:
    """Call a function for each rank. Returns what they returned; raises what the first that failed raised."""
    exchange = Exchange(size, seconds)
    first: list[BaseException] = []

    def run(rank: int) -> T:
        try:
            return function(exchange, rank)
        except BaseException as error:
            first.append(error)
            exchange.leave()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(run, rank) for rank in range(size)]
    if first:
        raise first[0]
    return [future.result() for future in futures]
