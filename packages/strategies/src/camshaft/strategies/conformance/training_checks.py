"""Checks of updates, optimizers, checkpoints and the life cycle."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from camshaft.hooks_core.protocols import Strategy
from camshaft.hooks_core.support.optimizer_step import needs_closure
from camshaft.strategies.conformance.training import StrategyRun, Subject, adam, midpoint, momentum, one, sgd, whole
from camshaft.strategies.conformance.trial import Trial, same, shorten


def training_equals_one_device(trial: Trial) -> None:
    """Updates on shares of batches give the weights of one device on the whole batches, the same on all ranks."""
    _expect_same_updates(trial, ((0,), (1,), (2,), (3,)), "after four updates,")


def custom_differentiation_gives_the_same_gradients(trial: Trial) -> None:
    """`backward` calls `differentiate` if it is given, and the gradients are those of the loss all the same."""
    losses: list[Tensor] = []

    def differentiate(loss: Tensor) -> None:
        losses.append(loss)
        loss.backward()  # type: ignore[no-untyped-call]

    with StrategyRun(trial, Subject()) as run:
        run.warm_up()
        run.backward_on(0, differentiate=differentiate)
        promise = "`backward` must call `differentiate` once if it is given"
        trial.expect(len(losses) == 1, promise, f"it did {len(losses)} times")
        run.step()
        run.reference.update(0)
        run.expect_alike("after an update with a custom `differentiate`,")


def accumulation_equals_one_device(trial: Trial) -> None:
    """Gradients of several steps add up, and are averaged after the step for which `set_gradient_sync` is on."""
    _expect_same_updates(trial, ((0, 1, 2), (3, 4), (5,)), "after windows of 3, 2 and 1 steps,")


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
        for update_idx, num_calls in enumerate((1, 2, 0)):
            run.backward_on(update_idx)
            run.reference.update(update_idx)
            for _ in range(num_calls):
                run.strategy.unscale_gradients(run.optimizer)
            if num_calls:
                what = f"gradients after {num_calls} x `unscale_gradients`:"
                trial.expect_close(run.gradients(), run.reference.gradients(), what)
            run.strategy.optimizer_step(run.optimizer)
            run.expect_alike(f"after an update with {num_calls} x `unscale_gradients`,")


def _expect_same_updates(trial: Trial, windows: tuple[tuple[int, ...], ...], what: str) -> None:
    with StrategyRun(trial, Subject(), one(momentum)) as run:
        for window in windows:
            run.update_both(*window)
        run.expect_alike(what)


def _expect_clipped_alike(trial: Trial, algorithm: str) -> None:
    """Expect the same updates where the first of two optimizers clips to half of its gradients' norm or maximum."""
    norm = 2.0 if algorithm == "norm" else inf
    with StrategyRun(trial, Subject(), lambda module: [sgd(part) for part in _in_two(module)]) as run:
        run.warm_up()
        for batch_idx in range(2):
            run.reference.backward_on(batch_idx)
            gradients = [parameter.grad for parameter in _in_two(run.reference.module)[0]]
            size = nn.utils.get_total_norm([value for value in gradients if value is not None], norm)
            run.update_both(batch_idx, clip=(0.5 * float(size), algorithm))
        run.expect_alike(f"after two updates clipped by {algorithm},")


