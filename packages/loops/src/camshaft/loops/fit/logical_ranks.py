"""Training on logical ranks: a step of a process is the step of each rank that it plays.

A step has three parts. In each of them the ranks of a process run one after the other, under random numbers of their
own: the batches are moved and `on_train_batch_start` is called; gradients are computed, perhaps several times (for
several optimizers, or splits along time), each time followed by the update if its window ends; `on_train_batch_end` is
called. So all that a hook can see of the run's position is the same on any number of processes.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import partial, wraps
from types import SimpleNamespace
from typing import Any

import attrs
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from camshaft.hooks_core import no_op
from camshaft.hooks_core.dispatch.implementation import returns_anything
from camshaft.hooks_core.spec import SKIP_EPOCH
from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.loops.fit.epoch import TrainingEpoch
from camshaft.loops.metrics.logical_ranks import LogicalMetricLog, RankMetrics
from camshaft.loops.optimization.automatic import AutomaticOptimization
from camshaft.loops.optimization.configuration import ConfiguredOptimizers
from camshaft.loops.optimization.manual import ManualOptimization
from camshaft.loops.optimization.update import ClosureUpdate, OptimizerUpdate, loss_of, without_graph
from camshaft.loops.state.logical_ranks import (
    FirstRankBuffers,
    LogicalRanks,
    MovingParameters,
    logical_ranks_of,
    take_common_numbers,
)
from camshaft.loops.state.of_ranks import OfRanks
from camshaft.loops.state.run import Run

_OF_PROCESSES = ("world_size", "get_world_size", "all_gather", "all_gather_into_tensor", "all_reduce", "reduce_scatter")
_MEMBERS = ("logical_ranks", "enter_logical_rank", "leave_logical_ranks", "logical_gradients", "load_logical_gradients")


def begin_logical_ranks(run: Run) -> None:
    """Let a run know its logical ranks, before anything of it draws random numbers.

    Raises:
        TypeError: If the strategy, or the metric log, lacks what they need.
        ValueError: If the processes cannot play them.
    """
    strategy: Any = run.strategy
    count, where = strategy.num_logical_ranks, type(strategy).__qualname__
    missing = [name for name in _MEMBERS if not hasattr(strategy, name)]
    if missing:
        rule = f"a strategy that can play logical ranks (missing: {', '.join(missing)})"
        raise TypeError(must_be("strategy", rule, strategy, run.verb, "Leave `num_logical_ranks` out."))
    if count < 1 or count & (count - 1):
        raise ValueError(must_be("logical_ranks", "a power of two", count, where, f"Pass {1 << count.bit_length()}."))
    if count % strategy.num_data_ranks:
        rule = f"a number of processes that divides the logical ranks ({count})"
        fitting = ", ".join(str(1 << power) for power in range(count.bit_length()))
        raise ValueError(must_be("number of processes", rule, strategy.num_data_ranks, where, f"Use {fitting}."))
    if strategy.num_data_ranks != strategy.world_size:
        rule, action = "one with data of its own on each process, for logical ranks", "Leave out tensor parallelism."
        raise ValueError(must_be("strategy", rule, strategy, run.verb, action))
    if run.metrics is not None and not isinstance(run.metrics, LogicalMetricLog):
        rule, action = "one that keeps the values of each logical rank", "Pass a `LogicalMetricLog`, or none."
        raise TypeError(must_be("metrics", rule, run.metrics, run.verb, action))
    run.logical = logical_ranks_of(strategy)
    _warn_of_processes(run)


def share_numbers(run: Run) -> None:
    """Let all processes have the random numbers of rank 0, and draw the run's base seed of them. Collective."""
    assert run.logical is not None
    take_common_numbers(run.logical, run.strategy)
    run.logical.base_seed = int(torch.randint(2**62, ()))


def follow_module(run: Run) -> None:
    """Let the logged values and metrics of each rank be its own, once the module is set up.

    Raises:
        ValueError: If the module has layers whose results depend on the processes, or metrics of unknown kinds.
    """
    ranks, log = run.logical, run.metrics
    assert ranks is not None
    if any(isinstance(part, nn.SyncBatchNorm) for part in run.module.modules()):
        rule, action = "without SyncBatchNorm, whose statistics depend on processes", "Use batch norm of each rank."
        raise ValueError(must_be("module", rule, type(run.module).__qualname__, run.verb, action))
    metrics = ranks.metrics = RankMetrics(run.module, ranks, run.strategy)
    metrics.install()
    ranks.on_enter = metrics.enter
    if isinstance(log, LogicalMetricLog):
        log.follow_logical_ranks(ranks, metrics, run.module)

        def enter(place: int) -> None:
            metrics.enter(place)
            log.enter_rank(place)

        ranks.on_enter = enter


