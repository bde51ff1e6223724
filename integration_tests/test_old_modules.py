"""Research code of 2019 to 2022 trains as it did, without a line of it being touched."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("old")
    command = [sys.executable, str(HERE / "old_modules_run.py"), str(root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    found = {facts["name"]: facts for facts in map(json.loads, done.stdout.splitlines())}
    return found | {"said": done.stderr}


@pytest.fixture
def facts(outcomes: dict[str, Any], request: pytest.FixtureRequest) -> Any:
    found = outcomes[request.param]
    assert "error" not in found, found["error"]
    return found


@pytest.mark.parametrize("facts", ["alternating_gan_0_5"], indirect=True)
def test_a_gan_of_0_5_steps_its_optimizers_in_turn(facts: Any) -> None:
    batches = 12 * 16
    assert (facts["generator_steps"], facts["discriminator_steps"]) == (batches // 2, batches)
    assert facts["distance"] < 1.5, "the generator starts about 4 away"
    norms = facts["gradient_norms"]
    assert len(norms) == 2 * 8, "after each backward of every 25th step"
    assert sum(norm > 0 for norm in norms) >= 12, "the generator's are zero right after its update"
    assert {"g_loss", "d_loss"} <= set(facts["columns"]) and {"g_loss", "d_loss"} <= set(facts["metrics"])


@pytest.mark.parametrize("facts", ["vae_0_7"], indirect=True)
def test_a_vae_of_0_7_has_its_dictionaries_logged_and_monitored(facts: Any) -> None:
    first, *rest = facts["validations"]
    assert first[1] == 2, "the sanity check takes two batches"
    losses = [loss for _, _, loss in rest]
    assert [epoch for epoch, _, _ in rest] == list(range(len(rest))) and losses[-1] < 0.8 * losses[0]
    assert facts["best_score"] == pytest.approx(min(losses)) and "val_loss=" in facts["best"]
    assert facts["metrics"]["val_loss"] == facts["metrics"]["avg_val_loss"] == pytest.approx(losses[-1])
    assert "recons" in facts["progress_bar"] and facts["latent_dim"] == 8 and facts["event_files"] == 1
    assert facts["lr"] == pytest.approx(3e-3 * 0.95 ** len(rest))


@pytest.mark.parametrize("facts", ["classifier_0_8"], indirect=True)
def test_a_classifier_of_0_8_runs_by_its_epoch_ends(facts: Any) -> None:
    called = facts["called"]
    assert called[:3] == ["setup fit", "pre", "post"] and called[-3:] == ["setup test", "post", "teardown test"]
    ends = [what for what in called if what.startswith("training_epoch_end")]
    assert ends == [f"training_epoch_end of {number}" for number in (32, 3, 32, 32, 32, 32)]
    assert facts["global_step"] == 5 * 32 + 3
    assert facts["metrics"]["test_acc"] > 0.8
    assert {"train_loss", "train_epoch_loss", "val_loss", "val_acc", "test_acc"} <= set(facts["columns"])
    assert facts["checkpoints"]


@pytest.mark.parametrize("facts", ["dqn_0_8"], indirect=True)
def test_an_agent_of_0_8_learns_from_the_experience_that_it_makes(facts: Any) -> None:
    assert facts["steps"] == 200 * 4
    assert facts["last"] > 0.4 > facts["first"], "the shortest way is worth 0.6"
    assert {"total_reward", "reward", "train_loss"} <= set(facts["columns"])


@pytest.mark.parametrize("facts", ["language_model_1_1"], indirect=True)
def test_a_language_model_of_1_1_is_trained_in_splits(facts: Any) -> None:
    assert len(facts["seen"]) == 3 * 6 * 4, "four splits of six batches"
    assert all(length == 16 for _, length, _, _ in facts["seen"])
    assert [is_first for _, _, is_first, _ in facts["seen"]] == [True, False, False, False] * 18
    losses = [loss for _, loss in facts["losses"]]
    assert losses[0] < math.log(128) and losses[-1] < 0.8 * losses[0]
    assert [number for number, _ in facts["losses"]] == [24, 24, 24]


@pytest.mark.parametrize("facts", ["manual_gan_1_1"], indirect=True)
def test_a_gan_of_1_1_optimizes_by_hand(facts: Any) -> None:
    assert facts["distance"] < 1.5, "the generator starts about 3.6 away"
    assert {"g_loss", "d_loss"} <= set(facts["metrics"])


@pytest.mark.parametrize("facts", ["finetuning_1_2"], indirect=True)
def test_a_callback_of_1_2_unfreezes_by_milestones(facts: Any) -> None:
    assert [number for _, number, _ in facts["trainable"]] == [0, 0, 2, 2, 4, 4]
    assert facts["num_groups"] == 3
    assert facts["metrics"]["val_acc"] > 0.8 and facts["metrics"]["train_acc"] > 0.8


@pytest.mark.parametrize("facts", ["byol_1_3"], indirect=True)
def test_a_target_network_of_1_3_follows_and_the_rate_warms_up(facts: Any) -> None:
    steps = 4 * 29
    assert facts["steps"] == facts["num_updates"] == len(facts["lrs"]) == steps
    assert facts["lrs"][:10] == pytest.approx([0.05 * step / 10 for step in range(1, 11)])
    assert set(facts["lrs"][10:]) == {0.05}
    assert facts["losses"][-1] < 0.5 * facts["losses"][0]
    assert all(0 < difference < 1 for difference in facts["apart"])


@pytest.mark.parametrize("facts", ["vq_model_1_4"], indirect=True)
def test_an_autoencoder_of_1_4_trains_against_its_discriminator(facts: Any) -> None:
    batches = 6 * 19
    assert facts["optimizer_idxs"] == [0, 1] * batches
    assert len(facts["val"]) == 6 and facts["val"][-1] < 0.8 * facts["val"][0]
    assert [(epoch, batch_idx) for epoch, batch_idx, _, _ in facts["logged"]] == [
        (epoch, batch_idx) for epoch in range(6) for batch_idx in (0, 5, 10, 15)
    ]
    assert facts["prepared"] and all(dataloader_idx == 0 for _, _, dataloader_idx, _ in facts["logged"])
    names = {"train/aeloss_step", "train/aeloss_epoch", "train/discloss_step", "val/rec_loss"}
    assert names <= set(facts["columns"])


def test_the_owner_is_told_once_what_each_module_is_taken_for(outcomes: dict[str, Any]) -> None:
    for name in ("GAN", "VAE", "LitClassifier", "CharLSTM", "BYOL", "ImageLogger"):
        assert len(re.findall(rf"^{name} is taken for", outcomes["said"], re.MULTILINE)) == 1, name
