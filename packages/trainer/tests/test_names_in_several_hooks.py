"""One name that is logged in several hooks: a result for each, of which the later one is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from trainer_parts import NO_VALIDATION, ListLogger, Regression, loader, quiet_trainer

from camshaft.hooks_core import Callback

pytestmark = pytest.mark.filterwarnings(NO_VALIDATION)


def values(rows: list[tuple[int | None, dict[str, float]]]) -> list[dict[str, float]]:
    """What was logged, without the epoch and what the regression logs itself."""
    return [row for _, metrics in rows if (row := {k: v for k, v in metrics.items() if k.startswith("v")})]


class Silent(Regression):
    """A regression that logs nothing by itself."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        pass


@pytest.mark.parametrize("options", [{}, {"on_step": False, "on_epoch": True}, {"on_epoch": True}])
def test_the_value_of_the_epoch_s_end_is_the_epoch_s(tmp_path: Path, options: dict[str, bool]) -> None:
    class Both(Silent):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("v", float(batch_idx), **options)
            return super().training_step(batch, batch_idx)

        def on_train_epoch_end(self) -> None:
            self.log("v", 100.0)

    logger = ListLogger()
    trainer = quiet_trainer(tmp_path, logger=logger, log_every_n_steps=1)
    trainer.fit(Both(), loader(3))
    assert trainer.callback_metrics["v"] == 100
    is_forked = options == {"on_epoch": True}
    assert values(logger.rows)[-1] == ({"v_epoch": 1.0, "v": 100.0} if is_forked else {"v": 100.0})
    if is_forked:
        assert trainer.callback_metrics["v_step"] == 2 and trainer.callback_metrics["v_epoch"] == 1


def test_the_end_of_a_validation_takes_the_place_of_its_steps(tmp_path: Path) -> None:
    class Both(Silent):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("v", 1.0)

        def on_validation_epoch_end(self) -> None:
            self.log("v", 5.0, prog_bar=True)

    trainer = quiet_trainer(tmp_path)
    assert trainer.validate(Both(), loader(3), verbose=False) == [{"v": 5.0}]
    assert trainer.callback_metrics["v"] == 5 and trainer.progress_bar_metrics["v"] == 5


def test_two_hooks_of_a_batch_reduce_their_values_apart(tmp_path: Path) -> None:
    class Both(Silent):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("v", 1.0, on_epoch=True, reduce_fx="max")
            return super().training_step(batch, batch_idx)

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.log("v", float(batch_idx), on_epoch=True)

    logger = ListLogger()
    trainer = quiet_trainer(tmp_path, logger=logger, log_every_n_steps=1)
    trainer.fit(Both(), loader(3))
    assert values(logger.rows) == [{"v_step": 0.0}, {"v_step": 1.0}, {"v_step": 2.0}, {"v_epoch": 1.0}]


def test_a_hook_that_is_called_within_another_leaves_that_one_s_results_alone(tmp_path: Path) -> None:
    class ByHand(Silent):
        automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            self.log("v", 1.0, on_step=False, on_epoch=True)
            self.manual_backward(self.loss(batch))
            self.log("v", 3.0, on_step=False, on_epoch=True)

        def on_after_backward(self) -> None:
            self.log("w", 7.0, on_step=False, on_epoch=True)

    trainer = quiet_trainer(tmp_path)
    trainer.fit(ByHand(), loader(2))
    assert trainer.callback_metrics == {"v": 2.0, "w": 7.0}


def test_one_hook_of_module_and_callback_is_one_result(tmp_path: Path) -> None:
    class Logging(Callback):
        def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
            module.log("v", 1.0)

    class Both(Silent):
        def on_train_epoch_end(self) -> None:
            self.log("v", 3.0)

    trainer = quiet_trainer(tmp_path, callbacks=Logging())
    trainer.fit(Both(), loader(1))
    assert trainer.callback_metrics["v"] == 2


def test_other_arguments_in_one_hook_are_refused_with_its_name(tmp_path: Path) -> None:
    class Twice(Silent):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("v", 1.0)
            self.log("v", 1.0, prog_bar=True)

    with pytest.raises(ValueError, match=r"`prog_bar` must be the same .* in log\('v'\) of training_step"):
        quiet_trainer(tmp_path).fit(Twice(), loader(1))


def test_a_name_of_training_and_validation_is_the_one_that_came_last(tmp_path: Path) -> None:
    seen: list[float] = []

    class Both(Silent):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("v", 1.0, prog_bar=True)
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("v", 2.0, prog_bar=True)

        def on_train_epoch_end(self) -> None:
            seen.append(float(self.trainer.callback_metrics["v"]))

    trainer = quiet_trainer(tmp_path, max_epochs=2, val_check_interval=0.5)
    trainer.fit(Both(), loader(4), loader(2))
    assert seen == [2, 2]
    assert trainer.callback_metrics["v"] == trainer.progress_bar_metrics["v"] == trainer.logged_metrics["v"] == 2


def test_a_run_that_is_stopped_within_an_epoch_goes_on_with_the_results_of_each_hook(tmp_path: Path) -> None:
    class Both(Silent):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("v", float(batch_idx), on_step=False, on_epoch=True)
            return super().training_step(batch, batch_idx)

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.log("v", 10.0 * batch_idx, on_step=False, on_epoch=True, reduce_fx="sum")

    class Saving(Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 1:
                trainer.save_checkpoint(str(tmp_path / "inside.ckpt"))

    whole = quiet_trainer(tmp_path, callbacks=Saving())
    whole.fit(Both(), loader(4))
    resumed = quiet_trainer(tmp_path, callbacks=Saving())
    resumed.fit(Both(), loader(4), ckpt_path=tmp_path / "inside.ckpt")
    assert torch.equal(resumed.callback_metrics["v"], whole.callback_metrics["v"])
    assert whole.callback_metrics["v"] == 60
