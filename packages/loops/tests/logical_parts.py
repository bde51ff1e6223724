"""A strategy of logical ranks made of plain torch: it sums gradients along a tree, on any number of processes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from bare_parts import BareStrategy
from torch import Tensor, nn

from camshaft.hooks_core import StrategyHooks

T = TypeVar("T")
Gradients = dict[str, Tensor]


def summed(parts: list[Gradients]) -> Gradients:
    """The sums by name, pair by pair."""
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [{name: one[name] + other[name] for name in one} for one, other in pairs]
    return parts[0]


class LogicalStrategy(BareStrategy, StrategyHooks):
    """Plays its share of logical ranks, of which torch's default group has the others.

    Args:
        num_logical_ranks: Their number.
    """

    def __init__(self, num_logical_ranks: int) -> None:
        super().__init__()
        self.world_size = int(os.environ.get("WORLD_SIZE", 1))
        self.global_rank = self.local_rank = int(os.environ.get("RANK", 0))
        self.num_logical_ranks = num_logical_ranks
        number = num_logical_ranks // self.world_size
        self.logical_ranks = range(self.global_rank * number, (self.global_rank + 1) * number)
        self._of_ranks: dict[int, Gradients] = {}
        self._current: int | None = None
        self._is_complete = True
        self._buffers: dict[str, Tensor] = {}
        self._module: nn.Module = nn.Module()

    def connect(self) -> None:
        if self.world_size > 1 and not dist.is_initialized():
            dist.init_process_group("gloo")

    def all_gather(self, value: T) -> list[T]:
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values

    def reduce(self, value: Tensor, op: str) -> Tensor:
        dist.all_reduce(value, dist.ReduceOp.SUM if op == "sum" else dist.ReduceOp.MAX)
        return value

    def setup_module(self, module: nn.Module) -> nn.Module:
        self._module = module
        module.load_state_dict(self.broadcast(module.state_dict()))
        return module

    def on_validation_start(self) -> None:
        buffers = self.broadcast({name: one.clone() for name, one in self._module.named_buffers()})
        for name, buffer in self._module.named_buffers():
            buffer.copy_(buffers[name])

    def set_gradient_sync(self, is_on: bool) -> None:
        self._is_complete = is_on

    def enter_logical_rank(self, index: int) -> None:
        if self._current is None:
            self._buffers = self.broadcast({name: one.clone() for name, one in self._module.named_buffers()})
        self._take()
        self._current = index
        self._put(self._of_ranks.get(index, {}))
        for name, buffer in self._module.named_buffers():
            buffer.copy_(self._buffers[name])

    def leave_logical_ranks(self) -> None:
        self._take()
        for name, buffer in self._module.named_buffers():
            buffer.copy_(self._of_first[name])
        self._current = None
        if self._is_complete:
            frozen = {name for name, parameter in self._module.named_parameters() if not parameter.requires_grad}
            own = [self._of_ranks[rank] for rank in self.logical_ranks]
            total = summed(self.all_gather(summed([self._part(one, frozen, False) for one in own])))
            self._put({name: gradient / self.num_logical_ranks for name, gradient in total.items()})
            self._of_ranks = {rank: self._part(self._of_ranks[rank], frozen, True) for rank in self.logical_ranks}
        else:
            self._put({})

    def logical_gradients(self) -> dict[int, Gradients]:
        return {rank: named for of_process in self.all_gather(self._of_ranks) for rank, named in of_process.items()}

    def load_logical_gradients(self, gradients: Mapping[int, Gradients]) -> None:
        self._of_ranks = {rank: dict(gradients[rank]) for rank in self.logical_ranks if rank in gradients}

    @staticmethod
    def _part(gradients: Gradients, names: set[str], is_within: bool) -> Gradients:
        return {name: gradient for name, gradient in gradients.items() if (name in names) is is_within}

    def _take(self) -> None:
        if self._current is None:
            return
        if self._current == self.logical_ranks[0]:
            self._of_first = {name: one.clone() for name, one in self._module.named_buffers()}
        own = self._of_ranks[self._current] = {}
        for name, parameter in self._module.named_parameters():
            own[name] = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad

    def _put(self, gradients: Gradients) -> None:
        for name, parameter in self._module.named_parameters():
            parameter.grad = gradients.get(name)
