"""Every stock callback runs in a loop of one's own: that of examples/custom_trainer.py, without camshaft-trainer."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from camshaft.callbacks import Callback, CSVLogger, EarlyStopping, ModelCheckpoint, RichProgressBar
from camshaft.callbacks.gradient_accumulation_scheduler import GradientAccumulationScheduler
from camshaft.callbacks.lambda_callback import LambdaCallback
from camshaft.callbacks.monitors.device_stats_monitor import DeviceStatsMonitor
from camshaft.callbacks.monitors.learning_rate_monitor import LearningRateMonitor
from camshaft.callbacks.timer import Timer
from camshaft.hooks_core.conformance import Adapter, Scenario, conform
from camshaft.hooks_core.protocols import TrainerProtocol

EXAMPLES = Path(__file__).parents[3] / "examples"

pytestmark = pytest.mark.skipif(not EXAMPLES.is_dir(), reason="the examples are in the repository alone")

NUM_EPOCHS, NUM_BATCHES = 3, 4


@pytest.fixture(autouse=True)
def importable_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


def train(callbacks: list[Any], root: Path, **arguments: Any) -> Any:
    """Train a line in the example's loop. Returns its trainer state, with the module."""
    from custom_trainer import fit_torch, line_batches, torch_line
    from custom_trainer_state import TrainerState

    keywords: dict[str, Any] = {"loggers": [CSVLogger(root / "logs")], "log_every_n_steps": 1, **arguments}
    trainer = TrainerState(callbacks, NUM_EPOCHS, default_root_dir=str(root), **keywords)
    fit_torch(torch_line(), line_batches(NUM_BATCHES), trainer=trainer)
    for logger in trainer.loggers:
        logger.finalize("success")
    return trainer


