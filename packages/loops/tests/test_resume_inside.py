"""Going on from any save point inside an epoch gives the same bits, hooks and random numbers as not stopping."""

from __future__ import annotations

import random
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from bare_parts import BareTrainer, Net, Sized, hooked, make_batches, same_bits, seeded, weights
from hypothesis import example, given, settings
from hypothesis import strategies as st
from resumable_data import FAST_FORWARDED, GOING_ON, KINDS, NODES, WITH_WORKERS, Noisy, make_data
from resumed_runs import SCHEDULERS, configuring, same_values, without_time
from torch.utils.data import DataLoader

from camshaft.hooks_core import Callback
from camshaft.hooks_core.check import check
from camshaft.hooks_core.trace import Trace

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@attrs.frozen(kw_only=True)
class Training:
    """What a process is started with."""

    kind: str = "shuffled"
    num_samples: int = 7
    num_epochs: int = 2
    accumulate: int = 1
    optimizer: str = "adam"
    scheduler: str | None = "step"
    limit: int | float = 1.0
    overfit: int | float = 0.0
    val_check_interval: int | float = 1.0
    across_epochs: bool = False
    overridden: bool = False
    none_at: int | None = None
    zero_grad: str = "before_backward"
    max_steps: int = -1


def trainings(kinds: Any) -> st.SearchStrategy[Training]:
    return st.builds(
        Training,
        kind=st.sampled_from(kinds),
        num_samples=st.integers(2, 9),
        num_epochs=st.integers(1, 3),
        accumulate=st.integers(1, 3),
        optimizer=st.sampled_from(["sgd", "adam"]),
        scheduler=st.none() | st.sampled_from(sorted(SCHEDULERS)),
        limit=st.just(1.0) | st.integers(1, 5),  # of 1 to 5 batches, so that it often is all there are
        val_check_interval=st.sampled_from([1.0, 1]) | st.integers(1, 4).map(lambda number: -number),
        overridden=st.booleans(),
        none_at=st.none() | st.integers(0, 3),
    )


class Remembering(Callback):
    """Draws numbers, remembers them, and saves after every batch it is told to."""

    def __init__(self, saves: bool) -> None:
        self.saves = saves
        self.drawn: list[float] = []

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self.drawn.append(random.random() + float(torch.rand(())) + float(np.random.rand()))

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.saves:
            trainer.save_checkpoint(f"batch {trainer.progress.total_batches + 1}")  # the counter follows this hook

    def on_validation_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int
    ) -> None:
        self.drawn.append(float(torch.rand(())))

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": list(self.drawn)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.drawn = list(state_dict["drawn"])


class Summing(Net):
    """Trains on whatever structure the batches of a combined loader have."""

    none_at: int | None = None

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch_idx == self.none_at:
            return None
        return sum(self.loss(part) for part in parts(batch))


def parts(batch: Any) -> list[Any]:
    """The batches in a batch."""
    if isinstance(batch, dict):
        batch = list(batch.values())
    if batch is None or isinstance(batch[0], torch.Tensor):
        return [] if batch is None else [batch]
    return [part for item in batch for part in parts(item)]


class Process:
    """Everything that a new process makes anew; it is seeded by its number."""

    def __init__(self, training: Training, seed: int, saves: bool = True) -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)

        configure = configuring(training.optimizer, training.scheduler, "step")
        self.module, self.callback, self.trace = Summing(configure, dropout=0.4), Remembering(saves), Trace()
        self.module.none_at = training.none_at
        if training.overridden:
            self.module.optimizer_step = lambda epoch, batch_idx, optimizer, closure: optimizer.step(closure)
        self.trace.record(self.callback, "callback")
        self.trace.record(self.module, "module")
        self.loader = make_data(training.kind, training.num_samples, seed)
        self.val_loader = DataLoader(Noisy(3), batch_size=2, shuffle=True)
        interval = training.val_check_interval
        across_epochs = isinstance(interval, int) and interval < 0
        self.trainer = BareTrainer(
            self.module,
            callbacks=[self.callback],
            max_epochs=training.num_epochs,
            max_steps=training.max_steps,
            accumulate_grad_batches=training.accumulate,
            limit_train_batches=training.limit,
            overfit_batches=training.overfit,
            val_check_interval=abs(interval),
            check_val_every_n_epoch=None if across_epochs else 1,
            stateless_loaders="fast_forward" if training.kind in FAST_FORWARDED else "refuse",
            zero_grad=training.zero_grad,
            num_sanity_val_steps=1,
        )
        self.zero_grad = training.zero_grad

    def fit(self, checkpoint: dict[str, Any] | None = None) -> Process:
        self.trainer.fit(self.loader, self.val_loader, checkpoint)
        check(self.trace, "fit", zero_grad=self.zero_grad)
        return self

    def calls_of_batches(self) -> list[str]:
        """The calls from the first training batch on."""
        lines = [f"{event} {event.arguments}".rstrip() for event in self.trace]
        starts = [idx for idx, line in enumerate(lines) if line.startswith("enter on_train_batch_start")]
        return lines[starts[0] :] if starts else []


