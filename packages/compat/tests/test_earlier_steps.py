from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from bare_parts import Batch, Net, Sized, make_batches, same_bits, seeded, weights
from compat_parts import BareTrainer, quiet_trainer
from recording_sink import RecordingSink
from torch import Tensor

from camshaft.compat import Trainer, TrainingModule
from camshaft.compat.eras.outputs import log_returned
from camshaft.hooks_core import Callback, HookFaultError
from camshaft.loops import TestLoop


class Doubling(Net):
    """Doubles its loss where steps end."""

    def training_step_end(self, outputs: Tensor) -> Tensor:
        return 2 * outputs

    def validation_step_end(self, outputs: Tensor) -> Tensor:
        return 2 * outputs

    def test_step_end(self, outputs: Tensor) -> Tensor:
        return 2 * outputs


class Doubled(Net):
    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return 2 * self.loss(batch)


class Silent(Net):
    """Its step ends return nothing."""

    def training_step_end(self, outputs: Tensor) -> None:
        self.seen = [*getattr(self, "seen", []), outputs.item()]


def test_what_the_end_of_a_step_returns_is_differentiated() -> None:
    doubling, doubled = seeded(Doubling), seeded(Doubled)
    for module in (doubling, doubled):
        BareTrainer(module, max_epochs=2, limit_val_batches=0).fit(Sized(make_batches(3)))
    assert same_bits(weights(doubling), weights(doubled))


def test_a_step_end_that_returns_none_keeps_the_output_of_the_step() -> None:
    silent, plain = seeded(Silent), seeded()
    for module in (silent, plain):
        BareTrainer(module, max_epochs=2, limit_val_batches=0).fit(Sized(make_batches(3)))
    assert same_bits(weights(silent), weights(plain)) and len(silent.seen) == 6


def test_a_step_ends_before_its_loss_is_differentiated() -> None:
    class Ordered(Net):
        def __init__(self) -> None:
            super().__init__()
            self.calls: list[str] = []

        def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
            self.calls.append("step")
            return self.loss(batch)

        def training_step_end(self, outputs: Tensor) -> None:
            self.calls.append("end")

        def on_after_backward(self) -> None:
            self.calls.append("backward")

    module = Ordered()
    BareTrainer(module, max_epochs=1, limit_val_batches=0).fit(Sized(make_batches(2)))
    assert module.calls == ["step", "end", "backward"] * 2


@pytest.mark.parametrize("verb", ["validate", "test"])
def test_the_ends_of_evaluation_steps_change_what_batch_ends_get(verb: str) -> None:
    class Watching(Doubling):
        def on_validation_batch_end(self, outputs: Tensor, batch: Batch, batch_idx: int) -> None:
            self.seen = outputs

        on_test_batch_end = on_validation_batch_end

    module = seeded(Watching)
    trainer, batches = BareTrainer(module), make_batches(1)
    loop = trainer.fit_loop.validation if verb == "validate" else TestLoop()
    trainer.verb(verb, loop, Sized(batches))
    with torch.no_grad():
        assert torch.equal(module.seen, 2 * module.loss(batches[0]))


def test_the_step_end_of_0_5_is_called_by_its_old_name() -> None:
    class Old(Net):
        hook_era = "0.5"

        def training_step(self, batch: Batch, batch_nb: int) -> dict[str, Any]:
            return {"loss": self.loss(batch)}

        def training_end(self, outputs: dict[str, Any]) -> dict[str, Any]:
            return {"loss": 2 * outputs["loss"]}

    old, doubled = seeded(Old), seeded(Doubled)
    for module in (old, doubled):
        BareTrainer(module, max_epochs=2, limit_val_batches=0).fit(Sized(make_batches(3)))
    assert same_bits(weights(old), weights(doubled))


class Returning(Net):
    hook_era = "0.8"

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Any]:
        loss = self.loss(batch)
        return {"loss": loss, "log": {"a": loss, "b": 1.0}, "progress_bar": {"b": 1.0, "c": 2}, "hiddens": None}


def test_what_a_training_step_of_0_x_returns_is_logged_with_its_readers() -> None:
    sink = RecordingSink()
    BareTrainer(Returning(), max_epochs=1, limit_val_batches=0, metrics=sink).fit(Sized(make_batches(1)))
    returned = [call for call in sink.calls if call.startswith("log_returned")]
    assert returned == [
        "log_returned loss:",
        "log_returned b: logger prog_bar",
        "log_returned c: prog_bar",
        "log_returned a: logger",
    ]
    assert not sink.values["a"].requires_grad and sink.values["c"] == 2


def test_without_a_metric_sink_returned_values_go_nowhere() -> None:
    module = Returning()
    BareTrainer(module, max_epochs=1, limit_val_batches=0).fit(Sized(make_batches(2)))
    log_returned(None, {"log": {"a": 1}})


