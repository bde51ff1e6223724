"""Several processes that were given different arguments are told so before they wait for each other."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
import torch
from bare_parts import BareTrainer, Net, make_loader
from bare_ranks import ThreadedStrategy, on_ranks

from camshaft.loops.fit.limits import check_equal_arguments


def loader() -> Any:
    x = torch.ones(4, 1, 3)
    return make_loader("sized", [(row, row.sum(1, keepdim=True)) for row in x])


@pytest.mark.parametrize(
    ("name", "of_first", "of_second"),
    [
        ("max_epochs", 2, 3),
        ("limit_train_batches", 1.0, 1),
        ("limit_train_batches", 2, 3),
        ("limit_val_batches", 1.0, 0),
        ("val_check_interval", 1.0, 0.5),
        ("accumulate_grad_batches", 1, 2),
        ("gradient_clip_val", None, 1.0),
        ("agree_every_n_batches", 1, 2),
    ],
)
def test_a_fit_with_different_arguments_is_refused_on_all_ranks(name: str, of_first: Any, of_second: Any) -> None:
    messages = []

    def run(strategy: ThreadedStrategy) -> None:
        value = of_second if strategy.global_rank == 1 else of_first
        arguments = {"max_epochs": 2} | {name: value}
        with pytest.raises(ValueError, match="on rank 0") as raised:
            BareTrainer(Net(), strategy=strategy, **arguments).fit(loader(), loader())
        messages.append(str(raised.value))

    on_ranks(3, run)
    expected = (
        f"`{name}` must be {of_first!r}, as on rank 0, but got {of_second!r} ({type(of_second).__name__}) in fit on "
        "rank 1. Give every process the same arguments."
    )
    assert messages == [expected] * 3


def test_the_first_rank_that_differs_is_named() -> None:
    def run(strategy: ThreadedStrategy) -> None:
        arguments = {"a": 1, "b": strategy.global_rank // 2}
        with pytest.raises(
            ValueError, match=re.escape("`b` must be 0, as on rank 0, but got 1 (int) in here on rank 2.")
        ):
            check_equal_arguments(arguments, strategy, "here")

    on_ranks(4, run)


def test_equal_arguments_are_accepted() -> None:
    on_ranks(2, lambda strategy: check_equal_arguments({"a": timedelta(1), "b": None}, strategy, "here"))


def test_each_process_may_know_of_another_time() -> None:
    def run(strategy: ThreadedStrategy) -> int:
        limits = {"max_epochs": 2, "max_time": timedelta(hours=1 + strategy.global_rank)}
        return BareTrainer(Net(), strategy=strategy, **limits).fit(loader()).global_step

    assert on_ranks(2, run) == [8, 8]
