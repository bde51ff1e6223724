"""What a trainer's limits of data and time do, with loaders passed, of the module and of the data module."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler
from trainer_parts import (
    NO_VALIDATION,
    Regression,
    RegressionData,
    assert_same,
    dataset,
    loader,
    quiet_trainer,
    weights,
)  # fmt: skip

from camshaft.hooks_core import Callback
from camshaft.loops import CombinedLoader

pytestmark = pytest.mark.filterwarnings(NO_VALIDATION)


class Seeing(Regression):
    """Keeps the first number of each batch, by stage."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[float]] = []
        self.validated: list[float] = []

    def on_train_epoch_start(self) -> None:
        self.seen.append([])

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.seen[-1].append(batch[0][0, 0].item())
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.validated.append(batch[0][0, 0].item())


@pytest.mark.parametrize("overfit_batches", [2, 0.5])
def test_overfitting_takes_the_same_batches_in_every_epoch(overfit_batches: int | float, tmp_path: Path) -> None:
    module = Seeing()
    trainer = quiet_trainer(tmp_path, overfit_batches=overfit_batches, max_epochs=3, num_sanity_val_steps=0)
    with pytest.warns(UserWarning, match="takes the same batches in every epoch"):
        trainer.fit(module, loader(4, shuffle=True), loader(3))
    first = [batch[0][0, 0].item() for batch in loader(4)][:2]
    assert module.seen == [first] * 3
    assert len(module.validated) == 3 * (2 if overfit_batches == 2 else 1)


@pytest.mark.parametrize(("overfit_batches", "expected"), [(2, 2), (0.5, 1)])
def test_overfitting_limits_validation_in_fit_and_alone_but_no_other_verb(
    overfit_batches: int | float, expected: int, tmp_path: Path
) -> None:
    module = Seeing()
    trainer = quiet_trainer(tmp_path, overfit_batches=overfit_batches, max_epochs=1, num_sanity_val_steps=0)
    trainer.fit(module, loader(4), loader(3))
    assert (len(module.validated), trainer.num_val_batches) == (expected, [expected])
    assert (trainer.limit_train_batches, trainer.limit_val_batches) == (overfit_batches, overfit_batches)
    module.validated.clear()
    trainer.validate(module, loader(3, shuffle=True))
    assert (len(module.validated), trainer.num_val_batches) == (expected, [expected])
    trainer.test(module, loader(3))
    assert len(trainer.predict(module, loader(3))) == 3
    assert (trainer.num_test_batches, trainer.num_predict_batches) == ([3], [3])


def test_overfitting_in_place_of_a_limit_of_validation_warns(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="`overfit_batches=2` overrides `limit_val_batches=1`"):
        trainer = quiet_trainer(tmp_path, overfit_batches=2, limit_val_batches=1, max_epochs=1)
    assert trainer.limit_val_batches == 2


@pytest.mark.parametrize("structure", ["one", "list", "dictionary", "combined"])
def test_loaders_can_be_read_back_as_they_were_given(structure: str, tmp_path: Path) -> None:
    def given(mode: Any) -> Any:
        several = {"a": loader(2), "b": loader(1)}
        return {
            "one": several["a"],
            "list": list(several.values()),
            "dictionary": several,
            "combined": CombinedLoader(several, mode),
        }[structure]

    def shown(given: Any) -> Any:
        return given.loaders if structure == "combined" else given

    class Several(Seeing):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return self.loss(batch if structure == "one" else batch[0] if structure == "list" else batch["a"])

        def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            pass

        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            pass

        def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            pass

    trainer = quiet_trainer(tmp_path, max_epochs=1)
    assert trainer.train_dataloader is trainer.val_dataloaders is None
    assert trainer.test_dataloaders is trainer.predict_dataloaders is None
    train, val, alone, test, predict = given("max_size_cycle"), *(given("sequential") for _ in range(4))
    trainer.fit(Several(), train, val)
    assert trainer.train_dataloader is shown(train)
    assert trainer.val_dataloaders is shown(val)
    trainer.validate(dataloaders=alone)
    assert trainer.val_dataloaders is shown(alone)
    trainer.test(dataloaders=test)
    assert trainer.test_dataloaders is shown(test)
    trainer.predict(dataloaders=predict)
    assert trainer.predict_dataloaders is shown(predict)
    assert trainer.train_dataloader is trainer.val_dataloaders is trainer.test_dataloaders is None


def test_loaders_whose_order_was_replaced_keep_their_structure(tmp_path: Path) -> None:
    trainer = quiet_trainer(tmp_path, overfit_batches=1, max_epochs=1)
    with pytest.warns(UserWarning, match="takes the same batches in every epoch"):
        trainer.fit(Seeing(), loader(4, shuffle=True), {"a": loader(2, shuffle=True)})
    assert list(trainer.val_dataloaders) == ["a"]
    assert type(trainer.val_dataloaders["a"].sampler) is SequentialSampler
    assert type(trainer.train_dataloader.sampler) is SequentialSampler


class Epochs(RandomSampler):
    """A sampler that remembers the epochs that it was told."""

    def __init__(self) -> None:
        super().__init__(dataset(4))
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)


class ByBatch(BatchSampler):
    """A batch sampler that remembers them."""

    def __init__(self) -> None:
        super().__init__(Epochs(), 2, False)
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)


