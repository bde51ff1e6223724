"""What training communicates, against a loop by hand: collectives and bytes of every kind of step."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from communication_ranks import NUM_BATCHES, NUM_RANKS, WINDOW, cases
from launching import run_ranks

pytestmark = pytest.mark.processes

STEPS = ("first batch of a window", "batch inside of a window", "last batch of a window")
EVALUATION = ("first evaluation batch", "evaluation batch")
Found = dict[str, tuple[dict[str, Counter[str]], dict[str, Counter[str]]]]


@pytest.fixture(scope="module")
def found() -> list[Found]:
    """By rank and case: what the trainer communicated by moment, and what the loop by hand did."""
    return run_ranks(Path(__file__).with_name("communication_ranks.py"), NUM_RANKS, timeout=360).succeeded().named


@pytest.mark.parametrize("name", [case.name for case in cases()])
def test_steps_communicate_as_by_hand(found: list[Found], name: str) -> None:
    for of_rank in found:
        ours, by_hand = of_rank[name]
        for moment in STEPS:
            expected = by_hand.get(moment, Counter())
            if name.startswith("ddp"):  # tells ranks its final buckets in its second forward, which ours has at set-up
                del expected["broadcast of integers"], expected["bytes of broadcast of integers"]
            assert ours.get(moment, Counter()) == expected, moment


@pytest.mark.parametrize("name", [case.name for case in cases()])
def test_evaluation_communicates_as_by_hand(found: list[Found], name: str) -> None:
    for of_rank in found:
        ours, by_hand = of_rank[name]
        assert ours.get(EVALUATION[0]) == by_hand.get(EVALUATION[0])
        expected = by_hand.get(EVALUATION[1])
        if (
            name == "sharded, default policy"
        ):  # its own parameters do not stay whole from batch to batch, unlike by hand
            expected = Counter({kind: NUM_EVALUATED * count for kind, count in by_hand[EVALUATION[0]].items()})
        assert ours.get(EVALUATION[1]) == expected


NUM_EVALUATED = 2  # after the first


def test_gradients_that_wait_for_the_end_of_a_window_are_not_communicated(found: list[Found]) -> None:
    inside = 2 * (NUM_BATCHES // WINDOW - 1)  # steps inside of the second window
    for kind, gathers in (("reduce", 10), ("keep", 10), ("keep_all", 5)):
        for strategy in ("sharded", "hybrid", "tensor parallel"):
            for of_rank in found:
                counts = of_rank[f"{strategy}, windows, {kind}"][0]["batch inside of a window"]
                assert counts["all-gather"] == gathers * inside
                assert counts["reduce-scatter"] == (5 * inside if kind == "reduce" else 0)
                assert strategy == "tensor parallel" or counts["all-reduce"] == 0
    assert all("batch inside of a window" not in of_rank["ddp, windows"][0] for of_rank in found)


@pytest.mark.parametrize("name", [case.name for case in cases()])
def test_all_else_communicates_no_tensors_of_the_model(found: list[Found], name: str) -> None:
    budgets = {  # collectives and bytes, whatever the size of the model
        "between batches": (NUM_BATCHES + 4, 1_000),  # rounds of agreement, and the end of the epoch
        "validation end": (3, 3_000),
        "epoch end": (5, 5_000),
        "saving": (30, 300_000),  # states of all ranks, and plans
    }
    for of_rank in found:
        ours, _ = of_rank[name]
        for moment, (count, num_bytes) in budgets.items():
            counts = ours[moment]
            kinds = [kind for kind in counts if not kind.startswith("bytes of")]
            assert all(kind.endswith(" of integers") for kind in kinds), (moment, counts)
            # a step that is logged exchanges all its values at once
            logged = (
                (2 * NUM_BATCHES, 1_200 * NUM_BATCHES)
                if (name, moment) == ("ddp, logged", "between batches")
                else (0, 0)
            )
            assert sum(counts[kind] for kind in kinds) <= count + logged[0], (moment, counts)
            assert sum(counts[f"bytes of {kind}"] for kind in kinds) <= num_bytes + logged[1], (moment, counts)


def test_the_loop_by_hand_was_counted(found: list[Found]) -> None:
    by_hand: Any = found[0]["hybrid"][1]["last batch of a window"]
    assert by_hand["all-reduce"] == NUM_BATCHES // 2 * 6  # five units, and the norm
