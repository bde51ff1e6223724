"""Steps that are repeated to find silent corruption."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from launching import run_ranks
from torch import Tensor, nn
from torchmetrics import MeanMetric
from trainer_parts import NO_VALIDATION, ListLogger, Regression, assert_same, loader, quiet_trainer, weights

from camshaft.callbacks import ModelCheckpoint
from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.forensics import CorruptionError, RepeatedStep

pytestmark = pytest.mark.filterwarnings(NO_VALIDATION)


class Noisy(Regression):
    """Draws random numbers, has buffers and metrics, and counts its steps."""

    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5))
        self.mean = MeanMetric()
        self.num_steps = 0

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        self.num_steps += 1
        inputs = self.extra(batch[0].clone())
        batch[0].zero_()  # the next step of this batch would see it
        loss = super().training_step([inputs, batch[1]], batch_idx)
        self.mean(loss.detach())
        self.log("mean", self.mean, on_step=True, on_epoch=True)
        self.log("loss", loss, on_epoch=True)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.1)


def trained(folder: Path, accumulate: int, *callbacks: Any) -> tuple[Noisy, ListLogger, Tensor]:
    torch.manual_seed(0)
    logger = ListLogger()
    trainer = quiet_trainer(
        folder, max_epochs=2, logger=logger, callbacks=list(callbacks), accumulate_grad_batches=accumulate
    )
    module = Noisy()
    trainer.fit(module, loader(7))
    return module, logger, torch.get_rng_state()


@settings(deadline=None, max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(accumulate=st.integers(1, 3), every=st.integers(1, 4))
def test_repetitions_leave_no_trace(tmp_path: Path, accumulate: int, every: int) -> None:
    repeated = RepeatedStep(every_n_steps=every)
    module, logger, numbers = trained(tmp_path, accumulate, repeated)
    expected, expected_logger, expected_numbers = trained(tmp_path, accumulate)
    assert_same(weights(module), weights(expected))
    assert logger.rows == expected_logger.rows and torch.equal(numbers, expected_numbers)
    assert module.num_steps == expected.num_steps == 14
    num_updates = 2 * -(-7 // accumulate)
    assert repeated.num_repeated == -(-num_updates // every) and repeated.left_out == []


class Faulty(Regression):
    """A bit of one tensor flips in one of all forward passes, also of those that are undone."""

    num_passes = 0

    def __init__(self, at_pass: int, where: str) -> None:
        super().__init__()
        self.at_pass, self.where = at_pass, where
        self.register_buffer("steps", torch.zeros(()))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        Faulty.num_passes += 1
        is_faulty = Faulty.num_passes == self.at_pass
        loss = super().training_step(batch, batch_idx)
        if is_faulty and self.where == "gradient":
            loss.register_hook(lambda gradient: torch.nextafter(gradient, gradient + 1))
        self.steps += 1.0 + (is_faulty and self.where == "buffer") * 2**-20
        return torch.nextafter(loss, loss + 1).add(loss - loss.detach()) if is_faulty and self.where == "loss" else loss


@pytest.mark.parametrize("where", ["loss", "gradient", "buffer"])
def test_a_flipped_bit_is_named_before_anything_of_it_is_saved(tmp_path: Path, where: str) -> None:
    Faulty.num_passes = 0
    # three repetitions of the first step, then two steps, then the two repetitions of which the second is wrong
    module, saves = Faulty(3 + 2 + 2, where), ModelCheckpoint(every_n_train_steps=1, save_top_k=-1)
    trainer = quiet_trainer(tmp_path, callbacks=[saves, RepeatedStep(every_n_steps=2)], enable_checkpointing=True)
    with pytest.raises(CorruptionError, match=r"in epoch 0, batch 2: rank 0 \(cpu\): .*" + where) as caught:
        trainer.fit(module, loader(6))
    assert caught.value.batch_idx == 2
    assert any(where in name for name in caught.value.differences[0])
    assert trainer.global_step == 2 and saves.best_model_path.endswith("step=2.ckpt")


class Undetermined(Regression):
    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        torch.zeros(2).put_(torch.tensor([0]), torch.ones(1))  # of which torch says that it is not deterministic
        return loss * (1 + int.from_bytes(os.urandom(2), "big"))


def test_what_differs_at_the_start_is_left_out_with_the_operations_that_torch_knows(tmp_path: Path) -> None:
    repeated = RepeatedStep(every_n_steps=1)
    with pytest.warns(UserWarning, match=r"leaves out .*loss.* Torch knows that put_ is not deterministic"):
        quiet_trainer(tmp_path, callbacks=[repeated]).fit(Undetermined(), loader(4))
    assert "loss" in repeated.left_out and repeated.num_repeated == 4
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_module_that_optimizes_by_hand_is_refused(tmp_path: Path) -> None:
    module = Regression()
    module.automatic_optimization = False
    with pytest.raises(InvalidArgumentError, match="`automatic_optimization` must be True"):
        quiet_trainer(tmp_path, callbacks=[RepeatedStep()]).fit(module, loader(4))


@pytest.mark.processes
def test_the_faulty_one_of_two_ranks_is_named_on_both(tmp_path: Path) -> None:
    outcome = run_ranks(Path(__file__).with_name("comparing_scenes.py"), 2, args=[tmp_path, "corrupted"]).succeeded()
    [first], [second] = outcome.reports
    assert first == second
    differences, num_updates = first
    assert list(differences) == [1] and num_updates == 1
    assert set(differences[1]) == {"loss", "gradient of layer.weight", "gradient of layer.bias"}
