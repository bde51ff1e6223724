"""Hooks are called in the order of Lightning 1.6, 1.9 and 2.6, call by call, but for the differences listed here.

The scenarios are those of Lightning's own `test_hooks.py`, with further ones. Those of 1.6.5 and 1.9.5 were recorded
with these releases; that of 2.6 is recorded with the one installed. `hook_orders/recorder.py` does it.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import attrs
import pytest

pytest.importorskip("lightning")
pytestmark = pytest.mark.processes

FOLDER = Path(__file__).parent / "hook_orders"
RELEASES = ("1.6", "1.9", "2.6")
PAGES = Path(__file__).parents[1] / "docs" / "coming-from"
SCENARIOS = re.findall(
    r'^    "([^"]+)": (?:lambda: )?\w', (FOLDER / "recorder.py").read_text().partition("SCENARIOS")[2], re.M
)


@attrs.frozen
class Moved:
    """Calls that come elsewhere.

    Args:
        calls: A pattern of them.
        behind: A pattern of the call that they follow here, or `before` one of the call that they precede; other moved
            calls aside.
        before: See `behind`.
        row: What a page says of it: a part of a line.
        lacking: A pattern of the scenarios with such calls in Lightning alone; `further`, here alone.
        further: See `lacking`.
    """

    calls: str
    row: str
    behind: str = ""
    before: str = ""
    lacking: str = "(?!)"
    further: str = "(?!)"


MOVED = (
    Moved(
        r"\w+\.(on_)?(train|val|test|predict)_dataloader\(.*",
        "| when loaders are asked for |",
        before=r"module\.configure_optimizers.*|callback\.teardown.*|\w+\.on_\w+_model_eval.*",
        further="validate without batches",
    ),
    Moved(
        r"module\.lr_scheduler_step\(.*",
        "| schedulers of epochs |",
        behind=r"module\.(on_train_epoch_end|on_epoch_end)\(\)",
        lacking="fit resumed within an epoch",  # 1.9 steps twice
    ),
    Moved(
        r"(\w+\.(state_dict|on_save_checkpoint)|module\.on_hpc_save)\(.*",
        "| when checkpoints are saved |",
        behind=r"module\.(on_train_epoch_end|on_epoch_end)\(\)",
        further=".*fit.*",  # on_hpc_save
    ),
    Moved(r"callback\.setup\(.*", "| order of setup and teardown |", before=r"(data|module)\.setup\(.*"),
    Moved(r"callback\.teardown\(.*", "| order of setup and teardown |", before=r"(data|module)\.teardown\(.*"),
    Moved(
        r"(\w+\.on_load_checkpoint|module\.on_hpc_load)\(.*",
        "| receivers of on_load_checkpoint and on_save_checkpoint |",
        before=r"module\.configure_optimizers.*",
        further="fit resumed .*",  # on_hpc_load
    ),
)


@attrs.frozen
class Changed:
    """Calls with other arguments."""

    lightning: str
    here: str
    row: str
    scenarios: str = ".*"


CHANGED = (
    Changed(
        r"(module\.(?:configure_gradient_clipping|clip_gradients)\(.*)None\)",
        r"\1'norm')",
        "| algorithm that configure_gradient_clipping gets |",
    ),
    Changed(
        r"((?:callback|module)\.on_train_batch_end\((?:_, _, )?)_(, _, .*)",
        r"\1None\2",
        "| output of a batch without a loss |",
        "fit by hand",
    ),
    Changed(
        r"module\.backward\(_, None, None\)",
        "module.backward(_, None, 0)",
        "`backward` gets 0 as `optimizer_idx` from a module that optimizes by hand",
        "fit by hand",
    ),
)

STARTS = ("callback.on_epoch_start(_, _)", "module.on_epoch_start()")
STARTS += ("callback.on_train_epoch_start(_, _)", "module.on_train_epoch_start()")
"""Calls of 1.6 and 1.9 in the epoch within which a fit resumes, which 2.x leaves out, too."""
NOT_AGAIN = "hooks of an epoch's start are not called again"


def record(package: str, folder: Path, hooks: Path | None = None, *command: str) -> Path:
    written = folder / ("ours.json" if command else "theirs.json")
    words = [
        sys.executable,
        *command,
        str(FOLDER / "recorder.py"),
        package,
        str(written),
        *([str(hooks)] if hooks else []),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(words, check=True, capture_output=True, cwd=folder, env=environment, timeout=300)
    return written


@functools.cache
def recorded(release: str) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return the calls of Lightning and those of camshaft."""
    with tempfile.TemporaryDirectory() as name:
        package = "lightning.pytorch" if release == "2.6" else "pytorch_lightning"
        theirs = record(package, Path(name)) if release == "2.6" else FOLDER / f"{release}.json"
        ours = record(package, Path(name), theirs, "-m", "camshaft.compat", "run")
        return json.loads(theirs.read_text())["calls"], json.loads(ours.read_text())["calls"]


def is_moved(call: str) -> bool:
    return any(re.fullmatch(one.calls, call) for one in MOVED)


def changed(call: str, scenario: str) -> str:
    for one in CHANGED:
        if re.fullmatch(one.scenarios, scenario):
            call = re.sub(f"^{one.lightning}$", one.here, call)
    return call


def check_places(calls: list[str], moved: Moved) -> None:
    """Assert that moved calls stand where it is said that they do."""
    for index, call in enumerate(calls):
        if re.fullmatch(moved.calls, call):
            others = calls[:index][::-1] if moved.behind else calls[index + 1 :]
            nearest = next(one for one in others if not is_moved(one) or re.fullmatch(moved.before, one))
            assert re.fullmatch(moved.behind or moved.before, nearest), (call, nearest)


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("release", RELEASES)
def test_hooks_are_called_in_lightnings_order(release: str, scenario: str) -> None:
    theirs, ours = (calls[scenario] for calls in recorded(release))
    theirs = [changed(call, scenario) for call in theirs]
    if release != "2.6" and scenario == "fit resumed within an epoch":
        theirs = [call for call in theirs if call not in STARTS]
    assert [call for call in ours if not is_moved(call)] == [call for call in theirs if not is_moved(call)]
    for one in MOVED:
        check_places(ours, one)
        here, there = (sorted({c for c in calls if re.fullmatch(one.calls, c)}) for calls in (ours, theirs))
        further = [call for call in here if call not in there]
        assert not further or re.fullmatch(one.further, scenario), further
        assert set(there) <= set(here)
        number_of = [sum(bool(re.fullmatch(one.calls, call)) for call in calls) for calls in (theirs, ours)]
        assert number_of[0] <= number_of[1] or re.fullmatch(one.lacking, scenario)


@pytest.mark.parametrize("release", RELEASES)
def test_every_scenario_ran_to_its_end(release: str) -> None:
    for calls in recorded(release):
        assert sorted(calls) == sorted(SCENARIOS)
        assert all("teardown" in one[-1] for one in calls.values())


def test_the_pages_say_what_differs() -> None:
    pages = "".join((PAGES / name).read_text(encoding="utf-8") for name in ("lightning.md", "earlier-lightning.md"))
    rows: list[Any] = [one.row for one in (*MOVED, *CHANGED)]
    assert [row for row in [*rows, NOT_AGAIN] if row not in pages] == []
