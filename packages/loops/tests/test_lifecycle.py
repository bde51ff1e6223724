"""Whatever raises, wherever it does: everybody is told, everything is torn down and put back."""

from __future__ import annotations

import re
import traceback
from typing import Any

import pytest
import torch
from bare_parts import BareStrategy, BareTrainer, Net, Sized, hooked, make_batches
from fault_points import Fixture, reference_calls

from camshaft.hooks_core import HookFaultError
from camshaft.hooks_core.check import check
from camshaft.loops import Run, TestLoop, ValidationLoop
from camshaft.loops.lifecycle import prepare_data

pytestmark = [pytest.mark.exhaustive, pytest.mark.filterwarnings("ignore::UserWarning")]

VERBS = ("fit", "validate", "test", "predict")
ERRORS = (ValueError, StopIteration, KeyboardInterrupt, SystemExit, GeneratorExit)


def check_aftermath(fixture: Fixture, error: BaseException) -> None:
    """What has to hold after any error."""
    exception_receivers = {"FirstCallback", "LastCallback", "Data", "EveryHookNet", "ReceivingStrategy"}
    assert fixture.num_calls("on_exception") == dict.fromkeys(exception_receivers, 1)
    assert fixture.num_calls("teardown") == dict.fromkeys(exception_receivers - {"ReceivingStrategy"}, 1)
    assert fixture.strategy.num_teardowns == 1
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()
    modes = [module.training for name, module in fixture.module.named_modules() if name != "added"]
    assert modes == fixture.modes
    assert getattr(fixture.module, "added", torch.nn.Identity()).training
    assert not fixture.trainer.run.defers_saves
    frames = traceback.extract_tb(error.__traceback__)
    assert frames[-1].name == "counted"


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("verb", "kind"),
    [*((verb, ValueError) for verb in VERBS), ("fit", StopIteration), ("predict", StopIteration), ("fit", SystemExit)],
)
def test_an_error_at_any_hook_of_any_receiver(verb: str, kind: type[BaseException]) -> None:
    calls = reference_calls(verb)
    first = {call: number for number, call in reversed(list(enumerate(calls)))}
    last = {call: number for number, call in enumerate(calls)}
    assert len(first) > 35
    # What is special about other kinds is where hooks are called, whoever the receiver is.
    once = {hook: number for (_, hook), number in first.items()}
    for number in sorted({*first.values(), *last.values()} if kind is ValueError else once.values()):
        receiver, hook = calls[number]
        error = kind("on purpose")
        fixture = Fixture(verb, number, error)
        with pytest.raises(kind) as caught:
            fixture.run()
        assert caught.value is error, f"call {number}: {hook} of {receiver}"
        place = r"\(\w+(, stage \w+)?, epoch [01](, batch [0-2])?, rank 0\)\."
        (note,) = error.__notes__
        assert re.fullmatch(f"Raised in hook `{hook}` of {receiver} {place}", note), note
        if hook == "configure_callbacks":
            continue  # the hooks are not resolved yet, so nobody can be told
        check_aftermath(fixture, error)
        if kind is ValueError and receiver in ("LastCallback", "EveryHookNet"):
            check(fixture.trace, verb)


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("breaking", [("on_exception",), ("teardown",), ("on_exception", "teardown")])
def test_handlers_that_raise_rob_nobody(kind: type[BaseException], breaking: tuple[str, ...]) -> None:
    calls = reference_calls("fit")
    for number in (0, calls.index(("EveryHookNet", "training_step")), len(calls) // 2):
        error = kind("on purpose")
        fixture = Fixture("fit", number, error, breaking)
        with pytest.raises(kind) as caught:
            fixture.run()
        assert caught.value is error
        check_aftermath(fixture, error)
        told = [note for note in error.__notes__ if note.startswith("Afterwards, ")]
        assert len(told) == len(breaking)
        for note, hook in zip(told, breaking, strict=True):
            assert note.startswith(f"Afterwards, {hook} raised LookupError: {hook} of FirstCallback breaks")
            assert "Data breaks" in note
            assert "EveryHookNet breaks" in note


def test_a_teardown_that_raises_reaches_the_others_and_is_reported_once() -> None:
    fixture = Fixture("fit", breaking=("teardown",))
    with pytest.raises(LookupError, match="teardown of FirstCallback breaks") as caught:
        fixture.run()
    check_aftermath(fixture, caught.value)


def test_the_note_says_where_the_run_was() -> None:
    notes: dict[str, str] = {}
    calls = reference_calls("fit", max_epochs=2)
    for number in (
        calls.index(("EveryHookNet", "on_fit_start")),
        calls.index(("EveryHookNet", "validation_step")),
        calls.index(("LastCallback", "on_train_batch_end")),
        max(idx for idx, call in enumerate(calls) if call == ("EveryHookNet", "validation_step")),
        max(idx for idx, call in enumerate(calls) if call == ("FirstCallback", "on_train_epoch_end")),
    ):
        error = ValueError()
        with pytest.raises(ValueError):
            Fixture("fit", number, error, max_epochs=2).run()
        notes[str(number)] = error.__notes__[0].partition(" (")[2]
    assert list(notes.values()) == [
        "fit, epoch 0, rank 0).",
        "fit, stage validate, epoch 0, batch 0, rank 0).",
        "fit, stage train, epoch 0, batch 0, rank 0).",
        "fit, stage validate, epoch 1, batch 0, rank 0).",
        "fit, stage train, epoch 1, rank 0).",
    ]


def test_a_caller_who_works_without_gradients_gets_that_back() -> None:
    seen: list[bool] = []
    callback = hooked(
        on_train_start=lambda *_: seen.append(torch.is_grad_enabled()),
        on_validation_start=lambda *_: seen.append(torch.is_grad_enabled()),
    )
    trainer = BareTrainer(Net(), callbacks=[callback], max_epochs=1)
    with torch.no_grad():
        trainer.fit(Sized(make_batches(1)), Sized(make_batches(1)))
        assert not torch.is_grad_enabled()
    assert seen == [True, False]


class BrokenStrategy(BareStrategy):
    def teardown(self) -> None:
        super().teardown()
        raise OSError("the strategy cannot let go")


def test_a_strategy_that_cannot_be_torn_down_is_an_error_that_everybody_hears_of() -> None:
    heard: list[BaseException] = []
    callback = hooked(on_exception=lambda trainer, module, exception: heard.append(exception))
    strategy = BrokenStrategy()
    with pytest.raises(OSError, match="the strategy cannot let go") as caught:
        BareTrainer(Net(), callbacks=[callback], strategy=strategy, max_epochs=1).fit(Sized(make_batches(1)))
    assert heard == [caught.value]
    assert strategy.num_teardowns == 1


@pytest.mark.parametrize(("verb", "step"), [("fit", "training_step"), ("validate", "validation_step")])
def test_a_missing_step_is_found_before_any_hook_is_called(verb: str, step: str) -> None:
    class Stepless(Net):
        pass

    setattr(Stepless, step, None)
    called: list[str] = []
    callback = hooked(setup=lambda *_: called.append("setup"), on_exception=lambda *_: called.append("exception"))
    trainer = BareTrainer(Stepless(), callbacks=[callback], max_epochs=1)
    with pytest.raises(HookFaultError, match=f"`{step}` must be defined to run this verb, but is missing"):
        trainer.fit(Sized([])) if verb == "fit" else trainer.verb("validate", ValidationLoop(), Sized([]))
    assert called == []


def test_a_misspelt_hook_is_found_before_any_hook_is_called() -> None:
    callback = hooked(on_test_begin=lambda *_: None)
    with pytest.raises(HookFaultError, match="Rename it to `on_test_start`"):
        BareTrainer(Net(), callbacks=[callback]).verb("test", TestLoop(), Sized([]))


def test_a_module_adds_callbacks_that_replace_those_of_the_same_type() -> None:
    class Own(type(hooked())):  # type: ignore[misc]
        pass

    class Other(type(hooked())):  # type: ignore[misc]
        pass

    given, other, own = Own(), Other(), Own()

    class Configuring(Net):
        def configure_callbacks(self) -> Any:
            return own

    trainer = BareTrainer(Configuring(), callbacks=[given, other], max_epochs=1).fit(Sized(make_batches(1)))
    assert trainer.callbacks == [other, own]


def test_a_module_that_configures_no_callbacks_keeps_the_given_ones() -> None:
    class Configuring(Net):
        def configure_callbacks(self) -> Any:
            return []

    callback = hooked()
    trainer = BareTrainer(Configuring(), callbacks=[callback], max_epochs=1).fit(Sized(make_batches(1)))
    assert trainer.callbacks == [callback]


class OneOfTwo(BareStrategy):
    """Says that it is one process of two."""

    def __init__(self, global_rank: int, local_rank: int) -> None:
        super().__init__()
        self.global_rank, self.local_rank, self.world_size = global_rank, local_rank, 2
        self.num_barriers = 0

    def barrier(self) -> None:
        self.num_barriers += 1


def resolved(module: Any, strategy: Any) -> Run:
    run = Run(verb="fit", module=module, strategy=strategy, trainer=None)
    run.resolve_hooks(())
    return run


@pytest.mark.parametrize(
    ("per_node", "ranks", "is_called"),
    [
        (None, (0, 0), True),
        (None, (1, 0), True),
        (None, (1, 1), False),
        (True, (1, 0), True),
        (False, (1, 0), False),
        (False, (0, 0), True),
    ],
)
def test_data_is_prepared_on_one_process_of_each_machine_or_of_all(
    per_node: Any, ranks: tuple[int, int], is_called: bool
) -> None:
    class Preparing(Net):
        num_calls = 0

        def prepare_data(self) -> None:
            self.num_calls += 1

    module, strategy = Preparing(), OneOfTwo(*ranks)
    if per_node is not None:
        module.prepare_data_per_node = per_node
    prepare_data(resolved(module, strategy))
    assert module.num_calls == is_called and strategy.num_barriers == 1


def test_nobody_waits_for_data_that_nobody_prepares() -> None:
    strategy = OneOfTwo(0, 0)
    prepare_data(resolved(Net(), strategy))
    assert strategy.num_barriers == 0
