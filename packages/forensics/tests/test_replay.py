"""Replays of real trainings: to the bit what the run did, looked into at one update, with nothing left behind."""

from __future__ import annotations

import math
import struct
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from trainer_parts import (
    NO_VALIDATION,
    ListLogger,
    NormedRegression,
    Twins,
    assert_same,
    dataset,
    quiet_trainer,
    weights,
)

from camshaft.callbacks import EMAWeightAveraging, GradientAccumulationScheduler, ModelCheckpoint, SpikeDetection
from camshaft.forensics import DepartureError, LedgerError, RunLedger, replay
from camshaft.forensics.ledger.ledger_file import read_ledger
from camshaft.hooks_core import Callback
from camshaft.loops import FitLimits
from camshaft.trainer import Trainer, TrainingModule, seed_everything

pytestmark = [pytest.mark.filterwarnings(NO_VALIDATION)]

KEPT = "kept"


class Drawing(NormedRegression):
    """Draws random numbers, and has an optimizer and a scheduler with a state; validates if there is a loader."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        steps = torch.optim.lr_scheduler.CyclicLR(optimizer, 0.001, 0.02, step_size_up=3, cycle_momentum=False)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": steps, "interval": "step"}}


class InTime(TrainingModule):
    """A recurrent layer over batches that are split along time."""

    truncated_bptt_steps = 2

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.GRU(1, 4, batch_first=True), nn.Linear(4, 1)

    def training_step(self, batch: Any, batch_idx: int, hiddens: Any) -> Any:
        inputs, targets = batch
        outputs, hiddens = self.layer(inputs, hiddens)
        return {"loss": nn.functional.mse_loss(self.head(outputs), targets), "hiddens": hiddens.detach()}

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Remembering(Callback):
    """Keeps the weights that each update finds."""

    only_observes = True

    def __init__(self) -> None:
        self.weights: dict[int, dict[str, Tensor]] = {}
        self.gradients: dict[int, dict[str, Tensor]] = {}

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        self.weights[trainer.global_step + 1] = weights(module)
        found = {name: one.grad for name, one in module.named_parameters() if one.grad is not None}
        self.gradients[trainer.global_step + 1] = {name: one.clone() for name, one in found.items()}


def loader(seed: int = 0, **arguments: Any) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return DataLoader(dataset(20), **{"batch_size": 4, "shuffle": True, "generator": generator, **arguments})


def series() -> Any:
    inputs = torch.randn(12, 6, 1, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(inputs, inputs.cumsum(1)), 4, shuffle=True)


def prepare(
    folder: Path, *callbacks: Any, kind: Any = Drawing, seed: int = 0, every: int = 4, **arguments: Any
) -> tuple[Any, Trainer]:
    """Return module and trainer as a script makes them, with a ledger and a checkpoint every so many updates."""
    seed_everything(seed)
    module = kind()
    kept = ModelCheckpoint(folder / KEPT, every_n_train_steps=every, save_top_k=-1, filename="{step}")
    own = [RunLedger(folder, weights_every_n_steps=1), kept, *callbacks]
    trainer = quiet_trainer(folder, **{"max_epochs": 3, "enable_checkpointing": True, **arguments, "callbacks": own})
    return module, trainer


SCENES: dict[str, dict[str, Any]] = {
    "dropout and a scheduler": {},
    "workers": {"data": {"num_workers": 1}},
    "accumulation": {"accumulate_grad_batches": 2},
    "accumulation that changes": {"more": lambda: [GradientAccumulationScheduler({0: 1, 1: 3})]},
    "averages": {"more": lambda: [EMAWeightAveraging(decay=0.5)]},
    "clipping": {"gradient_clip_val": 0.01},
    "validation": {"validates": True, "val_check_interval": 2},
    "tbptt": {"kind": InTime},
    "tbptt and accumulation": {"kind": InTime, "accumulate_grad_batches": 2},
}


class Scene:
    """A run that was made, and the way to make its parts again."""

    def __init__(self, name: str, folder: Path) -> None:
        self.arguments = dict(SCENES[name])
        self.data = self.arguments.pop("data", {})
        self.validates = self.arguments.pop("validates", False)
        self.more = self.arguments.pop("more", list)
        self.folder = folder
        self.memory = Remembering()
        module, trainer, loaders = self.parts(self.memory)
        trainer.fit(module, *loaders)
        self.num_steps = trainer.global_step
        self.first_kept = min(int(path.stem.partition("=")[2]) for path in (folder / KEPT).iterdir())

    def parts(self, *callbacks: Any) -> tuple[Any, Trainer, list[Any]]:
        module, trainer = prepare(self.folder, *callbacks, *self.more(), **self.arguments)
        train = series() if self.arguments.get("kind") is InTime else loader(**self.data)
        return module, trainer, [train, loader(shuffle=False)] if self.validates else [train]


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Scene]:
    return {name: Scene(name, tmp_path_factory.mktemp("run")) for name in SCENES}


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(list(SCENES)), share=st.floats(0, 1), from_start=st.booleans())
@example(name="workers", share=0.9, from_start=False)
@example(name="accumulation", share=1.0, from_start=True)
@example(name="tbptt and accumulation", share=0.7, from_start=False)
def test_a_replay_is_the_run_to_the_bit(name: str, share: float, from_start: bool, scenes: dict[str, Scene]) -> None:
    scene = scenes[name]
    step = 1 + round(share * (scene.num_steps - 1))
    before = files_in(scene.folder)
    module, trainer, loaders = scene.parts()
    ckpt_path = None if from_start or step <= scene.first_kept else scene.folder / KEPT

    steps = replay(trainer, module, *loaders, ckpt_path=ckpt_path, to_step=step)

    [line] = [line for line in read_ledger(scene.folder / "ledger.jsonl").lines if line.get("step") == step]
    assert trainer.global_step == step - 1 and {one.step for one in steps} == {step}
    assert_same(weights(module), scene.memory.weights[step])
    gradients = {key: one.grad for key, one in module.named_parameters()}
    assert_same(gradients, scene.memory.gradients[step])
    assert [bits(one.loss) for one in steps] == line["loss"][0]
    assert [one.batch_idx for one in steps][-len(line["batches"]) :] == line["batches"] or "tbptt" in name
    assert {one.epoch for one in steps} == {line["epoch"]}
    assert files_in(scene.folder) == before


def bits(loss: Any) -> str:
    return f"float32:{struct.pack('>f', loss.item()).hex()}"


class Bursting(TrainingModule):
    """Becomes infinite in a submodule at an update."""

    def __init__(self, at: int = 1234) -> None:
        super().__init__()
        self.at = at
        self.encoder = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4))
        self.head = nn.Linear(4, 1)
        self.register_buffer("num_steps", torch.zeros((), dtype=torch.long))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.num_steps += 1
        if self.num_steps == self.at:
            self.encoder[2].bias.data[1] = math.inf
        return nn.functional.mse_loss(self.head(self.encoder(batch[0])), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.001)


def test_the_step_and_the_submodule_that_became_infinite_are_named(tmp_path: Path) -> None:
    seed_everything(0)
    watch: list[Any] = [
        RunLedger(tmp_path, weights_every_n_steps=500),
        SpikeDetection(rtol=1e6, exclude_batches_path=tmp_path),
    ]
    kept = ModelCheckpoint(tmp_path / KEPT, every_n_train_steps=400, save_top_k=-1)
    arguments: dict[str, Any] = {"max_epochs": -1, "max_steps": 1300, "enable_checkpointing": True}
    trainer = quiet_trainer(tmp_path, **arguments, callbacks=[*watch, kept])
    with pytest.raises(RuntimeError, match="The loss jumped") as caught:
        trainer.fit(Bursting(), loader(batch_size=10))
    assert (caught.value.epoch, caught.value.batch_idx) == (616, 1)  # type: ignore[attr-defined]

    seen: list[Any] = []
    trainer = quiet_trainer(tmp_path, **arguments, callbacks=[*watch, kept])
    steps = replay(
        trainer, Bursting(), loader(batch_size=10), ckpt_path=tmp_path / KEPT, to_step=1234, inspect=seen.append
    )

    [step] = steps
    assert seen == steps and (step.step, step.epoch, step.batch_idx) == (1234, 616, 1)
    found = step.inspection.first_non_finite
    assert found is not None and found.name == "encoder.2", str(step.inspection)
    assert [call.name for call in step.inspection.calls] == ["encoder.0", "encoder.1", "encoder.2", "encoder", "head"]
    assert not step.loss.isfinite() and step.batch[0].shape == (10, 3) and set(step.gradients) >= {"head.weight"}

    trainer = quiet_trainer(tmp_path, **arguments, callbacks=[*watch, kept])
    before = replay(
        trainer, Bursting(), loader(batch_size=10), ckpt_path=tmp_path / KEPT, to_step=1233, inspect="encoder.*"
    )
    assert before[0].inspection.first_non_finite is None
    assert {call.name for call in before[0].inspection.calls} == {"encoder.0", "encoder.1", "encoder.2"}
    assert set(before[0].inspection.parameters) == {
        f"encoder.{idx}.{name}" for idx in (0, 2) for name in ("weight", "bias")
    }


def test_a_changed_data_order_is_refused_with_its_cause_at_the_first_step_that_departs(tmp_path: Path) -> None:
    order = [*range(20)]
    module, trainer = prepare(tmp_path)
    trainer.fit(module, loader(shuffle=False, sampler=order))
    changed = [*order[:8], order[9], order[8], *order[10:]]
    for ckpt_path, step in ((None, 3), (tmp_path / KEPT / "step=4.ckpt", 8)):
        module, trainer = prepare(tmp_path)
        with pytest.raises(
            DepartureError, match=rf"departs from its ledger .* at step {step}: samples: \[\[9, 8,"
        ) as caught:
            replay(trainer, module, loader(shuffle=False, sampler=changed), ckpt_path=ckpt_path, to_step=11)
        assert caught.value.comparison.step == step

    module, trainer = prepare(tmp_path, seed=1)
    with pytest.raises(DepartureError, match=r"at step 1: random numbers of torch on the CPU; .*weights: ") as caught:
        replay(trainer, module, loader(shuffle=False, sampler=order), to_step=2)
    assert any("seed: '1' and '0'" in note for note in caught.value.__notes__)


class Counting(Callback):
    """A callback of a user: has a state, saves, logs, and knows whether it is in a replay."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.num_batches, self.was_replaying = folder, 0, False

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.num_batches += 1
        self.was_replaying = trainer.is_replaying
        self.log("num_batches", float(self.num_batches))
        trainer.save_checkpoint(self.folder / "of_user.ckpt")

    def state_dict(self) -> dict[str, Any]:
        return {"num_batches": self.num_batches}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.num_batches = state_dict["num_batches"]


