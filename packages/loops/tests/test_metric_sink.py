"""What loops tell the metric sink, and when."""

from __future__ import annotations

from typing import Any

import pytest
from bare_parts import BareTrainer, Net, Sized, hooked, make_batches, seeded
from recording_sink import RecordingSink

from camshaft.loops import PredictLoop, TestLoop, ValidationLoop

EXPECTED_FIT = """
start_epoch validate 1 trial
moment batch
moment epoch
moment None
discard
start_epoch train 1
on_train_start
on_train_epoch_start
moment batch
on_train_batch_end 0
end_train_batch False
on_train_batch_end 1
end_train_batch True
start_epoch validate 1
moment batch
moment epoch
end_epoch
moment None
on_validation_end
enter train batch
on_train_batch_end 2
end_train_batch True
moment epoch
on_train_epoch_end
end_epoch
moment None
on_train_end
""".strip().splitlines()


def test_the_order_in_a_fit_with_validation_inside_of_an_epoch() -> None:
    sink = RecordingSink()

    def note(name: str, with_batch: bool = False) -> Any:
        return lambda trainer, *args: sink.calls.append(f"{name} {args[-1]}" if with_batch else name)

    names = ["on_train_start", "on_train_epoch_start", "on_train_epoch_end", "on_train_end"]
    callback = hooked(
        **{name: note(name) for name in names},
        on_train_batch_end=note("on_train_batch_end", with_batch=True),
        on_validation_end=lambda trainer, *_: (
            trainer.fit_loop.sanity_checking or sink.calls.append("on_validation_end")
        ),
    )
    trainer = BareTrainer(
        seeded(),
        callbacks=[callback],
        metrics=sink,
        max_epochs=1,
        accumulate_grad_batches=2,
        val_check_interval=2,
        num_sanity_val_steps=1,
    )
    trainer.fit(Sized(make_batches(3)), Sized(make_batches(1)))
    assert sink.calls == EXPECTED_FIT


def test_the_moment_in_which_each_hook_and_step_logs() -> None:
    moments: list[tuple[str, Any]] = []
    sink = RecordingSink()

    class Noting(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            moments.append(("training_step", sink.moment))
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            moments.append(("validation_step", sink.moment))

    names = [
        *["on_train_start", "on_train_epoch_start", "on_train_batch_start", "on_after_backward", "on_train_batch_end"],
        *["on_validation_start", "on_validation_epoch_start", "on_validation_batch_end", "on_validation_epoch_end"],
        *["on_validation_end", "on_train_epoch_end", "on_train_end"],
    ]
    callback = hooked(**{name: lambda *_, name=name: moments.append((name, sink.moment)) for name in names})
    trainer = BareTrainer(Noting(), callbacks=[callback], metrics=sink, max_epochs=1, val_check_interval=1)
    trainer.fit(Sized(make_batches(2)), Sized(make_batches(1)))
    assert dict(moments) == {
        "on_train_start": "epoch",
        "on_train_epoch_start": "epoch",
        "on_train_batch_start": "batch",
        "training_step": "batch",
        "on_after_backward": "batch",
        "on_train_batch_end": "batch",
        "on_validation_start": "epoch",
        "on_validation_epoch_start": "epoch",
        "validation_step": "batch",
        "on_validation_batch_end": "batch",
        "on_validation_epoch_end": "epoch",
        "on_validation_end": None,
        "on_train_epoch_end": "epoch",
        "on_train_end": None,
    }
    assert len(set(moments)) == len(dict(moments)), "a hook has the same moment each time"


@pytest.mark.parametrize(("verb", "kind"), [("validate", ValidationLoop), ("test", TestLoop), ("predict", PredictLoop)])
def test_the_order_in_other_verbs(verb: Any, kind: Any) -> None:
    sink, seen = RecordingSink(), []

    class Seeing(Net):
        def forward(self, x: Any) -> Any:
            seen.append((sink.dataloader_idx, sink.batch[0] is x))
            return super().forward(x)

    result = BareTrainer(Seeing(), metrics=sink).verb(verb, kind(), [Sized(make_batches(1)), Sized(make_batches(2))])
    assert sink.calls == [
        f"start_epoch {verb} 2", "moment batch", "moment batch", "moment epoch", "end_epoch", "moment None",
    ]  # fmt: skip
    assert seen == [(0, True), (1, True), (1, True)]
    if verb != "predict":
        assert result == [{"logged": 1.0}]


def test_an_epoch_that_is_skipped_still_ends() -> None:
    sink = RecordingSink()
    callback = hooked(on_train_batch_start=lambda *_: -1)
    BareTrainer(Net(), callbacks=[callback], metrics=sink, max_epochs=2).fit(Sized(make_batches(2)), Sized([]))
    assert sink.calls == ["start_epoch train 1", "moment batch", "moment epoch", "end_epoch"] * 2 + ["moment None"]


@pytest.mark.parametrize("is_automatic", [True, False])
def test_each_split_of_a_batch_ends_with_its_own_update(is_automatic: bool) -> None:
    sink = RecordingSink()

    class InSplits(Net):
        automatic_optimization = is_automatic

        def training_step(self, batch: Any, batch_idx: int, hiddens: Any) -> Any:
            sink.calls.append(f"training_step {batch_idx}")
            if is_automatic or batch_idx == 0:
                loss = self.loss(batch)
                if is_automatic:
                    return {"loss": loss, "hiddens": None}
                loss.backward()
                self.optimizer.step()
            return {"hiddens": None}

        def tbptt_split_batch(self, batch: Any, split_size: int) -> list[Any]:
            return [batch] * split_size

        def configure_optimizers(self) -> Any:
            self.optimizer = super().configure_optimizers()
            return self.optimizer

    trainer = BareTrainer(InSplits(), metrics=sink, max_epochs=1, truncated_bptt_steps=2)
    trainer.fit(Sized(make_batches(2)))
    told = [call for call in sink.calls if call.startswith(("training_step", "end_train_batch"))]
    assert told == [
        *["training_step 0", "end_train_batch True"] * 2,
        *["training_step 1", f"end_train_batch {is_automatic}"] * 2,
    ]
