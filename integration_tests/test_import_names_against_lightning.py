"""Import names of Lightning: which there are, and what the functions and classes among them do, on both sides."""

from __future__ import annotations

import csv
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from camshaft.compat.names.finder import counterpart_of, load
from camshaft.compat.names.plugins import accelerators, environments
from camshaft.compat.names.table import released, released_modules
from camshaft.compat.names.trainer import model_summary
from camshaft.compat.names.utilities import functions, saving

lightning = pytest.importorskip("lightning.pytorch")

# Modules that are in one of Lightning's packages alone, need a library that is not installed, or are scripts.
NEED_MORE = ("__about__", "strategies.launchers.xla", "consolidate_checkpoint", "utilities.upgrade_checkpoint")
HPARAMS = {"width": 3, "rate": 0.1, "sizes": [1, 2], "shape": (3, 4), "name": "x", "nothing": None, "deep": {"a": True}}


def theirs(place: str) -> Any:
    root = "lightning.fabric" if place.startswith("@fabric") else "lightning.pytorch"
    return import_module(f"{root}.{place.removeprefix('@fabric').removeprefix('.')}".rstrip("."))


def places() -> list[str]:
    known = [
        place for place in released_modules() if not released(place).is_gone and not place.startswith("@lightning")
    ]
    return [place for place in known if not place.endswith(NEED_MORE)]


def test_every_name_of_the_table_is_one_of_lightning() -> None:
    missing = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for place in places():
            module = theirs(place)
            missing += [f"{place}:{name}" for name in released(place).current if not hasattr(module, name)]
    # These are under a condition that this machine does not meet.
    assert [one for one in missing if "_AVAILABLE" not in one] == []


def test_every_public_name_of_lightning_is_in_the_table() -> None:
    for place in places():
        public = [name for name in getattr(theirs(place), "__all__", ()) if not name.startswith("_")]
        assert set(public) <= {*released(place).current}, place


@pytest.mark.parametrize(
    "gpus", [0, 1, 2, -1, "0", "1", "2", "-1", "0,1", "1,", [1], [0, 1], (1,), [], None, 1.5, [True], 3, [2]]
)
def test_gpus_are_read_alike(gpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)

    def outcome(parse: Any) -> Any:
        try:
            return parse(gpus, include_cuda=True)
        except Exception as error:
            return isinstance(error, TypeError)

    assert outcome(accelerators.parse_gpu_ids) == outcome(theirs("@fabric.utilities.device_parser")._parse_gpu_ids)


@pytest.mark.parametrize("devices", ["auto", 1, "1", 2])
def test_connectors_have_the_same_flags(devices: Any) -> None:
    connector = theirs("trainer.connectors.accelerator_connector")._AcceleratorConnector
    for name in ("cpu", "auto"):
        found = [kind(accelerator=name, devices=devices) for kind in (connector, accelerators.AcceleratorConnector)]
        flags = [(one._accelerator_flag, one._devices_flag, one.accelerator.name()) for one in found]
        assert flags[0] == flags[1]


@pytest.mark.parametrize(
    "batch",
    [torch.ones(3), torch.tensor(1), [torch.ones(2)], {"a": torch.ones(4)}, ["x", torch.ones(1)], [], "x", [[]]],
)
def test_batch_sizes_are_found_alike(batch: Any) -> None:
    def outcome(module: Any) -> Any:
        try:
            return module.extract_batch_size(batch)
        except Exception as error:
            return type(error).__name__

    assert outcome(functions) == outcome(theirs("utilities.data"))


def test_norms_are_alike() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Tanh())
    model[1].weight = model[0].weight
    model(torch.ones(2, 3)).sum().backward()
    for order in (1, 2, 3.5, "inf"):
        ours = functions.grad_norm(model, order)
        assert {name: float(norm) for name, norm in ours.items()} == {
            name: float(norm) for name, norm in theirs("utilities.grads").grad_norm(model, order).items()
        }


@pytest.mark.parametrize("kind", ["tags_csv", "yaml"])
def test_files_of_hyperparameters_are_read_by_either(kind: str, tmp_path: Path) -> None:
    sides = (saving, theirs("core.saving"))
    for index, side in enumerate(sides if kind == "yaml" else sides[1:]):
        file = tmp_path / f"{index}.{kind}"
        getattr(side, f"save_hparams_to_{kind}")(file, dict(HPARAMS))
        read = [getattr(reader, f"load_hparams_from_{kind}")(file) for reader in sides]
        assert read[0] == read[1]


def test_environments_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {
        "SLURM_NTASKS": "4",
        "SLURM_PROCID": "3",
        "SLURM_LOCALID": "1",
        "SLURM_NODEID": "1",
        "SLURM_JOB_ID": "123456",
        "SLURM_JOB_NAME": "train",
        "SLURM_NODELIST": "node[007-009,12],other",
        "SLURM_NTASKS_PER_NODE": "2",
        "LOCAL_RANK": "1",
        "RANK": "3",
        "WORLD_SIZE": "4",
        "GROUP_RANK": "1",
    }
    for name in ("SLURMEnvironment", "TorchElasticEnvironment", "LightningEnvironment"):
        facts = []
        for module in (environments, theirs("@fabric.plugins.environments")):
            with monkeypatch.context() as patch:
                for variable in ("MASTER_ADDR", "MASTER_PORT"):
                    patch.setenv(variable, "")
                    patch.delenv(variable)
                patch.setenv("STANDALONE_PORT", "4321")
                for variable, value in variables.items():
                    patch.setenv(variable, value)
                one = getattr(module, name)()
                facts.append(
                    (
                        *(one.main_address, one.main_port, one.creates_processes_externally, one.detect()),
                        *(one.world_size(), one.global_rank(), one.local_rank(), one.node_rank()),
                    )
                )
        assert facts[0] == facts[1], name


