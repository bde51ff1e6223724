"""What happened, in the Trace Event Format that Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from camshaft.callbacks.timeline.events import Event
from camshaft.callbacks.timeline.sites import LOOP

_NS_PER_US = 1000


def trace_json(events: Iterable[Event], rank: int, num_dropped: int) -> str:
    """The events of one process as complete events ("X") on one thread, whose nesting is that of the calls.

    The clock is the machine's monotonic one, so that the files of several processes of one machine can be laid side by
    side.

    Args:
        events: What happened.
        rank: The process, used as its id.
        num_dropped: How many older events are not among these.
    """
    named: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": f"rank {rank}"}},
        {"ph": "M", "name": "process_sort_index", "pid": rank, "tid": 0, "args": {"sort_index": rank}},
        {"ph": "M", "name": "thread_name", "pid": rank, "tid": 0, "args": {"name": "hooks (host time)"}},
    ]
    # An event comes before those that it encloses, also where they begin or end at the same nanosecond.
    ordered = sorted(events, key=lambda event: (event[1], -event[2]))
    complete = [
        {
            "ph": "X",
            "name": site.hook if not site.receiver else f"{site.hook} · {site.receiver}",
            "cat": site.kind,
            "pid": rank,
            "tid": 0,
            "ts": start_ns / _NS_PER_US,
            "dur": duration_ns / _NS_PER_US,
            "args": {"hook": site.hook, "receiver": site.receiver} if site.kind != LOOP else {},
        }
        for site, start_ns, duration_ns in ordered
    ]
    facts = {"events": len(complete), "older_events_dropped": num_dropped, "time": "host"}
    content = {"traceEvents": named + complete, "displayTimeUnit": "ms", "otherData": facts}
    return json.dumps(content, separators=(",", ":"))
