"""The sanity check tries validation before training, and leaves no trace."""

from __future__ import annotations

import copy
import random
import sys
import threading
from collections import namedtuple
from typing import Any

import pytest
import torch
from bare_parts import BareTrainer, Net, Sized, Unsized, hooked, make_batches, same_bits, seeded, weights
from recording_sink import RecordingSink
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

try:
    import numpy
except ImportError:
    numpy = None  # type: ignore[assignment]


class Drawing(Net):
    """Draws from every generator in validation and, after a fit, tells what training drew."""

    def __init__(self) -> None:
        super().__init__(dropout=0.5)
        self.drawn: list[Any] = []

    def draw(self) -> tuple[float, ...]:
        of_numpy = (float(numpy.random.rand()),) if numpy is not None else ()
        return (random.random(), random.gauss(0, 1), float(torch.rand(())), *of_numpy)

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        self.draw()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.drawn.append(self.draw())
        return self.loss(batch)


def fit(num_sanity_val_steps: int, **arguments: Any) -> Drawing:
    random.seed(1)
    if numpy is not None:
        numpy.random.seed(1)
    net = seeded(Drawing)
    val = DataLoader(range(4), shuffle=True)  # draws its order, too
    trainer = BareTrainer(
        net, max_epochs=1, num_sanity_val_steps=num_sanity_val_steps, val_check_interval=3, **arguments
    )
    trainer.fit(Sized(make_batches(3)), val)
    return net


@pytest.mark.parametrize("num_steps", [1, 3, -1])
def test_every_generator_is_as_if_it_had_not_been_run(num_steps: int) -> None:
    without, with_check = fit(0), fit(num_steps)
    assert with_check.drawn == without.drawn
    assert same_bits(weights(with_check), weights(without))


def test_generators_are_put_back_even_if_it_fails() -> None:
    class Failing(Net):
        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            torch.rand(())
            raise ValueError("on purpose")

    net = seeded(Failing)
    before = torch.get_rng_state()
    trainer = BareTrainer(net, max_epochs=1, num_sanity_val_steps=1)
    with pytest.raises(ValueError, match="on purpose"):
        trainer.fit(Sized(make_batches(1)), Sized(make_batches(1)))
    assert torch.equal(torch.get_rng_state(), before)
    assert not trainer.fit_loop.sanity_checking


def test_a_callback_may_remember_what_cannot_be_copied() -> None:
    class Remembering:
        def __init__(self) -> None:
            self.total = 3 * torch.ones(2, requires_grad=True)
            self.shared = [1.0]
            self.refused = (threading.Lock(), sys.stdout, lambda: 1, (item for item in ()), nn.Linear(1, 1))

        def state_dict(self) -> dict[str, Any]:
            point = namedtuple("Point", "x y")(self.total, self.shared)
            return {"total": self.total, "nested": [point, {"shared": self.shared}], "refused": self.refused}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            [point, others] = state["nested"]
            assert point.x is state["total"] and point.y is others["shared"]
            self.total, self.shared, refused = copy.deepcopy(state["total"]), others["shared"], state["refused"]
            assert all(one is other for one, other in zip(refused, self.refused, strict=True))

        def on_validation_batch_end(self, *_: Any) -> None:
            with torch.no_grad():
                self.total.zero_()
            self.shared.append(2.0)

        def on_train_start(self, trainer: Any, module: Any) -> None:
            assert self.shared == [1.0] and self.total.tolist() == [3.0, 3.0]

    callback = Remembering()
    trainer = BareTrainer(seeded(Net), callbacks=[callback], max_epochs=1, num_sanity_val_steps=2)
    trainer.fit(Sized(make_batches(1)), Sized(make_batches(2)))
    assert callback.shared == [1.0, 2.0, 2.0]


