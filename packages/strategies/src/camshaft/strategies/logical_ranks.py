"""The logical ranks that one process plays: whose gradients and buffers a module has at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from camshaft.hooks_core.support.messages import must_be
from camshaft.strategies.checks import require
from camshaft.strategies.tree import PartialSums, Tensors, add_right, check_power_of_two, reduce_over_processes, world

_IGNORED = "_ddp_params_and_buffers_to_ignore"
_Buffers = list[tuple[dict[str, Tensor | None], str, Tensor | None, Tensor | None]]
"""For each buffer: the dictionary of its module, its name there, the tensor (if any), and a copy of its values."""


class LogicalRanks:
    """A process's part of a run on K logical ranks, of which it plays L in turn, in their order.

    The gradients of each are set aside when the next one begins, and added up along the tree once their accumulation
    window is complete. Parameters that are frozen in that step keep their window, which belongs to another optimizer.
    Every microbatch begins with the buffers of logical rank 0; after a step those are in place.

    Args:
        number: K, a power of two.
        rank: This process's rank.
        world_size: Number of processes, which divides K.
        where: The strategy's name, for messages.
        broadcast: Copies the values of rank 0 into tensors, in place. Collective. Unused by a single process.

    Attributes:
        number: K.
        ranks: The indices of this process's logical ranks.
        index: The one that is being computed; None outside of steps.
        turns: The `Turns` of steps of several that update by themselves; None outside of such steps.
        module: The module that was set up.
        optimizers: The optimizers that were set up for it.
        parameters: Its parameters when the window began.
        syncs: Whether the microbatches that follow end their accumulation window.
        has_left_windows: Whether the step before ended the windows of some parameters, and left others open.

    Raises:
        ValueError: If K is not a power of two, or not a multiple of the number of processes.
    """

    parameters: list[nn.Parameter]
    _positions: dict[int, int]  # of parameters, by their ids
    _windows: dict[int, Tensors]  # gradients of open windows that are not in place
    _open: set[int]  # positions of the parameters whose windows are open
    _held: dict[int, dict[int, Tensor | None]]  # of frozen parameters, while a step ends the windows of others
    _initial: Tensors | None  # with which all begin
    _has_begun: bool  # a backward of the step has come
    _is_reduced: bool  # gradients are averages
    _is_merged: bool  # a communication hook has averaged them
    _buffers_before: _Buffers
    _buffers_after: _Buffers

    def __init__(
        self, number: int, rank: int, world_size: int, where: str, broadcast: Callable[[Iterable[Tensor]], object]
    ) -> None:
        check_power_of_two("logical_ranks", number, where)
        rule, action = f"a multiple of the number of processes ({world_size})", "Start as many as divide it."
        require(number % world_size == 0, "logical_ranks", rule, number, where, action)
        self.number, self._where, self._world_size = number, where, world_size
        self.place(rank)
        self._broadcast = broadcast
        self.index: int | None = None
        self.turns: Any = None
        self.syncs = True
        self.module: nn.Module = nn.Module()
        self.optimizers: list[Optimizer] = []
        self._forget()

    def place(self, rank: int) -> None:
        """Let this process be another rank, before any run."""
        num_own = self.number // self._world_size
        self.ranks = range(rank * num_own, (rank + 1) * num_own)

    def begin(self, module: nn.Module) -> None:
        """Prepare for a run of a module.

        Raises:
            ValueError: If the module has what logical ranks cannot have: SyncBatchNorm, sparse gradients, or parameters
                that are left out.
        """
        where = f"{self._where} with logical_ranks"
        for name, part in module.named_modules():
            kind = f"{type(part).__qualname__} at {name!r}"
            rule, fits = "without SyncBatchNorm, which depends on the processes", not isinstance(part, nn.SyncBatchNorm)
            require(fits, "module", rule, kind, where, "Use BatchNorm, whose statistics are those of logical rank 0.")
            rule, fits = "without sparse gradients", not getattr(part, "sparse", False)
            require(fits, "module", rule, kind, where, "Pass sparse=False.")
        rule, left_out = "without parameters that are left out of the reduction", getattr(module, _IGNORED, ())
        require(not left_out, "module", rule, left_out, where, "Freeze them, or leave logical_ranks out.")
        self.module, self.index, self.syncs, self.turns, self.optimizers = module, None, True, None, []
        self._forget()

    def enter(self, index: int) -> None:
        """Make what follows belong to a logical rank. Collective for the first.

        Raises:
            RuntimeError: If it is neither the first nor the one after the one before.
        """
        first, previous = self.ranks.start, self.index
        if index not in self.ranks or index not in (first, first if previous is None else previous + 1):
            rule, action = f"one of {list(self.ranks)}, in their order", "Enter each one once per step."
            raise RuntimeError(must_be("index", rule, index, f"{self._where}.enter_logical_rank", action))
        if index == first:
            self._begin_step()
        else:
            if self.syncs:
                self.add_to_sums()
            else:
                self._windows[index - 1] = self._take_gradients()
            if previous == first:
                self._buffers_after = copies_of(self.module)
            restore(self._buffers_before)
            self._put_gradients(index)
        self.index = index

    def leave(self) -> None:
        """End the step's microbatches, with the buffers of this process's first logical rank."""
        index, self.index = self.index, None
        if index is None:
            return
        if index != self.ranks.start:
            restore(self._buffers_after)
            if not self.syncs:
                self._windows[index] = self._take_gradients()
                self._put_gradients(self.ranks.start)
        self._buffers_before, self._buffers_after, self._initial = [], [], None
        if self._world_size == 1 or self._held:
            self.finish()  # where the last one had no loss
        if self.syncs:
            self._close_windows()
        else:
            if not self.parameters:
                self._find_parameters()
            self._open.update(idx for idx, parameter in enumerate(self.parameters) if parameter.requires_grad)

    def backward(self, loss: Tensor, differentiate: Callable[[Tensor], Any]) -> None:
        """Differentiate the loss of the logical rank that was entered; the last one's reduces the gradients.

        Raises:
            RuntimeError: If this process plays several and none was entered, or the window's gradients are reduced.
        """
        if self.turns is not None:
            self.turns.backward(loss, differentiate)
            return
        if len(self.ranks) > 1:
            self._check_entered()
            if not self._has_begun:
                self._begin_window()
        self._has_begun = True
        differentiate(loss)
        if self.index == self.ranks[-1] and self.syncs:
            self.finish()

    def _check_entered(self) -> None:
        fits = self.index is not None and not self._is_reduced
        rule = "called once for each logical rank, after `enter_logical_rank`"
        action = "Add the losses up, or run steps that update by themselves by `play_logical_ranks`."
        require(fits, "backward", rule, self.index, self._where, action, RuntimeError)

    def finish(self) -> None:
        """Reduce the gradients of a complete window, unless a backward did. Collective."""
        if self._is_reduced or not self.syncs:
            return
        self._is_reduced = True
        if self._is_merged or len(self.ranks) == 1:
            self._sums.clear()
            return
        with torch.no_grad():
            gradients = self._merged(self.gradients())
            if self._world_size > 1:
                gradients = self._reduce_over_processes(gradients)
            elif found := [gradient for gradient in gradients if gradient is not None]:
                torch._foreach_div_(found, self.number)
        self._sums.clear()
        self._set_gradients(gradients)

    def take_turns(self, turns: Any) -> list[Any]:
        """Run a step that updates by itself for each of several logical ranks. Collective.

        Args:
            turns: Their steps, as `Turns`.

        Returns:
            What the steps return.
        """
        self.turns = turns
        try:
            self.enter(self.ranks.start)
            windows, self._windows = self._windows, {}
            outputs: list[Any] = turns.run([windows.get(index) for index in self.ranks])
            local = turns.local_gradients()
            self._windows = dict(zip(self.ranks[1:], local[1:], strict=False))
            if local and not self.parameters:
                self._find_parameters()
            self._open = set(range(len(self.parameters))) if local else set()
        finally:
            self.turns, self.index, self._is_reduced = None, None, True
            self._buffers_before = []
        return outputs

    def gradients(self) -> Tensors:
        """Return the gradients that are in place."""
        return [parameter.grad for parameter in self.parameters]

    def add_to_sums(self) -> None:
        """Add the gradients that are in place to the sums, which keep them."""
        with torch.no_grad():
            self._sums.add(self._take_gradients())

    def average_last(self, loss: Tensor, differentiate: Callable[[Tensor], Any]) -> None:
        """Differentiate the loss of this process's last logical rank, and reduce its gradients with the sums."""
        self._is_reduced = self._is_merged = False
        differentiate(loss)
        self.finish()

    def mean_of(self, values: Sequence[Tensor]) -> Tensor:
        """Return the mean of a scalar over all logical ranks, given that of each of this process's. Collective."""
        sums = PartialSums()
        for value in values:
            sums.add([value.detach().reshape(1).clone()])
        ((total,),) = sums.newest_first()
        assert total is not None
        if self._world_size > 1:
            (total,) = reduce_over_processes([total], world(), self.number)
        else:
            total = total / self.number
        return total.reshape(())

    def merge(self, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        """Add the sums of this process's other logical ranks to gradients of its last one, in place."""
        self._is_merged = True
        if len(self.ranks) > 1:
            merged = self._merged([*gradients], [self._positions[id(parameter)] for parameter in parameters])
            torch._foreach_copy_(gradients, [one for one in merged if one is not None])

    def _merged(self, right: Tensors, positions: Sequence[int] | None = None) -> Tensors:
        """Return the sums of this process's logical ranks, from gradients of its last one."""
        for sums in self._sums.newest_first():
            right = add_right(sums if positions is None else [sums[position] for position in positions], right)
        return right

    def _reduce_over_processes(self, gradients: Tensors) -> Tensors:
        """Return the mean over all logical ranks, from this process's sums. None is what no process has. Collective."""
        found = [gradient is not None for gradient in gradients]
        is_used = torch.tensor(found, dtype=torch.int32, device=self.parameters[0].device)
        dist.all_reduce(is_used, dist.ReduceOp.MAX)
        # read where it can tell something alone: the host waits for it
        used = [position for position, one in enumerate(found if all(found) else is_used.tolist()) if one]
        pairs = [(gradients[position], self.parameters[position]) for position in used]
        sums = [torch.zeros_like(parameter) if gradient is None else gradient for gradient, parameter in pairs]
        group = world()
        reduced: Tensors = [None] * len(gradients)
        for position, gradient in zip(used, reduce_over_processes(sums, group, self.number), strict=True):
            reduced[position] = gradient
        return reduced

    def open_gradients(self) -> dict[int, dict[str, Tensor]]:
        """Return the gradients of each of this process's logical ranks in an open accumulation window, by name."""
        if not self._open:
            return {}
        if not self.parameters:
            self._find_parameters()
        names = dict(self.module.named_parameters())
        found: dict[int, Tensors] = {self.ranks.start: self.gradients()} | self._windows
        return {
            index: {name: one for name, one in zip(names, found[index], strict=True) if one is not None}
            for index in self.ranks
        }

    def load_open_gradients(self, gradients: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Continue an open accumulation window with such gradients, copied to the parameters' devices."""
        self._forget()
        if not gradients:
            return
        self._find_parameters()
        self._open = set(range(len(self.parameters)))
        names = dict(self.module.named_parameters())
        for index in self.ranks:
            of_rank = gradients[index]
            self._windows[index] = [
                of_rank[name].to(parameter.device, copy=True) if name in of_rank else None
                for name, parameter in names.items()
            ]
        self._put_gradients(self.ranks.start)

    def _begin_step(self) -> None:
        self._sums.clear()
        self._is_reduced = self._is_merged = self._has_begun = self.has_left_windows = False
        if self._world_size > 1:
            self._broadcast(self.module.buffers())
        if len(self.ranks) > 1:
            self._buffers_before = copies_of(self.module)
        if not self._open and (len(self.ranks) > 1 or not self.syncs):
            self._find_parameters()
        if self.syncs and self.turns is None and (self._open or len(self.ranks) > 1):
            self._hold_windows()

    def _begin_window(self) -> None:
        """Let all begin with the gradients that the first one has now, where no window is open: None, unless kept."""
        if self.index != self.ranks.start or len(self._open) == len(self.parameters):
            return
        self._initial = [
            parameter.grad if parameter.requires_grad and idx not in self._open else None
            for idx, parameter in enumerate(self.parameters)
        ]
        for parameter, gradient in zip(self.parameters, self._initial, strict=True):
            if gradient is not None:
                parameter.grad = gradient.clone()  # the last one keeps the tensors themselves

    def _hold_windows(self) -> None:
        """Set gradients of frozen parameters aside, which a step that ends the windows of others is not to reduce."""
        first = self.gradients()
        frozen = [
            idx
            for idx, (parameter, gradient) in enumerate(zip(self.parameters, first, strict=True))
            if not parameter.requires_grad and (gradient is not None or idx in self._open)
        ]
        if not frozen:
            return
        is_alone = self._world_size > 1 and len(self.ranks) == 1
        for index in self.ranks:
            own: Tensors = first if index == self.ranks.start else self._windows.get(index, [])
            held = self._held[index] = dict.fromkeys(frozen)
            for idx in frozen if own else ():
                held[idx], own[idx] = own[idx], None
        for idx, gradient in self._held[self.ranks.start].items():
            # DistributedDataParallel expects a gradient where it has seen one, and may give its memory to another
            if is_alone and gradient is not None:
                self._held[self.ranks.start][idx] = gradient.clone()
                first[idx] = gradient.zero_()
        self._set_gradients(first)

    def _close_windows(self) -> None:
        """End the windows that were reduced, and put those back that were held."""
        self._windows, held, self._held = {}, self._held, {}
        if not held:
            self._open.clear()
            return
        self._open &= {idx for of_rank in held.values() for idx, one in of_rank.items() if one is not None}
        self.has_left_windows = bool(self._open)
        for index, of_rank in held.items():
            if index == self.ranks.start:
                self._set_gradients([of_rank.get(idx, one) for idx, one in enumerate(self.gradients())])
            elif self._open:
                places = range(len(self.parameters))
                self._windows[index] = [of_rank.get(idx) if idx in self._open else None for idx in places]

    def _find_parameters(self) -> None:
        self.parameters = list(self.module.parameters())
        self._positions = {id(parameter): position for position, parameter in enumerate(self.parameters)}

    def _take_gradients(self) -> Tensors:
        gradients = self.gradients()
        self._set_gradients([None] * len(gradients))
        return gradients

    def _set_gradients(self, gradients: Tensors) -> None:
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient

    def _put_gradients(self, index: int) -> None:
        window, initial = self._windows.pop(index, None), self._initial
        gradients = self.gradients()
        for idx in range(len(gradients)):
            if window is not None and (idx in self._open or index == self.ranks.start):
                gradients[idx] = window[idx]
            elif initial is not None and index != self.ranks.start:
                gradients[idx] = initial[idx] if index == self.ranks[-1] else _clone(initial[idx])
        self._set_gradients(gradients)

    def _forget(self) -> None:
        self.parameters, self._positions, self._sums = [], {}, PartialSums()
        self._windows, self._initial, self._open, self._held = {}, None, set(), {}
        self._has_begun, self.has_left_windows = False, False
        self._is_reduced, self._is_merged = True, False
        self._buffers_before, self._buffers_after = [], []


def _clone(gradient: Tensor | None) -> Tensor | None:
    return None if gradient is None else gradient.clone()


def copies_of(module: nn.Module) -> _Buffers:
    """Return copies of all buffers. A step may also bind a name to another tensor."""
    return [
        (part._buffers, name, buffer, None if buffer is None else buffer.detach().clone())
        for part in module.modules()
        for name, buffer in part._buffers.items()
    ]


@torch.no_grad()
def restore(copies: _Buffers) -> None:
    for buffers, name, buffer, copy in copies:
        buffers[name] = buffer
        if buffer is None or copy is None:
            continue
        if all(stride or size < 2 for stride, size in zip(buffer.stride(), buffer.shape, strict=True)):
            # others cannot be changed in place; `data`, since graphs of this logical rank may have saved the values
            buffer.data.copy_(copy)