def rows_of(trainer: Any) -> list[dict[str, str]]:
    with Path(trainer.log_dir, "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def logged(trainer: Any, name: str) -> list[tuple[int, float]]:
    """The values of one name, each with its step."""
    return [(int(row["step"]), float(row[name])) for row in rows_of(trainer) if row.get(name)]


def stops_at_once(callback: Any, trainer: Any) -> None:
    assert callback.stopped_epoch == 1 and trainer.current_epoch == 2  # no loss is 100 better than another


def keeps_a_checkpoint(callback: Any, trainer: Any) -> None:
    checkpoint = torch.load(callback.best_model_path, weights_only=True)
    assert checkpoint["global_step"] == NUM_EPOCHS * NUM_BATCHES and "weight" in checkpoint["state_dict"]
    assert set(checkpoint["callbacks"]) >= {callback.state_key}


def has_said_each_epoch(callback: Any, trainer: Any) -> None:
    assert trainer.said.count("Epoch ") == NUM_EPOCHS and "loss" in trainer.said


def has_made_fewer_updates(callback: Any, trainer: Any) -> None:
    assert trainer.global_step == NUM_BATCHES + 2 * (NUM_BATCHES // 2) and trainer.accumulate_grad_batches == 1


def has_logged_rates(callback: Any, trainer: Any) -> None:
    steps = range(NUM_EPOCHS * NUM_BATCHES)
    assert logged(trainer, "lr-SGD") == [(step, 0.1) for step in steps]
    assert [step for step, _ in logged(trainer, "loss")] == list(steps)


def has_stopped_in_time(callback: Any, trainer: Any) -> None:
    reason = callback.stopping_reason_message
    assert trainer.global_step <= 1 and callback.time_elapsed() > 0 and "the whole of `duration`" in reason


def has_called(callback: Any, trainer: Any) -> None:
    assert trainer.global_step == 2  # a function of it has asked to stop


def has_logged_memory(callback: Any, trainer: Any) -> None:
    name = "DeviceStatsMonitor.on_train_batch_start/process_rss_bytes"
    assert [step for step, _ in logged(trainer, name)] == list(range(NUM_EPOCHS * NUM_BATCHES))


def ask_to_stop(trainer: Any) -> None:
    trainer.should_stop = trainer.global_step == 2


CASES: list[tuple[Callable[[Path], Callback], Callable[[Any, Any], None]]] = [
    # how to make it, given a folder; what is to be seen of it after training
    (lambda root: EarlyStopping("loss", min_delta=100.0, patience=1), stops_at_once),
    (lambda root: ModelCheckpoint(root / "kept", monitor="loss"), keeps_a_checkpoint),
    (lambda root: RichProgressBar(), has_said_each_epoch),
    (lambda root: GradientAccumulationScheduler({1: 2}), has_made_fewer_updates),
    (lambda root: LearningRateMonitor("step"), has_logged_rates),
    (lambda root: Timer({"microseconds": 1}), has_stopped_in_time),
    (lambda root: LambdaCallback(on_train_batch_end=ask_to_stop), has_called),
    (lambda root: DeviceStatsMonitor(), has_logged_memory),
]


@pytest.mark.parametrize(("make", "check"), CASES, ids=lambda part: "")
def test_a_stock_callback_runs_in_a_loop_of_ones_own(
    make: Callable[[Path], Callback],
    check: Callable[[Any, Any], None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    callback = make(tmp_path)
    trainer = train([callback], tmp_path)
    trainer.said = capsys.readouterr().out
    check(callback, trainer)


def test_all_of_them_run_together_and_their_memory_is_in_the_checkpoint(tmp_path: Path) -> None:
    callbacks = [make(tmp_path) for make, check in CASES if not {check} & {has_called}]
    callbacks = [callback for callback in callbacks if not isinstance(callback, Timer)] + [Timer("01:00:00:00")]
    trainer = train(callbacks, tmp_path)
    kept = next(callback for callback in callbacks if isinstance(callback, ModelCheckpoint))
    memory = torch.load(kept.best_model_path, weights_only=True)["callbacks"]
    assert memory.keys() == {callback.state_key for callback in callbacks}
    for callback in callbacks:
        callback.load_state_dict(memory[callback.state_key])
    assert trainer.current_epoch == 2  # EarlyStopping had its way


def test_the_state_of_the_loop_satisfies_the_protocol(tmp_path: Path) -> None:
    assert isinstance(train([], tmp_path), TrainerProtocol)


def test_the_loop_conforms_with_accumulation_too() -> None:
    from custom_trainer import fit_torch, line_batches, torch_line
    from custom_trainer_state import TrainerState

    def run(scenario: Scenario, module: Any, callbacks: list[Any]) -> None:
        state = TrainerState(callbacks, scenario.num_epochs, accumulate_grad_batches=scenario.accumulate_grad_batches)
        fit_torch(module, line_batches(scenario.num_batches), trainer=state)

    features = ("skip_epoch", "skip_update", "exceptions", "accumulation")
    report = str(conform(Adapter(run, torch_line), verbs=["fit"], features=features))
    assert re.search(r"passed +fit-accumulation ", report) and "failed" not in report


def test_a_window_without_a_loss_at_its_start_or_end_is_that_of_its_other_batches(tmp_path: Path) -> None:
    from custom_trainer import fit_torch, line_batches, torch_line
    from custom_trainer_state import TrainerState

    weights = []
    for left_out in ({0, 3}, set()):
        module = torch_line()
        step = type(module).training_step

        def skipping(batch: Any, batch_idx: int, module: Any = module, step: Any = step, out: Any = left_out) -> Any:
            return None if batch_idx in out else step(module, batch, batch_idx)

        module.training_step = skipping
        batches = line_batches(4) if left_out else line_batches(4)[1:3]
        fit_torch(module, batches, trainer=TrainerState(accumulate_grad_batches=2 if left_out else 1))
        weights.append(module.weight.item())
    by_hand = 0.0
    for x, y in line_batches(4)[1:3]:  # each window's mean counts a batch without a loss as one of loss 0
        by_hand -= 0.1 * float((2 * (by_hand * x - y) * x).mean()) / 2
    assert weights[0] == pytest.approx(by_hand) and weights[0] != pytest.approx(weights[1])


def test_neither_the_trainer_nor_the_loops_nor_the_strategies_are_needed(tmp_path: Path) -> None:
    script = textwrap.dedent(
        f"""
        import sys
        for other in ("loops", "strategies", "trainer"):
            sys.modules["camshaft." + other] = None  # importing it fails, as where it is not installed
        sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(EXAMPLES)!r}]
        from pathlib import Path
        from test_custom_trainer import CASES, train
        for number, (make, check) in enumerate(CASES):
            folder = Path({str(tmp_path)!r}, str(number))
            train([make(folder)], folder)
        print("ran", len(CASES))
        """
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"ran {len(CASES)}\n")
