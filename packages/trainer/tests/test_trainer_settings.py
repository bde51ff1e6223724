"""Settings of a trainer that are set after it was made, as Lightning's users do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from trainer_parts import NO_VALIDATION, ListLogger, Regression, loader, quiet_trainer

from camshaft.callbacks import LambdaCallback
from camshaft.hooks_core import Callback
from camshaft.trainer import Trainer

pytestmark = pytest.mark.filterwarnings(NO_VALIDATION)


class Counting(Regression):
    """Counts batches by stage."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = {"train": 0, "validate": 0, "test": 0, "predict": 0}

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.counts["train"] += 1
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.counts["validate"] += 1

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.counts["test"] += 1

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        self.counts["predict"] += 1
        return super().predict_step(batch, batch_idx)


@pytest.mark.parametrize("owner", ["fit_loop", "trainer"])
def test_a_fit_trains_on_to_what_is_set_on_trainer_or_loop(tmp_path: Path, owner: str) -> None:
    module, trainer = Counting(), quiet_trainer(tmp_path, max_epochs=2)
    trainer.fit(module, loader(3))
    settings: Any = trainer if owner == "trainer" else trainer.fit_loop
    settings.max_epochs = 8
    trainer.fit(module, loader(3))
    assert (trainer.current_epoch, module.counts["train"], trainer.max_epochs) == (8, 24, 8)
    settings.max_epochs += 1
    trainer.max_steps = trainer.global_step + 2
    trainer.fit(module, loader(3))
    assert (trainer.global_step, trainer.max_steps) == (26, 26)


@pytest.mark.parametrize(
    ("name", "value", "counts"),
    [
        ("limit_train_batches", 2, {"train": 2, "validate": 4}),
        ("limit_val_batches", 1, {"train": 6, "validate": 1}),
        ("limit_val_batches", 0.5, {"train": 6, "validate": 2}),
        ("val_check_interval", 2, {"train": 6, "validate": 12}),
        ("val_check_interval", 0.5, {"train": 6, "validate": 8}),
        ("check_val_every_n_epoch", 2, {"train": 6, "validate": 0}),
        ("num_sanity_val_steps", 1, {"train": 6, "validate": 5}),
        ("overfit_batches", 2, {"train": 2, "validate": 2}),
    ],
)
def test_a_setting_counts_for_the_next_fit(tmp_path: Path, name: str, value: Any, counts: dict[str, int]) -> None:
    module, trainer = Counting(), quiet_trainer(tmp_path, num_sanity_val_steps=0)
    setattr(trainer, name, value)
    assert getattr(trainer, name) == value
    trainer.fit(module, loader(6), loader(4))
    assert module.counts == {"test": 0, "predict": 0, **counts}


def test_limits_of_the_other_verbs_count_when_they_are_set(tmp_path: Path) -> None:
    module, trainer = Counting(), quiet_trainer(tmp_path)
    trainer.limit_val_batches, trainer.limit_test_batches, trainer.limit_predict_batches = 1, 2, 3
    trainer.validate(module, loader(4), verbose=False)
    trainer.test(module, loader(4), verbose=False)
    trainer.predict(module, loader(4))
    assert module.counts == {"train": 0, "validate": 1, "test": 2, "predict": 3}


def test_accumulation_and_clipping_count_when_they_are_set(tmp_path: Path) -> None:
    module, trainer = Regression(), quiet_trainer(tmp_path)
    trainer.accumulate_grad_batches, trainer.gradient_clip_val, trainer.gradient_clip_algorithm = 2, 1e-4, "value"
    before = module.layer.weight.detach().clone()
    trainer.fit(module, loader(4))
    assert trainer.global_step == 2
    assert (module.layer.weight - before).abs().max() <= 2.1e-5  # two updates at a rate of 0.1


