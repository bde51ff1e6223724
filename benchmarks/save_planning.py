"""Measure what rank 0 computes for a sharded save at scale, in one process, without communication.

    python benchmarks/save_planning.py --ranks 64 256 1024

Rank 0 of a fake process group saves 1,000 tensors; the plans and results of the other ranks are made up from its own.
Seconds are those of the processor, which a busy machine does not change.

plan    its own plan, the plans of the others unpickled, the global plan
index   the results of the others unpickled, torch's `.metadata` pickled, the index of `plain.ckpt` written to memory
"""

from __future__ import annotations

import argparse
import io
import pickle
import resource
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.default_planner import create_default_local_save_plan
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the backend

from camshaft.strategies.checkpoints.sharded import KeptPlan, _plain_index, _Planner
from framework_overhead.report import circumstances, publish

NUM_TENSORS, ROWS, COLUMNS = 1000, 4, 8
AIM_SECONDS = 2.0
PHASES = ("plan", "index")


def plan_of(rank: int, of_first: SavePlan) -> SavePlan:
    """Return the plan of another rank, whose rows are others."""
    offsets = torch.Size((rank * ROWS, 0))
    items = []
    for item in of_first.items:
        assert item.tensor_data is not None
        data = replace(item.tensor_data, chunk=replace(item.tensor_data.chunk, offsets=offsets))
        items.append(replace(item, index=replace(item.index, offset=offsets), tensor_data=data))
    return replace(of_first, items=items)


def measure(num_ranks: int, *, with_first: bool = True) -> dict[str, list[float]]:
    """Return the seconds of each phase, for the first save and the second; else for the plan of the second alone."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=num_ranks)
    mesh, size, stride = init_device_mesh("cpu", (num_ranks,)), torch.Size((num_ranks * ROWS, COLUMNS)), (COLUMNS, 1)
    tensors = {
        f"state_dict.model.layers.{idx}.weight": DTensor.from_local(
            torch.empty(ROWS, COLUMNS), mesh, [Shard(0)], run_check=False, shape=size, stride=stride
        )
        for idx in range(NUM_TENSORS)
    }
    kept, seconds = KeptPlan(), {phase: list[float]() for phase in PHASES}
    of_first = create_default_local_save_plan(tensors, True)
    made_up = [pickle.dumps(plan_of(rank, of_first)) for rank in range(1, num_ranks if with_first else 1)]
    if not with_first:
        kept.proposed, kept.items = of_first, of_first.items
    for is_second in (False, True) if with_first else (True,):
        received = [pickle.dumps(SavePlan([]))] * (num_ranks - 1) if is_second else made_up
        start = time.process_time()
        proposed = create_default_local_save_plan(tensors, True)
        planner = _Planner({}, proposed, kept if proposed == kept.proposed else None)
        planner.set_up_planner(tensors, is_coordinator=True)
        plans, index = planner.create_global_plan([planner.create_local_plan(), *map(pickle.loads, received)])
        planner.finish_plan(plans[0])
        seconds["plan"].append(time.process_time() - start)
        if not with_first:
            break
        kept.proposed, kept.items, kept.index = proposed, planner.plan.items, index
        if not is_second:
            results = [pickle.dumps(written(rank, plan)) for rank, plan in enumerate(plans)]
            made_up.clear()
            plans.clear()
        start = time.process_time()
        index.storage_data = {one.index: one.storage_data for of_rank in results for one in pickle.loads(of_rank)}
        pickle.dumps(index)
        torch.save(_plain_index(index), io.BytesIO())
        seconds["index"].append(time.process_time() - start)
    dist.destroy_process_group()
    return seconds


def written(rank: int, plan: SavePlan) -> list[WriteResult]:
    """Return what a rank answers when it has written its file."""
    file, num_bytes = f"__{rank}_0.distcp", 1408
    places = [_StorageInfo(file, idx * num_bytes, num_bytes) for idx in range(len(plan.items))]
    return [WriteResult(item.index, num_bytes, place) for item, place in zip(plan.items, places, strict=True)]


def table_rows(report: Mapping[str, Any]) -> list[list[str]]:
    """Return the table of a report: its head, and a line for each number of ranks and phase."""
    rows = [["ranks", "phase", "first save (s)", "second save (s)"]]
    for num_ranks, seconds in report["values"].items():
        for phase in PHASES:
            if seconds[phase]:
                *first, second = seconds[phase]
                rows.append([num_ranks, phase, f"{first[0]:.2f}" if first else "", f"{second:.2f}"])
    return rows


def main(arguments: list[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", nargs="+", type=int, default=[64, 256, 1024], help="default: 64 256 1024")
    parser.add_argument("--most", type=int, default=256, help="beyond, only second saves are planned (default: 256)")
    parser.add_argument("--markdown", action="store_true", help="print markdown instead of aligned text")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every single value to FILE")
    options = parser.parse_args(arguments)
    report: dict[str, Any] = {"conditions": circumstances(), "values": {}}
    for number in options.ranks:
        report["values"][str(number)] = measure(number, with_first=number <= options.most)
    gibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    aim = f"Aim: the plan of a second save takes at most {AIM_SECONDS} s. Most memory: {gibibytes:.1f} GiB."
    publish(report, table_rows(report), options.json, markdown=options.markdown, aim=aim)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
