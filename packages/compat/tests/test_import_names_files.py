from __future__ import annotations

import inspect
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from camshaft.compat import DataModule, Trainer, TrainingModule
from camshaft.compat.names.modules.boring_classes import (
    BoringDataModule,
    BoringModel,
    DemoModel,
    ManualOptimBoringModel,
    RandomIterableDataset,
)
from camshaft.compat.names.utilities.saving import (
    get_filesystem,
    get_init_args,
    lightning_getattr,
    lightning_hasattr,
    lightning_setattr,
    load_from_checkpoint,
    load_hparams_from_tags_csv,
    load_hparams_from_yaml,
    load_state,
    save_hparams_to_yaml,
    save_hyperparameters,
    update_hparams,
)
from camshaft.trainer.hyperparameters import HyperparametersMixin

HPARAMS = {"width": 3, "rate": 0.1, "sizes": [1, 2], "shape": (3, 4), "name": "x", "nothing": None, "deep": {"a": True}}


class Own(BoringModel):
    def __init__(self, width: int = 1, depth: int = 2) -> None:
        super().__init__()
        self.save_hyperparameters()

    @classmethod
    def load_from_checkpoint(cls, checkpoint_path: Any, **kwargs: Any) -> Any:
        return load_from_checkpoint(cls, checkpoint_path, **kwargs)


def test_hyperparameters_are_the_same_after_a_yaml_file(tmp_path: Path) -> None:
    file = tmp_path / "hparams.yaml"
    save_hparams_to_yaml(file, HPARAMS)
    assert load_hparams_from_yaml(file, use_omegaconf=False) == HPARAMS
    save_hparams_to_yaml(file, Namespace(**HPARAMS))
    assert load_hparams_from_yaml(file, use_omegaconf=False) == HPARAMS


def test_what_yaml_cannot_have_is_left_out_with_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "hparams.yaml"
    with pytest.warns(UserWarning, match="The hyperparameter 'layer' is not in"):
        save_hparams_to_yaml(file, {"layer": torch.nn.Linear(1, 1), "width": 3})
    assert load_hparams_from_yaml(file, use_omegaconf=False) == {"width": 3}


def test_names_in_a_yaml_file_are_not_imported(tmp_path: Path) -> None:
    file = tmp_path / "hparams.yaml"
    file.write_text("run: !!python/object/apply:os.system ['false']")
    with pytest.raises(Exception, match="could not determine a constructor"):
        load_hparams_from_yaml(file)


def test_hyperparameters_are_read_from_a_table(tmp_path: Path) -> None:
    file = tmp_path / "meta_tags.csv"
    file.write_text('key,value\nwidth,3\nname,x\nsizes,"[1, 2]"\nnothing,\n')
    assert load_hparams_from_tags_csv(file) == {"width": 3, "name": "x", "sizes": [1, 2], "nothing": ""}


def test_a_missing_file_has_no_hyperparameters_and_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match="does not exist"):
        assert load_hparams_from_yaml(tmp_path / "none.yaml") == {}
    with pytest.warns(RuntimeWarning, match="does not exist"):
        assert load_hparams_from_tags_csv(tmp_path / "none.csv") == {}
    with pytest.raises(FileNotFoundError, match="none"):
        save_hparams_to_yaml(tmp_path / "none" / "file", HPARAMS)
    with pytest.raises(TypeError, match="`hparams` must be a dictionary or a namespace"):
        save_hparams_to_yaml(tmp_path / "file.yaml", 3)  # type: ignore[arg-type]


