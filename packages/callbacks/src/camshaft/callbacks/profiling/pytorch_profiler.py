"""Profiler of named actions on torch's profiler."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Self
from weakref import proxy

import torch
from torch import nn
from torch.autograd.profiler_util import EventList, FunctionEventAvg
from torch.profiler import ProfilerAction, profile, record_function, schedule, tensorboard_trace_handler

from camshaft.callbacks.arguments import InvalidArgumentError, check_keywords, check_local, check_number
from camshaft.callbacks.profiling.action_profilers import ActionProfiler
from camshaft.hooks_core.support.messages import warn_user

_NUM_STEPS = 5  # of the default schedule
_one_of_five = schedule(wait=1, warmup=1, active=3)
_BATCHES = {
    "training_step": "num_training_batches",
    "validation_step": "num_val_batches",
    "test_step": "num_test_batches",
    "predict_step": "num_predict_batches",
}
"""By step, the trainer's attribute with its number of batches."""
_RUN_STATE = ("profiler", "function_events", "_trainer", "_module", "_names", "_steps")


def _default_schedule(step: int) -> ProfilerAction:
    action: ProfilerAction = _one_of_five(step)
    return action


class PyTorchProfiler(ActionProfiler):
    """Profiles with `torch.profiler`: operators, kernels, and each action and submodule as a range of its own.

    A step of the schedule is a batch. By default one batch is skipped, one warms up and three are recorded; the steps
    of each stage make one cycle, and those of the sanity check none. A stage with fewer than five batches is recorded
    as a whole, with a warning; a validation inside of fit then only where the schedule of training records. The report
    has a table of operators; trace files go to `dirpath`, or the run's log folder. Once the cycles are over, a batch
    costs a few microseconds.

    Args:
        dirpath, filename: As in `ActionProfiler`.
        group_by_input_shapes: Whether the table has a row per operator and shapes; needs `record_shapes=True`.
        emit_nvtx: Whether ranges are emitted for nvprof or Nsight instead, and nothing is recorded.
        export_to_chrome: Whether to write traces, for TensorBoard, Perfetto or chrome://tracing.
        row_limit: Rows of the table; -1 has all.
        sort_by_key: Column to sort the table by; None is "cuda_time_total" with a GPU, else "cpu_time_total".
        record_module_names: Whether calls of submodules become ranges.
        table_kwargs: Further arguments of torch's `EventList.table`.
        max_cycles: Cycles of the schedule to record per stage; 0 leaves their number to the schedule.
        **profiler_kwargs: Arguments of `torch.profiler.profile`, such as `schedule`, `activities`, `record_shapes`,
            `profile_memory`, `with_stack`. `schedule=None` records everything. `export_to_flame_graph=True` writes
            stacks by `metric`.

    Attributes:
        profiler: Torch's profiler while it runs, else None.
        function_events: Events of the last recording.

    Raises:
        InvalidArgumentError: If `sort_by_key` is no column of the table, `schedule` is no schedule, or `max_cycles` is
            negative.
        TypeError: If `torch.profiler.profile` does not take one of `profiler_kwargs`, or `EventList.table` one of
            `table_kwargs`.
    """

    def __init__(
        self,
        dirpath: str | os.PathLike[str] | None = None,
        filename: str | None = None,
        group_by_input_shapes: bool = False,
        emit_nvtx: bool = False,
        export_to_chrome: bool = True,
        row_limit: int = 20,
        sort_by_key: str | None = None,
        record_module_names: bool = True,
        table_kwargs: Mapping[str, Any] | None = None,
        *,
        max_cycles: int = 1,
        **profiler_kwargs: Any,
    ) -> None:
        super().__init__(dirpath, filename)
        check_number(self, least=0, max_cycles=max_cycles)
        self._table_kwargs = dict(table_kwargs or {})
        check_keywords(self._table_kwargs, EventList.table, ("self", "sort_by", "row_limit"), self)
        self._sort_by_key = sort_by_key or f"{'device' if torch.accelerator.is_available() else 'cpu'}_time_total"
        if not hasattr(FunctionEventAvg(), self._sort_by_key.replace("cuda", "device")):
            rule = "a column of `EventList.table`, such as 'cpu_time_total', 'cuda_memory_usage' or 'count'"
            raise InvalidArgumentError("sort_by_key", rule, sort_by_key, self, "Pass one, or None.")
        self._exports_flame_graph = bool(profiler_kwargs.pop("export_to_flame_graph", False))
        self._metric = profiler_kwargs.pop("metric", "self_cpu_time_total")
        check_keywords(profiler_kwargs, profile, (), self)
        self._schedule = given = profiler_kwargs.pop("schedule", _default_schedule)
        if given is not None and not (callable(given) and isinstance(given(0), ProfilerAction)):
            rule = "a function of a step's number that returns a `torch.profiler.ProfilerAction`, or None"
            raise InvalidArgumentError("schedule", rule, given, self, "See `torch.profiler.schedule`.")
        profiler_kwargs["with_stack"] = profiler_kwargs.get("with_stack", False) or self._exports_flame_graph
        self._profiler_kwargs = profiler_kwargs
        self._group_by_input_shapes = group_by_input_shapes and bool(profiler_kwargs.get("record_shapes"))
        self._emit_nvtx, self._exports_traces = emit_nvtx, export_to_chrome
        self._row_limit, self._max_cycles = row_limit, max_cycles
        self._record_module_names = record_module_names
        self.profiler: Any = None
        self.function_events: EventList | None = None
        self._trainer: Any = None
        self._module: Any = None
        self._names: RegisterRecordFunction | None = None
        self._steps: _StepSchedule | None = None
        self._running = ExitStack()
        self._ranges: dict[str, record_function] = {}
        self._is_idle = False

    def attach(self, trainer: Any, module: nn.Module) -> None:
        """Note trainer and module of the stage that begins."""
        self._trainer, self._module = proxy(trainer), proxy(module)

    def setup(self, stage: str, local_rank: int | None = None, log_dir: str | None = None) -> None:
        """Begin a stage.

        Raises:
            InvalidArgumentError: If the folder is a URL, where torch cannot write.
        """
        super().setup(stage, local_rank, log_dir)
        check_local("dirpath", os.fspath(self.dirpath or ""), self)

    def start(self, action_name: str) -> None:
        """Begin a range; the first one starts torch's profiler."""
        if self.profiler is None:
            self._begin()
        if self._is_idle:
            return  # ranges would be in no trace
        if self._module is not None and self._names is None and self._record_module_names:
            self._names = self._running.enter_context(RegisterRecordFunction(self._module))
        if action_name not in self._ranges:
            self._ranges[action_name] = _opened(action_name)

    def stop(self, action_name: str) -> None:
        """End a range; that of a step advances the schedule."""
        opened = self._ranges.pop(action_name, None)
        if opened is not None:
            opened.__exit__(None, None, None)
        step = action_name.rpartition(".")[2]
        if step not in _BATCHES or self.profiler is None or self._emit_nvtx:
            return
        if self._is_idle and self._steps is not None and self._steps.is_over(step):
            return
        if "on_trace_ready" not in self._profiler_kwargs:
            self.profiler.on_trace_ready = partial(self._write, action_name)
        if self._steps is not None:
            is_short = self._schedule is _default_schedule and self._num_batches(step) < _NUM_STEPS
            if not is_short:
                self._steps.advance(step, is_sanity_check=getattr(self._trainer, "sanity_checking", False))
            elif self._stage != "fit" or step != "validation_step":
                warn_user(
                    f"{type(self).__name__}: there are not enough steps to properly record traces by the default "
                    f"schedule, which takes {_NUM_STEPS}. All are recorded. Pass `schedule` to choose."
                )
                self._steps, self.profiler.schedule = None, _record_all
        self.profiler.step()
        self._is_idle = self.profiler.current_action == ProfilerAction.NONE
        if self._is_idle and self._names is not None:
            self._names.remove()
            self._names = None

    def summary(self) -> str:
        """Stop torch's profiler, and return its table."""
        self._end()
        if not self.function_events:
            return ""
        averages = self.function_events.key_averages(group_by_input_shapes=self._group_by_input_shapes)  # type: ignore[no-untyped-call]
        table = averages.table(sort_by=self._sort_by_key, row_limit=self._row_limit, **self._table_kwargs)
        return self._stats_to_str({"records": table})

    def teardown(self, stage: str | None) -> None:
        """Stop torch's profiler."""
        self._end()
        self._trainer = self._module = None

    def _begin(self) -> None:
        if self._emit_nvtx:
            self._running.enter_context(torch.cuda.profiler.profile())
            started: Any = torch.autograd.profiler.emit_nvtx()  # type: ignore[no-untyped-call]
        else:
            self._steps = None if self._schedule is None else _StepSchedule(self._schedule, self._max_cycles)
            started = profile(schedule=self._steps, **self._profiler_kwargs)
        self.profiler = self._running.enter_context(started)
        self._is_idle = self._steps is not None and started.current_action == ProfilerAction.NONE

    def _end(self) -> None:
        while self._ranges:
            self._ranges.popitem()[1].__exit__(None, None, None)
        running, self.profiler, self._names = self.profiler, None, None
        self._running.close()
        if running is not None:
            has_events = not self._emit_nvtx and running.profiler is not None  # None if nothing was to be recorded
            self.function_events = running.events() if has_events else None

    def _num_batches(self, step: str) -> float:
        """Return the number of steps in the stage; inf without a trainer."""
        if self._trainer is None:
            return float("inf")
        number = getattr(self._trainer, _BATCHES[step])
        return float(sum(number) if isinstance(number, list) else number)

    def _write(self, action_name: str, ended: profile) -> None:
        """Write the files of a cycle; called by torch at its end."""
        if self.dirpath is None:
            warn_user(f"{type(self).__name__} writes no trace, as `dirpath` is None. Pass one.")
            return
        os.makedirs(self.dirpath, exist_ok=True)
        if self._exports_traces:
            worker = self._prepare_filename(action_name, extension="")
            tensorboard_trace_handler(os.fspath(self.dirpath), worker)(ended)
        if self._exports_flame_graph:
            path = os.path.join(self.dirpath, self._prepare_filename(action_name, extension=".stack"))
            ended.export_stacks(path, metric=self._metric)

    def __getstate__(self) -> dict[str, Any]:
        """Exclude run state from copies and pickles."""
        return {**vars(self), **dict.fromkeys(_RUN_STATE), "_running": ExitStack(), "_ranges": {}}


