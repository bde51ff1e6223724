from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, lr_scheduler
from torch.optim import lr_scheduler as torch_schedulers
from torch.optim.swa_utils import SWALR

from camshaft.callbacks.param_groups import (
    base_rates,
    check_takes_groups,
    follow_groups,
    rates_in_proportion,
    scale_to,
    set_rates,
)

pytestmark = pytest.mark.filterwarnings("ignore:Detected call of")

SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "lambda": lambda optimizer: torch_schedulers.LambdaLR(optimizer, lambda epoch: 0.9**epoch),
    "multiplicative": lambda optimizer: torch_schedulers.MultiplicativeLR(optimizer, lambda epoch: 0.9),
    "step": lambda optimizer: torch_schedulers.StepLR(optimizer, 2, 0.5),
    "multi_step": lambda optimizer: torch_schedulers.MultiStepLR(optimizer, [2, 5], 0.5),
    "constant": lambda optimizer: torch_schedulers.ConstantLR(optimizer, 0.5, 5),
    "linear": lambda optimizer: torch_schedulers.LinearLR(optimizer, 0.25, total_iters=6),
    "exponential": lambda optimizer: torch_schedulers.ExponentialLR(optimizer, 0.8),
    "polynomial": lambda optimizer: torch_schedulers.PolynomialLR(optimizer, 10, 2.0),
    "cosine": lambda optimizer: torch_schedulers.CosineAnnealingLR(optimizer, 12),
    "restarts": lambda optimizer: torch_schedulers.CosineAnnealingWarmRestarts(optimizer, 4),
    "sequential": lambda optimizer: torch_schedulers.SequentialLR(
        optimizer,
        [
            torch_schedulers.LinearLR(optimizer, 0.5, total_iters=4),
            torch_schedulers.LambdaLR(optimizer, lambda epoch: 0.9**epoch),
        ],
        [4],
    ),
    "chained": lambda optimizer: torch_schedulers.ChainedScheduler(
        [torch_schedulers.ConstantLR(optimizer, 0.5, 5), torch_schedulers.ExponentialLR(optimizer, 0.9)]
    ),
}


def optimizer_of(lr: float = 0.4) -> SGD:
    return SGD([nn.Parameter(torch.zeros(1))], lr=lr)


def add_group(optimizer: SGD, lr: float) -> None:
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))], "lr": lr})


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_later_group_keeps_its_proportion_to_the_first(name: str) -> None:
    optimizer, alone = optimizer_of(), optimizer_of()
    scheduler, reference = SCHEDULERS[name](optimizer), SCHEDULERS[name](alone)
    for _ in range(3):
        scheduler.step()
        reference.step()
    add_group(optimizer, optimizer.param_groups[0]["lr"] / 8)
    follow_groups(scheduler, optimizer, [1], "here")
    assert scheduler.get_last_lr() == [group["lr"] for group in optimizer.param_groups]
    for _ in range(6):
        scheduler.step()
        reference.step()
        first, second = (group["lr"] for group in optimizer.param_groups)
        assert first == alone.param_groups[0]["lr"] and second == pytest.approx(first / 8)


def test_a_learning_rate_that_is_set_changes_the_proportion() -> None:
    optimizer = optimizer_of()
    scheduler = SCHEDULERS["lambda"](optimizer)
    add_group(optimizer, 0.1)
    follow_groups(scheduler, optimizer, [1], "here")
    scheduler.step()
    optimizer.param_groups[1]["lr"] = 0.18
    follow_groups(scheduler, optimizer, [1], "here")
    scheduler.step()
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.4 * 0.81, 0.18 * 0.9])


def test_a_scheduler_at_zero_takes_the_learning_rate_as_it_is() -> None:
    optimizer = optimizer_of()
    scheduler = torch_schedulers.LambdaLR(optimizer, lambda epoch: float(epoch))
    add_group(optimizer, 0.1)
    follow_groups(scheduler, optimizer, [1], "here")
    scheduler.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.4, 0.1]


def test_a_plateau_reduces_the_later_group_as_well() -> None:
    optimizer = optimizer_of()
    scheduler = torch_schedulers.ReduceLROnPlateau(optimizer, patience=0, factor=0.5, min_lr=[0.03])
    add_group(optimizer, 0.05)
    follow_groups(scheduler, optimizer, [1], "here")
    for _ in range(3):
        scheduler.step(1.0)
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.03]


