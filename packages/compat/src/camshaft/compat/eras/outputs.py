"""Return values of steps and epoch ends in earlier eras, which are kept for epoch-end hooks and logged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from camshaft.compat.eras.releases import behaviour_in
from camshaft.hooks_core import Hooks, no_op
from camshaft.hooks_core.eras.releases import Behaviour, EpochOutputs
from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.hooks_core.support.transfer import map_nested, move_to_device
from camshaft.loops import FitProgress, Run
from camshaft.loops.optimization.update import detached

_CPU = torch.device("cpu")
_NO_METRICS = frozenset({"log", "progress_bar", "callback_metrics", "hiddens"})
_PLAIN = (int, float, bool, str, type(None))

ReadReturned = Callable[[Run, str, Any], Any]
"""A function of the run, a step's name and its return value, which returns the value for loops and hooks."""


def adapt_outputs(run: Run, read_returned: ReadReturned | None = None) -> None:
    """Wrap the steps and epoch ends of a module of an earlier era as its release did; others are not changed.

    The end hook of a step follows it, with the step's return value, and replaces that unless it returns None. Returned
    logs of a training step are logged, in the eras that did so.

    Args:
        run: A run with its hooks resolved, before its steps are bound.
        read_returned: A reader of the return values of steps, such as `camshaft.compat.results.read_result`.
    """
    hooks, logs = run.hooks, behaviour_in(run).returns_logs and run.metrics is not None
    for name in ("training_step", "validation_step", "test_step"):
        end = getattr(hooks, f"{name}_end")
        if end is not None:
            _follow(hooks, name, partial(_ended, end))
        if read_returned is not None:
            _follow(hooks, name, partial(read_returned, run, name))
    if logs:
        _follow(hooks, "training_step", partial(_logged, run))
    if hooks.on_tng_metrics is not no_op:
        hooks.wrap("on_train_batch_end", partial(_showing_metrics, run=run))
    for stage in ("validation", "test"):
        if getattr(hooks, f"{stage}_epoch_end") is not None:
            keep_evaluation_outputs(run, stage)
        elif logs:
            _follow(hooks, f"{stage}_step", partial(_logged, run))
    if hooks.takes("on_predict_epoch_end", "outputs"):
        hooks.wrap("on_predict_epoch_end", lambda epoch_end: lambda: epoch_end(outputs=run.predictions))


def keep_epoch_outputs(run: Run, num_optimizers: int, progress: FitProgress) -> None:
    """Keep what training steps return, if a hook of the epoch's end gets it; else nothing is kept.

    At an epoch's end `training_epoch_end` is called, unless no batch was run in the epoch, and then the hooks of today.
    What it returns to be logged is logged. Hooks: training_epoch_end.

    Args:
        run: A run whose `training_step` is not bound yet.
        num_optimizers: Optimizers that take steps of their own.
        progress: Counts the batches.
    """
    hooks, end = run.hooks, run.hooks.training_epoch_end
    takes_outputs = hooks.takes("on_train_epoch_end", "outputs")
    if end is None and not takes_outputs:
        return
    outputs = run.epoch_state["epoch_outputs"] = TrainingOutputs(run, num_optimizers)

    def ending(epoch_end: Callable[..., None]) -> Callable[[], None]:
        def epoch_end_of_era() -> None:
            of_epoch = outputs.for_epoch_end()
            if end is not None and progress.batches.processed:
                log_returned(run.metrics, end(of_epoch))
            if takes_outputs:
                epoch_end(outputs=of_epoch)
            else:
                epoch_end()

        return epoch_end_of_era

    hooks.wrap("on_train_epoch_end", ending)


class StepOutput(NamedTuple):
    """The value that one step of a training epoch returned: of which batch, split and optimizer it is."""

    batch_idx: int
    split_idx: int
    optimizer_idx: int
    value: Any


