"""A search for a batch size before training: the fit that follows is the one that would have begun with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, random_split
from trainer_parts import NO_VALIDATION, ListLogger, Regression, assert_same, dataset, loader, quiet_trainer, weights

from camshaft.callbacks import BatchSizeFinder
from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.trainer import DataModule, Trainer, seed_everything

pytestmark = pytest.mark.filterwarnings(NO_VALIDATION)

ERRORS = {
    "cuda": (torch.OutOfMemoryError, "CUDA out of memory. Tried to allocate 2.00 GiB."),
    "cpu": (RuntimeError, "[enforce fail at alloc_cpu.cpp:118] . DefaultCPUAllocator: can't allocate memory: ..."),
    "python": (MemoryError, ""),
    "other": (RuntimeError, "mat1 and mat2 shapes cannot be multiplied"),
}


class Data(DataModule):
    """Splits at random whenever it is asked, and knows its batch size."""

    def __init__(self, batch_size: int = 4, num_samples: int = 64, *, drop_last: bool = False) -> None:
        super().__init__()
        self.save_hyperparameters("batch_size")
        self.num_samples, self.drop_last = num_samples, drop_last
        self.num_calls = 0

    @property
    def batch_size(self) -> int:
        return int(self.hparams.batch_size)

    @batch_size.setter
    def batch_size(self, value: int) -> None:
        self.hparams.batch_size = value

    def train_dataloader(self) -> Any:
        self.num_calls += 1
        part, _ = random_split(dataset(self.num_samples), [self.num_samples - 4, 4])
        return DataLoader(part, batch_size=self.batch_size, shuffle=True, drop_last=self.drop_last)

    def val_dataloader(self) -> Any:
        return loader(2)


class Hungry(Regression):
    """Memory runs out above so many samples in a batch, in the step or in its backward."""

    def __init__(self, limit: int = 1000, error: str = "cuda", *, in_backward: bool = False) -> None:
        super().__init__(dropout=0.3)
        self.limit, self.error, self.in_backward = limit, error, in_backward
        self.num_samples = 0
        self.seen: list[int] = []

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        self.num_samples = len(batch[0])
        if not self.in_backward and self.num_samples > self.limit:
            self.run_out()
        self.seen.append(self.num_samples)
        return super().training_step(batch, batch_idx)

    def backward(self, loss: Tensor) -> None:
        if self.in_backward and self.num_samples > self.limit:
            self.run_out()
        loss.backward()

    def run_out(self) -> None:
        kind, text = ERRORS[self.error]
        raise kind(text)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def fit(root: Path, size: int, finder: BatchSizeFinder | None = None, **module: Any) -> dict[str, Any]:
    seed_everything(9)
    data, net, logger = Data(size), Hungry(**module), ListLogger()
    callbacks = [] if finder is None else [finder]
    trainer = quiet_trainer(root, callbacks=callbacks, max_epochs=2, logger=logger, log_every_n_steps=1)
    trainer.fit(net, datamodule=data)
    return {
        "weights": weights(net),
        "optimizer": trainer.optimizers[0].state_dict(),
        "rows": logger.rows,
        "seen": net.seen,
        "metrics": dict(trainer.callback_metrics),
        "size": data.batch_size,
        "num_batches": trainer.num_training_batches,
        "step": trainer.global_step,
    }


@pytest.mark.parametrize(("mode", "size"), [("power", 16), ("binsearch", 23)])
@pytest.mark.parametrize("error", ["cuda", "cpu", "python"])
@pytest.mark.parametrize("in_backward", [False, True])
def test_the_fit_after_a_search_is_the_fit_with_the_size_found(
    tmp_path: Path, mode: str, size: int, error: str, in_backward: bool
) -> None:
    finder = BatchSizeFinder(mode, margin=0.0)
    found = fit(tmp_path, 4, finder, limit=23, error=error, in_backward=in_backward)
    assert finder.optimal_batch_size == found["size"] == size
    assert all(fits == (tried <= 23) for tried, fits in finder.trials)
    assert_same(found, fit(tmp_path, size, limit=1000))


def test_a_search_that_finds_the_size_that_is_there_leaves_no_trace(tmp_path: Path) -> None:
    assert_same(fit(tmp_path, 4, BatchSizeFinder(init_val=4, max_val=4)), fit(tmp_path, 4))


def test_the_margin_is_for_memory_that_ran_out(tmp_path: Path) -> None:
    assert fit(tmp_path, 4, BatchSizeFinder("binsearch", margin=0.25), limit=20)["size"] == 15
    assert fit(tmp_path, 4, BatchSizeFinder("binsearch", margin=0.25, max_val=16))["size"] == 16


def test_a_first_size_that_is_too_large_is_halved(tmp_path: Path) -> None:
    finder = BatchSizeFinder(init_val=32)
    assert fit(tmp_path, 4, finder, limit=9)["size"] == 8
    assert finder.trials == [(32, False), (16, False), (8, True)]


def test_it_ends_where_an_epoch_is_one_batch(tmp_path: Path) -> None:
    finder = BatchSizeFinder()
    fit(tmp_path, 4, finder)
    assert finder.trials[-1] == (64, True)


def test_data_that_do_not_fill_a_batch_are_no_size(tmp_path: Path) -> None:
    finder, data = BatchSizeFinder(init_val=40, max_val=80), Data(4, drop_last=True)
    quiet_trainer(tmp_path, callbacks=[finder]).fit(Hungry(), datamodule=data)
    assert finder.trials == [(40, True)]
    finder = BatchSizeFinder("binsearch", init_val=64, max_val=80, margin=0.5)
    quiet_trainer(tmp_path, callbacks=[finder]).fit(Hungry(), datamodule=data)
    assert finder.trials == [(64, False), (32, True), (48, True), (56, True), (60, True), (62, False), (61, False)]
    assert data.batch_size == 60  # no margin: it was not memory


def test_memory_that_suffices_for_nothing_is_an_error_and_the_size_stays(tmp_path: Path) -> None:
    data = Data(4)
    with pytest.raises(MemoryError, match=r"`batch_size` must be a size that fits memory.*but got \[2, 1\]"):
        quiet_trainer(tmp_path, callbacks=[BatchSizeFinder()]).fit(Hungry(limit=0), datamodule=data)
    assert data.batch_size == 4


def test_other_errors_are_raised(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        quiet_trainer(tmp_path, callbacks=[BatchSizeFinder()]).fit(Hungry(limit=2, error="other"), datamodule=Data())


def test_a_resumed_fit_takes_the_size_over_before_it_asks_for_loaders(tmp_path: Path) -> None:
    def trainer_of(finder: BatchSizeFinder, **arguments: Any) -> Trainer:
        return quiet_trainer(tmp_path, callbacks=[finder], **arguments)

    def module() -> Hungry:
        seed_everything(9)
        return Hungry(limit=10)

    whole = module()
    trainer_of(BatchSizeFinder(), max_epochs=3).fit(whole, datamodule=Data())
    first = trainer_of(BatchSizeFinder(), max_epochs=None, max_steps=11)
    first.fit(module(), datamodule=Data())
    first.save_checkpoint(tmp_path / "middle.ckpt")

    finder, data, resumed = BatchSizeFinder(), Data(), Hungry(limit=10)
    trainer_of(finder, max_epochs=3).fit(resumed, datamodule=data, ckpt_path=tmp_path / "middle.ckpt")
    assert_same(weights(resumed), weights(whole))
    assert finder.optimal_batch_size == data.batch_size == 8
    assert finder.trials == [(2, True), (4, True), (8, True), (16, False)]
    assert set(resumed.seen[:-1]) <= {8, 4} and data.num_calls == 1


def test_a_loader_that_was_passed_to_fit_is_an_error(tmp_path: Path) -> None:
    module = Hungry()
    module.batch_size = 4
    with pytest.raises(ValueError, match="`train loader` must be provided by `train_dataloader`"):
        quiet_trainer(tmp_path, callbacks=[BatchSizeFinder()]).fit(module, loader(4))


def test_a_loader_that_does_not_follow_the_size_is_an_error(tmp_path: Path) -> None:
    class Fixed(Data):
        def train_dataloader(self) -> Any:
            return loader(4)

    with pytest.raises(InvalidArgumentError, match="`batch size of the train loader` must be one that follows"):
        quiet_trainer(tmp_path, callbacks=[BatchSizeFinder()]).fit(Hungry(), datamodule=Fixed())


class ByHand(Hungry):
    automatic_optimization = False


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        (ByHand, {}, "`automatic_optimization` must be True"),
        (Hungry, {"batch_arg_name": "size"}, "`batch_arg_name` must be the name .* of Hungry or Data, but got 'size'"),
    ],
    ids=["by hand", "unknown name"],
)
def test_what_cannot_be_tried_is_an_error(tmp_path: Path, kind: Any, arguments: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        quiet_trainer(tmp_path, callbacks=[BatchSizeFinder(**arguments)]).fit(kind(), datamodule=Data())


def test_fast_dev_run_searches_nothing_and_says_so(tmp_path: Path) -> None:
    finder = BatchSizeFinder()
    with pytest.warns(UserWarning, match="BatchSizeFinder does not search under `fast_dev_run`"):
        quiet_trainer(tmp_path, callbacks=[finder], fast_dev_run=True).fit(Hungry(), datamodule=Data())
    assert finder.trials == []
