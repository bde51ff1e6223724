"""What code for Lightning 2.6 passes to a trainer and reads of it."""

from __future__ import annotations

import contextlib
import inspect
import logging
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from compat_parts import Regression, quiet_trainer
from torch import nn
from trainer_parts import NO_VALIDATION, loader

from camshaft.callbacks import SimpleProfiler, Timer
from camshaft.compat import Callback, DataModule, Trainer, TrainingModule
from camshaft.compat.names.plugins.accelerators import AcceleratorConnector
from camshaft.compat.names.utilities.types_and_flags import LRSchedulerConfig, RunningStage, TrainerFn
from camshaft.loops.optimization.configuration import read_configuration
from camshaft.strategies.precision import ScaledPrecision

pytestmark = pytest.mark.filterwarnings(NO_VALIDATION)


def test_the_signature_has_lightnings_order_and_every_name() -> None:
    names = list(inspect.signature(Trainer.__init__).parameters)
    assert names[:7] == ["self", "accelerator", "strategy", "devices", "num_nodes", "precision", "logger"]
    assert {"plugins", "enable_autolog_hparams", "model_registry", "strict_hooks", "zero_grad"} <= set(names)


def test_arguments_may_be_passed_by_position() -> None:
    trainer = Trainer("cpu", "auto", 1, 1, "bf16-true", False, max_epochs=3)  # type: ignore[misc]
    assert (trainer.precision, trainer.logger, trainer.max_epochs) == ("bf16-true", None, 3)
    with pytest.raises(TypeError, match="`accelerator` must be passed once"):
        Trainer("cpu", accelerator="cpu")  # type: ignore[misc]


def test_arguments_come_from_the_environment_unless_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PL_TRAINER_MAX_EPOCHS", "4")
    monkeypatch.setenv("PL_TRAINER_LOGGER", "False")
    monkeypatch.setenv("PL_TRAINER_ACCELERATOR", "cpu")
    monkeypatch.setenv("PL_TRAINER_MAX_NB_EPOCHSS", "no argument")
    trainer = Trainer(min_epochs=2)
    assert (trainer.max_epochs, trainer.min_epochs, trainer.logger) == (4, 2, None)
    assert Trainer(max_epochs=5).max_epochs == 5


def test_installed_packages_may_add_callbacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "adding.py").write_text(
        "from camshaft.callbacks import SimpleProfiler, Timer\n"
        "def one(): return SimpleProfiler()\n"
        "def several(): return [Timer(duration='00:00:01:00')]\n"
    )
    folder = tmp_path / "adding-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: adding\nVersion: 1.0\n")
    entries = "[lightning.pytorch.callbacks_factory]\none = adding:one\nseveral = adding:several\n"
    (folder / "entry_points.txt").write_text(entries)
    assert not any(isinstance(callback, Timer) for callback in Trainer(logger=False).callbacks)
    monkeypatch.syspath_prepend(tmp_path)
    first = Trainer(logger=False).callbacks
    assert [type(callback) for callback in first[:2]] == [SimpleProfiler, Timer]

    monkeypatch.delattr("importlib.metadata.entry_points")  # read once
    second = Trainer(logger=False).callbacks
    assert [type(callback) for callback in second[:2]] == [SimpleProfiler, Timer]
    assert second[1] is not first[1]  # made for each trainer


def test_unlimited_epochs_are_minus_one() -> None:
    assert Trainer(max_epochs=-1).max_epochs == -1


@pytest.mark.parametrize("name", ["ddp_notebook", "DDP_fork", "ddp_spawn_find_unused_parameters_false"])
def test_names_of_forms_of_start_are_ddp(name: str) -> None:
    is_fork = "spawn" not in name
    with contextlib.nullcontext() if is_fork else pytest.warns(UserWarning, match="started once for each process"):
        trainer = Trainer(accelerator="cpu", devices=2 if is_fork else 1, strategy=name, logger=False)
    assert type(trainer.strategy).__name__ == "DDPStrategy"
    assert trainer.strategy.start_method == ("fork" if is_fork else None)


