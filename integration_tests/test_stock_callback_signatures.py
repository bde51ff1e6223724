"""Stock callbacks take Lightning's arguments, by position too; what they have beyond those comes by keyword alone."""

from __future__ import annotations

import inspect
from typing import Any

import lightning.pytorch.callbacks as lightning_callbacks
import pytest

import camshaft.callbacks
from camshaft.compat.names.trainer.rich_progress_bar import RichProgressBar

NAMES = sorted(
    name
    for name, one in vars(lightning_callbacks).items()
    if inspect.isclass(one)
    and issubclass(one, lightning_callbacks.Callback)
    and hasattr(camshaft.callbacks, name)
    and name not in ("Callback", "LambdaCallback")  # that one has a test of its own
)
KEYWORDS = {"EMAWeightAveraging", "ModelSummary", "RichModelSummary", "ThroughputMonitor", "WeightAveraging"}
"""Those of Lightning that take any further keyword, which it hands on; camshaft names the ones that there are."""


def parameters_of(cls: type) -> list[inspect.Parameter]:
    return list(inspect.signature(cls).parameters.values())


@pytest.mark.parametrize("name", NAMES)
def test_arguments_have_lightnings_order_and_own_ones_come_by_keyword(name: str) -> None:
    theirs = parameters_of(getattr(lightning_callbacks, name))
    # its theme is Lightning's alone, under the import names
    ours = parameters_of(RichProgressBar if name == "RichProgressBar" else getattr(camshaft.callbacks, name))
    their_names = [one.name for one in theirs if one.kind is not inspect.Parameter.VAR_KEYWORD]
    by_position = [one.name for one in ours if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert by_position == their_names
    assert {one.kind for one in ours if one.name not in their_names} <= {inspect.Parameter.KEYWORD_ONLY}
    assert any(one.kind is inspect.Parameter.VAR_KEYWORD for one in theirs) is (name in KEYWORDS)


def test_functions_of_a_lambda_callback_have_lightnings_order() -> None:
    theirs = [one.name for one in parameters_of(lightning_callbacks.LambdaCallback)]
    assert list(camshaft.callbacks.LambdaCallback.POSITIONS) == theirs


def test_a_checkpoint_by_position(tmp_path: Any) -> None:
    checkpoint = camshaft.callbacks.ModelCheckpoint(
        tmp_path, "best-{epoch}", "val_loss", True, True, 3, False, True, "max"
    )
    assert (checkpoint.filename, checkpoint.monitor, checkpoint.verbose) == ("best-{epoch}", "val_loss", True)
    assert (checkpoint.save_last, checkpoint.save_top_k, checkpoint.mode) == (True, 3, "max")
    assert checkpoint.save_weights_only and not checkpoint.save_on_exception
