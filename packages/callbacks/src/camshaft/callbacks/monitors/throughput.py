"""Throughput, floating-point operations of a model, and peak rates of devices."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from camshaft.callbacks.arguments import InvalidArgumentError, check_number


class _Totals(NamedTuple):
    """Totals at one update."""

    time: float
    batches: int
    samples: int
    lengths: int | None
    flops: float | None


class Throughput:
    """Rates over a rolling window, computed from measured totals.

    Keys of `compute`, for this rank's device with the prefix "device" and the separator, and with several ranks for all
    of them without a prefix: `batches_per_sec`, `samples_per_sec`, `items_per_sec` (of `lengths`, such
    as tokens), `flops_per_sec`; of the device alone `mfu`, the share of `available_flops` that is used (model FLOPs
    utilization, Chowdhery et al. 2022, appendix B); and the totals `time` (seconds), `batches`, `samples` and `lengths`
    of this rank.

    Ranks do not communicate: the rates of all are those of this rank times their number. That holds if their batches
    are of similar size, since ranks wait for each other in synchronous training.

    Args:
        available_flops: Peak floating-point operations per second of one device in its compute dtype; None leaves `mfu`
            out.
        world_size: Number of ranks, each with a device.
        window_size: Number of latest batches that rates are averaged over, and those up to the update before them.
        separator: Separator between "device" and a name.
        num_data_ranks: Number of ranks, or groups of ranks, with different data; None: all. If a model is split over
            several devices, each does a part of the work.

    Raises:
        InvalidArgumentError: If an argument is out of range.
    """

    def __init__(
        self,
        available_flops: float | None = None,
        world_size: int = 1,
        window_size: int = 100,
        separator: str = "/",
        num_data_ranks: int | None = None,
    ) -> None:
        where = type(self).__name__
        check_number(where, least=1, world_size=world_size, window_size=window_size)
        action = "Pass None for all ranks."
        check_number(where, action, least=1, most=world_size, or_none=True, num_data_ranks=num_data_ranks)
        check_number(where, "Pass None.", above=0, or_none=True, available_flops=available_flops)
        self.available_flops = available_flops
        self.world_size = world_size
        self.window_size = window_size
        self.separator = separator
        self.num_data_ranks = world_size if num_data_ranks is None else num_data_ranks
        self._window: deque[_Totals] = deque()

    def update(
        self, *, time: float, batches: int, samples: int, lengths: int | None = None, flops: float | None = None
    ) -> None:
        """Add this rank's totals until now. The rates start at the first update.

        Args:
            time: Seconds so far.
            batches: Batches so far.
            samples: Samples so far.
            lengths: Items (tokens, frames) of the samples so far; given at every update or at none.
            flops: Floating-point operations since the update before; not counted in the first update.

        Raises:
            InvalidArgumentError: If a total is smaller than before, the time is not larger, or `lengths` or `flops` is
                given at some updates only.
        """
        last = self._window[-1] if self._window else None
        total_flops = flops
        if last is not None:
            self._check(last, time=time, batches=batches, samples=samples, lengths=lengths)
            if flops is None:
                total_flops = None
            elif last.flops is None and len(self._window) > 1:
                self._refuse("flops", "given at every update or at none", flops)
            else:
                total_flops = (last.flops or 0.0) + flops
        elif flops is not None:
            total_flops = 0.0
        self._window.append(_Totals(time, batches, samples, lengths, total_flops))
        while len(self._window) > 2 and self._window[1].batches <= batches - self.window_size:
            self._window.popleft()

    def compute(self) -> dict[str, float]:
        """Return the totals, and from the second update on the rates; empty before the first."""
        if not self._window:
            return {}
        first, last = self._window[0], self._window[-1]
        metrics: dict[str, float] = {"time": last.time, "batches": last.batches, "samples": last.samples}
        if last.lengths is not None:
            metrics["lengths"] = last.lengths
        if len(self._window) == 1:
            return metrics
        seconds = last.time - first.time
        self._add(metrics, "batches_per_sec", (last.batches - first.batches) / seconds)
        self._add(metrics, "samples_per_sec", (last.samples - first.samples) / seconds)
        if last.lengths is not None and first.lengths is not None:
            self._add(metrics, "items_per_sec", (last.lengths - first.lengths) / seconds)
        if last.flops is not None:
            rate = self._add(metrics, "flops_per_sec", (last.flops - (first.flops or 0.0)) / seconds)
            if self.available_flops is not None:
                metrics[f"device{self.separator}mfu"] = rate / self.available_flops
        return metrics

    def reset(self) -> None:
        """Reset everything; the next update is a first one again."""
        self._window.clear()

    def _add(self, metrics: dict[str, float], name: str, of_replica: float) -> float:
        """Add a rate of the device and, with several ranks, of all. Return that of the device."""
        of_all = of_replica * self.num_data_ranks
        of_device = of_all / self.world_size
        metrics[f"device{self.separator}{name}"] = of_device
        if self.world_size > 1:
            metrics[name] = of_all
        return of_device

    def _check(self, last: _Totals, *, time: float, batches: int, samples: int, lengths: int | None) -> None:
        if not time > last.time:
            self._refuse("time", f"more than at the update before ({last.time})", time)
        if batches < last.batches:
            self._refuse("batches", f"at least that of the update before ({last.batches})", batches)
        if samples < last.samples:
            self._refuse("samples", f"at least that of the update before ({last.samples})", samples)
        if (lengths is None) != (last.lengths is None):
            self._refuse("lengths", "given at every update or at none", lengths)
        if lengths is not None and last.lengths is not None and lengths < last.lengths:
            self._refuse("lengths", f"at least that of the update before ({last.lengths})", lengths)

    def _refuse(self, field: str, rule: str, value: object) -> None:
        action = "Pass totals that only grow, or call `reset` first."
        raise InvalidArgumentError(field, rule, value, f"{type(self).__name__}.update", action)


def measure_flops(
    model: nn.Module, forward_fn: Callable[[], Any], loss_fn: Callable[[Any], Tensor] | None = None
) -> int:
    """Count the floating-point operations of a model's forward, and of its backward if a loss is given.

    Counts the operations that `torch.utils.flop_counter` knows: matrix products, convolutions and attention; a
    multiplication with its addition counts as two. On the meta device it costs neither memory nor time:

        with torch.device("meta"):
            model = Model()
            batch = torch.randn(8, 32)
        flops_per_batch = measure_flops(model, lambda: model(batch), lambda outputs: outputs.sum())

    Args:
        model: The model; the gradients of its parameters are unchanged afterwards.
        forward_fn: Runs the model's forward and returns its outputs.
        loss_fn: Computes a scalar from them, which is differentiated; None counts only the forward.

    Returns:
        The number of operations.
    """
    from torch.utils.flop_counter import FlopCounterMode

    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, _ in gradients:
        parameter.grad = None  # so that existing gradients are not added to
    counter = FlopCounterMode(display=False)
    try:
        with counter:
            outputs = forward_fn()
            if loss_fn is not None:
                loss_fn(outputs).backward()  # type: ignore[no-untyped-call]
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient
    return int(counter.get_total_flops())


ComputeFormat = torch.dtype | Literal["tf32"]
"""Format of matrix products on a device: a dtype, or "tf32" for float32 tensors in TensorFloat-32."""

_T = 1e12


class PeakFlops(NamedTuple):
    """The data sheet of one GPU.

    Attributes:
        device: Name of the GPU.
        pattern: Regular expression for torch's name of it.
        source: The data sheet.
        flops: Floating-point operations per second by format: dense matrix products (no structured sparsity) on tensor
            or matrix cores if there are any for the format, accumulated in float32. float64 and float32 are those of
            the vector units on NVIDIA's GPUs, since torch's default does not use tensor cores for float32.
    """

    device: str
    pattern: str
    source: str
    flops: dict[ComputeFormat, float]


def _sheet(
    device: str,
    pattern: str,
    source: str,
    *,
    half: float,
    single: float,
    double: float | None = None,
    tf32: float | None = None,
    has_bfloat16: bool = True,
) -> PeakFlops:
    """Return a data sheet from teraflops; `half` is that of float16 and, if supported, of bfloat16."""
    teraflops: dict[ComputeFormat, float | None] = {
        torch.float64: double,
        torch.float32: single,
        "tf32": tf32,
        torch.bfloat16: half if has_bfloat16 else None,
        torch.float16: half,
    }
    return PeakFlops(device, pattern, source, {key: value * _T for key, value in teraflops.items() if value})


_NVIDIA = "https://www.nvidia.com/en-us/data-center/"
_A100 = "NVIDIA A100 Tensor Core GPU data sheet (" + _NVIDIA + "a100/)"
_H100 = "NVIDIA H100 Tensor Core GPU data sheet (" + _NVIDIA + "h100/), values with sparsity halved"
_H200 = "NVIDIA H200 Tensor Core GPU data sheet (" + _NVIDIA + "h200/), values with sparsity halved"
_GH200 = "NVIDIA GH200 Grace Hopper Superchip data sheet, values with sparsity halved"
_B200 = "NVIDIA HGX B200 data sheet (" + _NVIDIA + "hgx/), an eighth of the board's, values with sparsity halved"
_L4 = "NVIDIA L4 Tensor Core GPU data sheet (" + _NVIDIA + "l4/), values with sparsity halved"
_L40 = "NVIDIA L40 GPU data sheet (" + _NVIDIA + "l40/)"
_L40S = "NVIDIA L40S GPU data sheet (" + _NVIDIA + "l40s/)"
_A10G = "NVIDIA A10G data sheet for Amazon EC2 G5 instances"
_ADA = "NVIDIA Ada GPU architecture white paper, appendix A"
_GA102 = "NVIDIA Ampere GA102 GPU architecture white paper"
_V100 = "NVIDIA V100 Tensor Core GPU data sheet (" + _NVIDIA + "v100/)"
_MI = "AMD Instinct {} accelerator data sheet (https://www.amd.com/en/products/accelerators/instinct.html)"

# The first matching pattern counts, so special ones come before general ones.
PEAK_FLOPS: tuple[PeakFlops, ...] = (
    _sheet("B200", r"\bB200\b", _B200, double=37, single=75, tf32=1125, half=2250),
    _sheet("GH200", r"\bGH200\b", _GH200, double=34, single=67, tf32=494.5, half=989.5),
    _sheet("H200 NVL", r"\bH200 NVL\b", _H200, double=30, single=60, tf32=417.5, half=835.5),
    _sheet("H200 SXM", r"\bH200\b", _H200, double=34, single=67, tf32=494.5, half=989.5),
    _sheet("H100 NVL", r"\bH100 NVL\b", _H100, double=30, single=60, tf32=417.5, half=835.5),
    _sheet("H100 PCIe", r"\bH100 PCIe\b", _H100, double=26, single=51, tf32=378, half=756.5),
    _sheet("H100 SXM", r"\bH100\b.*\bHBM3\b|\bH100 SXM", _H100, double=34, single=67, tf32=494.5, half=989.5),
    _sheet("A100", r"\bA100\b", _A100, double=9.7, single=19.5, tf32=156, half=312),
    _sheet("A30", r"\bA30\b", "NVIDIA A30 data sheet", double=5.2, single=10.3, tf32=82, half=165),
    _sheet("A40", r"\bA40\b", "NVIDIA A40 data sheet", single=37.4, tf32=74.8, half=149.7),
    _sheet("A10G", r"\bA10G\b", _A10G, single=31.5, tf32=35, half=70),
    _sheet("A10", r"\bA10\b", "NVIDIA A10 data sheet", single=31.2, tf32=62.5, half=125),
    _sheet("L40S", r"\bL40S\b", _L40S, single=91.6, tf32=183, half=362.05),
    _sheet("L40", r"\bL40\b", _L40, single=90.5, tf32=90.5, half=181.05),
    _sheet("L4", r"\bL4\b", _L4, single=30.3, tf32=60, half=121),
    _sheet("T4", r"\bT4\b", "NVIDIA T4 data sheet", single=8.1, half=65, has_bfloat16=False),
    _sheet("V100S PCIe", r"\bV100S\b", _V100, double=8.2, single=16.4, half=130, has_bfloat16=False),
    _sheet("V100 SXM2", r"\bV100-SXM", _V100, double=7.8, single=15.7, half=125, has_bfloat16=False),
    _sheet("V100 PCIe", r"\bV100-PCIE\b", _V100, double=7, single=14, half=112, has_bfloat16=False),
    _sheet("RTX 6000 Ada", r"\bRTX 6000 Ada\b", _ADA, single=91.1, tf32=182.1, half=364.2),
    _sheet("RTX A6000", r"\bRTX A6000\b", _GA102, single=38.7, tf32=77.4, half=154.8),
    _sheet("GeForce RTX 4090", r"\bGeForce RTX 4090$", _ADA, single=82.6, tf32=82.6, half=165.2),
    _sheet("GeForce RTX 4080", r"\bGeForce RTX 4080$", _ADA, single=48.7, tf32=48.7, half=97.5),
    _sheet("GeForce RTX 3090", r"\bGeForce RTX 3090$", _GA102, single=35.6, tf32=35.6, half=71),
    _sheet("GeForce RTX 3080", r"\bGeForce RTX 3080$", _GA102, single=29.8, tf32=29.8, half=59.5),
    _sheet("MI325X", r"\bMI325X\b", _MI.format("MI325X"), double=163.4, single=163.4, tf32=653.7, half=1307.4),
    _sheet("MI300X", r"\bMI300X\b", _MI.format("MI300X"), double=163.4, single=163.4, tf32=653.7, half=1307.4),
    # torch sees each of the two dies as a device of its own
    _sheet("MI250X, one die", r"\bMI250X\b", _MI.format("MI250X"), double=47.85, single=47.85, half=191.5),
)


def peak_flops(device_name: str, compute_format: ComputeFormat) -> float | None:
    """Return the peak floating-point operations per second of a GPU.

    Args:
        device_name: Torch's name of it, such as "NVIDIA H100 80GB HBM3".
        compute_format: Format of matrix products.

    Returns:
        The data sheet's value; None if the GPU is not in the table or has no such format, and for a part of one (MIG).
    """
    if re.search(r"\bMIG\b", device_name):
        return None
    for entry in PEAK_FLOPS:
        if re.search(entry.pattern, device_name):
            return entry.flops.get(compute_format)
    return None


def get_available_flops(device: torch.device, dtype: torch.dtype) -> float | None:
    """Return the peak floating-point operations per second of a device, an upper limit that no program reaches.

    Args:
        device: The device.
        dtype: Dtype of matrix products. For float32 the value is that of TensorFloat-32 if torch is set to use it.

    Returns:
        The value of the vendor's data sheet; None for a CPU, and if `PEAK_FLOPS` does not contain the GPU.
    """
    if device.type != "cuda":
        return None
    compute_format: ComputeFormat = dtype
    if dtype == torch.float32 and multiplies_in_tf32():
        compute_format = "tf32"
    return peak_flops(torch.cuda.get_device_name(device), compute_format)


def multiplies_in_tf32() -> bool:
    """Return whether torch is set to multiply float32 matrices in TensorFloat-32."""
    # not `allow_tf32`, which raises if the precision was set by the newer name
    return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")
