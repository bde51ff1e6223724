"""Logical ranks of a module under `fully_shard`: whole gradients of each, summed along the tree into shards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.optim import ASGD, SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSprop, Rprop

from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.strategies.checks import require
from camshaft.strategies.logical_ranks import LogicalRanks
from camshaft.strategies.sharding.accumulation import groups_of
from camshaft.strategies.tree import Tensors, reduce_over_processes, sum_rows

_WHERE = "ShardedStrategy with logical_ranks"
_BY_ELEMENT = (SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, RAdam, RMSprop, Rprop, ASGD)
_NUM_DIGITS, _DIGIT = 3, 251  # of what processes must agree on; also bfloat16 has integers up to 256


class ShardedLogicalRanks(LogicalRanks):
    """As `LogicalRanks`, of a module that `fully_shard` was applied to.

    Torch reduces no gradients: they stay whole, outside of `parameter.grad`, as long as a logical rank's window is
    open. When it is complete they are summed along the tree, by each process for its shard: those of a block as soon as
    the last backward has left it, or after that backward if the step has entered the block several times.
    """

    keeps = True  # as a `GradientWindow` of whole gradients
    _groups: Sequence[_Group] = ()
    _params: Sequence[Any] = ()  # torch's, in the order of the parameters
    _is_last = False  # the backward that runs is the window's last one
    _order = 0  # a hash of the blocks that were entered since gradients were reduced
    _under_way: list[_ShardSum]

    def begin(self, module: nn.Module) -> None:
        """Prepare for a run of a module, and keep torch from reducing its gradients.

        Raises:
            ValueError: As `LogicalRanks.begin`, or if the module updates by itself, or has parameters in half
                precision, outside of shards, or sharded by other rules than the strategy's.
        """
        super().begin(module)
        by_hand, action = getattr(module, "automatic_optimization", True) is False, "Use DDPStrategy."
        rule = "True (or left out): steps cannot take turns with sharded parameters"
        require(not by_hand, "automatic_optimization", rule, False, _WHERE, action)
        parts: list[Any] = [part for part in module.modules() if isinstance(part, FSDPModule)]
        found = {id(group): group for part in parts for group in groups_of(part)}
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        by_id = {id(one.sharded_param): one for group in found.values() for one in group.fsdp_params}
        for key, name in names.items():
            rule = "sharded, each along its first dimension, over all ranks of a replica"
            require(
                key in by_id and self._fits(by_id[key]), "parameters", rule, name, _WHERE, "Leave it to the policy."
            )
            dtype = by_id[key].sharded_param.dtype
            rule = "in single or double precision: rounding in half precision depends on where shards end"
            require(dtype.itemsize >= 4, "parameters", rule, f"{name} in {dtype}", _WHERE, "Use 'bf16-mixed'.")
        self._params = [by_id[key] for key in names]
        positions = {id(one): position for position, one in enumerate(self._params)}
        self._groups = [
            _Group(group, [positions[id(one)] for one in group.fsdp_params], index)
            for index, group in enumerate(found.values())
        ]
        for part in parts:
            part.set_requires_gradient_sync(False, recurse=False)
        for one in self._groups:
            one.watch(self._note_entered, self._note_left)
        self._forget()
        self._find_parameters()

    def _fits(self, one: Any) -> bool:
        mesh = one.mesh_info
        groups = [getattr(mesh, f"{kind}_process_group", None) for kind in ("shard", "replicate")]
        size = 1
        for group in groups:
            size *= 1 if group is None else group.size()
        return groups[0] is not None and size == self._world_size and one.fsdp_placement.dim == 0

    def set_sync(self, is_on: bool) -> None:
        """Set whether the microbatches that follow end their accumulation window."""
        self.syncs = is_on

    def close(self) -> None:
        """Let torch reduce gradients again, and forget what is held. Not collective."""
        for part in self.module.modules():
            if isinstance(part, FSDPModule):
                part.set_requires_gradient_sync(True, recurse=False)
        for group in self._groups:
            group.unwatch()
        self._forget()
        self._groups, self._params = (), ()

    def drop(self, parameters: Iterable[Tensor]) -> None:
        """Forget the gradients of sharded parameters that are in place. Not collective."""
        ids = set(map(id, parameters))
        for one in self._params:
            if id(one.sharded_param) in ids:
                _set_whole(one, None)

    def enter(self, index: int) -> None:
        """Make what follows belong to a logical rank; see `LogicalRanks.enter`. Collective for the first."""
        super().enter(index)
        for group in self._groups:
            group.num_entered = 0

    def backward(self, loss: Tensor, differentiate: Callable[[Tensor], Any]) -> None:
        """Differentiate the loss of the logical rank that was entered; the last one's reduces the gradients."""
        self._check_entered()
        self._is_last = self.syncs and self.index == self.ranks[-1]
        try:
            super().backward(loss, differentiate)
        finally:
            self._is_last = False

    def finish(self) -> None:
        """Reduce the gradients of a complete window, unless a backward did, into `parameter.grad`. Collective.

        Raises:
            RuntimeError: If steps of another process have entered other blocks, or in another order.
        """
        if self._is_reduced or not self.syncs:
            return
        self._is_reduced = True
        with torch.no_grad():
            for group in self._groups:
                if group.is_begun:
                    late = [self._params[position] for position in group.positions]
                    rule, got = "computed when the backward has left the block", type(group.module).__qualname__
                    fits = all(_whole(one) is None for one in late)
                    require(fits, "gradients", rule, got, _WHERE, "Make it no block of the policy.", RuntimeError)
                else:
                    self._reduce(group)
            self._set_reduced()
        self._sums.clear()
        self._order = 0

    def gradients(self) -> Tensors:
        """Return the whole gradients that are in place."""
        return [_whole(one) for one in self._params]

    def _set_gradients(self, gradients: Tensors) -> None:
        for one, gradient in zip(self._params, gradients, strict=True):
            _set_whole(one, gradient)

    def _begin_step(self) -> None:
        super()._begin_step()
        self._under_way = []
        for group in self._groups:
            group.is_begun = False

    def _begin_window(self) -> None:
        """Leave kept gradients where they are: the mean is added to them."""

    def _find_parameters(self) -> None:
        self.parameters = [one.sharded_param for one in self._params]

    def _forget(self) -> None:
        super()._forget()
        self._under_way, self._order = [], 0
        for one in self._params:
            _set_whole(one, None)

    def _note_entered(self, group: _Group) -> None:
        if torch.is_grad_enabled():  # not in evaluation
            group.num_entered += 1
            self._order = hash((self._order, group.index))

    def _note_left(self, group: _Group) -> None:
        if self._is_last and group.num_entered == 1 and not group.is_begun:
            with torch.no_grad():
                self._reduce(group)

    def _reduce(self, group: _Group) -> None:
        """Begin to reduce the gradients of a group; the one before is summed meanwhile. Collective."""
        group.is_begun = True
        positions = [position for position in group.positions if self._params[position].sharded_param.requires_grad]
        if not positions:
            return
        params = [self._params[position] for position in positions]
        gradients = self._merged([_whole(one) for one in params], positions)
        for one in params:
            _set_whole(one, None)
        self._under_way.append(_ShardSum(params, gradients, self.number, hash((self._order, group.index))))
        if len(self._under_way) > 1:
            self._under_way[-2].add()

    def _set_reduced(self) -> None:
        """Put the reduced gradients in place, or add them to what is there; those that no process has stay away."""
        if not self._under_way:
            return
        self._under_way[-1].add()
        notes = torch.cat([one.notes.float() for one in self._under_way]).tolist()
        for shard_sum in self._under_way:
            num = len(shard_sum.params)
            *used, agrees = notes[: num + 1]
            del notes[: num + 1]
            rule, action = "entered in the same order on all processes", "Call all blocks in each step."
            if not agrees:
                raise RuntimeError(must_be("blocks", rule, "another order", _WHERE, action))
            for one, gradient, is_used in zip(shard_sum.params, shard_sum.shards(), used, strict=True):
                if is_used and one.sharded_param.grad is not None:
                    one.sharded_param.grad._local_tensor += gradient
                elif is_used:
                    one.sharded_param.grad = one.to_sharded_dtensor(gradient)
        self._under_way = []


