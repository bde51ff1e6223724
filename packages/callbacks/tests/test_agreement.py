from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from camshaft.callbacks.agreement import from_rank_zero

TWO_RANKS = """
import json, sys
from pathlib import Path
import torch
from torch import distributed
from recording_trainer import RecordingTrainer
from camshaft.callbacks import EarlyStopping, ModelCheckpoint

folder, rank = Path(sys.argv[1]), int(sys.argv[2])
distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
checkpoint = ModelCheckpoint(folder / f"wanted_by_{rank}", "{step}", "loss", save_last=True)
stopping = EarlyStopping("loss", patience=1)
trainer = RecordingTrainer(str(folder), callbacks=[checkpoint, stopping], is_global_zero=rank == 0)
trainer.begin()
for loss in (3.0, 1.0, 2.0):  # rank 1 sees the opposite order
    trainer.train_batch()
    trainer.end_epoch(loss=loss if rank == 0 else -loss)
result = {
    "best": checkpoint.best_model_path, "score": float(checkpoint.best_model_score), "last": checkpoint.last_model_path,
    "stop": trainer.should_stop, "reason": stopping.stopping_reason, "saved": [path for path, _ in trainer.saved],
}
(folder / f"result_{rank}").write_text(json.dumps(result))
distributed.destroy_process_group()
"""


def test_a_single_process_agrees_with_itself() -> None:
    value = object()
    assert from_rank_zero(value) is value


def test_ranks_with_different_metrics_save_and_stop_as_rank_zero_decides(tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", TWO_RANKS, str(tmp_path), str(rank)],
            env={**os.environ, "PYTHONPATH": path},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    errors = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(errors)
    first, second = (json.loads((tmp_path / f"result_{rank}").read_text()) for rank in range(2))
    assert first == second
    folder = tmp_path / "wanted_by_0"
    assert (first["best"], first["score"], first["stop"]) == (str(folder / "step=2.ckpt"), 1.0, True)
    assert {one.name for one in folder.iterdir()} == {"step=2.ckpt", "last.ckpt"}
    assert not (tmp_path / "wanted_by_1").exists()
