"""Callback that logs throughput."""

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import torch

from camshaft.callbacks.arguments import STAGES, InvalidArgumentError
from camshaft.callbacks.monitors.logging_schedule import log_to_all, next_row
from camshaft.callbacks.monitors.throughput import Throughput, get_available_flops
from camshaft.hooks_core import Callback
from camshaft.hooks_core.protocols import TrainerProtocol
from camshaft.hooks_core.support.devices import name_of_device
from camshaft.hooks_core.support.messages import warn_user


@attrs.define(slots=False, eq=False, repr=False)
class ThroughputMonitor(Callback):
    """Logs the rates and totals of `Throughput` for each stage, under the stage's name and the separator.

    Training is logged after every `trainer.log_every_n_steps` updates, validation within fit at its end, both with the
    number of updates as the step. Validation, test and prediction on their own are logged after as many batches, and at
    their end, with the number of their batches as the step.

    Measures the device's time, from the end of one batch's work to the end of another's: it includes data loading,
    checkpoints and other callbacks between batches, but not validation within training. On CUDA and XPU events in the
    device's stream mark where training pauses and resumes; it waits for the device only when a row is written or a
    checkpoint is saved. The first batch of each run (which includes compilation and the start of data workers) counts
    in the totals of batches and samples, but neither in the rates nor in the time. Only rank 0 measures.

    Args:
        batch_size_fn: Returns the number of samples in a batch on the device.
        length_fn: Returns the number of items (tokens, frames) in a batch; None leaves `items_per_sec` out.
        window_size: Number of batches that rates are averaged over, at least those between two rows.
        flops_per_batch: Floating-point operations of a batch, see `measure_flops`: a number for a training batch, or
            numbers by stage. None is the module's `flops_per_batch`, read at each batch; if it has none, no FLOPs are
            logged.
        available_flops: Peak FLOPs per second of a device; None is that of the device's data sheet, if known.
        dtype: Dtype of matrix products, to look up the peak. None is the strategy's `precision.autocast_dtype`, else
            the dtype of most of the module's parameters.
        separator: Separator between the parts of a name.

    Attributes:
        meters: The measurements, by stage.

    Raises:
        InvalidArgumentError: If an argument is out of range, or a key of `flops_per_batch` is not a stage.
    """

    only_observes = True

    batch_size_fn: Callable[[Any], int]
    length_fn: Callable[[Any], int] | None = None
    _window_size: int = attrs.field(default=100, kw_only=True)
    flops_per_batch: float | Mapping[str, float] | None = attrs.field(default=None, kw_only=True)
    available_flops: float | None = attrs.field(default=None, kw_only=True)
    dtype: torch.dtype | None = attrs.field(default=None, kw_only=True)
    separator: str = attrs.field(default="/", kw_only=True)
    meters: dict[str, "StageMeter"] = attrs.field(init=False)
    _stage: str = attrs.field(default="train", init=False)  # of the current batches
    _is_counting: bool = attrs.field(default=False, init=False)
    _is_fitting: bool = attrs.field(default=False, init=False)
    _evaluation: str = attrs.field(default="validate", init=False)  # stage of batches that are not trained
    _next_row: float = attrs.field(default=math.inf, init=False)
    _every: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        super().__init__()
        for stage in self.flops_per_batch if isinstance(self.flops_per_batch, Mapping) else ():
            if stage not in STAGES:
                rule = f"numbers by stage ({', '.join(STAGES)})"
                raise InvalidArgumentError("flops_per_batch", rule, stage, self, "Name one of these.")
        window_size, separator = self._window_size, self.separator
        rates = (Throughput(self.available_flops, window_size=window_size, separator=separator) for _ in STAGES)
        self.meters = dict(zip(STAGES, map(StageMeter, rates), strict=True))

    @property
    def state_key(self) -> str:
        """Class name, window and separator, which tell the states of two monitors apart."""
        return f"{type(self).__qualname__}(window_size={self._window_size}, separator={self.separator!r})"

    def setup(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Enable measuring, on rank 0 only."""
        self._is_counting = trainer.is_global_zero
        self._is_fitting = stage == "fit"
        self._evaluation = "validate" if self._is_fitting else stage
        self._every = trainer.log_every_n_steps if trainer.loggers else 0

    def on_train_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Start with the next batch."""
        self._begin("train", trainer, module)
        self._schedule(trainer.global_step)

    def on_train_batch_end(
        self, trainer: TrainerProtocol, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count a batch; write a row if it ended an update after which one is due."""
        if self._is_counting:
            self._count(module, batch)
            if trainer.global_step >= self._next_row:
                self._schedule(trainer.global_step)
                self._write(trainer, trainer.global_step - 1)

    def on_train_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Stop the clock."""
        self.meters["train"].end()

    def on_validation_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Start with the next batch; in fit, pause training's clock."""
        if not trainer.sanity_checking:
            self.meters["train"].pause()
            self._begin(self._evaluation, trainer, module)

    def on_validation_batch_end(
        self, trainer: TrainerProtocol, module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Count a batch; write a row if it is due."""
        if not self._is_counting or trainer.sanity_checking:
            return
        self._count(module, batch)
        num_batches = self.meters[self._stage].batches
        if not self._is_fitting and num_batches >= self._next_row:
            self._next_row += self._every
            self._write(trainer, num_batches)

    def on_validation_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Write a last row; in fit, resume training's clock."""
        if not self._is_counting or trainer.sanity_checking:
            return
        meter = self.meters[self._stage]
        if self._every:
            step = max(trainer.global_step - 1, 0)  # the index of the latest update, as in the trainer's rows
            self._write(trainer, step if self._is_fitting else meter.batches)
        meter.end()
        if self._is_fitting:
            self._schedule(trainer.global_step)
            self._stage = "train"
            self.meters["train"].resume()

    on_test_start = on_predict_start = on_validation_start
    on_test_batch_end = on_predict_batch_end = on_validation_batch_end
    on_test_end = on_predict_end = on_validation_end

    def teardown(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Release the device, also after an error."""
        for meter in self.meters.values():
            meter.abandon()
        self._is_counting = False

    def state_dict(self) -> dict[str, Any]:
        """Return the totals of each stage. Waits for the device."""
        return {stage: meter.state_dict() for stage, meter in self.meters.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the totals; rates start anew."""
        for stage, state in state_dict.items():
            self.meters[stage].load_state_dict(state)

    def _begin(self, stage: str, trainer: TrainerProtocol, module: Any) -> None:
        if not self._is_counting:
            return
        self._stage = stage
        meter, strategy = self.meters[stage], trainer.strategy
        throughput = meter.throughput
        throughput.world_size, throughput.num_data_ranks = strategy.world_size, strategy.num_data_ranks
        throughput.available_flops = self.available_flops
        meter.counts_flops = self._flops_of(module) is not None
        if throughput.available_flops is None and meter.counts_flops:
            throughput.available_flops = self._find_peak_flops(strategy, module)
        meter.begin(DeviceClock(strategy.device))
        self._next_row = meter.batches + self._every if self._every else math.inf

    def _count(self, module: Any, batch: Any) -> None:
        lengths = None if self.length_fn is None else int(self.length_fn(batch))
        meter = self.meters[self._stage]
        meter.add(int(self.batch_size_fn(batch)), lengths, self._flops_of(module) if meter.counts_flops else None)

    def _write(self, trainer: TrainerProtocol, step: int) -> None:
        """Write a row, if there are rates. Waits for the device."""
        rates = self.meters[self._stage].read()
        metrics = {f"{self._stage}{self.separator}{name}": value for name, value in rates.items()}
        if metrics:
            log_to_all(trainer, metrics, step)

    def _schedule(self, global_step: int) -> None:
        self._next_row = next_row(global_step, self._every)

    def _flops_of(self, module: Any) -> float | None:
        flops = self.flops_per_batch
        if flops is None:
            flops = getattr(module, "flops_per_batch", None)
        if isinstance(flops, Mapping):
            return flops.get(self._stage)
        return flops if self._stage == "train" else None

    def _find_peak_flops(self, strategy: Any, module: Any) -> float | None:
        dtype = self.dtype or _compute_dtype(strategy, module)
        flops = None if dtype is None else get_available_flops(strategy.device, dtype)
        if flops is None and strategy.device.type != "cpu":
            name = name_of_device(strategy.device)
            warn_user(
                f"The peak FLOPs of {name} in {dtype} are not known, so its MFU is not logged. Pass `available_flops` "
                f"to {type(self).__name__} with what its data sheet says."
            )
        return flops


def _compute_dtype(strategy: Any, module: Any) -> torch.dtype | None:
    """Return the likely dtype of a module's matrix products; None if it has no floating-point parameters."""
    autocast_dtype = getattr(getattr(strategy, "precision", None), "autocast_dtype", None)
    if isinstance(autocast_dtype, torch.dtype):
        return autocast_dtype
    sizes: Counter[torch.dtype] = Counter()
    for parameter in filter(torch.is_floating_point, module.parameters()):
        sizes[parameter.dtype] += parameter.numel()
    return max(sizes, key=sizes.__getitem__, default=None)


_TOTALS = ("batches", "samples", "lengths", "seconds")


@attrs.define
class StageMeter:
    """Counts a stage's batches on the host, and marks on the device where its time starts, pauses and resumes.

    The time of a run starts at the end of its first batch.

    Args:
        throughput: Computes rates from the totals.

    Attributes:
        throughput: The argument.
        batches: Batches so far, over all runs.
        samples: Samples so far.
        lengths: Items so far; None if they are not counted.
        seconds: Time so far, as of the latest `settle`.
        counts_flops: Whether floating-point operations are counted.
    """

    throughput: Throughput
    batches: int = attrs.field(default=0, init=False)
    samples: int = attrs.field(default=0, init=False)
    lengths: int | None = attrs.field(default=None, init=False)
    seconds: float = attrs.field(default=0.0, init=False)
    counts_flops: bool = attrs.field(default=False, init=False)
    _flops: float | None = attrs.field(default=None, init=False)  # since the latest update of `throughput`
    _clock: Any = attrs.field(default=None, init=False)  # of the current run
    _part_start: Any = attrs.field(default=None, init=False)  # mark of the current part, unless paused
    _closed: list[tuple[Any, Any]] = attrs.field(factory=list, init=False)  # parts that are not in `seconds` yet
    _num_read: int | None = attrs.field(default=None, init=False)  # batches at the latest update; None before a first

    def begin(self, clock: "DeviceClock") -> None:
        """Begin a run, before its first batch."""
        self.settle()
        self.abandon()
        self._clock, self._flops = clock, None
        self.throughput.reset()

    def add(self, samples: int, lengths: int | None, flops: float | None) -> None:
        """Count a batch."""
        self.batches += 1
        self.samples += samples
        if lengths is not None:
            self.lengths = (self.lengths or 0) + lengths
        if flops is not None:
            self._flops = (self._flops or 0.0) + flops
        if self._num_read is None:
            self._part_start = self._clock.mark()
            self._accumulate()

    def read(self) -> dict[str, float]:
        """Return rates and totals; empty if no batch was added since the last call. Waits for the device."""
        if self._num_read in (None, self.batches):
            return {}
        self.settle()
        self._accumulate()
        return self.throughput.compute()

    def pause(self) -> None:
        """Pause the clock."""
        if self._part_start is not None:
            self._closed.append((self._part_start, self._clock.mark()))
            self._part_start = None

    def resume(self) -> None:
        """Resume the clock, if a batch has started it."""
        if self._num_read is not None:
            self._part_start = self._clock.mark()

    def end(self) -> None:
        """End the run."""
        self.settle()
        self.abandon()

    def abandon(self) -> None:
        """End the run without reading the device, which may not respond after an error."""
        self._clock = self._part_start = self._num_read = None
        self._closed = []

    def settle(self) -> None:
        """Update `seconds`. Waits for the device."""
        if self._part_start is not None:
            self.pause()
            self._part_start = self._closed[-1][1]
        self.seconds += sum(self._clock.seconds_between(start, end) for start, end in self._closed)
        self._closed = []

    def state_dict(self) -> dict[str, Any]:
        """Return the totals. Waits for the device."""
        self.settle()
        return {name: getattr(self, name) for name in _TOTALS}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the totals."""
        for name in _TOTALS:
            setattr(self, name, state[name])

    def _accumulate(self) -> None:
        self.throughput.update(
            time=self.seconds, batches=self.batches, samples=self.samples, lengths=self.lengths, flops=self._flops
        )
        self._num_read = self.batches
        self._flops = None if self._flops is None else 0.0


class DeviceClock:
    """Measures the duration of a device's work, without waiting for the device at each mark.

    A mark is an event in the device's current stream, reached when the work queued before it is done; on the CPU, which
    has no streams, it is a reading of `time.perf_counter`.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> Any:
        """Mark the end of the work queued so far."""
        if self._device.type == "cpu":
            return time.perf_counter()
        event = torch.Event(self._device, enable_timing=True)
        event.record(torch.accelerator.current_stream(self._device))
        return event

    def seconds_between(self, start: Any, end: Any) -> float:
        """Return the time from one mark to a later one. Waits until the device has reached it."""
        if self._device.type == "cpu":
            return float(end - start)
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000.0