def test_the_state_has_the_enumerations_of_the_import_names(tmp_path: Path) -> None:
    class Asking(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            seen.append((self.trainer.state.fn, self.trainer.state.stage))
            return super().training_step(batch, batch_idx)

    seen: list[Any] = []
    trainer = quiet_trainer(tmp_path, max_epochs=1)
    trainer.fit(Asking(), loader(1))
    ((function, stage),) = seen
    assert function is TrainerFn.FITTING and stage is RunningStage.TRAINING
    assert trainer.state.finished and trainer.state.stage is None


def test_the_source_of_validation_loaders_is_known_when_optimizers_are_made(tmp_path: Path) -> None:
    class Asking(Regression):
        def configure_optimizers(self) -> Any:
            source = self.trainer.fit_loop.epoch_loop.val_loop._data_source
            seen.append((source.is_defined(), source.is_module()))
            return super().configure_optimizers()

    class Providing(Asking):
        def val_dataloader(self) -> Any:
            return loader(1)

    seen: list[tuple[bool, bool]] = []
    for module, loaders in ((Asking(), None), (Asking(), loader(1)), (Providing(), None)):
        quiet_trainer(tmp_path, max_epochs=1).fit(module, loader(1), loaders)
    assert seen == [(False, False), (True, False), (True, True)]


def test_whether_a_strategy_is_for_several_processes_is_known() -> None:
    assert not Trainer(accelerator="cpu")._accelerator_connector.is_distributed
    connector = Trainer(accelerator="cpu", devices=1, strategy="ddp")._accelerator_connector
    assert connector.is_distributed and connector.use_distributed_sampler


def test_code_that_profiles_by_hand_finds_a_profiler(tmp_path: Path) -> None:
    with Trainer(logger=False).profiler.profile("by hand"):
        pass
    assert isinstance(Trainer(logger=False, profiler="simple").profiler, SimpleProfiler)


def test_checkpoints_take_no_options_of_a_store(tmp_path: Path) -> None:
    trainer = quiet_trainer(tmp_path, max_epochs=1)
    trainer.fit(Regression(), loader(1))
    with pytest.raises(TypeError, match="`storage_options` must be left out"):
        trainer.save_checkpoint(tmp_path / "a.ckpt", storage_options={"anon": True})
    trainer.save_checkpoint(filepath=tmp_path / "a.ckpt", weights_only=True)
    assert (tmp_path / "a.ckpt").exists()


def test_a_registry_of_models_is_refused() -> None:
    with pytest.raises(ValueError, match="`model_registry` must be left out"):
        Trainer(model_registry="name")  # type: ignore[call-arg]


def test_a_trainer_can_be_given_to_a_module() -> None:
    module, trainer = TrainingModule(), Trainer(logger=False)
    module.trainer = trainer
    assert module.trainer is trainer


@pytest.mark.parametrize(("arguments", "default"), [({}, 1000), ({"max_steps": 3}, -1)])
def test_max_epochs_is_none_until_a_fit_has_taken_its_default(
    tmp_path: Path, arguments: dict[str, int], default: int
) -> None:
    trainer = quiet_trainer(tmp_path, max_epochs=None, limit_train_batches=0, **arguments)
    assert trainer.max_epochs is None
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        trainer.fit(Regression(), loader())
        trainer.fit(Regression(), loader())
    assert trainer.max_epochs == default
    about = [str(one.message) for one in told if "`max_epochs` is not set" in str(one.message)]
    assert about == [
        "`max_epochs` is not set: training ends after 1000 epochs. Set it, or pass max_epochs=-1 for no limit."
    ] * (default == 1000)


@pytest.mark.parametrize(
    ("name", "value", "meaning"),
    [
        ("limit_val_batches", 1, "1 batch is used"),
        ("limit_val_batches", 1.0, "100% of the batches are used"),
        ("val_check_interval", 1, "validation runs after every batch"),
    ],
)
def test_a_limit_of_one_is_explained(caplog: pytest.LogCaptureFixture, name: str, value: float, meaning: str) -> None:
    with caplog.at_level(logging.INFO):
        Trainer(logger=False, **{name: value})
        assert caplog.messages == [f"`Trainer({name}={value})`: {meaning}."]
        caplog.clear()
        Trainer(logger=False, limit_val_batches=0.5, val_check_interval=2)
    assert not caplog.messages


def test_settings_of_schedulers_are_compared_by_their_values() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    ours = read_configuration(([optimizer], [{"scheduler": scheduler, "interval": "step"}])).schedulers[0]
    assert ours == LRSchedulerConfig(scheduler, interval="step")
    assert ours != LRSchedulerConfig(scheduler)


@pytest.mark.parametrize("precision", [16, "16-mixed"])
@pytest.mark.parametrize("accelerator", ["cpu", "auto"])
def test_mixed_float16_on_a_cpu_is_bfloat16_with_a_warning(
    precision: Any, accelerator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.warns(UserWarning, match="is taken as 'bf16-mixed' on a CPU"):
        trainer = Trainer(precision=precision, accelerator=accelerator, logger=False)
    assert trainer.precision == "bf16-mixed"
    assert Trainer(precision=ScaledPrecision("cpu"), accelerator="cpu", logger=False).precision == "16-mixed"


def test_a_trainers_connector_has_the_flags_of_one_of_its_own() -> None:
    for arguments in ({"devices": 1}, {"devices": 1, "strategy": "ddp"}):
        view = Trainer(accelerator="cpu", logger=False, **arguments)._accelerator_connector
        own = AcceleratorConnector(accelerator="cpu", **arguments)
        for name in ("_accelerator_flag", "_devices_flag", "_parallel_devices", "is_distributed"):
            assert getattr(view, name) == getattr(own, name), name


def test_the_sharing_of_loaders_may_be_turned_off_through_the_connector() -> None:
    trainer = Trainer(accelerator="cpu", logger=False)
    trainer._accelerator_connector.use_distributed_sampler = False
    loops = (trainer.fit_loop.loader_settings, trainer.fit_loop.validation, trainer.validate_loop, trainer.test_loop)
    assert not any(loop.use_distributed_sampler for loop in (*loops, trainer.predict_loop))


def test_a_data_module_may_be_assigned_for_code_outside_of_verbs_and_is_passed_to_verbs(tmp_path: Path) -> None:
    class Data(DataModule):
        def train_dataloader(self) -> Any:
            return loader(2)

    trainer, module, data, other = quiet_trainer(tmp_path, max_epochs=1), Regression(), Data(), Data()
    assert trainer.datamodule is None
    trainer.datamodule = data
    assert trainer.datamodule is data
    with pytest.raises(ValueError, match=r"`datamodule` must be passed to the verb, too, but got .*Data.*Trainer\.fit"):
        trainer.fit(module, loader(2))
    trainer.fit(module, datamodule=data)
    assert trainer.datamodule is data
    trainer.datamodule = None
    assert trainer.datamodule is None
    trainer.fit_loop.max_epochs = 2
    trainer.fit(module, datamodule=other)
    assert trainer.datamodule is other


@pytest.mark.parametrize("name", ["limit_val_batches", "num_sanity_val_steps", "overfit_batches"])
def test_a_flag_stands_for_a_count(name: str) -> None:
    assert getattr(Trainer(**{name: False}, logger=False), name) == 0
    assert getattr(Trainer(**{name: True}, logger=False), name) == 1


def test_optimizers_are_toggled_and_unwrapped_as_with_lightnings_wrapper(tmp_path: Path) -> None:
    class Both(Regression):
        automatic_optimization = False

        def __init__(self) -> None:
            super().__init__()
            self.other = nn.Linear(1, 1)

        def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
            first, second = self.optimizers()
            for optimizer, sync_grad in ((first, True), (second, False)):
                with optimizer.toggle_model(sync_grad=sync_grad):
                    trained.append([name for name, value in self.named_parameters() if value.requires_grad])
                assert isinstance(optimizer.optimizer, torch.optim.SGD)
            assert all(value.requires_grad for value in self.parameters())

        def configure_optimizers(self) -> Any:
            return [torch.optim.SGD(one.parameters(), 0.1) for one in (self.layer, self.other)]

    trained: list[list[str]] = []
    quiet_trainer(tmp_path).fit(Both(), loader(1))
    assert trained == [["layer.weight", "layer.bias"], ["other.weight", "other.bias"]]


class Halving:
    """A wrapper around an optimizer, which has no base class and takes no closure, as those for LARS."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        self.state_dict, self.load_state_dict = inner.state_dict, inner.load_state_dict
        self.zero_grad = inner.zero_grad

    @property
    def param_groups(self) -> Any:
        return self.inner.param_groups

    def step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad *= 0.5
        self.inner.step()


@pytest.mark.parametrize("by_hand", [False, True])
def test_optimizers_are_handed_out_as_they_are(tmp_path: Path, by_hand: bool) -> None:
    seen: list[Any] = []

    class Wrapped(Regression):
        automatic_optimization = not by_hand

        def training_step(self, batch: Any, batch_idx: int) -> Any:  # type: ignore[override]
            optimizer, loss = self.optimizers(), super().training_step(batch, batch_idx)
            seen.append(optimizer)
            if not by_hand:
                return loss
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            return None

        def configure_optimizers(self) -> Any:
            self.made = Halving(torch.optim.SGD(self.parameters(), 0.1))
            return self.made

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            seen.append(optimizer)

    class Own(Callback):
        def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            seen.extend([optimizer, *trainer.optimizers])

    trainer, module = quiet_trainer(tmp_path, callbacks=[Own()], max_epochs=1), Wrapped()
    trainer.fit(module, loader(2))
    assert trainer.global_step == 2 and len(seen) == 8
    assert all(one is module.made for one in seen)