@pytest.mark.filterwarnings("error")
def test_callbacks_run_but_nothing_is_written_and_the_trainer_has_its_parts_back(tmp_path: Path) -> None:
    module, trainer = prepare(tmp_path, Counting(tmp_path), logger=ListLogger(), log_every_n_steps=1)
    trainer.fit(module, loader())
    before = files_in(tmp_path)

    arguments: dict[str, Any] = {"log_every_n_steps": 1, "max_time": timedelta(microseconds=1)}
    counting, observer, logger = Counting(tmp_path), Remembering(), ListLogger()
    module, trainer = prepare(tmp_path, counting, observer, logger=logger, **arguments)
    own, limits = trainer.callbacks, trainer.fit_loop.limits
    replay(trainer, module, loader(), ckpt_path=tmp_path / KEPT, to_step=11)

    assert counting.num_batches == 10 and counting.was_replaying and not trainer.is_replaying
    assert observer.weights == {}
    assert files_in(tmp_path) == before
    assert (logger.rows, logger.hparams, logger.statuses, logger.num_saves) == ([], [], [], 0)
    assert trainer.callbacks is own and trainer.fit_loop.limits is limits and trainer.loggers == [logger]
    trainer.fit_loop.limits = FitLimits(max_epochs=3)
    trainer.fit(module, loader(), ckpt_path=tmp_path / KEPT / "step=8.ckpt")
    assert logger.rows and trainer.global_step == 15


