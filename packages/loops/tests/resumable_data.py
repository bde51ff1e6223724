"""Training data of every kind that can go on inside an epoch, made of random numbers that are drawn on the way."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torchdata.nodes as nodes
from bare_parts import NUM_FEATURES
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, Sampler, WeightedRandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from camshaft.loops import CombinedLoader

Sample = tuple[Tensor, Tensor]


def sample(index: int) -> Sample:
    """The sample of an index, with noise from every generator."""
    x = torch.linspace(-1, 1, NUM_FEATURES) * (index + 1) / 10
    x = x + torch.randn(NUM_FEATURES) / 10 + random.random() / 10 + float(np.random.rand()) / 10
    return x, x.sum().reshape(1)


class Noisy(Dataset[Sample]):
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Sample:
        return sample(index)


class Counting(Noisy):
    """A dataset with a memory: how often it was asked, over all epochs."""

    num_asked = 0

    def __getitem__(self, index: int) -> Sample:
        self.num_asked += 1
        x, y = sample(index)
        return x + self.num_asked / 100, y

    def state_dict(self) -> dict[str, Any]:
        return {"num_asked": self.num_asked}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.num_asked = state["num_asked"]


class NoisyStream(IterableDataset[Sample]):
    """A stream that knows where it is, and shuffles by its own epoch number."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.epoch = 0
        self.position = 0

    def __iter__(self) -> Iterator[Sample]:
        order = torch.randperm(self.length, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        while self.position < self.length:
            self.position += 1
            yield sample(order[self.position - 1])
        self.epoch, self.position = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.position = state["epoch"], state["position"]


class PlainStream(IterableDataset[Sample]):
    """A stream without state and without random numbers."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[Sample]:
        for index in range(self.length):
            x = torch.linspace(-1, 1, NUM_FEATURES) * (index + 1) / 10
            yield x, x.sum().reshape(1)


class Walk(Sampler[int]):
    """A sampler with a state of its own, which goes on from epoch to epoch."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.at = 0
        self.num_given = 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        while self.num_given < self.length:
            self.at = (self.at * 5 + 3) % self.length
            self.num_given += 1
            yield self.at
        self.num_given = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "num_given": self.num_given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.num_given = state["at"], state["num_given"]


class ByEpoch(Sampler[int]):
    """A sampler that shuffles by the epoch that it is told."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.epoch = 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.epoch)
        return iter(torch.randperm(self.length, generator=generator).tolist())

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class Own:
    """A loader of the user's own with a state; it has a length or not."""

    def __init__(self, num_batches: int) -> None:
        self.num_batches = num_batches
        self.position = 0

    def __iter__(self) -> Iterator[Sample]:
        while self.position < self.num_batches:
            self.position += 1
            x, y = sample(self.position)
            yield x[None], y[None]
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


class OwnSized(Own):
    def __len__(self) -> int:
        return self.num_batches


class Itself:
    """A loader that is its own iterator and begins anew, in another order, whenever it is asked for one."""

    def __init__(self, num_batches: int) -> None:
        self.num_batches = num_batches
        self.num_begun = self.position = 0
        self.goes_on = self.is_over = False

    def __iter__(self) -> Iterator[Sample]:
        if not self.goes_on:
            self.num_begun, self.position = self.num_begun + 1, 0
        self.goes_on = self.is_over = False
        return self

    def __next__(self) -> Sample:
        if self.position == self.num_batches:
            self.is_over = True
            raise StopIteration
        self.position += 1
        x, y = sample(self.position * self.num_begun)
        return x[None], y[None]

    def state_dict(self) -> dict[str, Any]:
        return {"num_begun": self.num_begun, "position": self.position, "is_over": self.is_over}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.num_begun, self.position = state["num_begun"], state["position"]
        self.goes_on = not state["is_over"]


class ItselfSized(Itself):
    """The same with a length, beyond which it must not be read."""

    def __len__(self) -> int:
        return self.num_batches

    def __next__(self) -> Sample:
        assert self.position < self.num_batches, "read beyond its length"
        return super().__next__()


class BegunAnew(Itself):
    """The same with a length, but from its end it begins anew."""

    def __len__(self) -> int:
        return self.num_batches

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.goes_on = self.position < self.num_batches


class Stateless:
    """A loader without state, whose batches depend on nothing."""

    def __init__(self, num_batches: int) -> None:
        self.num_batches = num_batches

    def __iter__(self) -> Iterator[Sample]:
        for number in range(self.num_batches):
            x = torch.full((1, NUM_FEATURES), number / 10)
            yield x, x.sum(1, keepdim=True)


def node_loader(samples: Any) -> Any:
    """A loader of torchdata's nodes that gives batches of two."""

    def collated(samples: list[Sample]) -> Sample:
        xs, ys = zip(*samples, strict=True)
        return torch.stack(xs), torch.stack(ys)

    return nodes.Loader(nodes.Mapper(nodes.Batcher(samples, batch_size=2, drop_last=False), collated))


def make_data(kind: str, length: int, seed: int) -> Any:
    """A loader of a kind over some samples; `seed` is that of generators which the loader owns."""
    generator = torch.Generator().manual_seed(seed)
    match kind:
        case "shuffled":
            return DataLoader(Noisy(length), batch_size=2, shuffle=True)
        case "own generator":
            return DataLoader(Noisy(length), batch_size=2, shuffle=True, generator=generator, drop_last=True)
        case "weighted":
            weights = torch.arange(1, length + 1).tolist()
            return DataLoader(Noisy(length), batch_size=2, sampler=WeightedRandomSampler(weights, length))
        case "replacement":
            sampler = RandomSampler(Noisy(length), replacement=True, num_samples=length, generator=generator)
            return DataLoader(Noisy(length), batch_size=2, sampler=sampler)
        case "single samples":
            return DataLoader(Noisy(length), batch_size=None, shuffle=True)
        case "stateful sampler":
            return DataLoader(Noisy(length), batch_size=2, sampler=Walk(length))
        case "stateful dataset":
            return DataLoader(Counting(length), batch_size=2, shuffle=True)
        case "stream":
            return DataLoader(NoisyStream(length), batch_size=2)
        case "torchdata loader":
            return StatefulDataLoader(Noisy(length), batch_size=2, shuffle=True)
        case "torchdata nodes":
            return node_loader(nodes.Mapper(nodes.IterableWrapper(range(length)), sample))
        case "shuffled nodes":
            return node_loader(nodes.MapStyleWrapper(Noisy(length), RandomSampler(Noisy(length))))
        case "nodes with own generator":
            sampler = RandomSampler(Noisy(length), generator=generator)
            return node_loader(nodes.MapStyleWrapper(Noisy(length), sampler))
        case "nodes by epoch":
            return node_loader(nodes.MapStyleWrapper(Noisy(length), ByEpoch(length)))
        case "stream nodes":
            return node_loader(nodes.IterableWrapper(NoisyStream(length)))
        case "weighted nodes":
            sources = {name: nodes.MapStyleWrapper(Noisy(length), ByEpoch(length)) for name in "ab"}
            stop = nodes.StopCriteria.CYCLE_UNTIL_ALL_DATASETS_EXHAUSTED
            return node_loader(nodes.MultiNodeWeightedSampler(sources, {"a": 0.3, "b": 0.7}, stop, seed=1))
        case "own":
            return Own(length)
        case "own sized":
            return OwnSized(length)
        case "itself":
            return Itself(length)
        case "itself sized":
            return ItselfSized(length)
        case "itself begun anew":
            return BegunAnew(length)
        case "combined itself":
            return CombinedLoader([ItselfSized(length), ItselfSized(max(2, length - 3))])
        case "plain stream":
            return DataLoader(PlainStream(length), batch_size=2)
        case "plain torchdata stream":
            return StatefulDataLoader(PlainStream(length), batch_size=2)
        case "stateless":
            return Stateless(length)
        case "combined":
            short = DataLoader(Noisy(max(2, length - 3)), batch_size=2, shuffle=True, generator=generator)
            return CombinedLoader([DataLoader(Noisy(length), batch_size=2, shuffle=True), [short]])
        case "combined max":
            loaders = {"a": Own(length), "b": DataLoader(NoisyStream(length), batch_size=2)}
            return CombinedLoader(loaders, "max_size")
        case "combined sequence":
            short = DataLoader(Noisy(max(2, length - 3)), batch_size=2, shuffle=True, generator=generator)
            return CombinedLoader([short, {"own": Own(2), "long": make_data("shuffled", length, seed)}], "sequential")
        case "workers":
            return DataLoader(Noisy(length), batch_size=2, shuffle=True, num_workers=2)
        case "stream workers":
            return DataLoader(NoisyStream(length), batch_size=2, num_workers=1)
        case "persistent workers":
            return DataLoader(Counting(length), batch_size=1, shuffle=True, num_workers=2, persistent_workers=True)
    raise LookupError(kind)


NODES = (
    *("torchdata nodes", "shuffled nodes", "nodes with own generator", "nodes by epoch", "stream nodes"),
    "weighted nodes",
)
KINDS = (
    *("shuffled", "own generator", "weighted", "replacement", "single samples", "stateful sampler"),
    *("stateful dataset", "stream", "torchdata loader", *NODES, "own", "own sized", "combined"),
    *("combined max", "combined sequence", "itself", "itself sized", "itself begun anew", "combined itself"),
)
GOING_ON = ("stateful sampler", "stream", "own", "own sized", "combined max", "combined sequence", "stream nodes")
"""Those that go on with the rest of the data in the epoch after one that a limit cut short."""

FAST_FORWARDED = ("plain stream", "plain torchdata stream", "stateless")
WITH_WORKERS = ("workers", "stream workers", "persistent workers")
