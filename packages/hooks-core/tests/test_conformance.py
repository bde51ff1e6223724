from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import handwritten_loop
import pytest
from handwritten_loop import Model, Trainer

from camshaft.hooks_core import CATALOGUE, HookSpec, Receiver, resolve
from camshaft.hooks_core.check import ConformanceError
from camshaft.hooks_core.conformance import FEATURES, SCENARIOS, Adapter, Scenario, certify, conform, run_scenario
from camshaft.hooks_core.spec import VERBS, ZERO_GRADS, HookPlace, ZeroGrad


def test_names_are_unique_and_every_verb_and_feature_is_tried() -> None:
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS)
    assert {scenario.verb for scenario in SCENARIOS} == set(VERBS)
    assert frozenset.union(*(scenario.features for scenario in SCENARIOS)) == set(FEATURES)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_a_scenario_that_needs_no_feature(verb: str) -> None:
    assert any(scenario.verb == verb and not scenario.features for scenario in SCENARIOS)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_scenario_names_hooks_of_today_only(scenario: Scenario) -> None:
    named = {*scenario.expected_counts(), *scenario.override, *filter(None, [scenario.raise_in])}
    assert named <= set(CATALOGUE)
    assert scenario.description


def counts(zero_grad: ZeroGrad | None = None, **settings: object) -> dict[str, int]:
    return Scenario(name="any", verb="fit", description="", **settings).expected_counts(zero_grad)  # type: ignore[arg-type]


def test_counts_of_plain_training() -> None:
    found = counts(num_epochs=2, num_batches=3)
    assert found["setup"] == found["teardown"] == found["on_train_start"] == 1
    assert found["on_train_epoch_start"] == found["on_train_epoch_end"] == 2
    assert found["on_train_batch_start"] == found["training_step"] == found["on_before_optimizer_step"] == 6
    assert found["validation_step"] == found["on_sanity_check_start"] == found["on_exception"] == 0


def test_a_short_last_window_is_an_update_of_its_own() -> None:
    found = counts(num_epochs=2, num_batches=5, accumulate_grad_batches=2)
    assert (found["on_before_optimizer_step"], found["on_before_backward"]) == (6, 10)


def test_a_skipped_batch_starts_and_nothing_more() -> None:
    found = counts(num_epochs=2, num_batches=3, skip_at=1)
    assert (found["on_train_batch_start"], found["training_step"], found["on_train_epoch_end"]) == (5, 4, 2)


def test_a_batch_without_loss_ends_without_update() -> None:
    found = counts(num_epochs=2, num_batches=3, no_loss_at=0)
    assert (found["training_step"], found["on_before_backward"], found["on_train_batch_end"]) == (6, 4, 6)


@pytest.mark.parametrize(
    ("zero_grad", "expected"), [(None, 4), ("before_training_step", 6), ("after_optimizer_step", 4)]
)
def test_a_batch_without_loss_is_zeroed_only_where_zeroing_comes_first(zero_grad: Any, expected: int) -> None:
    assert counts(zero_grad, num_epochs=2, num_batches=3, no_loss_at=0)["on_before_zero_grad"] == expected
    assert counts(zero_grad, num_epochs=2, num_batches=5, accumulate_grad_batches=2)["on_before_zero_grad"] == 6


def test_validations_and_the_sanity_check_add_up() -> None:
    found = counts(num_batches=4, num_val_batches=3, val_check_interval=2, num_sanity_val_batches=1)
    assert (found["on_validation_start"], found["validation_step"]) == (3, 7)


def test_a_run_that_raises_has_no_counts() -> None:
    assert counts(raise_in="on_train_start") == {}


DECLARED = {"monitoring", "after_module"}
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_right_trainer_passes(scenario: Scenario) -> None:
    trace = run_scenario(handwritten_loop.adapter(), scenario)
    kinds = [str(participant.kind) for participant in trace.participants]
    assert kinds == ["callback"] * (3 if scenario.features & DECLARED else 2) + ["data", "module", "strategy"]
    assert len(trace) > 0


def zeroing(place: ZeroGrad) -> type[Trainer]:
    return type("Zeroing", (Trainer,), {"zero_grad": place})


