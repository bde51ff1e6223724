"""A fit that goes on inside an epoch with other processes: weights, windows, logged values and metrics."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from bare_parts import NUM_FEATURES, BareTrainer, Net, hooked, weights
from bare_ranks import ThreadedStrategy, on_ranks
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric, MeanSquaredError, Metric

from camshaft.loops.metrics import MetricLog, MetricLogging

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

NUM_SAMPLES = 24


class Measuring(MetricLogging, Net):
    """Logs what can be compared over worlds, and remembers its samples."""

    def __init__(self) -> None:
        super().__init__(configure=lambda module: torch.optim.SGD(module.parameters(), lr=0.1))
        self.error, self.mean = MeanSquaredError(), MeanMetric()
        object.__setattr__(self, "seen", [])
        object.__setattr__(self, "published", {})

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y, indices = batch
        self.seen.append(indices.tolist())
        loss = nn.functional.mse_loss(self(x), y)
        self.log("mean", indices.float().mean(), on_step=False, on_epoch=True)
        self.log("last", indices.max(), on_step=False, on_epoch=True, reduce_fx="max")
        self.log("number", float(indices.sum()), on_step=False, on_epoch=True, reduce_fx="sum")
        self.error(indices.float(), torch.zeros(len(indices)))
        self.log("error", self.error, on_step=False, on_epoch=True)
        self.mean.update(indices.float())
        return loss


def data() -> TensorDataset:
    x = torch.linspace(-1, 1, NUM_SAMPLES * NUM_FEATURES).reshape(NUM_SAMPLES, NUM_FEATURES)
    return TensorDataset(x, x.sum(1, keepdim=True), torch.arange(NUM_SAMPLES))


_SAVING = threading.Lock()


def fit(
    num_ranks: int,
    batch_size: int,
    initial: Measuring,
    checkpoint: dict[str, Any] | None = None,
    stop_after: int | None = None,
    **arguments: Any,
) -> list[tuple[Measuring, dict[str, Any] | None, BareTrainer]]:
    """Fit on threads, from a checkpoint, up to a number of batches. Returns module and checkpoint of each rank."""

    def run(strategy: ThreadedStrategy) -> Any:
        module = copy.deepcopy(initial)

        def after(trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx + 1 == stop_after:
                trainer.save_checkpoint("x.ckpt")
                trainer.fit_loop.should_stop = True

        trainer = BareTrainer(module, callbacks=[hooked(on_train_batch_end=after)], strategy=strategy, **arguments)
        log = trainer.metrics = MetricLog(progress=trainer.fit_loop.progress, strategy=strategy)
        log.attach(module)
        trainer.fit(DataLoader(data(), batch_size), checkpoint=copy.deepcopy(checkpoint))
        object.__setattr__(module, "published", dict(log.callback_metrics))
        return module, trainer.load("x.ckpt") if "x.ckpt" in trainer.files else None, trainer

    return on_ranks(num_ranks, run)


def run_chain(initial: Measuring, chain: list[tuple[int, int, int | None]], **arguments: Any) -> Any:
    """Fit legs of (ranks, batch size, batch to stop after). Returns the last leg, and what each leg saw of samples."""
    checkpoint, seen, results, num_done = None, [], [], 0
    for num_ranks, batch_size, stop in chain:
        results = fit(num_ranks, batch_size, initial, checkpoint, stop, **arguments)
        checkpoint = results[0][1]
        kept = None if stop is None else stop - num_done  # ranks agree to stop a batch after the checkpoint
        seen += [index for module, *_ in results for batch in module.seen[:kept] for index in batch]
        num_done = stop or 0
    return results, seen


CHAINS = [
    [(1, 4, 2), (2, 2, None)],
    [(2, 2, 3), (1, 4, None)],
    [(4, 1, 1), (2, 2, 4), (1, 4, None)],
    [(2, 2, 2), (4, 1, 3), (4, 1, 5), (1, 4, None)],
]


@pytest.mark.parametrize("accumulate", [1, 2, 4])
@pytest.mark.parametrize("chain", CHAINS)
def test_with_the_same_samples_in_a_step_the_weights_and_values_are_those_of_a_run_that_was_not_stopped(
    chain: list[Any], accumulate: int
) -> None:
    initial, arguments = Measuring(), {"max_epochs": 1, "accumulate_grad_batches": accumulate}
    [(whole, *_)], _ = run_chain(initial, [(1, 4, None)], **arguments)
    results, seen = run_chain(initial, chain, **arguments)
    assert sorted(seen) == list(range(NUM_SAMPLES))
    for module, *_ in results:
        for expected, found in zip(weights(whole), weights(module), strict=True):
            assert torch.allclose(expected, found, atol=1e-6)
        assert module.published.keys() == whole.published.keys()
        for name, value in whole.published.items():
            assert torch.allclose(torch.as_tensor(value), torch.as_tensor(module.published[name])), name
    states = [module.mean.metric_state for module, *_ in results]
    assert sum(float(state["mean_value"]) for state in states) == sum(range(NUM_SAMPLES))
    assert sum(float(state["weight"]) for state in states) == NUM_SAMPLES


@pytest.mark.parametrize("chain", [[(1, 3, 2), (3, 2, None)], [(2, 3, 1), (1, 2, 5), (4, 1, None)]])
def test_a_window_follows_the_mean_over_all_its_samples_whatever_the_worlds_it_had(chain: list[Any]) -> None:
    initial = Measuring()
    results, seen = run_chain(initial, chain, max_epochs=1, accumulate_grad_batches=1000)
    module = copy.deepcopy(initial)
    x, y, _ = data().tensors
    num_all = len(seen)
    rows = torch.tensor(seen)
    nn.functional.mse_loss(module(x[rows]), y[rows]).backward()
    assert num_all >= NUM_SAMPLES
    torch.optim.SGD(module.parameters(), lr=0.1).step()
    for found, *_ in results:
        for expected, weight in zip(weights(module), weights(found), strict=True):
            assert torch.allclose(expected, weight, atol=1e-6)


def test_an_open_window_that_would_get_no_more_samples_is_refused() -> None:
    initial = Measuring()
    [(_, checkpoint, _)] = fit(1, 10, initial, None, 2, max_epochs=1, accumulate_grad_batches=4)

    def run(strategy: ThreadedStrategy) -> None:
        trainer = BareTrainer(copy.deepcopy(initial), strategy=strategy, max_epochs=1, accumulate_grad_batches=4)
        trainer.fit(DataLoader(data(), 10, drop_last=True), checkpoint=copy.deepcopy(checkpoint))

    with pytest.raises(ValueError, match="samples are left for the accumulation window"):
        on_ranks(2, run)


class MeanOfMeans(Metric):
    """A state whose mean over processes counts each process alike."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("level", torch.tensor(0.0), dist_reduce_fx="mean")

    def update(self, value: Tensor) -> None:
        self.level = self.level + value.mean()

    def compute(self) -> Tensor:
        return self.level


def test_a_metric_whose_states_cannot_be_added_up_over_processes_is_refused() -> None:
    initial = Measuring()
    initial.mean = MeanOfMeans()
    [(_, checkpoint, _)] = fit(1, 4, initial, None, 2, max_epochs=1)
    with pytest.raises(ValueError, match="level of the metric 'mean' cannot be added up over processes"):
        fit(2, 2, initial, checkpoint, None, max_epochs=1)


def test_other_samples_in_a_step_are_told_once() -> None:
    initial = Measuring()
    [(_, checkpoint, _)] = fit(1, 4, initial, None, 2, max_epochs=2)
    with pytest.warns(
        UserWarning, match="2 in place of 1 processes go on, so a step of all takes 8 samples in place"
    ) as found:
        fit(2, 4, initial, checkpoint, None, max_epochs=2)
    told = [one for one in found if "processes go on" in str(one.message)]
    assert len(told) == 2  # once each, by threads of one process
