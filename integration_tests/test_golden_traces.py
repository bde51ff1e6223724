"""What a run of the trainer calls equals the order that the 2.x document draws, receiver by receiver.

`DOCUMENT` is that drawing, for a run of one epoch of one batch with a sanity check and validation of one batch each.
`DEVIATIONS` holds the points where the documents disagree with each other and camshaft's default is another's.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor, nn

from camshaft.hooks_core import Callback
from camshaft.hooks_core.check import check
from camshaft.hooks_core.trace import Trace
from camshaft.strategies import SingleDeviceStrategy
from camshaft.trainer import Trainer, TrainingModule

Step = tuple[str, str]
"""A hook and its receivers: C callbacks that do not monitor, M callbacks that monitor, m the module, s the strategy."""

_VALIDATION = """
on_validation_start CMms
on_validation_epoch_start CMms
on_validation_batch_start CMms
on_validation_batch_end CMms
on_validation_epoch_end CMms
on_validation_end CMms
"""

DOCUMENT = {
    "fit": f"""
setup CM
on_fit_start CMms
on_sanity_check_start CMms
{_VALIDATION}
on_sanity_check_end CMms
on_train_start CMms
on_train_epoch_start CMm
on_train_batch_start CMms
on_before_zero_grad CMm
on_before_backward CMm
on_after_backward CMm
on_before_optimizer_step CMm
on_train_batch_end CMm
{_VALIDATION}
on_train_epoch_end CmM
on_train_end CMms
on_fit_end CMms
teardown CM
""",
    "test": """
setup CM
on_test_start CMms
on_test_epoch_start CMms
on_test_batch_start CMms
on_test_batch_end CMms
on_test_epoch_end CMms
on_test_end CMms
teardown CM
""",
    "predict": """
setup CM
on_predict_start CMms
on_predict_epoch_start CMm
on_predict_batch_start CMm
on_predict_batch_end CMm
on_predict_epoch_end CMm
on_predict_end CMms
teardown CM
""",
}
# The document does not draw the verb `validate`; its hooks are those of validation inside fit.
DOCUMENT["validate"] = f"setup CM\n{_VALIDATION}\nteardown CM"


@attrs.frozen
class Deviation:
    """A point at which camshaft's default follows another document.

    Args:
        reason: Which, and why.
        apply: Turns the document's steps into camshaft's.
    """

    reason: str
    apply: Callable[[list[Step]], list[Step]]


def _module_is_set_up_too(steps: list[Step]) -> list[Step]:
    return [(hook, f"{receivers}m" if hook in ("setup", "teardown") else receivers) for hook, receivers in steps]


def _zeroing_after_forward(steps: list[Step]) -> list[Step]:
    hooks = [hook for hook, _ in steps]
    if "on_before_zero_grad" not in hooks:
        return steps
    # `training_step` is recorded in its place, so that the order of the two shows
    position = hooks.index("on_before_zero_grad")
    return [*steps[:position], ("training_step", "m"), *steps[position:]]


DEVIATIONS = (
    Deviation("`setup` and `teardown` reach the module, as in the document of 0.8", _module_is_set_up_too),
    Deviation("gradients are zeroed after `training_step`, as in the document of 2.0", _zeroing_after_forward),
)


def document(verb: str) -> list[Step]:
    steps = [(hook, receivers) for hook, receivers in (line.split() for line in DOCUMENT[verb].split("\n") if line)]
    for deviation in DEVIATIONS:
        steps = deviation.apply(steps)
    return steps


class Plain(Callback):
    pass


class Monitoring(Callback):
    monitors = True


class Line(TrainingModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self.layer(batch).mean()

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.layer(batch)

    def test_step(self, batch: Tensor, batch_idx: int) -> None:
        self.layer(batch)

    def predict_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self.layer(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def record(verb: str, root: Path) -> Trace:
    trace = Trace()
    callbacks = [trace.record(Plain(), "callback", "C"), trace.record(Monitoring(), "callback", "M")]
    module = trace.record(Line(), "module", "m")
    strategy = trace.record(SingleDeviceStrategy("cpu"), "strategy", "s")
    trainer = Trainer(
        strategy=strategy,
        callbacks=callbacks,
        max_epochs=1,
        num_sanity_val_steps=1,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        default_root_dir=root,
    )
    loaders: list[Any] = [torch.utils.data.DataLoader(torch.ones(1, 2)) for _ in range(2 if verb == "fit" else 1)]
    getattr(trainer, verb)(module, *loaders)
    return trace


def steps_of(trace: Trace, hooks: set[str]) -> list[Step]:
    """The recorded hooks among `hooks`, each with its receivers in the order of their calls."""
    entered = [event for event in trace if event.kind == "enter" and event.hook in hooks]
    return [
        (hook, "".join(event.receiver for event in events)) for hook, events in groupby(entered, lambda each: each.hook)
    ]


@pytest.mark.parametrize("verb", ["fit", "validate", "test", "predict"])
def test_the_trainer_calls_what_the_document_draws(verb: str, tmp_path: Path) -> None:
    trace = record(verb, tmp_path)
    expected = document(verb)
    assert steps_of(trace, {hook for hook, _ in expected}) == expected
    check(trace, verb)


def test_nothing_but_what_the_document_draws_reaches_the_strategy(tmp_path: Path) -> None:
    for verb in DOCUMENT:
        drawn = {hook for hook, receivers in document(verb) if "s" in receivers}
        assert {event.hook for event in record(verb, tmp_path) if event.receiver == "s"} == drawn


def test_a_run_in_another_order_is_noticed(tmp_path: Path) -> None:
    trace = record("fit", tmp_path)
    expected = document("fit")
    assert steps_of(trace, {hook for hook, _ in expected}) != expected[::-1]
    assert steps_of(trace, {"on_train_epoch_end"}) == [("on_train_epoch_end", "CmM")]