class ByHand(Twins):
    """Steps two optimizers by itself."""

    automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            self.manual_backward(self.loss(batch))
            optimizer.step()


def test_with_several_optimizers_a_step_is_replayed_to_its_end(tmp_path: Path) -> None:
    module, trainer = prepare(tmp_path, kind=ByHand)
    trainer.fit(module, loader())
    module, trainer = prepare(tmp_path, kind=ByHand)
    [step] = replay(trainer, module, loader(), ckpt_path=tmp_path / KEPT, to_step=7)
    assert trainer.global_step == 7 and step.step == 7
    assert [call.name for call in step.inspection.calls] == ["first", "second"] * 2
    module, trainer = prepare(tmp_path, kind=ByHand)
    trainer.max_steps = 7
    trainer.fit(module, loader())
    assert_same(weights(module), weights(trainer.model))


def tampered(path: Path, change: Any) -> None:
    lines = path.read_text().splitlines(keepends=True)
    change(lines)
    path.write_text("".join(lines))


def test_bad_input_is_refused(tmp_path: Path) -> None:
    module, trainer = prepare(tmp_path / "run")
    trainer.fit(module, loader())
    module, trainer = prepare(tmp_path / "other", seed=1)
    trainer.fit(module, loader())
    kept, ledger = tmp_path / "run" / KEPT, tmp_path / "run" / "ledger.jsonl"

    def again(**arguments: Any) -> Any:
        module, trainer = prepare(tmp_path / "run")
        return replay(trainer, module, loader(), **{"ckpt_path": kept / "step=8.ckpt", "to_step": 10, **arguments})

    nowhere, other = tmp_path / "nowhere.jsonl", tmp_path / "other"
    for error, message, arguments in (
        (ValueError, r"`to_step` must be greater than .* of the checkpoint \(8\), but got 8", {"to_step": 8}),
        (ValueError, r"`to_step` must be at most .* of the training \(15\), but got 16", {"to_step": 16}),
        (ValueError, r"`to_step` must be .*, but got 0", {"to_step": 0}),
        (FileNotFoundError, r"a checkpoint of step 3 or .*got \[4, 8, 12\]", {"ckpt_path": kept, "to_step": 4}),
        (FileNotFoundError, "`run` must be a ledger", {"ledger": nowhere}),
        (LedgerError, "that of the run which the checkpoint is from", {"ledger": other}),
        (ValueError, "`inspect` must be patterns that match .*, but got 'head'", {"inspect": ["layer", "head"]}),
        (TypeError, "`inspect` must be names", {"inspect": [3]}),
    ):
        with pytest.raises(error, match=message):
            again(**arguments)
    with pytest.raises(DepartureError, match="at step 1: "):
        again(ledger=tmp_path / "other", ckpt_path=None)
    tampered(ledger, lambda lines: lines.insert(5, lines.pop(6)))
    with pytest.raises(LedgerError, match=r"whole, each line chained to the one before.*another line 6"):
        again()
    module, trainer = prepare(tmp_path / "run")
    trainer.fit_loop.max_epochs = 1
    trainer.fit(module, loader())
    with pytest.raises(ValueError, match="`ckpt_path` must be a checkpoint, as this trainer has trained already"):
        replay(trainer, module, loader(), to_step=2)