@pytest.mark.parametrize("place", ZERO_GRADS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_right_trainer_passes_wherever_it_zeroes_gradients(scenario: Scenario, place: ZeroGrad) -> None:
    assert len(run_scenario(handwritten_loop.adapter(zeroing(place)), scenario, zero_grad=place)) > 0


@pytest.mark.parametrize("place", ZERO_GRADS)
def test_the_kit_holds_a_trainer_to_its_place_of_zeroing(place: ZeroGrad) -> None:
    assert conform(handwritten_loop.adapter(zeroing(place)), verbs=["fit"], zero_grad=place).passed
    for other in ZERO_GRADS:
        if other != place:
            with pytest.raises(ConformanceError, match="on_before_zero_grad") as caught:
                conform(handwritten_loop.adapter(zeroing(place)), verbs=["fit"], features=[], zero_grad=other)
            assert "passed" not in str(caught.value)


def test_an_unknown_place_of_zeroing_is_an_error() -> None:
    with pytest.raises(
        ValueError, match=r"`zero_grad` must be among before_training_step, .*, but got 'never' \(str\)"
    ):
        conform(handwritten_loop.adapter(), zero_grad="never")  # type: ignore[arg-type]


def test_the_report_lists_what_passed_and_what_was_left_out() -> None:
    report = conform(handwritten_loop.adapter(), verbs=["fit"], features=["validation"])
    assert report.passed
    assert [outcome.scenario.name for outcome in report.outcomes] == ["fit", "fit-epochs", "fit-validation"]
    lines = str(report).splitlines()
    assert lines[0].split() == ["passed", "fit", "one", "epoch", "of", "training"]
    assert any(line.split()[:4] == ["left", "out", "fit-accumulation", "needs"] for line in lines)
    assert any(line.endswith("needs predict, exceptions") for line in lines)
    assert len(lines) == len(SCENARIOS)


def test_everything_is_claimed_by_default() -> None:
    assert len(conform(handwritten_loop.adapter()).outcomes) == len(SCENARIOS)


def test_a_trainer_without_data_and_strategy_needs_neither() -> None:
    assert conform(Adapter(handwritten_loop.run(), Model)).passed


@pytest.mark.parametrize("by_callback", [False, True])
def test_the_module_or_a_callback_ends_the_epoch(by_callback: bool) -> None:
    name = "fit-skip-epoch-by-callback" if by_callback else "fit-skip-epoch"
    trace = run_scenario(handwritten_loop.adapter(), BY_NAME[name])
    skipping = [event.label for event in trace if event.hook == "on_train_batch_start" and event.result == "-1"]
    assert skipping == ["callback:Scripted" if by_callback else "module:Model"]


def run_in_turn(scenario: Scenario, module: Any, callbacks: Sequence[Any]) -> None:
    """Call every callback in its turn, whatever it declares."""
    for callback in callbacks:
        callback.monitors, callback.after_module = False, frozenset()
    handwritten_loop.run()(scenario, module, callbacks)


@pytest.mark.parametrize(
    ("feature", "hook"), [("monitoring", "on_train_epoch_end"), ("after_module", "on_train_batch_end")]
)
def test_what_a_callback_declares_is_held(feature: str, hook: str) -> None:
    report = certify(Adapter(run_in_turn, Model))
    departing = {outcome.scenario.name: outcome.error for outcome in report.outcomes if outcome.error is not None}
    of_feature = {scenario.name for scenario in SCENARIOS if feature in scenario.features}
    assert of_feature <= departing.keys()
    assert departing.keys() == {scenario.name for scenario in SCENARIOS if scenario.features & DECLARED}
    assert departing[f"fit-{feature.replace('_', '-')}"].hook == hook


class NoEpochEnd(Trainer):
    """Forgets a hook."""

    def run_epoch(self, epoch: int) -> None:
        self.hooks.on_train_epoch_end = lambda: None
        super().run_epoch(epoch)


class TooFewBatches(Trainer):
    """Does right what it does, but not all of it."""

    def run_epoch(self, epoch: int) -> None:
        if epoch == 0:
            super().run_epoch(epoch)


class NoZeroing(Trainer):
    """Never zeroes gradients."""

    def optimize(self, epoch: int, batch_idx: int) -> Any:
        self.hooks.on_before_zero_grad = lambda optimizer: None
        return super().optimize(epoch, batch_idx)


class WithoutBackwardHooks(Trainer):
    """Has no hooks around backward."""

    def __init__(self, scenario: Scenario, hooks: Any) -> None:
        super().__init__(scenario, hooks)
        hooks.on_before_backward = lambda loss: None
        hooks.on_after_backward = lambda: None


def test_hooks_that_a_trainer_never_calls_are_no_departure() -> None:
    around_backward = {"on_before_backward", "on_after_backward"}
    report = certify(handwritten_loop.adapter(WithoutBackwardHooks), without=around_backward)
    assert report.passed
    assert [(scenario.name, needs) for scenario, needs in report.left_out] == [
        ("fit-exception-in-backward", ("on_before_backward",))
    ]
    trace = run_scenario(handwritten_loop.adapter(WithoutBackwardHooks), BY_NAME["fit"], without=around_backward)
    assert not any(participant.hooks & around_backward for participant in trace.participants)
    with pytest.raises(ConformanceError, match="on_before_backward"):
        run_scenario(handwritten_loop.adapter(WithoutBackwardHooks), BY_NAME["fit"], without=["on_after_backward"])


def run_silent_to_module(scenario: Scenario, module: Any, callbacks: Sequence[Any]) -> None:
    hooks: Any = resolve(callbacks=callbacks, module=module)
    hooks.on_exception = resolve(callbacks=callbacks).on_exception
    Trainer(scenario, hooks).run()


def test_a_hook_may_be_missing_for_one_kind_of_receiver() -> None:
    adapter, scenario = Adapter(run_silent_to_module, Model), BY_NAME["fit-exception-in-epoch"]
    assert len(run_scenario(adapter, scenario, without=["module:on_exception"])) > 0
    with pytest.raises(ConformanceError, match="must be on_exception on module:Model"):
        run_scenario(adapter, scenario, without=["strategy:on_exception"])


@pytest.mark.parametrize("name", ["on_lunch", "waiter:on_exception"])
def test_a_missing_hook_that_is_none_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match=rf"`without` must be names of hooks, .* but got '{name}' \(str\) in conform"):
        conform(handwritten_loop.adapter(), without=[name])


