"""Checks of steps, backwards, updates, clipping and training."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from camshaft.hooks_core.optimizer_step import needs_closure
from camshaft.strategies.conformance.training import (
    STEPS,
    Clip,
    DeferredModel,
    Reference,
    StrategyRun,
    Subject,
    adam,
    global_batch,
    midpoint,
    momentum,
    one,
    sgd,
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


def prepared_optimizers_serve_as_the_originals(trial: Trial) -> None:
    """Prepared optimizers have the groups, state, step hooks and zeroing of the originals, in order."""
    with StrategyRun(trial, Subject(), _two) as run:
        num_prepared = len(run.optimizers)
        if not trial.expect(
            num_prepared == 2, "`setup_optimizers` must return as many as it got", f"got {num_prepared}"
        ):
            return
        for optimizer, layer in zip(run.optimizers, (run.module.first, run.module.last), strict=True):
            held = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
            own = [id(parameter) for parameter in layer.parameters()]
            trial.expect(held == own, "`param_groups` must hold the parameters of the original", "they hold others")
            needs = needs_closure(optimizer)
            trial.expect(not needs, "`step` must need a closure only where that of the original does", "it always does")
            for name in ("register_step_pre_hook", "register_step_post_hook"):
                has_it = callable(getattr(optimizer, name, None))
                trial.expect(has_it, f"what `setup_optimizers` returns must have `{name}`", "it has not")
        run.update(0)
        for optimizer in run.optimizers:
            num_states = len(optimizer.state_dict()["state"])
            trial.expect(
                num_states == 2, "`state_dict` must hold the state of each parameter", f"it holds {num_states}"
            )
            optimizer.load_state_dict(optimizer.state_dict())
        run.backward_on(1)
        for optimizer in run.optimizers:
            optimizer.zero_grad()
        left = [name for name, value in run.gradients().items() if bool(value.any())]
        trial.expect(not left, "`zero_grad` must leave no gradients", f"there are some of {left}")


def closures_are_evaluated(trial: Trial) -> None:
    """`optimizer_step` evaluates a closure: once for most optimizers, repeatedly for those that require it."""
    with StrategyRun(trial, Subject(), one(sgd)) as run:
        reference = Reference(run.strategy.num_data_ranks, one(sgd))
        scales = run.warm_up()
        for update_idx in range(2):  # unscaled by the closure, and not
            num_calls = _step_with_closure(run, update_idx, unscales=update_idx == 0)
            reference.update(update_idx)
            trial.expect(num_calls == 1, "SGD must evaluate its closure once", f"it did {num_calls} times")
        trial.expect_close(run.weights(), reference.weights(), "after two updates by closures,")
    reference = Reference(reference.num_data_ranks, one(midpoint))
    try:
        with StrategyRun(trial, Subject(), one(midpoint)) as run:
            needs = needs_closure(run.optimizer)
            trial.expect(needs, "`step` must need a closure where that of the original does", "it needs none")
            num_calls = _step_with_closure(run, 0, unscales=True)
            weights = run.weights()
    except (NotImplementedError, RuntimeError, TypeError, ValueError):
        if scales:
            return  # impossible with scaled losses; an error is enough
        raise

    def closure() -> Tensor:
        reference.backward_on(0)
        return torch.zeros(())

    reference.optimizers[0].step(closure)  # type: ignore[arg-type]  # torch says that a loss is a float
    trial.expect(
        num_calls == 2, "an optimizer must evaluate its closure as often as it wants", f"it did {num_calls} times"
    )
    trial.expect_close(weights, reference.weights(), "after an update with two evaluations,")


def step_hooks_run_for_each_update(trial: Trial) -> None:
    """The step hooks of an optimizer run once for each `optimizer_step`, and at no other time."""
    with StrategyRun(trial, Subject(), one(sgd)) as run:
        run.warm_up()
        counts = _count_steps(run.optimizer)
        run.backward_on(0)
        run.strategy.unscale_gradients(run.optimizer)
        run.strategy.clip_gradients(run.optimizer, 1.0, "norm")
        trial.expect_equal(dict(counts), {"pre": 0, "post": 0}, "calls of step hooks before the step")
        run.strategy.optimizer_step(run.optimizer)
        trial.expect_equal(dict(counts), {"pre": 1, "post": 1}, "calls of step hooks after one step")
        _step_with_closure(run, 1, unscales=True)
        trial.expect_equal(dict(counts), {"pre": 2, "post": 2}, "calls of step hooks after another by a closure")


def skipped_updates_are_reported(trial: Trial) -> None:
    """`has_skipped_step` is true exactly if an update was skipped: then weights stay and no step hook runs."""
    with StrategyRun(trial, Subject(), one(sgd)) as run:
        run.warm_up()
        before, counts = run.weights(), _count_steps(run.optimizer)
        overflows = run.data_rank == 0  # on one rank; all must agree
        run.backward_on(0, factor=float("inf") if overflows else 1.0)
        run.strategy.unscale_gradients(run.optimizer)
        run.strategy.optimizer_step(run.optimizer)
        skipped, after = run.strategy.has_skipped_step, run.weights()
        trial.expect_same_everywhere(skipped, "`has_skipped_step` after gradients that are not finite on one rank")
        trial.stop_if_failed()
        expected = {"pre": 0, "post": 0} if skipped else {"pre": 1, "post": 1}
        told = f"calls of step hooks where `has_skipped_step` is {skipped}"
        trial.expect_equal(counts["post"], expected["post"], told)
        if not skipped:
            finite = [name for name, value in before.items() if name.startswith("first") and same(after[name], value)]
            trial.expect(
                not finite, "weights must follow an update that was not skipped", f"{finite} stayed as they were"
            )
            return
        trial.expect(same(after, before), "weights must stay as they were in a skipped update", "they changed")
        run.update(1)
        changed = not same(run.weights(), before)
        trial.expect(changed, "the update after a skipped one must change the weights", "they stayed as they were")
        trial.expect_equal(counts["post"], 1, "calls of step hooks after a skipped update and one that was not")


def _step_with_closure(run: StrategyRun[Subject], batch_idx: int, *, unscales: bool) -> int:
    """Make an update by a closure, and return the number of its evaluations."""
    num_calls = 0

    def closure() -> Tensor:
        nonlocal num_calls
        num_calls += 1
        run.backward_on(batch_idx)
        if unscales:
            run.strategy.unscale_gradients(run.optimizer)
        return torch.zeros((), device=run.strategy.device)

    run.strategy.optimizer_step(run.optimizer, closure)
    return num_calls


def _count_steps(optimizer: Any) -> dict[str, int]:
    counts = {"pre": 0, "post": 0}

    def count(name: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            counts[name] += 1

        return hook

    optimizer.register_step_pre_hook(count("pre"))
    optimizer.register_step_post_hook(count("post"))
    return counts


def _two(module: Any) -> list[Optimizer]:
    return [adam(module.first.parameters()), momentum(module.last.parameters())]


def training_equals_one_device(trial: Trial) -> None:
    """Updates on shares of batches give the weights of one device on the whole batches, the same on all ranks."""
    with StrategyRun(trial, Subject(), one(momentum)) as run:
        reference = Reference(run.strategy.num_data_ranks, one(momentum))
        for batch_idx in range(4):
            run.update(batch_idx)
            reference.update(batch_idx)
        _expect_same_training(trial, run, reference, "after four updates,")


def custom_differentiation_gives_the_same_gradients(trial: Trial) -> None:
    """`backward` calls `differentiate` if it is given, and the gradients are those of the loss all the same."""
    num_calls = 0

    def differentiate(loss: Tensor) -> None:
        nonlocal num_calls
        num_calls += 1
        loss.backward()  # type: ignore[no-untyped-call]

    with StrategyRun(trial, Subject()) as run:
        run.warm_up()
        reference = Reference(run.strategy.num_data_ranks)
        run.backward_on(0, differentiate=differentiate)
        seen = f"it did {num_calls} times"
        trial.expect(num_calls == 1, "`backward` must call `differentiate` once if it is given", seen)
        run.strategy.unscale_gradients(run.optimizer)
        run.strategy.optimizer_step(run.optimizer)
        reference.update(0)
        _expect_same_training(trial, run, reference, "after an update with a custom `differentiate`,")


def accumulation_equals_one_device(trial: Trial) -> None:
    """Gradients of several steps add up, and are averaged after the step for which `set_gradient_sync` is on."""
    with StrategyRun(trial, Subject(), one(momentum)) as run:
        reference = Reference(run.strategy.num_data_ranks, one(momentum))
        for window in ((0, 1, 2), (3, 4), (5,)):
            run.update(*window)
            reference.update(*window)
        _expect_same_training(trial, run, reference, "after windows of 3, 2 and 1 steps,")


def clipping_by_norm_equals_one_device(trial: Trial) -> None:
    """`clip_gradients` by "norm" limits the norm of one optimizer's gradients of the whole batch."""
    _expect_clipped_alike(trial, "norm")


