from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from camshaft.callbacks.progress.meter import Reading, current_output
from camshaft.callbacks.progress.rich_display import NotebookDisplay

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
