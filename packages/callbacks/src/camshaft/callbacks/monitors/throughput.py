"""Throughput, floating-point operations of a model, and peak rates of devices."""

import re
from collections import deque
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import attrs
import torch
from torch import Tensor, nn

from camshaft.callbacks.arguments import InvalidArgumentError, check_number
from camshaft.hooks_core.support.devices import name_of_device


class _Totals(NamedTuple):
    """Totals at one update."""

    time: float
    batches: int
    samples: int
    lengths: int | None
    flops: float | None


@attrs.define(slots=False, eq=False, repr=False)
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

    available_flops: float | None = None
    world_size: int = 1
    window_size: int = 100
    separator: str = "/"
    num_data_ranks: int | None = None
    _window: deque[_Totals] = attrs.field(factory=deque, init=False)

    def __attrs_post_init__(self) -> None:
        world_size, action = self.world_size, "Pass None for all ranks."
        check_number(self, least=1, world_size=world_size, window_size=self.window_size)
        check_number(self, action, least=1, most=world_size, or_none=True, num_data_ranks=self.num_data_ranks)
        check_number(self, "Pass None.", above=0, or_none=True, available_flops=self.available_flops)

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
        if last is not None:
            self._check(last, time=time, batches=batches, samples=samples, lengths=lengths)
            if flops is not None:
                if last.flops is None and len(self._window) > 1:
                    self._refuse("flops", "given at every update or at none", flops)
                flops += last.flops or 0.0
        elif flops is not None:
            flops = 0.0
        self._window.append(_Totals(time, batches, samples, lengths, flops))
        while len(self._window) > 2 and self._window[1].batches <= batches - self.window_size:
            self._window.popleft()

    def compute(self) -> dict[str, float]:
        """Return the totals, and from the second update on the rates; empty before the first."""
        if not self._window:
            return {}
        first, last = self._window[0], self._window[-1]
        metrics = {name: total for name, total in last._asdict().items() if name != "flops" and total is not None}
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
        of_all = of_replica * (self.num_data_ranks or self.world_size)
        of_device = of_all / self.world_size
        metrics[f"device{self.separator}{name}"] = of_device
        if self.world_size > 1:
            metrics[name] = of_all
        return of_device

    def _check(self, last: _Totals, *, time: float, **counts: int | None) -> None:
        if not time > last.time:
            self._refuse("time", f"more than at the update before ({last.time})", time)
        for field, count in counts.items():
            before = getattr(last, field)
            if (count is None) != (before is None):
                self._refuse(field, "given at every update or at none", count)
            if count is not None and count < before:
                self._refuse(field, f"at least that of the update before ({before})", count)

    def _refuse(self, field: str, rule: str, value: object) -> None:
        action = "Pass totals that only grow, or call `reset` first."
        raise InvalidArgumentError(field, rule, value, f"{type(self).__name__}.update", action)


