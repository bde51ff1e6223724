"""Groups and schedulers move to a rate together."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.optim import SGD, lr_scheduler

from camshaft.callbacks.param_groups import base_rates, rates_in_proportion, scale_to, set_rates


def optimizer(*rates: float) -> SGD:
    return SGD([{"params": [torch.nn.Parameter(torch.ones(1))], "lr": rate} for rate in rates], lr=1.0)


def run(of: SGD, scheduler: Any, num_steps: int) -> list[list[float]]:
    seen = []
    for _ in range(num_steps):
        seen.append([group["lr"] for group in of.param_groups])
        of.step()
        scheduler.step()
    return seen


SCHEDULERS = {
    "lambda": lambda of: lr_scheduler.LambdaLR(of, lambda step: (step + 1) / 8),
    "step": lambda of: lr_scheduler.StepLR(of, 3),
    "cosine": lambda of: lr_scheduler.CosineAnnealingLR(of, 8),
    "one cycle": lambda of: lr_scheduler.OneCycleLR(of, [group["lr"] for group in of.param_groups], total_steps=9),
    "sequence": lambda of: lr_scheduler.SequentialLR(
        of, [lr_scheduler.LinearLR(of, 0.1, total_iters=3), lr_scheduler.ExponentialLR(of, 0.5)], [3]
    ),
}


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_a_schedule_that_follows_is_the_one_that_was_built_on_the_rate(kind: str) -> None:
    expected_of, of = optimizer(0.4, 0.04), optimizer(0.1, 0.01)
    expected = run(expected_of, SCHEDULERS[kind](expected_of), 8)
    scheduler = SCHEDULERS[kind](of)
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
