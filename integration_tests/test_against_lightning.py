"""What Lightning does, camshaft does: the same runs on both, compared to the bit.

Compared are every hook with its receiver, arguments, nesting and surroundings (epoch, step, modes, gradients), logged
metrics as callbacks and CSV files get them, returned values, checkpoints, and final weights. What differs on purpose is
listed in `comparison/differences.py`, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch
from comparison import drawing
from comparison.comparing import Mismatch, compare, is_comparable
from comparison.configuration import Configuration, Scheduling
from comparison.difference import Difference
from comparison.differences import DIFFERENCES, UNDER_IMPORT_NAMES
from comparison.frameworks import CAMSHAFT, IMPORT_NAMES, Framework
from hypothesis import HealthCheck, given, settings

# Always the same draws, since what they find first is for whoever changes camshaft or the pinned Lightning. Others and
# more: `pytest integration_tests/test_against_lightning.py --examples-factor=5`.
DRAWN = settings(
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

SCENARIOS = {
    "an optimizer that evaluates the loss itself": Configuration(optimizer="lbfgs", overrides={"backward"}),
    "validation within epochs and several loaders": Configuration(
        num_batches=5, num_eval_batches=(2, 3), is_ragged=True, trainer={"val_check_interval": 2}
    ),
    "validation across epochs": Configuration(
        num_batches=3, trainer={"val_check_interval": 4, "check_val_every_n_epoch": None, "max_epochs": 3}
    ),
    "an overridden optimizer_step with accumulation and clipping": Configuration(
        num_batches=5,
        optimizer="adam",
        overrides={"optimizer_step", "optimizer_zero_grad", "configure_gradient_clipping"},
        trainer={"accumulate_grad_batches": 2, "gradient_clip_val": 0.05},
    ),
    "a scheduler that monitors validation": Configuration(
        scheduling=Scheduling(monitor="val_loss"), overrides={"lr_scheduler_step"}, trainer={"max_epochs": 4}
    ),
    "manual optimization until max_steps": Configuration(
        is_manual=True, returns="dict", trainer={"max_steps": 5, "log_every_n_steps": 1}
    ),
    "manual optimization by closures": Configuration(is_manual=True, gives_closures=True),
    "manual optimization by closures that are called repeatedly": Configuration(
        is_manual=True, gives_closures=True, optimizer="lbfgs"
    ),
    "data of unknown length": Configuration(
        is_stream=True, num_batches=3, is_ragged=True, trainer={"accumulate_grad_batches": 2}
    ),
    "all verbs on a data module": Configuration(
        verbs=("fit", "validate", "test", "predict"),
        loaders_from="data",
        num_eval_batches=(2, 1),
        overrides={"on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer"},
    ),
    "resuming at an epoch's end": Configuration(
        optimizer="adam",
        scheduling=Scheduling(interval="step", frequency=2),
        checkpoints={"save_top_k": -1},
        resumes_to=4,
        trainer={"log_every_n_steps": 1},
    ),
    "stopping early, and keeping the best": Configuration(
        checkpoints={"monitor": "val_loss", "save_top_k": 2},
        early_stopping={"monitor": "val_loss", "patience": 1, "min_delta": 0.3},
        trainer={"max_epochs": 6},
    ),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_goes_as_on_lightning(name: str) -> None:
    assert is_comparable(SCENARIOS[name])
    compare(SCENARIOS[name])


@settings(DRAWN, max_examples=150)
@given(drawing.fits())
def test_fit_goes_as_on_lightning(configuration: Configuration) -> None:
    compare(configuration)


@settings(DRAWN, max_examples=40)
@given(drawing.evaluations())
def test_validate_test_and_predict_go_as_on_lightning(configuration: Configuration) -> None:
    compare(configuration)


@settings(DRAWN, max_examples=60)
@given(drawing.savings())
def test_saving_stopping_and_resuming_go_as_on_lightning(configuration: Configuration) -> None:
    compare(configuration)


@settings(DRAWN, max_examples=60)
@given(drawing.fits_under_import_names())
def test_fit_under_the_import_names_goes_as_on_lightning(configuration: Configuration) -> None:
    compare(configuration, UNDER_IMPORT_NAMES, IMPORT_NAMES)


# the table of differences holds what is there, and nothing else


@pytest.mark.parametrize("difference", DIFFERENCES, ids=lambda difference: difference.name)
def test_a_difference_that_is_listed_is_there(difference: Difference) -> None:
    others = [other for other in DIFFERENCES if other is not difference]
    with pytest.raises(Mismatch):
        compare(difference.witness, others)


@pytest.mark.parametrize("difference", DIFFERENCES, ids=lambda difference: difference.name)
def test_a_difference_explains_all_that_differs_where_it_shows(difference: Difference) -> None:
    if is_comparable(difference.witness):
        compare(difference.witness)
    else:
        assert difference.excludes(difference.witness)


# the comparison sees what goes wrong


class ReversesCallbacks(CAMSHAFT.trainer):  # type: ignore[misc, name-defined]
    def __init__(self, *, callbacks: Any, **arguments: Any) -> None:
        super().__init__(callbacks=callbacks[::-1], **arguments)


class SkipsTheSanityCheck(CAMSHAFT.trainer):  # type: ignore[misc, name-defined]
    def __init__(self, **arguments: Any) -> None:
        super().__init__(**{**arguments, "num_sanity_val_steps": 0})


class CountsFromOne(CAMSHAFT.trainer):  # type: ignore[misc, name-defined]
    @property
    def global_step(self) -> int:
        return int(super().global_step) + 1


class ForgetsReturnedValues(CAMSHAFT.trainer):  # type: ignore[misc, name-defined]
    def validate(self, *arguments: Any, **keywords: Any) -> Any:
        super().validate(*arguments, **keywords)
        return []


class NeverClips(CAMSHAFT.strategy):  # type: ignore[misc, name-defined]
    def clip_gradients(self, *arguments: Any) -> None:
        pass


class DrawsRandomNumbers(CAMSHAFT.strategy):  # type: ignore[misc, name-defined]
    def setup_module(self, module: Any) -> Any:
        torch.rand(1)
        return super().setup_module(module)


class SavesOtherWeights(CAMSHAFT.strategy):  # type: ignore[misc, name-defined]
    def save_checkpoint(self, checkpoint: Any, path: str) -> None:
        weights = {name: torch.zeros_like(weight) for name, weight in checkpoint["state_dict"].items()}
        super().save_checkpoint({**checkpoint, "state_dict": weights}, path)


class CountsBatchesFromOne(CAMSHAFT.strategy):  # type: ignore[misc, name-defined]
    def wrap_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        return lambda batch, batch_idx, *rest: step(batch, batch_idx + 1, *rest)


class RunsAfterTheModule(CAMSHAFT.callback):  # type: ignore[misc, name-defined]
    after_module = frozenset({"on_train_batch_end"})


class LogsALittleMore(CAMSHAFT.module):  # type: ignore[misc, name-defined]
    def log(self, name: str, value: Any, *arguments: Any, **keywords: Any) -> None:
        super().log(name, value + 1 / 64 if name == "val_sum" else value, *arguments, **keywords)


class WritesOtherSteps(CAMSHAFT.csv_logger):  # type: ignore[misc, name-defined]
    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        super().log_metrics(metrics, None if step is None else step + 1)


ONE_UPDATE = Configuration(num_batches=1, num_eval_batches=(), trainer={"max_epochs": 1, "gradient_clip_val": 0.01})


@pytest.mark.parametrize(
    ("broken", "what", "configuration"),
    [
        ({"trainer": ReversesCallbacks}, "call", Configuration()),
        ({"trainer": SkipsTheSanityCheck}, "call", Configuration()),
        ({"trainer": CountsFromOne}, "call", Configuration()),
        ({"trainer": ForgetsReturnedValues}, "returned", Configuration(verbs=("validate",))),
        ({"strategy": NeverClips}, "weights", ONE_UPDATE),
        ({"strategy": DrawsRandomNumbers}, "call", Configuration(shuffle=True)),
        ({"strategy": SavesOtherWeights}, "checkpoints", Configuration(checkpoints={"save_top_k": -1})),
        ({"strategy": CountsBatchesFromOne}, "call", Configuration()),
        ({"callback": RunsAfterTheModule}, "call", Configuration()),
        ({"module": LogsALittleMore}, "call", Configuration()),
        ({"csv_logger": WritesOtherSteps}, "row", Configuration()),
    ],
    ids=lambda value: next(iter(value.values())).__name__ if isinstance(value, dict) else "",
)
def test_what_goes_wrong_is_seen(broken: dict[str, Any], what: str, configuration: Configuration) -> None:
    compare(configuration)
    ours: Framework = attrs.evolve(CAMSHAFT, **broken)
    with pytest.raises(Mismatch) as caught:
        compare(configuration, ours=ours)
    assert caught.value.what.split()[0] == what