def assert_same_end(one: Process, other: Process) -> None:
    assert same_bits(weights(one.module), weights(other.module))
    assert one.callback.drawn == other.callback.drawn
    assert one.trainer.progress.earlier_batches == other.trainer.progress.earlier_batches
    assert one.trainer.progress.epochs == other.trainer.progress.epochs
    assert one.trainer.global_step == other.trainer.global_step


def check_every_resume(training: Training, whole: Process, points: list[int]) -> None:
    """Go on from one checkpoint after the other, each made by the run that went on from the one before."""
    checkpoint, earlier = None, whole
    for seed, point in enumerate(points, 1):
        checkpoint = earlier.trainer.load(f"batch {point}")
        earlier = Process(training, seed=100 * seed).fit(checkpoint)
        assert_same_end(earlier, whole)
        calls, expected = earlier.calls_of_batches(), whole.calls_of_batches()
        assert len(calls) < len(expected) and calls == expected[len(expected) - len(calls) :]
        for path in earlier.trainer.files:
            one, other = (without_time(process.trainer.load(path)) for process in (earlier, whole))
            if training.kind in (*NODES, *FAST_FORWARDED):  # they count anew what was read before
                del one["fit"]["batches"], other["fit"]["batches"]
            assert same_values(one, other), path


def run_whole(training: Training) -> Process | None:
    """The run that is never stopped; None if the drawn limits contradict each other."""
    try:
        silent = Process(training, seed=0, saves=False).fit()
    except (ValueError, RuntimeError) as error:  # the second: a stream that is cut short goes on, and is empty then
        words = ("val_check_interval", "must give batches in every epoch", "it ended early")
        assert any(word in str(error) for word in words)
        return None
    whole = Process(training, seed=0).fit()
    assert_same_end(whole, silent)  # saving changes nothing
    return whole


stops = st.lists(st.integers(-3, 14), min_size=1, max_size=4)
"""Where a chain of runs is stopped: after a batch, counted over all epochs; -1, -2, ... is the end of an epoch."""


def points_of(stops: list[int], training: Training, whole: Process) -> list[int]:
    number = whole.trainer.progress.total_batches
    per_epoch = number // training.num_epochs
    ends = {-stop % training.num_epochs * per_epoch or number for stop in stops if stop < 0}
    return sorted(ends | {stop % number + 1 for stop in stops if stop >= 0})


@settings(max_examples=40, deadline=None)
@given(trainings(KINDS), stops)
@example(Training(kind="torchdata nodes", num_samples=5, limit=3, optimizer="sgd", scheduler=None), [2, 3])
@example(Training(kind="stream nodes", num_samples=3, num_epochs=1), [0])
@example(Training(kind="weighted nodes", num_samples=2, optimizer="sgd", scheduler=None), [7, 8])  # of 8 and 5 batches
@example(Training(kind="nodes with own generator", num_samples=3, num_epochs=1), [0])
def test_going_on_from_any_batch_is_exact(training: Training, stops: list[int]) -> None:
    whole = run_whole(training)
    if whole is not None and whole.trainer.files:
        check_every_resume(training, whole, points_of(stops, training, whole))


