"""The files of one cycle of a profiler: traces, and a table of operators."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path
from typing import Literal

from torch.profiler import profile

Export = Literal["chrome", "tensorboard", "both"]


def write_traces(ended: profile, folder: Path, start: str, number: int, export: Export) -> list[str]:
    """Write a trace where Perfetto, TensorBoard's plugin, or both look for it.

    Args:
        ended: What was profiled.
        folder: Where to.
        start: How the files' names begin.
        number: Which of those that begin so it is.
        export: For whom.

    Returns:
        The files.
    """
    paths = []
    if export != "tensorboard":
        paths.append(folder / f"{start}-{number}.json")
    if export != "chrome":
        # as `torch.profiler.tensorboard_trace_handler` calls it
        paths.append(folder / f"{start}.{time.time_ns()}.pt.trace.json")
    ended.export_chrome_trace(str(paths[0]))  # torch saves a trace once only
    for path in paths[1:]:
        shutil.copyfile(paths[0], path)
    return [str(path) for path in paths]


def table_of(ended: profile, sort_by: str | None, num_rows: int, *, by_shape: bool) -> str:
    """The operators that took most, as text.

    Args:
        ended: What was profiled.
        sort_by: A column of `torch.profiler`; None: the time on the accelerator if one was profiled, else on the CPU.
        num_rows: How many.
        by_shape: Whether calls with inputs of other shapes are rows of their own.
    """
    if sort_by is None:
        sort_by = "self_device_time_total" if ended.use_device else "self_cpu_time_total"
    return str(ended.key_averages(group_by_input_shape=by_shape).table(sort_by=sort_by, row_limit=num_rows))


def next_number(folder: Path, start: str) -> int:
    """The number after the highest that a process's files of a stage have."""
    matches = (re.fullmatch(rf"{re.escape(start)}-(\d+)\.(json|txt)", path.name) for path in folder.iterdir())
    return max((int(match[1]) for match in matches if match), default=-1) + 1
