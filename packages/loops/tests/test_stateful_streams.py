"""States of streams are not trusted: what they do not restore is made up for, or refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from bare_parts import BareTrainer, Net, Sized, hooked, make_batches
from bare_ranks import ThreadedStrategy, on_ranks
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from camshaft.loops.data.stateful_streams import checksum, resumes_exactly
from camshaft.loops.data.training_batches import TrainingBatches

NUM_BATCHES = 6


class Sticky(IterableDataset[int]):
    """A stream whose loaded state stays: every iteration begins where it says."""

    def __init__(self, length: int = NUM_BATCHES) -> None:
        self.length = length
        self.first = self.position = 0

    def __iter__(self) -> Iterator[int]:
        for sample in range(self.first, self.length):
            self.position = sample + 1
            yield sample

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.first = self.position = state["position"]


class NotCopied(Sticky):
    """One that nobody can copy, as one that holds an open file."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("cannot pickle")


class Shuffled(Sticky):
    """One that shuffles in a buffer, which its state leaves out."""

    buffer_size = 3

    def __iter__(self) -> Iterator[int]:
        buffer: list[int] = []
        for sample in super().__iter__():
            buffer.append(sample)
            if len(buffer) == self.buffer_size:
                yield buffer.pop(int(torch.randint(self.buffer_size, ())))
        yield from buffer


class ExactAtFirst(Sticky):
    """One that gives other samples where it goes on beyond half of its buffer."""

    def __init__(self, buffer_size: int) -> None:
        super().__init__(12)
        self.buffer_size = buffer_size

    def __iter__(self) -> Iterator[int]:
        return (-sample if self.first > 2 else sample for sample in super().__iter__())


class Holding(Sticky):
    """One that reads another."""

    def __init__(self, stream: Any) -> None:
        self.parts = [{"stream": stream}]
        self.state_dict, self.load_state_dict = stream.state_dict, stream.load_state_dict  # type: ignore[method-assign]

    def __iter__(self) -> Iterator[int]:
        return iter(self.parts[0]["stream"])


class OtherState(Sticky):
    """One with methods of these names that take other arguments, as MosaicML's."""

    def state_dict(self, num_samples: int, from_beginning: bool) -> dict[str, Any]:  # type: ignore[override]
        raise AssertionError


def batches_of(stream: Any, stateless: Any = "refuse", **options: Any) -> TrainingBatches:
    batches = TrainingBatches(DataLoader(stream, batch_size=1, **options), 0, stateless)
    batches.count(1.0, "limit_train_batches")
    return batches


def epoch_of(batches: TrainingBatches) -> list[int]:
    samples = [int(batch) for _, batch, _ in batches]
    batches.end_epoch()
    return samples


def stopped(stream: Any, num_epochs: int, num_batches: int, **options: Any) -> dict[str, Any]:
    """The state after some epochs and some batches of the next one."""
    batches = batches_of(stream, **options)
    for _ in range(num_epochs):
        epoch_of(batches)
    iterator = iter(batches)
    for _ in range(num_batches):
        next(iterator)
    return batches.state_dict()


@pytest.mark.parametrize(("num_epochs", "num_done"), [(0, 4), (1, 0), (1, 2)])
def test_epochs_after_a_resumed_one_are_whole_where_the_loaded_state_stays(num_epochs: int, num_done: int) -> None:
    batches = batches_of(Sticky())
    batches.load_state_dict(stopped(Sticky(), num_epochs, num_done), num_done)
    whole = list(range(NUM_BATCHES))
    assert [epoch_of(batches) for _ in range(3)] == [whole[num_done:], whole, whole]


def test_an_epoch_after_one_that_a_limit_left_nothing_of_begins_at_its_start() -> None:
    def limited() -> TrainingBatches:
        batches = TrainingBatches(DataLoader(Sticky(), batch_size=1), 0)
        batches.count(3, "limit_train_batches")
        return batches

    stopped = limited()
    iterator = iter(stopped)
    next(iterator), next(iterator)  # the third is read ahead
    batches = limited()
    batches.load_state_dict(stopped.state_dict(), 2)
    assert [epoch_of(batches) for _ in range(2)] == [[2], [0, 1, 2]]


def test_the_last_batch_of_an_epoch_that_a_resumed_run_cuts_short_raises() -> None:
    batches = batches_of(NotCopied())
    batches.load_state_dict(stopped(NotCopied(), 1, 4), 4)
    assert epoch_of(batches) == [4, 5]
    with pytest.raises(RuntimeError, match=r"must be one that gives 6 batches in each epoch.*got 1 \(int\)"):
        epoch_of(batches)


def test_a_stream_with_fewer_samples_than_before_raises_unless_it_is_vouched_for() -> None:
    state = stopped(Sticky(), 1, 0)
    batches = batches_of(Sticky(5))
    batches.load_state_dict(state, 0)
    with pytest.raises(RuntimeError, match="gives 6 batches in each epoch"):
        epoch_of(batches)
    shorter = Sticky(5)
    shorter.resumes_exactly = True  # type: ignore[attr-defined]
    batches = batches_of(shorter, "refuse")
    batches.load_state_dict(state, 0)
    epoch_of(batches)


def test_epochs_of_another_division_or_of_different_lengths_may_be_shorter() -> None:
    batches = batches_of(Sticky())
    batches.load_state_dict({**stopped(Sticky(), 1, 0), "division": [2, 1]}, 0)
    batches._ahead.end_epoch(5, ())
    varied = batches_of(Sticky())
    state = stopped(Sticky(), 1, 0)
    state["read_ahead"]["lengths"] = [6, 7]
    varied.load_state_dict(state, 0)
    varied._ahead.end_epoch(5, ())


