"""What two real processes of torch.distributed check of their shares of the data; started by `torchrun`."""

from __future__ import annotations

import copy
import random
import sys
import warnings
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from bare_parts import BareStrategy, BareTrainer, Net, hooked, make_batches, make_loader, same_bits, weights
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from camshaft.loops import PredictLoop

T = TypeVar("T")
NUM_SAMPLES = 10


class GlooStrategy(BareStrategy):
    """Data parallelism: gradients are averaged after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.global_rank = self.local_rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.num_idle_steps = 0
        self._module: nn.Module | None = None

    def setup_module(self, module: nn.Module) -> nn.Module:
        self._module = module
        return module

    def backward(self, loss: Tensor, differentiate: Any = None) -> None:
        assert self._module is not None
        loss.backward()
        for parameter in self._module.parameters():
            parameter.grad = self.reduce(parameter.grad)  # type: ignore[arg-type]

    def idle_step(self) -> None:
        self.num_idle_steps += 1

    def broadcast(self, value: T, src: int = 0) -> T:
        values = [value]
        dist.broadcast_object_list(values, src)
        return values[0]

    def all_gather(self, value: T) -> list[T]:
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values

    def reduce(self, tensor: Tensor, op: str = "mean") -> Tensor:
        reduced = tensor.clone()
        ops = {"mean": dist.ReduceOp.SUM, "sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}
        dist.all_reduce(reduced, ops[op])
        return reduced / self.world_size if op == "mean" else reduced

    def barrier(self) -> None:
        dist.barrier()


class Seeing(Net):
    """Remembers the samples of each batch by stage."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__(dropout=dropout)
        self.trained: list[list[float]] = []
        self.validated: list[list[float]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.trained.append(batch[0][:, 0].tolist())
        return self.loss(batch)

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.validated.append(batch[0][:, 0].tolist())

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        return batch[0][:, 0]


def data(length: int = NUM_SAMPLES, **arguments: Any) -> DataLoader[Any]:
    x = torch.arange(float(length)).repeat(3, 1).T / length
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), **{"batch_size": 2, **arguments})


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def made(dropout: float = 0.0) -> Seeing:
    seed_all(0)
    return Seeing(dropout)


def woven(of_ranks: list[list[Any]]) -> list[Any]:
    longest = max(map(len, of_ranks))
    return [of_rank[idx] for idx in range(longest) for of_rank in of_ranks if idx < len(of_rank)]


def shuffling_and_weights_are_those_of_one_process(strategy: GlooStrategy) -> None:
    for seed in (3, 3 + strategy.global_rank):
        alone, together = made(), made()
        seed_all(3)
        BareTrainer(alone, max_epochs=3).fit(data(batch_size=4, shuffle=True), data(7, shuffle=True))
        seed_all(seed)
        BareTrainer(together, strategy=strategy, max_epochs=3).fit(data(shuffle=True), data(7, shuffle=True))
        trained = strategy.all_gather(together.trained)
        assert [woven(list(at_once)) for at_once in zip(*trained, strict=True)] == alone.trained
        validated = strategy.all_gather(together.validated)
        epochs = [[of_rank[2 * epoch : 2 * epoch + 2] for of_rank in validated] for epoch in range(3)]
        assert [batch for epoch in epochs for batch in woven(epoch)] == alone.validated
        torch.testing.assert_close(weights(together), weights(alone))
        assert same_bits(weights(together), strategy.broadcast(weights(together)))


def going_on_inside_an_epoch_is_exact(strategy: GlooStrategy) -> None:
    for num_workers in (0, 1):

        def loader(workers: int = num_workers) -> DataLoader[Any]:
            generator = torch.Generator().manual_seed(strategy.global_rank)
            return data(11, shuffle=True, num_workers=workers, generator=generator)

        def save(trainer: Any, *_: Any) -> None:
            trainer.save_checkpoint(f"batch {trainer.progress.total_batches + 1}")

        whole = made(dropout=0.4)
        seed_all(5 + strategy.global_rank)
        first = BareTrainer(whole, callbacks=[hooked(on_train_batch_end=save)], strategy=strategy, max_epochs=2)
        first.fit(loader(), data(3, shuffle=True))
        for stop in (1, 5):
            rest = made(dropout=0.4)
            seed_all(77)
            BareTrainer(rest, strategy=strategy, max_epochs=2).fit(
                loader(), data(3, shuffle=True), first.load(f"batch {stop}")
            )
            assert rest.trained == whole.trained[stop:]
            assert same_bits(weights(rest), weights(whole))


def evaluation_is_exact_and_predictions_come_in_order(strategy: GlooStrategy) -> None:
    strategy.num_idle_steps = 0
    module, loaders = made(), [data(7), data(1), data(4)]
    trainer = BareTrainer(module, strategy=strategy)
    predictions = trainer.verb("predict", PredictLoop(gather=True), loaders)
    expected = [[batch[0][:, 0].tolist() for batch in loader] for loader in loaders]
    assert [[batch.tolist() for batch in of_loader] for of_loader in predictions] == expected
    assert strategy.num_idle_steps == strategy.global_rank  # the single batch of the second loader is the first rank's
    stream = make_loader("stream", make_batches(1 + 3 * strategy.global_rank))
    assert len(trainer.verb("predict", PredictLoop(), stream)) == 1 + 3 * strategy.global_rank
    assert strategy.num_idle_steps == (3 if strategy.global_rank == 0 else 1)


def uneven_training_ends_together_and_says_what_is_left_out(strategy: GlooStrategy) -> None:
    length = 3 + 2 * strategy.global_rank
    heard = {}
    for kind in ("sized", "stream"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trainer = BareTrainer(made(), strategy=strategy, max_epochs=2, limit_val_batches=0)
            trainer.fit(make_loader(kind, make_batches(length)))
        assert trainer.global_step == 6
        messages = {str(warning.message) for warning in caught}
        heard[kind] = [message for message in messages if "left out" in message]
    if strategy.global_rank == 0:
        (sized,), (stream,) = heard["sized"], heard["stream"]
        assert "each takes the 3 batches of the shortest one" in sized and "left out: 2 of rank 1." in sized, sized
        assert "of 1 of 2 processes have more batches" in stream, stream
    else:
        assert heard == {"sized": [], "stream": []}, "rank 0 speaks for all"


def different_arguments_are_refused_before_anybody_waits(strategy: GlooStrategy) -> None:
    trainer = BareTrainer(made(), strategy=strategy, max_epochs=2 + strategy.global_rank)
    try:
        trainer.fit(data())
    except ValueError as error:
        assert str(error).startswith("`max_epochs` must be 2, as on rank 0, but got 3 (int) in fit on rank 1."), error
    else:
        raise AssertionError("both ranks must be told")


CHECKS = (
    shuffling_and_weights_are_those_of_one_process,
    going_on_inside_an_epoch_is_exact,
    evaluation_is_exact_and_predictions_come_in_order,
    uneven_training_ends_together_and_says_what_is_left_out,
    different_arguments_are_refused_before_anybody_waits,
)


def main() -> None:
    dist.init_process_group("gloo")
    strategy = GlooStrategy()
    for check in CHECKS:
        check(copy.copy(strategy))
        if strategy.global_rank == 0:
            print("checked:", check.__name__, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(main())
