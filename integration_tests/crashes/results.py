"""What a run leaves behind: weights, checkpoints, ledger and CSV file, beside those of a run that was not stopped."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from typing import Any

import attrs

from camshaft.forensics import exactly_once
from camshaft.forensics.ledger.ledger_file import read_ledger
from camshaft.hooks_core.support.remote_files import entries_of, join, local_copy
from camshaft.strategies import read_checkpoint
from crashes.scenes import Scene


@attrs.frozen
class Results:
    """What is below a run's folder at its end.

    Attributes:
        weights: Digest of the final weights.
        checkpoints: Names of its checkpoints.
        epoch: The epoch of its newest checkpoint.
        ledger: Its ledger's lines, without its end and what a resume notes, if it has one.
        samples: By epoch: whether it came to its end, and each sample was seen once, by the ledger.
        rows: The rows of its CSV file, without empty cells, likewise.
    """

    weights: str
    checkpoints: frozenset[str]
    epoch: int
    ledger: list[Any] | None
    samples: list[tuple[int, bool]] | None
    rows: list[dict[str, str]] | None


def results_of(scene: Scene, root: str, weights: str) -> Results:
    """Return the results of a run that has come to its end.

    Raises:
        LedgerError: If its ledger is damaged.
    """
    folder = join(root, "checkpoints")
    checkpoints = {name for name in entries_of(folder) if name.endswith(".ckpt") and not name.startswith(".")}
    newest = {scene.last} if scene.last is not None else checkpoints
    epoch = max(int(read_checkpoint(join(folder, name))["epoch"]) for name in newest)
    ledger = rows = samples = None
    if scene.has_logs:
        path = join(root, "logs", "ledger.jsonl")
        lines = [line for line in read_ledger(path).lines if not line.keys() & {"resumed", "end"}]
        ledger = [{name: value for name, value in line.items() if name != "chain"} for line in lines]
        samples = [(one.epoch, one.is_complete and one.is_exact) for one in exactly_once(path)]
        with local_copy(join(root, "logs", "metrics.csv")) as file, file.open(newline="") as text:
            rows = [{name: cell for name, cell in row.items() if cell} for row in csv.DictReader(text)]
    return Results(weights, frozenset(checkpoints), epoch, ledger, samples, rows)


def differences(found: Results, whole: Results) -> list[str]:
    """Return in what the results of a resumed run differ from those of the run that was not stopped."""
    told = [] if found.weights == whole.weights else ["resume: other weights"]
    # What a run was resumed from is not removed. Nor is a displaced one whose removal a power cut undid, or that is of
    # the same second by the clock of S3.
    if not found.checkpoints >= whole.checkpoints or len(found.checkpoints - whole.checkpoints) > 2:
        told.append(f"resume: {sorted(found.checkpoints ^ whole.checkpoints)} in one of the two")
    if found.epoch != whole.epoch:
        told.append("resume: an older newest checkpoint")
    if found.ledger != whole.ledger:
        told.append("resume: another ledger")
    if found.samples != whole.samples:
        told.append(f"resume: by the ledger epochs are {found.samples} rather than {whole.samples}")
    if found.rows != whole.rows:
        told.append(f"resume: other rows: {_parted(found.rows or [], whole.rows or [])}")
    return told


def _parted(found: Sequence[dict[str, str]], wanted: Sequence[dict[str, str]]) -> str:
    """Return what two lists of rows have where they part."""
    steps = [[row.get("step", "") for row in rows] for rows in (found, wanted)]
    return f"steps {', '.join(steps[0])} rather than {', '.join(steps[1])}"