def test_a_scheduler_of_another_optimizer_or_without_groups_stays_as_it_is() -> None:
    class Own:
        def __init__(self, optimizer: Any) -> None:
            self.optimizer = optimizer

    optimizer = optimizer_of()
    other = SCHEDULERS["lambda"](optimizer_of())
    add_group(optimizer, 0.1)
    follow_groups(other, optimizer, [1], "here")
    follow_groups(Own(optimizer), optimizer, [1], "here")
    assert len(other.base_lrs) == 1 and "initial_lr" not in optimizer.param_groups[1]


@pytest.mark.parametrize(
    "make",
    [
        lambda optimizer: torch_schedulers.OneCycleLR(optimizer, 0.1, 10),
        lambda optimizer: torch_schedulers.CyclicLR(optimizer, 0.1, 0.2, cycle_momentum=False),
        lambda optimizer: SWALR(optimizer, 0.1),
    ],
)
def test_schedulers_that_plan_each_group_beforehand_are_refused(make: Callable[[Any], Any]) -> None:
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=0.4, momentum=0.9)
    scheduler = make(optimizer)
    message = (
        f"`scheduler` must be a scheduler to which parameter groups can be added, but got '{type(scheduler).__name__}'"
    )
    with pytest.raises(ValueError, match=message):
        check_takes_groups([scheduler], "here")
    add_group(optimizer, 0.1)
    with pytest.raises(ValueError, match=message):
        follow_groups(scheduler, optimizer, [1], "here")
    with pytest.raises(ValueError, match=message):
        check_takes_groups([torch_schedulers.ChainedScheduler([scheduler])], "here")


def optimizer(*rates: float) -> SGD:
    return SGD([{"params": [torch.nn.Parameter(torch.ones(1))], "lr": rate} for rate in rates], lr=1.0)


def run(of: SGD, scheduler: Any, num_steps: int) -> list[list[float]]:
    seen = []
    for _ in range(num_steps):
        seen.append([group["lr"] for group in of.param_groups])
        of.step()
        scheduler.step()
    return seen


SCALED_SCHEDULERS = {
    "lambda": lambda of: lr_scheduler.LambdaLR(of, lambda step: (step + 1) / 8),
    "step": lambda of: lr_scheduler.StepLR(of, 3),
    "cosine": lambda of: lr_scheduler.CosineAnnealingLR(of, 8),
    "one cycle": lambda of: lr_scheduler.OneCycleLR(of, [group["lr"] for group in of.param_groups], total_steps=9),
    "sequence": lambda of: lr_scheduler.SequentialLR(
        of, [lr_scheduler.LinearLR(of, 0.1, total_iters=3), lr_scheduler.ExponentialLR(of, 0.5)], [3]
    ),
}


@pytest.mark.parametrize("kind", SCALED_SCHEDULERS)
def test_a_schedule_that_follows_is_the_one_that_was_built_on_the_rate(kind: str) -> None:
    expected_of, of = optimizer(0.4, 0.04), optimizer(0.1, 0.01)
    expected = run(expected_of, SCALED_SCHEDULERS[kind](expected_of), 8)
    scheduler = SCALED_SCHEDULERS[kind](of)
    scale_to(of, [scheduler], 0.4)
    for found, wanted in zip(run(of, scheduler, 8), expected, strict=True):
        assert found == pytest.approx(wanted, rel=1e-6, abs=1e-12)


def test_groups_keep_their_proportions_and_the_largest_gets_the_rate_to_the_bit() -> None:
    of = optimizer(0.1, 0.3, 0.0)
    assert rates_in_proportion(base_rates(of), 0.7) == [pytest.approx(0.7 / 3), 0.7, 0.0]
    scale_to(of, [], 0.7)
    assert [group["lr"] for group in of.param_groups][1:] == [0.7, 0.0]
    zeros = optimizer(0.0, 0.0)
    scale_to(zeros, [], 0.7)
    assert [group["lr"] for group in zeros.param_groups] == [0.7, 0.7]


def test_a_rate_that_is_a_tensor_stays_the_same_tensor() -> None:
    rate = torch.tensor(0.1)
    of = torch.optim.Adam([torch.nn.Parameter(torch.ones(1))], lr=rate)
    set_rates(of, [0.5])
    assert of.param_groups[0]["lr"] is rate and float(rate) == 0.5
    scale_to(of, [], 0.25)
    assert of.param_groups[0]["lr"] is rate and float(rate) == 0.25
