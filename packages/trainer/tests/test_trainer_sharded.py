"""Two real processes train a sharded model, whose checkpoints are folders that anybody reads."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import run_ranks
from sharded_scenes import Layers, fit_weighted, train, trainer_in, whole
from trainer_parts import assert_same, loader

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], ...]:
    outcome = run_ranks(Path(__file__).with_name("sharded_scenes.py"), 2, args=[tmp_path_factory.mktemp("sharded")])
    return tuple(outcome.succeeded().named)


@pytest.fixture(scope="module")
def sharded(ranks: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
    return tuple(found["train"] for found in ranks)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return train(tmp_path_factory.mktemp("alone"), 1)


def test_a_sharded_run_goes_on_exactly_from_what_is_trained_alone(ranks: tuple[dict[str, Any], ...]) -> None:
    for found in ranks:
        adapters = found["adapters"]
        assert_same(adapters["resumed"], adapters["whole"])
        assert adapters["saved"] == ["layer.bias", "layer.weight"]
        assert adapters["first"].keys() > {"layer.bias", "blocks.0.weight"}


def test_a_sharded_model_ends_with_the_weights_of_one_process(sharded: Any, alone: dict[str, Any]) -> None:
    first, second = sharded
    assert_same(first["weights"], second["weights"])
    for name, value in alone["weights"].items():
        torch.testing.assert_close(first["weights"][name], value, msg=lambda text, name=name: f"{name}: {text}")
    assert first["losses"] == second["losses"] == [pytest.approx(alone["losses"][0], rel=1e-4)]


def test_it_goes_on_from_last_to_the_bit(sharded: Any) -> None:
    for found in sharded:
        assert_same(found["resumed"], found["weights"])


def test_several_optimizers_on_one_loss_train_as_by_hand_and_go_on_to_the_bit(ranks: Any) -> None:
    for found in (rank["jointly"] for rank in ranks):
        assert_same(found["resumed"], found["whole"])
        assert any((found["first"][name] != value).any() for name, value in found["whole"].items())
        for name, value in found["by hand"].items():
            torch.testing.assert_close(found["whole"][name], value, msg=lambda text, name=name: f"{name}: {text}")


def test_weighted_losses_train_as_one_process_does_on_every_strategy(ranks: Any, tmp_path: Path) -> None:
    """Its batches are those of both, so the mean over a window's items is the same."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alone = fit_weighted(tmp_path, 1, "auto")
    for rank in ranks:
        for name, found in rank["weighted"].items():
            tolerance = 0.02 if "half" in name else 1e-5
            for key, value in alone["weights"].items():
                torch.testing.assert_close(found["weights"][key], value, rtol=tolerance, atol=tolerance, msg=name)
            assert found["loss"] == pytest.approx(alone["loss"], rel=tolerance), name


@pytest.mark.parametrize("accumulation", ["reduce", "keep", "keep_all"])
def test_a_run_that_was_saved_inside_of_a_window_goes_on_from_there_to_the_bit(ranks: Any, accumulation: str) -> None:
    for found in (rank[accumulation] for rank in ranks):
        assert_same(found["from saved"], found["saving"])
        assert_same(found["from stopped"], found["saving"])
        for name, value in found["uninterrupted"].items():
            torch.testing.assert_close(found["saving"][name], value, msg=lambda text, name=name: f"{name}: {text}")
            torch.testing.assert_close(ranks[0]["reduce"]["saving"][name], value)


def test_its_checkpoints_are_folders_of_which_as_many_are_kept_as_was_asked_for(
    sharded: Any, alone: dict[str, Any]
) -> None:
    for found in sharded:
        assert found["kept"] == alone["kept"] == ["epoch=2.ckpt", "last.ckpt"]
        assert found["are_folders"] == [True, True] and alone["are_folders"] == [False, False]
        assert found["best"] == found["losses"]
        assert all(names is not None for names in found["meshes"])


def test_one_process_reads_what_two_have_saved(sharded: Any, tmp_path: Path) -> None:
    found, _ = sharded
    module = Layers.load_from_checkpoint(found["best_path"])
    assert module.width == 16 and module.meshes == [None]
    assert_same(whole(module), found["weights"])
    trainer = trainer_in(tmp_path)
    losses = trainer.validate(Layers(), loader(3), ckpt_path=found["best_path"], verbose=False)
    assert losses == [pytest.approx(found["losses"][0], rel=1e-5)]
    resumed = Layers()
    longer = trainer_in(tmp_path, max_epochs=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        longer.fit(resumed, loader(8), loader(3), ckpt_path=found["best_path"])
    assert longer.current_epoch == 4 and longer.global_step > 12
