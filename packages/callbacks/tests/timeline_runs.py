"""A loop that calls the hooks of a fit, parts of it whose times are known, and readers of what is written."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from camshaft.callbacks.profiling import timeline_recording
from camshaft.callbacks.profiling.hook_timeline import HookTimeline
from camshaft.hooks_core import Callback, ModelHooks, resolve


class Clock:
    """A clock that moves only when it is told to."""

    def __init__(self, monkeypatch: Any) -> None:
        self.now_ns = 1_000_000
        monkeypatch.setattr(timeline_recording, "perf_counter_ns", lambda: self.now_ns)

    def spend(self, microseconds: int) -> None:
        self.now_ns += 1000 * microseconds


class Net(ModelHooks):
    def __init__(self, clock: Clock, fails_at: int | None = None) -> None:
        self.clock, self.fails_at = clock, fails_at

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.clock.spend(30 + batch_idx)
        if batch_idx == self.fails_at:
            raise ValueError("too much")
        return 1.0

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.clock.spend(20)

    def on_train_epoch_end(self) -> None:
        self.clock.spend(2)


class Slow(Callback):
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> int | None:
        self.clock.spend(5)
        return -1 if batch == "skip" else None

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.clock.spend(7)


class Optimizer:
    """Says when it steps, as torch's do."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.before: list[Any] = []
        self.after: list[Any] = []

    def register_step_pre_hook(self, hook: Any) -> Any:
        return _Handle(self.before, hook)

    def register_step_post_hook(self, hook: Any) -> Any:
        return _Handle(self.after, hook)

    def step(self) -> None:
        for hook in self.before:
            hook(self, (), {})
        self.clock.spend(40)
        for hook in self.after:
            hook(self, (), {})


class _Handle:
    def __init__(self, hooks: list[Any], hook: Any) -> None:
        self.hooks, self.hook = hooks, hook
        hooks.append(hook)

    def remove(self) -> None:
        self.hooks.remove(self.hook)


def fit(
    trainer: Any,
    module: Net,
    optimizer: Optimizer,
    *,
    num_epochs: int = 2,
    batches: tuple[str, ...] = ("a", "b", "c"),
) -> None:
    """The life cycle of fit, with known times between the hooks."""
    clock = module.clock
    hooks: Any = resolve(callbacks=trainer.callbacks, module=module, trainer=trainer)
    try:
        hooks.setup("fit")
        hooks.on_fit_start()
        hooks.on_sanity_check_start()
        validate_once(hooks, 1)
        hooks.on_sanity_check_end()
        hooks.on_train_start()
        for _ in range(num_epochs):
            hooks.on_train_epoch_start()
            for batch_idx, batch in enumerate(batches):
                clock.spend(100)  # waits for the batch
                if hooks.on_train_batch_start(batch, batch_idx) == -1:
                    break
                loss = hooks.training_step(batch, batch_idx)
                hooks.on_before_backward(loss)
                clock.spend(50)
                hooks.on_after_backward()
                hooks.on_before_optimizer_step(optimizer)
                optimizer.step()
                hooks.on_train_batch_end(loss, batch, batch_idx)
            validate_once(hooks, 2)
            hooks.on_train_epoch_end()
        hooks.on_train_end()
    except BaseException as error:
        hooks.on_exception(error)
        raise
    finally:
        hooks.teardown("fit")


def validate_once(hooks: Any, num_batches: int) -> None:
    """One pass over validation batches."""
    hooks.on_validation_start()
    hooks.on_validation_epoch_start()
    for batch_idx in range(num_batches):
        hooks.on_validation_batch_start(None, batch_idx, 0)
        hooks.validation_step(None, batch_idx, 0)
        hooks.on_validation_batch_end(None, None, batch_idx, 0)
    hooks.on_validation_epoch_end()
    hooks.on_validation_end()


def read_trace(timeline: HookTimeline) -> list[dict[str, Any]]:
    """The complete events of the written trace, after its form is checked: nested, in order, in microseconds."""
    content = json.loads(Path(str(timeline.json_path)).read_text(encoding="utf-8"))
    events = content["traceEvents"]
    assert {event["ph"] for event in events} <= {"X", "M"}
    assert {event["name"] for event in events if event["ph"] == "M"} >= {"process_name", "thread_name"}
    complete: list[dict[str, Any]] = [event for event in events if event["ph"] == "X"]
    under_way: list[int] = []
    latest_ns = 0
    for event in complete:
        assert event.keys() >= {"name", "cat", "ph", "ts", "dur", "pid", "tid"}
        start_ns, end_ns = round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000)
        assert latest_ns <= start_ns <= end_ns
        latest_ns = start_ns
        while under_way and under_way[-1] <= start_ns and end_ns > under_way[-1]:
            under_way.pop()
        assert not under_way or end_ns <= under_way[-1], f"{event['name']} ends after what encloses it"
        under_way.append(end_ns)
    return complete


_DOM = """
const parts = {}, part = id => parts[id] ??= { innerHTML: "" };
part("data").textContent = require("fs").readFileSync(0, "utf8");
global.document = { getElementById: part, querySelector: part, querySelectorAll: () => [] };
global.location = {};
"""


def page_of(timeline: HookTimeline) -> Page:
    """What a browser shows of the written page; skips the test where there is no node to run its script."""
    text = Path(str(timeline.html_path)).read_text(encoding="utf-8")
    assert "http" not in text and "url(" not in text and "@import" not in text
    node = shutil.which("node")
    if node is None:
        pytest.skip("node runs the page's script")
    head, data, script = re.split(r"<script[^>]*>", text)
    script = _DOM + script.partition("</script>")[0] + "console.log(parts.nav.innerHTML + parts.verbs.innerHTML)"
    ran = subprocess.run(
        [node, "-e", script], input=data.partition("</script>")[0], text=True, capture_output=True, check=True
    )
    return Page(head.partition("<body>")[2].replace('<div id="verbs"></div>', ran.stdout) + "</main></body></html>")


class Page(HTMLParser):
    """The tables of a report as text, and every address that the page names."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.titles: list[str] = []
        self.addresses: list[str] = []
        self.tags: list[str] = []
        self._within: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src")]
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        elif tag == "h3":
            self.titles.append("")
        if tag not in ("meta", "br"):
            self._within.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._within:
            assert self._within.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._within and self._within[-1] == "h3":
            self.titles[-1] += data
        elif {"td", "th"} & {*self._within}:
            self.tables[-1][-1][-1] += data

    def table(self, title: str) -> list[list[str]]:
        """The rows of the first table under a title, without its head."""
        return self.tables[self.titles.index(title)][1:]

    def rows(self, title: str) -> Iterator[tuple[str, ...]]:
        return (tuple(row) for row in self.table(title))
