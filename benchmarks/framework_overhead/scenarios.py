"""The rows of the table: what is compared, and how one round of it is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from .first_step import milliseconds_to_first_step
from .frameworks import CallbackLoad, Evidence, Framework
from .measurement import Comparison, Run, RunLength, require_same_work, time_run
from .recurrent import NUM_SPLITS, build_sequences
from .terminal import null_terminal
from .timed_loaders import Loader, Source
from .workload import ACCUMULATED_BATCHES, build_batches

NUM_ATTACHED_CALLBACKS = 20
NUM_CALLED_BY_HAND = 200

PREBUILT = Source("prebuilt", build_batches)
IN_ORDER = Source("in_order", build_batches)
SHUFFLED = Source("shuffled", build_batches)
PREBUILT_SEQUENCES = Source("prebuilt", build_sequences, steps_per_batch=NUM_SPLITS)
SHUFFLED_SEQUENCES = Source("shuffled", build_sequences, steps_per_batch=NUM_SPLITS)

T = TypeVar("T")

Pair = tuple[float, float]
"""By hand, with the framework."""


@dataclass(frozen=True)
class Scenario:
    """One row.

    Args:
        key: its name on the command line.
        title: its name in the table.
        unit: unit of its values.
        is_unit_cost: True if the values are the cost of one attached thing, not of a whole step.
        measure_round: `(by_hand, framework, round_idx, length)` to the pair of values of one round.
        aim: what camshaft is to add at most, in the same unit; None if there is no aim.
        min_rounds: the fewest rounds that give a median worth showing.
        needs_idle_callbacks: True if a framework must be able to express a callback that implements nothing.
    """

    key: str
    title: str
    unit: str
    is_unit_cost: bool
    measure_round: Callable[[Framework, Framework, int, RunLength], Pair]
    aim: float | None = None
    min_rounds: int = 5
    needs_idle_callbacks: bool = False

    def applies_to(self, framework: Framework) -> bool:
        """Return whether the framework has what the scenario measures."""
        return framework.takes_idle_callbacks or not self.needs_idle_callbacks

    def compare(
        self, by_hand: Framework, frameworks: list[Framework], num_rounds: int, length: RunLength
    ) -> list[Comparison]:
        """Measure all frameworks, round by round, after one round that is thrown away."""
        taking_part = [framework for framework in frameworks if self.applies_to(framework)]
        comparisons = [Comparison(framework.name, self.is_unit_cost) for framework in taking_part]
        for round_idx in range(-1, max(num_rounds, self.min_rounds)):
            for framework, comparison in zip(taking_part, comparisons, strict=True):
                hand, ours = self.measure_round(by_hand, framework, round_idx, length)
                if round_idx >= 0:
                    comparison.by_hand.append(hand)
                    comparison.with_framework.append(ours)
        return comparisons


def _paired_runs(run: Run, source: Source) -> Callable[[Framework, Framework, int, RunLength], Pair]:
    """Time `run` by hand and with the framework, in an order that alternates from round to round."""

    def measure_round(by_hand: Framework, framework: Framework, round_idx: int, length: RunLength) -> Pair:
        timed: dict[str, tuple[float, Evidence]] = {}
        for contender in _in_turn([by_hand, framework], round_idx):
            timed[contender.name] = time_run(contender, run, length, source)
        hand, reference = timed[by_hand.name]
        ours, evidence = timed[framework.name]
        require_same_work(framework.name, evidence, reference)
        return hand, ours

    return measure_round


def _idle_callback(by_hand: Framework, framework: Framework, round_idx: int, length: RunLength) -> Pair:
    # A callback that implements nothing is, by hand, nothing: there is no loop to time.
    load = CallbackLoad(num_idle=NUM_ATTACHED_CALLBACKS)
    return 0.0, _cost_per_callback(framework, load, round_idx, length)


def _hooked_callback(by_hand: Framework, framework: Framework, round_idx: int, length: RunLength) -> Pair:
    # Two bare calls are so cheap that twenty of them vanish in the noise of a step, hence the larger number.
    called = CallbackLoad(num_hooked=NUM_CALLED_BY_HAND)
    attached = CallbackLoad(num_hooked=NUM_ATTACHED_CALLBACKS)
    return (
        _cost_per_callback(by_hand, called, round_idx, length),
        _cost_per_callback(framework, attached, round_idx, length),
    )


def _cost_per_callback(framework: Framework, load: CallbackLoad, round_idx: int, length: RunLength) -> float:
    """Time training with and without callbacks; the difference over their number is the cost of one."""

    def train_under_load(framework: Framework, batches: Loader, folder: Path) -> Evidence:
        return framework.train(batches, load)

    timed: dict[Run, float] = {}
    for run in _in_turn([_train, train_under_load], round_idx):
        timed[run], _ = time_run(framework, run, length, PREBUILT)
    return (timed[train_under_load] - timed[_train]) / (load.num_idle + load.num_hooked)


def _first_step(by_hand: Framework, framework: Framework, round_idx: int, length: RunLength) -> Pair:
    timed = {
        contender.name: milliseconds_to_first_step(contender.name)
        for contender in _in_turn([by_hand, framework], round_idx)
    }
    return timed[by_hand.name], timed[framework.name]


def _in_turn(pair: list[T], round_idx: int) -> list[T]:
    return pair if round_idx % 2 == 0 else pair[::-1]


def _train(framework: Framework, batches: Loader, folder: Path) -> Evidence:
    return framework.train(batches)


def _everything(framework: Framework, batches: Loader, folder: Path) -> Evidence:
    with null_terminal(framework.name):
        return framework.train_with_everything(batches, folder)


def _accumulate(framework: Framework, batches: Loader, folder: Path) -> Evidence:
    return framework.accumulate(batches)


def _tbptt(framework: Framework, batches: Loader, folder: Path) -> Evidence:
    return framework.tbptt(batches)


def _evaluate(framework: Framework, batches: Loader, folder: Path) -> Evidence:
    return framework.evaluate(batches)


def _predict(framework: Framework, batches: Loader, folder: Path) -> Evidence:
    return framework.predict(batches)


def _step(key: str, title: str, unit: str, aim: float, run: Run, source: Source) -> Scenario:
    """Return a scenario whose values are the time of a whole step."""
    return Scenario(key, title, unit, False, _paired_runs(run, source), aim=aim)


_OVER = f"accumulation over {ACCUMULATED_BATCHES}"

SCENARIOS = (
    _step("train", "train, bare", "µs/step", 6, _train, PREBUILT),
    _step("everything", "train, everything", "µs/step", 20, _everything, PREBUILT),
    _step("accumulate", _OVER, "µs/batch", 5, _accumulate, PREBUILT),
    _step("tbptt", "tbptt, per split", "µs/split", 6, _tbptt, PREBUILT_SEQUENCES),
    _step("evaluate", "evaluate", "µs/batch", 3, _evaluate, PREBUILT),
    _step("predict", "predict", "µs/batch", 3, _predict, PREBUILT),
    _step("train_loader", "train, bare; DataLoader", "µs/step", 6, _train, SHUFFLED),
    _step("everything_loader", "train, everything; DataLoader", "µs/step", 20, _everything, SHUFFLED),
    _step("accumulate_loader", f"{_OVER}; DataLoader", "µs/batch", 5, _accumulate, SHUFFLED),
    _step("tbptt_loader", "tbptt, per split; DataLoader", "µs/split", 6, _tbptt, SHUFFLED_SEQUENCES),
    _step("evaluate_loader", "evaluate; DataLoader", "µs/batch", 3, _evaluate, IN_ORDER),
    _step("predict_loader", "predict; DataLoader", "µs/batch", 3, _predict, IN_ORDER),
    Scenario("idle_callback", "idle callback", "µs/step", True, _idle_callback, needs_idle_callbacks=True),
    Scenario("hooked_callback", "callback, 2 hooks", "µs/step", True, _hooked_callback),
    Scenario("first_step", "start to first step", "ms", False, _first_step, min_rounds=7),
)
