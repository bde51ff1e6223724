"""Averages of a module's weights, kept beside the module and exchanged with its weights."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim.swa_utils import AveragedModel, get_swa_multi_avg_fn

from camshaft.callbacks.arguments import owner_name
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
        super().__init__(nn.Module(), None, avg_fn, multi_avg_fn, use_buffers)  # type: ignore[arg-type]
        self._sharded = list(sharded_parts(model))
        _reshard(self._sharded)
        averaged = list(_averaged(model, use_buffers))
        held = [(name, owner, key, _hold(self.module, name, owner[key], device)) for name, owner, key in averaged]
        # those of a device and dtype are updated together
        held.sort(key=lambda one: (str(one[3].device), str(one[3].dtype)))
        kinds = [(average.device, average.dtype) for _, _, _, average in held]
        self._parts = [slice(kinds.index(kind), kinds.index(kind) + kinds.count(kind)) for kind in dict.fromkeys(kinds)]
        self._names = [name for name, _, _, _ in held]
        self._slots = [(owner, key) for _, owner, key, _ in held]
        self._averages = [average for _, _, _, average in held]
        self._is_distributed = any(hasattr(owner[key], "to_local") for owner, key in self._slots)
        seen = {id(owner[key]) for owner, key in self._slots}
        copied = list(_entries(model, "_buffers", seen)) if copies_buffers else []
        self._copied = [(name, owner, key, _copy(owner[key], device)) for name, owner, key in copied]
        self._models = WeakSet([model])

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickles and copies, with the model, which is the same as that of a copied run."""
        return {**vars(self), "_models": tuple(self._models)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "_models": WeakSet(state["_models"])})  # type: ignore[no-untyped-call]

    @property
    def num_averaged(self) -> int:
        """Number of averaged models."""
        return int(self.n_averaged)

    def is_of(self, model: object) -> bool:
        """Return whether these are averages of a module's weights."""
        return model in self._models

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
        for part in self._parts:
            own, others = averages[part], _on(averages[part.start].device, weights[part])
            if not count:
                torch._foreach_copy_(own, others)
            elif self.avg_fn is not None:
                for average, weight in zip(own, others, strict=True):
                    average.copy_(self.avg_fn(average, weight, count))
            else:
                (self.multi_avg_fn or _equal_average)(own, others, count)
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
        (model,) = self._models
        _reshard(self._sharded)
        like = [owner[key] for owner, key in self._slots]
        values = {id(one): _laid_out(value, one) for one, value in zip(like, self._averages, strict=True)}
        values.update((id(buffer), kept) for kept, buffer in self._copied_pairs())
        tensors = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
        return {name: values[id(tensor)] for name, tensor in tensors if id(tensor) in values}

    @torch.no_grad()
    def load_values(
        self, values: Mapping[str, Tensor], num_averaged: int, place_like: Callable[[Tensor, Tensor], Tensor]
    ) -> None:
        """Load averages. Collective if they are sharded.

        Args:
            values: Averages by name, as a checkpoint holds them.
            num_averaged: Number of averaged models.
            place_like: The strategy's function that lays a tensor out like a parameter.

        Raises:
            ValueError: If one is missing.
        """
        for name, average, (owner, key) in zip(self._names, self._averages, self._slots, strict=True):
            if name not in values:
                rule = f"a checkpoint with the average of {name!r}"
                action = "Resume with the module that was saved, or fit without a checkpoint."
                raise ValueError(must_be("checkpoint", rule, None, "fit", action))
            average.copy_(local(place_like(values[name], owner[key].detach())))
        for name, _, _, kept in self._copied:
            if name in values:
                kept.copy_(values[name])
        self.n_averaged.fill_(num_averaged)

    def _copied_pairs(self) -> list[tuple[Tensor, Tensor]]:
        """Return the copies with the module's buffers, without buffers whose shape has changed."""
        pairs = [(kept, owner.get(key)) for _, owner, key, kept in self._copied]
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


def check_unsharded(module: nn.Module, reason: str, where: object) -> None:
    """Raise `ValueError` if parameters of a module are sharded, which a callback cannot work with for a reason."""
    if any(True for _ in sharded_parts(module)):
        action = "Use another strategy, or leave the callback out."
        raise ValueError(must_be("module", f"unsharded, since {reason}", "a sharded one", owner_name(where), action))


def _reshard(parts: list[Any]) -> None:
    """Reshard parameters that are gathered. Not collective."""
    for part in parts:
        part.reshard()


def _hold(root: nn.Module, name: str, weight: Tensor, device: torch.device | str | int | None) -> Tensor:
    """Return a copy of a weight, which a module holds under a dotted name."""
    *path, key = name.split(".")
    for child in path:
        root = root._modules.setdefault(child, nn.Module())  # type: ignore[assignment]  # `add_module` refuses some names
    held = _copy(weight, device)
    if isinstance(weight, nn.Parameter):
        held = root._parameters[key] = nn.Parameter(held, requires_grad=False)
    else:
        root._buffers[key] = held
    return held


_equal_average: MultiAverageFunction = get_swa_multi_avg_fn()  # type: ignore[no-untyped-call]


def _averaged(model: nn.Module, use_buffers: bool) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield the names of the averaged weights, parameters first, and the dictionaries and keys that hold them.

    Not the tensors, since modules may replace their buffers, and sharded ones their parameters.
    """
    seen: set[int] = set()
    for kind in ("_parameters", "_buffers") if use_buffers else ("_parameters",):
        for name, owner, key in _entries(model, kind, seen):
            if is_lazy(owner[key]):
                rule = "initialized before weights are averaged"
                action = "Run the module once on a batch in `configure_model` or before."
                raise ValueError(must_be("parameter", rule, name, "on_fit_start", action))
            if owner[key].is_floating_point() or owner[key].is_complex():
                yield name, owner, key


def _entries(model: nn.Module, kind: str, seen: set[int]) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield name, dictionary and key of each parameter or saved buffer that is not in `seen`, which is extended."""
    for prefix, part in model.named_modules():
        owner: dict[str, Any] = getattr(part, kind)
        skipped = part._non_persistent_buffers_set if kind == "_buffers" else ()
        for key, value in owner.items():
            if value is not None and key not in skipped and id(value) not in seen:
                seen.add(id(value))
                yield f"{prefix}.{key}" if prefix else key, owner, key


def _copy(weight: Tensor, device: torch.device | str | int | None) -> Tensor:
    tensor = local(weight).detach()
    return tensor.clone() if device is None else tensor.to(device, copy=True)


def _on(device: torch.device, tensors: list[Tensor]) -> list[Tensor]:
    return tensors if tensors[0].device == device else [tensor.to(device) for tensor in tensors]


def _laid_out(value: Tensor, like: Tensor) -> Tensor:
    """Return this rank's part of a tensor as a tensor that is laid out like another."""
    if not hasattr(like, "to_local"):
        return value
    from torch.distributed.tensor import DTensor

    assert isinstance(like, DTensor)
    return DTensor.from_local(
        value, like.device_mesh, like.placements, run_check=False, shape=like.size(), stride=like.stride()
    )
