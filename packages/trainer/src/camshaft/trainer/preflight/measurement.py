"""Measurement of a fit on fake tensors: memory by kind, collectives by mesh dimension, FLOPs by dtype."""

from __future__ import annotations

import re
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from attrs import frozen
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed._tools.mem_tracker import MemTracker
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from camshaft.trainer.preflight.world import FakeDevice, HostCopies

_KINDS = {
    "Parameter": "parameters",
    "Buffer": "buffers",
    "Gradient": "gradients",
    "Optstate": "optimizer",
    "Activation": "activations",
    "Temp": "backward",
    "Other": "other",
    "Total": "total",
}
"""The kinds of memory, by their names in torch's tracker."""


class _Modules:
    """Stands for torch's trackers of modules, which fail where a step runs backward itself, or a module calls itself.

    Attributes:
        parents: The modules that run; sums need none.
    """

    parents = frozenset({"Global"})

    def __init__(self) -> None:
        self._hooks: tuple[Any, ...] = ()
        self._handles: list[Any] = []

    @property
    def is_bw(self) -> bool:
        """Return whether backward runs."""
        return torch._C._current_graph_task_id() != -1

    def register_user_hooks(self, before: Any, after: Any, *of_backward: Any) -> None:
        """Call hooks before and after each forward of a module."""
        self._hooks = before, after

    def clear_user_hooks(self) -> None:
        """Call none."""
        self._hooks = ()

    def __enter__(self) -> None:
        if self._hooks:
            before, after = self._hooks
            self._handles = [
                register_module_forward_pre_hook(before),
                register_module_forward_hook(after, always_call=True),
            ]

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()