def test_without_its_ledger_a_replay_warns_and_a_short_one_is_checked_as_far_as_it_goes(tmp_path: Path) -> None:
    module, trainer = prepare(tmp_path)
    trainer.fit(module, loader())
    ledger = tmp_path / "ledger.jsonl"
    tampered(ledger, lambda lines: lines.__delitem__(slice(8, None)))
    module, trainer = prepare(tmp_path)
    with pytest.warns(UserWarning, match="ends at step 7: later ones were not checked"):
        replay(trainer, module, loader(), ckpt_path=tmp_path / KEPT / "step=4.ckpt", to_step=9)
    ledger.unlink()
    module, trainer = prepare(tmp_path)
    with pytest.warns(UserWarning, match="There is no ledger .* to check against"):
        replay(trainer, module, loader(), to_step=3)


def test_an_error_of_the_step_tells_where_values_ceased_to_be_finite(tmp_path: Path) -> None:
    class Refusing(Bursting):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            loss = super().training_step(batch, batch_idx)
            if not loss.isfinite():
                raise RuntimeError("the loss is not finite")
            return loss

    seed_everything(0)
    with pytest.raises(RuntimeError, match="the loss is not finite") as caught:
        replay(quiet_trainer(tmp_path), Refusing(3), loader(), to_step=3)
    assert any("replay of step 3" in note and "encoder.2" in note for note in caught.value.__notes__)
