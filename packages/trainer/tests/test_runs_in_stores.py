"""Runs whose files are in a store: the same files as on a disk, and resumed exactly."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from torch import nn
from torch.utils.data import DataLoader

from camshaft.callbacks import HookTimeline, ModelCheckpoint, PyTorchProfiler, TensorBoardLogger
from camshaft.hooks_core.support.remote_files import files_below, is_url, join, local_copy, modified, remove
from camshaft.trainer import Trainer, TrainingModule
from camshaft.trainer.cli import TrainerCLI

QUIET: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False}


@pytest.fixture(autouse=True)
def empty_store() -> Iterator[None]:
    yield
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


class Net(TrainingModule):
    def __init__(self, width: int = 2) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layer = nn.Linear(4, width)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = (self.layer(batch) - torch.rand(1)).pow(2).mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("score", float((self.current_epoch * 7) % 5))  # 0 2 4 1 3

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), 0.05)


def data() -> DataLoader[Any]:
    return DataLoader(torch.arange(32.0).reshape(8, 4), batch_size=2, shuffle=True)


def fitted(num_epochs: int, root: str, callbacks: list[Any] | None = None, **options: Any) -> tuple[Trainer, Net]:
    torch.manual_seed(3)
    saving = ModelCheckpoint(monitor="score", save_top_k=2, save_last=True, filename="{epoch}")
    trainer = Trainer(
        max_epochs=num_epochs,
        default_root_dir=root,
        callbacks=[saving] if callbacks is None else callbacks,
        log_every_n_steps=1,
        **QUIET,
    )
    module = Net()
    trainer.fit(module, data(), data(), **options)
    return trainer, module


def relative(path: str, root: str) -> str:
    return path.removeprefix(join(root, "")).replace(os.sep, "/")


def names_in(root: str) -> list[str]:
    if is_url(root):
        return sorted(relative(url, root) for url in files_below(root))
    return sorted(relative(str(path), root) for path in Path(root).rglob("*") if path.is_file())


def test_a_run_leaves_the_files_that_it_leaves_on_a_disk(tmp_path: Path) -> None:
    roots = [str(tmp_path), "memory://bucket/experiment"]
    facts, rows = [], []
    for root in roots:
        fitted(4, root, [ModelCheckpoint(monitor="score", save_top_k=2, save_last=True), HookTimeline()])
        fixed = ModelCheckpoint(join(root, "fixed"), filename="same", monitor="score", save_top_k=2)
        trainer, _ = fitted(3, root, [fixed])
        saving = trainer.checkpoint_callback
        kept = {relative(path, root): float(score) for path, score in saving.best_k_models.items()}
        facts.append((names_in(root), kept, relative(saving.best_model_path, root)))
        with local_copy(join(trainer.log_dir, "metrics.csv")) as file:
            rows.append(file.read_text())
    assert facts[0] == facts[1] and rows[0] == rows[1]
    assert {"fixed/same.ckpt", "fixed/same-v1.ckpt"} <= set(facts[0][0]) and len(facts[0][0]) == 11


@pytest.mark.parametrize("ckpt_path", ["last", "best", "path"])
def test_a_resumed_run_ends_with_the_same_bits(ckpt_path: str) -> None:
    _, whole = fitted(5, "memory://whole")
    stopped, _ = fitted(2 if ckpt_path != "best" else 1, "memory://run/a")
    folder = stopped.checkpoint_callback.dirpath
    saving = ModelCheckpoint(folder, monitor="score", save_top_k=2, save_last=True, filename="{epoch}")
    if ckpt_path == "best":
        saving.best_model_path = stopped.checkpoint_callback.best_model_path
    if ckpt_path == "path":
        ckpt_path = stopped.checkpoint_callback.last_model_path
    torch.manual_seed(8)
    trainer = Trainer(max_epochs=5, default_root_dir="memory://run/b", callbacks=[saving], **QUIET)
    module = Net()
    trainer.fit(module, data(), data(), ckpt_path=ckpt_path)
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), whole.parameters(), strict=True))
    loaded = Net.load_from_checkpoint(trainer.checkpoint_callback.last_model_path)
    assert loaded.hparams["width"] == 2 and torch.equal(loaded.layer.weight, module.layer.weight)


def test_last_is_the_one_with_the_most_steps_where_the_clock_tells_no_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fitted(3, "memory://run", [ModelCheckpoint("memory://run/a", save_top_k=-1, filename="{loss:.3f}-{epoch}")])
    when = modified(files_below("memory://run/a")[0])
    monkeypatch.setattr(MemoryFileSystem, "modified", lambda self, path: when)
    saving = ModelCheckpoint("memory://run/a", save_top_k=-1, filename="{loss:.3f}-{epoch}")
    trainer, _ = fitted(4, "memory://run", [saving], ckpt_path="last")
    assert trainer.ckpt_path is not None and trainer.ckpt_path.endswith("epoch=2.ckpt")


def test_checkpoints_can_be_saved_by_hand_and_to_a_file_url(tmp_path: Path) -> None:
    trainer, module = fitted(1, f"file://{tmp_path}/run")
    assert Path(trainer.checkpoint_callback.best_model_path).is_relative_to(tmp_path / "run")
    for path in ("memory://by/hand.ckpt", f"file://{tmp_path}/hand.ckpt"):
        trainer.save_checkpoint(path)
        assert torch.equal(Net.load_from_checkpoint(path).layer.weight, module.layer.weight)
        remove("memory://by")
    assert (tmp_path / "hand.ckpt").is_file()


@pytest.mark.exhaustive
def test_the_configuration_of_a_command_line_is_saved_there() -> None:
    def run(width: int) -> None:
        TrainerCLI(
            Net,
            run=False,
            trainer_defaults={"default_root_dir": "memory://run", "logger": False, "fast_dev_run": False, **QUIET},
            args=[f"--model.width={width}"],
        ).trainer.fit(Net(width), data())

    run(3)
    with local_copy("memory://run/config.yaml") as file:
        assert "width: 3" in file.read_text()
    with pytest.raises(RuntimeError, match=r"a new file.*memory://run/config\.yaml"):
        run(4)


@pytest.mark.parametrize("attempt", ["trainer", "tensorboard", "profiler", "onnx"])
def test_what_cannot_write_there_says_so(attempt: str) -> None:
    with pytest.raises(ValueError, match=r"`(default_root_dir|save_dir|dirpath|file_path)` must be .*://"):
        if attempt == "trainer":
            Trainer(default_root_dir="https://host/run")
        elif attempt == "tensorboard":
            TensorBoardLogger("memory://run")
        elif attempt == "profiler":
            Trainer(default_root_dir="memory://run", profiler=PyTorchProfiler(), max_epochs=1, **QUIET).fit(
                Net(), data()
            )
        else:
            Net().to_onnx("memory://run/net.onnx", torch.zeros(1, 4))
