"""Ledgers of runs whose files are in a store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

pytest.importorskip("fsspec")

from fsspec.implementations.memory import MemoryFileSystem

from camshaft.callbacks import ModelCheckpoint
from camshaft.forensics import RunLedger, compare, replay
from camshaft.hooks_core import Callback
from camshaft.hooks_core.support.remote_files import join, local_copy
from camshaft.trainer import Trainer, TrainingModule

QUIET: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False}


@pytest.fixture(autouse=True)
def empty_store() -> Iterator[None]:
    yield
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


class Net(TrainingModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return (self.layer(batch) - torch.rand(1)).pow(2).mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), 0.05)


def data() -> DataLoader[Any]:
    return DataLoader(torch.arange(32.0).reshape(8, 4), batch_size=2, shuffle=True)


def fitted(num_epochs: int, root: str, callbacks: list[Any], **options: Any) -> None:
    torch.manual_seed(3)
    trainer = Trainer(
        max_epochs=num_epochs,
        default_root_dir=root,
        callbacks=callbacks,
        log_every_n_steps=1,
        **QUIET,
    )
    module = Net()
    trainer.fit(module, data(), **options)


def test_the_ledger_of_a_resumed_run_is_that_of_one_that_was_not_stopped(tmp_path: Path) -> None:
    class Stop(Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if trainer.global_step == 10:
                raise KeyError("here")

    def callbacks(root: str, *others: Callback) -> list[Any]:
        return [ModelCheckpoint(join(root, "saved"), save_last=True), RunLedger(join(root, "ledger")), *others]

    fitted(4, str(tmp_path), callbacks(str(tmp_path)))
    with pytest.raises(KeyError, match="here"):
        fitted(4, "memory://run", callbacks("memory://run", Stop()))
    assert str(compare("memory://run", tmp_path)).startswith("Equal for 10 steps; ")
    fitted(4, "memory://run", callbacks("memory://run"), ckpt_path="last")
    with local_copy("memory://run/ledger/ledger.jsonl") as file:
        assert file.read_bytes() == (tmp_path / "ledger" / "ledger.jsonl").read_bytes()
    trainer = Trainer(max_epochs=4, callbacks=callbacks("memory://run"), default_root_dir="memory://run", **QUIET)
    torch.manual_seed(3)
    assert len(replay(trainer, Net(), data(), to_step=6)) == 1  # checked against the ledger in the store