def clipping_by_value_equals_one_device(trial: Trial) -> None:
    """`clip_gradients` by "value" limits each of one optimizer's gradients of the whole batch."""
    _expect_clipped_alike(trial, "value")


def unscaled_gradients_have_their_true_size(trial: Trial) -> None:
    """`unscale_gradients` gives gradients their true size, however often it is called; updates use that size anyway."""
    with StrategyRun(trial, Subject()) as run:
        run.warm_up()
        reference = Reference(run.strategy.num_data_ranks)
        for update_idx, num_calls in enumerate((1, 2, 0)):
            run.backward_on(update_idx)
            reference.update(update_idx)
            for _ in range(num_calls):
                run.strategy.unscale_gradients(run.optimizer)
            if num_calls:
                what = f"gradients after {num_calls} x `unscale_gradients`:"
                trial.expect_close(run.gradients(), reference.gradients(), what)
            run.strategy.optimizer_step(run.optimizer)
            what = f"after an update with {num_calls} x `unscale_gradients`,"
            trial.expect_close(run.weights(), reference.weights(), what)


def _expect_clipped_alike(trial: Trial, algorithm: str) -> None:
    with StrategyRun(trial, Subject(), _two_sgd) as run:
        run.warm_up()
        reference = Reference(run.strategy.num_data_ranks, _two_sgd)
        for batch_idx in range(2):
            clip = _half(reference, batch_idx, algorithm)
            run.update(batch_idx, clip=clip)
            reference.update(batch_idx, clip=clip)
        _expect_same_training(trial, run, reference, f"after two updates clipped by {algorithm},")


def _two_sgd(module: nn.Module) -> list[Optimizer]:
    """Return two optimizers; gradients of the second are not clipped."""
    clipped = [value for name, value in module.named_parameters() if name.startswith("first")]
    others = [value for name, value in module.named_parameters() if not name.startswith("first")]
    return [sgd(clipped), sgd(others)]


def _half(reference: Reference, batch_idx: int, algorithm: str) -> Clip:
    """Return a limit of half of the norm or largest value of the first optimizer's gradients."""
    reference.backward_on(batch_idx)
    gradients = [value for name, value in reference.gradients().items() if name.startswith("first")]
    if algorithm == "norm":
        return 0.5 * float(nn.utils.get_total_norm(gradients)), algorithm
    return 0.5 * max(float(gradient.abs().max()) for gradient in gradients), algorithm


def _expect_same_training(trial: Trial, run: StrategyRun[Subject], reference: Reference, what: str) -> None:
    weights = run.weights()
    trial.expect_close(weights, reference.weights(), what)
    trial.expect_same_everywhere(weights, f"weights {what.rstrip(',')}")
