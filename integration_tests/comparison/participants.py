"""The module, data and callbacks of a recorded run, the same on both frameworks."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, TensorDataset, default_collate
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


class NeedsClosure(torch.optim.SGD):
    """Gradient descent that evaluates the loss by itself, without switching gradients on."""

    num_evaluations = 1

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for _ in range(self.num_evaluations):
            loss = closure()
        super().step()
        return loss


class EvaluatesTwice(NeedsClosure):
    """One that evaluates the loss again before its update, as those that look at the sharpness of the loss do."""

    num_evaluations = 2


class Duck:
    """An optimizer by its attributes alone, around one of torch's."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._wrapped = optimizer
        self.defaults, self.state = optimizer.defaults, optimizer.state
        self.param_groups = optimizer.param_groups

    def state_dict(self) -> dict[str, Any]:
        return self._wrapped.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._wrapped.load_state_dict(state_dict)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._wrapped.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> Any:
        return self._wrapped.step(closure)


_OPTIMIZERS |= {
    "own": lambda parameters: NeedsClosure(parameters, lr=0.1),
    "sam": lambda parameters: EvaluatesTwice(parameters, lr=0.1),
    "duck": lambda parameters: Duck(torch.optim.SGD(parameters, lr=0.1, momentum=0.9)),
}


class Guarded(OrderedDict[str, Tensor]):
    """A dictionary that refuses changes, as those of Hugging Face's outputs do."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        for name, value in OrderedDict(*args, **kwargs).items():
            super().__setitem__(name, value)

    def __setitem__(self, name: str, value: Tensor) -> None:
        raise TypeError("Guarded takes no items")

    def update(self, *args: Any, **kwargs: Any) -> None:
        raise TypeError("Guarded cannot be updated")


def guarded(samples: list[tuple[Tensor, ...]]) -> Guarded:
    """Collate samples into a guarded dictionary."""
    inputs, targets = default_collate(samples)
    return Guarded(inputs=inputs, targets=targets)


class Stream(IterableDataset[tuple[Tensor, ...]]):
    """Samples whose number nobody knows beforehand."""

    def __init__(self, samples: TensorDataset) -> None:
        self._samples = samples

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        return (self._samples[idx] for idx in range(len(self._samples)))


class OwnLoader:
    """Batches from an object that is its own iterator, knows its length, and must not be read behind it.

    Args:
        batches: The batches.
        count: Called whenever an iteration begins.
    """

    def __init__(self, batches: list[Any], count: Callable[[], None]) -> None:
        self._batches, self._count = batches, count
        self._position = 0

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> OwnLoader:
        self._count()
        self._position = 0
        return self

    def __next__(self) -> Any:
        if self._position == len(self._batches):
            raise RuntimeError("read behind the end")
        self._position += 1
        return self._batches[self._position - 1]


class DrawingLoader:
    """Batches in an order that is drawn whenever an iteration begins.

    Args:
        batches: The batches.
        count: Called whenever an iteration begins.
    """

    def __init__(self, batches: list[Any], count: Callable[[], None]) -> None:
        self._batches, self._count = batches, count

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        self._count()
        return iter([self._batches[idx] for idx in torch.randperm(len(self._batches)).tolist()])


class EpochSampler(RandomSampler):
    """A sampler that is told the epoch.

    Args:
        told: The epochs that it was told.
    """

    def __init__(self, dataset: TensorDataset, told: list[int]) -> None:
        super().__init__(dataset)
        self._told = told

    def set_epoch(self, epoch: int) -> None:
        self._told.append(epoch)


def samples(num_batches: int, *, is_ragged: bool, seed: int) -> TensorDataset:
    """Inputs and targets for a number of batches."""
    generator = torch.Generator().manual_seed(seed)
    size = max(num_batches * BATCH_SIZE - (2 if is_ragged else 0), 0)
    return TensorDataset(torch.randn(size, 3, generator=generator), torch.randn(size, 1, generator=generator))


class Loaders:
    """Makes the loaders of a run, and keeps how they are used."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self._num_iterations: Counter[str] = Counter()
        self._told: dict[str, list[int]] = defaultdict(list)

    def train(self) -> Any:
        dataset = samples(self._configuration.num_batches, is_ragged=self._configuration.is_ragged, seed=1)
        if self._configuration.is_stream:
            return self._loader(Stream(dataset), "train")
        return self._loader(dataset, "train", shuffle=self._configuration.shuffle)

    def evaluation(self) -> Any:
        loaders = [
            self._loader(samples(number, is_ragged=self._configuration.is_ragged, seed=2 + idx), f"evaluation {idx}")
            for idx, number in enumerate(self._configuration.num_eval_batches)
        ]
        return loaders[0] if len(loaders) == 1 else loaders or None

    def take_loading(self) -> dict[str, Any]:
        """How often loaders were iterated over and what samplers were told, since this was last asked."""
        loading = {"iterations": dict(self._num_iterations), "epochs": dict(self._told)}
        self._num_iterations, self._told = Counter(), defaultdict(list)
        return loading

    def _loader(self, dataset: Any, name: str, **arguments: Any) -> Any:
        configuration = self._configuration
        if configuration.batches == "guarded":
            arguments["collate_fn"] = guarded
        if configuration.loaders != "torch":
            make = OwnLoader if configuration.loaders == "own" else DrawingLoader
            in_order = DataLoader(dataset, batch_size=BATCH_SIZE, **{**arguments, "shuffle": False})
            with torch.random.fork_rng():  # beginning to iterate draws a number
                batches = list(in_order)
            return make(batches, lambda: self._num_iterations.update([name]))
        if configuration.samplers_know_epoch and not configuration.is_stream:
            arguments = {**arguments, "shuffle": None, "sampler": EpochSampler(dataset, self._told[name])}
        if configuration.has_generators and not isinstance(dataset, Stream):
            arguments = {**arguments, "generator": torch.Generator().manual_seed(len(name))}
            arguments |= {} if "sampler" in arguments else {"shuffle": True}
        return DataLoader(dataset, batch_size=BATCH_SIZE, **arguments)


