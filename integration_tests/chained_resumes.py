"""Runs that are stopped and resumed three times, while one thing about them is changed, there and back and there.

torchrun --nproc-per-node N chained_resumes.py FOLDER        # reports the `outcomes` of rows on strategies, by name
torchrun --nproc-per-node N chained_resumes.py FOLDER PART   # makes the parts of that index that have N processes
"""

from __future__ import annotations

import os
import random
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import torch
from launching import report
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR
from torch.utils.data import DataLoader, TensorDataset

from camshaft.callbacks import EarlyStopping
from camshaft.hooks_core import Callback
from camshaft.loops.state.random_state import are_same
from camshaft.strategies import ShardedStrategy, SingleDeviceStrategy, read_checkpoint
from camshaft.trainer import Trainer, TrainingModule

POINTS: dict[str, list[tuple[int, int]]] = {
    "at an epoch's end": [(0, -1), (1, -1), (2, -1)],
    "inside an epoch": [(0, 5), (1, 5), (3, 5)],
    "inside a window": [(0, 6), (1, 3), (3, 7)],
}
"""By name, the epochs and batches (-1 is the last) after which a run is stopped; three batches make an update."""


class Net(TrainingModule):
    """A network that draws random numbers and has buffers, with the optimizers that a test asks for."""

    def __init__(self, configure: Callable[[Any], Any], *, is_plain: bool) -> None:
        super().__init__()
        between = [nn.Tanh()] if is_plain else [nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.3)]
        self.net = nn.Sequential(nn.Linear(3, 8), *between, nn.Linear(8, 1))
        self._configure = configure
        self.seen: list[tuple[int, int, list[int]]] = []

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        inputs, targets, samples = batch
        self.seen.append((self.trainer.current_epoch, batch_idx, samples.tolist()))
        loss = nn.functional.mse_loss(self.net(inputs).float(), targets.float())
        self.log("loss", loss, on_epoch=True)
        return loss

    def configure_sharded_model(self) -> None:
        mesh = self.device_mesh
        if mesh is not None and mesh["tensor_parallel"].size() > 1 and not isinstance(self.net[0].weight, DTensor):
            plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
            parallelize_module(self.net, mesh["tensor_parallel"], plan)

    def configure_optimizers(self) -> Any:
        return self._configure(self.parameters())


class StopAfter(Callback):
    """Saves after one batch, and stops."""

    def __init__(self, epoch: int, batch_idx: int, path: Path) -> None:
        self._place, self._path = (epoch, batch_idx), path

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        epoch, last_idx = self._place
        if trainer.current_epoch == epoch and (trainer.is_last_batch if last_idx == -1 else batch_idx == last_idx):
            trainer.save_checkpoint(self._path)
            trainer.should_stop = True


def adamw(parameters: Any, **settings: Any) -> Any:
    """The optimizer of runs that ask for no other."""
    return torch.optim.AdamW(parameters, **{"lr": 0.01, **settings})


def scheduling(make: Callable[[Any], Any], interval: str = "step") -> dict[str, Any]:
    """Arguments of `fit`, of an optimizer with a scheduler."""

    def configure(parameters: Any) -> Any:
        optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": make(optimizer), "interval": interval}}

    return {"configure": configure}


STEP_LR = partial(StepLR, step_size=4, gamma=0.9)


def fit(
    path: Path,
    *,
    stop: tuple[int, int] | None,
    resume: Path | None,
    configure: Callable[[Any], Any] = adamw,
    seed: int = 0,
    num_samples: int = 40,
    batch_size: int = 4,
    num_workers: int = 0,
    is_plain: bool = False,
    callbacks: tuple[Callable[[], Any], ...] = (),
    **options: Any,
) -> tuple[Net, Trainer]:
    """Train until a batch or to the end, and save what came of it."""
    random.seed(seed)
    torch.manual_seed(seed)
    module = Net(configure, is_plain=is_plain)
    inputs = torch.randn(num_samples, 3, generator=torch.Generator().manual_seed(3))
    dataset = TensorDataset(inputs, inputs.sum(1, keepdim=True), torch.arange(num_samples))
    loader = DataLoader(dataset, batch_size=batch_size, shuffle=True, num_workers=num_workers)
    defaults: dict[str, Any] = {"max_epochs": 4, "accumulate_grad_batches": 3}
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    own = [make() for make in callbacks] + ([] if stop is None else [StopAfter(*stop, path)])
    trainer = Trainer(**{**quiet, **defaults, **options}, accelerator="cpu", callbacks=own, agree_every_n_batches=1)
    trainer.fit(module, loader, ckpt_path=resume)
    if stop is None:
        trainer.save_checkpoint(path)
    return module, trainer


