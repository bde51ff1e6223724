"""Random numbers that training loaders draw: under the import names they are those of Lightning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from camshaft.loops import CombinedLoader

lightning = pytest.importorskip("lightning.pytorch", reason="compares with Lightning")
compat = pytest.importorskip("camshaft.compat")
trainer = pytest.importorskip("camshaft.trainer")

QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
NUM_EPOCHS = 3
LOADERS: dict[str, dict[str, Any]] = {
    "full batches": {},
    "a short last batch": {"num_samples": 9},
    "a dropped rest": {"num_samples": 9, "drop_last": True},
    "workers": {"num_workers": 1},
    "no shuffling": {"shuffle": False},
}


def loader(num_samples: int = 8, **arguments: Any) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(3)
    data = TensorDataset(torch.arange(float(num_samples))[:, None])
    return DataLoader(data, 4, **{"shuffle": True, "generator": generator, **arguments})


def batches_of(framework: Any, loader: Any, ckpt_path: Path | None = None, **settings: Any) -> Any:
    """The samples of each batch of a fit, by epoch and index."""
    found = {}
    base: Any = getattr(framework, "LightningModule", None) or framework.TrainingModule

    class Module(base):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            parts = [part for part in (batch if len(batch) > 1 else [batch]) if part is not None]
            found[self.current_epoch, batch_idx] = [part[0].flatten().tolist() for part in parts]
            return self.layer(parts[0][0]).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.0)

    torch.manual_seed(0)
    one = framework.Trainer(max_epochs=NUM_EPOCHS, accelerator="cpu", **QUIET, **settings)
    one.fit(Module(), loader, ckpt_path=ckpt_path)
    return found


@pytest.mark.parametrize("limit", [1.0, 0.5], ids=["whole", "limited"])
@pytest.mark.parametrize("arguments", LOADERS.values(), ids=LOADERS)
def test_the_sampler_stays_where_the_last_batch_was(arguments: dict[str, Any], limit: float) -> None:
    theirs, own = (
        batches_of(framework, loader(**arguments), limit_train_batches=limit) for framework in (lightning, compat)
    )
    assert own == theirs


@pytest.mark.parametrize("mode", ["min_size", "max_size", "max_size_cycle"])
@pytest.mark.parametrize("sizes", [(8, 8), (8, 12), (12, 8), (9, 12)])
def test_so_do_the_samplers_of_several_loaders(mode: Any, sizes: tuple[int, int]) -> None:
    theirs = batches_of(lightning, lightning.utilities.CombinedLoader([loader(size) for size in sizes], mode))
    assert batches_of(compat, CombinedLoader([loader(size) for size in sizes], mode)) == theirs


@pytest.mark.parametrize(("every", "num_workers"), [(0, 0), (1, 0), (2, 0), (1, 1)])
def test_a_loader_that_is_asked_for_again_is_begun_twice(every: int, num_workers: int) -> None:
    found = []
    for framework in (lightning, compat):
        base: Any = getattr(framework, "LightningModule", None) or framework.TrainingModule

        class Module(base):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.layer, self.seen = torch.nn.Linear(1, 1), []

            def training_step(self, batch: Any, batch_idx: int) -> Any:
                self.seen.append((batch[0].flatten().tolist(), torch.rand(1).item()))
                return self.layer(batch[0]).mean()

            def train_dataloader(self) -> Any:
                return loader(generator=None, num_workers=num_workers)

            def configure_optimizers(self) -> Any:
                return torch.optim.SGD(self.parameters(), 0.0)

        torch.manual_seed(0)
        settings = {"max_epochs": 3, "reload_dataloaders_every_n_epochs": every}
        module, one = Module(), framework.Trainer(accelerator="cpu", **QUIET, **settings)
        one.fit(module)
        one.fit_loop.max_epochs = 5
        one.fit(module)
        found.append(module.seen)
    assert found[0] == found[1]


def test_a_trainer_of_today_has_the_order_of_a_plain_loop() -> None:
    own, plain = batches_of(trainer, loader()), loader()
    by_hand = {
        (epoch, idx): [batch[0].flatten().tolist()] for epoch in range(NUM_EPOCHS) for idx, batch in enumerate(plain)
    }
    assert own == by_hand != batches_of(lightning, loader())


@pytest.mark.parametrize("make", [loader, lambda: CombinedLoader([loader(), loader(4)], "max_size_cycle")])
@pytest.mark.parametrize("num_steps", range(1, 2 * NUM_EPOCHS))
def test_a_fit_that_goes_on_has_the_batches_of_one_that_was_not_stopped(
    make: Any, num_steps: int, tmp_path: Path
) -> None:
    whole = batches_of(compat, make())
    path = tmp_path / "stopped.ckpt"

    class Stop(compat.Callback):  # type: ignore[misc]
        def on_train_end(self, trainer: Any, module: Any) -> None:
            trainer.save_checkpoint(path)

    first = batches_of(compat, make(), max_steps=num_steps, callbacks=[Stop()])
    assert len(first) == num_steps
    assert first | batches_of(compat, make(), path) == whole


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("mode", [None, "max_size_cycle"])
def test_loaders_begin_before_the_hooks_that_start_a_stage(num_workers: int, mode: Any) -> None:
    """Some modules draw their weights in `on_train_start`."""

    def draws_of(framework: Any, combine: Any) -> dict[str, list[torch.Tensor]]:
        base: Any = getattr(framework, "LightningModule", None) or framework.TrainingModule
        found: dict[str, list[torch.Tensor]] = {}

        class Module(base):
            def __init__(self) -> None:
                super().__init__()
                self.layer = torch.nn.Linear(1, 1)

            def training_step(self, batch: Any, batch_idx: int) -> Any:
                return self.layer(batch[0][0] if mode else batch[0]).mean()

            def validation_step(self, batch: Any, batch_idx: int) -> None: ...

            test_step = predict_step = validation_step

            def configure_optimizers(self) -> Any:
                return torch.optim.SGD(self.parameters(), 0.0)

        def noting(hook: str) -> Any:
            return lambda self: found.setdefault(hook, []).append(torch.rand(1))

        for stage in ("train", "validation", "test", "predict"):
            for hook in (f"on_{stage}_start", f"on_{stage}_epoch_start"):
                setattr(Module, hook, noting(hook))
        torch.manual_seed(0)
        plain = {"generator": None, "num_workers": num_workers}
        training = combine([loader(**plain), loader(**plain)], mode) if mode else loader(**plain)
        one, module = framework.Trainer(max_epochs=2, accelerator="cpu", **QUIET), Module()
        one.fit(module, training, loader(**plain))
        for verb in (one.validate, one.test, one.predict):
            verb(module, loader(**plain))
        return found

    own = draws_of(compat, CombinedLoader)
    assert len(own) == 8
    assert own == draws_of(lightning, lightning.utilities.CombinedLoader)


def test_a_checkpoint_of_before_the_first_batch_goes_on_with_the_same_batches(tmp_path: Path) -> None:
    path = tmp_path / "start.ckpt"

    class Saving(compat.Callback):
        def on_train_start(self, trainer: Any, module: Any) -> None:
            trainer.save_checkpoint(path)

    unstopped = batches_of(compat, loader(generator=None), callbacks=[Saving()])
    assert batches_of(compat, loader(generator=None), path) == unstopped
