"""What a trainer shows of its loops; above all the number of updates that schedulers ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset
from trainer_parts import NO_VALIDATION, Regression, loader, quiet_trainer

pytestmark = pytest.mark.filterwarnings(NO_VALIDATION)


class Asking(Regression):
    """Asks in `configure_optimizers`, where schedulers are made."""

    estimate: Any = None

    def configure_optimizers(self) -> Any:
        self.estimate = self.trainer.estimated_stepping_batches
        return super().configure_optimizers()


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        for _ in range(8):
            yield torch.ones(3), torch.ones(1)


@settings(max_examples=25, deadline=None)
@given(
    num_batches=st.integers(1, 6),
    max_epochs=st.integers(1, 3),
    accumulate=st.integers(1, 4),
    max_steps=st.one_of(st.just(-1), st.integers(1, 20)),
    limit=st.one_of(st.none(), st.integers(1, 8)),
)
def test_the_estimate_is_the_number_of_updates_that_are_made(
    num_batches: int, max_epochs: int, accumulate: int, max_steps: int, limit: int | None
) -> None:
    module = Asking()
    trainer = quiet_trainer(
        ".", max_epochs=max_epochs, max_steps=max_steps, accumulate_grad_batches=accumulate, limit_train_batches=limit
    )
    trainer.fit(module, loader(num_batches))
    assert module.estimate == trainer.global_step == trainer.estimated_stepping_batches
    assert type(module.estimate) is int


def test_one_cycle_comes_out_even(tmp_path: Path) -> None:
    class Cycle(Regression):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.01)
            num_steps = self.trainer.estimated_stepping_batches
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=num_steps)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    module, trainer = Cycle(), quiet_trainer(tmp_path, max_epochs=3, accumulate_grad_batches=2)
    trainer.fit(module, loader(5))
    schedule = trainer.lr_scheduler_configs[0].scheduler
    assert schedule.last_epoch == trainer.global_step == 9
    assert module.lr_schedulers() is schedule
    assert module.optimizers() is trainer.optimizers[0]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"max_epochs": 3}, float("inf")),
        ({"max_epochs": -1, "max_steps": 5}, 5),
        ({"max_epochs": 3, "limit_train_batches": 4}, 12),
        ({"max_epochs": 3, "max_time": "00:01:00:00"}, float("inf")),
        ({"max_epochs": 2, "accumulate_grad_batches": 3, "limit_train_batches": 4}, 4),
    ],
    ids=str,
)
def test_a_stream_has_no_estimate_but_for_its_limits(
    arguments: dict[str, Any], expected: float, tmp_path: Path
) -> None:
    module = Asking()
    quiet_trainer(tmp_path, **arguments).fit(module, DataLoader(Stream(), batch_size=1))
    assert module.estimate == expected


def test_before_the_loader_is_known_the_estimate_is_an_error(tmp_path: Path) -> None:
    class Early(Regression):
        def setup(self, stage: str) -> None:
            print(self.trainer.estimated_stepping_batches)

    rule = r"`estimated_stepping_batches` is not known before `configure_optimizers`.*Move the code that needs it there"
    with pytest.raises(RuntimeError, match=rule):
        quiet_trainer(tmp_path).fit(Early(), loader())


def test_limits_can_be_read_back(tmp_path: Path) -> None:
    arguments = {
        "max_epochs": 3,
        "min_epochs": 2,
        "max_steps": 40,
        "min_steps": 5,
        "limit_train_batches": 0.5,
        "limit_val_batches": 2,
        "limit_test_batches": 3,
        "limit_predict_batches": 0.25,
        "val_check_interval": 0.5,
        "check_val_every_n_epoch": 2,
        "accumulate_grad_batches": 4,
        "gradient_clip_val": 0.5,
        "gradient_clip_algorithm": "value",
        "log_every_n_steps": 7,
        "reload_dataloaders_every_n_epochs": 2,
    }
    trainer = quiet_trainer(tmp_path, **arguments)
    assert {name: getattr(trainer, name) for name in arguments} == arguments
    assert quiet_trainer(tmp_path, max_epochs=None).max_epochs == 1000
    assert quiet_trainer(tmp_path, max_epochs=-1).max_epochs == -1
    assert quiet_trainer(tmp_path, max_epochs=None, max_steps=3).max_epochs == -1
    assert quiet_trainer(tmp_path, overfit_batches=0.5).overfit_batches == 0.5
    assert quiet_trainer(tmp_path).fast_dev_run is False
    assert quiet_trainer(tmp_path, fast_dev_run=3).fast_dev_run == 3


def test_hooks_can_be_read_from_the_first_verb_on(tmp_path: Path) -> None:
    trainer = quiet_trainer(tmp_path)
    with pytest.raises(RuntimeError, match=r"`run` must be started"):
        _ = trainer.hooks
    trainer.validate(Regression(), loader())
    assert trainer.hooks.validation_step is not None
