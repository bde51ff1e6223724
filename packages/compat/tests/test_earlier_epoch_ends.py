from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from bare_parts import Batch, Net, Sized, hooked, make_batches, same_bits, seeded, weights
from compat_parts import BareTrainer
from hugging_face_parts import BatchEncoding, Prediction
from hypothesis import given
from hypothesis import strategies as st
from recording_sink import RecordingSink
from torch import Tensor

from camshaft.compat.eras.outputs import StepOutput, arranged, goes_to_cpu, kept, restored, saved
from camshaft.loops import PredictLoop, TestLoop

WITHOUT_STATE = pytest.mark.filterwarnings("ignore:.*train loader.*state")
"""The loaders of these tests are plain lists, which a resume reads again from the start."""


class Recording(Net):
    """Writes down what the ends of its epochs get."""

    def __init__(self, configure: Any = None) -> None:
        super().__init__(configure)
        self.calls: list[Any] = []

    def training_step(self, batch: Batch, batch_idx: int) -> Any:
        return {"loss": self.loss(batch), "extra": batch_idx, "hiddens": torch.ones(1)}

    def training_epoch_end(self, outputs: list[Any]) -> None:
        self.calls.append(("training_epoch_end", outputs))

    def names(self) -> list[Any]:
        return [name for name, _ in self.calls]


class Both(Recording):
    """Alternates two optimizers, and leaves out the second in odd batches."""

    def __init__(self) -> None:
        super().__init__(two_optimizers)

    def training_step(self, batch: Batch, batch_idx: int, optimizer_idx: int) -> Any:
        if optimizer_idx == 1 and batch_idx % 2:
            return None
        return {"loss": self.loss(batch), "place": (batch_idx, optimizer_idx)}


def two_optimizers(module: Any) -> list[torch.optim.Optimizer]:
    return [torch.optim.SGD(part.parameters(), lr=0.01) for part in (module.layer, module.head)]


def fit(module: Any, num_batches: int = 3, num_val_batches: int = 0, **arguments: Any) -> BareTrainer:
    arguments = {"max_epochs": 1, **arguments}
    validation = Sized(make_batches(num_val_batches)) if num_val_batches else None
    arguments |= {} if num_val_batches else {"limit_val_batches": 0}
    return BareTrainer(module, **arguments).fit(Sized(make_batches(num_batches)), validation)


def test_the_end_of_a_training_epoch_gets_what_the_steps_returned_without_graph_and_hidden_state() -> None:
    module = Recording()
    fit(module, max_epochs=2)
    assert module.names() == ["training_epoch_end"] * 2
    for _, outputs in module.calls:
        assert [(sorted(one), one["extra"]) for one in outputs] == [(["extra", "loss"], idx) for idx in range(3)]
        assert not any(one["loss"].requires_grad for one in outputs)


def test_a_loss_that_is_returned_alone_becomes_a_dictionary() -> None:
    class Plain(Recording):
        def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
            return self.loss(batch)

    module = Plain()
    fit(module)
    assert [list(one) for one in module.calls[0][1]] == [["loss"]] * 3


def test_0_x_gets_all_that_the_step_returned() -> None:
    class Old(Recording):
        hook_era = "0.8"

    module = Old()
    fit(module)
    assert [sorted(one) for one in module.calls[0][1]] == [["extra", "hiddens", "loss"]] * 3


@pytest.mark.parametrize(
    ("era", "expected"),
    [
        ("0.7", [(0, 1), (1, 0), (2, 1)]),
        ("0.8", [(0, 1), (1, 0), (2, 1)]),
        ("0.9", [[(0, 0), (1, 0), (2, 0)], [(0, 1), (2, 1)]]),
        ("1.5", [[(0, 0), (1, 0), (2, 0)], [(0, 1), (2, 1)]]),
        ("1.6", [[(0, 0), (0, 1)], [(1, 0)], [(2, 0), (2, 1)]]),
    ],
)
def test_with_several_optimizers_the_outputs_have_the_form_of_the_release(era: str, expected: Any) -> None:
    module = Both()
    module.hook_era = era
    fit(module)

    def places(outputs: Any) -> Any:
        return [places(one) for one in outputs] if isinstance(outputs, list) else outputs["place"]

    assert places(module.calls[0][1]) == expected


