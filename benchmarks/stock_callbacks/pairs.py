"""One pair of runs: the same training with a callback and without."""

from __future__ import annotations

import contextlib
import importlib
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from framework_overhead.frameworks import OURS, Evidence
from framework_overhead.lightning_shape import LightningShape
from framework_overhead.measurement import require_same_work, without_collector
from framework_overhead.terminal import NullTerminal
from framework_overhead.workload import LOG_EVERY_N_STEPS, build_batches, flat_weights

from .rows import Equivalent, Row
from .taking_turns import SlicedBatches, Slices, Turns, indices_of, loader_by_indices
from .work import build_module

WITHOUT, WITH = 0, 1


class IdleCallbackError(RuntimeError):
    """A callback left no trace of its work, so its cost is not that of what it is for."""


@dataclass
class Cost:
    """What a callback adds to a step, from each round.

    Args:
        framework: name of the framework.
        title: what was attached.
        without: microseconds per step without it.
        added: microseconds per step that it adds.
    """

    framework: str
    title: str
    without: list[float] = field(default_factory=list)
    added: list[float] = field(default_factory=list)


def has_equivalent(framework: LightningShape, row: Row) -> bool:
    """Return whether there is something to measure."""
    return framework.name == OURS or row.lightning is not False


def title_of(framework: LightningShape, row: Row) -> str:
    """Return what a framework calls it."""
    is_other = framework.name != OURS and isinstance(row.lightning, Equivalent)
    return row.lightning.title if is_other and isinstance(row.lightning, Equivalent) else row.name


def measure_round(framework: LightningShape, row: Row, round_idx: int, slices: Slices, cost: Cost) -> None:
    """Run once with and once without, first the one or the other in turn, and add what it cost to `cost`."""
    turns = Turns()
    first = round_idx % 2
    with tempfile.TemporaryDirectory() as folder, without_collector():
        arms = [_Arm(framework, row, arm, Path(folder, str(arm)), slices) for arm in (WITHOUT, WITH)]
        if row.is_uneven:
            evidence = {arm: arms[arm].run(lambda: None) for arm in (first, 1 - first)}
        else:
            terminal = NullTerminal()
            with contextlib.redirect_stdout(terminal), contextlib.redirect_stderr(terminal):
                left = turns.run(first, [arm.run_in_turn(turns) for arm in arms])
            evidence = dict(enumerate(left))
        arms[WITH].require_work()
    if row.keeps_weights:
        name = f"{framework.name} with {row.name}"
        require_same_work(name, evidence[WITH], evidence[WITHOUT], of="the run without it")
    without, having = arms[WITHOUT].microseconds_per_step, arms[WITH].microseconds_per_step
    if round_idx >= 0:
        cost.without.append(statistics.median(without))
        # Slices with the same index lie side by side, so that they are compared before the middle one is taken.
        cost.added.append(statistics.median(more - less for more, less in zip(having, without, strict=True)))


class _Arm:
    """One of the two runs."""

    def __init__(self, framework: LightningShape, row: Row, arm: int, folder: Path, slices: Slices) -> None:
        self._framework = framework
        self._row = row
        self._arm = arm
        self._folder = folder
        self._slices = slices
        self._callback: Any = None
        self._loader: SlicedBatches | None = None
        self._terminal = NullTerminal()
        folder.mkdir()

    @property
    def microseconds_per_step(self) -> list[float]:
        """Of each slice."""
        assert self._loader is not None
        return self._loader.microseconds_per_step

    def run_in_turn(self, turns: Turns) -> Callable[[], Evidence]:
        """Return a function that runs, and gives way to the other one before each slice."""
        return lambda: self._run(lambda: turns.pass_on(self._arm))

    def run(self, give_way: Callable[[], None]) -> Evidence:
        """Run on a terminal of its own."""
        with contextlib.redirect_stdout(self._terminal), contextlib.redirect_stderr(self._terminal):
            return self._run(give_way)

    def _run(self, give_way: Callable[[], None]) -> Evidence:
        row, framework = self._row, self._framework
        batches = build_batches()

        def build_loader(batch_size: int) -> Any:
            if row.has_indices:
                self._loader = SlicedBatches(indices_of(batches), self._slices, give_way, batch_size)
                return loader_by_indices(batches, self._loader)
            self._loader = SlicedBatches(batches, self._slices, give_way, batch_size)
            return self._loader

        module = build_module(framework.module, build_loader, has_backbone=row.has_backbone)
        trainer = framework.trainer(**self._trainer_arguments(), **framework.trainer_arguments)
        if row.verb == "predict":
            trainer.predict(module, module.predict_dataloader(), return_predictions=False)
            return {"last_logits": module.outputs[0]}
        trainer.fit(module)
        return {"weights": flat_weights(module.model)}

    def _trainer_arguments(self) -> dict[str, Any]:
        row, framework = self._row, self._framework
        arguments: dict[str, Any] = {
            "logger": framework.build_csv_logger(self._folder) if row.logs else False,
            "log_every_n_steps": LOG_EVERY_N_STEPS,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            # Callbacks that begin in a later epoch are to wait for it.
            "max_epochs": 100,
            "max_steps": self._slices.num_batches,
            "default_root_dir": str(self._folder),
        }
        if self._arm == WITHOUT or not row.attaches:
            return arguments
        if framework.name != OURS and isinstance(row.lightning, Equivalent):
            return arguments | row.lightning.trainer_arguments(self._folder)
        self._callback = build_callback(framework, row, self._folder)
        allowed = row.allows if framework.name == OURS else row.allows or row.lightning_allows
        if allowed is not None:
            arguments[allowed] = True
        return arguments | {"callbacks": [self._callback]}

    def require_work(self) -> None:
        """Raise IdleCallbackError if what was attached did not do what it is for."""
        row = self._row
        logged = "".join(path.read_text() for path in self._folder.glob("**/metrics.csv"))
        is_idle = row.has_worked is not None and not row.has_worked(self._callback, logged)
        if is_idle or (row.draws and not self._terminal.num_characters):
            raise IdleCallbackError(
                f"{row.name} of {self._framework.name} must have done what it is for, but left no trace of it. "
                "Correct its row before reading any figure."
            )


def build_callback(framework: LightningShape, row: Row, folder: Path) -> Any:
    """Return a new callback.

    Raises:
        ImportError: if it, or what it needs, is not installed.
    """
    is_ours = framework.name == OURS
    names = ("camshaft.callbacks", "camshaft.forensics") if is_ours else ("lightning.pytorch.callbacks",)
    kind = next((kind for name in names if (kind := getattr(importlib.import_module(name), row.name, None))), None)
    if kind is None:
        raise ImportError(f"{' and '.join(names)} have no {row.name}")
    if row.methods:
        kind = type(row.name, (kind,), row.methods)
    return kind(**row.arguments(folder), **(row.camshaft_arguments if is_ours else row.lightning_arguments))
