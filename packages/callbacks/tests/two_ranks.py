"""Two real processes that train as far as callbacks are concerned, and disagree on nearly everything."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from recording_trainer import RecordingTrainer, load_callback_state
from torch import distributed

from camshaft.callbacks import EarlyStopping, ModelCheckpoint
from camshaft.callbacks.arguments import InvalidArgumentError, MissingMetricError
from camshaft.callbacks.monitoring import from_rank_zero
from camshaft.hooks_core import StrategyDefaults


class GlooStrategy(StrategyDefaults):
    """The collective that callbacks need."""

    def __init__(self, folder: Path, rank: int) -> None:
        distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
        self.global_rank = self.local_rank = rank
        self.world_size = 2
        self.num_broadcasts = 0

    def broadcast(self, value: Any, src: int = 0) -> Any:
        self.num_broadcasts += 1
        box = [value]
        distributed.broadcast_object_list(box, src=src)
        return box[0]


def differing_metrics(folder: Path, strategy: GlooStrategy) -> dict[str, Any]:
    """Rank 1 sees the opposite order."""
    rank = strategy.global_rank
    checkpoint = ModelCheckpoint(folder / f"wanted_by_{rank}", "{step}", "loss", save_last=True)
    stopping = EarlyStopping("loss", patience=1)
    trainer = trainer_of(folder, strategy, [checkpoint, stopping])
    trainer.begin()
    for loss in (3.0, 1.0, 2.0):
        trainer.train_batch()
        trainer.end_epoch(loss=loss if rank == 0 else -loss)
    return {
        "best": checkpoint.best_model_path,
        "score": float(checkpoint.best_model_score or 0.0),
        "last": checkpoint.last_model_path,
        "stop": trainer.should_stop,
        "reason": stopping.stopping_reason_message,
        "saved": [path for path, _ in trainer.saved],
    }


def missing_on_one(folder: Path, strategy: GlooStrategy) -> dict[str, Any]:
    """The metric is there on rank 0 alone, in one run; in another on rank 1 alone."""
    rank = strategy.global_rank
    found: dict[str, Any] = {}
    for owner in range(2):
        checkpoint = ModelCheckpoint(folder / f"owner_{owner}", "{step}", "loss")
        stopping = EarlyStopping("loss", strict=owner == 0)
        trainer = trainer_of(folder, strategy, [stopping, checkpoint])
        trainer.begin()
        trainer.train_batch()
        try:
            trainer.end_epoch(**({"loss": 1.0} if rank == owner else {}))
        except MissingMetricError as error:
            found[f"error_{owner}"] = [error.metric, str(error)]
        found[f"best_{owner}"] = checkpoint.best_model_path
        found[f"score_{owner}"] = float(stopping.best_score)
    return found


def one_without_validation(folder: Path, strategy: GlooStrategy) -> dict[str, Any]:
    """Rank 1 has no validation batch of its own: it is due where rank 0 is."""
    rank = strategy.global_rank
    checkpoint = ModelCheckpoint(folder / "half", "{step}", "loss", every_n_train_steps=1)
    stopping = EarlyStopping("loss")
    trainer = trainer_of(folder, strategy, [stopping, checkpoint])
    trainer.num_val_batches, trainer.val_check_interval = [2 if rank == 0 else 0], 0.5
    trainer.begin()
    trainer.train_batch()  # due, and waits for the first validation
    trainer.validate(loss=1.0)
    trainer.end_epoch()
    return {"saved": [path for path, _ in trainer.saved], "score": float(stopping.best_score)}


def going_on(folder: Path, strategy: GlooStrategy) -> dict[str, Any]:
    """Rank 1 sees other files than rank 0, as on a disk of its own."""
    rank = strategy.global_rank
    checkpoint = ModelCheckpoint(folder / "wanted_by_0", "{step}", "loss", save_last=True)
    trainer = trainer_of(folder, strategy, [checkpoint])
    trainer.begin()
    state = load_callback_state(folder / "wanted_by_0" / "step=2.ckpt", checkpoint)
    if rank == 1:
        state = {**state, "best_model_path": str(folder / "nowhere.ckpt")}
    checkpoint.load_state_dict(state)
    return {"best": checkpoint.best_model_path, "last": checkpoint.last_model_path}


def errors(folder: Path, strategy: GlooStrategy) -> dict[str, Any]:
    """What rank 0 raises is raised by both, whether it can be pickled or not."""

    class LocalError(Exception):
        pass

    raised: dict[str, Any] = {}
    for error in (InvalidArgumentError("a", "b", 1, "C", "Do."), LocalError("only here"), OSError(2, "no such file")):

        def fail(error: Exception = error) -> None:
            raise error

        try:
            from_rank_zero(strategy, fail)
        except Exception as same:
            raised[type(error).__name__] = [type(same).__name__, str(same)]
    return raised


def trainer_of(folder: Path, strategy: GlooStrategy, callbacks: list[Any]) -> RecordingTrainer:
    return RecordingTrainer(
        str(folder), callbacks=callbacks, is_global_zero=strategy.global_rank == 0, strategy=strategy
    )


def main() -> None:
    folder, rank = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    strategy = GlooStrategy(folder, rank)
    results = {
        scene.__name__: scene(folder, strategy)
        for scene in (differing_metrics, missing_on_one, one_without_validation, going_on, errors)
    }
    results["num_broadcasts"] = {"total": strategy.num_broadcasts}
    (folder / f"result_{rank}").write_text(json.dumps(results))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