@given(num_batches=st.integers(1, 4), num_splits=st.integers(1, 3), num_optimizers=st.integers(1, 3))
def test_every_form_holds_every_output_once_in_order(num_batches: int, num_splits: int, num_optimizers: int) -> None:
    places = [
        (batch, split, optimizer)
        for batch in range(num_batches)
        for split in range(num_splits)
        for optimizer in range(num_optimizers)
    ]
    steps = [StepOutput(*place, place) for place in places]

    def depth(outputs: Any) -> int:
        return 1 + depth(outputs[0]) if isinstance(outputs, list) else 0

    def flat(outputs: Any) -> list[Any]:
        return [one for item in outputs for one in flat(item)] if isinstance(outputs, list) else [outputs]

    of_batches, of_optimizers = (
        arranged(steps, num_optimizers, "by_batch"),
        arranged(steps, num_optimizers, "by_optimizer"),
    )
    assert flat(of_batches) == places and flat(of_optimizers) == sorted(places, key=lambda place: place[2])
    assert depth(of_batches) == depth(of_optimizers) == 1 + (num_splits > 1) + (num_optimizers > 1)
    last = [(batch, num_splits - 1, num_optimizers - 1) for batch in range(num_batches)]
    assert arranged(steps, num_optimizers, "last_optimizer") == last


def test_splits_of_a_batch_make_a_list_of_its_outputs() -> None:
    class Split(Recording):
        truncated_bptt_steps = 1

        def training_step(self, batch: Any, batch_idx: int, hiddens: Any) -> Any:
            x, y = batch
            return {"loss": self.loss((x[:, 0], y)), "hiddens": torch.ones(1), "fed": hiddens}

        def tbptt_split_batch(self, batch: Batch, split_size: int) -> list[Any]:
            return [(batch[0].unsqueeze(1), batch[1])] * 1 + [(batch[0].unsqueeze(1) * 2, batch[1])]

    module = Split()
    fit(module, num_batches=2)
    ((_, outputs),) = module.calls
    assert [[one["fed"] is None for one in of_batch] for of_batch in outputs] == [[True, False]] * 2


def test_a_step_that_a_closure_evaluates_again_counts_once_with_what_it_returned_last() -> None:
    latest: dict[int, int] = {}

    class Counting(Recording):
        def training_step(self, batch: Batch, batch_idx: int) -> Any:
            latest[batch_idx] = latest.get(batch_idx, 0) + 1
            return {"loss": self.loss(batch), "batch": batch_idx, "evaluation": latest[batch_idx]}

    module = Counting(lambda module: torch.optim.LBFGS(module.parameters(), max_iter=3))
    fit(module)
    assert [(one["batch"], one["evaluation"]) for one in module.calls[0][1]] == list(latest.items())
    assert min(latest.values()) > 1


def test_manual_optimization_gives_one_output_a_batch() -> None:
    class Manual(Recording):
        automatic_optimization = False

        def training_step(self, batch: Batch, batch_idx: int) -> Any:
            return {"extra": batch_idx}

    module = Manual(two_optimizers)
    fit(module)
    assert module.calls == [("training_epoch_end", [{"extra": idx} for idx in range(3)])]


def test_nothing_is_kept_where_nobody_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "camshaft.compat.results", raising=False)
    trainer = fit(seeded())
    assert trainer.run.epoch_state == {}
    assert trainer.run.hooks.training_step.__name__ == "training_step"


def test_outputs_are_let_go_when_their_epoch_is_over() -> None:
    trainer = fit(Recording())
    assert trainer.run.epoch_state["epoch_outputs"]._steps == []