def _warn_of_processes(run: Run) -> None:
    """Warn of receivers whose code names the number of processes, or a collective: results must not depend on them."""
    found: dict[str, None] = {}
    for kind in (kind for receiver in (run.module, run.data, *run.callbacks) for kind in type(receiver).__mro__):
        if kind.__module__.partition(".")[0] in ("camshaft", "lightning", "pytorch_lightning", "torch", "builtins"):
            continue
        functions = [one for one in vars(kind).values() if inspect.isfunction(one)]
        names = (name for one in functions for name in _OF_PROCESSES if name in one.__code__.co_names)
        found.update(dict.fromkeys(f"{kind.__qualname__} names `{name}`" for name in names))
    if found:
        warn_user(
            f"The code of {', '.join(found)}: with logical ranks, what it computes must not depend on the number of "
            "processes. Use the number of logical ranks, `trainer.num_logical_ranks`, and log values with `sync_dist`."
        )


@attrs.define(eq=False, repr=False, slots=False)
class LogicalEpoch(TrainingEpoch):
    """Runs the batches of an epoch, those of several logical ranks in each step; see `TrainingEpoch`."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        run, hooks = self._run, self._run.hooks
        assert run.logical is not None
        self._ranks: LogicalRanks = run.logical
        self._move_one, self._move = self._move, None
        self._start_hook, self._end_hook = hooks.on_train_batch_start, hooks.on_train_batch_end
        self._may_skip = any(map(returns_anything, hooks.methods("on_train_batch_start")))
        self._buffers = FirstRankBuffers(run.module, len(self._ranks.own))
        self._moving = MovingParameters(run.module, len(self._ranks.own))
        self._batch_start, self._batch_end = self._start_step, self._end_step
        check_optimization(self.mode, run)
        self.follow_mode()

    def follow_mode(self) -> None:
        """Let the mode, another one perhaps, run the step or compute the gradients of each rank."""
        if type(self.mode) is ManualOptimization:
            _RankSteps(self.mode, self._run)
        for update in getattr(self.mode, "_updates", ()):
            _RankGradients(update, self._run)

    def _each(self) -> Iterator[int]:
        """Run a part in which hooks of several ranks come in turn. Yields the places of the ranks."""
        buffers, moving = self._buffers, self._moving
        moving.begin()
        for place, _ in self._ranks.each():
            buffers.follow(place)
            moving.enter(place)
            yield place
        buffers.restore()
        moving.end()

    def _start_step(self, batches: OfRanks, batch_idx: int) -> Any:
        """Move the batches and call the hook for each rank. Collective if the hook may skip the epoch."""
        run, ranks, move, hook = self._run, self._ranks, self._move_one, self._start_hook
        ranks.begin_step("train", run.epoch, batch_idx)
        metrics, skips = run.metrics, False
        for place in self._each():
            batch = batches[place]
            if batch is None:
                rule, action = "a batch on every logical rank", "Drop samples in the dataset or sampler instead."
                raise RuntimeError(must_be("batch", rule, None, f"batch {batch_idx} of rank {ranks.current}", action))
            if move is not None:
                batch = batches[place] = move(batch, 0)
            if metrics is not None:
                metrics.batch = batch
            skips |= hook(batch, batch_idx) == SKIP_EPOCH
        if self._may_skip and run.strategy.world_size > 1:
            skips = bool(run.strategy.reduce(torch.tensor(int(skips)), "max").item())
        return SKIP_EPOCH if skips else None

    def _end_step(self, outputs: Any, batches: OfRanks, batch_idx: int) -> None:
        """Call the hook for each rank."""
        hook = self._end_hook
        if hook is no_op:
            self._ranks.end_part()  # or the numbers would depend on whether somebody has the hook
            return
        for place in self._each():
            hook(_of_place(outputs, place), batches[place], batch_idx)


class _RankGradients:
    """Computes the gradients of each logical rank where an update computes those of a batch.

    Args:
        update: The update, which calls this from now on.
        run: The run.

    Raises:
        ValueError: If it is an update of another class than those of the loops.
    """

    def __init__(self, update: OptimizerUpdate, run: Run) -> None:
        assert run.logical is not None
        self._update, self._ranks, self._strategy = update, run.logical, run.strategy
        self._add, self._module = partial(OptimizerUpdate.run, update, ends_window=False), run.module
        self._moving = MovingParameters(run.module, len(run.logical.own))
        self._after_backward: Any = update._on_after_backward
        if self._after_backward is not None:
            update._on_after_backward = self._after_backward_of_rank
        of_update: Any = update
        if type(update) is ClosureUpdate:
            of_update.add_gradients, of_update.loss_of = self.add_gradients, self.loss_of
        elif type(update) is OptimizerUpdate:
            of_update.run = self.run
        else:
            rule, action = "that of today's protocol, with logical ranks", "Port the module, or leave them out."
            raise ValueError(must_be("optimization", rule, update, type(run.module).__qualname__, action))

    def run(self, batches: OfRanks, batch_idx: int, ends_window: bool) -> OfRanks:
        """Run a step of all ranks, as `OptimizerUpdate.run`."""
        outputs = self.add_gradients(batches, batch_idx)
        if ends_window:
            self._update.end_window(batch_idx)
        return outputs

    def add_gradients(self, batches: OfRanks, batch_idx: int, ends_window: bool = False) -> OfRanks:
        """Compute and add the gradients of all ranks. Returns the outputs of their steps, without graphs."""
        update, strategy, outputs = self._update, self._strategy, OfRanks()
        hiddens = update.hiddens
        self._moving.begin()
        for place, rank in self._ranks.each():
            strategy.enter_logical_rank(rank)  # type: ignore[attr-defined]
            self._moving.enter(place)
            update.hiddens = None if hiddens is None else hiddens[place]
            output = self._add(batches[place], batch_idx)
            if output is None:
                where = f"{type(self._module).__qualname__} (logical rank {rank}, batch {batch_idx})"
                action = "Return a loss times 0 to leave a batch out."
                raise RuntimeError(
                    must_be("training_step", "one that returns a loss on every rank", None, where, action)
                )
            outputs.append(without_graph(output))
        strategy.leave_logical_ranks()  # type: ignore[attr-defined]
        self._moving.end()
        if update._window.is_complete and self._after_backward is not None:
            self._after_backward()
        update.hiddens = hiddens
        return outputs

    def _after_backward_of_rank(self) -> None:
        """Call the hook if the gradients stay the rank's own; else it comes once, after they were averaged."""
        if not self._update._window.is_complete:
            self._after_backward()

    def loss_of(self, outputs: OfRanks) -> Any:
        """Return the mean of the losses of all ranks, by which the owner of an update decides. Collective."""
        own: list[Any] = [loss_of(one, self._module) for one in outputs]
        losses = self._ranks.of_all(own, self._strategy)
        if not self._update.preparation.average.is_weighted:
            return losses.mean()
        weights = self._ranks.of_all([torch.as_tensor(one["weight"]).to(losses) for one in outputs], self._strategy)
        return (losses * weights).sum() / weights.sum().clamp(min=torch.finfo(weights.dtype).tiny)


