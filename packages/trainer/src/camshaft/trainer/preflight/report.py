"""The report of a preflight, as a page and as plain values."""

from __future__ import annotations

import json
import os
import re
from typing import Any

import attrs
from attrs import field, frozen

from camshaft.callbacks.monitors.throughput import ComputeFormat, peak_flops
from camshaft.hooks_core.support.messages import must_be
from camshaft.trainer.preflight.graphs import CompiledPart
from camshaft.trainer.preflight.measurement import Collective
from camshaft.trainer.preflight.world import HostRead

GIB = 2**30
MARGIN = 0.10
"""Share of the device's memory that is left for what is not counted: the context, communication, fragmentation."""


@frozen
class Device:
    """A kind of accelerator.

    Attributes:
        name: Torch's name of it.
        num_bytes: Its memory.
        local_bandwidth: Bytes per second to another device of the machine, in one direction.
        network_bandwidth: Bytes per second to a device of another machine, one network card for each.
    """

    name: str
    num_bytes: int
    local_bandwidth: float
    network_bandwidth: float


DEVICES = {
    # memory as torch.cuda.mem_get_info tells it, a little less than the data sheet's
    "a100": Device("NVIDIA A100-SXM4-80GB", int(79.1 * GIB), 300e9, 25e9),
    "a100-40gb": Device("NVIDIA A100-SXM4-40GB", int(39.4 * GIB), 300e9, 25e9),
    "h100": Device("NVIDIA H100 80GB HBM3", int(79.1 * GIB), 450e9, 50e9),
    "h200": Device("NVIDIA H200", int(139.8 * GIB), 450e9, 50e9),
    "b200": Device("NVIDIA B200", int(178.4 * GIB), 900e9, 50e9),
    "l40s": Device("NVIDIA L40S", int(44.4 * GIB), 32e9, 25e9),
    "l4": Device("NVIDIA L4", int(22.0 * GIB), 16e9, 12.5e9),
    "a10g": Device("NVIDIA A10G", int(22.1 * GIB), 16e9, 12.5e9),
    "v100": Device("Tesla V100-SXM2-32GB", int(31.7 * GIB), 150e9, 12.5e9),
    "t4": Device("Tesla T4", int(14.6 * GIB), 16e9, 12.5e9),
    "mi300x": Device("AMD Instinct MI300X", int(191.7 * GIB), 448e9, 50e9),
}
"""Devices by the names that `preflight` takes, with bandwidths of their data sheets and usual networks."""


def device_of(name: str) -> Device:
    """Return a device of the table.

    Raises:
        ValueError: If there is none of this name.
    """
    found = DEVICES.get(str(name).lower())
    if found is None:
        rule = f"one of {', '.join(DEVICES)}"
        raise ValueError(must_be("device", rule, name, "preflight", "Pass one of these."))
    return found


