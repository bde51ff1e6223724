"""The smallest parts that the loops run on: a strategy, modules, a trainer and loaders made of plain torch."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from camshaft.hooks_core import Callback, StrategyDefaults
from camshaft.hooks_core.protocols import Strategy
from camshaft.loops import (
    FitLimits,
    FitLoop,
    LoaderSettings,
    OptimizationSettings,
    Run,
    SaveRequest,
    ValidationLoop,
    collect,
    run_verb,
)

NUM_FEATURES = 3
_SEEDING = threading.Lock()
Batch = tuple[Tensor, Tensor]


class BareStrategy(StrategyDefaults):
    """One CPU, and torch's own functions."""

    device = torch.device("cpu")
    global_rank = 0
    local_rank = 0
    world_size = 1

    def __init__(self) -> None:
        self.num_teardowns = 0

    def setup_module(self, module: nn.Module) -> nn.Module:
        return module

    def setup_optimizers(self, optimizers: Sequence[Optimizer]) -> list[Optimizer]:
        return list(optimizers)

    def batch_to_device(self, batch: Any) -> Any:
        return batch

    def wrap_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        return step

    def backward(self, loss: Tensor, differentiate: Callable[[Tensor], Any] | None = None) -> None:
        if differentiate is None:
            loss.backward()
        else:
            differentiate(loss)

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        return optimizer.step() if closure is None else optimizer.step(closure)

    def clip_gradients(self, optimizer: Optimizer, clip_val: float, algorithm: str) -> None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if algorithm == "norm":
            nn.utils.clip_grad_norm_(parameters, clip_val)
        else:
            nn.utils.clip_grad_value_(parameters, clip_val)

    def save_checkpoint(self, checkpoint: Mapping[str, Any], path: str) -> None:
        torch.save(dict(checkpoint), path)

    def load_checkpoint(self, path: str) -> dict[str, Any]:
        return torch.load(path, map_location="cpu", weights_only=True)

    def teardown(self) -> None:
        self.num_teardowns += 1


_: Strategy = BareStrategy()  # the protocol is all that it needs


class Net(nn.Module):
    """A regression whose steps are plain; what it is configured with is what `configure_optimizers` returns.

    Args:
        configure: Given the module, returns the optimizers.
        dropout: Share of the features that are dropped.
    """

    def __init__(self, configure: Callable[[Net], Any] | None = None, dropout: float = 0.0) -> None:
        super().__init__()
        self.layer = nn.Linear(NUM_FEATURES, 2)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(2, 1)
        object.__setattr__(self, "configure", configure or sgd)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.dropout(torch.tanh(self.layer(x))))

    def loss(self, batch: Batch) -> Tensor:
        x, y = batch
        return nn.functional.mse_loss(self(x), y)

    def training_step(self, batch: Batch, batch_idx: int) -> Any:
        return self.loss(batch)

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> Any:
        return self.loss(batch)

    def test_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> Any:
        return self.loss(batch)

    def predict_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> Any:
        return self(batch[0])

    def configure_optimizers(self) -> Any:
        return self.configure(self)


class StepsByHand(Net):
    """Steps its optimizer, and nothing else; its scheduler halves the rate at each `interval`."""

    automatic_optimization = False
    interval = "epoch"

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        self.optimizer.zero_grad()
        self.loss(batch).backward()
        self.optimizer.step()

    def configure_optimizers(self) -> Any:
        self.optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
        return [self.optimizer], [{"scheduler": StepLR(self.optimizer, 1, gamma=0.5), "interval": self.interval}]


def sgd(module: nn.Module) -> Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)


def adam(module: nn.Module) -> Optimizer:
    return torch.optim.Adam(module.parameters(), lr=0.05)


def seeded(make: Callable[..., Any] = Net, *arguments: Any, seed: int = 0, **keywords: Any) -> Any:
    """What `make` returns after seeding; ranks that are threads share the random numbers, so one after the other."""
    with _SEEDING:
        torch.manual_seed(seed)
        return make(*arguments, **keywords)


def make_batches(number: int, batch_size: int = 2, seed: int = 1) -> list[Batch]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(number, batch_size, NUM_FEATURES, generator=generator)
    return [(one, one.sum(dim=1, keepdim=True)) for one in x]


class Sized:
    """A loader of known length."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self.batches = list(batches)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


class Unsized:
    """A loader that does not tell its length."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self.batches = list(batches)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


class Stream(IterableDataset[Any]):
    """An iterable dataset over batches; `length`, if given, is what it promises."""

    def __init__(self, batches: Iterable[Any], length: int | None = None) -> None:
        self.batches = list(batches)
        if length is not None:
            self.__class__ = type("SizedStream", (Stream,), {"__len__": lambda self: length})

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


