from __future__ import annotations

from typing import Any

import pytest
from bare_parts import BareTrainer, Batch, Net, Sized, make_batches

from camshaft.compat.eras import read_receivers
from camshaft.hooks_core.catalogue import CATALOGUE
from camshaft.hooks_core.check import ConformanceError, check
from camshaft.hooks_core.trace import Trace
from camshaft.loops import TestLoop


class Whole(Net):
    """Has every hook of 0.x that one process calls."""

    def prepare_data(self) -> None: ...

    def setup(self, stage: str) -> None: ...

    def init_optimizers(self, optimizers: Any) -> Any:
        return [optimizers], []

    def summarize(self, mode: str) -> None: ...

    def restore_weights(self, model: Any) -> None: ...

    def on_fit_start(self) -> None: ...

    def on_train_start(self) -> None: ...

    def on_sanity_check_start(self) -> None: ...

    def on_epoch_start(self) -> None: ...

    def on_batch_start(self, batch: Any) -> None: ...

    def training_step(self, batch: Batch, batch_idx: int) -> Any:
        return {"loss": self.loss(batch), "log": {"loss": 1.0}}

    def training_step_end(self, outputs: Any) -> None: ...

    def on_before_zero_grad(self, optimizer: Any) -> None: ...

    def on_after_backward(self) -> None: ...

    def on_batch_end(self) -> None: ...

    def training_epoch_end(self, outputs: Any) -> None: ...

    def on_epoch_end(self) -> None: ...

    def on_pre_performance_check(self) -> None: ...

    def validation_step_end(self, outputs: Any) -> None: ...

    def validation_epoch_end(self, outputs: Any) -> None: ...

    def test_step_end(self, outputs: Any) -> None: ...

    def test_epoch_end(self, outputs: Any) -> None: ...

    def on_post_performance_check(self) -> None: ...

    def on_train_end(self) -> None: ...

    def on_fit_end(self) -> None: ...

    def teardown(self, stage: str) -> None: ...


def traced(verb: str, version: str, era: str) -> Trace:
    module, trace = Whole(), Trace(read=read_receivers)
    module.hook_era = version
    own = {*vars(Whole), "validation_step", "test_step", "configure_optimizers"}
    trace.record(
        module, "module", only=[spec.name for spec in CATALOGUE.values() if era in spec.eras and spec.name in own]
    )
    trainer = BareTrainer(module, max_epochs=2, num_sanity_val_steps=1, val_check_interval=2)
    if verb == "fit":
        trainer.fit(Sized(make_batches(4)), Sized(make_batches(2)))
    else:
        trainer.verb("test", TestLoop(), Sized(make_batches(2)))
    return trace


@pytest.mark.parametrize("verb", ["fit", "test"])
@pytest.mark.parametrize(("version", "era"), [("0.5", "0.5"), ("0.7", "0.7"), ("0.8", "0.8"), ("0.9", "0.8")])
def test_hooks_of_0_x_come_in_the_order_of_their_era(verb: str, version: str, era: str) -> None:
    check(traced(verb, version, era), verb, era=era)


def test_the_order_of_one_era_is_not_that_of_another() -> None:
    with pytest.raises(ConformanceError):
        check(traced("fit", "1.5", "0.8"), "fit", era="0.8")