def test_outputs_are_kept_on_the_cpu_where_the_module_asks_for_it() -> None:
    trainer = fit(Recording())
    assert not goes_to_cpu(trainer.run)
    trainer.module.outputs_on_cpu = True
    assert goes_to_cpu(trainer.run)
    elsewhere = {"loss": torch.ones(1, device="meta", requires_grad=True)}
    assert not kept(elsewhere, on_cpu=False)["loss"].requires_grad
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):  # it does go to the CPU
        kept(elsewhere, on_cpu=True)


def test_a_callback_and_a_module_get_the_outputs_at_the_end_of_the_training_epoch() -> None:
    got: dict[str, Any] = {}

    class Old(Net):
        hook_era = "1.1"

        def on_train_epoch_end(self, outputs: Any) -> None:
            got["module"] = outputs

    def on_train_epoch_end(trainer: Any, pl_module: Any, outputs: Any) -> None:
        got["callback"] = outputs

    fit(Old(), callbacks=[hooked(on_train_epoch_end=on_train_epoch_end)])
    assert [list(one) for one in got["module"]] == [["loss"]] * 3
    assert got["callback"] is got["module"]


# order


class Ordered(Recording):
    def on_train_epoch_end(self) -> None:
        self.calls.append(("on_train_epoch_end", None))

    def on_epoch_end(self) -> None:
        if not self.is_validating:
            self.calls.append(("on_epoch_end", None))

    is_validating = False

    def validation_step(self, batch: Batch, batch_idx: int) -> Any:
        return {"val_loss": self.loss(batch)}

    def on_validation_start(self) -> None:
        self.is_validating = True

    def validation_epoch_end(self, outputs: list[Any]) -> None:
        self.calls.append(("validation_epoch_end", outputs))

    def on_validation_end(self) -> None:
        self.is_validating = False


END = ["training_epoch_end", "on_train_epoch_end", "on_epoch_end"]


@pytest.mark.parametrize(
    ("era", "expected"),
    [
        ("0.7", ["validation_epoch_end", *END]),
        ("1.0", ["validation_epoch_end", *END]),
        ("1.1", [*END, "validation_epoch_end"]),
        ("1.3", [*END, "validation_epoch_end"]),
        ("1.5", ["validation_epoch_end", *END]),
    ],
)
def test_validation_at_the_end_of_an_epoch_is_where_the_release_has_it(era: str, expected: list[str]) -> None:
    module = Ordered()
    module.hook_era = era
    fit(module, num_val_batches=2, max_epochs=2)
    assert module.names() == expected * 2


def test_only_the_validation_at_the_end_follows_the_end_of_the_epoch() -> None:
    module = Ordered()
    module.hook_era = "1.1"
    fit(module, num_batches=4, num_val_batches=1, val_check_interval=2)
    assert module.names() == ["validation_epoch_end", *END, "validation_epoch_end"]


def test_an_epoch_that_is_skipped_at_once_has_no_outputs_to_end_with() -> None:
    class Skipping(Ordered):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> int:
            return -1

    module = Skipping()
    fit(module)
    assert module.names() == END[1:]


def test_training_starts_before_the_sanity_check_up_to_0_9() -> None:
    for era, expected in (("0.8", ["train", "sanity"]), ("1.0", ["sanity", "train"])):
        calls: list[str] = []
        module, sink = Ordered(), RecordingSink()
        module.hook_era = era
        module.on_train_start = lambda calls=calls: calls.append("train")
        module.on_sanity_check_start = lambda calls=calls: calls.append("sanity")
        fit(module, num_val_batches=2, num_sanity_val_steps=1, metrics=sink)
        assert calls == expected
        before_training = sink.calls[: sink.calls.index("moment batch", sink.calls.index("discard"))]
        assert before_training[-1] == ("enter train epoch" if era == "0.8" else "start_epoch train 1")


# evaluation


@pytest.mark.parametrize("verb", ["fit", "validate", "test"])
def test_the_end_of_an_evaluation_gets_what_its_steps_returned(verb: str) -> None:
    class Evaluated(Net):
        def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> Any:
            return {"idx": batch_idx} if batch_idx != 1 else None

        test_step = validation_step

        def validation_epoch_end(self, outputs: Any) -> None:
            self.got = outputs

        test_epoch_end = validation_epoch_end

    module = Evaluated()
    if verb == "fit":
        fit(module, num_val_batches=3)
    else:
        trainer = BareTrainer(module)
        trainer.verb(verb, trainer.fit_loop.validation if verb == "validate" else TestLoop(), Sized(make_batches(3)))
    assert module.got == [{"idx": 0}, {"idx": 2}]


