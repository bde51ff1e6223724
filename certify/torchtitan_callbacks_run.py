"""Train torchtitan's debug model on the CPU with callbacks of camshaft, and check what they did: `nox -s certify`.

python -m certify.torchtitan_callbacks_run FOLDER
torchrun --nproc-per-node 2 -m certify.torchtitan_callbacks_run FOLDER
"""

from __future__ import annotations

import csv
import os
import sys
from pathlib import Path
from typing import Any

import torch
from certify.torchtitan_on_cpu import Part
from torch import distributed
from torch.distributed import checkpoint
from torch.distributed.fsdp import FSDPModule
from torchtitan.models.common.attention import FlexAttention, ScaledDotProductAttention
from torchtitan.models.llama3.config_registry import llama3_debugmodel
from torchtitan.trainer import Trainer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

from camshaft.callbacks import CSVLogger, EarlyStopping, LearningRateMonitor, ModelCheckpoint
from torchtitan_callbacks import CallbackTrainer

LENGTH, MOST_STEPS = 32, 40


def batches() -> Any:
    """Yield texts in which each token says the next one."""
    rank, generator = distributed.get_rank(), torch.Generator()
    generator.manual_seed(rank)
    while True:
        tokens = (torch.randint(2048, (4, 1), generator=generator) + torch.arange(LENGTH + 1)) % 64
        yield {"input": tokens[:, :-1], "positions": torch.arange(LENGTH).expand(4, -1)}, tokens[:, 1:]


class Texts:
    def __iter__(self) -> Any:
        return batches()


def configuration(folder: Path) -> Trainer.Config:
    """Return torchtitan's own configuration of its debug model, with data that is made here."""
    config = llama3_debugmodel()
    # flex attention has no backward on the CPU
    for _, _, parent, name in config.model_spec.model.traverse(FlexAttention.Config):
        setattr(parent, name, ScaledDotProductAttention.Config())
    config.dump_folder, config.tokenizer, config.dataloader = str(folder), Part(None), Part(Texts())
    config.training.steps, config.training.local_batch_size, config.training.seq_len = MOST_STEPS, 4, LENGTH
    config.training.disable_cuda_graphs, config.optimizer.implementation = True, "for-loop"
    config.parallelism.spmd_backend = "partial_dtensor"  # the default asks for the `fully_shard` of torch 2.14
    config.validator.enable, config.validator.freq, config.validator.steps = True, 4, 2
    config.validator.dataloader = Part(Texts())
    return config


def main(folder: Path) -> None:
    os.environ.setdefault("LOCAL_RANK", "0")
    if "RANK" not in os.environ:
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    stopping = EarlyStopping("validation_metrics/loss", stopping_threshold=3.0, patience=100, verbose=True)
    keeping = ModelCheckpoint(str(folder / "kept"), monitor="validation_metrics/loss", save_top_k=1)
    logger = CSVLogger(str(folder))
    trainer = CallbackTrainer(configuration(folder), [LearningRateMonitor(), stopping, keeping], [logger])
    for part in trainer.model_parts:
        for module in part.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)  # gloo has none that scales as well
    trainer.train()
    trainer.close()
    assert stopping.stopping_reason_message is not None and trainer.step < MOST_STEPS, trainer.step
    saved = {"train_state": {"step": 0, "ntokens_seen": 0}}
    checkpoint.load(saved, checkpoint_id=keeping.best_model_path)  # type: ignore[attr-defined]
    assert saved["train_state"]["step"] == trainer.step, (
        saved
    )  # the loss fell below the threshold there for the first time
    weights = {
        name: torch.zeros_like(value) for part in trainer.model_parts for name, value in part.state_dict().items()
    }
    checkpoint.load(weights, checkpoint_id=keeping.best_model_path)  # type: ignore[attr-defined]
    for part in trainer.model_parts:
        assert all(torch.equal(weights[name], value) for name, value in part.state_dict().items())
    if distributed.get_rank() == 0:
        rows = list(csv.DictReader(Path(logger.log_dir, "metrics.csv").read_text().splitlines()))
        assert [int(row["step"]) for row in rows] == list(range(trainer.step)), rows
        print(f"Stopped at step {trainer.step}: {stopping.stopping_reason_message} Best: {keeping.best_model_path}")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "outputs").resolve())
