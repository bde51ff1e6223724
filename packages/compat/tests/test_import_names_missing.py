from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
from import_names_parts import names_of_earlier_code

from camshaft.compat.names.stand_ins import MissingNameError
from camshaft.compat.names.table import released, released_modules

pytest.importorskip("torchmetrics")


@pytest.fixture(scope="module", autouse=True)
def names() -> Iterator[None]:
    with names_of_earlier_code():
        yield


def imported(statement: str) -> Any:
    """What a statement imports last."""
    space: dict[str, Any] = {}
    exec(statement, space)
    return list(space.values())[-1]


WITHOUT_COUNTERPART = [
    ("from lightning import Fabric", "no trainer-less mode"),
    ("from lightning.fabric.strategies import FSDPStrategy", "no trainer-less mode"),
    ("from pytorch_lightning.lite import LightningLite", "no trainer-less mode"),
    ("from pytorch_lightning.loggers.neptune import NeptuneLogger", "Use `WandbLogger`"),
    ("from pytorch_lightning.loggers import TrainsLogger", "Use `WandbLogger`"),
    ("from pytorch_lightning.metrics import StatScores", "`task=` says what is classified"),
    ("from pytorch_lightning.metrics.sklearns import Accuracy", "`task=` says what is classified"),
    ("from lightning.pytorch.plugins import BitsandbytesPrecision", 'precision="16-mixed"'),
    ("from lightning.pytorch.plugins.environments import LSFEnvironment", "torchrun, SLURM"),
    ("from pytorch_lightning.strategies import DeepSpeedStrategy", 'strategy="sharded"'),
    ("from pytorch_lightning.utilities.distributed import init_dist_connection", r"torch\.distributed"),
    ("from lightning.pytorch.strategies.deepspeed import DeepSpeedStrategy", 'strategy="sharded"'),
    ("from pytorch_lightning.utilities.xla_device import XLADeviceUtils", "No such devices"),
    ("from pytorch_lightning.callbacks import XLAStatsMonitor", r"DeviceStatsMonitor\(\)"),
    ("from pytorch_lightning.loops import FitLoop", "Loops are not to be replaced"),
    (
        "from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection",
        "a part of the trainer's inside",
    ),
    (
        "from lightning.pytorch.utilities.deepspeed import convert_zero_checkpoint_to_fp32_state_dict",
        "camshaft.strategies",
    ),
    ("from pytorch_lightning.utilities.upgrade_checkpoint import upgrade_checkpoint", "are read as they are"),
    ("from pytorch_lightning import cli_lightning_logo", "prints a logo"),
    ("from pytorch_lightning.metrics.sklearns import SklearnMetric", "Subclass `NumpyMetric`"),
    ("from pytorch_lightning.utilities import find_shared_parameters", "Assign the parameter itself"),
    ("from pytorch_lightning.utilities.model_summary import LayerSummary", r"camshaft\.callbacks\.summarize"),
    ("from lightning.fabric.utilities.distributed import DistributedSamplerWrapper", "shared among processes"),
]


@pytest.mark.parametrize(("statement", "advice"), WITHOUT_COUNTERPART)
def test_a_name_without_counterpart_stops_nothing_until_it_is_used(statement: str, advice: str) -> None:
    name = imported(statement)
    assert not isinstance(object(), name)
    assert name | None and name.attribute is name.attribute
    is_class = name.__name__.lstrip("_")[0].isupper()

    class Own(name):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(3, key=4)
            self.is_made = True

    uses = [name.attribute, name.Inner.method]
    if is_class:
        assert Own().is_made and isinstance(Own(), name) and isinstance(name(1, key=2), name)
        uses += [lambda: name()(1), lambda: Own().method(), lambda: list(name()), lambda: pl_trainer(callbacks=[Own()])]
        uses += [lambda: pl_trainer(strategy=Own()), lambda: pl_trainer(plugins=[name()])]
    else:
        uses += [name]
    for use in uses:
        with pytest.raises(MissingNameError, match=f"camshaft has no `lightning\\..*`. .*{advice}"):
            use()


