"""Callbacks that average weights, on the real trainer: what is monitored, saved and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from trainer_parts import NO_VALIDATION, NormedRegression, Regression, assert_same, loader, quiet_trainer, weights

from camshaft.callbacks import EMAWeightAveraging, ModelCheckpoint, StochasticWeightAveraging, WeightAveraging
from camshaft.hooks_core import Callback
from camshaft.trainer import Trainer

pytestmark = [
    pytest.mark.filterwarnings("ignore:Detected call of"),
    pytest.mark.filterwarnings("ignore:ModelCheckpoint now saves in"),
]

CALLBACKS = {
    "equal": lambda: WeightAveraging(),
    "ema": lambda: EMAWeightAveraging(decay=0.7, update_every_n_steps=2, update_starting_at_epoch=1),
    "without buffers": lambda: EMAWeightAveraging(decay=0.7, use_buffers=False),
    "swa": lambda: StochasticWeightAveraging(0.02, 2, annealing_epochs=2),
    "swa_rates_kept": lambda: StochasticWeightAveraging(None, 2),
}


class Normed(NormedRegression):
    """Has a scheduler that steps after updates."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.95**step)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def fit(folder: Path, callback: Any, ckpt_path: Path | None = None, **arguments: Any) -> tuple[Trainer, Normed]:
    """A fit that saves a checkpoint after each update, and one at its end."""
    torch.manual_seed(1 if ckpt_path is None else 2)
    module = Normed()
    saving = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    options: dict[str, Any] = {"accumulate_grad_batches": 2, "val_check_interval": 2, "max_epochs": 4, **arguments}
    trainer = quiet_trainer(folder, callbacks=[callback, saving], enable_checkpointing=True, **options)
    trainer.fit(module, loader(5, shuffle=True), loader(2), ckpt_path=ckpt_path)
    trainer.save_checkpoint(folder / "end.ckpt")
    return trainer, module


def state(path: Path) -> dict[str, Any]:
    saved: dict[str, Any] = torch.load(path, weights_only=True)
    kept = ("state_dict", "current_model_state", "averaging_state", "optimizer_states", "lr_schedulers", "rng")
    return {key: saved[key] for key in kept}


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", CALLBACKS)
def test_a_fit_that_goes_on_from_any_update_gives_the_same_bits(tmp_path: Path, kind: str) -> None:
    _, module = fit(tmp_path / "whole", CALLBACKS[kind]())
    assert not torch.isnan(module.layer.weight).any()
    expected = state(tmp_path / "whole" / "end.ckpt")
    for step in range(1, 13):
        _, resumed = fit(tmp_path / str(step), CALLBACKS[kind](), tmp_path / "whole" / f"step={step}.ckpt")
        assert_same(weights(resumed), weights(module), f"from {step}")
        assert_same(state(tmp_path / str(step) / "end.ckpt"), expected, f"from {step}")


@pytest.mark.parametrize("kind", CALLBACKS)
def test_a_fit_that_is_made_longer_equals_one_that_was_long_at_once(tmp_path: Path, kind: str) -> None:
    fit(tmp_path / "short", CALLBACKS[kind](), max_epochs=2)
    _, module = fit(tmp_path / "long", CALLBACKS[kind](), max_epochs=4)
    _, resumed = fit(tmp_path / "resumed", CALLBACKS[kind](), tmp_path / "short" / "end.ckpt", max_epochs=4)
    assert_same(weights(resumed), weights(module))
    assert_same(state(tmp_path / "resumed" / "end.ckpt"), state(tmp_path / "long" / "end.ckpt"))


def test_training_is_as_without_an_average(tmp_path: Path) -> None:
    _, plain = fit(tmp_path / "plain", ModelCheckpoint(tmp_path / "other", filename="{epoch}"))
    for kind in ("equal", "ema"):
        _, module = fit(tmp_path / kind, CALLBACKS[kind]())
        assert_same(state(tmp_path / kind / "end.ckpt")["current_model_state"], weights(plain))
        assert not torch.equal(module.layer.weight, plain.layer.weight)


def test_what_is_monitored_and_loaded_is_the_average(tmp_path: Path) -> None:
    trainer, module = fit(tmp_path, CALLBACKS["equal"]())
    monitored = float(trainer.callback_metrics["val_loss"])
    for source in (tmp_path / "step=12.ckpt", tmp_path / "end.ckpt"):
        loaded = Normed.load_from_checkpoint(source)
        [results] = quiet_trainer(tmp_path).validate(loaded, loader(2), verbose=False)
        assert_same(weights(loaded), weights(module))
        [again] = trainer.validate(Normed(), loader(2), ckpt_path=source, verbose=False)
        assert again["val_loss"] == results["val_loss"]
    # the last validation came before the last update
    [earlier] = quiet_trainer(tmp_path).validate(
        Normed(), loader(2), ckpt_path=tmp_path / "step=11.ckpt", verbose=False
    )
    assert earlier["val_loss"] == pytest.approx(monitored)