def parts_of(batch: Any) -> tuple[Tensor, Tensor]:
    """Inputs and targets."""
    return (batch["inputs"], batch["targets"]) if isinstance(batch, Guarded) else (batch[0], batch[1])


def dyadic(value: Tensor) -> Tensor:
    """A value of few binary digits, so that sums of many are exact in single precision too."""
    return (value.detach() * 64).round() / 64


def make_module(framework: Framework, configuration: Configuration, loaders: Loaders) -> type:
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
            return self.head(self.hidden(parts_of(batch)[0]))

        def loss(self, batch: Any) -> Tensor:
            return self.scale * nn.functional.mse_loss(self(batch), parts_of(batch)[1])

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
            size = len(parts_of(batch)[0])
            return loss if configuration.returns == "tensor" else {"loss": loss, "size": size, "own": 2 * loss}

        def optimize(self, batch: Any) -> Tensor:
            def backward(optimizer: Any) -> Tensor:
                loss = self.loss(batch)
                optimizer.zero_grad()
                self.manual_backward(loss)
                return loss

            for optimizer in self.optimizers():
                if configuration.gives_closures:
                    loss = optimizer.step(closure=partial(backward, optimizer))
                else:
                    loss = backward(optimizer)
                    optimizer.step()
            if configuration.steps_schedulers == "batch":
                self.step_schedulers()
            return loss

        def step_schedulers(self) -> None:
            if configuration.scheduling is not None:
                for scheduler in self.lr_schedulers():
                    if configuration.scheduling.monitor is None:
                        scheduler.step()
                    else:
                        scheduler.step(1.0)

        def on_train_epoch_end(self) -> None:
            self.log("train_end", float(self.current_epoch))
            if configuration.logs_again:
                self.log("largest", float(self.current_epoch))
            if configuration.is_manual and configuration.steps_schedulers == "epoch":
                self.step_schedulers()

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
            if configuration.logs_again:
                self.log("val_sum", 0.5)

        def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
            return {"loss": self.evaluate("test", batch, batch_idx), "idx": batch_idx}

        def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
            return self(batch)

        def configure_optimizers(self) -> Any:
            if configuration.optimizer == "none":
                return None
            make = _OPTIMIZERS[configuration.optimizer]
            if configuration.is_manual:
                optimizers = [make(self.hidden.parameters()), make(self.head.parameters())]
            else:
                optimizers = [make(self.parameters())]
            return returned_optimizers(optimizers, configuration)

    if configuration.loaders_from == "module":
        provide_loaders(Network, configuration, loaders)
    return Network


def returned_optimizers(optimizers: list[Any], configuration: Configuration) -> Any:
    """The optimizers, with a scheduler each if there is to be one, in the form of the configuration."""
    scheduling = configuration.scheduling
    if scheduling is None:
        return optimizers if len(optimizers) > 1 else optimizers[0]
    schedulers: list[dict[str, Any]] = []
    for optimizer in optimizers:
        settings: dict[str, Any] = {"interval": scheduling.interval, "frequency": scheduling.frequency}
        if scheduling.monitor is None:
            scheduler: Any = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        else:
            scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.2)
            if not configuration.is_manual:
                settings |= {"monitor": scheduling.monitor, "strict": False}
        schedulers.append({"scheduler": scheduler, **settings})
    if configuration.optimizers_as == "lists" or len(optimizers) > 1:
        return optimizers, schedulers
    (optimizer,), (settings,) = optimizers, schedulers
    if configuration.optimizers_as == "tuple":
        return ({"optimizer": optimizer, "lr_scheduler": settings},)
    if configuration.optimizers_as == "flat":
        monitor = {} if scheduling.monitor is None else {"monitor": scheduling.monitor}
        return {"optimizer": optimizer, "lr_scheduler": settings["scheduler"], **monitor}
    return {"optimizer": optimizer, "lr_scheduler": settings}


def make_data(framework: Framework, configuration: Configuration, loaders: Loaders) -> type:
    """The class of the data module."""

    class Data(framework.data):  # type: ignore[misc, name-defined]
        pass

    provide_loaders(Data, configuration, loaders)
    return Data


def provide_loaders(owner: Any, configuration: Configuration, loaders: Loaders) -> None:
    """Give a class the methods that make loaders."""
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
            if configuration.callback_logs:
                self.log("watched_idx", batch_idx, on_step=True, on_epoch=True, batch_size=BATCH_SIZE)

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            if configuration.callback_logs:
                self.log_dict({"watched_epoch": float(trainer.current_epoch), "watched": 1.5})

        def on_validation_batch_end(
            self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
        ) -> None:
            if configuration.callback_logs:
                self.log("watched_val", 2.0 * batch_idx, batch_size=1)

    if configuration.stops_in is not None:

        def stopping(self: Any, trainer: Any, *arguments: Any, **keywords: Any) -> None:
            trainer.should_stop = True

        setattr(Watcher, configuration.stops_in, stopping)
    if configuration.raises_in is not None:

        def raising(self: Any, trainer: Any, *arguments: Any) -> None:
            if not trainer.sanity_checking:
                raise KeyError("on purpose")

        setattr(Watcher, configuration.raises_in, raising)
    return Watcher
