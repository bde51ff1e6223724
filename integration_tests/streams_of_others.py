"""Loaders over data that other libraries and users stream, and what becomes of runs on them that are stopped.

torchrun --nproc-per-node 2 streams_of_others.py FOLDER                  # reports `outcome` of each kind
torchrun --nproc-per-node N streams_of_others.py FOLDER STOP SAVE RESUME  # reports the samples of a part on MosaicML's
"""

from __future__ import annotations

import copy
import importlib.util
import io
import json
import os
import sys
import tarfile
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torchdata.nodes as nodes
from launching import report
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from camshaft.loops import CombinedLoader
from camshaft.trainer import Trainer, TrainingModule

NUM_SAMPLES = 24


class Sticky(IterableDataset[Tensor]):
    """A stream whose loaded state stays: every iteration begins where it says."""

    def __init__(self, length: int = NUM_SAMPLES) -> None:
        self.length = length
        self.first = self.position = 0

    def __iter__(self) -> Iterator[Tensor]:
        for sample in range(self.first, self.length):
            self.position = sample + 1
            yield torch.tensor(sample)

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.first = self.position = state["position"]


class Counting(Sticky):
    """A stream that keeps its own count of epochs, and its order by that."""

    epoch = 0

    def __iter__(self) -> Iterator[Tensor]:
        order = torch.randperm(self.length, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        while self.position < self.length:
            self.position += 1
            yield torch.tensor(order[self.position - 1])
        self.epoch, self.position = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position, self.epoch = state["position"], state["epoch"]


class Buffered(Sticky):
    """A stream that shuffles within a buffer, which its state leaves out, by the epoch that it is told."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Tensor]:
        generator, buffer = torch.Generator().manual_seed(self.epoch), []
        for sample in super().__iter__():
            buffer.append(sample)
            if len(buffer) == 8:
                yield buffer.pop(int(torch.randint(8, (), generator=generator)))
        yield from buffer


class OwnLoader:
    """A loader of the user's own whose loaded state stays."""

    def __init__(self) -> None:
        self.first = self.position = 0

    def __iter__(self) -> Iterator[Tensor]:
        for batch_idx in range(self.first, NUM_SAMPLES // 2):
            self.position = batch_idx + 1
            yield torch.tensor([2 * batch_idx, 2 * batch_idx + 1])

    state_dict = Sticky.state_dict
    load_state_dict = Sticky.load_state_dict


def _hugging_face(change: Callable[[Any], Any] = lambda stream: stream, *, num_shards: int = 4, shift: int = 0) -> Any:
    import datasets

    table = datasets.Dataset.from_dict({"x": list(range(shift, shift + NUM_SAMPLES))})
    return change(table.to_iterable_dataset(num_shards=num_shards)).with_format("torch")


def _split(stream: Any, rank: int, world_size: int) -> Any:
    from datasets.distributed import split_dataset_by_node

    return split_dataset_by_node(stream, rank, world_size) if world_size > 1 else stream


def _interleaved() -> Any:
    import datasets

    streams = [_hugging_face(num_shards=2), _hugging_face(num_shards=2, shift=100)]
    return datasets.interleave_datasets(streams, [0.7, 0.3], seed=1).with_format("torch")


def _web_dataset(folder: Path) -> Any:
    import webdataset

    paths = []
    for shard_idx in range(4):
        paths.append(folder / f"{shard_idx}.tar")
        if not paths[-1].exists():
            with tarfile.open(paths[-1], "w") as tar:
                for number in range(shard_idx * 6, shard_idx * 6 + 6):
                    content = json.dumps({"x": number}).encode()
                    member = tarfile.TarInfo(f"{number:03}.json")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
    stream = webdataset.WebDataset(
        [str(path) for path in paths], nodesplitter=webdataset.split_by_node, shardshuffle=False
    )
    return stream.decode().map(lambda sample: torch.tensor(sample["json"]["x"]))


def _of_mosaicml(folder: Path, workers: int) -> Any:
    for name in ("multimodal", "text", "vision"):  # datasets of its own, of which some need a matching torchvision
        sys.modules.setdefault(f"streaming.{name}", types.ModuleType(name))
    from streaming import MDSWriter, StreamingDataLoader, StreamingDataset

    samples = folder / "mds"
    if not samples.exists() and os.environ.get("RANK", "0") == "0":
        with MDSWriter(out=str(samples), columns={"x": "int"}, size_limit=200) as writer:
            for number in range(NUM_SAMPLES):
                writer.write({"x": number})
    stream = StreamingDataset(local=str(samples), shuffle=True, batch_size=2, num_canonical_nodes=1)
    return StreamingDataLoader(stream, batch_size=2, num_workers=workers)


def make_loader(kind: str, workers: int, rank: int, world_size: int, folder: Path) -> Any:
    """Return the loader of a kind, as its library's documentation makes it."""

    torch.manual_seed(7)  # torchdata's loader draws when it is made

    def loader(dataset: Any, make: Any = DataLoader, **options: Any) -> Any:
        return make(dataset, batch_size=2, num_workers=workers, **options)

    def shared(stream: Any) -> Any:
        return _split(stream, rank, world_size)

    match kind:
        case "datasets, map":
            import datasets

            table = datasets.Dataset.from_dict({"x": list(range(NUM_SAMPLES))}).with_format("torch")
            return loader(table, shuffle=True)
        case "datasets, stream":
            return loader(shared(_hugging_face()))
        case "datasets, stream of mapped batches":
            return loader(shared(_hugging_face(lambda one: one.map(lambda rows: rows, batched=True, batch_size=5))))
        case "datasets, shuffled stream":
            return loader(shared(_hugging_face(lambda one: one.shuffle(seed=3, buffer_size=6))))
        case "datasets, interleaved":
            return loader(shared(_interleaved()))
        case "datasets in a StatefulDataLoader":
            return loader(shared(_hugging_face()), StatefulDataLoader)
        case "datasets in a CombinedLoader":
            return CombinedLoader([loader(shared(_hugging_face())), loader(shared(_hugging_face(shift=100)))])
        case "datasets, drawn by weights":
            streams = [loader(shared(_hugging_face())), loader(shared(_hugging_face(shift=100)))]
            return CombinedLoader(streams, "weighted", weights=[0.3, 0.7])
        case "webdataset":
            return loader(_web_dataset(folder))
        case "MosaicML's StreamingDataset":
            return _of_mosaicml(folder, workers)
        case "torchdata.nodes":
            source = nodes.IterableWrapper(range(rank, NUM_SAMPLES, world_size))
            return nodes.Loader(nodes.Mapper(nodes.Batcher(source, 2), torch.tensor))
        case "torchdata.nodes of a sticky stream":
            source = nodes.IterableWrapper(Sticky())
            return nodes.Loader(nodes.Mapper(nodes.Batcher(source, 2), torch.stack))
        case "StatefulDataLoader":
            return loader(torch.arange(NUM_SAMPLES), StatefulDataLoader, shuffle=True)
        case "StatefulDataLoader of a sticky stream":
            return loader(Sticky(), StatefulDataLoader)
        case "sticky stream":
            return loader(Sticky())
        case "counting stream":
            return loader(Counting())
        case "buffered stream":
            return loader(Buffered())
        case "two sticky streams in a CombinedLoader":
            return CombinedLoader({"a": loader(Sticky()), "b": loader(Sticky(10))})
        case "own sticky loader":
            return OwnLoader()
    raise LookupError(kind)


KINDS = (
    *("datasets, map", "datasets, stream", "datasets, stream of mapped batches", "datasets, shuffled stream"),
    *("datasets, interleaved", "datasets in a StatefulDataLoader", "datasets in a CombinedLoader"),
    *("datasets, drawn by weights", "webdataset"),
    "MosaicML's StreamingDataset",
    *("torchdata.nodes", "torchdata.nodes of a sticky stream", "StatefulDataLoader"),
    *("StatefulDataLoader of a sticky stream", "sticky stream", "counting stream", "buffered stream"),
    *("two sticky streams in a CombinedLoader", "own sticky loader"),
)


def can_be_read(kind: str) -> bool:
    """Whether the library of a kind is there: MosaicML's is installed without its requirements, in `integration`."""
    return not kind.startswith("MosaicML") or importlib.util.find_spec("streaming") is not None


class Noting(TrainingModule):
    """A module that notes the samples of each batch, with its epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(1, 1)
        self.seen: list[Any] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.seen.append((self.trainer.current_epoch, batch_idx, plain(batch)))
        return self.net(torch.ones(1, 1)).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def plain(batch: Any) -> Any:
    """Return a batch with its tensors as lists."""
    if isinstance(batch, dict):
        return {key: plain(value) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [plain(value) for value in batch]
    return batch.tolist() if isinstance(batch, Tensor) else copy.copy(batch)


def fit(loader: Any, *, stop: int, save: Path | None = None, resume: Path | None = None, **options: Any) -> list[Any]:
    """Train up to a step, in three epochs at most; return the samples of each batch that was trained on."""
    torch.manual_seed(7)
    module = Noting()
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(max_epochs=3, max_steps=stop, accelerator="cpu", enable_model_summary=False, **quiet, **options)
    trainer.fit(module, loader, ckpt_path=resume)
    if save is not None:
        trainer.save_checkpoint(save)
    for leaf in getattr(loader, "flattened", [loader]):  # as garbage their workers would take ten seconds to end
        if hasattr(getattr(leaf, "_iterator", None), "_shutdown_workers"):
            leaf._iterator._shutdown_workers()
    return module.seen


STOPS = ("inside", "at the end", "in the second", "twice")


def outcome(
    kind: str, folder: Path, *, workers: int = 0, rank: int = 0, world_size: int = 1, stops: Sequence[str] = STOPS
) -> dict[str, str]:
    """Return what becomes of runs that are stopped, by the place of the stop.

    "exact": the batches are those of the run that was not stopped. "fast-forward": refused, unless what was used is
    read again, and exact then. Anything else is the error, or "differs".
    """
    options: dict[str, Any] = {} if world_size == 1 else {"strategy": "ddp", "devices": world_size}

    def make() -> Any:
        return make_loader(kind, workers, rank, world_size, folder)

    def resumed(steps: list[int], **choice: Any) -> str:
        seen: list[Any] = []
        path = None
        for stop in [*steps, -1]:
            saved = folder / f"{kind}, {stop} of {steps}.ckpt"
            try:
                seen += fit(make(), stop=stop, save=saved, resume=path, **options, **choice)
            except ValueError as error:
                if choice or "to resume inside an epoch" not in str(error):
                    return f"{type(error).__name__}: {error}"
                again = resumed(steps, stateless_loaders="fast_forward")
                return "fast-forward" if again == "exact" else again
            path = saved
        return "exact" if seen == whole else "differs"

    whole = fit(make(), stop=-1, **options)
    length = sum(epoch == 0 for epoch, *_ in whole)
    steps = dict(zip(STOPS, ([length // 2 - 1], [length], [length + 3], [3, length + 2]), strict=True))
    return {stop: resumed(steps[stop]) for stop in stops}


def part_on_mosaicml(folder: Path, stop: int, save: str, resume: str) -> list[Any]:
    """Return the samples of a part of a run on as many processes as this launch has. Collective."""
    num_ranks = int(os.environ["WORLD_SIZE"])
    options: dict[str, Any] = {} if num_ranks == 1 else {"strategy": "ddp", "devices": num_ranks}
    before = folder / resume if resume else None
    return fit(_of_mosaicml(folder, 0), stop=stop, save=folder / save, resume=before, **options)


if __name__ == "__main__":
    where, *part = sys.argv[1:]
    if part:
        report("seen", part_on_mosaicml(Path(where), int(part[0]), *part[1:]))
    else:
        for kind in filter(can_be_read, KINDS):
            options = {"rank": int(os.environ["RANK"]), "world_size": 2, "stops": STOPS[1::2]}
            report(kind, outcome(kind, Path(where), **options))