class _Layers(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(2, 3), nn.LSTM(3, 4))
        self.last = nn.Linear(4, 1).eval()
        self.own = nn.Parameter(torch.ones(5), requires_grad=False)
        self.example_input_array = torch.ones(7, 6, 2)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        output, _ = self.first(batch)
        return torch.as_tensor(self.last(output))


@pytest.mark.parametrize("max_depth", [-1, 0, 1, 2])
def test_summaries_say_the_same_of_layers(max_depth: int) -> None:
    ours, others = (
        module.summarize(_Layers(), max_depth) for module in (model_summary, theirs("utilities.model_summary"))
    )
    names = (
        "layer_names layer_types in_sizes out_sizes param_nums training_modes total_training_modes total_parameters "
        "trainable_parameters total_layer_params model_size"
    )
    assert {name: getattr(ours, name) for name in names.split()} == {
        name: getattr(others, name) for name in names.split()
    }
    # Lightning's count leaves out what an LSTM computes
    tables = [[column for column in one._get_summary_data() if column[0] != "FLOPs"] for one in (ours, others)]
    assert tables[0] == tables[1]


def test_flops_are_counted_alike() -> None:
    model = lightning.LightningModule()
    model.net, model.example_input_array = nn.Sequential(nn.Linear(2, 3), nn.Conv1d(3, 4, 1)), torch.ones(1, 3, 2)
    model.forward = lambda batch: model.net[1](model.net[0](batch).mT)
    ours, others = (module.summarize(model, -1) for module in (model_summary, theirs("utilities.model_summary")))
    assert (ours.total_flops, ours.flop_counts) == (others.total_flops, others.flop_counts)
    assert ours.total_flops > 0


@given(st.integers(0, 10**17))
def test_counts_are_shortened_alike(count: int) -> None:
    shorten = theirs("utilities.model_summary").get_human_readable_count
    assert model_summary.get_human_readable_count(count) == shorten(count)


class Mixin:
    """A class behind one of Lightning's among the bases of a user's."""

    is_made = False

    def __init__(self) -> None:
        super().__init__()
        self.is_made = True


@pytest.mark.parametrize(
    ("place", "name", "arguments"),
    [
        ("callbacks", "EarlyStopping", {"monitor": "x"}),
        ("callbacks", "GradientAccumulationScheduler", {"scheduling": {0: 1}}),
        ("callbacks", "LearningRateMonitor", {}),
        ("callbacks", "ModelCheckpoint", {}),
        ("callbacks", "OnExceptionCheckpoint", {"dirpath": "."}),
        ("callbacks", "SpikeDetection", {}),
        ("callbacks", "ThroughputMonitor", {"batch_size_fn": len}),
        ("callbacks", "Timer", {}),
        ("callbacks", "TQDMProgressBar", {}),
        ("core", "LightningDataModule", {}),
        ("core", "LightningModule", {}),
        ("loggers", "CSVLogger", {"save_dir": "."}),
        ("trainer", "Trainer", {"accelerator": "cpu", "logger": False, "enable_checkpointing": False}),
    ],
)
def test_a_mixin_behind_a_class_is_set_up_alike(place: str, name: str, arguments: Any, tmp_path: Path) -> None:
    def is_made(cls: Any) -> Any:
        return type(name, (cls, Mixin), {})(**arguments).is_made

    assert is_made(load(counterpart_of(place, name) or "")) == is_made(getattr(theirs(place), name))


def both(place: str, name: str) -> tuple[Any, Any]:
    return getattr(theirs(place), name), load(counterpart_of(place, name) or "")


@pytest.mark.parametrize("flush_logs_every_n_steps", [1, 2, 100])
def test_rows_of_csv_files_that_are_logged_without_a_step(flush_logs_every_n_steps: int, tmp_path: Path) -> None:
    found = []
    for idx, kind in enumerate(both("loggers", "CSVLogger")):
        logger = kind(tmp_path / str(idx), flush_logs_every_n_steps=flush_logs_every_n_steps)
        for value in range(5):
            logger.log_metrics({"a": value})
        logger.log_metrics({"a": 5}, step=9)
        logger.save()
        with Path(logger.log_dir, "metrics.csv").open() as file:
            found.append([(row["step"], row["a"]) for row in csv.DictReader(file)])
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "environment", [{}, {"TQDM_MINITERS": "7"}, {"TQDM_MINITERS": "0"}, {"COLAB_GPU": "1", "TQDM_MINITERS": "30"}]
)
@pytest.mark.parametrize("refresh_rate", [0, 1, 5, 40])
def test_the_environment_sets_how_often_bars_are_drawn(
    environment: dict[str, str], refresh_rate: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    one, other = (kind(refresh_rate) for kind in both("callbacks", "TQDMProgressBar"))
    assert (other.refresh_rate, other.is_enabled) == (one.refresh_rate, one.is_enabled)
