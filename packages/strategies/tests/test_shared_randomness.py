from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from camshaft.strategies.sharding.deferred_initialization import _states, shared_randomness


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def draw() -> list[float]:
    return [random.random(), float(np.random.rand()), float(torch.rand(()))]


def states_of_seed(seed: int) -> Any:
    seed_all(seed)
    return _states()


def test_all_draw_what_the_first_draws() -> None:
    first = states_of_seed(1)
    expected = draw()
    seed_all(2)
    with shared_randomness(lambda own: first):
        assert draw() == expected


def test_a_process_that_was_seeded_otherwise_goes_on_with_its_own_states() -> None:
    first = states_of_seed(1)
    seed_all(2)
    expected = draw()
    seed_all(2)
    with shared_randomness(lambda own: first):
        draw()
    assert draw() == expected


def test_each_generator_of_the_same_state_goes_on_from_what_was_drawn() -> None:
    first = states_of_seed(1)
    draw()
    expected = draw()
    random.seed(5)
    of_another_seed = random.random()
    seed_all(1)
    random.seed(5)
    with shared_randomness(lambda own: first):
        draw()
    assert draw() == [of_another_seed, *expected[1:]]
