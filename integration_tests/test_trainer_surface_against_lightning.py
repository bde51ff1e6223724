"""What a trainer says of itself, beside Lightning's: arguments, state in every hook, counters, checkpoints."""

from __future__ import annotations

import inspect
import re
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from camshaft import callbacks as stock
from camshaft import compat
from camshaft.compat import Callback, DataModule, Trainer, TrainingModule
from camshaft.compat.names.trainer.loggers import LightningLoggerBase

lightning = pytest.importorskip("lightning.pytorch")

_HOOKS = (
    "setup on_fit_start on_sanity_check_start on_sanity_check_end on_train_start on_train_epoch_start "
    "on_train_batch_start on_train_batch_end on_validation_start on_validation_end on_train_epoch_end on_train_end "
    "on_fit_end on_test_start on_test_end on_predict_start on_predict_end teardown"
)
_FLAGS = "training validating testing predicting evaluating sanity_checking interrupted"


def read(trainer: Any, hook: str) -> tuple[Any, ...]:
    state, loop = trainer.state, trainer.fit_loop
    parts = (state.status.value, state.fn and state.fn.value, state.stage and state.stage.value)
    flags = [name for name in _FLAGS.split() if getattr(trainer, name)]
    counters = (loop.epoch_loop.batch_idx, loop.epoch_loop.total_batch_idx, loop.epoch_progress.current.completed)
    # ours are known earlier
    interval = trainer.val_check_batch if loop.epoch_loop.batch_idx >= 0 else None
    ckpt_path = None if hook == "setup" else trainer.ckpt_path
    return (*parts, flags, counters, interval, ckpt_path, trainer.precision, trainer.device_ids)


def noting(base: type) -> Any:
    """Return a callback that notes the trainer in every hook."""
    seen: list[Any] = []

    def hook(name: str) -> Any:
        def note(self: Any, trainer: Any, *rest: Any, **others: Any) -> None:
            seen.append((name, *read(trainer, name)))

        return note

    kind = type("Noting", (base,), {name: hook(name) for name in _HOOKS.split()})
    return kind(), seen


