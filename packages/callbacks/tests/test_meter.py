from __future__ import annotations

import math

import pytest

from camshaft.callbacks.progress.meter import Meter, format_clock, format_metrics, format_rate, format_seconds


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def run(meter: Meter, clock: Clock, num_batches: int, seconds_per_batch: float) -> None:
    meter.num_run += num_batches
    clock.now += num_batches * seconds_per_batch


def test_reads_position_rate_and_time_to_go() -> None:
    meter = Meter("Train", 10, clock := Clock())
    run(meter, clock, 4, 0.5)
    reading = meter.read()
    assert (reading.position, reading.total, reading.elapsed_seconds) == (4, 10, 2.0)
    assert (reading.batches_per_second, reading.remaining_seconds) == (2.0, 3.0)


def test_knows_no_rate_before_the_first_batch_and_no_end_of_an_endless_pass() -> None:
    meter = Meter("Train", math.inf, clock := Clock())
    assert meter.read().batches_per_second is None
    run(meter, clock, 2, 1.0)
    reading = meter.read()
    assert (reading.total, reading.remaining_seconds, reading.batches_per_second) == (None, None, 1.0)


def test_a_pause_does_not_count() -> None:
    meter = Meter("Train", 10, clock := Clock())
    run(meter, clock, 2, 1.0)
    meter.pause()
    clock.now += 50
    assert meter.read().elapsed_seconds == 2.0
    meter.resume()
    run(meter, clock, 2, 1.0)
    assert meter.read().elapsed_seconds == 4.0
    assert meter.read().batches_per_second == 1.0


def test_the_rate_follows_a_change_step_by_step() -> None:
    meter = Meter("Train", 1000, clock := Clock())
    run(meter, clock, 10, 1.0)
    assert meter.read().batches_per_second == 1.0
    rates = []
    for _ in range(20):
        run(meter, clock, 10, 0.1)
        rates.append(meter.read().batches_per_second or 0.0)
    assert rates == sorted(rates) and rates[0] < 5 and rates[-1] == pytest.approx(10, rel=0.01)


def test_a_resumed_pass_counts_what_ran_before_in_its_position_alone() -> None:
    meter = Meter("Train", 10, clock := Clock())
    meter.num_before = 6
    run(meter, clock, 2, 0.5)
    reading = meter.read()
    assert (reading.position, reading.batches_per_second, reading.remaining_seconds) == (8, 2.0, 1.0)
    assert meter.summarize() == "2 batches in 1.0 s (2.0 batches/s)"


def test_an_empty_pass_has_no_rate() -> None:
    assert Meter("Train", 0, Clock()).summarize() == "0 batches in 0.0 s"


@pytest.mark.parametrize(
    ("rate", "text"),
    [(1234.5, "1234 batches/s"), (12.34, "12.3 batches/s"), (0.25, "4.0 s/batch"), (0.0, "0 batches/s")],
)
def test_formats_rates(rate: float, text: str) -> None:
    assert format_rate(rate) == text


@pytest.mark.parametrize(
    ("seconds", "clock"), [(None, "-:--"), (0, "0:00"), (59.6, "1:00"), (61, "1:01"), (3725, "1:02:05")]
)
def test_formats_clocks(seconds: float | None, clock: str) -> None:
    assert format_clock(seconds) == clock


def test_formats_seconds() -> None:
    assert [format_seconds(one) for one in (0.04, 59.94, 59.96)] == ["0.0 s", "59.9 s", "1:00"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.5000"),
        (0.0, "0.000"),
        (12345.0, "12345"),
        (1e-5, "1e-05"),
        (1.23456e7, "1.23e+07"),
        (-2.5, "-2.500"),
        (math.nan, "nan"),
        (math.inf, "inf"),
        (3, "3"),
        ("v3", "v3"),
    ],
)
def test_formats_metrics(value: float | int | str, text: str) -> None:
    assert format_metrics({"m": value}) == [("m", text)]
