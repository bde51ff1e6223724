"""Averages of a module's weights, kept beside the module and exchanged with its weights."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim.swa_utils import AveragedModel, get_swa_multi_avg_fn

from camshaft.callbacks.module_snapshot import local
from camshaft.hooks_core.support.messages import must_be

AverageFunction = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Returns the new average, from an average, a weight and the number of averaged models (a scalar on the CPU)."""

MultiAverageFunction = Callable[[Any, Any, Any], None]
"""The same for lists of averages and weights; changes the averages in place."""


class AveragedWeights(AveragedModel):
    """torch's `AveragedModel` of a module's weights only: the module is not copied, no update waits for the device.

    Averages parameters, and buffers that are saved with the module, of floating-point or complex numbers; shared ones
    once. Other buffers (counters, masks, constants) stay with the module. If parameters are sharded, this rank's parts
    are averaged.

    Args:
        model: The module, on its device and sharded already. It is referenced weakly.
        device: Device of the averages; None is that of each weight.
        avg_fn: Computes a new average.
        multi_avg_fn: Computes new averages of lists. With neither function, all models have equal weight.
        use_buffers: Whether buffers are averaged as well.
        copies_buffers: Whether saved buffers that are not averaged are copied with each update, and exchanged with the
            averages; otherwise they stay with the module, as do buffers that are not saved.

    Attributes:
        module: Submodules without a forward that hold the averages under the names of the weights.
        n_averaged: Number of averaged models, a scalar on the CPU.

    Raises:
        ValueError: If a parameter has no shape yet.
        AssertionError: If both functions are given (from torch).
    """

    _slots: list[tuple[dict[str, Any], str]]
    _copied_slots: list[tuple[dict[str, Any], str]]
    _sharded: list[Any]
    _model: weakref.ref[nn.Module]

    def __init__(
        self,
        model: nn.Module,
        device: torch.device | str | int | None = None,
        avg_fn: AverageFunction | None = None,
        multi_avg_fn: MultiAverageFunction | None = None,
        use_buffers: bool = False,
        *,
        copies_buffers: bool = False,
    ) -> None:
        sharded = list(sharded_parts(model))
        _reshard(sharded)
        names, slots = _slots(model, use_buffers)
        averages = _Weights()
        for name, (owner, key) in zip(names, slots, strict=True):
            averages.hold(name, _copy(local(owner[key]), device), isinstance(owner[key], nn.Parameter))
        super().__init__(averages, None, avg_fn, multi_avg_fn, use_buffers)  # type: ignore[arg-type]
        self._names = names
        self._averages = [tensor for _, tensor in averages.held]
        self._groups = _groups(self._averages)
        copied = list(_entries(model, "_buffers", {id(owner[key]) for owner, key in slots})) if copies_buffers else []
        self._copied_names = [name for name, _, _ in copied]
        self._copies = [_copy(local(owner[key]), device) for _, owner, key in copied]
        self._is_distributed = any(hasattr(owner[key], "to_local") for owner, key in slots)
        # `nn.Module.__setattr__` would register the module's submodules and weights here
        vars(self)["_slots"] = slots
        vars(self)["_copied_slots"] = [(owner, key) for _, owner, key in copied]
        vars(self)["_sharded"] = sharded
        vars(self)["_model"] = weakref.ref(model)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickles, with the model, which is the same as that of a pickled run."""
        return {**vars(self), "_model": self._model()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        weights = {name: value for name, value in state.items() if name != "_model"}
        super().__setstate__(weights)  # type: ignore[no-untyped-call]
        model = state["_model"]
        vars(self)["_model"] = _nothing if model is None else weakref.ref(model)

    @property
    def num_averaged(self) -> int:
        """Number of averaged models."""
        return int(self.n_averaged)

    def is_of(self, model: object) -> bool:
        """Return whether these are averages of a module's weights."""
        return self._model() is model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Raise `NotImplementedError`: there are only weights; `exchange` them to compute with the averages."""
        raise NotImplementedError(
            "AveragedWeights computes nothing. Call its `exchange`, then the module, which has the averages until the "
            "next `exchange`."
        )

    @torch.no_grad()
    def update_parameters(self, model: nn.Module | None = None) -> None:
        """Add the module's weights to the averages, as `AveragedModel.update_parameters`; the first are copied.

        Args:
            model: The module of the constructor; may be left out.

        Raises:
            ValueError: If it is another module.
        """
        if model is not None and not self.is_of(model):
            action = "Construct another AveragedWeights for it."
            raise ValueError(must_be("model", "the module of the constructor", type(model), "AveragedWeights", action))
        weights, averages = self._weights(), self._averages
        count: Any = self._buffers["n_averaged"]  # `nn.Module.__getattr__` is slow, for each step
        if not count:
            for average, weight in zip(averages, weights, strict=True):
                average.copy_(weight)
        elif self.avg_fn is not None:
            for average, weight in zip(averages, weights, strict=True):
                average.copy_(self.avg_fn(average, weight.to(average.device), count))
        else:
            update = self.multi_avg_fn or _equal_average
            for device, indexes in self._groups:
                if len(indexes) == len(averages):
                    update(averages, _on(device, weights), count)
                else:
                    update([averages[idx] for idx in indexes], _on(device, [weights[idx] for idx in indexes]), count)
        for kept, buffer in self._copied_pairs():
            kept.copy_(buffer)
        count += 1

    @torch.no_grad()
    def exchange(self) -> None:
        """Exchange the averages with the module's weights; a second call undoes the first."""
        for average, weight in (*zip(self._averages, self._weights(), strict=True), *self._copied_pairs()):
            kept = average.clone()
            average.copy_(weight)
            weight.copy_(kept)

    def named_values(self) -> dict[str, Tensor]:
        """Return the averages by all names under which the module saves them, laid out like its weights."""
        model = self._model()
        assert model is not None
        _reshard(self._sharded)
        like = [owner[key] for owner, key in self._slots]
        values = {id(one): _laid_out(value, one) for one, value in zip(like, self._averages, strict=True)}
        values.update((id(buffer), kept) for kept, buffer in self._copied_pairs())
        tensors = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
        return {name: values[id(tensor)] for name, tensor in tensors if id(tensor) in values}

    @torch.no_grad()
    def load_values(self, values: Mapping[str, Tensor], place_like: Callable[[Tensor, Tensor], Tensor]) -> None:
        """Load averages. Collective if they are sharded.

        Args:
            values: Averages by name, as a checkpoint holds them.
            place_like: The strategy's function that lays a tensor out like a parameter.

        Raises:
            ValueError: If one is missing.
        """
        for name, average, (owner, key) in zip(self._names, self._averages, self._slots, strict=True):
            if name not in values:
                action = "Resume with the module that was saved, or fit without a checkpoint."
                raise ValueError(
                    must_be("checkpoint", f"a checkpoint with the average of {name!r}", None, "fit", action)
                )
            average.copy_(local(place_like(values[name], owner[key].detach())))
        for name, kept in zip(self._copied_names, self._copies, strict=True):
            if name in values:
                kept.copy_(values[name])

    def _copied_pairs(self) -> list[tuple[Tensor, Tensor]]:
        """Return the copies with the module's buffers, without buffers whose shape has changed."""
        if not self._copies:
            return []
        now = [owner.get(key) for owner, key in self._copied_slots]
        pairs = zip(self._copies, now, strict=True)
        return [(kept, buffer) for kept, buffer in pairs if buffer is not None and buffer.shape == kept.shape]

    def _weights(self) -> list[Tensor]:
        if not self._sharded and not self._is_distributed:
            return [owner[key] for owner, key in self._slots]
        _reshard(self._sharded)
        return [local(owner[key]) for owner, key in self._slots]