def pl_trainer(**arguments: Any) -> Any:
    return import_module("lightning.pytorch").Trainer(accelerator="cpu", devices=1, **arguments)


def test_a_module_without_counterpart_is_imported() -> None:
    bitsandbytes = import_module("lightning.pytorch.plugins.precision.bitsandbytes")
    assert bitsandbytes.BitsandbytesPrecision is import_module("lightning.pytorch.plugins").BitsandbytesPrecision
    assert import_module("lightning.pytorch.plugins").precision.bitsandbytes is bitsandbytes


def test_a_stand_in_for_an_error_can_be_caught() -> None:
    error = imported("from lightning.pytorch.utilities.exceptions import _TunerExitException")
    with pytest.raises(ZeroDivisionError):
        try:
            _ = 1 / 0
        except error:
            raise AssertionError from None


def test_every_public_name_of_the_release_whose_version_is_reported_is_imported() -> None:
    for place in released_modules():
        if released(place).is_gone or place.startswith("@lightning"):
            continue
        module = "lightning.fabric" + place[7:] if place.startswith("@") else f"lightning.pytorch.{place}".rstrip(".")
        for name in released(place).current:
            exec(f"from {module} import {name}", {})
            assert hasattr(import_module(module), name)


@pytest.mark.parametrize(
    "statement",
    [
        "from pytorch_lightning import whatever",
        "from pytorch_lightning import Fabric",
        "import lightning.pytorch.whatever",
        "from lightning.pytorch.strategies import _whatever",
        "import lightning.app",
        "import pytorch_lightning.TrainsLogger",
    ],
)
def test_what_no_release_has_is_an_import_error(statement: str) -> None:
    with pytest.raises(ImportError, match=r"cannot import '[a-zA-Z_.]+': [A-Z].*\."):
        exec(statement)


def test_features_are_detected_as_in_the_release_whose_version_is_reported() -> None:
    pl: Any = import_module("lightning.pytorch")
    assert hasattr(pl.strategies, "DeepSpeedStrategy")  # 2.6 has it
    assert hasattr(pl.callbacks, "ModelPruning")
    assert not hasattr(pl.callbacks, "QuantizationAwareTraining")  # 1.x had it
    assert not hasattr(pl.callbacks, "Whatever")
    assert not hasattr(pl, "lite")
    with pytest.raises(AttributeError, match=r"has no 'XLAStatsMonitor' here: Pass `callbacks=\[DeviceStatsMonitor"):
        _ = pl.callbacks.XLAStatsMonitor


def test_both_orders_of_trying_a_new_and_an_old_place_end_with_what_works() -> None:
    new_first = """
try:
    from lightning.pytorch.utilities.rank_zero import rank_zero_only
except ImportError:
    from lightning.pytorch.utilities.distributed import rank_zero_only
"""
    old_first = """
try:
    from pytorch_lightning.utilities.cloud_io import get_filesystem
except ImportError:
    from lightning_fabric.utilities.cloud_io import get_filesystem
"""
    assert imported(new_first)(lambda: 3)() == 3
    assert type(imported(old_first)(".")).__name__ == "LocalFileSystem"


def test_a_name_that_a_module_imports_from_another_is_the_same_there() -> None:
    module: Any = import_module("lightning.pytorch.callbacks.early_stopping")
    assert module.Callback is import_module("lightning.pytorch").Callback
    assert module.rank_zero_warn is import_module("lightning.pytorch.utilities").rank_zero_warn
    saving: Any = import_module("pytorch_lightning.core.saving")
    assert saving.get_filesystem is import_module("lightning.fabric.utilities.cloud_io").get_filesystem


def test_an_underscored_name_without_counterpart_is_imported_too() -> None:
    with pytest.raises(
        MissingNameError, match=r"camshaft has no `lightning\.pytorch\.core\.optimizer\._MockOptimizer`"
    ):
        imported("from lightning.pytorch.core.optimizer import _MockOptimizer")()()
    with pytest.raises(ImportError, match="_NeverWas"):
        imported("from lightning.pytorch.core.optimizer import _NeverWas")
