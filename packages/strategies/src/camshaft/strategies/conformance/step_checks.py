"""Checks of the module's and batch's placement, and of wrapped steps."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import torch
from torch import Tensor, nn

from camshaft.strategies.conformance.training import (
    STEPS,
    DeferredModel,
    Reference,
    StrategyRun,
    Subject,
    global_batch,
    share_of,
    whole,
)
from camshaft.strategies.conformance.trial import Trial, same


class EchoModule(Subject):
    """A module whose steps return their arguments and the modes in which they run."""

    marker = object()

    def _answer(self, name: str, batch: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        modes = {
            "training": self.training,
            "grad": torch.is_grad_enabled(),
            "inference": torch.is_inference_mode_enabled(),
        }
        inputs = batch["inputs"]
        answer = {"step": name, "args": args, "kwargs": kwargs, "modes": modes, "marker": self.marker}
        return answer | {
            "loss": self(inputs).square().mean(),
            "nested": [inputs, (None, {"ones": torch.ones_like(inputs, dtype=torch.int64)})],
        }

    def training_step(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        return self._answer("training_step", batch, *args, **kwargs)

    def validation_step(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        return self._answer("validation_step", batch, *args, **kwargs)

    def test_step(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        return self._answer("test_step", batch, *args, **kwargs)

    def predict_step(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        return self._answer("predict_step", batch, *args, **kwargs)


def steps_keep_arguments_and_results(trial: Trial) -> None:
    """Wrapped steps of all stages get every argument as it is, by position or name, and return what the step does."""
    marker = EchoModule.marker
    with StrategyRun(trial, EchoModule()) as run:
        for batch_idx, name in enumerate(STEPS):
            run.module.eval()
            batch = run.share(batch_idx)
            with torch.no_grad():
                result = run.steps[name](batch, batch_idx, dataloader_idx=1, extra=marker)
            if not trial.expect(
                type(result) is dict, f"the result of `{name}` must be its dictionary", f"got {result}"
            ):
                continue
            trial.expect_equal(result["step"], name, "the step that a wrapped step runs")
            trial.expect_equal(result["args"], (batch_idx,), f"positional arguments of `{name}`")
            trial.expect_equal(list(result["kwargs"]), ["dataloader_idx", "extra"], f"keyword arguments of `{name}`")
            objects = result["marker"] is marker and result["kwargs"]["extra"] is marker
            trial.expect(objects, f"objects must go through `{name}` as they are", f"got {result['marker']}")
            _expect_nested(trial, result["nested"], whole(batch["inputs"]), name)
            loss = Subject()(whole(batch["inputs"])).square().mean()
            trial.expect_close({name: result["loss"].cpu()}, {name: loss}, "the loss of")


def steps_see_the_modes_of_their_caller(trial: Trial) -> None:
    """A wrapped step runs in the train or evaluation mode and the gradient mode that its caller set."""
    with StrategyRun(trial, EchoModule()) as run:
        for name in STEPS:
            for training, context in (
                (False, torch.no_grad()),
                (False, torch.inference_mode()),
                (True, torch.no_grad()),
            ):
                run.module.train(training)
                with context:
                    expected = _modes(training)
                    result = run.steps[name](run.share(0), 0)
                trial.expect_equal(result["modes"], expected, f"the modes in which `{name}` runs")
        run.module.train()
        result = run.steps["training_step"](run.share(0), 0)
        trial.expect_equal(result["modes"], _modes(True), "the modes in which `training_step` runs")
        requires = result["loss"].requires_grad
        trial.expect(requires, "the loss of `training_step` must require gradients", "it does not")
        run.strategy.backward(result["loss"])


def evaluation_allows_different_numbers_of_batches(trial: Trial) -> None:
    """Ranks evaluate different numbers of batches; `idle_step` answers the others' steps, and training goes on."""
    with StrategyRun(trial, Subject()) as run:
        reference = Reference(run.strategy.num_data_ranks)
        run.update(0)
        reference.update(0)
        num_own, num_most = 1 + run.data_rank, run.strategy.num_data_ranks
        run.module.eval()
        for name in STEPS[1:]:
            with torch.inference_mode():
                for batch_idx in range(num_own):
                    share = share_of(global_batch(batch_idx, num_most), run.data_rank, num_most)
                    output = run.steps[name](run.share(batch_idx), batch_idx)
                    trial.expect_close({name: output.cpu()}, {name: reference.module(share["inputs"])}, "the output of")
                for _ in range(num_most - num_own):
                    run.strategy.idle_step()
        if num_most == 1:  # no other rank, so it must change nothing
            with torch.inference_mode():
                run.strategy.idle_step()
        run.update(1)
        reference.update(1)
        weights = run.weights()
        trial.expect_close(weights, reference.weights(), "after evaluation and an update,")
        trial.expect_same_everywhere(weights, "weights after evaluation and an update")


