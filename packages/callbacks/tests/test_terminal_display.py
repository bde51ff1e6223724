from __future__ import annotations

import io

import pytest
from rich.console import Console

from camshaft.callbacks.progress.meter import Reading
from camshaft.callbacks.progress.rich_display import render

TRAIN = Reading("Epoch 0/9", 40, 100, 12.0, 18.0, 3.3)
VALIDATE = Reading("Validate", 3, 10, 1.0, 2.0, 12.5)
METRICS = [("loss", "0.1250"), ("val_loss", "0.2500")]


def shown(rows: list[Reading], metrics: list[tuple[str, str]], width: int) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width, color_system=None).print(render(rows, metrics, width))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_puts_metrics_beside_the_first_row_where_there_is_room() -> None:
    first, second = shown([TRAIN, VALIDATE], METRICS, 120)
    assert first.startswith("Epoch 0/9 ━━") and first.endswith(
        " 40/100 0:12 < 0:18  3.3 batches/s loss 0.1250  val_loss 0.2500"
    )
    assert second.startswith("Validate  ━━") and second.endswith("  3/10 0:01 < 0:02 12.5 batches/s")


def test_puts_them_below_where_there_is_not() -> None:
    lines = shown([TRAIN], METRICS, 60)
    assert len(lines) == 2
    assert lines[0].endswith("40/100 0:12 < 0:18 3.3 batches/s") and lines[1] == "loss 0.1250  val_loss 0.2500"


@pytest.mark.parametrize(("width", "ending"), [(55, "3.3 batches/s"), (50, "0:12 < 0:18"), (30, "40/100")])
def test_leaves_out_the_rate_and_then_the_time_on_a_narrow_terminal(width: int, ending: str) -> None:
    (line,) = shown([TRAIN], [], width)
    assert line.startswith("Epoch 0/9 ━━━━") and line.endswith(ending)


@pytest.mark.parametrize("width", [20, 31, 40, 60, 80, 120, 200])
def test_never_takes_more_than_the_width_nor_breaks_a_row(width: int) -> None:
    lines = shown([TRAIN, VALIDATE], [], width)
    assert len(lines) == 2 and all(len(line) <= width for line in lines)


def test_shows_a_pass_without_a_known_end() -> None:
    (line,) = shown([Reading("Epoch 0", 40, None, 12.0, None, 3.3)], [], 100)
    assert line.endswith("40/? 0:12 < -:-- 3.3 batches/s")


@pytest.mark.parametrize("width", range(24, 120))
def test_cuts_no_column_short(width: int) -> None:
    assert not any("…" in line for line in shown([TRAIN, VALIDATE], METRICS, width))