@attrs.frozen
class Result:
    """What came of a run: the samples of each batch, its last checkpoint, and what was told in each of its parts."""

    seen: list[Any]
    checkpoint: dict[str, Any]
    told: list[list[str]]


def run(folder: Path, parts: list[dict[str, Any]], stops: list[tuple[int, int]]) -> Result:
    """Train in parts, each with its arguments of `fit`, which but for the last are stopped and resumed by the next."""
    path: Path | None = None
    seen: list[Any] = []
    told: list[list[str]] = []
    for part_idx, (options, stop) in enumerate(zip(parts, [*stops, None], strict=True)):
        resume, path = path, folder / f"{part_idx}.ckpt"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            module, _ = fit(path, stop=stop, resume=resume, **options)
        seen += module.seen
        told.append([text for text in map(str, (one.message for one in caught)) if "checkpoint" in text])
    assert path is not None
    return Result(seen, read_checkpoint(path), told)


@attrs.frozen
class Row:
    """A row of the table.

    Attributes:
        parts: Arguments of `fit`, of the parts of a run.
        whole: Those of the run without a stop; None takes the first part's.
    """

    parts: list[dict[str, Any]]
    whole: dict[str, Any] | None = None


def changing(before: dict[str, Any], after: dict[str, Any], **facts: Any) -> Row:
    """The row of a run that is given something after its first and third stop, and something else otherwise."""
    return Row([before, before | after] * 2, **facts)


def outcomes(row: Row, folder: Path) -> dict[str, str]:
    """Return what becomes of a run that is stopped and resumed, by the points where it is.

    "exact": its bits are those of the run without stops. "kept": likewise, and warnings of the second and the fourth
    part say that what they were given otherwise does not count. "told": likewise, with other warnings. "close": equal
    up to rounding. "new": what was given otherwise counts, and each epoch has each sample once. "refused": an error
    says so. Anything else is what is wrong.
    """
    whole = run(folder, [row.parts[0] if row.whole is None else row.whole], [])
    return {point: _outcome(row, stops, whole, folder) for point, stops in POINTS.items()}


def _outcome(row: Row, stops: list[tuple[int, int]], whole: Result, folder: Path) -> str:
    try:
        parts = run(folder, row.parts, stops[: len(row.parts) - 1])
    except ValueError as error:
        return "refused" if "must be" in str(error) else f"ValueError: {error}"
    warned = [bool(texts) for texts in parts.told]
    if any(warned) and warned != [False, True, False, True]:
        return f"told: {parts.told}"
    if are_same(facts_of(parts), facts_of(whole)):
        counts = all("those of the checkpoint count" in text for texts in parts.told for text in texts)
        return "exact" if not any(warned) else "kept" if counts else "told"
    if parts.seen == whole.seen and are_close(parts.checkpoint["state_dict"], whole.checkpoint["state_dict"]):
        return "close"
    is_limited = any("limit_train_batches" in part for part in row.parts)
    is_new = not any(warned) and is_complete(parts.seen, is_limited=is_limited)
    return "new" if is_new else f"samples {parts.seen}, told {parts.told}"


def facts_of(result: Result) -> dict[str, Any]:
    """What is the same where a run ends with the same bits."""
    checkpoint = result.checkpoint
    facts = {key: checkpoint[key] for key in ("state_dict", "optimizer_states", "lr_schedulers", "rng")}
    progress = {name: value for name, value in checkpoint["loops"]["fit"].items() if name != "elapsed_seconds"}
    return {**facts, "progress": progress, "metrics": checkpoint["fit"]["metrics"], "seen": result.seen}