@frozen(kw_only=True)
class Report:
    """The findings of a preflight. Bytes and FLOPs are of one rank.

    Attributes:
        device: The device whose size and speed count.
        world: Strategy, ranks, machines, precision and accumulation.
        num_parameters: The number of parameters of the whole model.
        memory: Bytes by kind at the peak; "total" is the peak itself.
        memory_between_steps: The same between two updates.
        collectives: Count and bytes of each collective, by phase: an update, a validation batch.
        flops: FLOPs of an update.
        compute_format: The format in which most of them are.
        reads: Host reads, by phase and place.
        checkpoint: Bytes of this rank's part, of the plain part, and of the whole.
        num_files: The number of files of a checkpoint.
        data: Samples, batches per epoch and rank, by stage.
        graphs: Graphs and graph breaks of the modules that are compiled.
        warnings: What only shows at this size.
        not_run: What could not be run on fake tensors, and why.
    """

    device: Device
    world: dict[str, Any]
    num_parameters: int = 0
    memory: dict[str, int] = field(factory=dict)
    memory_between_steps: dict[str, int] = field(factory=dict)
    collectives: list[tuple[str, Collective, int, int]] = field(factory=list)
    flops: int = 0
    compute_format: ComputeFormat | None = None
    reads: list[tuple[str, HostRead, int]] = field(factory=list)
    checkpoint: dict[str, int] = field(factory=dict)
    num_files: int = 0
    data: dict[str, dict[str, Any]] = field(factory=dict)
    graphs: list[CompiledPart] = field(factory=list)
    warnings: list[str] = field(factory=list)
    not_run: list[str] = field(factory=list)

    @property
    def fits(self) -> bool | None:
        """Return whether the peak leaves a margin on the device; None if no update was run."""
        peak = self.memory.get("total", 0)
        return None if not self.flops else peak <= (1 - MARGIN) * self.device.num_bytes

    @property
    def compute_seconds(self) -> float | None:
        """The least time that the FLOPs of an update take."""
        peak = None if self.compute_format is None else peak_flops(self.device.name, self.compute_format)
        return None if peak is None else self.flops / peak

    @property
    def communication_seconds(self) -> float:
        """The least time that the collectives of an update take, those of different dimensions one after another."""
        seconds = 0.0
        for phase, kind, _, num_bytes in self.collectives:
            if phase == "update":
                is_local = kind.num_ranks <= self.world["devices_per_node"] and kind.dimension != "all ranks"
                is_local = is_local or self.world["num_nodes"] == 1
                bandwidth = self.device.local_bandwidth if is_local else self.device.network_bandwidth
                passes = 2 if kind.operation == "all_reduce" else 1
                seconds += passes * num_bytes * (kind.num_ranks - 1) / kind.num_ranks / bandwidth
        return seconds

    @property
    def mfu_bound(self) -> float | None:
        """The largest share of the peak FLOPs, with communication that is wholly hidden behind computation."""
        compute = self.compute_seconds
        return None if not compute else compute / max(compute, self.communication_seconds)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        values = attrs.asdict(self)
        values["compute_format"] = None if self.compute_format is None else _format(self.compute_format)
        values["collectives"] = [
            {"phase": phase, **attrs.asdict(kind), "count": count, "bytes": num_bytes}
            for phase, kind, count, num_bytes in self.collectives
        ]
        values["reads"] = [{"phase": phase, **attrs.asdict(read), "count": count} for phase, read, count in self.reads]
        derived = {name: getattr(self, name) for name in ("fits", "compute_seconds", "communication_seconds")}
        return values | derived | {"mfu_bound": self.mfu_bound}

    def as_json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(self.as_dict(), indent=2)

    def __str__(self) -> str:
        """Return the page."""
        return "\n".join(line.rstrip() for part in self._parts() for line in (*part, ""))[:-1]

    def _parts(self) -> list[list[str]]:
        world = self.world
        head = (
            f"preflight: {world['strategy']}, {world['world_size']} ranks on {world['num_nodes']} machine(s), "
            f"{self.device.name}, {world['precision']}, {self.num_parameters:,} parameters"
        )
        parts = [[head], self._memory_lines()]
        if self.collectives:
            parts.append(self._collective_lines())
        if self.flops:
            parts.append(self._flops_lines())
        parts += [self._read_lines(), self._graph_lines(), self._checkpoint_lines(), self._data_lines()]
        parts += [[title, *(f"  - {line}" for line in lines)] for title, lines in self._lists() if lines]
        return [part for part in parts if part]

    def _lists(self) -> list[tuple[str, list[str]]]:
        return [("warnings", self.warnings), ("not run on fake tensors", self.not_run)]

    def _memory_lines(self) -> list[str]:
        if not self.memory:
            return []
        kinds = [kind for kind, num_bytes in self.memory.items() if num_bytes or kind == "total"]
        between = self.memory_between_steps
        rows = [f"  {kind:12} {_size(self.memory[kind]):>12} {_size(between.get(kind, 0)):>16}" for kind in kinds]
        peak, size = self.memory["total"], self.device.num_bytes
        verdict = {True: "fits", False: "does not fit", None: "no update was run"}[self.fits]
        share = f"{peak / size:.0%} of {_size(size)}: {verdict} with a margin of {MARGIN:.0%} for what is not counted"
        return [f"{'memory per rank':16}{'at the peak':>10} {'between updates':>16}", *rows, f"  {share}"]

    def _collective_lines(self) -> list[str]:
        columns = "{:20} {:15} {:24} {:>6} {:>6} {:>12}".format
        rows = [
            columns(f"  {phase}", kind.operation, kind.dimension, kind.num_ranks, count, _size(num_bytes))
            for phase, kind, count, num_bytes in self.collectives
        ]
        return [columns("collectives", "operation", "over", "ranks", "count", "bytes"), *rows]

    def _flops_lines(self) -> list[str]:
        line = f"FLOPs per update and rank: {self.flops:.3g}"
        compute, bound = self.compute_seconds, self.mfu_bound
        if compute is None or bound is None or self.compute_format is None:
            return [f"{line} (no peak in {self.compute_format} known for {self.device.name})"]
        return [
            f"{line}, at least {compute * 1e3:.3g} ms in {_format(self.compute_format)}; communication at least "
            f"{self.communication_seconds * 1e3:.3g} ms; MFU at most {bound:.0%}"
        ]

    def _read_lines(self) -> list[str]:
        if not self.flops:
            return []
        lines = ["host reads, each of which waits for the device" if self.reads else "host reads: none"]
        for phase, read, count in self.reads:
            hook = f" in `{read.hook}`" if read.hook else ""
            lines.append(f"  {phase}: {count} x {read.operation}{hook}, {_short(read.file)}:{read.line}: {read.code}")
        if self.reads:
            lines.append(
                "  Keep values on the device: `self.log` takes tensors, sums may be of `loss.detach()`, and "
                "`torch.where` takes the place of a condition. After a read 1 (or False) stood for the value."
            )
        return lines

    def _graph_lines(self) -> list[str]:
        lines = ["graphs of what is compiled"] if self.graphs else []
        for part in self.graphs:
            lines.append(f"  {part.name or 'the model'}: {part.num_graphs} graph(s), {len(part.breaks)} break(s)")
            lines += [f"    {_short(one.file)}:{one.line}: {one.code} ({one.reason})" for one in part.breaks]
        return lines

    def _checkpoint_lines(self) -> list[str]:
        if not self.checkpoint:
            return []
        rank, plain, whole = (_size(self.checkpoint[name]) for name in ("of a rank", "plain", "whole"))
        parts = f" ({rank} of each rank, {plain} plain)" if self.checkpoint["of a rank"] else ""
        return [f"checkpoint: {whole} in {self.num_files} file(s){parts}"]

    def _data_lines(self) -> list[str]:
        lines = []
        for stage, facts in self.data.items():
            told = ", ".join(f"{value} {name}" for name, value in facts.items() if value is not None)
            lines.append(f"{stage}: {told}")
        return lines


def _size(num_bytes: int) -> str:
    for unit, size in (("GiB", GIB), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= size:
            return f"{num_bytes / size:.2f} {unit}"
    return f"{num_bytes} B"


def _short(path: str) -> str:
    if path.startswith(os.getcwd()):
        return os.path.relpath(path)
    return re.sub(r".*/(?:site-packages|src)/", "", path)


def _format(compute_format: ComputeFormat) -> str:
    return str(compute_format).removeprefix("torch.")