def test_a_scenario_that_shows_nothing_without_a_hook_is_left_out() -> None:
    report = certify(handwritten_loop.adapter(), without=["callback:on_before_optimizer_step", "on_train_batch_start"])
    assert {scenario.name: needs for scenario, needs in report.left_out} == {
        "fit-accumulation": ("on_before_optimizer_step",),
        "fit-skip-epoch": ("on_train_batch_start",),
        "fit-skip-epoch-by-callback": ("on_train_batch_start",),
    }


class DeafToSkipping(Trainer):
    """Does not look at what on_train_batch_start returns."""

    def run_epoch(self, epoch: int) -> None:
        start = self.hooks.on_train_batch_start
        self.hooks.on_train_batch_start = lambda *arguments: start(*arguments) and None
        super().run_epoch(epoch)
        self.hooks.on_train_batch_start = start


class ZeroingEveryBatch(Trainer):
    """Zeroes what it should accumulate."""

    def optimize(self, epoch: int, batch_idx: int) -> Any:
        if batch_idx % 2:
            self.hooks.on_before_zero_grad(self.optimizer)
        return super().optimize(epoch, batch_idx)


class Swallowing(Trainer):
    """Keeps exceptions to itself."""

    def run(self) -> None:
        try:
            super().run()
        except Exception:
            return


class NoTeardown(Trainer):
    """Leaves without tearing down."""

    def run(self) -> None:
        self.hooks.teardown = lambda stage: None
        super().run()


class StepsLast(Trainer):
    """Enters an overridden optimizer_step after backward."""

    def optimize(self, epoch: int, batch_idx: int) -> Any:
        step, self.hooks.optimizer_step = self.hooks.optimizer_step, None
        outputs = super().optimize(epoch, batch_idx)
        self.hooks.optimizer_step = step
        if step is not None:
            step(epoch, batch_idx, self.optimizer, None)
        return outputs


@pytest.mark.parametrize(
    ("trainer", "scenario", "message"),
    [
        (NoEpochEnd, "fit", r"must be one of: .*on_train_epoch_end on callback:Plain.*but got on_train_end"),
        (TooFewBatches, "fit-epochs", r"on_train_epoch_start must be called 3 times on callback:Plain, but got once"),
        (
            NoZeroing,
            "fit",
            r"must be on_before_zero_grad on callback:Plain, but got on_before_backward on callback:Plain",
        ),
        (
            DeafToSkipping,
            "fit-skip-epoch",
            r"must be on_train_epoch_end on callback:Plain, but got training_step on module",
        ),
        (ZeroingEveryBatch, "fit-accumulation", r"but got on_before_zero_grad on callback:Plain"),
        (Swallowing, "fit-exception-in-epoch", r"must let an exception that a hook raises reach its caller"),
        (NoTeardown, "predict", r"must be teardown on callback:Plain, but got the end of the trace"),
        (NoTeardown, "test-exception", r"teardown on callback:Plain, but got the end of the trace"),
        (StepsLast, "fit-optimizer-step", r"must be .*, but got on_before_optimizer_step on callback:Plain"),
    ],
)
def test_a_wrong_trainer_fails_with_the_reason(trainer: type[Trainer], scenario: str, message: str) -> None:
    with pytest.raises(ConformanceError, match=message):
        run_scenario(handwritten_loop.adapter(trainer), BY_NAME[scenario])