class _RankSteps:
    """Runs the step of each logical rank where a module that optimizes by itself runs that of a batch.

    An update, and the hook before it, is one for all: it has the random numbers that all have in common.

    Args:
        mode: The mode, which calls this from now on.
        run: The run.

    Raises:
        TypeError: If the strategy cannot let the steps of several take turns.
    """

    def __init__(self, mode: ManualOptimization, run: Run) -> None:
        strategy: Any = run.strategy
        missing = [name for name in ("play_logical_ranks", "together") if not hasattr(strategy, name)]
        if missing:
            rule = f"a strategy that plays logical ranks which update by themselves (missing: {', '.join(missing)})"
            action = "Let the loop optimize, or leave `logical_ranks` out."
            raise TypeError(must_be("strategy", rule, strategy, type(run.module).__qualname__, action))
        assert run.logical is not None
        self._mode, self._ranks, self._strategy, self._module = mode, run.logical, strategy, run.module
        self._step = mode.replace_step(self.run)
        self._log: Any = run.metrics or SimpleNamespace(hook=None)
        self._moving = MovingParameters(run.module, len(run.logical.own), take_turns=True)
        mode.announce_steps(self._announcing)
        for optimizer in mode.configured.optimizers:
            mode.keep_until_close(optimizer.register_step_pre_hook(self._begin_step))
            mode.keep_until_close(optimizer.register_step_post_hook(self._end_step))
        for idx, scheduler in enumerate(_schedulers_of(mode.configured, run.module)):
            name = f"step of {type(scheduler).__qualname__} ({idx})"
            mode.keep_until_close(_SharedScheduler(scheduler, name, run.logical, strategy, run.module))

    def run(self, batches: OfRanks, batch_idx: int, **hiddens: Any) -> OfRanks:
        """Run the module's step for all ranks. Returns their outputs, without graphs."""
        toggle, log, current = self._mode.configured.toggle, self._log, 0
        toggles = [toggle.copy_state() for _ in self._ranks.own]
        hooks = [log.hook for _ in self._ranks.own]  # that each is in
        on_enter = self._ranks.on_enter

        def enter(place: int) -> None:
            nonlocal current
            on_enter(place)
            if place not in (-1, current):
                self._moving.enter(place)
                toggles[current], hooks[current] = toggle.swap(toggles[place]), log.hook
                log.hook, current = hooks[place], place

        def step(place: int) -> Any:
            of_rank = {name: None if value is None else value[place] for name, value in hiddens.items()}
            return without_graph(self._step(batches[place], batch_idx, **of_rank))

        self._ranks.on_enter = enter
        self._moving.begin()
        try:
            return self._ranks.play(self._strategy, step)
        finally:
            self._ranks.on_enter = on_enter
            self._moving.end()

    def _announcing(self, announce: Any) -> Any:
        """Return the hook before an update of an optimizer, for all ranks."""

        def begin(optimizer: Any) -> None:
            self._ranks.begin_update()
            announce(optimizer)

        return begin

    def _begin_step(self, optimizer: Any, arguments: Any, keywords: Any) -> Any:
        """Let a closure, if the step gets one, evaluate the loss as part of the step of a rank."""
        _check_turn(self._ranks, "optimizer.step", optimizer, self._module)
        closure = keywords.get("closure", arguments[1] if len(arguments) > 1 else None)
        if not callable(closure):
            return None

        def evaluate() -> Any:
            self._ranks.end_update()  # a later evaluation
            return closure()

        if "closure" in keywords:
            return arguments, {**keywords, "closure": evaluate}
        return (optimizer, evaluate, *arguments[2:]), keywords

    def _end_step(self, *_: Any) -> None:
        self._ranks.end_update()


