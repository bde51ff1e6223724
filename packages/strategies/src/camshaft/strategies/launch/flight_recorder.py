"""Dumps of torch's Flight Recorder: the last collectives of this process with their stacks, after one timed out.

The recorder of collectives on the CPU is dumped here. NCCL's own thread dumps its recorder when one of its collectives
times out, to files that begin with `TORCH_FR_DUMP_TEMP_FILE`, and ends the process.
"""

from __future__ import annotations

import os
import pickle
import shlex
import tempfile
from pathlib import Path
from threading import Lock
from typing import Any

import torch.distributed as dist
from torch._C import _distributed_c10d
from torch.distributed.distributed_c10d import _get_all_pg_configs  # it has no public name

from camshaft.hooks_core.support.durable_files import replace_file

_OWN_NAME = "flight_recorder_"
_lock = Lock()


def dump_collectives(rank: int) -> str:
    """Write this process's last collectives, beside the files of NCCL's recorder.

    Args:
        rank: The rank of this process.

    Returns:
        Where the dumps of all ranks are and how to read them, or why there are none.
    """
    folder, nccl_name = os.path.split(_nccl_prefix())
    recorders = {_OWN_NAME: "_dump_fr_trace", nccl_name: "_dump_nccl_trace"}
    texts = []
    try:
        with _lock:  # the run and the failure watch may get here together
            for name, function in recorders.items():
                trace = pickle.loads(getattr(_distributed_c10d, function, _nothing)())
                if trace.get("entries"):
                    _write(trace, Path(folder, f"{name}{rank}"))
                    texts.append(_how_to_read(folder, name))
        return "\n".join(texts) or (
            f"Torch recorded no collectives of {dist.get_backend_config()} to dump. Its Flight Recorder must know the "
            "backend, and TORCH_FR_BUFFER_SIZE must not be 0."
        )
    except Exception as error:  # such as of a full disk: the failure itself is still to be published
        return f"The last collectives could not be written to {folder}: {error}"


def nccl_dump(rank: int, since: float) -> str:
    """Return where NCCL's own dumps are and how to read them; empty if a rank has none.

    Args:
        rank: The rank.
        since: The time since which the file was written, in Unix seconds.
    """
    path = Path(f"{_nccl_prefix()}{rank}")
    is_there = path.is_file() and path.stat().st_mtime >= since
    return _how_to_read(*os.path.split(_nccl_prefix())) if is_there else ""


def _nccl_prefix() -> str:
    names = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    given = next(filter(None, map(os.environ.get, names)), None)
    return os.path.abspath(given or os.path.join(tempfile.gettempdir(), "nccl_trace_"))


def _write(trace: dict[str, Any], path: Path) -> None:
    # Gloo registers its groups without their names, for which torch's reader raises.
    configs = {one["pg_name"]: one for one in _get_all_pg_configs()}
    for name in configs.keys() - trace["pg_config"].keys():
        facts = configs[name]
        trace["pg_config"][name] = {"name": name, "desc": facts["pg_desc"], "ranks": str(facts["ranks"])}
    path.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(path) as fresh:
        fresh.write_bytes(pickle.dumps(trace))


def _how_to_read(folder: str, name: str) -> str:
    where = f"The last collectives of each rank are in {os.path.join(folder, name)}<rank>"
    command = shlex.join(["torchfrtrace", "--allow-incomplete-ranks", "--prefix", name, folder])
    return f"{where}. Read them with `{command}`."


def _nothing() -> bytes:
    return pickle.dumps({})
