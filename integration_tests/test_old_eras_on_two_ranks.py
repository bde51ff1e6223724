"""Modules of earlier eras train on two processes what they train on one, and decide together."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import run_ranks
from matrix.cases import TOLERANCES
from torch import nn

OLD_ERAS = Path(__file__).parent / "old_eras"
NUM_STEPS = {
    "gan_0_5": 12,
    "gan_0_8": 12,
    "gan_0_8 accumulated": 6,
    "gan_1_x": 12,
    "gan_1_3": 12,
    "manual_gan_1_1": 12,
    "branches_1_4": 12,
    "language_model_0_7": 12,
    "language_model_0_7 accumulated": 12,
    "warmup_0_5": 12,
    "warmup_0_5 accumulated": 6,
    "warmup_0_7": 12,
    "warmup_0_7 accumulated": 6,
    "lbfgs_0_8": 12,
    "warmup_1_2": 12,
    "warmup_1_2 accumulated": 6,
    "step_end_1_1": 12,
    "skipping_0_8": 8,
}
"""The cases of `old_eras/weights.py`, each with the steps that its two epochs of six batches count."""

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """By rank: what came of each case."""
    outcome = run_ranks(OLD_ERAS / "weights.py", 2, args=[str(tmp_path_factory.mktemp("weights"))])
    return [dict(reports) for reports in outcome.succeeded().reports]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("agreement")


@pytest.fixture(scope="module")
def agreed(folder: Path) -> list[dict[str, Any]]:
    """By rank: what each check of `old_eras/agreement.py` found."""
    outcome = run_ranks(OLD_ERAS / "agreement.py", 2, args=[str(folder)], timeout=120)
    return [dict(reports) for reports in outcome.succeeded().reports]


def test_every_case_was_run(trained: list[dict[str, Any]]) -> None:
    assert [list(by_case) for by_case in trained] == [list(NUM_STEPS)] * 2


@pytest.mark.parametrize("name", NUM_STEPS)
def test_weights_are_those_of_one_process_and_a_resumed_run_ends_with_the_same_bits(
    trained: list[dict[str, Any]], name: str
) -> None:
    tolerance = TOLERANCES["64-true" if name == "lbfgs_0_8" else "32-true"]
    for result in (by_case[name] for by_case in trained):
        assert result["moved"] > 0.05  # or nothing was learned
        assert result["error"] <= tolerance
        assert result["same on all ranks"]
        assert result["resumed to the bit"]
        assert [result[run]["steps"] for run in ("alone", "together", "resumed")] == [NUM_STEPS[name]] * 3


@pytest.mark.parametrize("name", NUM_STEPS)
def test_their_hooks_are_called_as_on_one_process_also_in_a_resumed_run(
    trained: list[dict[str, Any]], name: str
) -> None:
    for result in (by_case[name] for by_case in trained):
        alone, together, resumed = (result[run]["seen"] for run in ("alone", "together", "resumed"))
        if name.startswith("language_model"):
            assert together == [((4, *shape[1:]), is_first) for shape, is_first in alone]
        else:
            assert together == alone
        assert resumed == together[len(together) - len(resumed) :]
        assert result["resumed"]["metrics"] == result["together"]["metrics"]


def test_what_they_saw_is_of_their_era(trained: list[dict[str, Any]]) -> None:
    seen = {name: result["together"]["seen"] for name, result in trained[1].items()}
    batches = [(epoch, batch_idx) for epoch in range(2) for batch_idx in range(6)]
    rates = [0.02 * min(1.0, step / 5) for step in range(1, 13)]
    for name in ("warmup_0_5", "warmup_0_7", "warmup_1_2"):
        assert [place for *place, _ in seen[name]] == [list(place) for place in batches]
        assert [rate for *_, rate in seen[name]] == pytest.approx(rates)
        assert [rate for *_, rate in seen[f"{name} accumulated"]] == pytest.approx(rates[:6])
    assert seen["lbfgs_0_8"] == [(*place, True) for place in batches]
    assert seen["language_model_0_7"] == [((4, 4, 2), True), ((4, 4, 2), False)] * 12
    assert seen["gan_1_x"] == [0, 1, 1] * 4, "an optimizer has its turn, of one batch or two"
    assert seen["gan_1_3"] == [0, 1, 1] * 6, "the first optimizer leaves out every second batch"
    of_epoch = ["on_epoch_start", ("training_epoch_end", 6, ["loss"]), "on_epoch_end"]
    assert [one if one[0] == "training_epoch_end" else one[0] for one in seen["step_end_1_1"]] == 2 * of_epoch
    assert seen["skipping_0_8"] == [*range(4), *range(4)]


def test_values_that_1_2_reduces_are_those_of_one_process(trained: list[dict[str, Any]]) -> None:
    for result in (by_case["warmup_1_2"] for by_case in trained):
        assert set(result["alone"]["metrics"]) == {"train_loss", "train_loss_step", "train_loss_epoch"}
        assert result["together"]["metrics"] == pytest.approx(result["alone"]["metrics"], rel=1e-5)


def test_returned_dictionaries_stop_and_choose_together(agreed: list[dict[str, Any]], folder: Path) -> None:
    outputs = [[[0.0, 1.0], [4.0, 5.0]], [[2.0, 3.0]]]
    means = [5.5, 3.5, 4.5, 5.5]  # the first rank alone would go on, the second stop in the same epoch
    for rank, found in enumerate(by_check["dictionaries_0_8"] for by_check in agreed):
        assert found["seen"] == [(epoch, outputs[rank]) for epoch in range(4)], "an epoch's end gets a process's own"
        # `current_epoch` is the last one after a fit, as it was in 0.8
        assert found["epochs"] == 3 and found["best"] == "epoch=1.ckpt" and found["best_score"] == 3.5
        assert found["metrics"]["val_loss"] == found["metrics"]["avg_val_loss"] == 5.5 and found["shown"] == 6.5
    (path,) = folder.glob("csv/**/metrics.csv")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["avg_val_loss"]) for row in rows if row.get("avg_val_loss")] == means
    assert len([row for row in rows if row.get("train_loss")]) == 8


def test_a_process_without_a_batch_leaves_out_the_end_that_puts_outputs_together(agreed: list[dict[str, Any]]) -> None:
    first, second = (by_check["few_batches_0_8"] for by_check in agreed)
    assert first["seen"] == [1, 1, 1] and second["seen"] == []
    for found in (first, second):
        assert found["metrics"]["val_loss"] == found["metrics"]["avg_val_loss"] == 3.0


def test_hooks_of_1_x_run_on_both_and_every_name_of_the_rank_is_right(agreed: list[dict[str, Any]]) -> None:
    evaluated = [("validation_epoch_end", 2, 20.0), ("validation_epoch_end", 2, 36.0)]
    for rank, found in enumerate(by_check["hooks_1_5"] for by_check in agreed):
        validation = ["on_epoch_start", evaluated[rank], "on_epoch_end"]
        of_fit = ["setup fit", *validation, "on_epoch_start", *validation, "on_epoch_end", "teardown fit"]
        assert found["seen"] == (["prepare_data", *of_fit, "rank_zero_only"] if rank == 0 else of_fit)
        assert found["asked"] == (rank == 0, rank, rank, rank, rank)
        assert found["of_trainer"] == (2, True, "ddp", 2)
        values = {"rank": 0.5, "rank_step": 0.5, "rank_epoch": 0.5, "own": float(rank), "summed": 56.0}
        assert found["metrics"] == values


def test_data_of_0_x_is_prepared_by_the_first_process(agreed: list[dict[str, Any]]) -> None:
    first, second = (by_check["preparing_0_8"] for by_check in agreed)
    assert first["seen"] == ["prepare_data", "setup fit"] and second["seen"] == ["setup fit"]
    assert first["batches"] == second["batches"] == 2, "each takes its share"


def test_a_sampler_that_a_module_of_0_5_makes_for_several_processes_is_used_as_it_is(
    agreed: list[dict[str, Any]],
) -> None:
    of_ranks = [by_check["own_sampler_0_5"] for by_check in agreed]
    for epoch in range(2):
        shares = [found["seen"][epoch] for found in of_ranks]
        assert sorted(shares[0] + shares[1]) == [float(number) for number in range(16)]
    assert of_ranks[0]["seen"][0] != of_ranks[0]["seen"][1], "each epoch draws an order of its own"
    assert [found["tested"] for found in of_ranks] == [[{"test_loss": 7.5}]] * 2


def test_one_process_that_wants_to_stop_stops_both_at_the_same_step(agreed: list[dict[str, Any]]) -> None:
    first, second = (by_check["stopping_1_3"] for by_check in agreed)
    assert first == second
    assert 8 + 3 <= first["steps"] <= 2 * 8 and first["epochs"] <= 2


def test_one_process_that_skips_the_rest_of_an_epoch_skips_it_for_both(agreed: list[dict[str, Any]]) -> None:
    first, second = (by_check["skipping"] for by_check in agreed)
    assert first == second
    run = [(0, batch_idx) for batch_idx in range(3)] + [(1, batch_idx) for batch_idx in range(5)]
    assert [seen for seen, _ in first.values()] == [run, run]


STARTED_AS_EVER = """
import sys

