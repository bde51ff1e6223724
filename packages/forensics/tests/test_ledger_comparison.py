from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ledger_files import lines_of, write

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.forensics import Comparison, compare
from camshaft.forensics.compare import draw

Lines = list[dict[str, Any]]


def bits(value: float) -> str:
    return f"float32:{struct.pack('>f', value).hex()}"


def compared(folder: Path, change: Callable[[Lines], Any], rtol: float | None = None, **header: Any) -> Comparison:
    """Compare a ledger of 8 updates with a changed one."""
    lines = lines_of(8)
    change(lines)
    return compare(write(folder / "a.jsonl", lines_of(8)), write(folder / "b.jsonl", lines, **header), rtol)


def set_in(step: int, **values: Any) -> Callable[[Lines], None]:
    return lambda lines: lines[step - 1].update(values)


def test_equal_runs_are_told_with_their_number_of_steps(tmp_path: Path) -> None:
    found = compared(tmp_path, lambda lines: None)
    assert found.is_equal and str(found) == "Equal for 8 steps"
    long = lines_of(40_000, weights_every=10**9)
    assert str(compare(*(write(tmp_path / name, long) for name in ("c.jsonl", "d.jsonl")))) == "Equal for 40,000 steps"


@pytest.mark.parametrize(
    ("change", "step", "told"),
    [
        (set_in(3, samples=[[[2, 4]]]), 3, "samples: [[4, 2]] and [[2, 4]]"),
        (set_in(3, samples=[["00ff"]]), None, ""),  # one run knows the indices, the other does not
        (set_in(3, random=[{"torch": "01"}]), 3, "random numbers of torch on the CPU"),
        (set_in(3, random=[{"torch": "00", "python": "1"}]), None, ""),  # a digest that only one has
        (set_in(8, batches=[1]), 8, "batches: [0] and [1]"),
        (set_in(2, loss=[[bits(0.5)]]), 2, "loss: 1.0 (float32:3f800000) and 0.5 (float32:3f000000)"),
        (set_in(2, loss=[[bits(1.0), bits(1.0)]]), 2, "loss: 1 and 2 values"),
        (set_in(2, norm=[["float64:7ff8000000000000"]]), 2, "gradient norm: 1.0 (float64:3ff0000000000000) and nan"),
        (set_in(5, weights={"a": "11", "b": "23"}), 5, "weights: b"),
        (set_in(5, optimizer={"0.exp_avg.a": "34"}), 5, "state of the optimizer: 0.exp_avg.a"),
        (set_in(5, settings=[[{"lr": 0.2}]]), 5, "settings of the optimizer.0.0.lr: 0.1 and 0.2"),
    ],
)
def test_the_first_update_at_which_runs_part_is_named_with_the_cause(
    change: Callable[[Lines], Any], step: int | None, told: str, tmp_path: Path
) -> None:
    found = compared(tmp_path, change)
    assert found.step == step and found.num_equal == (8 if step is None else step - 1)
    assert [one.startswith(told) for one in found.differences] == ([] if step is None else [True])
    assert found.is_equal is (step is None) and f"{told}" in str(found)


def test_causes_come_first_and_weights_of_a_later_update_are_named(tmp_path: Path) -> None:
    def change(lines: Lines) -> None:
        lines[2].update(loss=[[bits(2.0)]], samples=[[[1]]], random=[{"torch": "ff"}])
        lines[4].update(weights={"a": "0", "b": "0"})

    found = compared(tmp_path, change)
    assert [one.partition(":")[0] for one in found.differences] == [
        *("samples", "random numbers of torch on the CPU", "loss")
    ]
    assert (found.parameters_step, found.parameters) == (5, ["a", "b"])
    assert str(found).endswith("The first digests of weights from then on, at step 5, differ in\n  a, b")


