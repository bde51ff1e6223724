"""Drawn training runs for a metric log: played whole, or stopped after any batch and taken up by a new log."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torchmetrics
from hypothesis import strategies as st
from metric_log_parts import Rig
from torch import Tensor, nn

from camshaft.loops.state.metric_state import metric_states, restore_metric_states


def spread(values: Tensor) -> Tensor:
    """A reduction of one's own, sensitive to the order of values."""
    return (values * torch.arange(1, len(values) + 1, device=values.device)).sum() / 3


Option = dict[str, Any]
VALUES = st.floats(-1e4, 1e4, width=32) | st.sampled_from([float("nan"), float("inf"), 0.1])
REDUCTIONS = st.sampled_from(["mean", "avg", "sum", "max", "min", torch.mean, torch.max, torch.sum, sum, min, spread])
KINDS = st.sampled_from(["float32", "float64", "bfloat16", "int64", "number", "total"])
MAKE: dict[str, Callable[[float], Any]] = {
    "float32": lambda value: torch.tensor(value),
    "float64": lambda value: torch.tensor(value, dtype=torch.float64) / 3,
    "bfloat16": lambda value: torch.tensor(value, dtype=torch.bfloat16),
    "int64": lambda value: torch.tensor(int(torch.tensor(value).nan_to_num(7, 8, 9))),
    "number": lambda value: value / 3,
}


@dataclass
class Batch:
    values: list[tuple[str, float, int]]  # name, value, weight
    is_update: bool
    validates: bool


@dataclass
class Script:
    """Logged values: options per name, and the batches of each epoch."""

    kinds: dict[str, str]
    options: dict[str, Option]
    epochs: list[list[Batch]]
    log_every_n_steps: int

    @property
    def must_be_logged(self) -> set[str]:
        """Names that a checkpoint cannot hold whole, and which therefore every batch logs."""
        return {
            name
            for name, options in self.options.items()
            if self.kinds[name] == "metric" or options.get("reduce_fx") is spread
        }


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    kinds, options = {}, {}
    for name in draw(st.sampled_from(["a", "ab", "abcd", "abcdef"])):
        kinds[name] = draw(KINDS | st.just("metric"))
        on_step, on_epoch = draw(st.sampled_from([(None, None), (True, True), (False, True), (True, False)]))
        options[name] = {
            "on_step": on_step,
            "on_epoch": on_epoch,
            "prog_bar": draw(st.booleans()),
            "logger": draw(st.booleans()),
        }
        if kinds[name] != "metric":
            options[name]["reduce_fx"] = draw(REDUCTIONS)
    script = Script(kinds, options, [], draw(st.sampled_from([0, 1, 3])))
    for _ in range(draw(st.integers(1, 2))):
        script.epochs.append(
            [
                Batch(
                    [
                        (name, draw(VALUES), draw(st.integers(1, 5)))
                        for name in options
                        if name in script.must_be_logged or draw(st.booleans())
                    ],
                    is_update=draw(st.booleans()),
                    validates=draw(st.integers(0, 4)) == 0,
                )
                for _ in range(draw(st.integers(1, 9)))
            ]
        )
    return script


@dataclass
class Player:
    """Plays a script as the loops do, and writes down all that can be seen of the log."""

    script: Script
    rig: Rig = field(init=False)
    module: nn.Module = field(init=False)
    seen: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rig = Rig(self.script.log_every_n_steps)
        self.module = nn.Module()
        self.metrics = nn.ModuleDict(
            {name: torchmetrics.MeanMetric() for name, kind in self.script.kinds.items() if kind == "metric"}
        )
        self.module.metrics = self.metrics
        self.total = torch.zeros(())

    def play(self, start: tuple[int, int] | None = None) -> Iterator[tuple[int, int]]:
        """Play, from the next batch of an epoch on after a resume; pauses with the place where to go on."""
        for epoch in range(0 if start is None else start[0], len(self.script.epochs)):
            batches = self.script.epochs[epoch]
            self.rig.progress.current_epoch = epoch
            is_resumed = start is not None and epoch == start[0]
            num_done = start[1] if is_resumed else 0
            if not is_resumed:
                self.rig.metrics.start_epoch("train")
            if num_done == 0:
                self.rig.log("of_epochs_start", float(epoch))
            self.rig.metrics.moment = "batch"
            for idx in range(num_done, len(batches)):
                self._play_batch(batches[idx])
                self._see()
                if idx + 1 < len(batches) or not self.script.must_be_logged:
                    yield epoch, idx + 1
            self.rig.metrics.moment = "epoch"
            self._see()
            self.rig.log("of_epochs_end", 7.0)
            self.seen.append(bits(self.rig.metrics.end_epoch()))
            self._see()
            if epoch + 1 < len(self.script.epochs):
                yield epoch + 1, 0

    def _play_batch(self, batch: Batch) -> None:
        rig = self.rig
        rig.batch(torch.ones(2))
        for name, value, size in batch.values:
            kind = self.script.kinds[name]
            weight = None if size == 5 else size  # None: the size of the batch
            if kind == "metric":
                self.metrics[name](torch.tensor(value).nan_to_num(0, 1, 2), torch.tensor(float(size)))
                rig.log(name, self.metrics[name], **self.script.options[name])
            elif kind == "total":
                self.total += 1
                rig.log(name, self.total, batch_size=weight, **self.script.options[name])
            else:
                rig.log(name, MAKE[kind](value), batch_size=weight, **self.script.options[name])
        rig.end_batch(batch.is_update)
        if batch.validates:
            rig.start_evaluation()
            rig.batch(torch.ones(2))
            rig.log("val", torch.tensor(len(batch.values) / 3), on_step=True, on_epoch=True, prog_bar=True)
            self.seen.append(bits(rig.end_epoch()))
            rig.metrics.enter("train", "batch")

    def _see(self) -> None:
        metrics = self.rig.metrics
        self.seen.append(bits([metrics.callback_metrics, metrics.logged_metrics, metrics.progress_bar_metrics]))
        self.seen.append(bits(self.rig.logger.rows))
        self.rig.logger.rows.clear()

    def save(self) -> bytes:
        """A checkpoint's bytes."""
        state = {
            "metrics": self.rig.metrics.state_dict(),
            "states": metric_states(self.module),
            "global_step": self.rig.progress.global_step,
            "total": self.total,
        }
        file = io.BytesIO()
        torch.save(state, file)
        return file.getvalue()

    def load(self, checkpoint: bytes, place: tuple[int, int]) -> dict[str, Any]:
        """Take up what another player saved, and return it; hooks have logged other things before."""
        state: dict[str, Any] = torch.load(io.BytesIO(checkpoint), weights_only=True)
        rig = self.rig
        rig.progress.global_step, rig.progress.current_epoch = state["global_step"], place[0]
        self.total = state["total"]
        rig.metrics.start_epoch("train")
        rig.log("of_resumes_start", 5.0, prog_bar=True)
        for name in self.script.kinds:
            rig.log(name, 3.0, reduce_fx="min")
        rig.metrics.load_state_dict(state["metrics"])
        restore_metric_states(self.module, state["states"])
        return state


def bits(value: Any) -> Any:
    """A value in a form in which only equal bits are equal."""
    if isinstance(value, Tensor):
        return str(value.dtype), str(value.device), tuple(value.shape), bits(value.tolist())
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, dict):
        return [(key, bits(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [bits(item) for item in value]
    return value
