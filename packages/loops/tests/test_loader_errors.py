"""Errors that arise in loaders, datasets and transfer hooks; `StopIteration` never ends an epoch silently."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from bare_parts import BareTrainer, Net, Sized, Unsized, hooked, make_batches
from overriding_parts import override
from torch.utils.data import DataLoader, Dataset

from camshaft.loops import PredictLoop, TestLoop, ValidationLoop

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class FailingDataset(Dataset[Any]):
    def __init__(self, error: type[BaseException], fails_at: int = 3, length: int = 6) -> None:
        self.error, self.fails_at, self.length = error, fails_at, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if index == self.fails_at:
            raise self.error("no such item")
        return torch.ones(3), torch.ones(1)


class Ending:
    """Counts what an epoch's end would call."""

    def __init__(self) -> None:
        self.ends: list[str] = []
        self.heard: list[BaseException] = []
        names = ["on_train_epoch_end", "on_validation_epoch_end", "on_test_epoch_end", "on_predict_epoch_end"]
        self.callback = hooked(
            **{name: lambda *_, name=name: self.ends.append(name) for name in names},
            on_exception=lambda trainer, module, exception: self.heard.append(exception),
        )


@pytest.mark.parametrize("verb", ["fit", "validate", "test", "predict"])
@pytest.mark.parametrize("limit", [1.0, 3])
@pytest.mark.parametrize("fails_at", [0, 3, 5])
def test_stop_iteration_of_a_dataset_is_an_error(verb: Any, limit: float, fails_at: int) -> None:
    ending = Ending()
    loader = DataLoader(FailingDataset(StopIteration, fails_at), batch_size=2)
    message = f"`DataLoader` must give the 3 batches that it promises, but got {fails_at // 2} .*StopIteration"
    with pytest.raises(RuntimeError, match=message) as caught:
        if verb == "fit":
            BareTrainer(Net(), callbacks=[ending.callback], max_epochs=2, limit_train_batches=limit).fit(loader)
        else:
            loop = {"validate": ValidationLoop, "test": TestLoop, "predict": PredictLoop}[verb](limit_batches=limit)
            BareTrainer(Net(), callbacks=[ending.callback]).verb(verb, loop, loader)
    assert ending.ends == []
    assert ending.heard == [caught.value]


def test_stop_iteration_of_a_nested_validation_dataset_is_an_error() -> None:
    ending = Ending()
    val = DataLoader(FailingDataset(StopIteration), batch_size=2)
    with pytest.raises(RuntimeError, match="`DataLoader` must give the 3 batches that it promises, but got 1"):
        BareTrainer(Net(), callbacks=[ending.callback], max_epochs=1).fit(Sized(make_batches(2)), val)
    assert ending.ends == []


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_other_errors_of_a_dataset_pass_through(error: type[BaseException]) -> None:
    ending = Ending()
    with pytest.raises(error, match="no such item"):
        BareTrainer(Net(), callbacks=[ending.callback], max_epochs=1).fit(
            DataLoader(FailingDataset(error), batch_size=2)
        )
    assert ending.ends == []
    assert len(ending.heard) == 1


@pytest.mark.parametrize("name", ["on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer"])
@pytest.mark.parametrize("kind", [Sized, Unsized])
def test_stop_iteration_of_a_transfer_hook_is_an_error(name: str, kind: Any) -> None:
    ending, net = Ending(), Net()
    override(net, "on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")

    def stop(*_: Any) -> Any:
        raise StopIteration("in the transfer")

    object.__setattr__(net, name, stop)
    with pytest.raises(StopIteration, match="in the transfer") as caught:
        BareTrainer(net, callbacks=[ending.callback], max_epochs=1).fit(kind(make_batches(3)))
    assert ending.ends == []
    assert caught.value.__notes__ == [f"Raised in hook `{name}` of Net (fit, stage train, epoch 0, batch 0, rank 0)."]


@pytest.mark.parametrize("verb", ["fit", "validate", "test", "predict"])
@pytest.mark.parametrize("kind", [Sized, Unsized])
def test_stop_iteration_of_a_step_is_an_error(verb: Any, kind: Any) -> None:
    class Stopping(Net):
        def forward(self, x: Any) -> Any:
            raise StopIteration("in the step")

    ending, trainer_of = Ending(), BareTrainer
    loops = {"validate": ValidationLoop, "test": TestLoop, "predict": PredictLoop}
    with pytest.raises(StopIteration, match="in the step"):
        trainer = trainer_of(Stopping(), callbacks=[ending.callback], max_epochs=1)
        if verb == "fit":
            trainer.fit(kind(make_batches(3)))
        else:
            trainer.verb(verb, loops[verb](), kind(make_batches(3)))
    assert ending.ends == []


@pytest.mark.parametrize("sized", [True, False])
def test_an_error_of_a_loader_that_is_a_generator_passes_through(sized: bool) -> None:
    class Broken:
        def __iter__(self) -> Iterator[Any]:
            yield from make_batches(1)
            raise OSError("the disk is gone")

    if sized:
        Broken.__len__ = lambda self: 2  # type: ignore[attr-defined]
    ending = Ending()
    with pytest.raises(OSError, match="the disk is gone"):
        BareTrainer(Net(), callbacks=[ending.callback], max_epochs=1).fit(Broken())
    assert ending.ends == []


def test_an_error_of_the_optimizer_passes_through() -> None:
    class Broken(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            raise FloatingPointError("the step is broken")

    ending = Ending()
    net = Net(lambda module: Broken(module.parameters(), lr=0.1))
    with pytest.raises(FloatingPointError, match="the step is broken"):
        BareTrainer(net, callbacks=[ending.callback], max_epochs=1).fit(Sized(make_batches(2)))
    assert ending.ends == []


class KillingDataset(FailingDataset):
    """Ends the worker process that reads a certain item."""

    def __init__(self) -> None:
        super().__init__(OSError)

    def __getitem__(self, index: int) -> Any:
        if index == self.fails_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


@pytest.mark.parametrize("dataset", [KillingDataset(), FailingDataset(KeyError)])
@pytest.mark.parametrize("is_persistent", [False, True])
def test_a_fit_that_failed_leaves_no_worker_and_no_thread_though_its_error_is_kept(
    dataset: Any, is_persistent: bool
) -> None:
    threads = set(threading.enumerate())
    trainer = BareTrainer(Net(), max_epochs=1)
    loader = DataLoader(dataset, batch_size=2, num_workers=2, persistent_workers=is_persistent)
    with pytest.raises((RuntimeError, OSError, KeyError)) as caught:
        trainer.fit(loader)
    assert set(threading.enumerate()) == threads
    assert multiprocessing.active_children() == []
    assert caught.value.__traceback__ is not None