@pytest.mark.parametrize("changes", [False, True])
def test_a_state_that_has_not_changed_is_not_loaded(changes: bool) -> None:
    class Averaging:
        """Keeps a module that cannot be copied, which it copies when its state is loaded."""

        def __init__(self) -> None:
            self.average = nn.Linear(1, 1)
            self.average.derived = 2 * self.average.weight  # type: ignore[assignment]
            self.num_loads = self.num_updates = 0

        def state_dict(self) -> dict[str, Any]:
            return {"num_updates": self.num_updates, **({} if changes else {"average": self.average})}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            state = copy.deepcopy(state)
            self.num_updates, self.num_loads = state["num_updates"], self.num_loads + 1

        def on_validation_batch_end(self, *_: Any) -> None:
            self.num_updates += changes

    callback = Averaging()
    trainer = BareTrainer(seeded(Net), callbacks=[callback], max_epochs=1, num_sanity_val_steps=2)
    trainer.fit(Sized(make_batches(1)), Sized(make_batches(2)))
    assert (callback.num_loads, callback.num_updates) == ((1, 2) if changes else (0, 0))


@pytest.mark.parametrize(
    ("num_steps", "kind", "expected"),
    [(0, Sized, [0, 0]), (2, Sized, [2, 1]), (-1, Sized, [4, 1]), (9, Sized, [4, 1]), (3, Unsized, [3, 1])],
)
def test_it_takes_so_many_batches_of_each_loader(num_steps: int, kind: Any, expected: list[int]) -> None:
    counts = [0, 0]

    class Counting(Net):
        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int) -> Any:
            counts[dataloader_idx] += 1

    stop = hooked(on_train_start=lambda trainer, module: setattr(trainer.fit_loop, "should_stop", True))
    trainer = BareTrainer(Counting(), callbacks=[stop], max_epochs=1, num_sanity_val_steps=num_steps)
    trainer.fit(Sized(make_batches(1)), [kind(make_batches(4)), kind(make_batches(1))])
    assert counts == expected


def test_it_says_that_it_is_running_and_only_then() -> None:
    seen: list[tuple[str, bool]] = []

    def note(name: str) -> Any:
        return lambda trainer, *_: seen.append((name, trainer.fit_loop.sanity_checking))

    names = ["on_fit_start", "on_sanity_check_start", "on_validation_start", "on_sanity_check_end", "on_train_start"]
    callback = hooked(**{name: note(name) for name in names})
    trainer = BareTrainer(Net(), callbacks=[callback], max_epochs=1, num_sanity_val_steps=1)
    trainer.fit(Sized(make_batches(1)), Sized(make_batches(1)))
    expected = [False, True, True, True, False, False]
    assert seen == list(zip([*names, "on_validation_start"], expected, strict=True))


def test_what_it_logs_is_discarded() -> None:
    sink = RecordingSink()
    trainer = BareTrainer(Net(), metrics=sink, max_epochs=1, num_sanity_val_steps=1, limit_val_batches=1)
    trainer.fit(Sized(make_batches(1)), Sized(make_batches(2)))
    sanity = sink.calls[: sink.calls.index("start_epoch train 1")]
    assert sanity == ["start_epoch validate 1 trial", "moment batch", "moment epoch", "moment None", "discard"]
    assert sink.calls.count("discard") == 1


class Advancing(IterableDataset[float]):
    """A stream that goes on where it was, and tells where that is."""

    def __init__(self) -> None:
        self.position = 0

    def __iter__(self) -> Any:
        for _ in range(3):
            self.position += 1
            yield float(self.position)

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


class Augmenting(Dataset[float]):
    """Draws its samples at random."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> float:
        return index + float(torch.rand(()))


class Reading(Net):
    def __init__(self) -> None:
        super().__init__()
        self.read: list[float] = []

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        self.read.append(float(batch))


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(Advancing(), batch_size=None),
        lambda: DataLoader(Augmenting(), num_workers=1, persistent_workers=True),
    ],
    ids=["a stream with a state", "workers that live on"],
)
def test_validation_reads_what_it_would_have_read(make: Any) -> None:
    read = []
    for num_steps in (0, 2):
        net = seeded(Reading)
        BareTrainer(net, max_epochs=2, num_sanity_val_steps=num_steps).fit(Sized(make_batches(1)), make())
        read.append(net.read[num_steps:])
    assert len(read[0]) == 6 and read[1] == read[0]
