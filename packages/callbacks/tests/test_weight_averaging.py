"""When weights are averaged, who has the average when, and what checkpoints hold."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from recording_trainer import RecordingTrainer
from torch import nn

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.callbacks.weights.stochastic_weight_averaging import StochasticWeightAveraging
from camshaft.callbacks.weights.weight_averaging import EMAWeightAveraging, WeightAveraging


class Scalar(nn.Module):
    """One weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    @property
    def value(self) -> float:
        return float(self.weight.detach())


class Fit:
    """A trainer whose updates are set by hand."""

    def __init__(self, folder: Path, callback: WeightAveraging, checkpoint: dict[str, Any] | None = None) -> None:
        self.trainer: Any = RecordingTrainer(str(folder), callbacks=[callback])
        self.module, self.callback = Scalar(), callback
        callback.setup(self.trainer, self.module, "fit")
        if checkpoint is not None:
            callback.on_load_checkpoint(self.trainer, self.module, checkpoint)
            self.module.load_state_dict(checkpoint["state_dict"])
            self.trainer.global_step = checkpoint["global_step"]
        callback.on_fit_start(self.trainer, self.module)
        callback.on_train_start(self.trainer, self.module)

    def update(self, *values: float) -> None:
        """One batch, with so many updates."""
        with torch.no_grad():
            for value in values:
                self.module.weight.fill_(value)
        self.trainer.global_step += len(values)
        self.callback.on_train_batch_end(self.trainer, self.module, None, None, 0)

    def validated(self) -> float:
        """The weight that validation sees."""
        self.callback.on_validation_start(self.trainer, self.module)
        value = self.module.value
        self.callback.on_validation_end(self.trainer, self.module)
        return value

    def end(self) -> None:
        self.callback.on_train_end(self.trainer, self.module)
        self.callback.on_fit_end(self.trainer, self.module)

    def checkpoint(self, *, weights_only: bool = False) -> dict[str, Any]:
        checkpoint: dict[str, Any] = {"state_dict": self.module.state_dict(), "global_step": self.trainer.global_step}
        if not weights_only:
            checkpoint["callbacks"] = {self.callback.state_key: self.callback.state_dict()}
        self.callback.on_save_checkpoint(self.trainer, self.module, checkpoint)
        path = Path(self.trainer.default_root_dir, "saved.ckpt")
        torch.save(checkpoint, path)
        loaded: dict[str, Any] = torch.load(path, weights_only=True)
        return loaded


def test_validation_sees_the_average_and_training_its_own_weights(tmp_path: Path) -> None:
    fit = Fit(tmp_path, WeightAveraging())
    assert fit.validated() == 0.0
    for value in (1.0, 2.0, 6.0):
        fit.update(value)
    assert fit.validated() == 3.0 and fit.module.value == 6.0
    fit.update(7.0)
    assert fit.validated() == 4.0 and fit.module.value == 7.0
    fit.end()
    assert fit.module.value == 4.0 and fit.validated() == 4.0


def test_before_the_first_average_validation_sees_the_weights_of_training(tmp_path: Path) -> None:
    fit = Fit(tmp_path, EMAWeightAveraging(update_starting_at_step=10))
    fit.update(5.0)
    assert fit.validated() == 5.0 and "current_model_state" not in fit.checkpoint()
    with pytest.warns(UserWarning, match="averaged nothing"):
        fit.end()
    assert fit.module.value == 5.0


def test_a_batch_without_an_update_counts_for_nothing(tmp_path: Path) -> None:
    fit = Fit(tmp_path, WeightAveraging())
    fit.update(2.0)
    fit.update()
    fit.update()
    fit.update(4.0)
    assert fit.validated() == 3.0 and fit.callback.state_dict() == {"n_averaged": 2}


def test_several_updates_of_a_batch_are_asked_for_each_and_averaged_once(tmp_path: Path) -> None:
    fit = Fit(tmp_path, EMAWeightAveraging(decay=0.5, update_every_n_steps=2))
    fit.update(1.0)  # index 0 is due
    fit.update(2.0, 3.0)  # of 1 and 2, 2 is due
    assert fit.validated() == 2.0 and fit.callback.state_dict() == {"n_averaged": 2}
    fit.update(9.0)  # index 3 is not
    assert fit.validated() == 2.0


