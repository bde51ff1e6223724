"""Measuring how much is processed per second, and counting the operations of a model."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn

from camshaft.callbacks.errors import InvalidArgumentError


class _Totals(NamedTuple):
    """What was processed until a moment."""

    time: float
    batches: int
    samples: int
    lengths: int | None
    flops: float | None


class Throughput:
    """Rates over a rolling window, from totals that its owner measures.

    Keys of `compute`, those of this process's device with "device" and the separator before them, and those of all
    processes plain, where there are several: `batches_per_sec`, `samples_per_sec`, `items_per_sec` (of `lengths`, such
    as tokens), `flops_per_sec`; of the device alone `mfu`, the share of `available_flops` that is used (model FLOPs
    utilization, Chowdhery et al. 2022, appendix B); and the totals `time` (seconds), `batches`, `samples` and `lengths`
    of this process.

    Processes tell each other nothing: the rates of all are those of this process times their number, which holds where
    they get batches of like size, as synchronous training makes them wait for each other.

    Args:
        available_flops: Peak floating-point operations per second of one device at the dtype that it computes in; None
            leaves `mfu` out.
        world_size: Number of processes, each with a device.
        window_size: Number of batches that rates are averaged over: the latest ones, and what precedes them up to the
            update before.
        separator: Stands between "device" and a name.
        num_data_ranks: Number of processes, or groups of them, that get data of their own; None: all. Where a model is
            split over several devices, each does its part of the work.

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
        for field, count in (("world_size", world_size), ("window_size", window_size)):
            if count < 1:
                raise InvalidArgumentError(field, "1 or more", count, where, "Pass a positive number.")
        if num_data_ranks is not None and not 1 <= num_data_ranks <= world_size:
            rule = f"from 1 to the number of processes ({world_size}), or None"
            raise InvalidArgumentError("num_data_ranks", rule, num_data_ranks, where, "Pass None for all.")
        if available_flops is not None and not available_flops > 0:
            raise InvalidArgumentError("available_flops", "positive or None", available_flops, where, "Pass None.")
        self.available_flops = available_flops
        self.world_size = world_size
        self.window_size = window_size
        self.separator = separator
        self.num_data_ranks = world_size if num_data_ranks is None else num_data_ranks
        self._window: deque[_Totals] = deque()

    def update(
        self, *, time: float, batches: int, samples: int, lengths: int | None = None, flops: float | None = None
    ) -> None:
        """Take in what this process has done until now. The first update is where the rates begin.

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
        """The totals; and the rates, from the second update on. Empty before the first."""
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
        """Forget everything; the next update is a first one again."""
        self._window.clear()

    def _add(self, metrics: dict[str, float], name: str, of_replica: float) -> float:
        """Add a rate for the device and, with several, for all. Returns the device's."""
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

    Counted is what `torch.utils.flop_counter` knows: matrix products, convolutions and attention; a multiplication with
    its addition counts as two. On the meta device it costs neither memory nor time:

        with torch.device("meta"):
            model = Model()
            batch = torch.randn(8, 32)
        flops_per_batch = measure_flops(model, lambda: model(batch), lambda outputs: outputs.sum())

    Args:
        model: The model; the gradients of its parameters are the same afterwards as before.
        forward_fn: Runs the model's forward and returns its outputs.
        loss_fn: Makes a scalar of them, which is differentiated; None counts the forward alone.

    Returns:
        The number of operations.
    """
    from torch.utils.flop_counter import FlopCounterMode

    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, _ in gradients:
        parameter.grad = None  # so that nothing is added to gradients that somebody still needs
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
