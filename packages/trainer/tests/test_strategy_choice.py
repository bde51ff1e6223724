"""Which strategy a trainer gets, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from camshaft.hooks_core import StrategyDefaults
from camshaft.strategies import DDPStrategy, ShardedStrategy, SingleDeviceStrategy
from camshaft.trainer import Trainer
from camshaft.trainer.configuration import choose_strategy, num_devices_of, num_nodes_of

TORCHRUN = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
}
SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2",
    "SLURM_STEP_NODELIST": "localhost",
}


@pytest.fixture
def torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("devices", ["auto", 1, "1", [0], (0,), -1], ids=repr)
@pytest.mark.parametrize("strategy", ["auto", "single_device"])
def test_one_device_is_the_default_strategy(strategy: str, devices: Any) -> None:
    chosen = choose_strategy(strategy, accelerator="cpu", devices=devices)
    assert type(chosen) is SingleDeviceStrategy and chosen.device == torch.device("cpu")
    assert chosen.precision.name == "32-true"
    assert (num_devices_of(chosen), num_nodes_of(chosen)) == (1, 1)


@pytest.mark.parametrize("precision", [32, "bf16", "64-true"])
def test_the_precision_is_the_strategys(precision: Any) -> None:
    trainer = Trainer(accelerator="cpu", precision=precision, logger=False)
    assert trainer.strategy.precision.name == {32: "32-true", "bf16": "bf16-mixed"}.get(precision, precision)


@pytest.mark.usefixtures("torchrun")
@pytest.mark.parametrize("strategy", ["auto", "ddp"])
@pytest.mark.parametrize("devices", ["auto", 2])
def test_processes_that_were_started_are_a_ddp_strategy(strategy: str, devices: Any) -> None:
    trainer = Trainer(strategy=strategy, accelerator="cpu", devices=devices, precision="bf16-mixed")
    assert type(trainer.strategy) is DDPStrategy and trainer.strategy.precision.name == "bf16-mixed"
    assert (trainer.global_rank, trainer.local_rank, trainer.world_size) == (3, 1, 4)
    assert (trainer.num_devices, trainer.num_nodes, trainer.is_global_zero) == (2, 2, False)


def test_slurms_are_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    trainer = Trainer(accelerator="cpu")
    assert type(trainer.strategy) is DDPStrategy
    assert (trainer.global_rank, trainer.world_size, trainer.num_devices) == (1, 2, 2)


@pytest.mark.usefixtures("torchrun")
def test_every_name_has_a_strategy() -> None:
    def of(name: str) -> Any:
        return choose_strategy(name, accelerator="cpu")

    assert type(of("sharded")) is type(of("fsdp")) is ShardedStrategy
    assert type(of("ddp_find_unused_parameters_true")) is DDPStrategy
    assert type(of("single_device")) is SingleDeviceStrategy


@pytest.mark.usefixtures("torchrun")
@pytest.mark.parametrize(
    ("name", "looks"),
    [("ddp", False), ("ddp_find_unused_parameters_true", True), ("ddp_find_unused_parameters_false", False)],
)
def test_unused_parameters_are_looked_for_by_name(name: str, looks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    make = DDPStrategy.__init__

    def noting(self: DDPStrategy, **given: Any) -> None:
        asked.update(given)
        make(self, **given)

    monkeypatch.setattr(DDPStrategy, "__init__", noting)
    choose_strategy(name, accelerator="cpu")
    assert asked.get("find_unused_parameters", False) is looks


def test_a_strategy_object_is_taken_as_it_is() -> None:
    strategy = SingleDeviceStrategy("cpu", precision="bf16-mixed")
    for accelerator, devices, precision in (("auto", "auto", None), ("cpu", 1, "bf16"), ("cpu", [0], "bf16-mixed")):
        chosen = choose_strategy(strategy, accelerator=accelerator, devices=devices, precision=precision)
        assert chosen is strategy


@pytest.mark.usefixtures("torchrun")
def test_a_strategy_object_of_several_processes_too() -> None:
    strategy = DDPStrategy(accelerator="cpu")
    for devices, num_nodes in (("auto", 1), (2, 2), ("2", 2)):
        assert choose_strategy(strategy, devices=devices, num_nodes=num_nodes) is strategy
    with pytest.raises(ValueError, match=r"`devices` must be 'auto' or that of the strategy object \(2\), but got 4"):
        choose_strategy(strategy, devices=4)
    with pytest.raises(ValueError, match=r"`num_nodes` must be 1 or that of the strategy object \(2\), but got 3"):
        choose_strategy(strategy, num_nodes=3)


class Foreign(StrategyDefaults):
    """Somebody else's: the least that a strategy has, and no precision that anybody can ask for."""

    device = torch.device("cpu")
    global_rank = local_rank = 0
    world_size = 1

    def setup_module(self, module: nn.Module) -> nn.Module:
        return module

    def nothing(self, *arguments: Any) -> Any: ...

    setup_optimizers = batch_to_device = wrap_step = backward = optimizer_step = clip_gradients = nothing
    save_checkpoint = load_checkpoint = teardown = nothing