import torch
from launching import report

from camshaft.compat import install_aliases

install_aliases()

import pytorch_lightning as pl
from torch.utils.data import DataLoader, TensorDataset


class Old(pl.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layer = torch.nn.Linear(4, 1)
        self.unused = torch.nn.Linear(2, 2)

    def training_step(self, batch, batch_nb):
        loss = self.layer(batch[0]).square().mean()
        return {"loss": loss, "log": {"train_loss": loss}}

    def configure_optimizers(self):
        return torch.optim.SGD(self.layer.parameters(), lr=0.1)


model = Old()
data = TensorDataset(torch.randn(16, 4, generator=torch.Generator().manual_seed(4)))
trainer = pl.Trainer(gpus=0, distributed_backend="ddp_cpu", num_processes=2, max_epochs=2, show_progress_bar=False,
                     weights_summary=None, logger=False, checkpoint_callback=False, default_save_path=sys.argv[1])
trainer.fit(model, DataLoader(data, batch_size=4))
weight, bias = model.layer.weight.detach(), model.layer.bias.detach()
report((trainer.proc_rank, trainer.world_size, trainer.global_step, weight, bias))
"""


def test_ddp_cpu_starts_its_processes_which_train_what_a_loop_trains(tmp_path: Path) -> None:
    outcome = run_ranks(STARTED_AS_EVER, 2, launcher="bare", args=[str(tmp_path)]).succeeded()
    torch.manual_seed(3)
    layer = nn.Linear(4, 1)
    data = torch.randn(16, 4, generator=torch.Generator().manual_seed(4))
    for batch in [*data.split(8), *data.split(8)]:
        gradients = torch.autograd.grad(layer(batch).square().mean(), list(layer.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(layer.parameters(), gradients, strict=True):
                parameter -= 0.1 * gradient
    for rank, ((*facts, weight, bias),) in enumerate(outcome.reports):
        assert facts == [rank, 2, 4]
        assert torch.allclose(weight, layer.weight, rtol=0, atol=TOLERANCES["32-true"])
        assert torch.allclose(bias, layer.bias, rtol=0, atol=TOLERANCES["32-true"])
