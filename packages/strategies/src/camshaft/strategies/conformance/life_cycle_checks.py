"""From one run to the next."""

from __future__ import annotations

import torch

from camshaft.strategies.conformance.life import Life, Reference, one
from camshaft.strategies.conformance.subject import Subject, momentum
from camshaft.strategies.conformance.trial import Trial


def teardown_waits_for_nobody(trial: Trial) -> None:
    """`teardown` works on one rank after another, and before anything was set up."""
    strategy = trial.make_strategy()
    strategy.teardown()
    strategy.connect()
    strategy.teardown()
    life = Life(trial, Subject())
    life.__enter__()
    life.update(0)
    for rank in range(trial.ranks.size):
        if rank == trial.ranks.rank:
            life.strategy.teardown()
        trial.ranks.exchange(None)


def modules_outlive_a_run(trial: Trial) -> None:
    """After `teardown` the module keeps its trained weights and computes, and the same strategy takes it up again."""
    with Life(trial, Subject()) as life:
        reference = Reference(life.strategy.num_data_ranks)
        life.update(0)
        reference.update(0)
        module, strategy, share = life.module, life.strategy, life.share(1)
        trained = life.weights()
    after = {name: value for name, value in life.weights().items()}
    trial.expect_close(after, trained, "after `teardown`,")
    with torch.no_grad():
        outputs = module(share["inputs"].to(_dtype(module)))
    trial.expect(bool(outputs.isfinite().all()), "a module must compute after `teardown`", f"got {outputs}")
    for batch_idx in (1, 2):  # a run that trains, and another
        with Life(trial, module, strategy=strategy) as life:
            life.update(batch_idx)
            reference.update(batch_idx)
            weights = life.weights()
            what = f"after {batch_idx + 1} runs of one strategy on one module,"
            trial.expect_close(weights, reference.weights(), what)
            trial.expect_same_everywhere(weights, f"weights {what.rstrip(',')}")


def strategies_follow_each_other(trial: Trial) -> None:
    """A second strategy in the same process trains another module as the first one did its own."""
    weights = []
    for _ in range(2):
        with Life(trial, Subject(), one(momentum)) as life:
            life.update(0)
            life.update(1, 2)
            weights.append(life.weights())
    trial.expect_equal(weights[1], weights[0], "weights that a second strategy trains alike")
    trial.settle()
    with Life(trial, Subject()) as first, Life(trial, Subject(seed=1)) as second:
        before = first.weights()
        second.update(0)
        trial.expect_equal(first.weights(), before, "weights of one strategy while another trains")


def _dtype(module: Subject) -> torch.dtype:
    return module.first.weight.dtype