def _in_two(module: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the parameters of the first layer, and all others."""
    named = dict(module.named_parameters())
    return [named.pop(name) for name in ("first.weight", "first.bias")], list(named.values())


def prepared_optimizers_serve_as_the_originals(trial: Trial) -> None:
    """Prepared optimizers have the groups, state, step hooks and zeroing of the originals, in order."""
    with StrategyRun(trial, Subject(), _adam_and_momentum) as run:
        if not trial.expect_equal(len(run.optimizers), 2, "the number of optimizers that `setup_optimizers` returns"):
            return
        for optimizer, layer in zip(run.optimizers, (run.module.first, run.module.last), strict=True):
            held = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
            own = [id(parameter) for parameter in layer.parameters()]
            trial.expect(held == own, "`param_groups` must hold the parameters of the original", "they hold others")
            promise = "`step` must need a closure only where that of the original does"
            trial.expect(not needs_closure(optimizer), promise, "it always does")
            for name in ("register_step_pre_hook", "register_step_post_hook"):
                trial.expect(hasattr(optimizer, name), f"a prepared optimizer must have `{name}`", "it has none")
        run.update(0)
        for optimizer in run.optimizers:
            trial.expect_equal(len(optimizer.state_dict()["state"]), 2, "the number of parameters with state")
            optimizer.load_state_dict(optimizer.state_dict())
        run.backward_on(1)
        for optimizer in run.optimizers:
            optimizer.zero_grad()
        left = [name for name, value in run.gradients().items() if bool(value.any())]
        trial.expect_equal(left, [], "the names of gradients after `zero_grad`")


def closures_are_evaluated(trial: Trial) -> None:
    """`optimizer_step` evaluates a closure: once for most optimizers, repeatedly for those that require it."""
    with StrategyRun(trial, Subject()) as run:
        scales = run.warm_up()
        for update_idx in range(2):  # unscaled by the closure, and not
            num_calls = _step_with_closure(run, update_idx, unscales=update_idx == 0)
            run.reference.update(update_idx)
            trial.expect_equal(num_calls, 1, "the number of evaluations of a closure by SGD")
        run.expect_alike("after two updates by closures,")
    try:
        with StrategyRun(trial, Subject(), one(midpoint)) as run:
            promise = "`step` must need a closure where that of the original does"
            trial.expect(needs_closure(run.optimizer), promise, "it needs none")
            num_calls = _step_with_closure(run, 0, unscales=True)
            weights = run.weights()
    except (NotImplementedError, RuntimeError, TypeError, ValueError):
        if scales:
            return  # impossible with scaled losses; an error is enough
        raise

    run.reference.optimizers[0].step(lambda: run.reference.backward_on(0))  # type: ignore[arg-type, return-value]  # no loss
    trial.expect_equal(num_calls, 2, "the number of evaluations of a closure by an optimizer that needs two")
    trial.expect_close(weights, run.reference.weights(), "after an update with two evaluations,")


def step_hooks_run_for_each_update(trial: Trial) -> None:
    """The step hooks of an optimizer run once for each `optimizer_step`, and at no other time."""
    with StrategyRun(trial, Subject()) as run:
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
    with StrategyRun(trial, Subject()) as run:
        run.warm_up()
        before, counts = run.weights(), _count_steps(run.optimizer)
        # on one rank; all must agree
        run.backward_on(0, factor=inf if run.strategy.data_rank == 0 else 1.0)
        run.step()
        skipped, after = run.strategy.has_skipped_step, run.weights()
        trial.expect_same_everywhere(skipped, "`has_skipped_step` after gradients that are not finite on one rank")
        trial.stop_if_failed()
        what = f"calls of step hooks where `has_skipped_step` is {skipped}"
        trial.expect_equal(counts["post"], 0 if skipped else 1, what)
        if not skipped:
            kept = [name for name, value in before.items() if name.startswith("first") and same(after[name], value)]
            trial.expect_equal(kept, [], "the weights that stay as they were in an update that was not skipped")
            return
        trial.expect_unchanged(after, before, "weights must stay as they were in a skipped update")
        run.update(1)
        promise = "the update after a skipped one must change the weights"
        trial.expect(not same(run.weights(), before), promise, "they stayed as they were")
        trial.expect_equal(counts["post"], 1, "calls of step hooks after a skipped update and one that was not")


def _step_with_closure(run: StrategyRun[Subject], batch_idx: int, *, unscales: bool) -> int:
    """Make an update by a closure, and return the number of its evaluations."""
    losses: list[Tensor] = []

    def closure() -> Tensor:
        run.backward_on(batch_idx)
        if unscales:
            run.strategy.unscale_gradients(run.optimizer)
        losses.append(torch.zeros((), device=run.strategy.device))
        return losses[-1]

    run.strategy.optimizer_step(run.optimizer, closure)
    return len(losses)


def _count_steps(optimizer: Any) -> Counter[str]:
    counts = Counter(pre=0, post=0)
    optimizer.register_step_pre_hook(lambda *_: counts.update(["pre"]))
    optimizer.register_step_post_hook(lambda *_: counts.update(["post"]))
    return counts


def _adam_and_momentum(module: Any) -> list[Optimizer]:
    return [adam(module.first.parameters()), momentum(module.last.parameters())]


def checkpoints_are_restored_exactly(trial: Trial) -> None:
    """A checkpoint is complete when `save_checkpoint`, or the wait for it, ends; every rank loads it on the CPU."""
    path, saved = _path(trial), {"plain": _PLAIN, "tensors": _tensors()}
    with StrategyRun(trial, Subject(seed=1)) as run:
        state = run.module.state_dict()
        _save(run.strategy, {"state_dict": state, "rank": trial.ranks.rank, **saved}, path)
        weights = run.weights()
        for strategy in (run.strategy, trial.connect()):  # without a barrier
            loaded = strategy.load_checkpoint(path)
            keys = ["plain", "rank", "state_dict", "tensors"]
            if not trial.expect_equal(sorted(loaded), keys, "the keys of a checkpoint"):
                return
            trial.expect_equal(loaded["plain"], _PLAIN, "plain values of a checkpoint")
            trial.expect_equal(loaded["rank"], 0, "the rank whose plain values are in a checkpoint")
            trial.expect_equal(loaded["tensors"], saved["tensors"], "tensors of a checkpoint")
            devices = {leaf.device.type for leaf in pytree.tree_leaves(loaded) if isinstance(leaf, Tensor)}
            trial.expect_equal(devices, {"cpu"}, "the devices of a loaded checkpoint's tensors")
            trial.expect_equal(_whole_state(loaded), weights, "a module's state in a checkpoint")


def checkpoints_are_replaced_as_a_whole(trial: Trial) -> None:
    """A save does not write into a previous checkpoint, and leaves it if it fails, which raises on all ranks."""
    path = _path(trial)
    strategy = trial.connect()
    tensors = {"a": torch.arange(1000.0)}
    _save(strategy, {"number": 1, **tensors}, path)
    files = [file for file in [Path(path), *Path(path).rglob("*")] if file.is_file()]
    trial.expect(bool(files), "a checkpoint must be at its path once it is saved", "there is nothing")
    trial.stop_if_failed()
    with ExitStack() as stack:
        opened = [stack.enter_context(file.open("rb")) for file in files]
        before = [file.read() for file in opened]
        trial.ranks.exchange(None)  # no rank saves before all have read
        _save(strategy, {"number": 2, **tensors}, path)
        for file in opened:
            file.seek(0)
        after = [file.read() for file in opened]
    promise = "a save must replace a previous checkpoint as a whole"
    trial.expect(after == before, promise, "it wrote into the previous files")
    trial.expect_equal(strategy.load_checkpoint(path)["number"], 2, "a checkpoint that was saved over another")
    try:
        _save(strategy, {"number": 3, **tensors, "no plain value": threading.Lock()}, path)
    except Exception:
        pass
    else:
        promise = "a save of an object that cannot be pickled must raise on every rank"
        trial.expect(False, promise, "it did not on this one")
    trial.stop_if_failed()
    trial.expect_equal(strategy.load_checkpoint(path)["number"], 2, "a previous checkpoint after a save that failed")


def checkpoints_are_snapshots(trial: Trial) -> None:
    """Training may change tensors as soon as `save_checkpoint` returns; the checkpoint holds the former values."""
    path = _path(trial)
    with StrategyRun(trial, Subject(), one(adam)) as run:
        run.update(0)
        weights, extra = run.weights(), torch.ones(100_000)
        pending = run.strategy.save_checkpoint({"state_dict": run.module.state_dict(), "extra": extra}, path)
        extra.zero_()
        run.update(1)
        if pending is not None:
            pending.wait()
        loaded = run.strategy.load_checkpoint(path)
        promise = "a checkpoint must be of the moment of its save"
        trial.expect(bool(loaded["extra"].all()), promise, "later zeros are in it")
        trial.expect_unchanged(_whole_state(loaded), weights, "a checkpoint must hold the weights at its save")


def training_resumes_exactly(trial: Trial) -> None:
    """A new strategy that loads weights, optimizers and its own state trains to the same bits as without a stop."""
    path = _path(trial)
    with StrategyRun(trial, Subject(), one(adam)) as run:
        run.update(0)
        run.update(1, 2)
        optimizers = [optimizer.state_dict() for optimizer in run.optimizers]
        state = {"state_dict": run.module.state_dict(), "optimizers": optimizers, "strategy": run.strategy.state_dict()}
        _save(run.strategy, state, path)
        saved = run.weights()
        run.update(3)
        run.update(4, 5)
        whole_run = run.weights()
    strategy = trial.connect()
    loaded = strategy.load_checkpoint(path)
    with StrategyRun(trial, Subject(seed=7), one(adam), strategy=strategy, checkpoint=loaded) as run:
        trial.expect_unchanged(run.weights(), saved, "`load_module_state` must give the weights that were saved")
        run.update(3)
        run.update(4, 5)
        promise = "training from a checkpoint must end with the weights of training that was not stopped"
        trial.expect_unchanged(run.weights(), whole_run, promise)


def strategy_state_is_restored(trial: Trial) -> None:
    """`state_dict` is plain and the same on all ranks; `load_state_dict` takes it back, and ignores another kind's."""
    with StrategyRun(trial, Subject()) as run:
        run.warm_up()
        run.backward_on(0, factor=inf)
        run.strategy.optimizer_step(run.optimizer)
        state = run.strategy.state_dict()
        kinds = set(map(type, pytree.tree_leaves(state))) - {bool, int, float, complex, str, bytes, type(None)}
        trial.expect(not kinds, "`state_dict` of a strategy must hold plain values", f"got {shorten(state)}")
        trial.expect_same_everywhere(state, "`state_dict` of a strategy")
    with StrategyRun(trial, Subject()) as run:
        own = run.strategy.state_dict()
        run.strategy.load_state_dict({})
        run.strategy.load_state_dict({"of another kind of strategy": 1})
        trial.expect_equal(run.strategy.state_dict(), own, "the state of a strategy after that of another was loaded")
        run.strategy.load_state_dict(state)
        trial.expect_equal(run.strategy.state_dict(), state, "the state of a strategy after it was loaded")


def _save(strategy: Strategy, checkpoint: Mapping[str, Any], path: str) -> None:
    pending = strategy.save_checkpoint(checkpoint, path)
    if pending is not None:
        pending.wait()


def _whole_state(checkpoint: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: whole(value) for name, value in checkpoint["state_dict"].items()}


def _path(trial: Trial) -> str:
    return str(trial.directory / "a.ckpt")


_PLAIN = {
    **{"epoch": 3, "ratio": 0.1, "infinite": inf, "flag": True, "none": None, "text": "é", "raw": b"\x00\xff"},
    **{"list": [1, [2.5, "x"]], "tuple": (1, ("a",)), "by int": {1: {2: 3}}},
}


def _tensors() -> list[Tensor]:
    """Return tensors of several dtypes and layouts."""
    matrix = torch.arange(6.0).reshape(2, 3)
    numbers = [torch.tensor([1 / 3], dtype=torch.float64), torch.tensor([2**60]), torch.tensor([True, False])]
    return [matrix, matrix.T, torch.arange(3).to(torch.bfloat16), *numbers, torch.tensor(5), torch.empty(0, 4)]


def teardown_is_not_collective(trial: Trial) -> None:
    """`teardown` works on one rank after another, and before anything was set up."""
    strategy = trial.make_strategy()
    strategy.teardown()
    strategy.connect()
    strategy.teardown()
    run = StrategyRun(trial, Subject())
    run.__enter__()
    run.update(0)
    for rank in range(trial.ranks.size):
        if rank == trial.ranks.rank:
            run.strategy.teardown()
        trial.ranks.exchange(None)


def modules_can_be_reused_after_teardown(trial: Trial) -> None:
    """After `teardown` the module keeps its weights, and the same strategy evaluates it and trains it further."""
    with StrategyRun(trial, Subject()) as run:
        run.update_both(0)
        module, strategy, reference = run.module, run.strategy, run.reference
        trained = run.weights()
    trial.expect_unchanged(run.weights(), trained, "weights must stay as they were trained after `teardown`")
    with StrategyRun(trial, module, lambda _: [], strategy=strategy, reference=reference) as run:
        module.eval()
        with torch.inference_mode():
            run.expect_output("test_step", 1, "in another run,")
    for batch_idx in (1, 2):
        with StrategyRun(trial, module, strategy=strategy, reference=reference) as run:
            run.update_both(batch_idx)
            run.expect_alike(f"after {batch_idx + 1} runs of training of one module,")


def strategies_follow_each_other(trial: Trial) -> None:
    """A second strategy in the same process trains another module as the first one did its own."""
    weights = []
    for _ in range(2):
        with StrategyRun(trial, Subject(), one(momentum)) as run:
            run.update(0)
            run.update(1, 2)
            weights.append(run.weights())
    trial.expect_equal(weights[1], weights[0], "weights that a second strategy trains alike")
    trial.stop_if_failed()
    with StrategyRun(trial, Subject()) as first, StrategyRun(trial, Subject(seed=1)) as second:
        before = first.weights()
        second.update(0)
        trial.expect_equal(first.weights(), before, "weights of one strategy while another trains")
