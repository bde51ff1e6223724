"""Functions and classes that libraries import from earlier releases."""

from __future__ import annotations

import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from import_names_parts import names_of_earlier_code
from torch import nn

from camshaft.callbacks import DeviceStatsMonitor
from camshaft.compat import DataModule, Trainer

pytest.importorskip("torchmetrics")


@pytest.fixture(scope="module", autouse=True)
def names() -> Iterator[None]:
    with names_of_earlier_code():
        yield


class Digits(DataModule):
    def __init__(
        self, folder: str, batch_size: int = 32, augment: bool = False, share: float | None = None, loader: Any = object
    ) -> None:
        super().__init__()
        self.given = (folder, batch_size, augment, share)


class TestArgparse:
    def test_data_modules_are_made_of_a_parsers_options(self) -> None:
        parser = Digits.add_argparse_args(Trainer.add_argparse_args(ArgumentParser()))
        words = "--folder here --batch_size 8 --augment --share 0.5 --max_epochs 3"
        args = parser.parse_args(words.split())
        assert Digits.from_argparse_args(args).given == ("here", 8, True, 0.5)
        assert Digits.from_argparse_args(args, batch_size=4).given == ("here", 4, True, 0.5)
        assert Trainer.from_argparse_args(args, logger=False).max_epochs == 3

    def test_an_argument_without_default_has_to_be_given(self) -> None:
        args = Digits.add_argparse_args(ArgumentParser()).parse_args([])
        assert not hasattr(args, "folder")
        with pytest.raises(TypeError, match="folder"):
            Digits.from_argparse_args(args)

    def test_a_new_parser_has_the_options_of_the_one_given(self) -> None:
        given = ArgumentParser()
        given.add_argument("--lr", type=float)
        parser = Digits.add_argparse_args(given, use_argument_group=False)
        assert vars(parser.parse_args(["--lr", "0.1"]))["lr"] == 0.1
        assert "--batch_size" not in given.format_help()

    def test_the_functions_take_any_class(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Own:
            def __init__(self, width: int = 2) -> None:
                self.width = width

        argparse: Any = import_module("pytorch_lightning.utilities.argparse")
        args = argparse.add_argparse_args(Own, ArgumentParser()).parse_args(["--width", "5"])
        assert argparse.from_argparse_args(Own, args).width == 5
        assert argparse.get_init_arguments_and_types(Digits)[1][0] == "batch_size"
        monkeypatch.setenv("PL_OWN_WIDTH", "7")
        assert vars(argparse.parse_env_variables(Own)) == {"width": 7}


def test_collectives_leave_a_tensor_as_it_is_in_a_single_process() -> None:
    distributed: Any = import_module("pytorch_lightning.utilities.distributed")
    tensor = torch.tensor([1.0])
    assert distributed.sync_ddp_if_available(tensor) is tensor
    assert distributed.all_gather_ddp_if_available(tensor) is tensor


ON_TWO_RANKS = """
import sys, torch, torch.distributed as dist
from camshaft.compat import install_aliases; install_aliases()
from pytorch_lightning.utilities.distributed import all_gather_ddp_if_available, sync_ddp, sync_ddp_if_available
from pytorch_lightning.metrics import TensorMetric
rank = int(sys.argv[2])
dist.init_process_group("gloo", store=dist.FileStore(sys.argv[1], 2), rank=rank, world_size=2)
def check() -> None:  # a tensor that outlives it would keep the group, and its threads, until the interpreter ends
    mine = lambda: torch.tensor([float(rank + 1)])
    assert sync_ddp_if_available(mine()) == 3
    assert sync_ddp_if_available(mine(), reduce_op="mean") == 1.5
    assert sync_ddp(mine(), reduce_op="max") == 2
    assert sync_ddp(mine(), reduce_op=dist.ReduceOp.MAX) == 2
    parameter = mine().requires_grad_()
    gathered = all_gather_ddp_if_available(parameter, sync_grads=True)
    assert gathered.tolist() == [[1.0], [2.0]]
    (gathered * torch.tensor([[1.0], [10.0]])).sum().backward()
    assert parameter.grad.tolist() == [[2.0], [20.0]][rank]
    assert not all_gather_ddp_if_available(parameter).requires_grad
    class Mean(TensorMetric):
        def forward(self, value):
            return value
    assert Mean("mean", reduce_op="avg")(mine()) == 1.5
    assert Mean("sum")(mine()) == 3
check()
dist.destroy_process_group()
"""


@pytest.mark.processes
def test_collectives_and_metrics_reduce_over_two_ranks(tmp_path: Path) -> None:
    words = [sys.executable, "-c", ON_TWO_RANKS, str(tmp_path / "store")]
    ranks = [subprocess.Popen([*words, str(rank)], stderr=subprocess.PIPE, text=True) for rank in (0, 1)]
    errors = [rank.communicate(timeout=120)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], errors


def test_a_mixin_tells_device_and_type_of_a_module() -> None:
    mixin: Any = import_module("pytorch_lightning.core.mixins").DeviceDtypeModuleMixin

    class Own(mixin):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(1, 1, dtype=torch.float64)

    assert (Own().device, Own().dtype) == (torch.device("cpu"), torch.float64)
    assert mixin().dtype == torch.get_default_dtype()


def test_a_module_is_found_in_its_wrappers() -> None:
    base: ModuleType = import_module("pytorch_lightning.overrides.base")

    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

    layer = nn.Linear(1, 1)
    assert base.unwrap_lightning_module(Wrapper(Wrapper(layer))) is layer


def test_checkpoints_are_migrated_by_leaving_them_as_they_are() -> None:
    migration: Any = import_module("lightning.pytorch.utilities.migration")
    checkpoint = {"state_dict": {}}
    with migration.pl_legacy_patch():
        assert migration.utils._pl_migrate_checkpoint(checkpoint, "last.ckpt") is checkpoint
    assert migration.migrate_checkpoint(checkpoint)[0] is checkpoint


def test_names_of_devices_and_strategies_are_compared_with_text() -> None:
    enums: Any = import_module("pytorch_lightning.utilities.enums")
    assert enums.DistributedType.DDP == "ddp" and enums.DeviceType.GPU == "gpu" and enums.AMPType.NATIVE == "native"


def test_monitors_and_bars_of_then_are_those_of_today() -> None:
    callbacks: Any = import_module("pytorch_lightning.callbacks")
    with pytest.warns(UserWarning, match=r"GPUStatsMonitor logs .* Use `DeviceStatsMonitor\(\)`"):
        assert isinstance(callbacks.GPUStatsMonitor(temperature=True), DeviceStatsMonitor)

    class Own(callbacks.ProgressBarBase):  # type: ignore[misc]
        def on_train_batch_end(self, *args: Any) -> None: ...

    assert isinstance(Own(), callbacks.ProgressBar)
