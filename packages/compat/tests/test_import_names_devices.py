from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from import_names_parts import names_of_earlier_code

from camshaft.callbacks import PreemptionCheckpoint
from camshaft.compat import Trainer
from camshaft.compat.names.plugins.accelerators import (
    Accelerator,
    AcceleratorConnector,
    AcceleratorRegistry,
    CPUAccelerator,
    CUDAAccelerator,
    MPSAccelerator,
    find_usable_cuda_devices,
    parse_gpu_ids,
)
from camshaft.compat.names.plugins.environments import (
    ClusterEnvironment,
    LightningEnvironment,
    SLURMEnvironment,
    TorchElasticEnvironment,
)
from camshaft.compat.names.plugins.precision import (
    DoublePrecision,
    FSDPPrecision,
    HalfPrecision,
    MixedPrecision,
    Precision,
)
from camshaft.strategies import DDPStrategy, SingleDeviceStrategy
from camshaft.strategies.precision import AutocastPrecision, ScaledPrecision, TruePrecision


@pytest.fixture
def no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


@pytest.fixture
def names() -> Iterator[None]:
    with names_of_earlier_code():
        yield


def quiet(tmp_path: Path, **arguments: Any) -> Trainer:
    return Trainer(default_root_dir=tmp_path, enable_progress_bar=False, accelerator="cpu", devices=1, **arguments)


@pytest.mark.usefixtures("two_gpus")
def test_kinds_of_devices_say_what_is_there() -> None:
    assert CPUAccelerator.is_available() and CPUAccelerator.auto_device_count() == 1
    assert CUDAAccelerator.is_available() and CUDAAccelerator.auto_device_count() == 2
    assert not MPSAccelerator.is_available() and MPSAccelerator.auto_device_count() == 1
    assert CPUAccelerator.parse_devices("3") == 3
    assert CPUAccelerator.get_parallel_devices(2) == [torch.device("cpu")] * 2
    assert CUDAAccelerator.parse_devices(-1) == [0, 1]
    assert CUDAAccelerator.get_parallel_devices([1]) == [torch.device("cuda", 1)]
    assert [CPUAccelerator.name(), CUDAAccelerator.name(), MPSAccelerator.name()] == ["cpu", "cuda", "mps"]


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("gpus", "indexes"),
    [
        (2, [0, 1]),
        ("2", [0, 1]),
        (1, [0]),
        ("1,", [1]),
        ("0,1", [0, 1]),
        ([1], [1]),
        (-1, [0, 1]),
        (0, None),
        ("0", None),
    ],
)
def test_gpus_are_a_number_or_indexes(gpus: Any, indexes: list[int] | None) -> None:
    assert parse_gpu_ids(gpus, include_cuda=True) == indexes


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("gpus", [3, [2], [0, 0], "5,"])
def test_gpus_that_are_not_there_are_refused(gpus: Any) -> None:
    with pytest.raises(ValueError, match=r"`devices` must be different ones of this machine's \(0, 1\)"):
        parse_gpu_ids(gpus, include_cuda=True)


@pytest.mark.parametrize("gpus", [None, 1.5, [True], ["0"]])
def test_gpus_of_another_type_are_refused(gpus: Any) -> None:
    with pytest.raises(TypeError, match="`devices` must be an int, a string or a sequence of ints"):
        parse_gpu_ids(gpus, include_cuda=True)


@pytest.mark.usefixtures("no_gpus")
def test_without_gpus_none_is_found() -> None:
    assert find_usable_cuda_devices(0) == []
    with pytest.raises(ValueError, match="`num_devices` must be at most 0"):
        find_usable_cuda_devices()
    with pytest.raises(ValueError, match="it has none"):
        CUDAAccelerator.parse_devices(1)


def test_the_registry_makes_an_accelerator_of_its_name() -> None:
    assert isinstance(AcceleratorRegistry.get("cpu"), CPUAccelerator)
    assert AcceleratorRegistry.available_accelerators() == {"cpu", "cuda", "mps"}
    with pytest.raises(ValueError, match="`name` must be a new name"):
        CPUAccelerator.register_accelerators(AcceleratorRegistry)
    with pytest.raises(TypeError, match="abstract"):
        Accelerator()  # type: ignore[abstract]


@pytest.mark.usefixtures("no_gpus")
def test_a_connector_resolves_auto() -> None:
    found = AcceleratorConnector(accelerator="auto", devices="auto")
    assert (found._accelerator_flag, found._devices_flag) == ("cpu", 1)
    assert isinstance(found.accelerator, CPUAccelerator)
    assert not found.is_distributed and isinstance(found.strategy, SingleDeviceStrategy)
    assert AcceleratorConnector(accelerator="cpu", devices=2)._devices_flag == 2
    several = AcceleratorConnector(accelerator="cpu", devices=1, strategy="ddp")
    assert several.is_distributed and isinstance(several.strategy, DDPStrategy)


@pytest.mark.usefixtures("two_gpus")
def test_a_connector_resolves_gpus() -> None:
    found = AcceleratorConnector(accelerator="gpu", devices=1)
    assert (found._accelerator_flag, found._devices_flag) == ("cuda", [0])
    assert AcceleratorConnector(devices="auto")._devices_flag == [0, 1]


