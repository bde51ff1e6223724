"""Checkpoints that are asked for anywhere are written where no step is half done."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from bare_parts import BareTrainer, Net, Sized, adam, hooked, make_batches, same_bits, seeded, weights
from hypothesis import given, settings
from hypothesis import strategies as st
from overriding_parts import Data, override
from torch.optim.lr_scheduler import StepLR

from camshaft.hooks_core import Callback
from camshaft.loops import Run, SaveRequest, TestLoop

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

HOOKS_OF_A_BATCH = [
    *["on_train_batch_start", "on_before_zero_grad", "on_before_backward", "on_after_backward"],
    *["on_before_optimizer_step", "on_train_batch_end"],
    *["on_validation_start", "on_validation_batch_end", "on_validation_epoch_end", "on_validation_end"],
]


def configure(module: Any) -> Any:
    optimizer = adam(module)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": StepLR(optimizer, 1, 0.9), "interval": "step"}}


class AtBatchEnds(Callback):
    """Notes the weights and counters when each batch is over."""

    def __init__(self) -> None:
        self.states: dict[int, Any] = {}

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        batch_number = trainer.progress.total_batches + 1  # the counter follows this hook
        self.states[batch_number] = (weights(module), trainer.global_step)


@settings(max_examples=40, deadline=None)
@given(
    hook=st.sampled_from(HOOKS_OF_A_BATCH),
    number=st.integers(0, 5),
    accumulate=st.integers(1, 3),
    overrides=st.frozensets(st.sampled_from(["optimizer_step"])),
    weights_only=st.booleans(),
)
def test_a_checkpoint_never_holds_half_a_step(
    hook: str, number: int, accumulate: int, overrides: frozenset[str], weights_only: bool
) -> None:
    calls: list[int] = []
    saved_at: list[int] = []

    def ask(trainer: Any, *_: Any) -> None:
        calls.append(0)
        if len(calls) == number + 1:
            trainer.save_checkpoint("file", weights_only, lambda: saved_at.append(trainer.progress.total_batches))
            assert "file" not in trainer.files

    noting, module = AtBatchEnds(), override(seeded(Net, configure), *overrides)
    callbacks = [hooked(**{hook: ask}), noting]
    trainer = BareTrainer(
        module, callbacks=callbacks, max_epochs=2, accumulate_grad_batches=accumulate, val_check_interval=2
    )
    trainer.fit(Sized(make_batches(4)), Sized(make_batches(1)))
    if len(calls) <= number:
        assert trainer.files == {}
        return
    (batch_number,) = saved_at
    checkpoint = trainer.load("file")
    expected_weights, expected_step = noting.states[batch_number]
    assert same_bits(list(checkpoint["state_dict"].values()), expected_weights)
    assert checkpoint["global_step"] == expected_step
    progress = checkpoint["loops"]["fit"]
    assert progress["earlier_batches"]["completed"] + progress["batches"]["completed"] == batch_number
    # what was asked for in an epoch's last batch is written when the epoch is over
    assert (progress["current_epoch"], progress["batches"]["ready"]) == divmod(batch_number, 4)
    if not weights_only:
        steps = {int(state["step"]) for state in checkpoint["optimizer_states"][0]["state"].values()}
        assert steps == ({expected_step} if expected_step else set())
        assert checkpoint["lr_schedulers"][0]["last_epoch"] == expected_step


def test_requests_are_written_after_every_hook_of_the_batch_and_its_validation() -> None:
    order: list[str] = []
    callback = hooked(
        on_train_batch_start=lambda trainer, *_: trainer.save_checkpoint("a", on_saved=lambda: order.append("saved a")),
        on_train_batch_end=lambda trainer, *_: (
            order.append("batch end"),
            trainer.save_checkpoint("b", on_saved=lambda: order.append("saved b")),
        ),
        on_validation_end=lambda *_: order.append("validation end"),
        on_save_checkpoint=lambda *_: order.append("saving"),
        on_train_epoch_end=lambda *_: order.append("epoch end"),
    )
    trainer = BareTrainer(seeded(), callbacks=[callback], max_epochs=1, val_check_interval=1)
    trainer.fit(Sized(make_batches(2)), Sized(make_batches(1)))
    files = ["saving", "saved a", "saving", "saved b"]
    assert order == ["batch end", "validation end", *files, "batch end", "validation end", "epoch end", *files]


@pytest.mark.parametrize(
    ("hook", "total_batches"),
    [
        *[("on_fit_start", 0), ("on_sanity_check_start", 0), ("on_train_start", 0), ("on_train_epoch_start", 1)],
        *[("on_train_epoch_end", 2), ("on_train_end", 2), ("on_fit_end", 2)],
    ],
)
def test_requests_of_other_hooks_of_fit_are_written_at_the_next_save_point(hook: str, total_batches: int) -> None:
    saved_at: list[int] = []

    def ask(trainer: Any, *_: Any) -> None:
        trainer.save_checkpoint("file", on_saved=lambda: saved_at.append(trainer.progress.total_batches))

    trainer = BareTrainer(seeded(), callbacks=[hooked(**{hook: ask})], max_epochs=1, num_sanity_val_steps=1)
    trainer.fit(Sized(make_batches(2)), Sized(make_batches(1)))
    assert saved_at == [total_batches]


@pytest.mark.parametrize("ending", ["max_steps", "should_stop", "skip"])
def test_a_request_is_written_even_if_its_batch_is_the_last_to_run(ending: str) -> None:
    def ask(trainer: Any, module: Any, batch: Any, batch_idx: int) -> Any:
        if batch_idx == 1:
            trainer.save_checkpoint("file")
            trainer.fit_loop.should_stop = ending == "should_stop"
            return -1 if ending == "skip" else None
        return None

    limits = {"max_steps": 2} if ending == "max_steps" else {"max_epochs": 1}
    trainer = BareTrainer(seeded(), callbacks=[hooked(on_train_batch_start=ask)], **limits)
    trainer.fit(Sized(make_batches(4)))
    assert trainer.load("file")["global_step"] == (1 if ending == "skip" else 2)


def test_a_request_is_written_even_if_there_is_nothing_to_train() -> None:
    callback = hooked(on_fit_start=lambda trainer, *_: trainer.save_checkpoint("file"))
    assert "file" in BareTrainer(seeded(), callbacks=[callback], max_epochs=0).fit(Sized(make_batches(1))).files


def test_requests_after_fit_and_in_other_verbs_are_written_at_once() -> None:
    trainer = BareTrainer(seeded(), max_epochs=1).fit(Sized(make_batches(1)))
    trainer.save_checkpoint("after")
    assert trainer.load("after")["epoch"] == 1  # the epoch that would follow
    present: list[bool] = []

    def ask(trainer: Any, *_: Any) -> None:
        trainer.save_checkpoint("inside")
        present.append("inside" in trainer.files)

    other = BareTrainer(seeded(), callbacks=[hooked(on_test_batch_end=ask)])
    other.verb("test", TestLoop(), Sized(make_batches(1)))
    assert present == [True]
    assert "optimizer_states" not in other.load("inside")


def test_a_callback_that_is_told_may_ask_again() -> None:
    order: list[str] = []

    def ask(trainer: Any, *_: Any) -> None:
        trainer.save_checkpoint("a", on_saved=lambda: (order.append("a"), trainer.save_checkpoint("b")))

    trainer = BareTrainer(seeded(), callbacks=[hooked(on_train_epoch_end=ask)], max_epochs=1)
    trainer.fit(Sized(make_batches(1)))
    assert set(trainer.files) == {"a", "b"}


def test_a_failure_to_write_is_raised_and_its_owner_is_not_told() -> None:
    told: list[int] = []

    def ask(trainer: Any, *_: Any) -> None:
        trainer.run.write_checkpoint = fail
        trainer.save_checkpoint("file", on_saved=lambda: told.append(1))

    def fail(request: SaveRequest) -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        BareTrainer(seeded(), callbacks=[hooked(on_train_batch_end=ask)], max_epochs=1).fit(Sized(make_batches(2)))
    assert told == []


def test_what_an_error_left_unwritten_is_not_written_later() -> None:
    def fail(trainer: Any, *_: Any) -> None:
        raise ValueError("on purpose")

    callback = hooked(
        on_train_batch_start=lambda trainer, *_: trainer.save_checkpoint("waiting"),
        on_train_batch_end=fail,
        on_exception=lambda trainer, *_: trainer.save_checkpoint("after the error"),
    )
    trainer = BareTrainer(seeded(), callbacks=[callback], max_epochs=1)
    with pytest.raises(ValueError, match="on purpose"):
        trainer.fit(Sized(make_batches(1)))
    assert list(trainer.files) == ["after the error"]


def test_a_run_that_cannot_write_says_so() -> None:
    trainer = BareTrainer(Net())
    run = Run(verb="fit", module=Net(), strategy=trainer.strategy, trainer=trainer)
    run.request_save(SaveRequest("file"))
    with pytest.raises(RuntimeError, match="`write_checkpoint` must be set to save 'file', but got None"):
        run.save_point()


class Remembering(Callback):
    def state_dict(self) -> dict[str, Any]:
        return {"best": torch.tensor(0.5), "name": "x"}

    def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint["own"] = [1, 2]


@pytest.mark.parametrize("weights_only", [False, True])
def test_what_a_checkpoint_holds_is_plain(weights_only: bool) -> None:
    callback = hooked(on_train_epoch_end=lambda trainer, *_: trainer.save_checkpoint("file", weights_only))
    data = Data(train=make_batches(3), val=make_batches(1))
    net = seeded(Net, configure)
    trainer = BareTrainer(net, callbacks=[callback, Remembering(), hooked("Stateless")], data=data, max_epochs=1)
    trainer.fit()
    checkpoint = trainer.load("file")  # reads with weights_only=True, so nothing but tensors and plain values
    expected = {"epoch", "global_step", "state_dict", "loops", "own"}
    further = {"callbacks", "rng", "optimizer_states", "lr_schedulers", "data", "fit"}
    assert set(checkpoint) == (expected if weights_only else expected | further)
    assert checkpoint["own"] == [1, 2]
    assert checkpoint["loops"]["fit"].pop("elapsed_seconds") > 0
    assert checkpoint["loops"]["fit"].pop("logged_steps_ahead", 0) == 0
    all_done = {"ready": 3, "started": 3, "processed": 3, "completed": 3}
    assert checkpoint["loops"] == {
        "fit": {
            "current_epoch": 1,
            "global_step": 3,
            "epochs": dict.fromkeys(all_done, 1),
            "batches": dict.fromkeys(all_done, 0),
            "earlier_batches": all_done,
        },
        "validate": dict.fromkeys(all_done, 1),
    }
    assert same_bits(list(checkpoint["state_dict"].values()), weights(net))
    if not weights_only:
        assert checkpoint["callbacks"] == {"Remembering": {"best": torch.tensor(0.5), "name": "x"}}
        assert checkpoint["data"] == {"memory": 2}


def test_a_function_at_the_save_point_finds_its_checkpoints_written_and_may_change_weights_for_them() -> None:
    order: list[str] = []

    def save_zeros(trainer: Any) -> None:
        before = weights(trainer.module)
        with torch.no_grad():
            for parameter in trainer.module.parameters():
                parameter.zero_()
        trainer.save_checkpoint("zeros", on_saved=lambda: order.append("saved zeros"))
        order.append("zeros there" if "zeros" in trainer.files else "zeros missing")
        with torch.no_grad():
            for parameter, value in zip(trainer.module.parameters(), before, strict=True):
                parameter.copy_(value)

    def ask(trainer: Any, *_: Any) -> None:
        trainer.save_checkpoint("a", on_saved=lambda: order.append("saved a"))
        trainer.run.at_save_point(lambda: save_zeros(trainer))
        trainer.save_checkpoint("b", on_saved=lambda: order.append("saved b"))
        order.append("asked")

    trainer = BareTrainer(seeded(), callbacks=[hooked(on_train_batch_end=ask)], max_epochs=1)
    trainer.fit(Sized(make_batches(1)))
    assert order == ["asked", "saved a", "saved zeros", "zeros there", "saved b"]
    assert not any(value.any() for value in trainer.load("zeros")["state_dict"].values())
    assert trainer.load("a")["global_step"] == trainer.load("zeros")["global_step"] == 1
    assert same_bits(*(list(trainer.load(path)["state_dict"].values()) for path in ("a", "b")))


@pytest.mark.parametrize("cause", ["interval", "late should_stop"])
def test_a_function_after_the_batch_waits_for_its_validation_and_may_ask_for_the_batchs_checkpoint(cause: str) -> None:
    order: list[str] = []

    def ask(trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        trainer.run.after_batch(lambda: (order.append(f"after {batch_idx}"), trainer.save_checkpoint(f"{batch_idx}")))

    def stop(trainer: Any, *_: Any) -> None:
        if cause == "late should_stop" and trainer.global_step == 2:
            trainer.fit_loop.should_stop = True

    callbacks = [
        hooked(on_train_batch_end=ask, on_validation_end=lambda *_: order.append("validation")),
        hooked(on_train_batch_end=stop),
    ]
    trainer = BareTrainer(seeded(), callbacks=callbacks, max_epochs=1, val_check_interval=2)
    trainer.fit(Sized(make_batches(3 if cause == "interval" else 4)), Sized(make_batches(1)))
    expected = ["after 0", "validation", "after 1"] + (["after 2"] if cause == "interval" else [])
    assert order == expected
    assert {path: trainer.load(path)["global_step"] for path in trainer.files} == {
        str(idx): idx + 1 for idx in range(len(expected) - 1)
    }


def test_functions_are_called_at_once_where_nothing_is_trained() -> None:
    called: list[str] = []
    trainer = BareTrainer(seeded(), max_epochs=1)
    trainer.fit(Sized(make_batches(1)))
    trainer.run.after_batch(lambda: called.append("after batch"))
    trainer.run.at_save_point(lambda: called.append("save point"))
    assert called == ["after batch", "save point"]