class TrainingOutputs:
    """The outputs of the steps of a training epoch, detached, by batch, split and optimizer; an `EpochState`.

    A step that a closure evaluates again counts once, with what it returned last.

    Args:
        run: A run whose `training_step` is not bound yet; the one that it has from here on is listened to.
        num_optimizers: Optimizers that take steps of their own.
    """

    def __init__(self, run: Run, num_optimizers: int) -> None:
        self._name = type(run.module).__qualname__
        self._device = run.strategy.device
        self._behaviour: Behaviour = behaviour_in(run)
        self._num_optimizers = num_optimizers
        self._on_cpu = goes_to_cpu(run)
        self._steps: list[StepOutput] = []
        self._split: Any = None  # the batch, or the split of it, that the latest step was given
        self._place = (-1, 0)
        step: Any = run.hooks.training_step

        def kept_step(batch: Any, batch_idx: int, *arguments: Any, **keywords: Any) -> Any:
            outputs = step(batch, batch_idx, *arguments, **keywords)
            self._keep(batch, batch_idx, arguments[0] if arguments else 0, outputs)
            return outputs

        run.hooks.training_step = kept_step

    def reset(self) -> None:
        """Forget everything."""
        self._steps, self._split, self._place = [], None, (-1, 0)

    def for_epoch_end(self) -> list[Any]:
        """Return the outputs of the epoch so far, in the form that the module's era has."""
        return arranged(self._steps, self._num_optimizers, self._behaviour.epoch_outputs)

    def state_dict(self) -> dict[str, Any]:
        """Return the outputs as tensors on the CPU and plain values; of others only what they are, with a warning."""
        foreign = {kind.__qualname__ for step in self._steps for kind in foreign_types(step.value)}
        if foreign:
            types = ", ".join(sorted(foreign))
            warn_user(
                f"The outputs that {self._name}.training_step has returned in this epoch are no tensors and plain "
                f"values alone ({types}), so a checkpoint cannot hold them: no run can resume from it inside of this "
                "epoch. Return tensors, numbers, strings, and lists, tuples and dictionaries of them."
            )
            return {"not_saved": types}
        return {"steps": [[*place, *saved(value)] for *place, value in self._steps]}

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Restore the outputs inside an epoch.

        Raises:
            ValueError: If the outputs of the epoch so far are not in the checkpoint.
        """
        if state is None or "steps" not in state:
            reason = "" if state is None else f", which cannot hold {state['not_saved']}"
            rule = f"one that holds what `training_step` returned before it inside of the epoch{reason}"
            action = "Resume from a checkpoint that was saved at an epoch's end."
            raise ValueError(must_be("checkpoint", rule, sorted(state or ()), f"{self._name}, fit", action))
        self.reset()
        for *place, value, were_elsewhere in state["steps"]:
            self._steps.append(StepOutput._make([*place, restored(value, were_elsewhere, self._device)]))

    def _keep(self, batch: Any, batch_idx: int, optimizer_idx: int, outputs: Any) -> None:
        latest_batch_idx, split_idx = self._place
        split_idx = 0 if batch_idx != latest_batch_idx else split_idx + (batch is not self._split)
        self._split, self._place = batch, (batch_idx, split_idx)
        place = (batch_idx, split_idx, optimizer_idx)
        if self._steps and self._steps[-1][:3] == place:
            self._steps.pop()  # evaluated again
        if outputs is not None:
            self._steps.append(StepOutput(*place, kept(self._item(outputs), on_cpu=self._on_cpu)))

    def _item(self, outputs: Any) -> Any:
        """Return a dictionary with the loss; from 1.0 on without the hidden state."""
        if isinstance(outputs, Tensor):
            return {"loss": outputs}
        if isinstance(outputs, Mapping) and not self._behaviour.returns_logs:
            return {name: value for name, value in outputs.items() if name != "hiddens"}
        return outputs


def arranged(steps: list[StepOutput], num_optimizers: int, form: EpochOutputs) -> list[Any]:
    """Return the outputs of an epoch as an era's hooks get them.

    Args:
        steps: What was kept, in order.
        num_optimizers: Optimizers that take steps of their own.
        form: "last_optimizer" gives the last output of each batch. Otherwise there is a list for each optimizer with an
            item for each batch ("by_optimizer"), or for each batch with an item for each optimizer ("by_batch"). With
            one optimizer that level is left out. Where batches are split, an item is a list with what each split has.
    """
    if form == "last_optimizer":
        return [of_batch[-1].value for of_batch in _grouped(steps, "batch_idx")]
    is_split = any(step.split_idx for step in steps)
    if num_optimizers == 1 or form != "by_optimizer":
        return _by_batch(steps, is_split, num_optimizers > 1)
    of_optimizers = ([step for step in steps if step.optimizer_idx == idx] for idx in range(num_optimizers))
    return [_by_batch(own, is_split, False) for own in of_optimizers]


def _by_batch(steps: list[StepOutput], is_split: bool, has_several: bool) -> list[Any]:
    items: list[Any] = []
    for of_batch in _grouped(steps, "batch_idx"):
        splits = [[step.value for step in of_split] for of_split in _grouped(of_batch, "split_idx")]
        of_splits = splits if has_several else [of_split[0] for of_split in splits]
        items.append(of_splits if is_split else of_splits[0])
    return items


def _grouped(steps: list[StepOutput], name: str) -> list[list[StepOutput]]:
    return [list(group) for _, group in groupby(steps, key=attrgetter(name))]


def keep_evaluation_outputs(run: Run, stage: str) -> None:
    """Keep the outputs of the steps of an evaluation, for its epoch-end hook.

    That is a list for one loader and a list of lists for several; what the hook returns to be logged is logged. In a
    process that had no batch, where others did, it is left out: earlier eras gave each process some, and code that puts
    outputs together fails without any.

    Args:
        run: A run before its hooks of the stage are bound.
        stage: "validation" or "test".
    """
    end: Callable[[list[Any]], Any] = getattr(run.hooks, f"{stage}_epoch_end")
    on_cpu, outputs, num_steps = goes_to_cpu(run), list[list[Any]](), list[int]()

    def starting(epoch_start: Callable[[], None]) -> Callable[[], None]:
        def started() -> None:
            outputs[:] = [[] for _ in range(run.num_loaders)]
            num_steps[:] = [0] * run.num_loaders
            epoch_start()

        return started

    def keeping(step: Callable[[Any, int, int], Any]) -> Callable[[Any, int, int], Any]:
        def kept_step(batch: Any, batch_idx: int, dataloader_idx: int) -> Any:
            num_steps[dataloader_idx] += 1
            returned = step(batch, batch_idx, dataloader_idx)
            if returned is not None:
                outputs[dataloader_idx].append(kept(returned, on_cpu=on_cpu))
            return returned

        return kept_step

    def ending(epoch_end: Callable[[], None]) -> Callable[[], None]:
        def ended() -> None:
            of_loaders = [*outputs]  # what is handed on is the receiver's to keep
            outputs.clear()
            if any(num_steps) or run.strategy.world_size == 1:
                try:
                    log_returned(run.metrics, end(of_loaders[0] if len(of_loaders) == 1 else of_loaders))
                except Exception as error:
                    if run.strategy.world_size > 1 and not all(num_steps):
                        error.add_note(
                            f"Loader {num_steps.index(0)} has fewer batches than there are processes, and none for "
                            "this one: its list of outputs is empty. Give each loader a batch for every process, by a "
                            "smaller batch size."
                        )
                    raise
            del of_loaders
            epoch_end()

        return ended

    run.hooks.wrap(f"on_{stage}_epoch_start", starting)
    run.hooks.wrap(f"{stage}_step", keeping)
    run.hooks.wrap(f"on_{stage}_epoch_end", ending)


def goes_to_cpu(run: Run) -> bool:
    """Return whether the outputs of steps are kept on the CPU, as the module's `outputs_on_cpu` asks for it."""
    return bool(getattr(run.module, "outputs_on_cpu", False))