def test_validation_can_be_switched_off_in_a_hook_with_the_stop_that_ends_the_fit(tmp_path: Path) -> None:
    class Leaving(Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 1:
                trainer.limit_val_batches, trainer.should_stop = 0, True

    module = Counting()
    trainer = quiet_trainer(tmp_path, callbacks=Leaving(), num_sanity_val_steps=0)
    trainer.fit(module, loader(4), loader(2))
    assert (module.counts["train"], module.counts["validate"]) == (2, 0)


def test_the_last_epoch_is_validated_if_a_hook_asks_for_it(tmp_path: Path) -> None:
    class LastEpoch(Callback):
        def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
            if trainer.current_epoch == trainer.max_epochs - 1:
                trainer.check_val_every_n_epoch = 1

    module = Counting()
    trainer = quiet_trainer(
        tmp_path, max_epochs=3, check_val_every_n_epoch=100, callbacks=LastEpoch(), num_sanity_val_steps=0
    )
    trainer.fit(module, loader(1), loader(2))
    assert module.counts["validate"] == 2


def test_loggers_that_are_set_get_what_is_logged(tmp_path: Path) -> None:
    first, second, trainer = ListLogger(), ListLogger(), quiet_trainer(tmp_path, log_every_n_steps=1)
    trainer.logger = first
    trainer.fit(Regression(), loader(2))
    trainer.loggers = [second]
    trainer.fit_loop.max_epochs = 2
    trainer.fit(Regression(), loader(2))
    assert [step for step, _ in first.rows] == [0, 1] and [step for step, _ in second.rows] == [2, 3]
    assert second.statuses == ["success"]
    trainer.logger = None
    assert trainer.loggers == []
    with pytest.raises(TypeError, match="`logger` must be a logger"):
        trainer.logger = 3


def test_steps_between_two_rows_of_loggers_can_be_set_between_fits_and_in_hooks(tmp_path: Path) -> None:
    class Rarer(Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 1:
                trainer.log_every_n_steps = 3

    logger = ListLogger()
    trainer = quiet_trainer(tmp_path, logger=logger, callbacks=Rarer())
    trainer.log_every_n_steps = 1
    trainer.fit(Regression(), loader(7))
    assert [step for step, _ in logger.rows] == [0, 2, 5]


@pytest.mark.parametrize("name", ["max_epoch", "limit_val_batch", "shold_stop"])
def test_a_misspelt_setting_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(AttributeError, match=f"'Trainer' object has no attribute '{name}'"):
        setattr(quiet_trainer(tmp_path), name, 1)


@pytest.mark.parametrize("name", ["strategy", "fast_dev_run", "barebones"])
def test_what_only_the_constructor_takes_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(AttributeError, match=f"property '{name}' of 'Trainer' object has no setter"):
        setattr(quiet_trainer(tmp_path), name, True)


def test_callbacks_are_not_replaced_while_a_verb_runs(tmp_path: Path) -> None:
    class Replacing(Callback):
        def on_train_start(self, trainer: Any, module: Any) -> None:
            trainer.callbacks = []

    trainer = quiet_trainer(tmp_path, callbacks=Replacing())
    with pytest.raises(RuntimeError, match="`callbacks` must be set while no verb runs"):
        trainer.fit(Regression(), loader(1))
    trainer.callbacks = []
    trainer.fit(Regression(), loader(1))


def test_a_trainer_of_ones_own_has_attributes_of_its_own(tmp_path: Path) -> None:
    class Mine(Trainer):
        def __init__(self, **arguments: Any) -> None:
            self.num_calls = 0
            super().__init__(**arguments)
            self.label = "mine"

    trainer = Mine(default_root_dir=tmp_path, accelerator="cpu", logger=False)
    trainer.num_calls += 1
    trainer.later = torch.zeros(1)
    assert (trainer.num_calls, trainer.label) == (1, "mine")


@pytest.mark.parametrize("wanted", [None, True])
def test_predictions_are_returned_unless_they_are_refused(tmp_path: Path, wanted: bool | None) -> None:
    trainer = quiet_trainer(tmp_path)
    assert len(trainer.predict(Regression(), loader(2), return_predictions=wanted)) == 2
    assert trainer.predict(Regression(), loader(2), return_predictions=False) is None
    assert len(trainer.predict(Regression(), loader(2))) == 2


@pytest.mark.parametrize("how", ["append", "assign", "remove"])
def test_callbacks_may_be_changed_in_setup(how: str, tmp_path: Path) -> None:
    class Adding(Regression):
        def setup(self, stage: str) -> None:
            if how == "append":
                self.trainer.callbacks.append(added)
            elif how == "assign":
                self.trainer.callbacks = [*self.trainer.callbacks, added]
            else:
                self.trainer.callbacks.remove(given)

    seen: list[str] = []
    added, given = (
        LambdaCallback(on_train_start=lambda *_, name=name: seen.append(name)) for name in ("added", "given")
    )
    trainer = quiet_trainer(tmp_path, callbacks=[given])
    trainer.fit(Adding(), loader(1))
    assert seen == ([] if how == "remove" else ["given", "added"])
    assert (given in trainer.callbacks, added in trainer.callbacks) == (how != "remove", how != "remove")


@pytest.mark.parametrize("hook", ["on_fit_start", "on_train_start", "on_train_epoch_end"])
def test_callbacks_that_are_added_too_late_are_refused(hook: str, tmp_path: Path) -> None:
    adding = LambdaCallback(**{hook: lambda trainer, _: trainer.callbacks.append(LambdaCallback())})
    with pytest.raises(RuntimeError, match="`callbacks` must be the same from the end of `setup` on"):
        quiet_trainer(tmp_path, callbacks=[adding], max_epochs=2).fit(Regression(), loader(1))