@pytest.mark.parametrize(
    ("trainer", "scenario", "hook"),
    [
        (NoEpochEnd, "fit", "on_train_end"),
        (TooFewBatches, "fit-epochs", "on_train_epoch_start"),
        (NoTeardown, "test-exception", "teardown"),
        (Swallowing, "fit-exception-in-epoch", None),
    ],
)
def test_an_error_names_the_hook_that_departs(trainer: type[Trainer], scenario: str, hook: str | None) -> None:
    with pytest.raises(ConformanceError) as caught:
        run_scenario(handwritten_loop.adapter(trainer), BY_NAME[scenario])
    assert caught.value.hook == hook


def test_conform_raises_the_whole_report() -> None:
    with pytest.raises(ConformanceError) as caught:
        conform(handwritten_loop.adapter(TooFewBatches), verbs=["fit", "test"])
    text = str(caught.value)
    assert text.startswith("The trainer departs from the hook protocol. Mend what the scenarios below found.\n")
    assert "FAILED    fit-epochs" in text
    assert "on_train_epoch_start must be called 3 times" in text
    assert "passed    test " in text
    assert caught.value.index is None


def test_a_trainers_own_error_fails_its_scenario_and_no_other() -> None:
    def run(scenario: Scenario, module: Any, callbacks: Sequence[Any]) -> None:
        if scenario.num_epochs > 1:
            raise NotImplementedError("one epoch only")
        handwritten_loop.run()(scenario, module, callbacks)

    with pytest.raises(ConformanceError, match="NotImplementedError: one epoch only") as caught:
        conform(Adapter(run, Model), verbs=["fit"], features=[])
    assert str(caught.value).count("FAILED") == 1


@pytest.mark.parametrize(
    ("names", "argument"), [({"verbs": ["train"]}, "verbs"), ({"features": ["magic"]}, "features")]
)
def test_an_unknown_name_is_an_error_that_lists_the_known(names: dict[str, list[str]], argument: str) -> None:
    with pytest.raises(
        ValueError, match=rf"`{argument}` must be among (fit|validation), .* but got '(train|magic)' \(str\)"
    ):
        conform(handwritten_loop.adapter(), **names)  # type: ignore[arg-type]


def test_trying_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="`verbs` must be those of at least one scenario"):
        conform(handwritten_loop.adapter(), verbs=[])


def test_every_feature_is_described() -> None:
    assert all(FEATURES.values())


