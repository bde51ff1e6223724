"""Recording hooks to compare them, as far as one process can tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ranks_in_threads import Rank, on_ranks
from trainer_parts import NO_VALIDATION, Regression, RegressionData, loader, quiet_trainer

from camshaft.hooks_core import Callback
from camshaft.loops import Run
from camshaft.trainer.hook_comparison import HookComparison, HookDivergenceError

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


def compare(strategy: Rank, num_calls: int, **methods: Any) -> HookComparison:
    """Attach a comparison, call a hook so many times, and compare."""
    callback, comparison = Talking(), HookComparison(2)
    run = Run(
        verb="fit", module=Regression(), strategy=strategy, trainer=None, callbacks=[callback], data=RegressionData()
    )
    comparison.attach(run)
    trainer = Trainer(strategy)
    comparison.on_train_start(trainer, None)  # type: ignore[arg-type]
    for _ in range(num_calls):
        callback.on_before_backward(trainer, None, None)
    callback.on_validation_batch_start()  # of each process
    for batch_idx in range(2):
        trainer.global_step += 1
        comparison.on_train_batch_end(trainer, None, None, None, batch_idx)  # type: ignore[arg-type]
    comparison.detach()
    assert vars(callback).keys() == {"calls"} and len(callback.calls) == num_calls + 1
    return comparison


def test_ranks_that_call_the_same_exchange_one_number_per_comparison() -> None:
    def script(strategy: Rank) -> int:
        compare(strategy, 3)
        return strategy.exchange.num_rounds

    assert on_ranks(2, script) == [1, 1]


def test_the_first_call_that_one_rank_does_not_make_is_named_on_all() -> None:
    def script(strategy: Rank) -> Any:
        with pytest.raises(HookDivergenceError) as caught:
            compare(strategy, 2 + strategy.global_rank)
        return caught.value.position, caught.value.by_rank, str(caught.value)

    first, second = on_ranks(2, script)
    assert first == second
    assert first[:2] == (2, {0: None, 1: "`on_before_backward` of callback:Talking"})
    assert "but got nothing more on rank 0, `on_before_backward` of callback:Talking on rank 1 as call 2" in first[2]
    assert "after update 0 (epoch 2, batch 1)" in first[2]


def test_another_error_gains_a_note_with_the_last_hooks() -> None:
    def script(strategy: Rank) -> list[str]:
        callback, comparison = Talking(), HookComparison(100)
        comparison.attach(Run(verb="fit", module=Regression(), strategy=strategy, trainer=None, callbacks=[callback]))
        callback.on_train_start(None, None)
        for _ in range(9):
            callback.on_before_backward(None, None, None)
        error = TimeoutError()
        comparison.on_exception(Trainer(strategy), None, error)  # type: ignore[arg-type]
        return error.__notes__

    for rank, [note] in enumerate(on_ranks(2, script)):
        assert note.startswith(f"The last hooks of rank {rank} since the ranks compared: `on_before_backward` of ")
        assert note.count("`on_before_backward`") == 5


def test_a_single_process_compares_and_records_nothing(tmp_path: Path) -> None:
    trainer = quiet_trainer(tmp_path, compare_hooks_every_n_steps=1)
    module = Regression()
    trainer.fit(module, loader())
    assert trainer.callbacks == []
    assert not any(callable(value) for value in vars(module).values())