def test_with_several_loaders_each_has_a_list() -> None:
    class Evaluated(Net):
        def validation_step(self, batch: Batch, batch_idx: int, dataset_idx: int) -> Any:
            return dataset_idx, batch_idx

        def validation_end(self, outputs: Any) -> None:
            self.got = outputs

    module = Evaluated()
    trainer = BareTrainer(module)
    trainer.verb("validate", trainer.fit_loop.validation, [Sized(make_batches(2)), Sized(make_batches(1))])
    assert module.got == [[(0, 0), (0, 1)], [(1, 0)]]


def test_an_evaluation_ends_with_its_outputs_before_the_hooks_that_get_none() -> None:
    calls: list[str] = []

    class Old(Net):
        def validation_epoch_end(self, outputs: Any) -> None:
            calls.append("validation_epoch_end")

        def on_validation_epoch_end(self) -> None:
            calls.append("on_validation_epoch_end")

        def on_post_performance_check(self) -> None:
            calls.append("on_post_performance_check")

    trainer = BareTrainer(Old())
    trainer.verb("validate", trainer.fit_loop.validation, Sized(make_batches(2)))
    assert calls == ["validation_epoch_end", "on_validation_epoch_end", "on_post_performance_check"]


def test_what_an_end_returns_is_logged_before_the_epoch_is_published() -> None:
    class Returning(Net):
        hook_era = "0.8"

        def validation_step(self, batch: Batch, batch_idx: int) -> Any:
            return {"val_loss": self.loss(batch), "log": {"each": 1.0}}

        def validation_epoch_end(self, outputs: Any) -> Any:
            loss = torch.stack([one["val_loss"] for one in outputs]).mean()
            return {"val_loss": loss, "log": {"mean": loss, "step": 5}}

        def training_epoch_end(self, outputs: Any) -> Any:
            return {"progress_bar": {"epoch_loss": 1.0}}

    sink = RecordingSink()
    fit(Returning(), num_val_batches=2, metrics=sink)
    returned = [call for call in sink.calls if call.startswith(("log_returned", "end_epoch", "moment epoch"))]
    assert returned[-6:] == [
        "log_returned val_loss:",
        "log_returned mean step: logger",
        "end_epoch",
        "moment epoch",
        "log_returned epoch_loss: prog_bar",
        "end_epoch",
    ]
    assert not any("each" in call for call in returned)


def test_0_x_without_an_end_logs_what_its_evaluation_steps_return_and_1_x_does_not() -> None:
    class Returning(Net):
        def validation_step(self, batch: Batch, batch_idx: int) -> Any:
            return {"val_loss": self.loss(batch), "log": {"each": 1.0}}

    for era, num_logged in (("0.8", 4), ("1.5", 0)):
        module, sink = Returning(), RecordingSink()
        module.hook_era = era
        trainer = BareTrainer(module, metrics=sink)
        trainer.verb("validate", trainer.fit_loop.validation, Sized(make_batches(2)))
        assert len([call for call in sink.calls if call.startswith("log_returned")]) == num_logged


# resume