def test_the_defaults_that_may_be_mixed_in_are_enough_for_the_rest() -> None:
    strategy = Foreign()
    assert Trainer(strategy=strategy, logger=False).strategy is strategy


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"accelerator": "tpu"}, ValueError, r"`accelerator` must be 'auto', 'cpu', 'gpu' or a type .*, but got 'tpu'"),
    ({"strategy": "ddp_spawn"}, ValueError, r"`strategy` must be one of 'auto', .*'ddp'.* or a strategy object"),
    ({"strategy": SingleDeviceStrategy}, TypeError, r"`strategy` must be a strategy object.*SingleDeviceStrategy\(\."),
    (
        {"strategy": nn.Identity()},
        TypeError,
        r"`strategy` must be a strategy.*missing: device, .*load_checkpoint.*mix in `camshaft.hooks_core.StrategyD",
    ),
    (
        {"strategy": SingleDeviceStrategy("cpu"), "accelerator": "cuda"},
        ValueError,
        r"`accelerator` must be 'auto' or that of the strategy object \(cpu\), but got 'cuda'",
    ),
    (
        {"strategy": SingleDeviceStrategy("cpu"), "devices": 2},
        ValueError,
        r"`devices` must be 'auto' or that of the strategy object \(1\), but got 2",
    ),
    (
        {"strategy": SingleDeviceStrategy("cpu"), "precision": "16-mixed"},
        ValueError,
        r"`precision` must be None or that of the strategy object \(32-true\), but got '16-mixed'",
    ),
    (
        {"strategy": Foreign(), "precision": "32-true"},
        ValueError,
        r"`precision` must be None or that of the strategy object \(its own\), but got '32-true'",
    ),
    ({"strategy": "single_device", "devices": 2}, ValueError, r"`devices` must be 'auto', 1 .*Pass strategy='ddp'"),
    ({"strategy": "single_device", "num_nodes": 2}, ValueError, r"`num_nodes` must be 1 for one device, but got 2"),
    ({"devices": ["0"]}, ValueError, r"`devices` must be .*, but got \['0'\]"),
    ({"accelerator": "cpu", "devices": 0}, ValueError, r"`devices` must be a positive int, .*, but got 0"),
    ({"accelerator": "cpu", "devices": [3]}, ValueError, r"`device_idx` must be from 0 to 0, but got 3"),
    ({"num_nodes": 2}, ValueError, r"`num_nodes` must be 1 in a process that is started alone, but got 2"),
    ({"precision": "8-bit"}, ValueError, r"`precision` must be one of 32-true, .*, but got '8-bit'"),
]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    REFUSED,
    ids=[" ".join(f"{n}={v!r:.20}" for n, v in a.items()) for a, _, _ in REFUSED],
)
def test_the_constructor_refuses(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Trainer(**arguments)


def test_several_devices_need_a_script_that_can_be_started_again() -> None:
    with pytest.raises(RuntimeError, match=r"`devices` must be .*, but got 2 \(int\).*torchrun"):
        Trainer(accelerator="cpu", devices=2)


def test_batch_normalisation_is_synchronised_by_the_strategy_and_by_nothing_else() -> None:
    choose_strategy("auto", accelerator="cpu", sync_batchnorm=True)  # of one process there is nothing to synchronise
    with pytest.raises(ValueError, match=r"`sync_batchnorm=True` cannot be combined with strategy='sharded'"):
        choose_strategy("sharded", sync_batchnorm=True)


@pytest.mark.new_feature("strategies")
def test_batch_normalisation_is_synchronised_by_ddp() -> None:
    strategy = choose_strategy("ddp", accelerator="cpu", devices=1, sync_batchnorm=True)
    assert strategy.given_arguments["sync_batchnorm"]


@pytest.mark.new_feature("strategies")
def test_logical_ranks_reach_the_strategy_that_is_made_or_agree_with_one_that_was_passed() -> None:
    for name in ("auto", "single_device", "ddp", "fsdp"):
        strategy = choose_strategy(name, accelerator="cpu", devices=1, logical_ranks=4)
        assert strategy.num_logical_ranks == 4 and strategy.logical_ranks == range(4)
    assert choose_strategy(strategy, logical_ranks=4) is strategy
    for given, message in (
        (
            {"strategy": strategy, "logical_ranks": 2},
            r"`logical_ranks` must be None or that of the strategy object \(4\)",
        ),
        ({"strategy": SingleDeviceStrategy("cpu"), "logical_ranks": 2}, r"that of the strategy object \(none\)"),
        ({"accelerator": "cpu", "logical_ranks": 3}, "`logical_ranks` must be a power of two"),
        ({"accelerator": "cpu", "logical_ranks": 0}, "`logical_ranks` must be at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            choose_strategy(**given)
    with pytest.raises(TypeError, match="`logical_ranks` must be an int or None"):
        choose_strategy("auto", accelerator="cpu", logical_ranks=2.0)  # type: ignore[arg-type]
