"""How long each hook of each receiver takes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.callbacks.profiling.timeline_recording import EDGES, OPTIMIZER_STEP, EventLog, Recording
from camshaft.callbacks.profiling.timeline_report import VerbTimes, report_html, trace_json
from camshaft.hooks_core import Callback, Receiver
from camshaft.hooks_core.durable_paths import written_whole
from camshaft.hooks_core.receiver_names import ReceiverNames


class HookTimeline(Callback):
    """Times every call of every hook, and writes a trace and a report about it.

    At the end of each verb, also after an error, each process writes two files: `<filename>-rank<N>.json`, to be opened
    at ui.perfetto.dev or chrome://tracing, and `<filename>-rank<N>.html`, a page that needs nothing else: the time of
    each hook and receiver, percentiles of the batches and of their hooks, and the life cycle with its times. Verbs that
    run one after another with the same callback add to the same files; sums and percentiles are of all of them.

    Times are those of the host. On a GPU a step returns when its work is queued, so work shows up where the host waits
    for it. "Self" is the time of a call without the hooks that it encloses. What the loop does itself (differentiation,
    `optimizer.step`, waiting for batches) is shown as spans between the hooks.

    On a server's CPU `timeit` has a timed call at 0.4 microseconds more than one that is not, and a batch at 5 to 10
    more for its spans and percentiles. A run without this callback calls its hooks as if it did not exist. Sums are
    exact; percentiles are nearest-rank ones read from buckets, at most 0.8 % off. Of the calls themselves the newest
    `max_events` are kept.

    Args:
        dirpath: Folder of the files. None takes the run's log folder: `trainer.log_dir`, or `default_root_dir`.
        filename: How the files' names begin.
        max_events: How many calls, and how many spans that are longer than a batch, the trace holds at most.

    Attributes:
        json_path: The trace that was written last, or None.
        html_path: The report that was written last, or None.

    Raises:
        InvalidArgumentError: If `max_events` is less than 1, or `filename` is empty or has a folder in it.
    """

    after_module = frozenset({"teardown"})

    def __init__(
        self,
        dirpath: str | os.PathLike[str] | None = None,
        filename: str = "timeline",
        max_events: int = 50_000,
    ) -> None:
        where = type(self).__name__
        if max_events < 1:
            raise InvalidArgumentError("max_events", "1 or more", max_events, where, "Pass how many calls to keep.")
        if not filename or os.path.basename(filename) != filename:
            action = "Pass the folder as `dirpath`."
            raise InvalidArgumentError("filename", "a file's name without a folder", filename, where, action)
        self.dirpath = None if dirpath is None else os.fspath(dirpath)
        self.filename = filename
        self.max_events = max_events
        self.json_path: str | None = None
        self.html_path: str | None = None
        self._verbs: dict[str, VerbTimes] = {}
        self._events, self._spans = EventLog(max_events), EventLog(max_events)
        self._recording: Recording | None = None
        self._is_resolved = True
        self._names = ReceiverNames()
        self._watched: dict[int, tuple[Any, list[Any]]] = {}

    def wrap_call(
        self, hook: str, kind: Receiver, receiver: object, function: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Have a call timed; asked when a run resolves its hooks."""
        if self._recording is None or self._is_resolved:
            self._let_go()
            self._recording, self._is_resolved = Recording(self._events, self._spans), False
        if receiver is self:
            is_edge = hook in EDGES or hook in ("on_exception", "teardown")
            does_nothing = getattr(type(self), hook) is _edge
            return self._recording.edge(hook, None if does_nothing else function) if is_edge else function
        return self._recording.timed(hook, self._names.name(receiver), kind, function)

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        """The hooks are resolved: who asks again begins another run."""
        self._is_resolved = True

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Let the optimizers say when they step."""
        for optimizer in getattr(trainer, "optimizers", ()):
            self._watch(optimizer)

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        """Watch an optimizer of which the trainer does not tell."""
        if id(optimizer) not in self._watched:
            self._watch(optimizer)

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        """What the error left open ends here."""

    def teardown(self, trainer: Any, module: Any, stage: str) -> None:
        """Write the files."""
        recording, self._recording = self._recording, None
        self._let_go()
        if recording is not None:
            duration_ns = recording.finish(stage)
            self._verbs.setdefault(stage, VerbTimes()).add(recording, duration_ns)
            self._write(trainer)

    def _watch(self, optimizer: Any) -> None:
        recording = self._recording
        if recording is None or id(optimizer) in self._watched:
            return
        handles: list[Any] = []
        self._watched[id(optimizer)] = optimizer, handles  # held, so that no other one gets its id
        if hasattr(optimizer, "register_step_pre_hook"):
            name = self._names.name(optimizer)
            handles.append(optimizer.register_step_pre_hook(recording.beginning(OPTIMIZER_STEP, name)))
            handles.append(optimizer.register_step_post_hook(recording.ending(OPTIMIZER_STEP, name)))

    def _let_go(self) -> None:
        """Forget the receivers, so that nothing of a run is kept alive."""
        for _, handles in self._watched.values():
            for handle in handles:
                handle.remove()
        self._watched.clear()
        self._names.clear()

    def _write(self, trainer: Any) -> None:
        rank = getattr(getattr(trainer, "strategy", None), "global_rank", 0)
        log_dir = getattr(trainer, "log_dir", None) or getattr(trainer, "default_root_dir", None) or os.getcwd()
        folder = Path(self.dirpath if self.dirpath is not None else log_dir)
        folder.mkdir(parents=True, exist_ok=True)
        events = [*self._spans, *self._events]
        num_all = sum(tally.num_calls for times in self._verbs.values() for tally in times.tallies.values())
        num_dropped = max(num_all - len(events), 0)
        path = folder / f"{self.filename}-rank{rank}.json"
        with written_whole(path) as fresh:
            fresh.write_text(trace_json(events, rank, num_dropped), encoding="utf-8")
        self.json_path = str(path)
        path = path.with_suffix(".html")
        with written_whole(path) as fresh:
            fresh.write_text(report_html(self._verbs, rank), encoding="utf-8")
        self.html_path = str(path)


def _edge(self: HookTimeline, *arguments: Any) -> None:
    """Where a span begins or ends: as it is implemented, the hook is called and the moment is seen."""


for _name in {*EDGES} - {*vars(HookTimeline)}:
    setattr(HookTimeline, _name, _edge)