@pytest.mark.parametrize("limit", [1.0, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_saved_after_going_on_from_an_epochs_end_is_exact_too(kind: str, limit: int | float) -> None:
    training = Training(kind=kind, num_samples=5, limit=limit)
    whole = run_whole(training)
    if whole is None:
        assert kind in GOING_ON
        return
    end = whole.trainer.progress.total_batches // 2
    check_every_resume(training, whole, [end, end + 1])


@settings(max_examples=10, deadline=None)
@example(Training(kind="combined max", num_samples=6, num_epochs=3, optimizer="sgd", scheduler=None), 3, [1])
@given(
    trainings([kind for kind in KINDS if kind != "torchdata loader"]).filter(lambda training: training.limit == 1.0),
    st.sampled_from([1.0, 1, 2, 3]),
    stops,
)
def test_going_on_with_some_batches_of_every_epoch_is_exact(
    training: Training, overfit: int | float, stops: list[int]
) -> None:
    training = attrs.evolve(training, overfit=overfit)
    whole = run_whole(training)
    if whole is not None:
        check_every_resume(training, whole, points_of(stops, training, whole))


@settings(max_examples=10, deadline=None)
@given(trainings(FAST_FORWARDED), stops)
def test_a_loader_without_state_is_fast_forwarded_if_that_is_wished(training: Training, stops: list[int]) -> None:
    whole = run_whole(training)
    if whole is not None:
        check_every_resume(training, whole, points_of(stops, training, whole))


@pytest.mark.parametrize("kind", WITH_WORKERS)
@pytest.mark.parametrize("point", [3, 12])
def test_going_on_with_worker_processes_is_exact(kind: str, point: int) -> None:
    training = Training(kind=kind, num_samples=9 if kind == "persistent workers" else 16, num_epochs=2)
    whole = Process(training, seed=0).fit()
    check_every_resume(training, whole, [point])


def test_a_loader_without_state_is_refused_inside_an_epoch_and_taken_between_epochs() -> None:
    def trainer(callback: Any = None) -> BareTrainer:
        return BareTrainer(seeded(), callbacks=[] if callback is None else [callback], max_epochs=2)

    first = trainer(Remembering(saves=True))
    with pytest.warns(UserWarning, match="`train loader` must be one with a state to resume inside an epoch"):
        first.fit(Sized(make_batches(3)))
    message = r'`train loader` must be one with a state .* \(Sized\) in fit\. .* pass stateless_loaders="fast_forward"'
    with pytest.raises(ValueError, match=message):
        trainer().fit(Sized(make_batches(3)), checkpoint=first.load("batch 2"))
    between = trainer().fit(Sized(make_batches(3)), checkpoint=first.load("batch 3"))
    assert same_bits(weights(between.module), weights(first.module))


def test_another_number_of_batches_is_refused_inside_an_epoch() -> None:
    def trainer() -> BareTrainer:
        return BareTrainer(seeded(), callbacks=[Remembering(True)], max_epochs=1, stateless_loaders="fast_forward")

    first = trainer().fit(Sized(make_batches(3)))
    message = "`train loader` must be of 3 batches an epoch, as in the checkpoint, .* but got 4"
    with pytest.raises(ValueError, match=message):
        trainer().fit(Sized(make_batches(4)), checkpoint=first.load("batch 2"))


def test_a_checkpoint_that_an_error_made_inside_a_batch_leaves_that_batch_out_and_says_so() -> None:
    def fail(trainer: Any, *_: Any) -> None:
        raise ValueError("boom")

    save = hooked(
        on_train_batch_end=lambda trainer, *_: fail(trainer) if trainer.progress.total_batches == 1 else None,
        on_exception=lambda trainer, *_: trainer.save_checkpoint("file"),
    )
    keywords: dict[str, Any] = {"max_epochs": 1, "stateless_loaders": "fast_forward"}
    first = BareTrainer(seeded(), callbacks=[save], **keywords)
    with pytest.raises(ValueError, match="boom"):
        first.fit(Sized(make_batches(4)))
    second = BareTrainer(seeded(), **keywords)
    with pytest.warns(UserWarning, match="taken inside of batch 1 of epoch 0, as after an error: that batch is left"):
        second.fit(Sized(make_batches(4)), checkpoint=first.load("file"))
    assert second.progress.earlier_batches.ready == 4
    assert second.progress.earlier_batches.completed == 3


@pytest.mark.parametrize("path", ["at the end of the epoch", "afterwards"])
def test_an_epoch_that_max_steps_ended_goes_on_where_it_was(path: str) -> None:
    whole = Process(Training(num_samples=9), seed=0).fit()

    first = Process(Training(num_samples=9, max_steps=3), seed=0)
    first.callback.on_train_epoch_end = lambda trainer, module: trainer.save_checkpoint("at the end of the epoch")
    first.trainer.fit(first.loader, first.val_loader)
    first.trainer.save_checkpoint("afterwards")
    second = Process(Training(num_samples=9), seed=7)
    second.trainer.fit(second.loader, second.val_loader, first.trainer.load(path))
    assert first.trainer.progress.total_batches == 3
    assert_same_end(second, whole)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_validation_before_a_stop_draws_no_numbers_of_the_run_that_goes_on(num_workers: int) -> None:
    def train(stop: int | None, checkpoint: Any = None) -> BareTrainer:
        def ask(trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == stop:
                trainer.save_checkpoint("stopped")
                trainer.fit_loop.should_stop = True

        for seed in (torch.manual_seed, random.seed, np.random.seed):
            seed(3)
        callbacks = [Remembering(saves=False), hooked(on_train_batch_end=ask)]
        trainer = BareTrainer(Net(), callbacks=callbacks, max_epochs=2)
        data, held_out = (DataLoader(make_batches(8), shuffle=True, num_workers=num_workers) for _ in range(2))
        return trainer.fit(data, held_out, checkpoint)

    whole = train(None)
    stopped = train(2)
    resumed = train(None, stopped.load("stopped"))
    assert same_bits(weights(whole.module), weights(resumed.module))
    drawn, of_resumed = whole.callbacks[0].drawn, resumed.callbacks[0].drawn
    assert drawn == of_resumed[:3] + of_resumed[3 + 8 :]  # without those of the validation before the stop