def _opened(action_name: str) -> record_function:
    opened = record_function(f"[pl][profile]{action_name}")
    opened.__enter__()  # type: ignore[no-untyped-call]
    return opened


def _record_all(step: int) -> ProfilerAction:
    return ProfilerAction.RECORD


class _StepSchedule:
    """A schedule that counts the steps of each stage by themselves.

    The stage whose cycle has begun goes on until it has saved; steps of others meanwhile belong to it.

    Args:
        of_steps: The schedule of a stage.
        max_cycles: Cycles of each stage; 0 has no limit.
    """

    def __init__(self, of_steps: Callable[[int], ProfilerAction], max_cycles: int) -> None:
        self._of_steps = of_steps
        self._max_cycles = max_cycles
        self._counts: Counter[str] = Counter()
        self._saved: Counter[str] = Counter()
        self._current: str | None = None
        self._action = of_steps(0)

    def is_over(self, step: str) -> bool:
        """Return whether a stage has had all its cycles."""
        return 0 < self._max_cycles <= self._saved[step]

    def advance(self, step: str, *, is_sanity_check: bool) -> None:
        """Count a step."""
        if is_sanity_check or self.is_over(step) or self._current not in (None, step):
            return
        self._counts[step] += 1
        self._action = self._of_steps(self._counts[step])
        self._current = step
        if self._action == ProfilerAction.RECORD_AND_SAVE:
            self._saved[step] += 1
            self._current = None

    def __call__(self, step: int) -> ProfilerAction:
        """Return the action of the step that begins; torch's own number of it is not used."""
        action = self._action
        if action == ProfilerAction.RECORD_AND_SAVE:
            self._action = ProfilerAction.NONE  # once
        return action


class RegisterRecordFunction:
    """Makes calls of a model's submodules ranges of torch's profiler, inside a `with` statement."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._handles: list[Any] = []
        self._ranges: dict[str, list[record_function]] = {}

    def __enter__(self) -> Self:
        """Register hooks on the submodules."""
        for path, module in self._model.named_modules():
            if path:
                name = f"[pl][module]{type(module).__module__}.{type(module).__name__}: {path}"
                self._handles.append(module.register_forward_pre_hook(partial(self._begin, name)))
                self._handles.append(module.register_forward_hook(partial(self._finish, name), always_call=True))
        return self

    def __exit__(self, *error: object) -> None:
        """Remove the hooks."""
        self.remove()

    def remove(self) -> None:
        """Remove the hooks."""
        while self._handles:
            self._handles.pop().remove()

    def _begin(self, name: str, module: nn.Module, inputs: Any) -> None:
        opened = record_function(name)
        opened.__enter__()  # type: ignore[no-untyped-call]
        self._ranges.setdefault(name, []).append(opened)

    def _finish(self, name: str, module: nn.Module, inputs: Any, outputs: Any) -> None:
        if self._ranges.get(name):
            self._ranges[name].pop().__exit__(None, None, None)
