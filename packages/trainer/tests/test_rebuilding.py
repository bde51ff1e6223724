"""Building a module from a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from camshaft.strategies import write_checkpoint
from camshaft.trainer import TrainingModule


class Network(TrainingModule):
    def __init__(self, width: int, bias: bool = True) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layer = nn.Linear(width, 1, bias=bias)
        self.epoch_of_checkpoint: int | None = None

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.epoch_of_checkpoint = checkpoint["epoch"]


def save(module: TrainingModule, path: Path, **changes: Any) -> Path:
    checkpoint = {"state_dict": module.state_dict(), "hyper_parameters": dict(module.hparams), "epoch": 7, **changes}
    write_checkpoint(checkpoint, path)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "module.ckpt"


def test_arguments_and_weights_come_from_the_checkpoint(path: Path) -> None:
    module = Network(5, bias=False)
    loaded = Network.load_from_checkpoint(save(module, path))
    assert type(loaded) is Network
    assert loaded.hparams == {"width": 5, "bias": False}
    assert torch.equal(loaded.layer.weight, module.layer.weight)
    assert loaded.epoch_of_checkpoint == 7


def test_an_instance_stays_as_it_is_and_so_is_refused(path: Path) -> None:
    module = Network(5)
    save(module, path)
    with pytest.raises(TypeError, match=r"`load_from_checkpoint` must be called on the class.*Network\.load_from"):
        module.load_from_checkpoint(path)

    class Wider(Network):
        @classmethod
        def load_from_checkpoint(cls, *args: Any, **kwargs: Any) -> Any:
            return super().load_from_checkpoint(*args, **kwargs)

    assert type(Wider.load_from_checkpoint(path)) is Wider


def test_arguments_that_are_passed_go_before_saved_ones(path: Path) -> None:
    save(Network(5), path)
    assert Network.load_from_checkpoint(path, strict=False, bias=False).hparams == {"width": 5, "bias": False}


def test_weights_must_fit_if_strict(path: Path) -> None:
    save(Network(5, bias=False), path)
    with pytest.raises(RuntimeError, match=r"Missing key.*layer\.bias"):
        Network.load_from_checkpoint(path, bias=True)
    assert Network.load_from_checkpoint(path, strict=False, bias=True).layer.bias is not None


@pytest.mark.gpu
def test_tensors_and_module_go_to_the_device_that_is_asked_for(path: Path, accelerator: str) -> None:
    save(Network(5), path)
    assert Network.load_from_checkpoint(path, map_location=accelerator).device.type == accelerator


@pytest.mark.gpu
def test_a_module_that_was_saved_from_a_gpu_is_loaded_on_the_cpu(path: Path, accelerator: str) -> None:
    save(Network(5).to(accelerator), path)
    assert Network.load_from_checkpoint(path).device == torch.device("cpu")


def test_saved_arguments_that_the_class_does_not_take_are_left_out(path: Path) -> None:
    class Base(TrainingModule):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.layer = nn.Linear(width, 1)

    class Doubled(Base):
        def __init__(self, half: int) -> None:
            super().__init__(width=2 * half)

    module = Doubled(half=3)
    assert module.hparams == {"width": 6, "half": 3}
    assert Doubled.load_from_checkpoint(save(module, path)).layer.in_features == 6


def test_a_missing_argument_is_explained(path: Path) -> None:
    save(Network(5), path, hyper_parameters={"bias": True})
    with pytest.raises(TypeError, match="width") as raised:
        Network.load_from_checkpoint(path)
    assert raised.value.__notes__ == [
        "Raised in Network.load_from_checkpoint, which passed bias. Pass what is missing as keyword arguments, or call "
        "`save_hyperparameters` in `__init__`."
    ]
    assert Network.load_from_checkpoint(path, width=5).hparams.width == 5


def test_layers_that_configure_model_creates_are_there_for_the_weights(path: Path) -> None:
    class Lazy(TrainingModule):
        def configure_model(self) -> None:
            if not hasattr(self, "layer"):
                self.layer = nn.Linear(2, 1)

    module = Lazy()
    module.configure_model()
    assert torch.equal(Lazy.load_from_checkpoint(save(module, path)).layer.weight, module.layer.weight)


def test_a_file_without_weights_is_refused(path: Path) -> None:
    write_checkpoint({"epoch": 1}, path)
    with pytest.raises(ValueError, match=r"`path` must be a checkpoint with a 'state_dict', but got \['epoch'\]"):
        Network.load_from_checkpoint(path)


def test_a_missing_file_is_refused(path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="must be an existing checkpoint"):
        Network.load_from_checkpoint(path)
