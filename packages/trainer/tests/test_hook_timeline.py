"""The hook timeline in real runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from trainer_parts import Regression, RegressionData, loader, quiet_trainer

from camshaft.callbacks import EarlyStopping, HookTimeline


class Failing(Regression):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch_idx == 2:
            raise FloatingPointError("it had to come")
        return super().training_step(batch, batch_idx)


class ByClosure(Regression):
    """Its optimizer evaluates the loss itself."""

    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=2)


def names_of(timeline: HookTimeline) -> list[str]:
    """The names of the trace's events in order, after it is checked that each lies within what encloses it."""
    events = json.loads(Path(str(timeline.json_path)).read_text(encoding="utf-8"))["traceEvents"]
    ends: list[int] = []
    complete = [event for event in events if event["ph"] == "X"]
    for event in complete:
        start_ns, end_ns = round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000)
        while ends and ends[-1] < end_ns:
            assert ends.pop() <= start_ns, event["name"]
        ends.append(end_ns)
    return [event["name"] for event in complete]


def test_all_verbs_of_a_trainer_are_in_one_report(tmp_path: Path) -> None:
    timeline = HookTimeline(tmp_path / "times")
    trainer = quiet_trainer(tmp_path, max_epochs=2, callbacks=[timeline, EarlyStopping("val_loss")])
    module, data = Regression(), RegressionData()
    trainer.fit(module, datamodule=data)
    names = names_of(timeline)
    for name, num_calls in {
        "fit()": 1,
        "training epoch": 2,
        "training batch": 8,
        "training_step · Regression": 8,
        "backward pass": 8,
        "waiting for data": 10,  # each epoch asks for one more, which is not there
        "optimizer.step · SGD": 8,
        "on_validation_end · EarlyStopping": names.count("validation"),
        "train_dataloader · RegressionData": 1,
    }.items():
        assert names.count(name) == num_calls, name
    trainer.validate(module, datamodule=data, verbose=False)
    trainer.test(module, datamodule=data, verbose=False)
    trainer.predict(module, datamodule=data)
    names = names_of(timeline)
    assert [name for name in names if name.endswith("()")] == ["fit()", "validate()", "test()", "predict()"]
    assert names.count("test batch") == names.count("test_step · Regression") == 3
    page = Path(str(timeline.html_path)).read_text(encoding="utf-8")
    assert [f'"verb":"{verb}"' in page for verb in ("fit", "validate", "test", "predict")] == [True] * 4


def test_it_changes_nothing_of_the_training(tmp_path: Path) -> None:
    def weights(*callbacks: Any) -> list[torch.Tensor]:
        torch.manual_seed(1)
        module = Regression(dropout=0.3)
        quiet_trainer(tmp_path, max_epochs=2, callbacks=list(callbacks)).fit(module, loader(), loader(2))
        return list(module.parameters())

    for with_it, without in zip(weights(HookTimeline(tmp_path)), weights(), strict=True):
        assert torch.equal(with_it, without)


def test_an_optimizer_that_evaluates_the_loss_encloses_the_steps(tmp_path: Path) -> None:
    timeline = HookTimeline(tmp_path)
    quiet_trainer(tmp_path, max_epochs=1, callbacks=[timeline]).fit(ByClosure(), loader(2), loader(1))
    names = names_of(timeline)
    assert names.count("optimizer.step · LBFGS") == 2
    assert names.count("training_step · ByClosure") == names.count("backward pass") > 2


def test_a_run_that_fails_leaves_its_times(tmp_path: Path) -> None:
    timeline = HookTimeline(tmp_path)
    trainer = quiet_trainer(tmp_path, max_epochs=1, callbacks=[timeline])
    with pytest.raises(FloatingPointError, match="it had to come") as caught:
        trainer.fit(Failing(), loader(), loader(1))
    [note] = caught.value.__notes__
    assert note.startswith("Raised in hook `training_step` of Failing (fit, stage train, epoch 0, batch 2")
    assert names_of(timeline).count("training batch") == 3