class _Group:
    """A group of parameters that torch gathers together.

    Args:
        group: Torch's.
        positions: Those of its parameters among the module's.
        index: Its index.

    Attributes:
        num_entered: How often the step of the logical rank has entered its modules.
        is_begun: Whether the window's gradients are being reduced.
    """

    def __init__(self, group: Any, positions: list[int], index: int) -> None:
        self._group, self.positions, self.index = group, positions, index
        self.module: nn.Module = group.modules[0]
        self.num_entered, self.is_begun = 0, False

    def watch(self, note_entered: Callable[[_Group], None], note_left: Callable[[_Group], None]) -> None:
        """Have functions called when a forward enters the group, and when a backward leaves it."""
        enter, leave = self._group.pre_forward, self._group.post_backward

        def pre_forward(*args: Any, **kwargs: Any) -> Any:
            note_entered(self)
            return enter(*args, **kwargs)

        def post_backward(*args: Any) -> None:
            leave(*args)
            note_left(self)

        # torch has hooks for modules alone, and a backward leaves a group after those of its modules
        vars(self._group).update(pre_forward=pre_forward, post_backward=post_backward)

    def unwatch(self) -> None:
        """Call them no more."""
        for name in ("pre_forward", "post_backward"):
            vars(self._group).pop(name, None)


