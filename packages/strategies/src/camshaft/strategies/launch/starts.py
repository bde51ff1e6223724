"""The starts of a job's processes, counted in a store that outlives them, as that of elastic agents does."""

from __future__ import annotations

import os
import time
import uuid
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

from camshaft.strategies.launch.environment import number_or_none

_LONGEST_PAUSE_SECONDS = 0.5

_agreed: int | None = None


def has_agent_store() -> bool:
    """Return whether the job's store is that of its elastic agents, which keeps its keys over restarts."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def restart_count() -> int:
    """Return the number of restarts of this job's processes by elastic agents; 0 without an agent.

    After a strategy of several processes has connected, it is the job's, the same on every rank: the number of earlier
    starts that came as far. Before, it is that of this machine's agent, which leaves out restarts that the failure of
    another machine caused.
    """
    if _agreed is not None:
        return _agreed
    return number_or_none(os.environ, "TORCHELASTIC_RESTART_COUNT") or 0


def agree_on_start(store: Store, rank: int, world_size: int, timeout: timedelta) -> int:
    """Agree on the number of this start of the job's processes, from 0; no other start has it. Collective.

    Ranks cannot take their agents' counts, which differ. Keys of earlier starts are still in the store, but no process
    of them is left: agents end theirs before they meet for the next start. So rank 0 publishes a number, the others
    answer with an id of theirs, and what rank 0 has published is of this start once it has their id.

    Args:
        store: The store, the same for all starts.
        rank: The rank of this process.
        world_size: The number of processes.
        timeout: The time to wait for other ranks.

    Raises:
        RuntimeError: If some have not come within the timeout.
    """
    global _agreed
    if rank == 0:
        start = store.add("num_starts", 1)
        store.set("newest", str(start))
        keys = [f"{start}/{other}" for other in range(1, world_size)]
        try:
            store.wait(keys, timeout)
        except dist.DistError as error:
            missing = [other for other, key in enumerate(keys, start=1) if not store.check([key])]
            action = "Look at their output, or raise `timeout`."
            raise RuntimeError(f"Ranks {missing} of {world_size} did not start within {timeout}. {action}") from error
        store.set(f"{start}/all", " ".join(one.decode() for one in store.multi_get(keys)))
    else:
        start = _join_start(store, rank, timeout)
    _agreed = start - 1
    return _agreed


def _join_start(store: Store, rank: int, timeout: timedelta) -> int:
    """Return the start that rank 0 has published and found this process in."""
    own, deadline, pause = uuid.uuid4().hex, time.monotonic() + timeout.total_seconds(), 0.01
    newest = b""
    while time.monotonic() < deadline:
        start = store.get("newest")
        if start != newest:
            newest = start
            store.set(f"{start.decode()}/{rank}", own)
        everyone = f"{start.decode()}/all"
        if store.check([everyone]) and own.encode() in store.get(everyone):
            return int(start)
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
    raise RuntimeError(
        f"Rank 0, or another rank, did not start within {timeout}. Look at their output, or raise `timeout`."
    )
