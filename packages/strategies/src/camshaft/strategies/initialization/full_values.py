"""What sharded tensors stand for while a model is built: whole tensors, of which they will hold a part."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils import _pytree as pytree

from camshaft.hooks_core.messages import must_be
from camshaft.strategies.initialization.deferred_operations import TensorRef
from camshaft.strategies.initialization.operation_recorder import (
    META,
    WHERE,
    DeferredInitializationError,
    OperationRecorder,
    traits_of,
)

_KEEPS_LAYOUT = frozenset(
    f"aten::{name}"
    for name in (
        *("_to_copy", "alias", "clone", "detach"),
        *(f"{name}_like" for name in ("empty", "full", "ones", "zeros")),
    )
)
_HAS_NO_VALUES = frozenset(f"aten::{name}" for name in ("empty_like", "new_empty", "new_empty_strided", "new_zeros"))


class FullValues:
    """Finds the whole tensor behind a sharded one, and lets operations on sharded ones work on whole ones instead.

    So a parameter may be given its values before or after it is sharded, which are the same at any number of processes.

    Args:
        recorder: What records the operations on whole tensors.
    """

    def __init__(self, recorder: OperationRecorder) -> None:
        self._recorder = recorder
        self._known: dict[int, tuple[Tensor, Tensor]] = {}
        self._of_parameters: set[int] = set()

    def watch(self) -> Callable[[], None]:
        """Take notice of the parameters that modules get. Returns what ends that."""

        def notice(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
            if isinstance(parameter, Tensor) and not isinstance(parameter, DTensor) and parameter.device == META:
                self._of_parameters.add(self._recorder.ref(parameter).storage_idx)

        handle = register_module_parameter_registration_hook(notice)
        return handle.remove

    def dispatch(self, function: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Carry an operation with sharded tensors among its arguments out on the whole ones.

        Returns:
            What it returns: whole tensors, unless it is an argument or laid out like one.
        """
        leaves, structure = pytree.tree_flatten((args, kwargs))
        traits = traits_of(function)
        sharded = [leaf for leaf in leaves if isinstance(leaf, DTensor)]
        if all(leaf.device != META for leaf in sharded):
            if traits.is_random:
                rule, action = "given random values before it is sharded", "Shard it after that."
                raise DeferredInitializationError(must_be("parameter with values", rule, str(function), WHERE, action))
            return function(*args, **kwargs)
        whole = [self.of(leaf) if isinstance(leaf, DTensor) else leaf for leaf in leaves]
        originals = {id(full): leaf for full, leaf in zip(whole, leaves, strict=True) if isinstance(leaf, DTensor)}
        whole_args, whole_kwargs = pytree.tree_unflatten(whole, structure)
        if traits.is_view:
            result = function(*whole_args, **whole_kwargs)
        else:
            result = self._recorder.dispatch(function, whole_args, whole_kwargs)
        if function._schema.name in _KEEPS_LAYOUT and isinstance(args[0], DTensor):
            if kwargs.get("device") is not None:
                kwargs = {**kwargs, "device": META}
            kwargs.pop("pin_memory", None)
            like = function(*args, **kwargs)
            self._remember(like, result)
            return like
        return pytree.tree_map(lambda item: originals.get(id(item), item), result)

    def of(self, sharded: DTensor) -> Tensor:
        """The whole tensor, without memory, that a sharded one is a part of.

        Raises:
            DeferredInitializationError: If it cannot be told.
        """
        local = _local(sharded)
        known = self._known.get(_key(local))
        if known is None or known[1].size() != sharded.size():
            if self._recorder.has_no_values(local):
                full = torch.empty(sharded.size(), dtype=sharded.dtype, device=META)
                self._recorder.leave_without_values(full)
            else:
                full = self._find(local, sharded)
            known = (local, full)
            self._known[_key(local)] = known
        return known[1]

    def _remember(self, sharded: DTensor, full: Tensor) -> None:
        local = _local(sharded)
        self._known[_key(local)] = (local, full)

    def _find(self, local: Tensor, sharded: DTensor) -> Tensor:
        """Go back through what a local part was made from, to what has as many elements as the whole tensor.

        What only has room, or copies of what comes before it, was made by sharding.
        """
        recorder = self._recorder
        num_elements, refs = prod(sharded.size()), [recorder.ref(local)]
        found: TensorRef | None = None
        while refs:
            ref = max(refs, key=lambda ref: ref.numel)
            whole = self._as_whole(ref, sharded, num_elements)
            if whole is not None:
                found = whole
                if ref.storage_idx in self._of_parameters or self._has_own_values(ref.storage_idx):
                    break
            refs = recorder.sources(ref.storage_idx)
        if found is None:
            rule = "made of a whole one in these hooks"
            action = "Use `fully_shard`, `parallelize_module` or `distribute_tensor`."
            raise DeferredInitializationError(must_be("sharded tensor", rule, tuple(sharded.size()), WHERE, action))
        return recorder.tensor(found)

    def _as_whole(self, ref: TensorRef, sharded: DTensor, num_elements: int) -> TensorRef | None:
        """A reference to a whole tensor in the storage of another reference, if there is room for just one."""
        if ref.numel == num_elements and ref.size == tuple(sharded.size()):
            return ref
        if self._recorder.num_bytes[ref.storage_idx] != num_elements * ref.dtype.itemsize:
            return None
        size = tuple(sharded.size())
        stride = tuple(prod(size[dim + 1 :]) for dim in range(len(size)))
        return TensorRef(ref.storage_idx, ref.dtype, size, stride, 0)

    def _has_own_values(self, storage_idx: int) -> bool:
        """Whether a storage has other values than copies of what it was made from."""
        recorder = self._recorder
        made_by = recorder.made_by.get(storage_idx)
        if made_by is not None and made_by.function._schema.name not in _HAS_NO_VALUES:
            return True
        return any(writer.function._schema.name != "aten::copy_" for writer in recorder.writers.get(storage_idx, []))


def _local(sharded: DTensor) -> Tensor:
    with torch.no_grad():
        return sharded.to_local()


def _key(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