def test_dictionaries_of_a_module_of_today_are_its_own() -> None:
    class Today(Net):
        hook_era = "2.x"

        def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Any]:
            return {"loss": self.loss(batch), "log": {"a": 1.0}}

    sink = RecordingSink()
    trainer = BareTrainer(Today(), max_epochs=1, limit_val_batches=0, metrics=sink).fit(Sized(make_batches(1)))
    assert not [call for call in sink.calls if "log_returned" in call]
    assert trainer.run.hooks.training_step.__name__ == "training_step"  # what dispatch made, and nothing around it


def logged(returned: Any) -> dict[str, Any]:
    sink = RecordingSink()
    log_returned(sink, returned)
    return dict(sink.values)


def test_a_name_that_is_returned_for_loggers_and_for_bars_has_the_value_for_loggers() -> None:
    assert logged({"log": {"a": 1.0}, "progress_bar": {"a": 2.0}, "callback_metrics": {"a": 3.0}}) == {"a": 1.0}


def test_single_numbers_beside_log_and_progress_bar_are_logged_and_all_else_is_not() -> None:
    returned = {
        "val_loss": torch.ones(1),
        "count": 3,
        "predictions": torch.ones(2),
        "text": "x",
        "hiddens": torch.ones(()),
        "callback_metrics": {"score": 0.5},
    }
    assert logged(returned) == {"val_loss": torch.ones(1), "count": 3, "score": 0.5}
    assert logged(torch.ones(())) == {} == logged(None) == logged([{"log": {"a": 1}}])


def test_nested_values_and_numbers_that_were_formatted_are_logged_as_numbers() -> None:
    assert logged({"log": {"outer": {"inner": 1}}, "progress_bar": {"loss": "0.25"}}) == {
        "outer/inner": 1,
        "loss": 0.25,
    }
    with pytest.warns(UserWarning, match=r"name is returned to be logged, but 'many' is no number: it is left out\."):
        assert logged({"progress_bar": {"name": "many"}}) == {}


def test_a_name_in_both_dictionaries_has_the_value_for_loggers() -> None:
    assert logged({"log": {"a": 1.0}, "progress_bar": {"a": 2.0}, "a": 3.0}) == {"a": 1.0}


def test_a_module_of_0_4_sees_the_metrics_of_every_so_many_batches_and_what_it_adds_is_logged() -> None:
    class Showing(Net):
        hook_era = "0.4"

        def on_tng_metrics(self, metrics: dict[str, Any]) -> None:
            seen.append((metrics["epoch"], metrics["batch_nb"], float(metrics["loss"])))
            metrics["added"] = 7.0

        def on_batch_end(self) -> None:
            seen.append("end")

    seen: list[Any] = []
    sink = RecordingSink()
    trainer = BareTrainer(seeded(Showing), max_epochs=1, limit_val_batches=0, metrics=sink)
    trainer.log_every_n_steps = 2  # type: ignore[attr-defined]
    trainer.fit(Sized(make_batches(3)))
    assert [one if one == "end" else one[:2] for one in seen] == ["end", (0, 0), "end", "end", (0, 2)]
    assert [call for call in sink.calls if call.startswith("log_returned")] == ["log_returned added: logger"] * 2
    assert sink.values["added"] == 7.0


def test_callbacks_may_call_their_base_class_as_their_era_did() -> None:
    class Calling(Callback):
        def on_train_batch_end(
            self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int
        ) -> None:
            called.append(dataloader_idx)
            super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx, dataloader_idx)

        def on_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            super().on_epoch_end(trainer, pl_module)
            called.append("end")

    called: list[Any] = []
    trainer = BareTrainer(seeded(Net), callbacks=[Calling()], max_epochs=1, limit_val_batches=0)
    trainer.fit(Sized(make_batches(2)))
    assert called == [0, 0, "end"]


def test_a_trainer_of_parsed_arguments_is_of_an_earlier_program(tmp_path: Path) -> None:
    arguments = Namespace(default_root_dir=str(tmp_path), logger=False, enable_progress_bar=False)
    trainer = Trainer.from_argparse_args(arguments)
    with pytest.warns(UserWarning, match="`test` does nothing, as up to 1.4"):
        assert trainer.test(TrainingModule(), Sized(make_batches(1))) == []


@pytest.mark.parametrize("era", ["1.4", None])
def test_an_evaluation_without_a_step_is_left_out_as_up_to_1_4(tmp_path: Path, era: str | None) -> None:
    class Untested(TrainingModule):
        hook_era = era

        def training_step(self, batch: Any, batch_idx: int, optimizer_idx: int) -> None: ...

    trainer, loader = quiet_trainer(tmp_path), Sized(make_batches(1))
    with pytest.warns(UserWarning, match="`test` does nothing, as up to 1.4: .*Untested has no `test_step`"):
        assert trainer.test(Untested(), loader) == []
    Untested.hook_era = "1.5"
    with pytest.raises(HookFaultError, match="`test_step` must be defined"):
        trainer.test(Untested(), loader)
