"""Callback that times every hook of every receiver."""

import os
from collections import deque
from collections.abc import Callable
from typing import Any

import attrs

from camshaft.callbacks.arguments import check_file_name, check_number, usable_path
from camshaft.callbacks.profiling.timeline_recording import DATA_WAIT, EDGES, OPTIMIZER_STEP, Event, Recording
from camshaft.callbacks.profiling.timeline_report import VerbTimes, report_html, trace_json
from camshaft.hooks_core import Callback, Receiver
from camshaft.hooks_core.dispatch.implementation import ReceiverNames
from camshaft.hooks_core.protocols import DataSource
from camshaft.hooks_core.support.remote_files import join, replace_file


@attrs.define(slots=False, eq=False, repr=False)
class HookTimeline(Callback):
    """Times every call of every hook, and writes a trace and a report.

    At the end of each verb, also after an error, each rank writes two files: `<filename>-rank<N>.json`, to be opened at
    ui.perfetto.dev or chrome://tracing, and `<filename>-rank<N>.html`, a self-contained page with the time of each hook
    and receiver, percentiles of batches and their hooks, and the life cycle with its times. Further verbs with the same
    callback are added to the same files; sums and percentiles cover all of them. Rank 0 prints once where they are.

    Times are those of the host. On a GPU a step returns when its work is queued, so work shows up where the host waits
    for it. "Self" is the time of a call without the hooks that it encloses. The loop's own work (differentiation,
    `optimizer.step`) is shown as spans between the hooks, and so is the wait for training batches, which lies before a
    batch's first hook and counts among the parts of that batch.

    On a server's CPU, by `timeit`, timing adds 0.4 microseconds per call, and 5 to 10 per batch for spans and
    percentiles. A run without this callback has no overhead. Sums are exact; percentiles are nearest-rank, read from
    buckets, at most 0.8 % off. The trace has the newest `max_events` calls.

    Args:
        dirpath: Folder of the files, or its URL. None is the run's log folder: `trainer.log_dir`, or
            `default_root_dir`.
        filename: Prefix of the files' names.
        max_events: Largest number of calls, and of spans that are longer than a batch, in the trace.

    Attributes:
        json_path: Path of the latest trace, or None.
        html_path: Path of the latest report, or None.

    Raises:
        InvalidArgumentError: If `max_events` is less than 1, or `filename` is empty or has a folder in it.
    """

    only_observes = True
    after_module = frozenset({"teardown"})

    dirpath: str | os.PathLike[str] | None = None
    filename: str = "timeline"
    max_events: int = 50_000
    json_path: str | None = attrs.field(default=None, init=False)
    html_path: str | None = attrs.field(default=None, init=False)
    _verbs: dict[str, VerbTimes] = attrs.field(factory=dict, init=False)
    _recording: Recording | None = attrs.field(default=None, init=False)
    _is_resolved: bool = attrs.field(default=True, init=False)
    _names: ReceiverNames = attrs.field(factory=ReceiverNames, init=False)
    _watched: dict[int, tuple[Any, list[Any]]] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        check_number(self, least=1, max_events=self.max_events)
        check_file_name(self, self.filename)
        self.dirpath = None if self.dirpath is None else usable_path("dirpath", self.dirpath, self)
        self._events: deque[Event] = deque(maxlen=self.max_events)
        self._spans: deque[Event] = deque(maxlen=self.max_events)

    def wrap_call(
        self, hook: str, kind: Receiver, receiver: object, function: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return a timed version of a hook's function; called when a run resolves its hooks.

        Args:
            hook: The hook's name.
            kind: The kind of receiver.
            function: Its bound method.
        """
        if self._recording is None or self._is_resolved:
            self._release()
            self._recording, self._is_resolved = Recording(self._events, self._spans), False
        if receiver is self:
            is_edge = hook in EDGES or hook in ("on_exception", "teardown")
            does_nothing = getattr(type(self), hook) is _edge
            return self._recording.edge(hook, None if does_nothing else function) if is_edge else function
        return self._recording.timed(hook, self._names.name(receiver), kind, function)

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        """Note that the hooks are resolved: further calls of `wrap_call` are those of another run."""
        self._is_resolved = True

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        """Time the wait for training batches, if the trainer tells of it."""
        if self._recording is not None and isinstance(trainer, DataSource):
            trainer.watch_data(self._recording.beginning(DATA_WAIT), self._recording.ending(DATA_WAIT))

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Register step hooks on the optimizers."""
        for optimizer in getattr(trainer, "optimizers", ()):
            self._watch(optimizer)

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        """Register step hooks on an optimizer that `trainer.optimizers` does not have."""
        if id(optimizer) not in self._watched:
            self._watch(optimizer)

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        """Close the spans that an error left open, by being called."""

    def teardown(self, trainer: Any, module: Any, stage: str) -> None:
        """Write the files."""
        recording, self._recording = self._recording, None
        self._release()
        if recording is not None:
            duration_ns = recording.finish(stage)
            self._verbs.setdefault(stage, VerbTimes()).add(recording, duration_ns)
            self._write(trainer)

    def _watch(self, optimizer: Any) -> None:
        recording = self._recording
        if recording is None or id(optimizer) in self._watched:
            return
        handles: list[Any] = []
        self._watched[id(optimizer)] = optimizer, handles  # kept, so that no other object gets its id
        if hasattr(optimizer, "register_step_pre_hook"):
            name = self._names.name(optimizer)
            handles.append(optimizer.register_step_pre_hook(recording.beginning(OPTIMIZER_STEP, name)))
            handles.append(optimizer.register_step_post_hook(recording.ending(OPTIMIZER_STEP, name)))

    def _release(self) -> None:
        """Drop references to receivers and optimizers, so that a run can be garbage-collected."""
        for _, handles in self._watched.values():
            for handle in handles:
                handle.remove()
        self._watched.clear()
        self._names.clear()

    def _write(self, trainer: Any) -> None:
        rank = getattr(getattr(trainer, "strategy", None), "global_rank", 0)
        log_dir = getattr(trainer, "log_dir", None) or getattr(trainer, "default_root_dir", None) or os.getcwd()
        start = join(log_dir if self.dirpath is None else os.fspath(self.dirpath), f"{self.filename}-rank{rank}")
        events = [*self._spans, *self._events]
        num_all = sum(tally.num_calls for times in self._verbs.values() for tally in times.tallies.values())
        num_dropped = max(num_all - len(events), 0)
        texts = {"json": trace_json(events, rank, num_dropped), "html": report_html(self._verbs, rank)}
        is_new = self.html_path != f"{start}.html"
        for kind, text in texts.items():
            with replace_file(f"{start}.{kind}") as fresh:
                fresh.write_text(text, encoding="utf-8")
            setattr(self, f"{kind}_path", f"{start}.{kind}")
        if is_new and rank == 0:
            print(f"HookTimeline wrote {self.html_path}, and a trace beside it.", flush=True)


def _edge(self: HookTimeline, *arguments: Any) -> None:
    """Mark the beginning or end of a span: since it is implemented, the hook is called."""


for _name in EDGES:
    if _name not in vars(HookTimeline):
        setattr(HookTimeline, _name, _edge)