def _modes(training: bool) -> dict[str, bool]:
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    return {"training": training, "grad": grad, "inference": inference}


def _expect_nested(trial: Trial, nested: Any, inputs: Tensor, name: str) -> None:
    """Expect the structure of a result to be kept; floating-point tensors may have another precision."""
    form = [type(nested), type(nested[1]), nested[1][0], type(nested[1][1])]
    trial.expect_equal(form, [list, tuple, None, dict], f"the containers in the result of `{name}`")
    trial.expect_close({"inputs": nested[0].cpu()}, {"inputs": inputs}, f"in the result of `{name}`,")
    ones = nested[1][1]["ones"].cpu()
    trial.expect_equal(ones, torch.ones_like(inputs, dtype=torch.int64), f"integers in the result of `{name}`")


Pair = namedtuple("Pair", ["left", "right"])


def modules_keep_their_identity_and_move_to_the_device(trial: Trial) -> None:
    """`setup_module` keeps the module, its names, shapes and flags, and brings all of it to the device."""
    module = Subject()
    before, submodules = _described(module), dict(module.named_modules())
    with StrategyRun(trial, module) as run:
        trial.expect_equal(_described(module), before, "the parameters and buffers of a module that was set up")
        kept = all(module.get_submodule(name) is submodule for name, submodule in submodules.items())
        trial.expect(kept, "submodules must be the same objects after `setup_module`", "some were replaced")
        device = run.strategy.device
        for name, value in (*module.named_parameters(), *module.named_buffers()):
            # a sharded one may be offloaded to the CPU
            placed = value.device.type == device.type or (hasattr(value, "full_tensor") and value.device.type == "cpu")
            trial.expect(placed, f"`{name}` must be on {device}", f"it is on {value.device}")


def weights_begin_the_same_on_all_ranks(trial: Trial) -> None:
    """After `setup_module` every rank has the weights of the first, though ranks were initialised differently."""
    first = Subject(seed=0)
    with StrategyRun(trial, Subject(seed=trial.ranks.rank)) as run:
        weights = run.weights()
        trial.expect_same_everywhere(weights, "weights after `setup_module`")
        trial.expect_close(weights, first.state_dict(), "what `setup_module` makes of the first rank's")


def models_built_in_model_context_train(trial: Trial) -> None:
    """A model whose layers are made within `model_context` has weights, the same everywhere, after `setup_module`."""
    with StrategyRun(trial, DeferredModel()) as run:
        weights = run.weights()
        varied = all(bool(value.isfinite().all()) and value.double().std() > 0 for value in weights.values())
        trial.expect(varied, "weights made in `model_context` must be initialised", f"got {weights}")
        trial.expect_same_everywhere(weights, "weights made in `model_context`")
        run.update(0)
        after = run.weights()
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
    with StrategyRun(trial, Subject()) as run:
        for number, (name, parameter) in enumerate(run.module.named_parameters()):
            value = torch.full(parameter.shape, 1.0 + number)
            placed = run.strategy.place_like(value, parameter)
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
    """Return a nested value with its tensors on the CPU, and add their device types to `devices`."""
    if isinstance(value, Tensor):
        devices.add(value.device.type)
        return value.cpu()
    if type(value) is dict:
        return {key: _on_cpu(item, devices) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_on_cpu(item, devices) for item in value)
    return Pair(*(_on_cpu(item, devices) for item in value)) if isinstance(value, Pair) else value
