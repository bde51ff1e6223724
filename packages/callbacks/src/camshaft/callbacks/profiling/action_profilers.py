"""Profilers of named actions: the base class, one that only times, one on cProfile."""

import cProfile
import io
import math
import os
import pstats
import re
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from camshaft.callbacks.arguments import InvalidArgumentError, check_number, usable_path
from camshaft.hooks_core.support.remote_files import edit_file, join, replace_file

_NOT_IN_FILE_NAMES = re.compile(r'[\\/:*?"<>|\n\r\t_]+')

_NEVER_STARTED = "Attempting to stop recording an action ({}) which was never started. Start it first."


@attrs.define(slots=False, eq=False, repr=False)
class ActionProfiler(ABC):
    """Base class of profilers: define `start` and `stop`, and `summary` for the report.

    A trainer that gets it as `profiler` calls these around each hook of each receiver, and `describe` at the end of
    each verb. Code of one's own may measure parts by `with trainer.profiler.profile("name"):`.

    Args:
        dirpath: Folder of the report, or its URL; None is the run's log folder.
        filename: Name of its file, without extension: the report is appended to `<verb>-<filename>.txt`, with several
            processes `<verb>-<filename>-<local rank>.txt`. None prints it, on the first process of each machine.
    """

    dirpath: str | os.PathLike[str] | None = None
    filename: str | None = None
    _stage: str | None = attrs.field(default=None, init=False)
    _local_rank: int | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        if self.dirpath is not None:
            usable = usable_path("dirpath", self.dirpath, self)
            self.dirpath = usable if isinstance(self.dirpath, str) else Path(usable)

    @abstractmethod
    def start(self, action_name: str) -> None:
        """Begin to measure an action."""

    @abstractmethod
    def stop(self, action_name: str) -> None:
        """Note that an action has ended."""

    @contextmanager
    def profile(self, action_name: str) -> Iterator[str]:
        """Measure the body of a `with` statement.

        Args:
            action_name: Name of the action, under which the report lists it.

        Returns:
            The context, which gives the name.
        """
        try:
            self.start(action_name)
            yield action_name
        finally:
            self.stop(action_name)

    def summary(self) -> str:
        """Return the report; "" for none."""
        return ""

    def describe(self) -> None:
        """Write or print the report, and end the stage."""
        summary = self.summary()
        if summary and self.filename and self.dirpath:
            with (
                edit_file(join(os.fspath(self.dirpath), self._prepare_filename())) as path,
                path.open("a", encoding="utf-8") as file,
            ):
                file.write(summary)
        elif summary and self.local_rank == 0:
            print(summary, flush=True)
        self.teardown(self._stage)

    def setup(self, stage: str, local_rank: int | None = None, log_dir: str | None = None) -> None:
        """Begin a stage.

        Args:
            stage: The verb.
            local_rank: Index of this process on its machine; None if there is one process.
            log_dir: Folder of the report unless `dirpath` is given.
        """
        self._stage = stage
        self._local_rank = local_rank
        self.dirpath = self.dirpath or log_dir

    def teardown(self, stage: str | None) -> None:  # noqa: B027
        """End a stage. Does nothing by default."""

    @property
    def local_rank(self) -> int:
        """Index of this process on its machine."""
        return self._local_rank or 0

    def _prepare_filename(self, action_name: str | None = None, extension: str = ".txt") -> str:
        """Return the name of a file of the stage, without characters that file systems refuse."""
        parts = [self._stage, self.filename or None, self._local_rank, action_name]
        name = "-".join(str(part) for part in parts if part is not None)
        return (_NOT_IN_FILE_NAMES.sub("_", name).strip() or "profile") + extension

    def _stats_to_str(self, stats: Mapping[str, str]) -> str:
        """Return a report with a section per action."""
        rank = "" if self._local_rank is None else f" rank: {self._local_rank}"
        lines = [self._title()]
        for action, text in stats.items():
            lines += [f"Profile stats for: {action}{rank}", text]
        return os.linesep.join(lines)

    def _title(self) -> str:
        return f"{'' if self._stage is None else f'{self._stage.upper()} '}Profiler Report"


class PassThroughProfiler(ActionProfiler):
    """Measures nothing; a trainer's `profiler` if it got none."""

    def start(self, action_name: str) -> None:
        """Do nothing."""

    def stop(self, action_name: str) -> None:
        """Do nothing."""


