from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import handwritten_loop
import pytest
from handwritten_loop import Model, Trainer

from camshaft.hooks_core.check import ConformanceError
from camshaft.hooks_core.conformance import FEATURES, SCENARIOS, Adapter, Scenario, conform, run_scenario
from camshaft.hooks_core.spec import ZERO_GRADS, ZeroGrad

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_right_trainer_passes(scenario: Scenario) -> None:
    trace = run_scenario(scenario, handwritten_loop.adapter())
    kinds = [str(participant.kind) for participant in trace.participants]
    assert kinds == ["callback"] * 4 + ["data", "module", "strategy"]
    assert len(trace) > 0


def zeroing(place: ZeroGrad) -> type[Trainer]:
    return type("Zeroing", (Trainer,), {"zero_grad": place})


@pytest.mark.parametrize("place", ZERO_GRADS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_right_trainer_passes_wherever_it_zeroes_gradients(scenario: Scenario, place: ZeroGrad) -> None:
    assert len(run_scenario(scenario, handwritten_loop.adapter(zeroing(place)), zero_grad=place)) > 0


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
        run_scenario(BY_NAME[scenario], handwritten_loop.adapter(trainer))


def test_conform_raises_the_whole_report() -> None:
    with pytest.raises(ConformanceError) as caught:
        conform(handwritten_loop.adapter(TooFewBatches), verbs=["fit", "test"])
    text = str(caught.value)
    assert text.startswith("The trainer departs from the hook protocol.\n")
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
