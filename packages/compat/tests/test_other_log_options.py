"""A name that is logged with other options: an error from release 1.4 on, as in Lightning; before, the latest count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from compat_parts import Regression, quiet_trainer
from torch import Tensor
from trainer_parts import NO_VALIDATION, ListLogger, loader

pytestmark = [pytest.mark.filterwarnings(NO_VALIDATION)]


def fitted(tmp_path: Path, release: str, *options: dict[str, Any]) -> tuple[Any, ListLogger]:
    """A trainer whose module has logged a name in each batch with each of these options, and its logger."""

    class Logging(Regression):
        hook_era = release

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
            for each in options:
                self.log("x", float(batch_idx), **each)
            return self.loss(batch)

    logger = ListLogger()
    trainer = quiet_trainer(tmp_path, max_epochs=1, logger=logger, log_every_n_steps=1)
    trainer.fit(Logging(), loader(4))
    return trainer, logger


OTHERS = {
    "prog_bar": ({"prog_bar": False}, {"prog_bar": True}),
    "logger": ({"logger": False}, {"logger": True}),
    "on_epoch": ({"on_epoch": False}, {"on_epoch": True}),
    "on_step": ({"on_step": False, "on_epoch": True}, {"on_step": True, "on_epoch": True}),
    "reduce_fx": ({"reduce_fx": "mean", "on_epoch": True}, {"reduce_fx": "sum", "on_epoch": True}),
}


@pytest.mark.parametrize("release", ["1.4", "1.9", "2.6"])
@pytest.mark.parametrize("name", OTHERS)
def test_from_1_4_on_it_is_an_error(tmp_path: Path, release: str, name: str) -> None:
    with pytest.raises(ValueError, match=f"`{name}` must be the same in every call of an epoch"):
        fitted(tmp_path, release, *OTHERS[name])


@pytest.mark.parametrize("release", ["1.0", "1.3"])
@pytest.mark.parametrize("name", OTHERS)
def test_before_it_is_none(tmp_path: Path, release: str, name: str) -> None:
    fitted(tmp_path, release, *OTHERS[name])


def test_the_latest_options_count(tmp_path: Path) -> None:
    trainer, logger = fitted(tmp_path, "1.3", {"on_step": True}, {"on_step": False, "on_epoch": True, "prog_bar": True})
    assert [row["x"] for _, row in logger.rows if "x" in row] == [1.5]
    assert trainer.progress_bar_metrics["x"] == 1.5
    trainer, logger = fitted(tmp_path, "1.3", {"on_epoch": True}, {"on_step": True})
    assert [row["x"] for _, row in logger.rows if "x" in row] == [0, 1, 2, 3]


def test_with_one_process_sync_dist_may_differ_as_in_lightning(tmp_path: Path) -> None:
    trainer, _ = fitted(tmp_path, "2.6", {"sync_dist": True}, {"sync_dist": False}, {})
    assert trainer.callback_metrics["x"] == 3


def test_a_module_that_is_of_1_x_by_optimizer_idx_alone_may_log_with_other_options(tmp_path: Path) -> None:
    class Logging(Regression):
        def training_step(self, batch: list[Tensor], batch_idx: int, optimizer_idx: int) -> Any:
            self.log("x", 1.0, prog_bar=True)
            self.log("x", 2.0)
            return self.loss(batch)

        def configure_optimizers(self) -> Any:
            return [super().configure_optimizers(), super().configure_optimizers()], []

    trainer = quiet_trainer(tmp_path, max_epochs=1)
    trainer.fit(Logging(), loader(4))
    assert trainer.callback_metrics["x"] == 2
