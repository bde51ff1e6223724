"""What one stage has processed so far, and how long its device took."""

from __future__ import annotations

from typing import Any

from camshaft.callbacks.rates.device_clock import DeviceClock
from camshaft.callbacks.rates.throughput import Throughput


class StageMeter:
    """Counts a stage's batches on the host, and marks on the device where its time begins, pauses and goes on.

    The time of a run begins with the end of its first batch.

    Args:
        throughput: Makes rates of the totals.

    Attributes:
        throughput: The same.
        batches: Batches so far, over all runs.
        samples: Samples so far.
        lengths: Items so far; None if nobody counts them.
        seconds: Time so far, as of the latest `settle`.
    """

    def __init__(self, throughput: Throughput) -> None:
        self.throughput = throughput
        self.batches = 0
        self.samples = 0
        self.lengths: int | None = None
        self.seconds = 0.0
        self._flops: float | None = None  # since the latest update of the throughput
        self._clock: DeviceClock | None = None
        self._start: Any = None  # of the part that runs
        self._closed: list[tuple[Any, Any]] = []  # parts whose time was not read yet
        self._is_paused = False
        self._num_read = 0

    def begin(self, clock: DeviceClock) -> None:
        """A run begins: its first batch is to come."""
        self.settle()
        self._clock = clock
        self._start = None
        self._is_paused = False
        self.throughput.reset()

    def add(self, samples: int, lengths: int | None, flops: float | None) -> None:
        """Count a batch."""
        self.batches += 1
        self.samples += samples
        if lengths is not None:
            self.lengths = (self.lengths or 0) + lengths
        if self._start is None:
            assert self._clock is not None
            self._start = self._clock.mark()
            self._num_read = self.batches
            self._flops = None if flops is None else 0.0
            self._update()
        elif flops is not None:
            self._flops = (self._flops or 0.0) + flops

    def read(self) -> dict[str, float]:
        """Rates and totals until now; empty if no batch was added since they were read last. Waits for the device."""
        if self._start is None or self.batches == self._num_read:
            return {}
        self.settle()
        self._num_read = self.batches
        self._update()
        return self.throughput.compute()

    def pause(self) -> None:
        """What comes now does not count."""
        if self._start is not None and self._clock is not None and not self._is_paused:
            self._closed.append((self._start, self._clock.mark()))
            self._is_paused = True

    def resume(self) -> None:
        """From here on time counts again."""
        if self._is_paused and self._clock is not None:
            self._start = self._clock.mark()
            self._is_paused = False

    def end(self) -> None:
        """The run is over."""
        self.pause()
        self.settle()
        self.abandon()

    def abandon(self) -> None:
        """The run is over, perhaps by an error after which the device answers no more: read nothing."""
        self._clock = self._start = None
        self._closed = []
        self._is_paused = False

    def settle(self) -> None:
        """Bring `seconds` up to date; waits for the device."""
        clock = self._clock
        if clock is None:
            return
        if self._start is not None and not self._is_paused:
            now = clock.mark()
            self._closed.append((self._start, now))
            self._start = now
        self.seconds += sum(clock.seconds_between(start, end) for start, end in self._closed)
        self._closed = []

    def state_dict(self) -> dict[str, Any]:
        """The totals; waits for the device."""
        self.settle()
        return {
            "batches": self.batches,
            "samples": self.samples,
            "lengths": self.lengths,
            "seconds": self.seconds,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with these totals."""
        self.batches = state["batches"]
        self.samples = state["samples"]
        self.lengths = state["lengths"]
        self.seconds = state["seconds"]

    def _update(self) -> None:
        self.throughput.update(
            time=self.seconds, batches=self.batches, samples=self.samples, lengths=self.lengths, flops=self._flops
        )
        if self._flops is not None:
            self._flops = 0.0