def test_an_error_in_validation_leaves_the_weights_of_training(tmp_path: Path) -> None:
    class Failing(Normed):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            if self.global_step == 6:
                raise ZeroDivisionError

    callback = WeightAveraging()
    module = Failing()
    trainer = quiet_trainer(tmp_path, callbacks=[callback], max_epochs=4, num_sanity_val_steps=0)
    seen: list[Tensor] = []
    with pytest.raises(ZeroDivisionError):
        handle = module.layer.register_forward_hook(lambda *_: seen.append(module.layer.weight.detach().clone()))
        trainer.fit(module, loader(3), loader(1))
    handle.remove()
    trainer.save_checkpoint(tmp_path / "after.ckpt")
    saved = torch.load(tmp_path / "after.ckpt", weights_only=True)
    assert_same(saved["current_model_state"], weights(module))
    assert not torch.equal(saved["state_dict"]["layer.weight"], module.layer.weight)
    assert callback.state_dict() == {"n_averaged": 6}


@pytest.mark.filterwarnings(NO_VALIDATION)
def test_an_update_that_an_overflow_skips_is_not_averaged(tmp_path: Path) -> None:
    class Overflowing(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            loss: Tensor = self.loss(batch)
            return loss * float("inf") if batch_idx == 1 else loss

    callback = WeightAveraging()
    trainer = quiet_trainer(tmp_path, callbacks=[callback], precision="16-mixed", accelerator="cpu")
    trainer.fit(Overflowing(), loader(8))
    assert 0 < trainer.global_step < 8 and callback.state_dict() == {"n_averaged": trainer.global_step}


@pytest.mark.filterwarnings(NO_VALIDATION)
def test_a_second_fit_averages_anew(tmp_path: Path) -> None:
    callback = WeightAveraging()
    trainer = quiet_trainer(tmp_path, callbacks=[callback])
    module = Regression()
    trainer.fit(module, loader(4))
    trainer.fit_loop.limits = trainer.fit_loop.limits.__class__(max_epochs=2)
    trainer.fit(module, loader(4))
    assert callback.state_dict() == {"n_averaged": 4}


@pytest.mark.filterwarnings(NO_VALIDATION)
def test_a_data_loader_that_cannot_be_read_twice_is_refused_before_training(tmp_path: Path) -> None:
    trainer = quiet_trainer(tmp_path, callbacks=[StochasticWeightAveraging(0.1)])
    module = Normed()
    before = weights(module)
    with pytest.raises(ValueError, match="`train loader` must be a DataLoader, or one without a state"):
        trainer.fit(module, iter([next(iter(loader(1)))]))
    assert_same(weights(module), before)


@pytest.mark.filterwarnings(NO_VALIDATION)
def test_a_scheduler_that_is_added_steps_before_anybody_sees_the_next_epoch(tmp_path: Path) -> None:
    class Rates(Callback):
        seen: ClassVar[list[float]] = []

        def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
            self.seen.append(trainer.optimizers[0].param_groups[0]["lr"])

    swa = StochasticWeightAveraging(0.2, 2, annealing_epochs=2, annealing_strategy="linear")
    trainer = quiet_trainer(tmp_path, callbacks=[Rates(), swa], max_epochs=4)
    trainer.fit(Regression(learning_rate=0.4), loader(2))
    assert Rates.seen == pytest.approx([0.4, 0.4, 0.3, 0.2])


@pytest.mark.filterwarnings(NO_VALIDATION)
def test_stochastic_averaging_replaces_the_schedulers_where_others_see_it(tmp_path: Path) -> None:
    trainer, module = fit(tmp_path, CALLBACKS["swa"]())
    [config] = trainer.lr_scheduler_configs
    assert isinstance(config.scheduler, torch.optim.swa_utils.SWALR) and module.norm.momentum == 0.1
    assert trainer.optimizers[0].param_groups[0]["lr"] == 0.02 and module.norm.num_batches_tracked == 5
    inputs = loader(5).dataset.tensors[0]  # type: ignore[attr-defined]
    torch.testing.assert_close(module.norm.running_mean, inputs.mean(dim=0))