def test_file_systems_are_those_of_fsspec(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    assert get_filesystem(tmp_path).exists(str(tmp_path))
    save_hparams_to_yaml("memory://hparams.yaml", HPARAMS)
    assert load_hparams_from_yaml("memory://hparams.yaml", use_omegaconf=False) == HPARAMS


def test_nested_hyperparameters_are_updated() -> None:
    hparams = {"a": {"b": 1, "c": 2}, "d": 3}
    update_hparams(hparams, {"a": {"b": 4, "e": 5}, "f": {"g": 6}})
    assert hparams == {"a": {"b": 4, "c": 2, "e": 5}, "d": 3, "f": {"g": 6}}


def test_a_module_is_built_past_its_own_override_and_from_a_dictionary(tmp_path: Path) -> None:
    module = Own(5)
    trainer = Trainer(max_steps=1, default_root_dir=tmp_path, enable_progress_bar=False, logger=False)
    trainer.fit(module)
    trainer.save_checkpoint(tmp_path / "file.ckpt")
    loaded = Own.load_from_checkpoint(tmp_path / "file.ckpt", depth=7)
    assert loaded.hparams == {"width": 5, "depth": 7}
    assert torch.equal(loaded.layer.weight, module.layer.weight)
    checkpoint = torch.load(tmp_path / "file.ckpt")
    built = load_state(Own, checkpoint, width=6)
    assert built.hparams == {"width": 6, "depth": 2}
    assert torch.equal(built.layer.weight, module.layer.weight)
    del checkpoint["state_dict"]["layer.bias"]
    with pytest.raises(RuntimeError, match=r"Missing key.*layer\.bias"):
        load_state(Own, checkpoint)
    assert load_state(Own, checkpoint, strict=False).hparams == {"width": 5, "depth": 2}
    with pytest.raises(TypeError, match="`cls` must be a subclass of LightningModule or LightningDataModule"):
        load_from_checkpoint(torch.nn.Linear, tmp_path / "file.ckpt")


def test_arguments_of_running_constructors_are_found() -> None:
    found: list[Any] = []

    class Base(HyperparametersMixin):
        def __init__(self, size: int, *rest: int, **more: Any) -> None:
            super().__init__()
            frame = inspect.currentframe()
            assert frame is not None
            found.append(get_init_args(frame))

    class Derived(Base):
        def __init__(self, width: int = 3) -> None:
            super().__init__(width + 1, 8, kind="x")

    Derived()
    assert found == [{"size": 4, "kind": "x"}]
    frame = inspect.currentframe()
    assert frame is not None and get_init_args(frame) == {}


def test_hyperparameters_are_saved_by_the_function() -> None:
    class Other(HyperparametersMixin):
        def __init__(self, width: int, depth: int) -> None:
            save_hyperparameters(self, ignore="depth")

    class Given(HyperparametersMixin):
        def __init__(self) -> None:
            save_hyperparameters(self, "width", given_hparams={"width": 1, "depth": 2})

    @dataclass
    class Fields(HyperparametersMixin):
        width: int
        depth: int = 2

        def __post_init__(self) -> None:
            save_hyperparameters(self)

    assert Other(1, 2).hparams == {"width": 1}
    assert Given().hparams == {"width": 1}
    assert Fields(1).hparams == {"width": 1, "depth": 2}


def test_attributes_are_found_in_module_hyperparameters_and_data_module() -> None:
    module = Own(5)
    assert lightning_getattr(module, "width") == 5
    module._trainer = SimpleNamespace(datamodule=SimpleNamespace(width=9, batch_size=2))
    assert lightning_getattr(module, "width") == 9
    lightning_setattr(module, "width", 4)
    assert (module.hparams.width, module._trainer.datamodule.width) == (4, 4)
    assert lightning_hasattr(module, "batch_size") and not lightning_hasattr(module, "other")
    with pytest.raises(AttributeError, match="`attribute` must be an attribute of the module, its hyper"):
        lightning_getattr(module, "other")


@pytest.mark.parametrize("module", [BoringModel, ManualOptimBoringModel])
@pytest.mark.parametrize("data", [None, BoringDataModule])
def test_boring_classes_run_in_every_verb(
    module: type[TrainingModule], data: type[DataModule] | None, tmp_path: Path
) -> None:
    trainer = Trainer(fast_dev_run=1, default_root_dir=tmp_path, enable_progress_bar=False)
    made = module()
    loaders = None if data is None else data()
    for verb in (trainer.fit, trainer.validate, trainer.test, trainer.predict):
        verb(made, datamodule=loaders)
    assert trainer.num_training_batches == 1


def test_boring_data_are_as_large_as_they_say() -> None:
    assert len(list(RandomIterableDataset(4, 6))) == 6
    assert DemoModel(3)(torch.ones(2, 4, 8)).shape == (2, 3)