@pytest.mark.usefixtures("no_gpus")
def test_a_connector_refuses_what_is_not_there() -> None:
    with pytest.raises(RuntimeError, match="`accelerator` must be present on this machine, but got 'gpu'"):
        AcceleratorConnector(accelerator="gpu")
    with pytest.raises(ValueError, match="`accelerator` must be one of auto, gpu, cpu, cuda, mps"):
        AcceleratorConnector(accelerator="tpu")


def test_precision_plugins_are_precisions_of_ours() -> None:
    assert type(MixedPrecision("bf16-mixed", "cpu")) is AutocastPrecision
    assert type(MixedPrecision(16, "cpu")) is ScaledPrecision
    half = HalfPrecision("bf16-true")
    assert isinstance(half, TruePrecision) and half.param_dtype == torch.bfloat16
    assert isinstance(half, HalfPrecision) and isinstance(half, Precision) and not isinstance(half, MixedPrecision)
    assert DoublePrecision().name == "64-true"
    assert Precision().name == "32-true"


def test_settings_of_a_scaler_are_taken() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)
    taken = MixedPrecision("16-mixed", "cpu", scaler)
    assert taken.state_dict()["gradient_scaler"]["scale"] == 8.0
    assert taken.state_dict()["gradient_scaler"]["growth_interval"] == 3
    with pytest.raises(ValueError, match="`scaler` must be left out for 'bf16-mixed'"):
        MixedPrecision("bf16-mixed", "cpu", scaler)
    of_fsdp = FSDPPrecision("16-mixed", scaler)
    assert of_fsdp.state_dict()["gradient_scaler"]["scale"] == 8.0 and FSDPPrecision().name == "32-true"
    off = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", enabled=False))
    assert type(off) is AutocastPrecision and (off.name, off.autocast_dtype) == ("16-mixed", torch.float16)
    with pytest.warns(UserWarning, match="Settings of Own are taken, and its methods are not called"):
        MixedPrecision("16-mixed", "cpu", type("Own", (torch.amp.GradScaler,), {})("cpu"))


def test_a_precision_may_be_a_plugin_of_the_trainer(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"`plugins=.*` is `precision="):
        trainer = quiet(tmp_path, plugins=[HalfPrecision("bf16-true"), LightningEnvironment()])
    assert trainer.strategy.precision.name == "bf16-true"
    with pytest.raises(ValueError, match="must be in agreement with precision='32-true'"):
        quiet(tmp_path, plugins=DoublePrecision(), precision="32-true")
    with pytest.raises(ValueError, match="`plugins` must be one of each kind"):
        quiet(tmp_path, plugins=[DoublePrecision(), DoublePrecision()])


def test_environments_are_recognised_and_need_not_be_passed(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="what launched the processes is recognised"):
        trainer = quiet(tmp_path, plugins=[SLURMEnvironment(auto_requeue=False)])
    assert not [one for one in trainer.callbacks if isinstance(one, PreemptionCheckpoint)]


def test_slurm_requeues_as_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "1")
    monkeypatch.setenv("SLURM_JOB_NAME", "train")
    with pytest.warns(UserWarning, match="PreemptionCheckpoint"):
        trainer = quiet(tmp_path, plugins=[SLURMEnvironment(requeue_signal=10)])
    added = next(one for one in trainer.callbacks if isinstance(one, PreemptionCheckpoint))
    assert added.requeue and list(added.signals) == ["SIGUSR1"]


def test_environments_say_what_the_variables_say(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "SLURM_NTASKS": "4",
        "SLURM_PROCID": "3",
        "SLURM_LOCALID": "1",
        "SLURM_NODEID": "1",
        "SLURM_JOB_ID": "123456",
        "SLURM_JOB_NAME": "train",
        "SLURM_NODELIST": "node[007-009,12]",
        "SLURM_NTASKS_PER_NODE": "2",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    slurm = SLURMEnvironment()
    assert slurm.detect() and slurm.creates_processes_externally
    assert (slurm.world_size(), slurm.global_rank(), slurm.local_rank(), slurm.node_rank()) == (4, 3, 1, 1)
    assert (slurm.main_address, slurm.main_port, slurm.job_id()) == ("node007", 15000 + 3456, 123456)
    slurm.validate_settings(2, 2)
    with pytest.raises(ValueError, match=r"`devices` must be `SLURM_NTASKS_PER_NODE` = 2, but got 3"):
        slurm.validate_settings(3, 2)
    monkeypatch.setenv("SLURM_JOB_NAME", "interactive")
    assert not slurm.detect() and slurm.job_id() is None


def test_the_other_environments_say_what_the_variables_say(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_PORT": "7"}.items():
        monkeypatch.setenv(name, value)
    elastic = TorchElasticEnvironment()
    assert (elastic.global_rank(), elastic.world_size(), elastic.local_rank(), elastic.main_port) == (1, 2, 1, 7)
    with pytest.raises(ValueError, match=r"such that devices \* num_nodes is 2"):
        elastic.validate_settings(3, 1)
    alone = LightningEnvironment()
    alone.set_world_size(3)
    alone.set_global_rank(2)
    assert (alone.world_size(), alone.global_rank(), alone.creates_processes_externally) == (3, 2, True)
    assert inspect.isabstract(ClusterEnvironment)