def make_loader(kind: str, batches: Sequence[Batch]) -> Any:
    """A loader over batches: "sized", "unsized", "dataloader", "stream" or "sized stream"."""
    if kind == "sized":
        return Sized(batches)
    if kind == "unsized":
        return Unsized(batches)
    if kind == "dataloader":
        if not batches:
            return DataLoader(TensorDataset(torch.empty(0, NUM_FEATURES), torch.empty(0, 1)))
        x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
        return DataLoader(TensorDataset(x, y), batch_size=len(batches[0][0]))
    length = len(batches) if kind == "sized stream" else None
    return DataLoader(Stream(batches, length), batch_size=None)


LOADER_KINDS = ("sized", "unsized", "dataloader", "stream", "sized stream")
SIZED_KINDS = ("sized", "dataloader", "sized stream")


class BareTrainer:
    """What callbacks get as the trainer: it runs verbs, and keeps checkpoints as bytes by path.

    Args:
        module: The module.
        callbacks: The callbacks.
        data: The data module.
        strategy: The strategy; None takes a new bare one.
        metrics: The metric sink.
        inference_mode: As the loops take it.
        arguments: Those of `FitLimits`, `OptimizationSettings` and `LoaderSettings`.

    Attributes:
        extend: Called with each run before its hooks are resolved, if anything.
    """

    extend: Callable[[Run], None] | None = None

    def __init__(
        self,
        module: nn.Module,
        *,
        callbacks: Sequence[Any] = (),
        data: Any = None,
        strategy: Any = None,
        metrics: Any = None,
        limit_val_batches: int | float = 1.0,
        inference_mode: bool = True,
        **arguments: Any,
    ) -> None:
        self.module, self.callbacks, self.data, self.metrics = module, list(callbacks), data, metrics
        self.strategy = strategy if strategy is not None else BareStrategy()
        of_loaders = {name: arguments.pop(name) for name in attrs.fields_dict(LoaderSettings) if name in arguments}
        names = attrs.fields_dict(OptimizationSettings)
        settings = {name: arguments.pop(name) for name in names if name in arguments}
        self.fit_loop = FitLoop(
            FitLimits(**{"num_sanity_val_steps": 0, **arguments}),
            OptimizationSettings(**settings),
            LoaderSettings(**of_loaders),
            ValidationLoop(limit_batches=limit_val_batches, inference_mode=inference_mode),
        )
        self.files: dict[str, bytes] = {}
        self.run: Run

    def fit(self, train: Any = None, val: Any = None, checkpoint: dict[str, Any] | None = None) -> BareTrainer:
        self.verb("fit", self.fit_loop, {"train": train, "validate": val}, checkpoint)
        return self

    def verb(self, verb: Any, loop: Any, loaders: Any, checkpoint: dict[str, Any] | None = None) -> Any:
        """Run any verb. `loaders` are a mapping from stages, or those of the verb."""
        self.run = Run(
            verb=verb,
            module=self.module,
            strategy=self.strategy,
            trainer=self,
            callbacks=self.callbacks,
            data=self.data,
            loaders=loaders if isinstance(loaders, Mapping) else {verb: loaders},
            metrics=self.metrics,
            checkpoint=checkpoint,
            write_checkpoint=self._write,
        )
        if self.extend is not None:
            self.extend(self.run)
        return run_verb(self.run, loop)

    def save_checkpoint(self, path: str, weights_only: bool = False, on_saved: Any = None) -> None:
        self.run.request_save(SaveRequest(path, weights_only, on_saved))

    def load(self, path: str) -> dict[str, Any]:
        """A checkpoint that was written, read as safely as files are."""
        return torch.load(io.BytesIO(self.files[path]), weights_only=True)

    @property
    def progress(self) -> Any:
        return self.fit_loop.progress

    @property
    def global_step(self) -> int:
        return self.fit_loop.progress.global_step

    def _write(self, request: SaveRequest) -> None:
        buffer = io.BytesIO()
        loop = self.fit_loop if self.run.verb == "fit" else None
        torch.save(collect(self.run, loop, weights_only=request.weights_only), buffer)
        self.files[request.path] = buffer.getvalue()


def hooked(_name: str = "Hooked", **hooks: Callable[..., Any]) -> Callback:
    """A callback with these hooks; each is called as `hook(trainer, module, ...)`."""
    return type(_name, (Callback,), {name: staticmethod(hook) for name, hook in hooks.items()})()


def weights(module: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in module.parameters()]


def same_bits(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
