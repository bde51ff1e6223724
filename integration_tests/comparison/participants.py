"""The module, data and callbacks of a recorded run, the same on both frameworks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torchmetrics import SumMetric

from comparison.configuration import Configuration
from comparison.frameworks import Framework

BATCH_SIZE = 4
_OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.05),
    "lbfgs": lambda parameters: torch.optim.LBFGS(parameters, lr=0.1, max_iter=2),
}


class Stream(IterableDataset[tuple[Tensor, ...]]):
    """Samples whose number nobody knows beforehand."""

    def __init__(self, samples: TensorDataset) -> None:
        self._samples = samples

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        return (self._samples[idx] for idx in range(len(self._samples)))


def samples(num_batches: int, *, is_ragged: bool, seed: int) -> TensorDataset:
    """Inputs and targets for a number of batches."""
    generator = torch.Generator().manual_seed(seed)
    size = max(num_batches * BATCH_SIZE - (2 if is_ragged else 0), 0)
    return TensorDataset(torch.randn(size, 3, generator=generator), torch.randn(size, 1, generator=generator))


class Loaders:
    """Makes the loaders of a run."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration

    def train(self) -> Any:
        dataset: Any = samples(self._configuration.num_batches, is_ragged=self._configuration.is_ragged, seed=1)
        if self._configuration.is_stream:
            return DataLoader(Stream(dataset), batch_size=BATCH_SIZE)
        return DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=self._configuration.shuffle)

    def evaluation(self) -> Any:
        loaders = [
            DataLoader(samples(number, is_ragged=self._configuration.is_ragged, seed=2 + idx), batch_size=BATCH_SIZE)
            for idx, number in enumerate(self._configuration.num_eval_batches)
        ]
        return loaders[0] if len(loaders) == 1 else loaders or None


def dyadic(value: Tensor) -> Tensor:
    """A value of few binary digits, so that sums of many are exact in single precision too."""
    return (value.detach() * 64).round() / 64


def make_module(framework: Framework, configuration: Configuration) -> type:
    """The class of the module."""

    class Network(framework.module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = not configuration.is_manual
            self.hidden = nn.Sequential(
                nn.Linear(3, 4), nn.Tanh(), nn.BatchNorm1d(4), nn.Dropout(configuration.dropout)
            )
            self.head = nn.Linear(4, 1)
            self.total = SumMetric()
            self.scale = 1.0

        def forward(self, batch: Any) -> Tensor:
            return self.head(self.hidden(batch[0]))

        def loss(self, batch: Any) -> Tensor:
            return self.scale * nn.functional.mse_loss(self(batch), batch[1])

        def on_train_start(self) -> None:
            if configuration.draws_at_start:
                self.scale = float(torch.rand(()))

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
            skips = batch_idx == configuration.skips_from and not configuration.callback_skips
            return -1 if skips else None

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.optimize(batch) if configuration.is_manual else self.loss(batch)
            self.log("loss", dyadic(loss), on_step=True, on_epoch=True, prog_bar=True)
            self.log("plain", loss)
            self.log("largest", loss, on_step=False, on_epoch=True, reduce_fx="max")
            self.total(dyadic(loss))
            self.log("total", self.total, on_step=False, on_epoch=True)
            if batch_idx in configuration.no_loss_at:
                return None
            return loss if configuration.returns == "tensor" else {"loss": loss, "size": len(batch[0]), "own": 2 * loss}

        def optimize(self, batch: Any) -> Tensor:
            for optimizer in self.optimizers():
                loss = self.loss(batch)
                optimizer.zero_grad()
                self.manual_backward(loss)
                optimizer.step()
            return loss

        def on_train_epoch_end(self) -> None:
            self.log("train_end", float(self.current_epoch))

        def evaluate(self, stage: str, batch: Any, batch_idx: int) -> Tensor:
            loss = self.loss(batch)
            self.log(f"{stage}_loss", dyadic(loss), prog_bar=True)
            self.log(f"{stage}_each", dyadic(loss), on_step=True, on_epoch=True)
            self.log(f"{stage}_least", loss, reduce_fx="min")
            self.log(f"{stage}_sum", dyadic(loss), reduce_fx=torch.sum)
            return loss

        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
            return self.evaluate("val", batch, batch_idx)

        def on_validation_epoch_end(self) -> None:
            self.log("val_end", 0.1)

        def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
            return {"loss": self.evaluate("test", batch, batch_idx), "idx": batch_idx}

        def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
            return self(batch)

        def configure_optimizers(self) -> Any:
            make = _OPTIMIZERS[configuration.optimizer]
            if configuration.is_manual:
                return [make(self.hidden.parameters()), make(self.head.parameters())]
            optimizer = make(self.parameters())
            scheduling = configuration.scheduling
            if scheduling is None:
                return optimizer
            settings = {"interval": scheduling.interval, "frequency": scheduling.frequency}
            if scheduling.monitor is None:
                scheduler: Any = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
            else:
                scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.2)
                settings |= {"monitor": scheduling.monitor, "strict": False}
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, **settings}}

    if configuration.loaders_from == "module":
        provide_loaders(Network, configuration)
    return Network


def make_data(framework: Framework, configuration: Configuration) -> type:
    """The class of the data module."""

    class Data(framework.data):  # type: ignore[misc, name-defined]
        pass

    provide_loaders(Data, configuration)
    return Data


def provide_loaders(owner: Any, configuration: Configuration) -> None:
    """Give a class the methods that make loaders."""
    loaders = Loaders(configuration)
    owner.train_dataloader = lambda self: loaders.train()
    if configuration.num_eval_batches:
        owner.val_dataloader = owner.test_dataloader = owner.predict_dataloader = lambda self: loaders.evaluation()


def make_watcher(framework: Framework, configuration: Configuration) -> type:
    """The class of a callback that interferes where the configuration says so."""

    class Watcher(framework.callback):  # type: ignore[misc, name-defined]
        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> int | None:
            return -1 if batch_idx == configuration.skips_from and configuration.callback_skips else None

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if (trainer.current_epoch, batch_idx) == configuration.stops_at:
                trainer.should_stop = True

    if configuration.raises_in is not None:

        def raising(self: Any, trainer: Any, *arguments: Any) -> None:
            if not trainer.sanity_checking:
                raise KeyError("on purpose")

        setattr(Watcher, configuration.raises_in, raising)
    return Watcher