def test_a_state_that_leaves_a_buffer_out_is_refused_and_reading_again_is_exact() -> None:
    numbers = torch.get_rng_state()
    whole = epoch_of(batches_of(Shuffled()))
    torch.set_rng_state(numbers)
    state, later = stopped(Shuffled(), 0, 2), torch.get_rng_state()
    with pytest.raises(ValueError, match=r"must be one that goes on with the same samples.*Shuffled.*fast_forward"):
        batches_of(Shuffled()).load_state_dict(state, 2)
    again = batches_of(Shuffled(), "fast_forward")
    with pytest.warns(UserWarning, match="read again and dropped"):
        again.load_state_dict(state, 2)
    torch.set_rng_state(later)
    assert epoch_of(again) == whole[2:]


@pytest.mark.parametrize("wrap", [lambda stream: stream, Holding])
def test_trials_look_beyond_the_buffer_that_a_stream_or_its_parts_name(wrap: Any) -> None:
    assert [resumes_exactly(wrap(ExactAtFirst(size)), 1) for size in (0, 4)] == [True, False]


@pytest.mark.parametrize("declared", [True, False])
def test_a_stream_may_declare_that_its_state_is_exact_or_not(declared: bool) -> None:
    stream = Shuffled() if declared else Sticky()
    stream.resumes_exactly = declared  # type: ignore[union-attr]
    assert resumes_exactly(stream, 2) is declared


def test_a_validation_stream_with_methods_of_other_arguments_is_checked() -> None:
    class Other(Batches):
        def state_dict(self, num_samples: int, from_beginning: bool) -> dict[str, Any]:
            raise AssertionError

        load_state_dict = state_dict

    val = DataLoader(Other(make_batches(2)), batch_size=None)
    trainer = BareTrainer(Net(), max_epochs=1, num_sanity_val_steps=1).fit(Sized(make_batches(2)), val)
    assert trainer.fit_loop.validation.progress.completed == 2


def test_methods_with_other_arguments_are_no_state_and_the_error_names_the_librarys_own_loader() -> None:
    with pytest.warns(UserWarning, match=r"takes other arguments.*StreamingDataLoader"):
        state = stopped(OtherState(), 0, 2)
    with pytest.raises(ValueError, match=r"takes other arguments.*StreamingDataLoader"):
        batches_of(OtherState()).load_state_dict(state, 2)
    with pytest.warns(UserWarning, match=r"state of the train loader .* not restored.*StreamingDataLoader"):
        batches_of(OtherState()).load_state_dict(stopped(OtherState(), 1, 0), 0)


def test_a_map_dataset_with_methods_of_other_arguments_is_read_and_resumed() -> None:
    class Mapped(Dataset[int]):
        def __len__(self) -> int:
            return NUM_BATCHES

        def __getitem__(self, index: int) -> int:
            return index

        def state_dict(self, num_samples: int) -> dict[str, Any]:
            raise AssertionError

        load_state_dict = state_dict

    batches = batches_of(Mapped())
    batches.load_state_dict(stopped(Mapped(), 0, 2), 2)
    assert [epoch_of(batches), epoch_of(batches)] == [[2, 3, 4, 5], [0, 1, 2, 3, 4, 5]]


class Told(Sticky):
    """One that gives the epoch that it is told, and notes it."""

    def __init__(self) -> None:
        super().__init__(2)
        self.epoch = -1
        self.told: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.told.append(epoch)

    def __iter__(self) -> Iterator[Any]:
        for _ in super().__iter__():
            yield make_batches(1)[0][0][0] * 0 + self.epoch, torch.zeros(1)


@pytest.mark.parametrize("workers", [0, 1])
def test_datasets_are_told_the_epoch(workers: int) -> None:
    train, val, seen = Told(), Told(), []

    def note(trainer: Any, module: Any, outputs: Any, batch: list[Tensor], batch_idx: int) -> None:
        seen.append(int(batch[0][0, 0]))

    trainer = BareTrainer(Net(), callbacks=[hooked(on_train_batch_end=note)], max_epochs=3)
    trainer.fit(DataLoader(train, num_workers=workers), DataLoader(val))
    assert train.told == val.told == [0, 1, 2]
    assert seen == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("shares", [False, True])
def test_the_same_stream_on_all_ranks_is_warned_of_once(shares: bool, recwarn: pytest.WarningsRecorder) -> None:
    def run(strategy: ThreadedStrategy) -> None:
        stream = make_batches(4)[strategy.global_rank :: 2] if shares else make_batches(4)
        loader = DataLoader(Batches(stream), batch_size=None)
        BareTrainer(Net(), strategy=strategy, max_epochs=2).fit(loader, Sized([]))

    on_ranks(2, run)
    messages = [str(one.message) for one in recwarn if "split_dataset_by_node" in str(one.message)]
    assert len(messages) == (0 if shares else 1)
    assert all("get_worker_info" in message for message in messages)


class Batches(IterableDataset[Any]):
    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


def test_checksums_tell_orders_contents_and_types_of_samples_apart() -> None:
    samples = [torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0]), {"a": 1}, {"a": "1"}, [b"1"], None, object()]
    assert len({checksum(sample) for sample in samples}) == len(samples)
    assert checksum(torch.tensor([float("nan")])) == checksum(torch.tensor([float("nan")]))