def kept(outputs: Any, *, on_cpu: bool) -> Any:
    """Return what is kept of a step's outputs: without their graph, and where that is asked for on the CPU."""
    outputs = detached(outputs)
    return move_to_device(outputs, _CPU) if on_cpu else outputs


def foreign_types(value: Any) -> Iterator[type]:
    """Return the types that a checkpoint cannot hold: tensors and plain values in plain containers alone go in."""
    if type(value) is dict:
        yield from (kind for pair in value.items() for item in pair for kind in foreign_types(item))
    elif type(value) in (list, tuple):
        yield from (kind for item in value for kind in foreign_types(item))
    elif type(value) is not Tensor and type(value) not in _PLAIN:
        yield type(value)


def saved(value: Any) -> tuple[Any, list[bool]]:
    """Return a value with copies of its tensors on the CPU, and whether each of these was elsewhere, in order."""
    were_elsewhere: list[bool] = []

    def copy(tensor: Tensor) -> Tensor:
        were_elsewhere.append(not tensor.is_cpu)
        return tensor.detach().to(_CPU, copy=True)

    return _with_tensors(value, copy), were_elsewhere


def restored(value: Any, were_elsewhere: list[bool], device: torch.device) -> Any:
    """Return what `saved` was given, its tensors on the CPU or the device as they were."""
    elsewhere = iter(were_elsewhere)
    return _with_tensors(value, lambda tensor: tensor.to(device) if next(elsewhere) else tensor)


