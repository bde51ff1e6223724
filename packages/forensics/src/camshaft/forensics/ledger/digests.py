"""Digests of tensors, batches, optimizers and random numbers: 64 bits each, the same wherever and however it lies.

They know of no trainer. A digest of a tensor is a sum over its elements, modulo 2**64, of a mix of an element's bits
and its index in the whole tensor. So it depends neither on the order in which elements are added nor on how a tensor is
shared out over processes, and is computed on the tensor's device without waiting for it. -0.0 and 0.0, and NaNs of
different bits, have different digests. It tells faults and departures apart from equal values; it is no protection
against somebody who looks for two tensors with the same digest.
"""

from __future__ import annotations

import hashlib
import math
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from camshaft.hooks_core.support.messages import must_be
from camshaft.hooks_core.support.transfer import parts_of

if TYPE_CHECKING:
    from camshaft.hooks_core.protocols import Collectives

NUM_PER_CHUNK = 1 << 20
"""Elements that are mixed at a time: the memory that a digest needs is some tens of megabytes, whatever the tensor."""

# Multipliers of the finalizer of SplitMix64 and the golden ratio, as signed 64-bit integers.
_GOLDEN, _FIRST, _SECOND = -7046029254386353131, -4658895280553007687, -7723592293110705685
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_keys_of_first: dict[torch.device, Tensor] = {}


def digest_of(tensor: Tensor) -> Tensor:
    """Return the digest of this process's part of a tensor, without waiting for the device.

    Args:
        tensor: A dense tensor of any dtype, or a `DTensor`. Of a shard, elements count with their indices in the whole;
            of several replicas only the one at the first place of the mesh, others give 0. So the sum of the digests of
            all processes (modulo 2**64, as int64 wraps) is the digest of the whole tensor.

    Returns:
        A scalar of dtype int64 on the tensor's device.

    Raises:
        TypeError: If a `DTensor` holds partial sums.
    """
    with torch.no_grad():
        if hasattr(tensor, "device_mesh"):
            return _digest_of_shard(tensor)
        dense = tensor.detach() if tensor.layout == torch.strided else tensor.detach().to_dense()
        return _digest(dense.reshape(-1), None)


def digests_of(tensors: Mapping[str, Tensor], collectives: Collectives, device: torch.device) -> Tensor:
    """Return the digests of whole tensors, the same on every process. Collective, in one reduction for all.

    Args:
        tensors: Tensors by name; those that are no `DTensor` are taken from rank 0, and cost the others nothing. Every
            process must have the same names in the same order.
        collectives: A strategy, or what else has `reduce`, `world_size` and `global_rank`.
        device: Where the digests are gathered.

    Returns:
        An int64 tensor on that device, with a digest for each tensor.
    """
    rank: int = collectives.global_rank  # type: ignore[attr-defined]
    world_size: int = collectives.world_size  # type: ignore[attr-defined]
    zero = torch.zeros((), dtype=torch.int64, device=device)
    own = [
        digest_of(tensor).to(device, non_blocking=True) if rank == 0 or hasattr(tensor, "device_mesh") else zero
        for tensor in tensors.values()
    ]
    digests = torch.stack(own) if own else zero.expand(0)
    return collectives.reduce(digests, "sum") if world_size > 1 and own else digests


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers of a module by name; those without values yet are left out."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return {name: value for name, value in named if not nn.parameter.is_lazy(value)}


def states_of(module: nn.Module, optimizers: Sequence[Any]) -> dict[str, Tensor]:
    """Return the tensors in the states of optimizers, as `<optimizer>.<state>.<parameter>`.

    A parameter that the module does not have is named by its place, as `group0.1`.
    """
    names = {parameter: name for name, parameter in module.named_parameters()}
    states: dict[str, Tensor] = {}
    for optimizer_idx, optimizer in enumerate(optimizers):
        for group_idx, group in enumerate(optimizer.param_groups):
            for place, parameter in enumerate(group["params"]):
                name = names.get(parameter, f"group{group_idx}.{place}")
                for key, value in (optimizer.state.get(parameter) or {}).items():
                    for path, leaf in named_leaves(value, f"{optimizer_idx}.{key}"):
                        if isinstance(leaf, Tensor):
                            states[f"{path}.{name}"] = leaf
    return states


