"""Asking SLURM to run this job again."""

from __future__ import annotations

import os
import subprocess

from camshaft.hooks_core.user_warnings import warn_user

_MOST_SECONDS = 60.0


def slurm_job() -> str | None:
    """The job that this process is part of, as `scontrol` knows it: of an array, the task; None outside of SLURM."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID") or None


def requeue(job: str) -> bool:
    """Run `scontrol requeue`. Returns whether it succeeded; warns if it did not."""
    try:
        done = subprocess.run(["scontrol", "requeue", job], capture_output=True, text=True, timeout=_MOST_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        warn_user(f"SLURM job {job} could not be requeued: {error}")
        return False
    if done.returncode != 0:
        warn_user(f"SLURM job {job} could not be requeued: {done.stderr.strip() or done.returncode}")
    return done.returncode == 0