@attrs.define(slots=False, eq=False, repr=False)
class SimpleProfiler(ActionProfiler):
    """Times each action, and reports means and sums. It keeps the duration of each call.

    Args:
        dirpath, filename: As in `ActionProfiler`.
        extended: Whether the report has numbers of calls and shares of the whole time.

    Attributes:
        recorded_durations: Durations in seconds, by action.
        current_actions: When the actions that run now began, by action.
        start_time: When the profiler was made.
    """

    extended: bool = True
    current_actions: dict[str, float] = attrs.field(factory=dict, init=False)
    recorded_durations: dict[str, list[float]] = attrs.field(factory=partial(defaultdict, list), init=False)
    start_time: float = attrs.field(factory=time.perf_counter, init=False)

    def start(self, action_name: str) -> None:
        """Begin to time an action.

        Raises:
            ValueError: If it runs already.
        """
        if action_name in self.current_actions:
            raise ValueError(f"Attempted to start {action_name}, which has already started. Stop it first.")
        self.current_actions[action_name] = time.perf_counter()

    def stop(self, action_name: str) -> None:
        """Note the duration of an action.

        Raises:
            ValueError: If it does not run.
        """
        end = time.perf_counter()
        if action_name not in self.current_actions:
            raise ValueError(_NEVER_STARTED.format(action_name))
        self.recorded_durations[action_name].append(end - self.current_actions.pop(action_name))

    def summary(self) -> str:
        """Return the table of the actions, slowest first."""
        whole = time.perf_counter() - self.start_time
        durations = {name: each for name, each in self.recorded_durations.items() if each}
        found = [(name, len(each), math.fsum(each)) for name, each in durations.items()]
        found.sort(key=lambda one: one[2] if self.extended else one[2] / one[1], reverse=True)
        columns: tuple[str, ...] = ("Action", "Mean duration (s)", "Total time (s)")
        rows: list[tuple[str, ...]] = [(name, f"{total / num:.5}", f"{total:.5}") for name, num, total in found]
        if self.extended:
            columns = ("Action", "Mean duration (s)", "Num calls", "Total time (s)", "Percentage %")
            shares = [(f"{num}", f"{100 * total / whole:.5}") for _, num, total in found]
            rows = [(*row[:2], num, row[2], share) for row, (num, share) in zip(rows, shares, strict=True)]
            rows.insert(0, ("Total", "-", f"{sum(num for _, num, _ in found)}", f"{whole:.5}", "100 %"))
        table = _table(columns, rows, num_heads=1 if self.extended else 0) if found else ""
        return f"{self._title()}{os.linesep}{table}{os.linesep}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], num_heads: int) -> str:
    """Return a table; `num_heads` first rows are set apart from the others."""
    width = max(len(row[0]) for row in (*rows[num_heads:], rows[0]))

    def line(cells: Sequence[str]) -> str:
        return f"{os.linesep}|  {cells[0]:<{width}s}\t|" + "".join(f"  {cell:<15}\t|" for cell in cells[1:])

    rule = f"{os.linesep}{'-' * len(line(head).expandtabs())}"
    parts = [rule, line(head), rule]
    for row in rows[:num_heads]:
        parts += [line(row), rule]
    return "".join([*parts, *map(line, rows[num_heads:]), rule])


@attrs.define(slots=False, eq=False, repr=False)
class AdvancedProfiler(ActionProfiler):
    """Profiles the Python functions of each action with cProfile, one report per action.

    cProfile cannot run inside itself: while an action runs inside of another, only the inner one is measured, and the
    outer one goes on afterwards.

    Args:
        dirpath, filename: As in `ActionProfiler`.
        line_count_restriction: Functions that are listed per action: an int is a number, a float from 0 to 1 a share.
        dump_stats: Whether to write what cProfile measured, for each action, to `<verb>-<action>.prof` in `dirpath`.

    Attributes:
        profiled_actions: What was measured since the stage began, by action.

    Raises:
        InvalidArgumentError: If `line_count_restriction` is negative.
    """

    line_count_restriction: float = 1.0
    dump_stats: bool = False
    profiled_actions: dict[str, cProfile.Profile] = attrs.field(
        factory=partial(defaultdict, cProfile.Profile), init=False
    )
    _running: list[str] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        check_number(self, least=0, line_count_restriction=self.line_count_restriction)

    def start(self, action_name: str) -> None:
        """Begin to profile an action, in place of the one that it runs in."""
        if self._running:
            self.profiled_actions[self._running[-1]].disable()
        self._running.append(action_name)
        self.profiled_actions[action_name].enable()

    def stop(self, action_name: str) -> None:
        """End an action; the one that it ran in goes on.

        Raises:
            ValueError: If it does not run.
        """
        if action_name not in self._running:
            raise ValueError(_NEVER_STARTED.format(action_name))
        self.profiled_actions[self._running[-1]].disable()
        while self._running.pop() != action_name:
            pass
        if self._running:
            self.profiled_actions[self._running[-1]].enable()

    def summary(self) -> str:
        """Return the slowest functions of each action."""
        found = {}
        for action, profiled in self.profiled_actions.items():
            profiled.create_stats()
            if self.dump_stats:
                self._dump(action, profiled)
            if not profiled.stats:
                continue
            text = io.StringIO()
            stats = pstats.Stats(profiled, stream=text).strip_dirs().sort_stats("cumulative")
            stats.print_stats(self.line_count_restriction)
            found[action] = text.getvalue()
        return self._stats_to_str(found)

    def teardown(self, stage: str | None) -> None:
        """Forget what was measured."""
        for profiled in self.profiled_actions.values():
            profiled.disable()
        self.profiled_actions.clear()
        self._running.clear()

    def _dump(self, action: str, profiled: cProfile.Profile) -> None:
        if not self.dirpath:
            rule = "set when `dump_stats` is true"
            raise InvalidArgumentError("dirpath", rule, self.dirpath, self, "Pass `dirpath`.")
        with replace_file(join(os.fspath(self.dirpath), self._prepare_filename(action, ".prof"))) as path:
            profiled.dump_stats(path)

    def __getstate__(self) -> dict[str, Any]:
        """Exclude measurements, which cannot be pickled."""
        return {**vars(self), "profiled_actions": defaultdict(cProfile.Profile), "_running": []}
