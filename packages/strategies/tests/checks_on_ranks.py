"""Many checks in one start of several processes: what each rank reports of each, and what went wrong."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch.distributed as dist
from launching import report, run_ranks

Found = dict[str, list[str]]


def make_checks(checks: Mapping[str, Callable[[], None]], names: Sequence[str]) -> None:
    """On a rank: make checks, and report what became of each."""
    for name in names:
        try:
            checks[name]()
        except BaseException:
            report((name, traceback.format_exc()))
            raise
        report((name, None))
        dist.barrier()


def run_checks(script: str, names: Sequence[str], num_ranks: int) -> Found:
    """What went wrong in each check, where a script makes those that it is given by name."""
    outcome = run_ranks(Path(script), num_ranks, args=names, timeout=900)
    made = dict.fromkeys(names, 0)
    errors: Found = {name: [] for name in names}
    for values in outcome.reports:
        for name, error in values:
            made[name] += 1
            errors[name] += [] if error is None else [error]
    for name, count in made.items():
        if count < num_ranks and not errors[name]:
            errors[name].append(f"{num_ranks - count} rank(s) did not come to it:\n{outcome.output}")
    return errors