def test_the_average_decays_exponentially_from_where_it_begins(tmp_path: Path) -> None:
    fit = Fit(tmp_path, EMAWeightAveraging(decay=0.75, update_starting_at_step=1))
    fit.update(100.0)
    fit.update(4.0)
    fit.update(8.0)
    assert fit.validated() == 0.75 * 4.0 + 0.25 * 8.0


def end_epochs(fit: Fit, *values: float) -> None:
    """Epochs of one update each."""
    for epoch, value in enumerate(values):
        fit.trainer.current_epoch = epoch
        fit.update(value)
        fit.callback.on_train_epoch_end(fit.trainer, fit.module)


def test_a_starting_epoch_adds_averages_at_the_ends_of_epochs_to_those_after_updates(tmp_path: Path) -> None:
    fit = Fit(tmp_path, EMAWeightAveraging(decay=0.5, update_starting_at_epoch=1))
    end_epochs(fit, 8.0, 16.0)
    assert fit.validated() == 14.0 and fit.callback.state_dict() == {"n_averaged": 3}  # 8; 12 and 14


def test_with_no_averages_after_updates_those_at_the_ends_of_epochs_are_left(tmp_path: Path) -> None:
    fit = Fit(tmp_path, EMAWeightAveraging(decay=0.5, update_every_n_steps=0, update_starting_at_epoch=1))
    end_epochs(fit, 100.0, 8.0, 16.0)
    assert fit.validated() == 12.0


def test_what_names_the_updates_may_be_changed_later_and_asked_by_an_override(tmp_path: Path) -> None:
    class NotTheThird(EMAWeightAveraging):
        def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
            return super().should_update(step_idx=step_idx, epoch_idx=epoch_idx) and step_idx != 2

    callback = NotTheThird(decay=0.5, update_starting_at_step=100)
    callback.update_starting_at_step = 1
    fit = Fit(tmp_path, callback)
    for value in (100.0, 8.0, 100.0, 16.0):
        fit.update(value)
    assert fit.validated() == 12.0


def test_buffers_that_are_not_averaged_are_those_of_the_last_average(tmp_path: Path) -> None:
    fit = Fit(tmp_path, EMAWeightAveraging(use_buffers=False, update_every_n_steps=2))
    fit.module.register_buffer("seen", torch.zeros(()))
    fit.callback.on_fit_start(fit.trainer, fit.module)
    for value in (1.0, 2.0):
        fit.module.seen.fill_(value)  # type: ignore[operator, union-attr]
        fit.update(value)
    saved = fit.checkpoint()
    assert float(saved["state_dict"]["seen"]) == 1.0 and float(saved["current_model_state"]["seen"]) == 2.0
    fit.callback.on_validation_start(fit.trainer, fit.module)
    assert fit.module.state_dict()["seen"] == 1.0
    fit.callback.on_validation_end(fit.trainer, fit.module)
    assert fit.module.state_dict()["seen"] == 2.0


def test_a_fit_that_averages_nothing_says_so(tmp_path: Path) -> None:
    fit = Fit(tmp_path, EMAWeightAveraging(update_starting_at_step=10))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit.callback.on_train_end(fit.trainer, fit.module)  # nothing was trained
    fit.update(5.0)
    with pytest.warns(UserWarning, match="EMAWeightAveraging has averaged nothing"):
        fit.end()


def test_an_override_may_average_at_the_end_of_epochs(tmp_path: Path) -> None:
    class EveryEpoch(WeightAveraging):
        def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
            return epoch_idx is not None and epoch_idx >= 1

    fit = Fit(tmp_path, EveryEpoch())
    for epoch, value in enumerate((10.0, 2.0, 4.0)):
        fit.trainer.current_epoch = epoch
        fit.update(value)
        fit.callback.on_train_epoch_end(fit.trainer, fit.module)
    assert fit.validated() == 3.0