def are_close(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Whether weights are equal up to rounding."""
    return all(torch.allclose(one[name].float(), other[name].float(), atol=1e-6) for name in other)


def is_complete(seen: list[Any], *, is_limited: bool, most: int = 1) -> bool:
    """Whether no epoch has a sample twice, and, unless it is limited, each has all.

    Up to as many processes as `most`, less one, may be given samples to fill their last step.
    """
    epochs = {epoch for epoch, *_ in seen}
    samples = [[sample for one, _, batch in seen if one == epoch for sample in batch] for epoch in epochs]
    if is_limited:
        return all(len(of_epoch) == len(set(of_epoch)) for of_epoch in samples)
    num_all = [1 + max(of_epoch) for of_epoch in samples]
    once = [sorted(of_epoch[:num]) == list(range(num)) for of_epoch, num in zip(samples, num_all, strict=True)]
    return all(once) and all(len(one) - num < most for one, num in zip(samples, num_all, strict=True))


def stops_by_loss() -> Any:
    """A callback with a state."""
    return EarlyStopping("loss", patience=1000, check_on_train_epoch_end=True)


def two_optimizers(parameters: Any) -> Any:
    """Two in place of one."""
    first, *others = parameters
    return [torch.optim.SGD([first], lr=0.1), torch.optim.SGD(others, lr=0.1)]


def in_reverse(parameters: Any) -> Any:
    """The usual one, with its parameters in another order."""
    return adamw(list(parameters)[::-1])


SGD = partial(torch.optim.SGD, lr=0.1)
LIMITED = {"limit_train_batches": 9, "num_samples": 80, "is_plain": True}
PRECISIONS = ("32-true", "16-mixed", "bf16-mixed", "bf16-true")

ROWS: dict[str, Row] = {
    "nothing": changing({}, {}),
    "`num_workers`": changing({}, {"num_workers": 2}),
    "`batch_size`": changing({"is_plain": True}, {"batch_size": 5}),
    "`batch_size` under `limit_train_batches`": changing(LIMITED, {"batch_size": 5}),
    "number of samples": changing({}, {"num_samples": 38}),
    "`limit_train_batches`": changing({}, {"limit_train_batches": 0.9}),
    "`accumulate_grad_batches`": changing({}, {"accumulate_grad_batches": 2}),
    "`precision`": Row([{"configure": SGD, "precision": name} for name in PRECISIONS]),
    "settings of an optimizer": changing({}, {"configure": partial(adamw, lr=0.5, weight_decay=0.5)}),
    "class of an optimizer": changing({}, {"configure": SGD}),
    "number of optimizers": changing({"configure": SGD}, {"configure": two_optimizers}),
    "order of an optimizer's parameters": changing({}, {"configure": in_reverse}),
    "settings of a scheduler": changing(scheduling(STEP_LR), scheduling(partial(STEP_LR, gamma=0.5))),
    "`interval` of a scheduler": changing(scheduling(STEP_LR), scheduling(STEP_LR, interval="epoch")),
    "class of a scheduler": changing(scheduling(STEP_LR), scheduling(partial(CosineAnnealingLR, T_max=16))),
    "number of schedulers": changing(scheduling(STEP_LR), {"configure": SGD}),
    "`gradient_clip_val`": changing({}, {"gradient_clip_val": 0.1}),
    "`compile`": changing({}, {"compile": {"backend": "eager"}}),
    "`save_asynchronously`": changing({}, {"strategy": SingleDeviceStrategy("cpu", save_asynchronously=True)}),
    "`max_epochs`": changing({"max_epochs": 9}, {"max_epochs": 4}, whole={"max_epochs": 4}),
    "callbacks that are added": changing({}, {"callbacks": (Callback,)}),
    "callbacks that are left out": changing({"callbacks": (stops_by_loss,)}, {"callbacks": ()}),
    "seed": changing({}, {"seed": 1}),
}
"""By what is changed, runs of one process."""


def on(strategy: str, num_processes: int) -> dict[str, Any]:
    """Arguments of a part on a strategy."""
    shared = {"strategy": strategy, "devices": num_processes, "batch_size": 4 // num_processes}
    return shared | {"is_plain": num_processes > 1}


RANKS_ROWS: dict[int, dict[str, Row]] = {
    1: {"`strategy`, of one process": Row([on(name, 1) for name in ("single_device", "ddp", "sharded", "ddp")])},
    2: {
        "DDP to sharded": changing(on("ddp", 2), on("sharded", 2)),
        "sharded to DDP": Row([on("sharded", 2), on("ddp", 2)]),
    },
}
"""By the number of processes, runs that launched ones make."""


@attrs.frozen
class Part:
    """A part of a run that is launched by itself.

    Attributes:
        num_processes: Number of processes.
        num_data_ranks: How many of them have data of their own.
        options: Arguments of `fit`.
    """

    num_processes: int
    num_data_ranks: int
    options: dict[str, Any]


def over(strategy: Any, num_processes: int, batch_size: int | None = None, num_data_ranks: int | None = None) -> Part:
    """A part whose steps take four samples, unless the batch size is given; a function makes its strategy."""
    num_data_ranks = num_data_ranks or num_processes
    options = {"strategy": strategy, "devices": num_processes, "batch_size": batch_size or 4 // num_data_ranks}
    return Part(num_processes, num_data_ranks, options | {"is_plain": True})


SINGLE, DDP, SHARDED = over("single_device", 1), over("ddp", 2), over("sharded", 2)
MOVED_ROWS: dict[str, list[Part]] = {
    "number of processes": [SINGLE, DDP, over("ddp", 1), over("ddp", 4)],
    "number of processes, but not `batch_size`": [over("ddp", number, batch_size=2) for number in (1, 3, 2, 1)],
    "one process to sharded": [SINGLE, SHARDED, SINGLE, SHARDED],
    "DDP to sharded to one process": [DDP, SHARDED, SINGLE, DDP],
    "sharded to DDP to one process": [SHARDED, DDP, SINGLE, SHARDED],
    "`tensor_parallel`": [SHARDED, over(partial(ShardedStrategy, tensor_parallel=2), 2, num_data_ranks=1)] * 2,
}
"""By what is changed, parts of which each is launched by itself."""

WHOLE = -1
"""The index of the part that is not stopped."""


class SaveWhatWasLoaded(Callback):
    """Saves before the first batch."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def on_train_start(self, trainer: Any, module: Any) -> None:
        trainer.save_checkpoint(self._path)


def make_parts(folder: Path, part_idx: int) -> None:
    """Make the parts of all moved rows with an index that have as many processes as this launch. Collective."""
    for name, parts in MOVED_ROWS.items():
        part = parts[max(part_idx, 0)]
        if part.num_processes == int(os.environ.get("WORLD_SIZE", 1)):
            for point, stops in POINTS.items():
                _make_part(folder / f"{name}, {point}", part_idx, part, [*stops, None])


def _make_part(folder: Path, part_idx: int, part: Part, stops: list[tuple[int, int] | None]) -> None:
    folder.mkdir(exist_ok=True)
    resume = folder / f"{part_idx - 1}.ckpt" if part_idx > 0 else None
    if resume is not None and not resume.exists():  # refused before
        return
    options, stop = dict(part.options), None if part_idx == WHOLE else stops[part_idx]
    if callable(options["strategy"]):
        options["strategy"] = options["strategy"]()
    saving = partial(SaveWhatWasLoaded, folder / f"{part_idx} loaded.ckpt")
    found = folder / f"{part_idx} of {os.environ.get('RANK', 0)}.pt"
    try:
        module, _ = fit(folder / f"{part_idx}.ckpt", stop=stop, resume=resume, callbacks=(saving,), **options)
    except ValueError as error:
        torch.save(str(error), found)
    else:
        torch.save(module.seen, found)


def outcomes_of_moves(name: str, folder: Path) -> dict[str, str]:
    """Return what became of a moved row whose parts were made, by the points where it was stopped; see `outcomes`.

    Where it went on, each part began with the weights and optimizer states that the one before had saved, bit by bit,
    and the last one ended with the random numbers of the run without stops.
    """
    return {point: _outcome_of_moves(MOVED_ROWS[name], folder / f"{name}, {point}") for point in POINTS}


def _outcome_of_moves(parts: list[Part], folder: Path) -> str:
    seen: list[Any] = []
    for part_idx, part in enumerate(parts):
        of_ranks = [torch.load(folder / f"{part_idx} of {rank}.pt") for rank in range(part.num_processes)]
        if isinstance(of_ranks[0], str):
            return "refused" if all("must be" in error for error in of_ranks) else f"{of_ranks}"
        seen += together(of_ranks[: part.num_data_ranks])
        if part_idx:
            before, loaded = (folder / f"{name}.ckpt" for name in (part_idx - 1, f"{part_idx} loaded"))
            saved, loaded_again = read_checkpoint(before), read_checkpoint(loaded)
            for key in ("state_dict", "optimizer_states"):
                if not are_same(saved[key], loaded_again[key]):
                    return f"part {part_idx} did not begin with the {key} that were saved"
    whole, last = (read_checkpoint(folder / f"{idx}.ckpt") for idx in (WHOLE, len(parts) - 1))
    if not are_same(whole["rng"], last["rng"]):
        return "other random numbers"
    of_ranks = [torch.load(folder / f"{WHOLE} of {rank}.pt") for rank in range(parts[0].num_data_ranks)]
    if seen == together(of_ranks) and are_close(last["state_dict"], whole["state_dict"]):
        return "close"
    return "new" if is_complete(seen, is_limited=False, most=max(part.num_data_ranks for part in parts)) else f"{seen}"


def together(of_ranks: list[list[Any]]) -> list[Any]:
    """Return the samples of each step of all ranks, in their order: one of each rank in turn."""
    return [
        (*of_step[0][:2], [one for of_turn in zip(*[batch for *_, batch in of_step], strict=True) for one in of_turn])
        for of_step in zip(*of_ranks, strict=True)
    ]


if __name__ == "__main__":
    where = Path(sys.argv[1])
    if len(sys.argv) > 2:
        make_parts(where, int(sys.argv[2]))
    else:
        for name, row in RANKS_ROWS[int(os.environ["WORLD_SIZE"])].items():
            report(name, outcomes(row, where))
