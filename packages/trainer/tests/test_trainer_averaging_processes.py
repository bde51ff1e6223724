"""Two real processes average and freeze weights, replicated and sharded, as one process does."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from averaging_scenes import CALLBACKS, RESUMED_AT, Layers, scenes
from launching import run_ranks
from trainer_parts import assert_same, dataset

pytestmark = pytest.mark.processes

STRATEGIES = ["ddp", "sharded"]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    outcome = run_ranks(Path(__file__).with_name("averaging_scenes.py"), 2, args=[tmp_path_factory.mktemp("averaging")])
    first, second = outcome.succeeded().named
    return first, second


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return scenes(tmp_path_factory.mktemp("alone"), "single_device", 1)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_all_processes_end_with_the_same_weights(found: Any, strategy: str) -> None:
    first, second = (one[strategy] for one in found)
    for kind in first.keys() & CALLBACKS.keys():
        parameters = dict(Layers().named_parameters())
        for what in ("weights", "training"):
            of_both = [{name: one[kind][what].get(name) for name in parameters} for one in (first, second)]
            if first[kind][what]:
                assert_same(of_both[0], of_both[1], kind)


@pytest.mark.parametrize(
    ("strategy", "kind"),
    [(strategy, kind) for strategy in STRATEGIES for kind in CALLBACKS if (strategy, kind) != ("sharded", "backbone")],
)
def test_going_on_from_inside_an_epoch_and_from_its_end_gives_the_same_bits(
    found: Any, strategy: str, kind: str
) -> None:
    rank_zero = found[0][strategy]
    for step in RESUMED_AT:
        assert_same(rank_zero[f"{kind} from {step}"], rank_zero[kind], f"from {step}")


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", ["ema", "manual", "swa"])
def test_a_checkpoint_after_the_end_holds_the_average_and_what_to_train_on_with(
    found: Any, strategy: str, kind: str
) -> None:
    end = found[0][strategy][kind]
    assert_same(end["saved"], end["weights"])
    for name, value in end["training"].items():
        assert torch.equal(end["saved_training"][name], value), name
        assert not torch.equal(value, end["weights"][name]), name


def test_sharded_averages_equal_those_of_replicas(found: Any) -> None:
    for kind in ("ema", "manual", "swa"):
        for name, value in found[0]["ddp"][kind]["weights"].items():
            torch.testing.assert_close(found[0]["sharded"][kind]["weights"][name], value, msg=f"{kind}: {name}")


def test_statistics_of_batch_normalisation_are_those_of_all_processes_data(found: Any, alone: dict[str, Any]) -> None:
    inputs = dataset(32).tensors[0]
    for rank in found:
        for strategy in STRATEGIES:
            weights = rank[strategy]["swa"]["weights"]
            torch.testing.assert_close(weights["backbone.0.running_mean"], inputs.mean(dim=0))
            assert weights["backbone.0.num_batches_tracked"] == 8
    assert alone["swa"]["weights"]["backbone.0.num_batches_tracked"] == 4


def test_learning_rates_are_those_of_one_process(found: Any, alone: dict[str, Any]) -> None:
    for rank in found:
        for kind in ("swa", "backbone"):
            assert rank["ddp"][kind]["rates"] == alone[kind]["rates"]
    assert len(alone["backbone"]["rates"]) == 2


def test_finetuning_a_sharded_module_is_refused_at_set_up(found: Any) -> None:
    for rank in found:
        assert "`module` must be unsharded" in rank["sharded"]["refused"]


def test_one_process_goes_on_as_well(alone: dict[str, Any]) -> None:
    for kind in CALLBACKS:
        for step in RESUMED_AT:
            assert_same(alone[f"{kind} from {step}"], alone[kind], f"{kind} from {step}")
