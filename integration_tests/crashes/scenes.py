"""Short trainings that save in each way, and what they tell of it."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader

from camshaft.callbacks import CSVLogger, ModelCheckpoint, PreemptionCheckpoint
from camshaft.forensics import RunLedger
from camshaft.forensics.ledger.ledger_file import read_ledger
from camshaft.hooks_core import Callback
from camshaft.hooks_core.support.remote_files import join
from camshaft.strategies import SingleDeviceStrategy, read_checkpoint
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


class LeaveAt(Callback):
    """Preempts the run at a step, once."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: Any, module: Any, *arguments: Any) -> None:
        if trainer.global_step == self.step:
            trainer.preempt(next(one for one in trainer.callbacks if isinstance(one, PreemptionCheckpoint)).ckpt_path)


@attrs.frozen
class Scene:
    """A way of saving.

    Attributes:
        saving: Makes the callbacks for a folder.
        num_ranks: Number of processes.
        options: Of the strategy.
        has_logs: Whether there is a ledger and a CSV file.
        last: The name of "last", where it is there after each save.
        leaves_at: Step at which the run is preempted; it then ends by resuming.
    """

    saving: Callable[[str], list[Callback]]
    num_ranks: int = 1
    is_asynchronous: bool = False
    has_logs: bool = False
    last: str | None = "last.ckpt"
    leaves_at: int | None = None


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


SCENES = {
    "one file": Scene(_newest, last=None),
    "last alone": Scene(_last_alone),
    "best and last": Scene(_best_and_last),
    "last is a link": Scene(_linked),
    "two callbacks": Scene(_two, last=None),
    "asynchronous": Scene(_best_and_last, is_asynchronous=True),
    "ledger and CSV": Scene(_best_and_last, has_logs=True),
    "preempted": Scene(_preempted, last=None, leaves_at=5),
    "sharded": Scene(_newest, num_ranks=2, last=None),
    "sharded, last alone": Scene(_last_alone, num_ranks=2),
    "sharded, best and last": Scene(_best_and_last, num_ranks=2),
    "sharded, asynchronous": Scene(_best_and_last, num_ranks=2, is_asynchronous=True),
}


def make_trainer(scene: Scene, root: str, *, is_alone: bool = False) -> Trainer:
    """Make the trainer of a scene, whose files are below a folder.

    Args:
        is_alone: Whether it is for a single process, whatever the scene has.
    """
    callbacks = scene.saving(join(root, "checkpoints"))
    if scene.has_logs:
        callbacks.append(RunLedger(join(root, "logs", "ledger.jsonl"), weights_every_n_steps=4))
    if scene.leaves_at is not None:
        callbacks.append(LeaveAt(scene.leaves_at))
    if is_alone or scene.num_ranks == 1:
        strategy: Any = SingleDeviceStrategy("cpu", save_asynchronously=scene.is_asynchronous)
    else:
        from camshaft.strategies import ShardedStrategy

        strategy = ShardedStrategy(accelerator="cpu", save_asynchronously=scene.is_asynchronous, timeout=60)
    return Trainer(
        strategy=strategy,
        max_epochs=len(SCORES),
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


def ledger_lines(root: Path) -> list[Any]:
    """Return the lines of a run's ledger, without its end and what a resume notes."""
    lines = read_ledger(root / "logs" / "ledger.jsonl").lines
    wanted = [line for line in lines if not line.keys() & {"resumed", "end"}]
    return [{name: value for name, value in line.items() if name != "chain"} for line in wanted]
