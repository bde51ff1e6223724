from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from camshaft.callbacks.progress.meter import Reading, current_output
from camshaft.callbacks.progress.rich_display import NotebookDisplay, render

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


pytest.importorskip("IPython", reason="IPython shows outputs in notebooks")

ROW = Reading("Epoch 0/9", 40, 100, 12.0, 18.0, 3.3)


@pytest.fixture
def published() -> Iterator[list[dict[str, Any]]]:
    """What a notebook is told to show."""
    from IPython.core.displaypub import CapturingDisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    shell.display_pub = publisher = CapturingDisplayPublisher(parent=shell)
    yield publisher.outputs
    InteractiveShell.clear_instance()


def test_replaces_one_output_as_text_and_html(published: list[dict[str, Any]]) -> None:
    display = NotebookDisplay()
    display.draw([ROW], [("loss", "0.5000")])
    display.draw([ROW, ROW._replace(label="Validate")], [("loss", "0.2500")])
    display.close()
    first, second = published
    assert not first["update"] and second["update"]
    assert first["transient"]["display_id"] == second["transient"]["display_id"]
    assert "Epoch 0/9" in first["data"]["text/plain"] and "0.5000" in first["data"]["text/html"]
    assert "Validate" in second["data"]["text/html"] and "0.2500" in second["data"]["text/plain"]


def test_a_row_that_is_kept_ends_its_output(published: list[dict[str, Any]]) -> None:
    display = NotebookDisplay()
    display.draw([ROW], [])
    display.keep(ROW._replace(position=100), [])
    display.draw([ROW._replace(label="Epoch 1/9")], [])
    display.close(erase=True)
    drawn, kept, after, erased = published
    assert kept["update"] and "100/100" in kept["data"]["text/plain"]
    assert not after["update"] and after["transient"]["display_id"] != drawn["transient"]["display_id"]
    assert erased["update"] and erased["data"] == {"text/plain": ""}


@pytest.mark.parametrize(("config", "is_notebook"), [({"IPKernelApp": {}}, True), ({}, False)])
def test_a_kernel_is_a_notebook_and_a_shell_is_none(
    config: dict[str, Any], is_notebook: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = SimpleNamespace(config=config)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert (current_output() == "notebook") == is_notebook
