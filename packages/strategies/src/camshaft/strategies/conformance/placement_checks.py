"""Modules, batches and tensors where they are to be."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import torch
from torch import Tensor, nn

from camshaft.strategies.conformance.life import Life, whole
from camshaft.strategies.conformance.subject import BuiltLate, Subject
from camshaft.strategies.conformance.trial import Trial, same

Pair = namedtuple("Pair", ["left", "right"])


def modules_stay_themselves_and_move_to_the_device(trial: Trial) -> None:
    """`setup_module` keeps the module, its names, shapes and flags, and brings all of it to the device."""
    module = Subject()
    before, submodules = _described(module), dict(module.named_modules())
    with Life(trial, module) as life:
        trial.expect_equal(_described(module), before, "the parameters and buffers of a module that was set up")
        kept = all(module.get_submodule(name) is submodule for name, submodule in submodules.items())
        trial.expect(kept, "submodules must be the same objects after `setup_module`", "some were replaced")
        device = life.strategy.device
        for name, value in (*module.named_parameters(), *module.named_buffers()):
            # a sharded one may be offloaded
            placed = value.device.type == device.type or (hasattr(value, "full_tensor") and value.device.type == "cpu")
            trial.expect(placed, f"`{name}` must be on {device}", f"it is on {value.device}")


def weights_begin_the_same_on_all_ranks(trial: Trial) -> None:
    """After `setup_module` every rank has the weights of the first, though ranks were initialised differently."""
    first = Subject(seed=0)
    with Life(trial, Subject(seed=trial.ranks.rank)) as life:
        weights = life.weights()
        trial.expect_same_everywhere(weights, "weights after `setup_module`")
        trial.expect_close(weights, first.state_dict(), "what `setup_module` makes of the first rank's")


def models_built_in_the_context_compute(trial: Trial) -> None:
    """A model whose layers are made within `model_context` has weights, the same everywhere, after `setup_module`."""
    with Life(trial, BuiltLate()) as life:
        weights = life.weights()
        varied = all(bool(value.isfinite().all()) and value.double().std() > 0 for value in weights.values())
        trial.expect(varied, "weights made in `model_context` must be initialised", f"got {weights}")
        trial.expect_same_everywhere(weights, "weights made in `model_context`")
        life.update(0)
        after = life.weights()
        changed = all(not torch.equal(after[name], value) for name, value in weights.items())
        trial.expect(changed, "training must change every weight made in `model_context`", "some stayed as they were")
        trial.expect_same_everywhere(after, "weights made in `model_context`, once trained,")


def batches_move_to_the_device(trial: Trial) -> None:
    """`batch_to_device` moves every tensor of a batch and keeps its structure and whatever else is in it."""
    strategy = trial.make_strategy()
    strategy.connect()
    x, anything = torch.arange(4.0), object()
    batch = {"list": [x, 3], "tuple": (x.long(), "text"), "pair": Pair(x, None), "object": anything}
    moved = strategy.batch_to_device(batch)
    devices: set[str] = set()
    back = _on_cpu(moved, devices)
    trial.expect_equal(devices, {strategy.device.type}, "the devices of a moved batch")
    trial.expect(same(back, batch), f"a moved batch must hold {batch}", f"it holds {back}")


def values_are_placed_like_parameters(trial: Trial) -> None:
    """`place_like` makes a new tensor of a whole value on the CPU, placed as the parameter is."""
    with Life(trial, Subject()) as life:
        for number, (name, parameter) in enumerate(life.module.named_parameters()):
            value = torch.full(parameter.shape, 1.0 + number)
            placed = life.strategy.place_like(value, parameter)
            trial.expect_equal(placed.device, parameter.device, f"the device of what is placed like `{name}`")
            trial.expect_equal(type(placed), _kind(parameter), f"the type of what is placed like `{name}`")
            placement = getattr(parameter, "placements", None)
            trial.expect_equal(getattr(placed, "placements", None), placement, f"the placement of that like `{name}`")
            trial.expect_equal(whole(placed).float(), value, f"the value that was placed like `{name}`")
            value.zero_()
            trial.expect(
                bool(whole(placed).all()), "what `place_like` returns must be a copy", "it changes with the value"
            )


def _described(module: nn.Module) -> dict[str, tuple[Any, ...]]:
    described: dict[str, tuple[Any, ...]] = {"keys": tuple(module.state_dict())}
    for name, parameter in module.named_parameters():
        described[name] = ("parameter", tuple(parameter.shape), parameter.requires_grad)
    for name, buffer in module.named_buffers():
        described[name] = ("buffer", tuple(buffer.shape), buffer.is_floating_point())
    return described


def _kind(parameter: Tensor) -> type:
    return type(parameter.data)


def _on_cpu(value: Any, devices: set[str]) -> Any:
    """A nested value with its tensors on the CPU; notes where they were."""
    if isinstance(value, Tensor):
        devices.add(value.device.type)
        return value.cpu()
    if type(value) is dict:
        return {key: _on_cpu(item, devices) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_on_cpu(item, devices) for item in value)
    return Pair(*(_on_cpu(item, devices) for item in value)) if isinstance(value, Pair) else value
