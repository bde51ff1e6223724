"""Bisection of real trainings: the first update after which something holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from test_replay import KEPT, InTime, files_in, loader, prepare, series
from torch import Tensor
from trainer_parts import NO_VALIDATION, Regression

from camshaft.forensics import DepartureError, bisect

pytestmark = [pytest.mark.filterwarnings(NO_VALIDATION)]

NUM_STEPS = 24


class Turning(Regression):
    """A weight that passes a threshold at an update; draws random numbers, and counts its steps."""

    num_calls = 0

    def __init__(self, at: int = 0) -> None:
        super().__init__(learning_rate=0.001, dropout=0.1)
        self.at = at

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        type(self).num_calls += 1
        return super().training_step(batch, batch_idx)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        if self.trainer.global_step + 1 == self.at:
            with torch.no_grad():
                self.layer.weight[0, 0] += 100.0


def is_turned(module: Any) -> bool:
    module.eval()
    torch.rand(3)
    module.log("turned", 1.0)
    return bool(module.layer.weight[0, 0].abs() > 50)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(2, NUM_STEPS), window=st.sampled_from([1, 3]))
@example(at=2, window=1)
@example(at=NUM_STEPS, window=1)
def test_a_planted_step_is_found(at: int, window: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("run")
    arguments: dict[str, Any] = {
        "max_epochs": -1,
        "max_steps": NUM_STEPS,
        "accumulate_grad_batches": window,
    }
    module, trainer = prepare(folder, kind=lambda: Turning(at), every=1, **arguments)
    trainer.fit(module, loader())
    before = files_in(folder)
    low, high = max(1, at - 9), min(NUM_STEPS, at + 6)
    good, bad = (folder / KEPT / f"step={step}.ckpt" for step in (low, high))
    Turning.num_calls = 0
    module, trainer = prepare(folder, kind=lambda: Turning(at), **arguments)

    found = bisect(trainer, module, loader(), good=good, bad=bad, when=is_turned)

    assert found == at and files_in(folder) == before
    assert Turning.num_calls <= (high - low) * window


class TurningInTime(InTime):
    """The same, with three updates in a batch."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        if self.trainer.global_step + 1 == self.at:
            with torch.no_grad():
                self.head.bias += 100.0


@pytest.mark.parametrize("at", [10, 11, 12, 27])
def test_a_step_inside_of_a_batch_is_found(at: int, tmp_path: Path) -> None:
    module, trainer = prepare(tmp_path, kind=lambda: TurningInTime(at), every=1)
    trainer.fit(module, series())
    steps = sorted(int(path.stem.partition("=")[2]) for path in (tmp_path / KEPT).iterdir())
    assert trainer.global_step == 27 and steps == [*range(3, 28, 3)]
    module, trainer = prepare(tmp_path, kind=lambda: TurningInTime(at), every=1)
    good, bad = (tmp_path / KEPT / f"step={step}.ckpt" for step in (3, 27))
    assert bisect(trainer, module, series(), good=good, bad=bad, when=lambda module: module.head.bias > 50) == at


def test_bad_input_is_refused(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"kind": lambda: Turning(9), "every": 3}
    module, trainer = prepare(tmp_path, **arguments)
    trainer.fit(module, loader())
    early, good, bad, last = (tmp_path / KEPT / f"step={step}.ckpt" for step in (3, 6, 12, 15))

    def search(data: Any = None, **given: Any) -> int:
        module, trainer = prepare(tmp_path, **arguments)
        given = {"good": good, "bad": bad, "when": is_turned, **given}
        return bisect(trainer, module, loader() if data is None else data, **given)

    assert search() == 9
    others = loader()
    others.dataset.tensors[0].add_(1)
    for error, message, changed in (
        (
            ValueError,
            "`good` must be a checkpoint at which the predicate is False, but got 'True at step 12'",
            {"good": bad, "bad": last},
        ),
        (
            ValueError,
            "`bad` must be a checkpoint at which the predicate is True, but got 'False at step 6'",
            {"good": early, "bad": good},
        ),
        (ValueError, "`bad` must be a later checkpoint than `good`, which is of step 12", {"good": bad, "bad": good}),
        (TypeError, "`when` must be a function of the module", {"when": "turned"}),
        (ValueError, "`sampler` must be that of the checkpoint", {"data": loader(shuffle=False)}),
        (DepartureError, "at step 7: loss", {"data": others}),
        (FileNotFoundError, "nowhere", {"good": tmp_path / "nowhere.ckpt"}),
    ):
        with pytest.raises(error, match=message):
            search(**changed)
    arguments["kind"] = lambda: Turning(0)  # another module than that of the run
    (tmp_path / "ledger.jsonl").unlink()
    message = "A replay must come to step 12 of the run again"
    with pytest.warns(UserWarning, match="There is no ledger"), pytest.raises(RuntimeError, match=message):
        search()