class _ShardSum:
    """The mean over logical ranks of the gradients of a group, of which this process gets its shards.

    Args:
        params: Torch's parameters, sharded along their first dimension.
        gradients: This process's sums of the whole gradients; None is what it has none of.
        number: The number of logical ranks.
        order: What must be the same on all processes.

    Attributes:
        params: The argument.
        notes: After `add`: for each parameter whether any process has a gradient, and whether all have the same order.
    """

    notes: Tensor

    def __init__(self, params: Sequence[Any], gradients: Tensors, number: int, order: int) -> None:
        self.params, self._number, mesh = params, number, params[0].mesh_info
        self._group, self._replicas = mesh.shard_process_group, getattr(mesh, "replicate_process_group", None)
        self._num_shards: int = self._group.size()
        first = params[0]
        dtype, device = first.reduce_dtype or first.param_dtype or first.orig_dtype, first.unsharded_param.device
        used = [float(gradient is not None) for gradient in gradients]
        digits = [float(order // _DIGIT**place % _DIGIT) for place in range(_NUM_DIGITS)]
        notes = torch.tensor([used + digits] * self._num_shards, dtype=dtype, device=device)
        whole = [
            one.unsharded_param.new_zeros(one.unsharded_param.shape, dtype=dtype) if gradient is None else gradient
            for one, gradient in zip(params, gradients, strict=True)
        ]
        sizes = [-(-len(one) // self._num_shards) * one[0:1].numel() for one in whole]
        self._sizes = [*sizes, len(used) + _NUM_DIGITS]
        flat = torch.empty((self._num_shards, sum(self._sizes)), dtype=dtype, device=device)
        # as torch does: rows hold a shard of each, with zeros where the last one is shorter
        torch._chunk_cat([*whole, notes.view(-1)], 0, self._num_shards, out=flat)
        self._rows, self._flat, self._work = flat, flat, None
        if self._num_shards > 1:
            self._rows = torch.empty_like(flat)
            work: Any = dist.all_to_all_single(self._rows.view(-1), flat.view(-1), group=self._group, async_op=True)
            self._work = work

    def add(self) -> None:
        """Add up this process's shards, once they are there. Collective among replicas."""
        if self._work is not None:
            self._work.wait()
        digits = self._rows[:, -_NUM_DIGITS:]
        agrees = (digits == digits[:1]).all()
        own = sum_rows(self._rows)
        del self._rows, self._flat
        if self._replicas is not None and self._replicas.size() > 1:
            digits = own[-_NUM_DIGITS:]
            (own,) = reduce_over_processes([own], self._replicas, 1)
            agrees &= (own[-_NUM_DIGITS:] == digits * self._replicas.size()).all()
        *self._shards, used, _ = torch.split(own, [*self._sizes[:-1], len(self.params), _NUM_DIGITS])
        torch._foreach_div_(self._shards, self._number)
        self.notes = torch.cat([used != 0, agrees.view(1)])

    def shards(self) -> list[Tensor]:
        """Return this process's shard of each gradient."""
        return [
            shard[: one.sharded_size.numel()].view(one.sharded_size).to(one.orig_dtype)
            for one, shard in zip(self.params, self._shards, strict=True)
        ]


def _whole(one: Any) -> Tensor | None:
    """Return the gradient of a whole parameter that torch has not reduced, in the dtype in which it is reduced."""
    one.accumulate_unsharded_grad_if_needed()
    if one.unsharded_accumulated_grad is not None:
        return one.unsharded_accumulated_grad  # type: ignore[no-any-return]
    gradient: Tensor | None = one.unsharded_param.grad
    return gradient if gradient is None or one.reduce_dtype is None else gradient.to(one.reduce_dtype)


def _set_whole(one: Any, gradient: Tensor | None) -> None:
    one.unsharded_accumulated_grad, one.unsharded_param.grad = gradient, None


def check_elementwise(optimizers: Iterable[Optimizer]) -> None:
    """Raise `ValueError` for optimizers whose updates of a shard are not parts of those of the whole.

    It warns of those that are unknown. One that is made of `optimizers` is judged by these.
    """
    for optimizer in chain.from_iterable(getattr(one, "optimizers", (one,)) for one in optimizers):
        kind = type(optimizer).__qualname__
        for group in optimizer.param_groups:
            rule = "left out with logical_ranks: its rounding depends on where shards end"
            require(not group.get("fused"), "fused", rule, True, kind, "Leave it out, or use DDPStrategy.")
        if type(optimizer).__module__.startswith("torch.optim"):
            rule = "one that updates each element by itself, with logical_ranks"
            require(isinstance(optimizer, _BY_ELEMENT), "optimizer", rule, kind, _WHERE, "Use AdamW, or DDPStrategy.")
        elif not isinstance(optimizer, _BY_ELEMENT):
            warn_user(
                f"{kind} must update each element of a parameter by itself: otherwise updates of sharded parameters "
                "depend on the number of processes. Use an optimizer of torch, or DDPStrategy."
            )