def test_a_shorter_run_and_another_end_are_not_equal(tmp_path: Path) -> None:
    found = compared(tmp_path, lambda lines: lines.__delitem__(slice(6, None)))
    assert not found.is_equal and found.step is None and found.num_equal == 6
    assert str(found).endswith("b.jsonl ends there, " + str(tmp_path / "a.jsonl") + " goes on to 8")

    end = {"end": 8, "weights": {"a": "1"}, "optimizer": {}, "settings": []}
    one = write(tmp_path / "a.jsonl", [*lines_of(8), end])
    other = write(tmp_path / "b.jsonl", [*lines_of(8), end | {"weights": {"a": "2"}}])
    assert compare(one, one).is_equal
    assert compare(one, other).differences == ["weights: a, after the last update"]


def test_what_differs_from_the_beginning_and_what_was_changed_is_told(tmp_path: Path) -> None:
    note = {"resumed": 2, "changed": {"versions": [{"torch": "2.13"}, {"torch": "2.14"}]}}
    found = compared(tmp_path, lambda lines: lines.insert(2, note), seed="1", versions={"torch": "2.12"})
    assert found.header == ["seed: '0' and '1'", "versions.torch: '2.13' and '2.12'"]
    assert found.is_equal
    assert found.notes == [
        f"{tmp_path / 'b.jsonl'} went on after step 2 with another versions.torch: '2.13' and '2.14'"
    ]


def test_a_tolerance_compares_numbers_by_their_distance(tmp_path: Path) -> None:
    def change(lines: Lines) -> None:
        for line in lines:
            line["random"] = [{"torch": "ff"}]
        lines[0]["random"] = [{"torch": "00"}]
        lines[4]["weights"] = {"a": "0", "b": "0"}
        lines[2]["loss"] = [[bits(1.0 + 2**-10)]]
        lines[5]["loss"] = [[bits(math.inf)]]

    assert compared(tmp_path, change, 0.0).step == 3
    found = compared(tmp_path, change, 1e-3)
    assert found.step == 6 and found.differences == ["loss: 1.0 and inf, inf apart"]
    assert found.curves["loss"][1][:5] == [0.0, 0.0, pytest.approx(2**-10, rel=1e-2), 0.0, 0.0]
    with pytest.raises(InvalidArgumentError, match="`rtol` must be 0 or more"):
        compared(tmp_path, change, -1.0)


def test_runs_of_different_world_sizes_compare_samples_as_a_whole_and_numbers_by_distance(tmp_path: Path) -> None:
    def share(lines: Lines) -> None:
        for line in lines:
            line["samples"] = [[[2]], [[4]], [[2]], [[4]]]
            line["random"] = [{"torch": "1"}] * 4
            line["loss"] = [[bits(0.5)], [bits(1.5)]] * 2
            line["norm"] = [["float64:3ff0000000000001"]] * 4

    ranks = {"world_size": 4, "data_ranks": [0, 1, 0, 1]}
    found = compared(tmp_path, share, **ranks)
    assert found.is_equal and "within a relative distance of 0.001" in str(found)

    def share_others(lines: Lines) -> None:
        share(lines)
        lines[3]["samples"] = [[[2]], [[5]], [[2]], [[5]]]

    found = compared(tmp_path, share_others, **ranks)
    assert found.step == 4 and found.differences == ["samples: [2, 4] and [2, 5]"]

    def share_digests(lines: Lines) -> None:
        share(lines)
        for line in lines:
            line["samples"] = [["0"], ["1"], ["0"], ["1"]]

    assert any(one.startswith("Samples are not compared") for one in compared(tmp_path, share_digests, **ranks).notes)


def test_ledgers_without_a_common_update_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape("['steps 1 to 8', 'steps 11 to 18']")):
        compared(tmp_path, lambda lines: [line.update(step=line["step"] + 10) for line in lines])


def test_a_drawing_shows_how_far_runs_are_apart(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = compared(tmp_path, lambda lines: [line.update(loss=[[bits(1 + 0.1 * line["step"])]]) for line in lines[3:]])
    draw(found, tmp_path / "apart.png")
    assert (tmp_path / "apart.png").stat().st_size > 10_000