def sharded_parts(module: nn.Module) -> Iterator[Any]:
    """Yield the submodules to which `torch.distributed.fsdp.fully_shard` was applied."""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # nothing is sharded before it is imported
    if fsdp is not None:
        yield from (part for part in module.modules() if isinstance(part, fsdp.FSDPModule))


def _reshard(parts: list[Any]) -> None:
    """Reshard parameters that are gathered. Not collective."""
    for part in parts:
        part.reshard()


def _nothing() -> None:
    """Return None, as a reference to a model that is gone."""


class _Weights(nn.Module):
    """Tensors under the dotted names that they have in a module."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[tuple[str, Tensor]] = []

    def __deepcopy__(self, memo: object) -> _Weights:
        return self  # it is a copy already

    def hold(self, name: str, value: Tensor, is_parameter: bool) -> None:
        *path, key = name.split(".")
        part: nn.Module = self
        for child in path:
            # `add_module` refuses some names
            part = part._modules.setdefault(child, nn.Module())  # type: ignore[assignment]
        if is_parameter:
            value = part._parameters[key] = nn.Parameter(value, requires_grad=False)
        else:
            part._buffers[key] = value
        self.held.append((name, value))


_equal_average: MultiAverageFunction = get_swa_multi_avg_fn()  # type: ignore[no-untyped-call]


def _slots(model: nn.Module, use_buffers: bool) -> tuple[list[str], list[tuple[dict[str, Any], str]]]:
    """Return the names of the averaged weights, parameters first, and the dictionaries and keys that hold them.

    Not the tensors, since modules may replace their buffers, and sharded ones their parameters.
    """
    names: list[str] = []
    slots: list[tuple[dict[str, Any], str]] = []
    seen: set[int] = set()
    for kind in ("_parameters", "_buffers") if use_buffers else ("_parameters",):
        for name, owner, key in _entries(model, kind, seen):
            value = owner[key]
            if is_lazy(value):
                action = "Run the module once on a batch in `configure_model` or before."
                raise ValueError(
                    must_be("parameter", "initialized before weights are averaged", name, "on_fit_start", action)
                )
            if value.is_floating_point() or value.is_complex():
                names.append(name)
                slots.append((owner, key))
    return names, slots


def _entries(model: nn.Module, kind: str, seen: set[int]) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield name, dictionary and key of each parameter or saved buffer that is not in `seen`, which is extended."""
    for prefix, part in model.named_modules():
        owner: dict[str, Any] = getattr(part, kind)
        skipped = part._non_persistent_buffers_set if kind == "_buffers" else ()
        for key, value in owner.items():
            if value is not None and key not in skipped and id(value) not in seen:
                seen.add(id(value))
                yield f"{prefix}.{key}" if prefix else key, owner, key


def _copy(tensor: Tensor, device: torch.device | str | int | None) -> Tensor:
    return tensor.detach().clone() if device is None else tensor.detach().to(device, copy=True)


def _groups(averages: list[Tensor]) -> list[tuple[torch.device, list[int]]]:
    """Return the indexes of tensors that can be updated together, with their device."""
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for idx, average in enumerate(averages):
        groups.setdefault((average.device, average.dtype), []).append(idx)
    return [(device, indexes) for (device, _), indexes in groups.items()]


def _on(device: torch.device, tensors: list[Tensor]) -> list[Tensor]:
    if tensors[0].device == device:
        return tensors
    return [tensor.to(device) for tensor in tensors]


def _laid_out(value: Tensor, like: Tensor) -> Tensor:
    """Return this rank's part of a tensor as a tensor that is laid out like another."""
    if not hasattr(like, "to_local"):
        return value
    from torch.distributed.tensor import DTensor

    assert isinstance(like, DTensor)
    return DTensor.from_local(
        value, like.device_mesh, like.placements, run_check=False, shape=like.size(), stride=like.stride()
    )
