"""Short trainings that save in each way, and what they tell of it."""

from __future__ import annotations

import hashlib
import os
import signal
import warnings
from collections.abc import Callable
from typing import Any, Literal

import attrs
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader

from camshaft.callbacks import CSVLogger, ModelCheckpoint, PreemptionCheckpoint
from camshaft.forensics import RunLedger
from camshaft.hooks_core import Callback
from camshaft.hooks_core.support.remote_files import join
from camshaft.strategies import DDPStrategy, ShardedStrategy, SingleDeviceStrategy, read_checkpoint
from camshaft.trainer import Trainer, TrainingModule, seed_everything

SCORES = (3.0, 1.0, 2.0, 0.5, 4.0)
"""By epoch: the two best ones change, and one epoch is not kept."""


class Net(TrainingModule):
    """Draws random numbers, so that only an exact resume ends with the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.3), nn.Linear(3, 1))

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss = (self.layers(batch) - torch.rand(1)).pow(2).mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.log("score", SCORES[self.current_epoch], sync_dist=True)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.05, momentum=0.9)


class LeaveAfter(Callback):
    """Sends the last rank the signal of preemption after a batch of an epoch."""

    def __init__(self, epoch: int, batch_idx: int) -> None:
        self.place = epoch, batch_idx

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        is_last_rank = trainer.global_rank == trainer.world_size - 1
        if is_last_rank and (trainer.current_epoch, batch_idx) == self.place:
            os.kill(os.getpid(), signal.SIGTERM)


@attrs.frozen
class Scene:
    """A way of saving.

    Attributes:
        saving: Makes the callbacks for a folder.
        strategy: "single", "ddp" or "sharded".
        num_ranks: Number of processes.
        store: Protocol of the store that has the files; None for a disk.
        has_logs: Whether there is a ledger and a CSV file.
        last: The name of "last", where it is there after each save.
        leaves_after: Epoch and batch after which the run is preempted; it then ends by resuming.
        accumulate: Length of a window.
        timeout_seconds: Within which all ranks end after one has.
    """

    saving: Callable[[str], list[Callback]]
    strategy: Literal["single", "ddp", "sharded"] = "single"
    num_ranks: int = 1
    store: Literal["memory", "s3"] | None = None
    is_asynchronous: bool = False
    has_logs: bool = False
    last: str | None = "last.ckpt"
    leaves_after: tuple[int, int] | None = None
    accumulate: int = 1
    max_epochs: int = len(SCORES)
    timeout_seconds: float = 60


def _best(folder: str, **options: Any) -> ModelCheckpoint:
    return ModelCheckpoint(folder, **{"monitor": "score", "save_top_k": 2, "save_last": True, **options})


def _two(folder: str) -> list[Callback]:
    by_step = ModelCheckpoint(folder, "by-step-{step}", every_n_train_steps=2, save_top_k=1)
    return [_best(folder, save_last=None), by_step]


def _newest(folder: str) -> list[Callback]:
    return [ModelCheckpoint(folder)]


def _last_alone(folder: str) -> list[Callback]:
    return [ModelCheckpoint(folder, save_top_k=0, save_last=True)]


def _best_and_last(folder: str) -> list[Callback]:
    return [_best(folder)]


def _linked(folder: str) -> list[Callback]:
    return [_best(folder, save_last="link")]


def _preempted(folder: str) -> list[Callback]:
    return [_best(folder), PreemptionCheckpoint(exit_code=None)]


def _newest_preempted(folder: str) -> list[Callback]:
    return [_best(folder, save_top_k=1), PreemptionCheckpoint(exit_code=None)]


SCENES = {
    "one file": Scene(_newest, last=None),
    "last alone": Scene(_last_alone),
    "best and last": Scene(_best_and_last),
    "last is a link": Scene(_linked),
    "two callbacks": Scene(_two, last=None),
    "asynchronous": Scene(_best_and_last, is_asynchronous=True),
    "ledger and CSV": Scene(_best_and_last, has_logs=True),
    "preempted": Scene(_preempted, last=None, leaves_after=(1, 0)),
    "sharded": Scene(_newest, "sharded", num_ranks=2, last=None),
    "sharded, last alone": Scene(_last_alone, "sharded", num_ranks=2),
    "sharded, best and last": Scene(_best_and_last, "sharded", num_ranks=2),
    "sharded, asynchronous": Scene(_best_and_last, "sharded", num_ranks=2, is_asynchronous=True),
    "in memory": Scene(_best_and_last, store="memory", has_logs=True),
    "in memory, sharded": Scene(_best_and_last, "sharded", store="memory"),
    "on S3": Scene(_best_and_last, store="s3", has_logs=True),
    "on S3, sharded": Scene(_best_and_last, "sharded", store="s3"),
}
"""By name; each is cut off after every operation on its files."""

_left_in_a_window = Scene(
    _newest_preempted,
    "ddp",
    num_ranks=2,
    has_logs=True,
    last=None,
    leaves_after=(1, 0),
    accumulate=2,
    max_epochs=2,
    timeout_seconds=10,
)
COLLECTIVES = {
    "collectives": _left_in_a_window,
    "collectives, sharded": attrs.evolve(_left_in_a_window, strategy="sharded"),
}
"""By name; each loses a rank at every collective."""


def make_trainer(scene: Scene, root: str, *, is_alone: bool = False) -> Trainer:
    """Make the trainer of a scene.

    Args:
        root: The folder of its files, or its URL.
        is_alone: Whether it is for a single process, whatever the scene has.
    """
    callbacks = scene.saving(join(root, "checkpoints"))
    if scene.has_logs:
        callbacks.append(RunLedger(join(root, "logs", "ledger.jsonl"), weights_every_n_steps=4))
    if scene.leaves_after is not None:
        callbacks.append(LeaveAfter(*scene.leaves_after))
    strategy: Any = SingleDeviceStrategy("cpu", save_asynchronously=scene.is_asynchronous)
    if scene.strategy != "single" and not is_alone:
        made = DDPStrategy if scene.strategy == "ddp" else ShardedStrategy
        strategy = made(accelerator="cpu", save_asynchronously=scene.is_asynchronous, timeout=scene.timeout_seconds)
    return Trainer(
        strategy=strategy,
        max_epochs=scene.max_epochs,
        accumulate_grad_batches=scene.accumulate,
        agree_every_n_batches=1,  # as often in each run
        default_root_dir=root,
        logger=CSVLogger(root, "", "logs", flush_logs_every_n_steps=1) if scene.has_logs else False,
        callbacks=callbacks,
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )


def train(scene: Scene, root: str, *, resume: bool, mark: Callable[..., None] | None = None) -> str:
    """Train to the end, and return a digest of the weights.

    Args:
        mark: Is told when a checkpoint's writing begins, and when it is durable, on rank 0.
    """
    warnings.simplefilter("ignore")
    seed_everything(1, verbose=False)
    data = torch.arange(32.0).reshape(16, 2) / 32
    loader = DataLoader(data, batch_size=4 // scene.num_ranks, shuffle=True)
    trainer, module = make_trainer(scene, root), Net()
    if mark is not None and trainer.is_global_zero:
        _tell(trainer, mark)
    trainer.fit(module, loader, DataLoader(data, batch_size=8), ckpt_path="last" if resume else None)
    if trainer.is_preempted:
        return train(scene, root, resume=True, mark=mark)
    state = module.state_dict().items()
    return digest({name: one.full_tensor() if isinstance(one, DTensor) else one for name, one in state})


def _tell(trainer: Trainer, mark: Callable[..., None]) -> None:
    save = trainer.strategy.save_checkpoint

    def told(checkpoint: Any, path: str) -> Any:
        mark(begins=path)
        pending = save(checkpoint, path)
        if pending is None:
            mark(durable=path, digest=digest(read_checkpoint(path)))
            return None
        wait = pending.wait

        def wait_and_tell() -> None:
            wait()
            mark(durable=path, digest=digest(read_checkpoint(path)))

        pending.wait = wait_and_tell
        return pending

    trainer.strategy.save_checkpoint = told  # type: ignore[method-assign]


def digest(value: Any) -> str:
    """Return a digest of nested dictionaries, sequences, tensors and plain values."""
    found = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, dict):
            for key in value:
                found.update(repr(key).encode())
                add(value[key])
        elif isinstance(value, (list, tuple)):
            found.update(b"[%d" % len(value))
            for item in value:
                add(item)
        elif isinstance(value, Tensor):
            found.update(f"{value.dtype}{tuple(value.shape)}".encode())
            found.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        else:
            found.update(repr(value).encode())

    add(value)
    return found.hexdigest()[:16]