def settings_of(optimizers: Sequence[Any]) -> list[list[dict[str, Any]]]:
    """Return the settings of each optimizer's parameter groups, such as learning rates, as plain values."""
    return [
        [{key: plain(value) for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
        for optimizer in optimizers
    ]


def plain(value: Any) -> Any:
    """Return a value as JSON has it; of what it has not, the name of the class. A scalar tensor becomes a number."""
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return f"{type(value).__module__}.{type(value).__qualname__}"


class BatchDigest:
    """The digest of a batch: its structure, and dtype, shape and bits of each tensor.

    What lies on a device is read when `hex` is called, so that taking the digest waits for nothing.

    Args:
        batch: Tensors, arrays and plain values in collections, mappings and dataclasses, nested at will. Of other
            objects what `vars` gives counts, else the name of the class.
    """

    def __init__(self, batch: Any) -> None:
        self._words: list[str] = []
        self._digests: list[Tensor] = []
        for path, leaf in named_leaves(batch, ""):
            if isinstance(leaf, Tensor):
                self._words.append(f"{path}:{leaf.dtype}{list(leaf.shape)}")
                self._digests.append(digest_of(leaf))
            else:
                self._words.append(f"{path}:{type(leaf).__qualname__}={_text_of(leaf)}")

    def hex(self) -> str:
        """Return it as 16 hexadecimal digits. Waits for the device."""
        numbers = [str(int(digest)) for digest in self._digests]
        return hex_of("\n".join([*self._words, *numbers]).encode())


def hex_of(data: Any) -> str:
    """Return 64 bits of the SHA-256 of bytes, or of another buffer, as 16 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()[:16]


def signed_as_hex(number: int) -> str:
    """Return a digest, which came from an int64 tensor, as 16 hexadecimal digits."""
    return f"{number & 0xFFFF_FFFF_FFFF_FFFF:016x}"


def slow_generators() -> dict[str, str]:
    """Return digests of Python's and NumPy's (if imported) global generators; reading these costs some 50 µs."""
    digests = {"python": hex_of(repr(random.getstate()).encode())}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state()
        digests["numpy"] = hex_of(name.encode() + keys.tobytes() + repr([float(one) for one in rest]).encode())
    return digests


class TorchGenerators:
    """Digests of the states of torch's generators: that of the CPU, and that of one other device.

    Args:
        device: The device whose generator counts beside the CPU's.
    """

    def __init__(self, device: torch.device) -> None:
        self._generator = torch.default_generator
        self._read_device: Callable[[], Tensor] | None = None
        if device.type != "cpu":
            self._read_device = partial(torch.get_device_module(device).get_rng_state, device)
        self._state = b""
        self._read = ""

    def read(self) -> str:
        """Return the digests as a JSON object with "torch" and "device". Waits for no device: states are on the host.

        A state is digested once for all updates that find it: to compare costs a fraction, and many draw nothing.
        """
        state = self._generator.get_state().numpy().tobytes()
        if state != self._state:
            self._state, self._read = state, f'{{"torch":"{hex_of(state)}"}}'
        if self._read_device is None:
            return self._read
        return f'{self._read[:-1]},"device":"{hex_of(self._read_device().numpy().tobytes())}"}}'


def _digest_of_shard(tensor: Any) -> Tensor:
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    mesh, placements = tensor.device_mesh, tensor.placements
    local: Tensor = tensor.to_local().detach()
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return torch.zeros((), dtype=torch.int64, device=local.device)
    for place, placement in zip(coordinate, placements, strict=True):
        if placement.is_partial():
            action = "Redistribute it first: `tensor.redistribute(placements=[...])`."
            raise TypeError(must_be("tensor", "sharded or replicated to be digested", placement, f"{mesh}", action))
        if placement.is_replicate() and place != 0:
            return torch.zeros((), dtype=torch.int64, device=local.device)

    def along(dim: int) -> Tensor:
        """Return the indices along a dimension that this shard holds: those of a vector that is sharded likewise."""
        own: list[Any] = [Replicate() for _ in placements]
        for place, placement in enumerate(placements):
            if getattr(placement, "dim", None) == dim:
                # strided where a dimension is sharded by two meshes from the inner to the outer one
                is_plain = isinstance(placement, Shard)
                own[place] = Shard(0) if is_plain else type(placement)(0, split_factor=placement.split_factor)
        vector = torch.arange(tensor.shape[dim], device=local.device)
        part: DTensor = distribute_tensor(vector, mesh, own, src_data_rank=None)  # which sends nothing
        indices: Tensor = part.to_local() * math.prod(tensor.shape[dim + 1 :])
        return indices

    return _digest(local.reshape(-1), (tuple(local.shape), [along(dim) for dim in range(tensor.dim())]))


def _digest(values: Tensor, places: tuple[tuple[int, ...], list[Tensor]] | None) -> Tensor:
    """Return the digest of flat values.

    Args:
        values: The values.
        places: Shape of the shard that they are, and along each of its dimensions the indices in the whole tensor,
            times the stride there; None for a whole tensor.
    """
    if values.is_complex() and values.element_size() > 8:
        halves = [_digest(torch.view_as_real(values)[:, half].contiguous(), places) for half in (0, 1)]
        return halves[0] + halves[1] * _GOLDEN
    total = torch.zeros((), dtype=torch.int64, device=values.device)
    for start in range(0, values.numel(), NUM_PER_CHUNK):
        chunk = values[start : start + NUM_PER_CHUNK]
        bits = chunk.contiguous().view(_INTEGERS[chunk.element_size()]).to(torch.int64)
        keys = _keys(start, chunk.numel(), places, chunk.device)
        part = _mix(bits + keys).sum()
        total += part
    return total


def _keys(start: int, length: int, places: tuple[tuple[int, ...], list[Tensor]] | None, device: torch.device) -> Tensor:
    """Return the mixed indices, in the whole tensor, of elements; those of the first chunk are kept."""
    if places is not None:
        shape, along = places
        flat = torch.arange(start, start + length, device=device)
        pairs = zip(along, torch.unravel_index(flat, shape), strict=True)
        return _mix(sum((indices[own] for indices, own in pairs), torch.zeros_like(flat)))
    if start:
        return _mix(torch.arange(start, start + length, device=device))
    kept = _keys_of_first.get(device)
    if kept is None or kept.numel() < length:
        kept = _keys_of_first[device] = _mix(torch.arange(length, device=device))
    return kept[:length]


def _mix(values: Tensor) -> Tensor:
    """Return the values mixed by SplitMix64's finalizer, but with shifts that keep the sign; it is one to one."""
    mixed = values * _GOLDEN
    mixed = (mixed ^ (mixed >> 30)) * _FIRST
    mixed = (mixed ^ (mixed >> 27)) * _SECOND
    return mixed ^ (mixed >> 31)


def named_leaves(value: Any, path: str, above: tuple[int, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield what is no collection, with its path.

    Args:
        value: Tensors, arrays and plain values in collections, mappings, dataclasses and other objects with attributes.
        path: Its own path; "" for none.
        above: Ids of the objects that hold it; one that holds itself is not entered again.
    """
    if isinstance(value, Tensor):
        yield path, value
        return
    parts = parts_of(value)
    if parts is None:
        attributes = None if _is_plain(value) else getattr(value, "__dict__", None)
        if not attributes or id(value) in above:
            yield path, value
            return
        names, parts, above = list(attributes), list(attributes.values()), (*above, id(value))
    else:
        names = list(value) if isinstance(value, Mapping) and len(value) == len(parts) else list(range(len(parts)))
        yield path, f"{type(value).__qualname__} of {len(parts)}"
    for name, part in zip(names, parts, strict=True):
        yield from named_leaves(part, f"{path}.{name}" if path else str(name), above)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, complex, str, bytes, type)) or hasattr(value, "dtype")


def _text_of(value: Any) -> str:
    """Return a text that stands for a plain value or an array; of anything else only its class counts."""
    if not _is_plain(value):
        return ""
    if hasattr(value, "tobytes") and value.dtype.kind != "O":
        return f"{value.dtype}{value.shape}{hex_of(value.tobytes())}"
    return repr(value)
