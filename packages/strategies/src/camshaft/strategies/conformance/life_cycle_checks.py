"""From one run to the next."""

from __future__ import annotations

import torch

from camshaft.strategies.conformance.life import Life, Reference, one
from camshaft.strategies.conformance.subject import Subject, global_batch, momentum, share_of
from camshaft.strategies.conformance.trial import Trial, same


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
    """After `teardown` the module keeps its weights, and the same strategy evaluates it and trains it further."""
    with Life(trial, Subject()) as life:
        reference = Reference(life.strategy.num_data_ranks)
        life.update(0)
        reference.update(0)
        module, strategy = life.module, life.strategy
        trained = life.weights()
    after = life.weights()
    trial.expect(same(after, trained), "weights must stay as they were trained after `teardown`", "they changed")
    with Life(trial, module, lambda _: [], strategy=strategy) as life:
        module.eval()
        with torch.inference_mode():
            output = life.steps["test_step"](life.share(1), 0).cpu()
        share = share_of(global_batch(1, reference.num_data_ranks), life.data_rank, reference.num_data_ranks)
        trial.expect_close({"test_step": output}, {"test_step": reference.module(share["inputs"])}, "in another run,")
    for batch_idx in (1, 2):
        with Life(trial, module, strategy=strategy) as life:
            life.update(batch_idx)
            reference.update(batch_idx)
            weights = life.weights()
            what = f"after {batch_idx + 1} runs of training of one module,"
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