def test_samplers_are_told_the_epoch_of_the_fit_in_every_verb(tmp_path: Path) -> None:
    def told(verb: Any) -> list[int]:
        sampler = ByBatch()
        verb(dataloaders=DataLoader(dataset(4), batch_sampler=sampler))
        assert sampler.epochs == sampler.sampler.epochs
        return sampler.epochs

    class Testable(Seeing):
        def test_step(self, batch: Any, batch_idx: int) -> None:
            pass

    module = Testable()
    trainer, val = quiet_trainer(tmp_path, max_epochs=3, num_sanity_val_steps=1), ByBatch()
    verbs = trainer.validate, trainer.test, trainer.predict
    assert [told(lambda verb=verb, **loaders: verb(module, **loaders)) for verb in verbs] == [[0]] * 3
    trainer.fit(module, loader(2), DataLoader(dataset(4), batch_sampler=val))
    assert val.epochs == [0, 0, 1, 2]
    assert [told(lambda verb=verb, **loaders: verb(module, **loaders)) for verb in verbs] == [[3]] * 3


def test_loaders_are_asked_for_again_every_few_epochs(tmp_path: Path) -> None:
    class Growing(RegressionData):
        asked: list[int]

        def train_dataloader(self) -> Any:
            self.asked.append(self.trainer.current_epoch)
            return loader(2 + len(self.asked))

    data, module = Growing(), Seeing()
    data.asked = []
    trainer = quiet_trainer(tmp_path, reload_dataloaders_every_n_epochs=2, max_epochs=5)
    trainer.fit(module, datamodule=data)
    assert data.asked == [0, 2, 4]
    assert [len(epoch) for epoch in module.seen] == [3, 3, 4, 4, 5]
    assert trainer.num_training_batches == 5


def test_training_stops_after_the_batch_in_which_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Callback):
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
            if trainer.global_step == 5:
                now = time.monotonic() + 3600
                monkeypatch.setattr(time, "monotonic", lambda: now)

    module = Seeing()
    trainer = quiet_trainer(tmp_path, max_time=timedelta(minutes=30), max_epochs=-1, callbacks=Slow())
    trainer.fit(module, loader(4))
    assert [len(epoch) for epoch in module.seen] == [4, 2]
    assert trainer.fit_loop.progress.elapsed_seconds >= 3600


@pytest.mark.parametrize("is_dict", [True, False])
def test_several_training_loaders_give_a_batch_of_each(is_dict: bool, tmp_path: Path) -> None:
    class Several(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            short, long = (batch["short"], batch["long"]) if is_dict else batch
            return self.loss(short) + self.loss(long)

    torch.manual_seed(0)
    module = Several()
    by_hand = Regression()
    by_hand.load_state_dict(module.state_dict())
    loaders = {"short": loader(2), "long": loader(4)}
    trainer = quiet_trainer(tmp_path, max_epochs=2)
    trainer.fit(module, loaders if is_dict else list(loaders.values()))

    optimizer = torch.optim.SGD(by_hand.parameters(), lr=0.1)
    for _ in range(2):
        for short, long in zip([*loader(2), *loader(2)], loader(4), strict=True):
            optimizer.zero_grad()
            (by_hand.loss(short) + by_hand.loss(long)).backward()
            optimizer.step()
    assert_same(weights(module), weights(by_hand))
    assert trainer.train_dataloader is trainer.fit_loop.loader.loaders
    assert type(trainer.train_dataloader) is (dict if is_dict else list)


def test_a_combined_loader_says_how_long_an_epoch_is(tmp_path: Path) -> None:
    class First(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return super().training_step(batch[0], batch_idx)

    lengths = {}
    for mode in ("min_size", "max_size_cycle"):
        trainer = quiet_trainer(tmp_path)
        trainer.fit(First(), CombinedLoader([loader(4), loader(2)], mode))
        lengths[mode] = trainer.global_step
    assert lengths == {"min_size": 2, "max_size_cycle": 4}


class Numbers(IterableDataset[Any]):
    """A stream that cannot tell where it is."""

    def __iter__(self) -> Any:
        data = dataset(16)
        return iter([data[idx] for idx in range(16)])


def stream() -> DataLoader[Any]:
    return DataLoader(Numbers(), batch_size=4)


@pytest.mark.parametrize("choice", ["refuse", "fast_forward"])
def test_a_stream_without_a_state_is_refused_inside_an_epoch_or_read_again(choice: Any, tmp_path: Path) -> None:
    class Saving(Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if trainer.global_step == 6:
                trainer.save_checkpoint(tmp_path / "inside.ckpt")

    torch.manual_seed(0)
    whole = Seeing()
    quiet_trainer(tmp_path, max_epochs=2, callbacks=Saving()).fit(whole, stream())

    module = Seeing()
    trainer = quiet_trainer(tmp_path, max_epochs=2, stateless_loaders=choice)
    if choice == "refuse":
        with pytest.raises(ValueError, match="stateless_loaders"):
            trainer.fit(module, stream(), ckpt_path=tmp_path / "inside.ckpt")
        return
    module.seen.append([])
    with pytest.warns(UserWarning, match="read"):
        trainer.fit(module, stream(), ckpt_path=tmp_path / "inside.ckpt")
    assert module.seen == [whole.seen[1][2:]]
    assert_same(weights(module), weights(whole))
