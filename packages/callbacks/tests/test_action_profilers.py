"""Profilers of named actions, by hand and around the hooks of a trainer."""

from __future__ import annotations

import copy
import pickle
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from camshaft.callbacks import ActionProfiler, AdvancedProfiler, PassThroughProfiler, PyTorchProfiler, SimpleProfiler
from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.callbacks.profiling.pytorch_profiler import RegisterRecordFunction


def busy(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


class Listing(ActionProfiler):
    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.calls: list[str] = []

    def start(self, action_name: str) -> None:
        self.calls.append(f"+{action_name}")

    def stop(self, action_name: str) -> None:
        self.calls.append(f"-{action_name}")

    def summary(self) -> str:
        return self._stats_to_str({"a": "much"})


def test_an_action_ends_also_after_an_error() -> None:
    profiler = Listing()
    with pytest.raises(KeyError), profiler.profile("a") as name:
        raise KeyError(name)
    assert profiler.calls == ["+a", "-a"]


def test_a_report_is_appended_to_the_file_of_its_stage_or_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profiler = Listing(filename="mine")
    profiler.setup("fit", local_rank=1, log_dir=str(tmp_path / "logs"))
    profiler.describe()
    profiler.describe()
    (path,) = (tmp_path / "logs").iterdir()
    assert path.name == "fit-mine-1.txt"
    assert path.read_text() == 2 * "FIT Profiler Report\nProfile stats for: a rank: 1\nmuch"
    assert capsys.readouterr().out == ""
    Listing().describe()
    assert capsys.readouterr().out == "Profiler Report\nProfile stats for: a\nmuch\n"


def test_a_folder_that_is_a_path_stays_one(tmp_path: Path) -> None:
    profiler = Listing(dirpath=tmp_path, filename="report")
    profiler.setup("fit")
    profiler.describe()
    assert (profiler.dirpath / "fit-report.txt").read_text()  # type: ignore[operator]
    assert Listing(dirpath=str(tmp_path)).dirpath == str(tmp_path)


def test_durations_are_summed_in_a_table() -> None:
    profiler = SimpleProfiler()
    for seconds in (0.01, 0.03):
        with profiler.profile("slow"):
            busy(seconds)
    with profiler.profile("a much longer name"):
        pass
    first, second = profiler.recorded_durations["slow"]
    assert first >= 0.01 and second >= 0.03
    lines = profiler.summary().expandtabs().splitlines()
    rows = [line.split() for line in lines if line.startswith("|")]
    assert [row[1] for row in rows] == ["Action", "Total", "slow", "a"]
    assert len({len(line) for line in lines if line.startswith("|")}) == 1
    assert rows[2][5] == "2"
    brief = SimpleProfiler(extended=False)
    with brief.profile("slow"):
        pass
    assert "Num calls" not in brief.summary()
    assert SimpleProfiler(extended=False).summary() == "Profiler Report\n\n"


def test_an_action_cannot_run_twice_at_once_nor_end_before_it_began() -> None:
    profiler = SimpleProfiler()
    profiler.start("a")
    with pytest.raises(ValueError, match="Attempted to start a, which has already started"):
        profiler.start("a")
    for one in (profiler, AdvancedProfiler()):
        with pytest.raises(ValueError, match=r"Attempting to stop recording an action \(b\) which was never started"):
            one.stop("b")


def test_functions_are_those_of_the_innermost_action(tmp_path: Path) -> None:
    profiler = AdvancedProfiler(tmp_path, "mine", dump_stats=True)
    with profiler.profile("outer"):
        busy(0.01)
        with profiler.profile("inner/one"):
            time.sleep(0)
        busy(0.01)
    profiler.describe()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine-inner_one.prof", "mine-outer.prof", "mine.txt"]
    outer, _, inner = (tmp_path / "mine.txt").read_text().partition("Profile stats for: inner/one")
    assert "(busy)" in outer and "time.sleep" not in outer
    assert "time.sleep" in inner and "(busy)" not in inner
    assert sys.getprofile() is None


@pytest.mark.parametrize("kind", [SimpleProfiler, AdvancedProfiler, PyTorchProfiler, PassThroughProfiler])
def test_profilers_are_copied_and_pickled(kind: type[ActionProfiler]) -> None:
    profiler = kind(filename="mine")
    with profiler.profile("a"):
        assert copy.deepcopy(profiler).filename == pickle.loads(pickle.dumps(profiler)).filename == "mine"
    profiler.teardown(None)


def test_torchs_profiler_has_actions_and_submodules_as_ranges(tmp_path: Path) -> None:
    profiler = PyTorchProfiler(tmp_path, "mine", schedule=None)
    model = torch.nn.Sequential(torch.nn.Linear(1, 1))
    with profiler.profile("a"), RegisterRecordFunction(model):
        model(torch.ones(1, 1))
    profiler.describe()
    assert profiler.function_events is not None
    names = {event.name for event in profiler.function_events}
    assert {"[pl][profile]a", "[pl][module]torch.nn.modules.linear.Linear: 0", "aten::linear"} <= names
    assert "aten::linear" in (tmp_path / "mine.txt").read_text()
    assert not torch.autograd.profiler._is_profiler_enabled
    assert not model[0]._forward_hooks and not model[0]._forward_pre_hooks


def test_arguments_of_torch_are_checked() -> None:
    with pytest.raises(InvalidArgumentError, match="`sort_by_key` must be a column"):
        PyTorchProfiler(sort_by_key="time")
    with pytest.raises(InvalidArgumentError, match="`schedule` must be a function of a step's number"):
        PyTorchProfiler(schedule=lambda step: None)
    with pytest.raises(TypeError, match=r"`kwargs` must be further arguments of `profile`.*\['depth'\]"):
        PyTorchProfiler(depth=3)
    with pytest.raises(TypeError, match=r"further arguments of `EventList.table`.*\['row_limit'\]"):
        PyTorchProfiler(table_kwargs={"row_limit": 1})
    with pytest.raises(InvalidArgumentError, match="`line_count_restriction` must be 0 or more"):
        AdvancedProfiler(line_count_restriction=-1)
