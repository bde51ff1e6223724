"""Where one of two processes no longer takes part, both end in time, and say which is missing and where it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from launching import Launcher, run_ranks

pytestmark = pytest.mark.processes

STEP = "fit, stage train, epoch 0, batch 2"
VALIDATION = "fit, stage validate, epoch 0"
SAVING = "fit, stage train, epoch 0, saving a checkpoint"


def output_of(where: str, victim: int, kind: str, folder: Path, launcher: Launcher = "forked") -> str:
    script, arguments = Path(__file__).with_name("hanging_training.py"), [folder, where, str(victim), kind]
    outcome = run_ranks(script, 2, launcher=launcher, args=arguments, timeout=120)
    assert outcome.exit_code != 0
    return outcome.output


@pytest.mark.parametrize(
    ("where", "victim", "kind", "at", "others_at"),
    [
        ("training_step", 1, "ddp", f"{STEP}, hook `training_step`", f"{STEP}, collective `backward`"),
        (
            "on_validation_epoch_end",
            0,
            "ddp",
            f"{VALIDATION}, hook `on_validation_epoch_end`",
            f"{VALIDATION}, collective `all_gather`",
        ),
        ("saving", 0, "ddp", SAVING, f"{SAVING}, collective `all_gather`"),
        ("saving", 1, "sharded", SAVING, f"{SAVING}, collective `all_gather`"),
    ],
)
def test_a_rank_that_hangs_is_named_with_its_position_and_prints_its_stack(
    where: str, victim: int, kind: str, at: str, others_at: str, tmp_path: Path
) -> None:
    output = output_of(where, victim, kind, tmp_path)
    of_survivor = "\n".join(re.findall(rf"^\[rank{1 - victim}\]: (.*)", output, re.MULTILINE))
    assert f"Rank {victim} is missing in a collective that others wait in:" in of_survivor
    assert re.search(rf"^rank {victim}: {at}, since \d+ s \(at hanging_training.py:\d+ in hang\)", of_survivor, re.M)
    assert re.search(rf"^rank {1 - victim}: {others_at}, since \d+ s", of_survivor, re.M)
    stack = output.partition(f"[camshaft] Rank {victim}, which the others wait for, is at:\n")[2]
    assert re.search(r'^\[camshaft\]   File ".*hanging_training.py", line \d+, in hang$', stack, re.M)
    assert f"are in {tmp_path}/flight_recorder_<rank>. Read them with `torchfrtrace" in of_survivor
    assert all((tmp_path / f"flight_recorder_{rank}").is_file() for rank in range(2))


def test_ranks_that_wait_in_different_collectives_as_one_left_one_out_are_told_where(tmp_path: Path) -> None:
    output = output_of("left_out", 1, "ddp", tmp_path)
    assert "Every rank waits, but not in the same collective; every rank must call the same ones:" in output
    assert re.search(r"rank 0: fit, stage train, epoch 0, batch 3, collective `backward`, since \d+ s", output)
    assert re.search(r"rank 1: fit, stage validate, epoch 0, collective `all_gather`, since \d+ s", output)


def test_a_rank_within_c_code_that_holds_the_interpreter_prints_its_stack_and_is_named(tmp_path: Path) -> None:
    output = output_of("c_code", 1, "ddp", tmp_path, "torchrun")
    assert "[camshaft] Rank 1 failed, which ends the run on every rank: its process gave no sign of life" in output
    assert re.search(r"rank 1: fit, .*no sign of life for \d+ s", output)
    assert re.search(r'^  File ".*hanging_training.py", line \d+ in training_step$', output, re.MULTILINE)