class Memory(MemTracker):  # type: ignore[no-untyped-call]
    """The memory of fake tensors, by kind, now and at its peak; torch's tracker without figures of single modules."""

    def __init__(self) -> None:
        super().__init__()
        self._empty: dict[Any, Tensor] = {}
        self._mod_tracker: Any = _Modules()

    def by_kind(self, moment: str = "peak") -> dict[str, int]:
        """Return bytes by kind; the moment is "peak" or "current"."""
        totals: Counter[str] = Counter()
        for of_device in self.get_tracker_snapshot(moment).values():
            for kind, num_bytes in of_device.items():
                totals[_KINDS.get(getattr(kind, "value", kind), str(kind))] += num_bytes
        return {kind: totals[kind] for kind in _KINDS.values()}

    def start(self, module: nn.Module, optimizers: list[Any]) -> None:
        """Sort what is there by kind, and find the peak from now on."""
        self.track_external(module, *optimizers)
        self._peak_mem_snap = self.get_tracker_snapshot()
        self._peak_mem = {device: kinds["Total"] for device, kinds in self._peak_mem_snap.items()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note what an operation makes. One empty chunk does for the thousands that sharding makes of a parameter."""
        if func is _NEW_EMPTY and 0 in args[1] and not torch.is_grad_enabled() and isinstance(args[0], FakeTensor):
            key = (args[0].dtype, tuple(args[1]))
            if key not in self._empty:
                self._empty[key] = super().__torch_dispatch__(func, types, args, kwargs)  # type: ignore[no-untyped-call]
            return self._empty[key]
        return super().__torch_dispatch__(func, types, args, kwargs)  # type: ignore[no-untyped-call]

    def _track(self, reftype: Any, t: Tensor) -> None:
        if isinstance(t, FakeTensor):
            super()._track(reftype, t)

    def _update_and_maybe_create_winfos(self, t: Tensor, reftype: Any, update_existing: bool = False) -> set[Any]:
        is_fake = isinstance(getattr(t, "_local_tensor", t), FakeTensor)
        return super()._update_and_maybe_create_winfos(t, reftype, update_existing) if is_fake else set()

    def _pre_fw_hook(self, module: nn.Module, inputs: Any) -> None:
        self._track_module_params_and_buffers(module)
        if self._mod_tracker.is_bw and self._ac_mod is None:  # activations that are computed again
            self._ac_mod, self._in_ac = weakref.ref(module), True

    def _post_fw_hook(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        if self._ac_mod is not None and self._ac_mod() is module:
            self._ac_mod, self._in_ac = None, False

    def _pre_bw_hook(self, module: nn.Module, args: Any) -> None: ...

    def _post_bw_hook(self, module: nn.Module, args: Any) -> None: ...


_NEW_EMPTY = torch.ops.aten.new_empty.default


@frozen
class Collective:
    """A kind of collective.

    Attributes:
        operation: Its name, such as "all_gather".
        dimension: The dimension of the mesh that it goes over; "all ranks" without one.
        num_ranks: The number of ranks that take part.
    """

    operation: str
    dimension: str
    num_ranks: int


_SUFFIX = re.compile(r"_(into_tensor|tensor|base|coalesced|single)$")
_OPERATIONS = {
    **{name: name for name in ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "all_to_all", "scatter")},
    **{"allgather": "all_gather", "allreduce": "all_reduce", "alltoall": "all_to_all", "send": "send", "recv": "recv"},
}


class Collectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts collectives, and bytes of the larger of input and output, by phase.

    Args:
        device: The fake device, which knows the phase.

    Attributes:
        counts, bytes: By phase and kind.
        names: Names of process groups' dimensions, by the name of the group.
    """

    def __init__(self, device: FakeDevice) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self.counts: Counter[tuple[str, Collective]] = Counter()
        self.bytes: Counter[tuple[str, Collective]] = Counter()
        self.names: dict[str, str] = {}

    def name_dimensions(self, mesh: Any) -> None:
        """Name the groups of a mesh, if there is one."""
        for name in (mesh.mesh_dim_names or ()) if mesh is not None else ():
            if mesh[name].size() > 1:
                self.names[mesh.get_group(name).group_name] = name

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count a collective."""
        space, _, name = func._schema.name.partition("::")
        if space in ("c10d", "_c10d_functional") and "wait" not in name and "barrier" not in name:
            leaves = pytree.tree_leaves((args, kwargs))
            group = next((found for found in map(_group_of, leaves) if found is not None), dist.group.WORLD)
            assert group is not None
            operation = _OPERATIONS.get(_SUFFIX.sub("", _SUFFIX.sub("", name.strip("_"))), name.strip("_"))
            key = (
                self._device.phase,
                Collective(operation, self.names.get(group.group_name, "all ranks"), group.size()),
            )
            self.counts[key] += 1
            # of a gather the output counts, of a scatter the input: what a rank has whole
            tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
            sizes = [tensor.nbytes for tensor in tensors]
            self.bytes[key] += max(sizes, default=0) if "reduce_scatter" in name or "gather" in name else sum(sizes)
        return func(*args, **(kwargs or {}))


def _group_of(value: Any) -> dist.ProcessGroup | None:
    """Return the process group that an argument of an operation is, or names."""
    if isinstance(value, torch.ScriptObject) and "ProcessGroup" in str(value._type()):
        return dist.ProcessGroup.unbox(value)
    if isinstance(value, str):
        try:
            return torch._C._distributed_c10d._resolve_process_group(value)  # type: ignore[arg-type]
        except RuntimeError:
            return None
    return None


class Flops(FlopCounterMode):
    """FLOPs by phase; torch's counter, which leaves attention on CPUs out.

    Args:
        device: The fake device, which knows the phase.
    """

    def __init__(self, device: FakeDevice) -> None:
        super().__init__(display=False, custom_mapping=_ATTENTION)
        self._device, self._num_before = device, 0
        self.mod_tracker: Any = _Modules()
        self.by_phase: Counter[str] = Counter()

    def note(self) -> None:
        """Count what was computed since the last call for the current phase."""
        total = int(self.get_total_flops())
        self.by_phase[self._device.phase] += total - self._num_before
        self._num_before = total


def _attention(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
    return int(sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]


def _attention_backward(gradient: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
    return int(sdpa_backward_flop_count(gradient, query, key, value))  # type: ignore[no-untyped-call]


_ATTENTION = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}


class Measurement:
    """Everything that is measured.

    Attributes:
        device: The fake device.
        memory: Memory by kind.
        collectives: Collectives by phase.
        flops: FLOPs by phase.
    """

    def __init__(self) -> None:
        self.device = FakeDevice()
        self.memory = Memory()
        self.collectives = Collectives(self.device)
        self.flops = Flops(self.device)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Measure within it."""
        with ExitStack() as stack:
            # what measures is asked first, and what makes tensors fake last
            for mode in (HostCopies(self.device), self.device, self.flops, self.collectives, self.memory):
                stack.enter_context(mode)
            yield

    def begin(self, phase: str) -> None:
        """Count what follows under another name."""
        self.flops.note()
        self.device.phase = phase

    def forget(self, phase: str) -> None:
        """Forget what was counted under a name."""
        for counter in (self.device.reads, self.collectives.counts, self.collectives.bytes):
            for key in [key for key in counter if key[0] == phase]:
                del counter[key]
        self.flops.by_phase[phase] = 0


def checkpoint_sizes(checkpoint: Mapping[str, Any], global_rank: int) -> dict[str, int]:
    """Return the bytes of a checkpoint: this rank's part, the plain part, and the whole.

    Args:
        checkpoint: The checkpoint.
        global_rank: This process's rank.
    """
    sharded, plain, whole = 0, 0, 0
    seen: set[int] = set()
    for leaf in pytree.tree_leaves(dict(checkpoint)):
        if not isinstance(leaf, Tensor) or id(leaf) in seen:
            continue
        seen.add(id(leaf))
        local = getattr(leaf, "_local_tensor", None)
        if local is None:
            plain += leaf.nbytes
        else:
            sharded += local.nbytes
            whole += leaf.numel() * leaf.element_size()
    return {"of a rank": sharded, "plain": plain, "whole": whole + plain}
