"""Whether a loss may leave parameters unused, where nobody says so."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from camshaft.strategies.ddp import DDPArguments


def finds_unused(module: nn.Module, answer: bool | None, **arguments: Any) -> bool | None:
    """Return what is right for a module, where somebody answers for every module or nobody does."""
    ask = None if answer is None else (lambda asked: answer if asked is module else not answer)
    return DDPArguments(**arguments).for_module(module, ask).find_unused_parameters


def test_where_nobody_says_so_none_may() -> None:
    assert not finds_unused(nn.Linear(1, 1), None)


@pytest.mark.parametrize("answer", [True, False])
def test_somebody_may_say_so_of_each_module(answer: bool) -> None:
    assert finds_unused(nn.Linear(1, 1), answer) is answer


@pytest.mark.parametrize("asked", [True, False])
def test_who_says_so_of_all_is_heeded(asked: bool) -> None:
    assert finds_unused(nn.Linear(1, 1), not asked, find_unused_parameters=asked) is asked


def test_a_static_graph_is_learned_and_not_walked() -> None:
    assert not finds_unused(nn.Linear(1, 1), True, static_graph=True)
