"""Recording hooks to compare them, as far as one process can tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bare_ranks import ThreadedStrategy, on_ranks
from launching import run_ranks
from trainer_parts import NO_VALIDATION, Regression, RegressionData, loader, quiet_trainer

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.forensics import HookComparison, HookDivergenceError
from camshaft.hooks_core import Callback, resolve

pytestmark = pytest.mark.filterwarnings(NO_VALIDATION)


class Trainer:
    """As much of one as the comparison asks for."""

    current_epoch = 2

    def __init__(self, strategy: Any) -> None:
        self.strategy = strategy
        self.global_step = 0


class Talking(Callback):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def on_train_start(self, trainer: Any, module: Any) -> None:
        self.calls.append("on_train_start")

    def on_before_backward(self, trainer: Any, module: Any, loss: Any) -> None:
        self.calls.append("on_before_backward")

    def on_validation_batch_start(self, *arguments: Any) -> None:
        self.calls.append("on_validation_batch_start")


def compare(strategy: ThreadedStrategy, num_calls: int) -> HookComparison:
    """Resolve hooks with a comparison, call one so many times, and compare."""
    callback, comparison = Talking(), HookComparison(2)
    module, trainer = Regression(), Trainer(strategy)
    hooks = resolve(
        callbacks=[callback, comparison], data=RegressionData(), module=module, strategy=strategy, trainer=trainer
    )
    hooks.setup("fit")
    hooks.on_train_start()
    for _ in range(num_calls):
        hooks.on_before_backward(None)
    hooks.on_validation_batch_start(None, 0, 0)  # of each process
    for batch_idx in range(2):
        trainer.global_step += 1
        hooks.on_train_batch_end(None, None, batch_idx)
    assert callback.calls == ["on_train_start", *["on_before_backward"] * num_calls, "on_validation_batch_start"]
    assert vars(callback).keys() == {"calls"}
    return comparison


def test_ranks_that_call_the_same_exchange_one_number_per_comparison() -> None:
    def script(strategy: ThreadedStrategy) -> int:
        compare(strategy, 3)
        return strategy.exchange.num_rounds

    assert on_ranks(2, script) == [1, 1]


def test_the_first_call_that_one_rank_does_not_make_is_named_on_all() -> None:
    def script(strategy: ThreadedStrategy) -> Any:
        with pytest.raises(HookDivergenceError) as caught:
            compare(strategy, 2 + strategy.global_rank)
        return caught.value.position, caught.value.by_rank, str(caught.value)

    first, second = on_ranks(2, script)
    assert first == second
    assert first[:2] == (4, {0: None, 1: "`on_before_backward` of callback:Talking"})
    assert "but got nothing more on rank 0, `on_before_backward` of callback:Talking on rank 1 as call 4" in first[2]
    assert "after update 0 (epoch 2, batch 1)" in first[2]


class Listening(Callback):
    def on_train_start(self, trainer: Any, module: Any) -> None: ...


def test_callbacks_of_one_class_are_told_apart() -> None:
    def script(strategy: ThreadedStrategy) -> Any:
        callbacks = [Listening(), Listening()]
        callbacks[strategy.global_rank].on_train_epoch_start = print  # type: ignore[method-assign]
        hooks = resolve(callbacks=[*callbacks, HookComparison(1)], trainer=Trainer(strategy))
        hooks.on_train_start()
        hooks.on_train_epoch_start()
        with pytest.raises(HookDivergenceError) as caught:
            hooks.on_train_end()
        return caught.value.by_rank

    names = [f"`on_train_epoch_start` of callback:Listening{number}" for number in ("", "#2")]
    assert on_ranks(2, script) == [dict(enumerate(names))] * 2


def test_another_run_begins_with_no_calls() -> None:
    def script(strategy: ThreadedStrategy) -> None:
        comparison, trainer = HookComparison(1), Trainer(strategy)
        failed = resolve(callbacks=[Talking(), comparison], trainer=trainer)
        if strategy.global_rank:
            failed.on_train_start()
        hooks = resolve(callbacks=[Talking(), comparison], trainer=trainer)
        hooks.on_train_start()
        hooks.on_train_end()

    on_ranks(2, script)


def test_another_error_gains_a_note_with_the_last_hooks() -> None:
    def script(strategy: ThreadedStrategy) -> list[str]:
        trainer = Trainer(strategy)
        hooks = resolve(callbacks=[Talking(), HookComparison(100)], module=Regression(), trainer=trainer)
        hooks.on_train_start()
        for _ in range(9):
            hooks.on_before_backward(None)
        error = TimeoutError()
        hooks.on_exception(error)
        return error.__notes__

    for rank, [note] in enumerate(on_ranks(2, script)):
        assert note.startswith(f"The last hooks of rank {rank} since the ranks compared: `on_before_backward` of ")
        assert note.count("`on_before_backward`") == 5


def test_a_single_process_finds_nothing_and_keeps_no_calls(tmp_path: Path) -> None:
    comparison = HookComparison(1)
    quiet_trainer(tmp_path, callbacks=[comparison]).fit(Regression(), loader())
    assert len(comparison._calls) < 10


def test_a_number_of_updates_is_asked_for() -> None:
    with pytest.raises(InvalidArgumentError, match=r"`every_n_steps` must be an int, 1 or more, but got 0 \(int\)"):
        HookComparison(0)


@pytest.mark.processes
def test_hooks_of_two_processes_are_compared_and_the_first_that_differs_is_named(tmp_path: Path) -> None:
    outcome = run_ranks(Path(__file__).with_name("comparing_scenes.py"), 2, args=[tmp_path, "comparing"]).succeeded()
    [first], [second] = outcome.reports
    assert first == second
    global_step, left, message, position = first
    assert (global_step, left) == (18, [])
    assert message == (
        "`hooks` must be called in the same order on all ranks, but got `on_train_batch_start` of strategy:DDPStrategy "
        f"on rank 0, `on_before_zero_grad` of callback:Extra on rank 1 as call {position} after update 0 (epoch 0, "
        "batch 2). Let callbacks, hooks and whatever calls them not depend on the rank."
    )