def _with_tensors(value: Any, replace: Callable[[Tensor], Tensor]) -> Any:
    return map_nested(value, lambda node: isinstance(node, Tensor), replace)


def log_returned(metrics: Any, returned: Any) -> None:
    """Log what a step or an epoch's end returned in a dictionary; anything else, and without a sink all, is left alone.

    Values under `log` go to loggers, those under `progress_bar` to progress bars, and these, what is under
    `callback_metrics` and every other single number of the dictionary to monitoring callbacks. A dictionary within
    `log` is logged under names of the form "outer/inner". A name in both has the value of `log`.

    Args:
        metrics: Where to log, at its present moment; with a method `log_returned`, as `MetricLog` has it.
        returned: What was returned.
    """
    if metrics is None or not isinstance(returned, Mapping):
        return
    to_loggers, to_bars = dict(_values(returned.get("log"))), dict(_values(returned.get("progress_bar")))
    rest = dict(_values(returned.get("callback_metrics")))
    rest |= {name: value for name, value in returned.items() if name not in _NO_METRICS and _is_number(value)}
    groups: dict[tuple[bool, bool], dict[str, Any]] = {}
    for name, value in (rest | to_bars | to_loggers).items():
        group = groups.setdefault((name in to_loggers, name in to_bars), {})
        group[str(name)] = value.detach() if isinstance(value, Tensor) else value
    for (logger, prog_bar), values in groups.items():
        metrics.log_returned(values, logger=logger, prog_bar=prog_bar)


def _values(given: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Return the values of a dictionary of any nesting, by name; numbers that were formatted for display as numbers."""
    for name, value in given.items() if isinstance(given, Mapping) else ():
        if isinstance(value, Mapping):
            yield from _values(value, f"{prefix}{name}/")
        elif isinstance(value, str):
            try:
                yield f"{prefix}{name}", float(value)
            except ValueError:
                warn_user(
                    f"{prefix}{name} is returned to be logged, but {value!r} is no number: it is left out. "
                    "Return a number."
                )
        elif value is not None:
            yield f"{prefix}{name}", value


def _is_number(value: Any) -> bool:
    return value.numel() == 1 if isinstance(value, Tensor) else isinstance(value, (int, float))


def _follow(hooks: Hooks, name: str, follow: Callable[[Any], Any]) -> None:
    """Wrap a step such that a function gets what it returned, and returns what counts as that."""
    hooks.wrap(name, lambda step: lambda *arguments, **keywords: follow(step(*arguments, **keywords)))


def _ended(end: Callable[[Any], Any], outputs: Any) -> Any:
    ended = end(outputs)
    return outputs if ended is None else ended


def _logged(run: Run, outputs: Any) -> Any:
    log_returned(run.metrics, outputs)
    return outputs


def _showing_metrics(batch_end: Callable[..., Any], run: Run) -> Callable[..., Any]:
    """Wrap the end of a batch such that the module sees and extends the metrics of every few batches, as in 0.4."""
    every = int(getattr(run.trainer, "log_every_n_steps", 0) or 10)

    def shown_batch_end(outputs: Any, batch: Any, batch_idx: int) -> None:
        batch_end(outputs, batch, batch_idx)
        if batch_idx % every:
            return
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        known = {"loss": loss, "epoch": run.epoch, "batch_nb": batch_idx}
        known |= getattr(run.trainer, "progress_bar_metrics", {})
        metrics = dict(known)
        run.hooks.on_tng_metrics(metrics)
        added = {name: value for name, value in metrics.items() if name not in known or value is not known[name]}
        log_returned(run.metrics, {"log": added})

    return shown_batch_end