def test_after_an_error_in_validation_the_module_has_its_own_weights(tmp_path: Path) -> None:
    for hook in ("on_exception", "teardown"):
        fit = Fit(tmp_path, WeightAveraging())
        fit.update(2.0)
        fit.update(4.0)
        fit.callback.on_validation_start(fit.trainer, fit.module)
        assert fit.module.value == 3.0
        argument: Any = ValueError() if hook == "on_exception" else "fit"
        getattr(fit.callback, hook)(fit.trainer, fit.module, argument)
        assert fit.module.value == 4.0
        fit.callback.on_exception(fit.trainer, fit.module, ValueError())  # once is enough
        assert fit.module.value == 4.0


@pytest.mark.parametrize("moment", ["training", "validation", "end"])
def test_a_checkpoint_holds_both_whenever_it_is_saved(tmp_path: Path, moment: str) -> None:
    fit = Fit(tmp_path, WeightAveraging())
    fit.update(2.0)
    fit.update(4.0)
    if moment == "validation":
        fit.callback.on_validation_start(fit.trainer, fit.module)
    elif moment == "end":
        fit.end()
    saved = fit.checkpoint()
    assert float(saved["state_dict"]["weight"]) == 3.0 and float(saved["current_model_state"]["weight"]) == 4.0
    weights = fit.checkpoint(weights_only=True)
    assert float(weights["state_dict"]["weight"]) == 3.0 and weights.keys() == {"state_dict", "global_step"}
    resumed = Fit(tmp_path, WeightAveraging(), saved)
    assert resumed.module.value == 4.0 and resumed.validated() == 3.0
    resumed.update(9.0)
    assert resumed.validated() == 5.0


def test_a_checkpoint_without_averages_begins_them_anew(tmp_path: Path) -> None:
    resumed = Fit(tmp_path, WeightAveraging(), {"state_dict": {"weight": torch.tensor(8.0)}, "global_step": 3})
    assert resumed.validated() == 8.0
    resumed.update(2.0)
    assert resumed.validated() == 2.0


@pytest.mark.parametrize("stage", ["test", "predict"])
def test_a_module_that_keeps_its_own_weights_is_tested_with_the_average(tmp_path: Path, stage: str) -> None:
    fit = Fit(tmp_path, WeightAveraging(apply_at_end=False))
    fit.update(2.0)
    fit.update(4.0)
    fit.end()
    assert fit.module.value == 4.0
    with torch.inference_mode():
        getattr(fit.callback, f"on_{stage}_start")(fit.trainer, fit.module)
        assert fit.module.value == 3.0
        getattr(fit.callback, f"on_{stage}_end")(fit.trainer, fit.module)
    assert fit.module.value == 4.0 and not fit.module.weight.is_inference()
    other = Scalar()
    getattr(fit.callback, f"on_{stage}_start")(fit.trainer, other)
    assert other.value == 0.0


def test_two_callbacks_that_average_are_refused(tmp_path: Path) -> None:
    for other in (WeightAveraging(), StochasticWeightAveraging(0.1)):
        callbacks: list[Any] = [EMAWeightAveraging(), other]
        trainer: Any = RecordingTrainer(str(tmp_path), callbacks=callbacks)
        for callback in callbacks:
            with pytest.raises(ValueError, match="must be without a second callback that averages weights"):
                callback.setup(trainer, None, "fit")
        callbacks[0].setup(trainer, None, "validate")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"decay": 1.5}, "`decay` must be from 0 to 1"),
        ({"decay": float("nan")}, "`decay` must be from 0 to 1"),
        ({"update_every_n_steps": 0}, "`update_every_n_steps` must be 1 or more"),
        ({"update_every_n_steps": -1, "update_starting_at_epoch": 0}, "`update_every_n_steps` must be 0 or more"),
        ({"update_starting_at_step": -1}, "`update_starting_at_step` must be 0 or more"),
        ({"update_starting_at_epoch": -1}, "`update_starting_at_epoch` must be 0 or more"),
    ],
)
def test_numbers_out_of_range_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        EMAWeightAveraging(**arguments)


def test_two_functions_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="`multi_avg_fn` must be None when `avg_fn` is given"):
        WeightAveraging(avg_fn=max, multi_avg_fn=max)