def run(library: Any, folder: Path) -> tuple[list[Any], Any]:
    """Fit, test with the checkpoint, predict."""

    class Module(library.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.layer(batch).sum()

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("loss", self.layer(batch).sum())

        test_step = validation_step

        def predict_step(self, batch: Any, batch_idx: int) -> Any:
            return self.layer(batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    callback, seen = noting(library.Callback)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    settings = {"max_epochs": 2, "val_check_interval": 0.5, "num_sanity_val_steps": 1, "logger": False, **quiet}
    trainer = library.Trainer("cpu", callbacks=[callback], default_root_dir=folder, **settings)
    data = DataLoader(torch.ones(8, 2), batch_size=2)
    module = Module()
    trainer.fit(module, data, data)
    seen.append(("between", *read(trainer, "between")))
    path = str(folder / "saved.ckpt")
    trainer.save_checkpoint(filepath=path)
    trainer.test(module, data, ckpt_path=path, verbose=False)
    trainer.predict(module, data)
    seen.append(("after", *read(trainer, "after")))
    return [tuple(str(part).replace(str(folder), "") for part in one) for one in seen], trainer


class _Camshaft:
    LightningModule, Trainer, Callback = TrainingModule, Trainer, Callback
    callbacks = stock
    LightningDataModule, loggers = DataModule, SimpleNamespace(logger=SimpleNamespace(Logger=LightningLoggerBase))


@pytest.mark.filterwarnings("ignore")
def test_the_state_in_every_hook_is_lightnings(tmp_path: Path) -> None:
    ours, _ = run(_Camshaft, tmp_path / "ours")
    theirs, _ = run(lightning, tmp_path / "theirs")
    assert len(ours) == len(theirs)
    assert [(one, other) for one, other in zip(ours, theirs, strict=True) if one != other] == []


def calls_of_logger(library: Any, folder: Path) -> list[Any]:
    """Return the calls of a logger in all verbs, then the entries about hyperparameters and release in a checkpoint."""
    called: list[Any] = []

    class Noting(library.loggers.logger.Logger):  # type: ignore[misc]
        name, version = "noting", 0

        def log_metrics(self, metrics: Any, step: int | None = None) -> None:
            called.append((sorted(metrics), step))

        def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
            called.append(dict(params))

        def log_graph(self, model: Any, input_array: Any = None) -> None:
            called.append("log_graph")

        def save(self) -> None:
            called.append("save")

        def finalize(self, status: str) -> None:
            called.append(status)

    class Data(library.LightningDataModule):  # type: ignore[misc]
        def __init__(self, size: int) -> None:
            super().__init__()
            self.save_hyperparameters()

        def train_dataloader(self) -> Any:
            return DataLoader(torch.ones(6, 2), batch_size=self.hparams.size)

        val_dataloader = test_dataloader = predict_dataloader = train_dataloader

    class Module(library.LightningModule):  # type: ignore[misc]
        def __init__(self, width: int, rate: float = 0.1) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.layer = torch.nn.Linear(2, width)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("train", 1.0, on_step=True, on_epoch=True)
            return self.layer(batch).sum()

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val", 1.0, on_step=True, on_epoch=True)

        test_step = validation_step

        def predict_step(self, batch: Any, batch_idx: int) -> Any:
            return self.layer(batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=self.hparams.rate)

    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = library.Trainer(accelerator="cpu", logger=Noting(), max_epochs=2, log_every_n_steps=2, **quiet)
    module, data = Module(3), Data(2)
    for verb in (trainer.fit, trainer.validate, trainer.test, trainer.predict):
        called.append(verb.__name__)
        verb(module, datamodule=data)
    calls = list(called)  # ours save once more with each checkpoint
    trainer.save_checkpoint(folder / "saved.ckpt")
    saved = torch.load(folder / "saved.ckpt", weights_only=False)
    assert isinstance(saved["pytorch-lightning_version"], str)
    return calls + [(key, saved[key]) for key in sorted(saved) if "hparams" in key or "hyper" in key]


@pytest.mark.filterwarnings("ignore")
def test_loggers_are_called_and_hyperparameters_saved_as_in_lightning(tmp_path: Path) -> None:
    assert calls_of_logger(_Camshaft, tmp_path) == calls_of_logger(lightning, tmp_path)


def resumed(library: Any, folder: Path) -> list[str]:
    """Return the order of calls around a callback's state in a fit that goes on, and in a test with the checkpoint."""
    called: list[str] = []

    class Noting(library.Callback):  # type: ignore[misc]
        def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
            called.append("setup")

        def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
            called.append("on_load_checkpoint")

        def state_dict(self) -> dict[str, Any]:
            return {"kept": 1}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            called.append(f"load_state_dict {state_dict}")

        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            called.append("on_fit_start")

    class Module(library.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.layer(batch).sum()

        def test_step(self, batch: Any, batch_idx: int) -> None:
            pass

        def configure_optimizers(self) -> Any:
            called.append("configure_optimizers")
            return torch.optim.SGD(self.parameters(), lr=0.1)

    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    data, path = DataLoader(torch.ones(4, 2)), str(folder / "saved.ckpt")
    for max_epochs, ckpt_path in ((1, None), (2, path)):
        trainer = library.Trainer("cpu", callbacks=[Noting()], logger=False, max_epochs=max_epochs, **quiet)
        trainer.fit(Module(), data, ckpt_path=ckpt_path)
        trainer.save_checkpoint(path)
    trainer.test(Module(), data, ckpt_path=path, verbose=False)
    return called


@pytest.mark.filterwarnings("ignore")
def test_callbacks_get_their_state_when_lightnings_do(tmp_path: Path) -> None:
    assert resumed(_Camshaft, tmp_path / "ours") == resumed(lightning, tmp_path / "theirs")


def test_arguments_have_lightnings_order_and_defaults() -> None:
    ours = inspect.signature(Trainer.__init__).parameters
    theirs = inspect.signature(lightning.Trainer.__init__).parameters
    assert list(ours)[: len(theirs)] == list(theirs)
    assert {name: one.default for name, one in theirs.items()} == {name: ours[name].default for name in theirs}


def test_stages_and_verbs_have_lightnings_values() -> None:
    from camshaft.trainer import states

    for name in ("TrainerStatus", "TrainerFn", "RunningStage"):
        theirs = getattr(lightning.trainer.states, name)
        assert {one.name: one.value for one in getattr(states, name)} == {one.name: one.value for one in theirs}


@pytest.mark.parametrize("own", [None, "step", "epoch"])
def test_a_timer_tells_how_much_of_the_time_is_left(own: str | None) -> None:
    for library, callbacks in ((lightning, lightning.callbacks), (compat, stock)):
        timers = [] if own is None else [callbacks.Timer(interval=own)]
        trainer = library.Trainer(max_time="00:00:10:00", callbacks=timers, accelerator="cpu", logger=False)
        left = [one.time_remaining() for one in trainer.callbacks if isinstance(one, callbacks.Timer)]
        assert left == [600.0 if own is None else None]


def shown(library: Any, max_epochs: int, by_hand: bool) -> list[str]:
    """Return what a trainer and a module show: before a fit that ends after two epochs, in it and after it."""
    found: list[Any] = []

    class Module(library.LightningModule):  # type: ignore[misc]
        def __init__(self, width: int = 3, name: str = "x", deep: Any = None) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.layer = torch.nn.Linear(2, width)
            self.automatic_optimization = not by_hand

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("z", 1.0, prog_bar=True)
            self.log("a", 1.0, on_step=True, on_epoch=True, prog_bar=True)
            if by_hand:
                self.optimizers().step()
            return self.layer(batch).sum()

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val", 1.0, on_step=True, on_epoch=True, prog_bar=True)

        def on_train_epoch_end(self) -> None:
            found.extend(f"{self.trainer.state.fn} {self.trainer.state.stage} {self.trainer.state.status}".split())
            self.log("end", 1.0)
            self.trainer.should_stop = self.current_epoch == 1

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = library.Trainer(accelerator="cpu", logger=False, max_epochs=max_epochs, **quiet)
    found += [trainer.num_training_batches, trainer.fit_loop.max_batches, trainer.fit_loop.max_epochs]
    module, data = Module(), DataLoader(torch.ones(4, 2), batch_size=2)
    found += [f"{module.hparams}", f"{Module(deep={'a': 1}).hparams_initial}"]
    trainer.fit(module, data, data)
    loop = trainer.fit_loop.epoch_loop
    found += [trainer.num_training_batches, trainer.max_epochs, trainer.fit_loop.max_epochs]
    found += [loop.manual_optimization.optim_step_progress.total.completed]
    found += [loop.automatic_optimization.optim_progress.optimizer_steps]
    return [*found, *(list(getattr(trainer, f"{one}_metrics")) for one in ("logged", "callback", "progress_bar"))]


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("max_epochs", [-1, 2])
@pytest.mark.filterwarnings("ignore")
def test_trainers_and_hyperparameters_show_what_lightnings_do(max_epochs: int, by_hand: bool) -> None:
    assert shown(_Camshaft, max_epochs, by_hand) == shown(lightning, max_epochs, by_hand)


def warned(library: Any, folder: Path, case: str) -> tuple[int, Any]:
    """Return how many warnings name an argument or a step, and what was returned."""

    class Module(library.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("loss", 1.0)
            return self.layer(batch).sum()

        def predict_step(self, batch: Any, batch_idx: int) -> None:
            pass

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            pass

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    data, module, words, result = DataLoader(torch.ones(4, 2)), Module(), case, None
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        if case == "barebones=True":
            library.Trainer(accelerator="cpu", barebones=True, max_steps=2).fit(module, data)
        elif case == "benchmark=True":
            library.Trainer(deterministic=True, benchmark=True, **quiet)
        elif case == "returned None":
            result = library.Trainer(enable_checkpointing=False, **quiet).predict(module, data)
        else:
            words = "the first|first checkpoint"
            saving = [library.callbacks.ModelCheckpoint(folder / str(every), every_n_epochs=every) for every in (1, 2)]
            trainer = library.Trainer(callbacks=saving, max_steps=2, **quiet)
            trainer.fit(module, data)
            result = trainer.validate(module, data, ckpt_path="best", verbose=False)
    return sum(re.search(words, str(one.message)) is not None for one in told), result


@pytest.mark.parametrize("case", ["barebones=True", "benchmark=True", "returned None", "best"])
def test_what_is_probably_a_mistake_is_warned_of_as_often(case: str, tmp_path: Path) -> None:
    ours, theirs = warned(_Camshaft, tmp_path / "ours", case), warned(lightning, tmp_path / "theirs", case)
    assert ours == theirs
    assert ours[0] > 0


@pytest.mark.filterwarnings("ignore")
def test_the_stage_of_setup_is_a_plain_text_that_equals_lightnings() -> None:
    stages: list[Any] = []
    for library in (_Camshaft, lightning):

        class Data(library.LightningDataModule):  # type: ignore[misc]
            def setup(self, stage: str) -> None:
                stages.append(stage)

            def predict_dataloader(self) -> Any:
                return DataLoader(torch.ones(1, 2))

        class Module(library.LightningModule):  # type: ignore[misc]
            def predict_step(self, batch: Any, batch_idx: int) -> Any:
                return batch

        library.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False).predict(Module(), Data())
    assert stages[0] == stages[1]
    assert type(stages[0]) is str


@pytest.mark.parametrize("values", [[1, 2, 4, None], [1, 2, 4, 8, None]])
@pytest.mark.filterwarnings("ignore")
def test_a_last_batch_of_none_closes_no_accumulation_window(values: list[Any]) -> None:
    updates: dict[Any, list[Any]] = {}
    for library in (_Camshaft, lightning):
        of_library = updates.setdefault(library, [])

        class Module(library.LightningModule):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.weight = torch.nn.Parameter(torch.zeros(1))

            def training_step(self, batch: Any, batch_idx: int) -> Any:
                return self.weight.sum() * batch

            def on_before_optimizer_step(self, optimizer: Any) -> None:
                of_library.append((self.current_epoch, self.weight.grad.item()))  # noqa: B023

            def configure_optimizers(self) -> Any:
                return torch.optim.SGD(self.parameters(), lr=0.1)

        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
        loader = DataLoader(values, batch_size=None)
        library.Trainer(accelerator="cpu", logger=False, max_epochs=2, accumulate_grad_batches=2, **quiet).fit(
            Module(), loader
        )
    assert updates[_Camshaft] == updates[lightning]