def measure_flops(
    model: nn.Module, forward_fn: Callable[[], Any], loss_fn: Callable[[Any], Tensor] | None = None
) -> int:
    """Count the floating-point operations of a model's forward, and of its backward if a loss is given.

    Counts the operations that `torch.utils.flop_counter` knows: matrix products, convolutions and attention; a
    multiplication with its addition counts as two. On the meta device it costs neither memory nor time.

    Args:
        model: The model; the gradients of its parameters are unchanged afterwards.
        forward_fn: Runs the model's forward and returns its outputs.
        loss_fn: Computes a scalar from them, which is differentiated; None counts only the forward.

    Returns:
        The number of operations.

    Example:
        >>> with torch.device("meta"):
        ...     model = nn.Linear(32, 4)
        ...     batch = torch.randn(8, 32)
        >>> measure_flops(model, lambda: model(batch), lambda outputs: outputs.sum())
        4096
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

FORMATS: tuple[ComputeFormat, ...] = (torch.float64, torch.float32, "tf32", torch.float16, torch.bfloat16)
"""The formats of the columns of `PEAK_TERAFLOPS`."""

PEAK_TERAFLOPS: dict[str, tuple[float | None, ...]] = {
    # NVIDIA HGX B200 data sheet (nvidia.com/en-us/data-center/hgx/), an eighth of the board's
    r"\bB200\b": (37, 75, 1125, 2250, 2250),
    # NVIDIA GH200 Grace Hopper Superchip data sheet
    r"\bGH200\b": (34, 67, 494.5, 989.5, 989.5),
    # NVIDIA H200 Tensor Core GPU data sheet (nvidia.com/en-us/data-center/h200/)
    r"\bH200 NVL\b": (30, 60, 417.5, 835.5, 835.5),
    r"\bH200\b": (34, 67, 494.5, 989.5, 989.5),
    # NVIDIA H100 Tensor Core GPU data sheet (nvidia.com/en-us/data-center/h100/)
    r"\bH100 NVL\b": (30, 60, 417.5, 835.5, 835.5),
    r"\bH100 PCIe\b": (26, 51, 378, 756.5, 756.5),
    r"\bH100\b.*\bHBM3\b|\bH100 SXM": (34, 67, 494.5, 989.5, 989.5),
    # NVIDIA A100 Tensor Core GPU data sheet (nvidia.com/en-us/data-center/a100/)
    r"\bA100\b": (9.7, 19.5, 156, 312, 312),
    # NVIDIA A30 data sheet
    r"\bA30\b": (5.2, 10.3, 82, 165, 165),
    # NVIDIA A40 data sheet
    r"\bA40\b": (None, 37.4, 74.8, 149.7, 149.7),
    # NVIDIA A10G data sheet for Amazon EC2 G5 instances
    r"\bA10G\b": (None, 31.5, 35, 70, 70),
    # NVIDIA A10 data sheet
    r"\bA10\b": (None, 31.2, 62.5, 125, 125),
    # NVIDIA L40S GPU data sheet (nvidia.com/en-us/data-center/l40s/)
    r"\bL40S\b": (None, 91.6, 183, 362.05, 362.05),
    # NVIDIA L40 GPU data sheet (nvidia.com/en-us/data-center/l40/)
    r"\bL40\b": (None, 90.5, 90.5, 181.05, 181.05),
    # NVIDIA L4 Tensor Core GPU data sheet (nvidia.com/en-us/data-center/l4/)
    r"\bL4\b": (None, 30.3, 60, 121, 121),
    # NVIDIA T4 data sheet
    r"\bT4\b": (None, 8.1, None, 65, None),
    # NVIDIA V100 Tensor Core GPU data sheet (nvidia.com/en-us/data-center/v100/)
    r"\bV100S\b": (8.2, 16.4, None, 130, None),
    r"\bV100-SXM": (7.8, 15.7, None, 125, None),
    r"\bV100-PCIE\b": (7, 14, None, 112, None),
    # NVIDIA Ada GPU architecture white paper, appendix A
    r"\bRTX 6000 Ada\b": (None, 91.1, 182.1, 364.2, 364.2),
    r"\bGeForce RTX 4090$": (None, 82.6, 82.6, 165.2, 165.2),
    r"\bGeForce RTX 4080$": (None, 48.7, 48.7, 97.5, 97.5),
    # NVIDIA Ampere GA102 GPU architecture white paper
    r"\bRTX A6000\b": (None, 38.7, 77.4, 154.8, 154.8),
    r"\bGeForce RTX 3090$": (None, 35.6, 35.6, 71, 71),
    r"\bGeForce RTX 3080$": (None, 29.8, 29.8, 59.5, 59.5),
    # AMD Instinct accelerator data sheet (amd.com/en/products/accelerators/instinct.html); torch sees each of the two
    # dies of an MI250X as a device of its own
    r"\bMI325X\b": (163.4, 163.4, 653.7, 1307.4, 1307.4),
    r"\bMI300X\b": (163.4, 163.4, 653.7, 1307.4, 1307.4),
    r"\bMI250X\b": (47.85, 47.85, None, 191.5, 191.5),
}
"""Teraflops in each of `FORMATS`, by a regular expression for torch's name of a GPU; the first that matches counts.

They are those of dense matrix products (no structured sparsity, so that some values are half of the data sheet's) on
tensor or matrix cores if there are any for the format, accumulated in float32. float64 and float32 are those of the
vector units on NVIDIA's GPUs, since torch's default does not use tensor cores for float32.
"""


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
    teraflops = next((each for pattern, each in PEAK_TERAFLOPS.items() if re.search(pattern, device_name)), ())
    found = dict(zip(FORMATS, teraflops, strict=False)).get(compute_format)
    return None if found is None else found * 1e12


def get_available_flops(device: torch.device, dtype: torch.dtype) -> float | None:
    """Return the peak floating-point operations per second of a device, an upper limit that no program reaches.

    Args:
        dtype: Dtype of matrix products. For float32 the value is that of TensorFloat-32 if torch is set to use it.

    Returns:
        The value of the vendor's data sheet; None for a CPU, and if `PEAK_TERAFLOPS` does not contain the GPU.
    """
    in_tf32 = dtype == torch.float32 and multiplies_in_tf32()
    return peak_flops(name_of_device(device), "tf32" if in_tf32 else dtype)


def multiplies_in_tf32() -> bool:
    """Return whether torch is set to multiply float32 matrices in TensorFloat-32."""
    # not `allow_tf32`, which raises if the precision was set by the newer name
    return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")
