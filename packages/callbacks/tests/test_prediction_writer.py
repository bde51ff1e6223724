"""When predictions are handed over, and which samples they are said to be of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from predicting import PredictingTrainer, predict
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, Sampler, TensorDataset

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.callbacks.predictions.prediction_writer import BasePredictionWriter, BatchIndices


def numbers(num: int) -> TensorDataset:
    return TensorDataset(torch.arange(num))


class Recording(BasePredictionWriter):
    def __init__(self, write_interval: Any = "batch") -> None:
        super().__init__(write_interval)
        self.batches: list[Any] = []
        self.epochs: list[Any] = []

    def write_on_batch_end(
        self,
        trainer: Any,
        module: Any,
        prediction: Any,
        batch_indices: Any,
        batch: Any,
        batch_idx: int,
        dl_idx: int,
    ) -> None:
        self.batches.append((prediction.tolist(), batch_indices, batch[0].tolist(), batch_idx, dl_idx))

    def write_on_epoch_end(self, trainer: Any, module: Any, predictions: Any, batch_indices: Any) -> None:
        self.epochs.append((predictions, batch_indices))


def shown(loaders: list[Any], root: Path) -> Any:
    """A trainer that predicts the loaders."""
    trainer = PredictingTrainer(str(root))
    trainer.predict_dataloaders = dict(enumerate(loaders))  # a collection of any kind
    trainer.num_predict_batches = [len(loader) for loader in loaders]
    return trainer


def double(batch: Any) -> Any:
    return 2 * batch[0]


def test_batches_are_written_one_by_one_with_their_samples(tmp_path: Path) -> None:
    writer = Recording()
    predict(writer, [DataLoader(numbers(5), batch_size=2), DataLoader(numbers(2))], double, tmp_path)
    assert writer.batches == [
        ([0, 2], [0, 1], [0, 1], 0, 0),
        ([4, 6], [2, 3], [2, 3], 1, 0),
        ([8], [4], [4], 2, 0),
        ([0], [0], [0], 0, 1),
        ([2], [1], [1], 1, 1),
    ]
    assert writer.epochs == []


def test_an_epoch_is_written_as_a_whole_in_the_form_of_its_loaders(tmp_path: Path) -> None:
    writer = Recording("epoch")
    loader = DataLoader(numbers(3), batch_size=2)
    predict(writer, [loader], double, tmp_path)
    predict(writer, [loader, DataLoader(numbers(1))], double, tmp_path)
    (one, one_indices), (two, two_indices) = writer.epochs
    assert [batch.tolist() for batch in one] == [[0, 2], [4]] and one_indices == [[[0, 1], [2]]]
    assert [[batch.tolist() for batch in loader] for loader in two] == [[[0, 2], [4]], [[0]]]
    assert two_indices == [[[0, 1], [2]], [[0]]]
    assert writer.batches == []


def test_both_can_be_written(tmp_path: Path) -> None:
    writer = Recording("batch_and_epoch")
    predict(writer, [DataLoader(numbers(3), batch_size=2)], double, tmp_path)
    assert (len(writer.batches), len(writer.epochs)) == (2, 1)


def test_a_time_that_is_none_or_that_nobody_writes_at_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="`write_interval` must be 'batch', 'epoch' or 'batch_and_epoch'"):
        Recording("step")

    class OnlyBatches(BasePredictionWriter):
        def write_on_batch_end(self, *args: Any) -> None: ...

    with pytest.raises(InvalidArgumentError, match="Define `write_on_epoch_end`, or pass another interval"):
        predict(OnlyBatches("batch_and_epoch"), [], double, tmp_path)


def test_samples_of_an_order_that_is_drawn_are_noted_as_the_loader_reads_them(tmp_path: Path) -> None:
    class Downwards(Sampler[int]):
        def __iter__(self) -> Any:
            return iter((4, 3, 2, 1, 0))

        def __len__(self) -> int:
            return 5

    loaders = [
        DataLoader(numbers(5), batch_size=2, shuffle=True),
        DataLoader(numbers(5), batch_size=2, sampler=Downwards()),
        DataLoader(numbers(5), batch_size=None, sampler=Downwards(), num_workers=1),
    ]
    orders = [loader.batch_sampler for loader in loaders]
    torch.manual_seed(4)
    plain = [[batch[0].tolist() for batch in loader] for loader in loaders]
    torch.manual_seed(4)
    writer, other = Recording("batch_and_epoch"), Recording()
    for each in (writer, other):
        each.on_predict_epoch_start(trainer := shown(loaders, tmp_path), None)
    read = [[batch[0].tolist() for batch in each] for each in loaders]
    assert read == plain
    for each in (writer, other):
        for dataloader_idx, batches in enumerate(read):
            for batch_idx, batch in enumerate(batches):
                each.on_predict_batch_end(
                    trainer, None, torch.tensor(batch), [torch.tensor(batch)], batch_idx, dataloader_idx
                )
        each.on_predict_epoch_end(trainer, None)
        each.teardown(trainer, None, "predict")
        assert [indices for _, indices, *_ in each.batches] == [
            batch if isinstance(batch, list) else [batch] for batches in plain for batch in batches
        ]
    assert [loader.batch_sampler for loader in loaders] == orders
    assert isinstance(loaders[2].sampler, Downwards)
    [(_, by_loader)] = writer.epochs
    assert by_loader[:2] == plain[:2]


def test_a_prediction_that_fails_gives_the_loader_its_sampler_back(tmp_path: Path) -> None:
    loader = DataLoader(numbers(4), shuffle=True)
    order, writer = loader.batch_sampler, Recording()
    writer.on_predict_epoch_start(trainer := shown([loader], tmp_path), None)
    assert loader.batch_sampler is not order
    writer.teardown(trainer, None, "predict")
    assert loader.batch_sampler is order


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(range(4))


class Drawn:
    """A fixed order by its own word, as this process's share of one."""

    draws = False

    def __iter__(self) -> Any:
        return iter([[3, 1], [0]])

    def __len__(self) -> int:
        return 2


def known(loader: Any, num_batches: int) -> list[Any]:
    indices = BatchIndices(loader)
    return [indices.of(batch_idx) for batch_idx in range(num_batches)]


def test_samples_are_known_where_the_order_is_fixed_and_else_not() -> None:
    data = numbers(4)
    assert known(DataLoader(data, batch_size=3), 3) == [[0, 1, 2], [3], None]
    assert known(DataLoader(data, batch_size=3, drop_last=True), 2) == [[0, 1, 2], None]
    assert known(DataLoader(data, batch_size=None), 2) == [[0], [1]]
    assert known(DataLoader(data, sampler=[2, 0]), 2) == [[2], [0]]
    assert known(DataLoader(data, batch_sampler=Drawn()), 2) == [[3, 1], [0]]  # type: ignore[arg-type]
    share: Any = DistributedSampler(data, num_replicas=2, rank=1, shuffle=False)
    assert known(DataLoader(data, batch_size=2, sampler=share), 1) == [[1, 3]]
    before = torch.get_rng_state()
    assert known(DataLoader(data, shuffle=True), 1) == [None]
    assert torch.equal(torch.get_rng_state(), before)
    assert known(DataLoader(Stream()), 1) == [None]
    assert known([1, 2], 1) == known(None, 1) == [None]
    assert BatchIndices(DataLoader(data)).of(2) == [2]  # batches that were left out