class _SharedScheduler:
    """Lets a scheduler that a module steps by itself step once for all ranks, until `remove`.

    Its class is changed rather than the object, whose attributes are saved in checkpoints.
    """

    def __init__(self, scheduler: Any, name: str, ranks: LogicalRanks, strategy: Any, module: nn.Module) -> None:
        self._scheduler, self._kind = scheduler, type(scheduler)
        kind = self._kind

        @wraps(kind.step)
        def step(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            if ranks.current is None:
                return kind.step(scheduler, *args, **kwargs)
            _check_turn(ranks, "lr_scheduler.step", scheduler, module)

            def once() -> Any:
                given = args, kwargs
                if any(given) and strategy.world_size > 1:
                    given = strategy.broadcast(given)  # a value that may be each rank's own
                return kind.step(scheduler, *given[0], **given[1])

            return strategy.together(name, once)

        names = {"step": step, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
        scheduler.__class__ = type(kind.__name__, (kind,), names)

    def remove(self) -> None:
        """Leave the scheduler as it was."""
        self._scheduler.__class__ = self._kind


def _check_turn(ranks: LogicalRanks, name: str, got: Any, module: nn.Module) -> None:
    """Raise `RuntimeError` in a hook that comes once for each rank, one after the other."""
    if ranks.current is not None and not ranks.is_playing:
        rule = "called in `training_step`, or in a hook that comes once for all logical ranks"
        action = "Move it there, such as to `on_train_epoch_end`."
        raise RuntimeError(must_be(name, rule, type(got).__name__, type(module).__qualname__, action))


def _schedulers_of(configured: ConfiguredOptimizers, module: nn.Module) -> list[Any]:
    """Return the schedulers that a module steps by itself: those that it returned, and its attributes."""
    found = [config.scheduler for config in configured.schedulers]
    for value in vars(module).values():
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else (value,)
        found += [one for one in inner if isinstance(one, LRScheduler)]
    return list({id(one): one for one in found}.values())


def check_optimization(mode: Any, run: Run) -> None:
    """Raise `ValueError` where the updates of a mode cannot be those of logical ranks."""
    where = type(run.module).__qualname__
    if type(mode) is not ManualOptimization and not isinstance(mode, AutomaticOptimization):
        rule, action = "that of today's protocol, with logical ranks", "Port the module, or leave them out."
        raise ValueError(must_be("optimization", rule, mode, where, action))
    if run.epoch_state:
        rule, action = "without hooks that take the outputs of all steps, with logical ranks", "Log values instead."
        raise ValueError(must_be("module", rule, sorted(run.epoch_state), where, action))


def _of_place(outputs: Any, place: int) -> Any:
    """Return what one rank's step returned, given what the mode returned: a list of several optimizers'."""
    if type(outputs) is OfRanks:
        return outputs[place]
    return [_of_place(one, place) for one in outputs] if isinstance(outputs, list) else outputs
