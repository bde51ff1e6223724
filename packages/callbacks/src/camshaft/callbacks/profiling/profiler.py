"""Callback that profiles batches with torch.profiler."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from torch.profiler import ProfilerActivity, profile, record_function, schedule

from camshaft.callbacks.arguments import STAGES, InvalidArgumentError, check_local, check_number, check_one_of
from camshaft.hooks_core import Callback
from camshaft.hooks_core.messages import warn_user
from camshaft.hooks_core.remote_files import local_path

if TYPE_CHECKING:
    from camshaft.hooks_core.protocols import TrainerProtocol


Export = Literal["chrome", "tensorboard", "both"]
"""Kind of trace files."""


class Profiler(Callback):
    """Runs `torch.profiler.profile` over some batches of a stage, and writes traces and tables.

    A step of the schedule is a batch: each cycle skips `wait` batches, profiles and discards `warmup`, and records
    `active`; after `repeat` cycles the profiler is stopped. Each cycle writes, for each rank, the files

    - `<stage>-rank<R>-<N>.json`: a trace for Perfetto or chrome://tracing (export "chrome"),
    - `<stage>-rank<R>.<time>.pt.trace.json`: the same for TensorBoard's profiler plugin ("tensorboard"),
    - `<stage>-rank<R>-<N>.txt`: a table of the slowest operators, which rank 0 prints too.

    N continues the numbers of existing files. Beside torch's own ranges (operators, kernels, `ProfilerStep#`,
    `Optimizer.step#`, the data loader) a trace has "train_batch", "backward", "validation", "validate_batch",
    "test_batch" and "predict_batch", each from the hook at its start to the hook at its end.

    A stage is profiled once per verb. If training is profiled, validation batches within fit belong to the training
    batch before them; if only "validate" is, the first validation after the sanity check is profiled. After an
    exception the profiler is stopped, and the open cycle is written.

    Args:
        dirpath: Folder of the files. None: `trainer.log_dir`, or `trainer.default_root_dir` if there is none.
        wait: Number of batches to skip in each cycle.
        warmup: Number of batches to profile and discard in each cycle; with 0 the trace shows the profiler's start-up.
        active: Number of batches to record in each cycle.
        repeat: Number of cycles; 0 repeats until the stage ends.
        activities: Activities to profile; None: all that this machine supports.
        record_shapes: Whether to record the shapes of operators' inputs.
        profile_memory: Whether to record allocations.
        with_stack: Whether to record the source lines of operators.
        with_flops: Whether to estimate the FLOPs of matrix products and convolutions.
        export: Kind of trace files.
        stages: Stages to profile.
        table_rows: Rows of the table; 0 writes none.
        sort_by: Column of `torch.profiler` to sort the table by; None: self time on the accelerator if one is profiled,
            else on the CPU.

    Attributes:
        trace_paths: Trace files that this process has written.

    Raises:
        InvalidArgumentError: If an argument is out of range; at the beginning of a verb, if the trainer has another
            `Profiler`: torch can run one at a time.
    """

    only_observes = True

    def __init__(
        self,
        dirpath: str | os.PathLike[str] | None = None,
        wait: int = 1,
        warmup: int = 1,
        active: int = 3,
        repeat: int = 1,
        activities: Iterable[ProfilerActivity] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        export: Export = "chrome",
        stages: Sequence[str] = ("train",),
        table_rows: int = 20,
        sort_by: str | None = None,
    ) -> None:
        where = type(self).__name__
        check_number(where, least=0, wait=wait, warmup=warmup, repeat=repeat, table_rows=table_rows)
        check_number(where, least=1, active=active)
        check_one_of(where, get_args(Export), export=export)
        self.stages = (stages,) if isinstance(stages, str) else tuple(stages)
        if not self.stages or not set(self.stages) <= set(STAGES):
            rule = f"some of {', '.join(STAGES)}"
            raise InvalidArgumentError("stages", rule, self.stages, where, "Name some of these.")
        self.dirpath = None if dirpath is None else local_path(dirpath)
        self.wait, self.warmup, self.active, self.repeat = wait, warmup, active, repeat
        self.activities = None if activities is None else list(activities)
        self.record_shapes, self.profile_memory = record_shapes, profile_memory
        self.with_stack, self.with_flops = with_stack, with_flops
        self.export = export
        self.table_rows = table_rows
        self.sort_by = sort_by
        self.trace_paths: list[str] = []
        self._profile: profile | None = None
        self._stage = ""  # which is profiled
        self._evaluated = ""  # that began last
        self._profiled: set[str] = set()
        self._ranges: list[record_function] = []
        self._num_steps = self._num_written = 0
        self._discards = False
        self._trainer: TrainerProtocol | None = None

    def setup(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Reset, and refuse a second profiler, and a folder where torch cannot write."""
        check_local("dirpath", self.dirpath or trainer.log_dir or trainer.default_root_dir, type(self).__name__)
        if sum(isinstance(callback, Profiler) for callback in trainer.callbacks) > 1:
            rule, action = "with one Profiler at most", "Name all stages in one."
            raise InvalidArgumentError("callbacks", rule, trainer.callbacks, type(self).__name__, action)
        self._profiled.clear()

    def on_train_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Start, if training is profiled."""
        self._begin("train", trainer)

    def on_train_batch_start(self, trainer: TrainerProtocol, module: Any, batch: Any, batch_idx: int) -> None:
        """Open a batch's range."""
        if self._profile is not None:
            self._close("train_batch")  # of a batch whose start hook skipped the rest of the epoch
            self._open("train_batch")

    def on_before_backward(self, trainer: TrainerProtocol, module: Any, loss: Any) -> None:
        """Open a backward's range."""
        if self._profile is not None:
            self._open("backward")

    def on_after_backward(self, trainer: TrainerProtocol, module: Any) -> None:
        """Close a backward's range."""
        if self._profile is not None:
            self._close("backward")

    def on_train_batch_end(
        self, trainer: TrainerProtocol, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Close a batch's range, and advance the schedule."""
        if self._profile is not None:
            self._end_batch("train")

    def on_train_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Write the open cycle."""
        self._end("train")

    def on_validation_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Open validation's range, or start, if validation is profiled and training is not."""
        if not trainer.sanity_checking:
            self._begin("validate", trainer)
            if self._profile is not None:
                self._open("validation")

    def on_validation_batch_start(
        self, trainer: TrainerProtocol, module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Open a batch's range."""
        if self._profile is not None:
            self._open(f"{self._evaluated}_batch")

    def on_validation_batch_end(
        self, trainer: TrainerProtocol, module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Close a batch's range."""
        if self._profile is not None:
            self._end_batch(self._evaluated)

    def on_validation_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Close validation's range."""
        if self._profile is not None:
            self._close("validation")
            self._end("validate")

    def on_test_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Start, if test is profiled."""
        self._begin("test", trainer)

    on_test_batch_start = on_validation_batch_start
    on_test_batch_end = on_validation_batch_end

    def on_test_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Write the open cycle."""
        self._end("test")

    def on_predict_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Start, if prediction is profiled."""
        self._begin("predict", trainer)

    on_predict_batch_start = on_validation_batch_start
    on_predict_batch_end = on_validation_batch_end

    def on_predict_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Write the open cycle."""
        self._end("predict")

    def on_exception(self, trainer: TrainerProtocol, module: Any, exception: BaseException) -> None:
        """Stop profiling, and write the open cycle."""
        self._stop()

    def teardown(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Stop profiling."""
        self._stop()
        self._trainer = None

    def _begin(self, stage: str, trainer: TrainerProtocol) -> None:
        self._evaluated = stage
        if stage not in self.stages or stage in self._profiled or self._profile is not None:
            return
        self._profiled.add(stage)
        self._stage, self._trainer = stage, trainer
        self._num_steps = self._num_written = 0
        started = profile(
            activities=self.activities,
            schedule=schedule(wait=self.wait, warmup=self.warmup, active=self.active, repeat=self.repeat),
            on_trace_ready=self._write,
            record_shapes=self.record_shapes,
            profile_memory=self.profile_memory,
            with_stack=self.with_stack,
            with_flops=self.with_flops,
        )
        started.__enter__()  # type: ignore[no-untyped-call]
        self._profile = started

    def _open(self, name: str) -> None:
        opened = record_function(name)
        opened.__enter__()  # type: ignore[no-untyped-call]
        self._ranges.append(opened)

    def _close(self, name: str) -> None:
        """Close the innermost range, if it has this name: profiling may have started inside of it."""
        if self._ranges and self._ranges[-1].name == name:
            self._ranges.pop().__exit__(None, None, None)

    def _end_batch(self, stage: str) -> None:
        self._close(f"{stage}_batch")
        if stage == self._stage and self._profile is not None:
            self._num_steps += 1
            cycle = self.wait + self.warmup + self.active
            if self.repeat and self._num_steps == self.repeat * cycle:
                self._stop()  # after the last cycle, so that further batches cost nothing
            else:
                self._profile.step()

    def _end(self, stage: str) -> None:
        if self._profile is None or stage != self._stage:
            return
        cycle = self.wait + self.warmup + self.active
        self._discards = self._num_steps % cycle <= self.wait + self.warmup  # the last cycle has recorded no batch
        self._stop()
        self._discards = False
        if not self._num_written:
            warn_user(
                f"`wait` + `warmup` must be less than the number of batches of the stage {stage!r}, but got "
                f"{self.wait + self.warmup} for {self._num_steps} in {type(self).__name__}. No trace was written. Pass "
                "smaller numbers."
            )

    def _stop(self) -> None:
        while self._ranges:
            self._ranges.pop().__exit__(None, None, None)
        running, self._profile = self._profile, None
        if running is not None:
            running.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def _write(self, ended: profile) -> None:
        """Write the files of a cycle; called by torch at its end."""
        trainer = self._trainer
        assert trainer is not None
        if self._discards:
            return
        folder = Path(self.dirpath or trainer.log_dir or trainer.default_root_dir)
        folder.mkdir(parents=True, exist_ok=True)
        start = f"{self._stage}-rank{trainer.strategy.global_rank}"
        number = next_number(folder, start)
        self._num_written += 1
        self.trace_paths += write_traces(ended, folder, start, number, self.export)
        if self.table_rows:
            sort_by = self.sort_by or ("self_device_time_total" if ended.use_device else "self_cpu_time_total")
            averages = ended.key_averages(group_by_input_shape=self.record_shapes)
            table = averages.table(sort_by=sort_by, row_limit=self.table_rows)
            (folder / f"{start}-{number}.txt").write_text(table, encoding="utf-8")
            if trainer.is_global_zero:
                print(table, flush=True)


def write_traces(ended: profile, folder: Path, start: str, number: int, export: Export) -> list[str]:
    """Write a trace where Perfetto, TensorBoard's plugin, or both look for it.

    Args:
        ended: The finished profile.
        folder: Folder of the files.
        start: Prefix of the files' names.
        number: Number in the files' names.
        export: Kind of trace files.

    Returns:
        Paths of the files.
    """
    paths = []
    if export != "tensorboard":
        paths.append(folder / f"{start}-{number}.json")
    if export != "chrome":
        # the name that `torch.profiler.tensorboard_trace_handler` uses
        paths.append(folder / f"{start}.{time.time_ns()}.pt.trace.json")
    ended.export_chrome_trace(str(paths[0]))  # torch can export a trace only once
    for path in paths[1:]:
        shutil.copyfile(paths[0], path)
    return [str(path) for path in paths]


def next_number(folder: Path, start: str) -> int:
    """Return the number after the highest in the files with a prefix."""
    matches = (re.fullmatch(rf"{re.escape(start)}-(\d+)\.(json|txt)", path.name) for path in folder.iterdir())
    return max((int(match[1]) for match in matches if match), default=-1) + 1