def resumed(module: Any, at_batch: int) -> Any:
    """The same module after a run that was saved behind a batch and went on elsewhere; what it learned is its own."""

    def save(trainer: Any, _: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.progress.total_batches == at_batch:
            trainer.save_checkpoint("inside")

    first = fit(seeded(module), num_batches=4, max_epochs=2, callbacks=[hooked(on_train_batch_end=save)])
    other = seeded(module)
    BareTrainer(other, max_epochs=2, limit_val_batches=0, stateless_loaders="fast_forward").fit(
        Sized(make_batches(4)), None, first.load("inside")
    )
    return first.module, other


@WITHOUT_STATE
@pytest.mark.parametrize("at_batch", [1, 2, 4, 5, 6])
@pytest.mark.parametrize("make", [Recording, Both])
def test_a_run_that_is_resumed_inside_an_epoch_ends_it_with_the_same_outputs(make: Any, at_batch: int) -> None:
    one, other = resumed(make, at_batch)
    assert same_bits(weights(one), weights(other))
    own = one.calls[-len(other.calls) :]
    assert repr(own) == repr(other.calls) and other.calls


class Thing:
    """Nothing that a checkpoint can hold."""


@WITHOUT_STATE
def test_outputs_that_a_checkpoint_cannot_hold_are_told_of_and_refused_at_the_resume() -> None:
    class Strange(Recording):
        def training_step(self, batch: Batch, batch_idx: int) -> Any:
            return {"loss": self.loss(batch), "thing": Thing()}

    with (
        pytest.warns(
            UserWarning, match=r"no tensors and plain values alone \(Thing\), so a checkpoint cannot hold them"
        ),
        pytest.raises(
            ValueError,
            match=r"`checkpoint` must be one that holds what `training_step` returned before it inside of the "
            r"epoch, which cannot hold Thing, but got .* in .*Strange, fit\. Resume from a checkpoint that was "
            r"saved at an epoch's end\.",
        ),
    ):
        resumed(Strange, 2)


@WITHOUT_STATE
def test_a_checkpoint_of_a_module_that_kept_no_outputs_is_refused_where_they_are_wanted() -> None:
    class Late(Net):
        pass

    def save(trainer: Any, _: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 1:
            trainer.save_checkpoint("inside")

    first = fit(seeded(Late), callbacks=[hooked(on_train_batch_end=save)])
    with pytest.raises(ValueError, match="`checkpoint` must be one that holds what `training_step` returned"):
        BareTrainer(seeded(Recording), max_epochs=1, limit_val_batches=0, stateless_loaders="fast_forward").fit(
            Sized(make_batches(3)), None, first.load("inside")
        )


def test_the_end_of_a_prediction_in_1_x_gets_what_was_predicted() -> None:
    class Of15(Net):
        hook_era = "1.5"

        def on_predict_epoch_end(self, results: Any) -> None:
            self.results = [[prediction.clone() for prediction in of_loader] for of_loader in results]

    module = Of15()
    loaders: Any = [Sized(make_batches(2)), Sized(make_batches(1))]
    predictions = BareTrainer(module).verb("predict", PredictLoop(), loaders)
    assert [len(of_loader) for of_loader in module.results] == [2, 1]
    for got, returned in zip(module.results, predictions, strict=True):
        assert all(map(torch.equal, got, returned))


# outputs in containers of a class of their own, as those of transformers


class OutputNet(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return Prediction(loss=self.loss((batch["x"], batch["y"])), logits=self(batch["x"]))


def encodings(num_batches: int) -> Sized:
    return Sized([BatchEncoding({"x": x, "y": y}) for x, y in make_batches(num_batches)])


@pytest.mark.parametrize("make", [lambda x: Prediction(logits=x), lambda x: BatchEncoding({"logits": x})])
def test_an_output_is_kept_and_restored_in_its_class(make: Any) -> None:
    value = make(torch.ones(2, requires_grad=True) * 2)
    copied, were_elsewhere = saved(kept(value, on_cpu=True))
    assert were_elsewhere == [False]
    assert torch.equal(restored(copied, were_elsewhere, torch.device("cpu"))["logits"], value["logits"])


def test_an_epoch_end_of_an_earlier_era_gets_such_outputs() -> None:
    seen: list[Any] = []

    class OldNet(OutputNet):
        hook_era = "1.5"

        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            return Prediction(logits=self(batch["x"]))

        def validation_epoch_end(self, outputs: Any) -> None:
            seen.extend(outputs)

    BareTrainer(OldNet(), max_epochs=1).fit(encodings(1), encodings(2))
    assert [type(one) for one in seen] == [Prediction, Prediction]
