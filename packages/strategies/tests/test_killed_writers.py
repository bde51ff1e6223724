from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch

from camshaft.strategies import read_checkpoint

pytestmark = pytest.mark.processes

WRITE_FOREVER = textwrap.dedent(
    """
    import sys, torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    from camshaft.strategies import SingleDeviceStrategy
    from camshaft.strategies.checkpoints.writer import CheckpointWriter
    path, kind, asynchronous = sys.argv[1], sys.argv[2], sys.argv[3] == "async"
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    writer = CheckpointWriter(SingleDeviceStrategy("cpu"), asynchronous)
    weights = torch.zeros(200_000)
    saved = distribute_tensor(weights, mesh, [Shard(0)]) if kind == "directory" else weights
    step = 0
    while True:
        step += 1
        with torch.no_grad():
            weights.fill_(step)
            (saved.to_local() if kind == "directory" else saved).fill_(step)
        pending = writer.save({"step": step, "weights": saved}, path)
        if step > 1:
            print(step, flush=True)
    """
)


@pytest.mark.parametrize(("kind", "way"), [("directory", "sync"), ("directory", "async"), ("file", "async")])
def test_a_process_killed_at_any_moment_leaves_a_whole_checkpoint(tmp_path: Path, kind: str, way: str) -> None:
    path = tmp_path / "a.ckpt"
    for delay_seconds in (0.003, 0.017):
        command = [sys.executable, "-c", WRITE_FOREVER, str(path), kind, way]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()  # at least one checkpoint is there
            time.sleep(delay_seconds)
            process.send_signal(signal.SIGKILL)
        checkpoint = read_checkpoint(path)
        assert torch.equal(checkpoint["weights"], torch.full((200_000,), float(checkpoint["step"])))