def program_of_the_guide() -> str:
    guide = (Path(__file__).parents[3] / "docs/guides/own-loop.md").read_text()
    (program,) = re.findall(r"```python\n(# certify_my_trainer\.py.*?)```", guide, re.DOTALL)
    return str(program)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("", "", ["passed", "passed"]),
        ("step(number)\n", "...\n", ["FAILED", "FAILED"]),
        ("range(self.num_epochs)", "range(1)", ["passed", "FAILED"]),
    ],
)
def test_the_guide_certifies_a_trainer(
    old: str, new: str, expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    program = program_of_the_guide()
    assert old in program
    exec(program.replace(old, new, 1) if old else program, {"__name__": "certify_my_trainer"})
    words = [line.split()[0] for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]
    assert words == expected + ["left"] * (len(SCENARIOS) - 2)


LUNCH = HookSpec("on_lunch", "At noon.", (Receiver.CALLBACK, Receiver.MODULE), ("menu",))


class Lunching(Trainer):
    """A trainer that calls a hook that a third party registered, in the middle of an epoch and within other calls."""

    def optimize(self, epoch: int, batch_idx: int) -> Any:
        self.hooks.on_lunch("soup")
        return super().optimize(epoch, batch_idx)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hook is in the catalogue of the process, as a library registers it."""
    monkeypatch.setattr(CATALOGUE, "_specs", dict(CATALOGUE._specs))
    CATALOGUE.register(LUNCH)


@pytest.mark.usefixtures("registered")
def test_a_trainer_conforms_with_a_hook_that_a_third_party_registered() -> None:
    assert conform(handwritten_loop.adapter(Lunching)).passed
    trace = run_scenario(handwritten_loop.adapter(Lunching), SCENARIOS[0])
    assert sum(event.hook == "on_lunch" for event in trace) > 0
    raising = Scenario(name="lunch", description="", features=("exceptions",), raise_in="on_lunch")
    assert conform(handwritten_loop.adapter(Lunching), scenarios=[raising]).passed


@pytest.mark.usefixtures("registered")
def test_a_registered_hook_hides_no_departure() -> None:
    class Forgetful(Lunching):
        def optimize(self, epoch: int, batch_idx: int) -> Any:
            self.hooks.on_before_backward(0.5)
            return super().optimize(epoch, batch_idx)

    report = certify(handwritten_loop.adapter(Forgetful), verbs=("fit",), features=())
    assert not report.passed and "on_before_backward" in str(report)


SOUP = HookSpec("on_soup", "Before noon.", (Receiver.CALLBACK, Receiver.MODULE))


@pytest.mark.parametrize(
    ("place", "passes"),
    [
        (HookPlace("before", "training_step"), True),
        (HookPlace("before", "training_step", "at_most_once"), True),
        (HookPlace("after", "on_train_batch_start", "any"), True),
        (HookPlace("after", "training_step"), False),
        (HookPlace("before", "on_train_batch_start", "any"), False),
        (HookPlace("within", "training_step"), False),
        (None, True),
    ],
)
def test_a_registered_hook_is_held_to_the_place_that_was_stated(place: HookPlace | None, passes: bool) -> None:
    catalogue = CATALOGUE.copy()
    catalogue.register(LUNCH, place)

    def run(scenario: Scenario, module: Any, callbacks: Sequence[Any]) -> None:
        Lunching(scenario, resolve(callbacks=callbacks, module=module, catalogue=catalogue)).run()

    report = certify(Adapter(run, Model), verbs=("fit",), features=(), catalogue=catalogue)
    assert report.passed is passes
    if not passes:
        assert "on_lunch" in str(report)


@pytest.mark.parametrize(("times", "passes"), [("once", True), ("at_most_once", True), ("any", True), (None, False)])
def test_a_module_may_call_a_registered_hook_within_its_own(times: Any, passes: bool) -> None:
    catalogue = CATALOGUE.copy()
    where = HookPlace("within", "training_step", times) if times else HookPlace("after", "training_step")
    catalogue.register(LUNCH, where)
    catalogue.register(SOUP, HookPlace("before", "on_lunch"))
    hooks: list[Any] = []

    class Hungry(Model):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            hooks[-1].on_soup()
            hooks[-1].on_lunch("soup")
            return super().training_step(batch, batch_idx)

    def run(scenario: Scenario, module: Any, callbacks: Sequence[Any]) -> None:
        hooks.append(resolve(callbacks=callbacks, module=module, catalogue=catalogue))
        Trainer(scenario, hooks[-1]).run()

    assert certify(Adapter(run, Hungry), verbs=("fit",), features=(), catalogue=catalogue).passed is passes


@pytest.mark.parametrize(
    ("spec", "place", "message"),
    [
        (LUNCH, HookPlace("after", "on_dinner"), r"`place\.hook` must be a hook of the catalogue, but got 'on_dinner'"),
        (LUNCH, HookPlace("after", "train_dataloader"), r"`place` must be left out for hooks of the kinds provide and"),
        (HookSpec("meal", "At noon.", (Receiver.DATA,), kind="provide"), HookPlace("after", "setup"), "such as 'meal'"),
    ],
)
def test_a_place_that_no_order_has_is_refused(spec: HookSpec, place: HookPlace, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CATALOGUE.copy().register(spec, place)


def test_a_hook_has_one_place_and_copies_keep_it() -> None:
    catalogue = CATALOGUE.copy()
    catalogue.register(LUNCH, HookPlace("after", "setup"))
    catalogue.register(LUNCH, HookPlace("after", "setup"))
    with pytest.raises(ValueError, match=r"`spec\.name` must be new to the catalogue"):
        catalogue.register(LUNCH)
    copied = pickle.loads(pickle.dumps(catalogue))
    assert catalogue.copy().places == copied.places == {"on_lunch": HookPlace("after", "setup")}
    assert pickle.loads(pickle.dumps(CATALOGUE)) is copy.deepcopy(CATALOGUE) is CATALOGUE


def test_a_registered_hook_may_be_in_a_catalogue_of_its_own() -> None:
    catalogue = CATALOGUE.copy()
    catalogue.register(LUNCH)

    def run(scenario: Scenario, module: Any, callbacks: Sequence[Any]) -> None:
        Lunching(scenario, resolve(callbacks=callbacks, module=module, catalogue=catalogue)).run()

    assert conform(Adapter(run, Model), catalogue=catalogue).passed
    assert conform(Adapter(run, Model), catalogue=catalogue, without=("on_lunch",)).passed
    with pytest.raises(ValueError, match="`without` must be names of hooks"):
        conform(Adapter(run, Model), without=("on_lunch",))
