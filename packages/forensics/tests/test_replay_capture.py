"""Steps that went wrong, captured by the callbacks, and made again."""

from __future__ import annotations

import copy
import math
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from capture_parts import Explodes, Larger, Net, net, train
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from launching import run_ranks
from torch import Tensor, nn
from trainer_parts import Regression, assert_same

from camshaft.callbacks import NonFiniteError, NonFiniteGuard, SpikeDetection, TrainingSpikeException
from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.forensics import StepCapture, replay, replay_capture
from camshaft.forensics.commands import replay as main
from camshaft.forensics.replay.step_capture import CaptureError, captures_in, read_capture
from camshaft.hooks_core import Callback
from camshaft.trainer import Trainer

PARTS = Path(__file__).with_name("capture_parts.py")


class States(Callback):
    """Notes the state before each batch, as it is when training_step begins."""

    after_module = frozenset({"on_train_batch_start"})

    def __init__(self) -> None:
        self.of_batches: list[Any] = []

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        weights = {name: one.detach().clone() for name, one in module.named_parameters()}
        buffers = {name: one.clone() for name, one in module.named_buffers()}
        optimizer = copy.deepcopy(trainer.optimizers[0].state_dict())
        randoms = (
            torch.get_rng_state(),
            list(random.getstate()[1]),
            numpy.random.get_state()[1].astype("int64").tolist(),
        )
        self.of_batches.append((weights, buffers, optimizer, randoms, copy.deepcopy(batch)))


def captured(folder: Path, module: Any, guard: Any = None, **arguments: Any) -> States:
    states = States()
    with pytest.raises((NonFiniteError, TrainingSpikeException)):
        train(module, guard or NonFiniteGuard(capture=StepCapture(folder)), states, **arguments)
    return states


@given(st.integers(2, 40), st.integers(1, 4), st.sampled_from([math.inf, math.nan, 1e15]))
@example(25, 3, 1e15)  # the last batch of an epoch, in a window that is cut short
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_capture_holds_the_state_from_just_before_the_update_and_is_made_again_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, at: int, accumulation: int, factor: float
) -> None:
    folder = tmp_path_factory.mktemp("captures")
    spikes = SpikeDetection(warmup=1, rtol=1e6, capture=StepCapture(folder), exclude_batches_path=folder)
    is_spike = factor == 1e15
    guard = spikes if is_spike else NonFiniteGuard(capture=StepCapture(folder))
    if is_spike and at <= accumulation:
        at += accumulation  # a spike needs a loss before it
    states = captured(folder, Net(at, factor), guard, accumulate_grad_batches=accumulation)

    ((step, rank), path), *others = captures_in(folder).items()
    capture = read_capture(path)
    epoch, in_epoch = divmod(at - 1, 25)
    first = in_epoch // accumulation * accumulation
    steps_per_epoch = math.ceil(25 / accumulation)
    assert not others and rank == 0 and step == epoch * steps_per_epoch + in_epoch // accumulation + 1
    assert (capture.step, capture.epoch) == (step, epoch)
    assert [call.batch_idx for call in capture.calls] == list(range(first, min(first + accumulation, 25)))
    of_batches = states.of_batches[epoch * 25 + first :]
    weights, buffers, optimizer, _, _ = of_batches[0]
    assert_same(capture.parameters, weights)
    assert_same(capture.buffers, buffers)
    assert_same(capture.optimizers, [optimizer])
    for call, (*_, (torch_state, python, numbers), batch) in zip(capture.calls, of_batches, strict=True):
        assert_same(call.batch, batch)
        assert torch.equal(call.random_state["torch"], torch_state)
        assert call.random_state["python"][1].tolist() == python
        assert call.random_state["numpy"][1].tolist() == numbers

    before = torch.get_rng_state()
    replayed = replay_capture(folder, Net)
    assert torch.equal(torch.get_rng_state(), before)
    assert replayed.differences == [] and (replayed.step, replayed.epoch) == (step, epoch)
    if not is_spike:
        found = replayed.inspection.first_non_finite
        assert found is not None and (found.kind, found.name) == ("output", "explodes")
        assert replayed.batch_idx == in_epoch
        assert_same(replayed.batch["x"], torch.zeros(4, 3))  # as the step left it
    assert replayed.inspection.calls[0].name == "body.0"


def test_gradients_that_are_not_finite_are_captured_with_all_batches_of_the_update(tmp_path: Path) -> None:
    class BadGradient(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            loss = super().training_step(batch, batch_idx)
            bad = (0 * self.head(torch.zeros(1, 4))).sqrt().sum()  # 0, whose derivative is not finite
            return loss + bad if batch_idx == 4 else loss

    captured(
        tmp_path,
        BadGradient(1000),
        NonFiniteGuard(check_gradients=True, capture=StepCapture(tmp_path)),
        accumulate_grad_batches=3,
    )
    replayed = replay_capture(tmp_path, BadGradient)
    assert (replayed.step, replayed.batch_idx) == (2, 4) and replayed.differences == []
    found = replayed.inspection.first_non_finite
    assert found is not None and found.kind == "gradient"
    assert bool(replayed.gradients["head.weight"].isnan().any())


@pytest.mark.parametrize("action", ["warn", "stop", "skip"])
def test_other_actions_capture_too_up_to_the_largest_number(tmp_path: Path, action: Any) -> None:
    class OftenBad(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            loss = super().training_step(batch, batch_idx)
            return loss * math.nan if batch_idx % 5 == 2 else loss

    guard = NonFiniteGuard(action, capture=StepCapture(tmp_path, max_captures=2))
    with pytest.warns(RuntimeWarning, match="The loss must be finite"):
        train(OftenBad(1000), guard, max_epochs=1)
    expected = {"stop": [(3, 0)], "warn": [(3, 0), (4, 0)], "skip": [(3, 0), (8, 0)]}  # "warn" makes the weights NaN
    assert list(captures_in(tmp_path)) == expected[action]
    if action == "skip":
        assert replay_capture(tmp_path, OftenBad, step=8).batch_idx == 7
        with pytest.raises(FileNotFoundError, match=r"those of a capture \(step 3 of rank 0, step 8 of rank 0\)"):
            replay_capture(tmp_path, OftenBad, step=4)


def test_a_replay_captures_nothing_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trainer, "fit", lambda self, *data: replay(self, *data, to_step=5))
    with pytest.warns(RuntimeWarning, match="The loss must be finite"):
        train(Net(at=3), NonFiniteGuard("skip", capture=StepCapture(tmp_path)))
    assert not any(tmp_path.iterdir())


def test_training_with_a_guard_that_captures_computes_the_same(tmp_path: Path) -> None:
    def trained(*callbacks: Any) -> Any:
        torch.manual_seed(0)
        module = Net(1000)
        train(module, *callbacks, accumulate_grad_batches=2)
        return module.state_dict(), torch.get_rng_state()

    assert_same(trained(NonFiniteGuard(capture=StepCapture(tmp_path))), trained())
    assert os.listdir(tmp_path) == []


def test_modes_and_frozen_parameters_are_as_captured(tmp_path: Path) -> None:
    class Frozen(Net):
        def on_train_epoch_start(self) -> None:
            self.body.eval()

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            self.body[0].requires_grad_(batch_idx > 20)

    captured(tmp_path, Frozen(10))
    capture = read_capture(captures_in(tmp_path)[10, 0])
    assert not capture.modes["body.2"] and capture.modes["explodes"]
    assert "body.0.weight" not in capture.requires_grad
    replayed = replay_capture(tmp_path, Net)  # without these hooks
    outputs = {call.name: call.outputs for call in replayed.inspection.calls}
    assert outputs["body.2"] == outputs["body.1"]  # the dropout drops nothing
    assert replayed.gradients.keys() & {"body.0.weight", "head.weight"} == {"head.weight"}


def test_the_module_is_an_object_a_class_or_a_function(tmp_path: Path) -> None:
    captured(tmp_path, net())
    for module in (net(), Net, net):
        assert replay_capture(tmp_path, module).differences == []
    with pytest.raises(TypeError, match="the captured one is a capture_parts:Net, but got None"):
        replay_capture(tmp_path)


def test_the_class_is_built_with_the_captured_hyperparameters(tmp_path: Path) -> None:
    captured(tmp_path, Net(at=10, width=6))
    assert replay_capture(tmp_path, Net).inspection.parameters["head.weight"].values.shape == (1, 6)


@pytest.mark.parametrize(
    ("module", "problem"),
    [
        (lambda: Net(10, width=5), r"its parameter body.0.weight has the shape \(5, 3\), not \(4, 3\)"),
        (lambda: Regression(), "it has no parameter body.0.weight"),
        (lambda: Larger(), "it has a further parameter, further.weight"),
    ],
    ids=["other shape", "other class", "further parameter"],
)
def test_another_module_is_refused(tmp_path: Path, module: Any, problem: str) -> None:
    captured(tmp_path, net())
    with pytest.raises(
        CaptureError, match=rf"`module` must be the captured one \(a capture_parts:Net\), but {problem}"
    ):
        replay_capture(tmp_path, module)


def test_a_step_that_computes_something_else_now_is_told(tmp_path: Path) -> None:
    captured(
        tmp_path, Net(10, 1e15), SpikeDetection(rtol=1e6, capture=StepCapture(tmp_path), exclude_batches_path=tmp_path)
    )

    class Changed(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return super().training_step(batch, batch_idx) * (1 + 2**-20)

    with pytest.warns(UserWarning, match=r"differs from the captured one: the loss is .* was captured"):
        replayed = replay_capture(tmp_path, Changed)
    assert len(replayed.differences) == 1


class Boxed:
    """A batch of a class of one's own, which moves itself."""

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def to(self, *args: Any, **kwargs: Any) -> Boxed:
        return Boxed(self.x.to(*args, **kwargs))

    def __getitem__(self, name: str) -> Tensor:
        return self.x


class OfBoxes(Net):
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        assert isinstance(batch, dict)  # a captured batch has been through it
        return Boxed(batch["x"])


def test_batches_of_ones_own_classes_are_unpickled_on_request_only(tmp_path: Path) -> None:
    captured(tmp_path, OfBoxes(10))
    with pytest.raises(CaptureError, match=r"it has a test_replay_capture\.Boxed that was not unpickled"):
        replay_capture(tmp_path, OfBoxes)
    replayed = replay_capture(tmp_path, OfBoxes, weights_only=False)
    assert replayed.differences == [] and isinstance(replayed.batch, Boxed)


def test_a_module_that_moves_its_batches_itself_does_so_again(tmp_path: Path) -> None:
    moves: list[int] = []

    class Moving(Net):
        def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
            moves.append(dataloader_idx)
            return batch

    captured(tmp_path, Moving(10))
    num_moves = len(moves)
    assert replay_capture(tmp_path, Moving).differences == []
    assert len(moves) == num_moves + 1


class ByHand(Net):
    """Steps one optimizer twice by hand in each batch, and another one in each second batch."""

    def __init__(self, at: int = 10, calls_backward: bool = True) -> None:
        super().__init__(at)
        self.automatic_optimization = False
        self.calls_backward = calls_backward

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        first, second = self.optimizers()
        inputs = batch["x"].clone()
        for _ in range(2):
            first.zero_grad()
            (self.body(inputs).square().mean() * torch.rand(())).backward()
            first.step()
        loss = super().training_step(batch, batch_idx)
        if self.calls_backward:
            self.manual_backward(loss)
        else:
            loss.backward()
        if batch_idx % 2:
            second.step()
            second.zero_grad()
        return {"loss": loss}

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(part.parameters(), lr=0.01) for part in (self.body, self.head)]


class WithPlainBackward(ByHand):
    def __init__(self, at: int = 10) -> None:
        super().__init__(at, calls_backward=False)


class TakingTurns(Net):
    """Two optimizers under automatic optimization, each with a loss of its own."""

    def training_step(self, batch: Any, batch_idx: int, optimizer_idx: int) -> Any:  # type: ignore[override]
        if optimizer_idx == 0:
            return self.head(self.body(batch["x"])).square().mean() * torch.rand(())
        return super().training_step(batch, batch_idx)

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(part.parameters(), lr=0.01) for part in (self.body, self.head)]


@pytest.mark.parametrize(("kind", "num_calls"), [(ByHand, 1), (WithPlainBackward, 1), (TakingTurns, 2)])
@pytest.mark.parametrize("at", [6, 19])
def test_batches_with_several_updates_are_made_again_from_their_beginning(
    tmp_path: Path, kind: Any, num_calls: int, at: int
) -> None:
    states = States()
    with pytest.raises(NonFiniteError, match=f"in epoch 0, batch {at - 1}"):
        train(kind(at), NonFiniteGuard(capture=StepCapture(tmp_path)), states)

    capture = read_capture(*captures_in(tmp_path).values())
    weights, buffers, optimizer, _, batch = states.of_batches[at - 1]
    assert_same(capture.parameters, weights)
    assert_same(capture.buffers, buffers)
    assert_same(capture.optimizers[0], optimizer)
    assert (len(capture.optimizers), len(capture.calls)) == (2, num_calls)
    assert_same(capture.calls[0].batch, batch)

    replayed = replay_capture(tmp_path, kind(at))
    assert replayed.differences == [] and (replayed.step, replayed.batch_idx) == (capture.step, at - 1)
    found = replayed.inspection.first_non_finite
    assert found is not None and (found.kind, found.name) == ("output", "explodes")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Explodes, "forward", lambda self, x: x)
        with pytest.warns(UserWarning, match="differs from the captured one"):
            replay_capture(tmp_path, kind(at))


def test_an_update_by_hand_that_is_left_out_is_captured_before_the_step_returns(tmp_path: Path) -> None:
    class OneByHand(ByHand):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            loss = Net.training_step(self, batch, batch_idx)
            self.manual_backward(loss)
            optimizer.step()
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=0.01)

    guard = NonFiniteGuard("skip", capture=StepCapture(tmp_path))
    with pytest.warns(RuntimeWarning, match="The update is left out"):
        train(OneByHand(7), guard, max_epochs=1)
    assert guard.num_bad == 1
    replayed = replay_capture(tmp_path, OneByHand(7))
    assert (replayed.step, replayed.batch_idx, replayed.differences) == (7, 6, [])
    assert replayed.inspection.first_non_finite is not None


def test_training_by_hand_with_a_guard_that_captures_computes_the_same(tmp_path: Path) -> None:
    def trained(*callbacks: Any) -> Any:
        torch.manual_seed(0)
        module = ByHand(1000)
        train(module, *callbacks)
        return module.state_dict(), torch.get_rng_state()

    assert_same(trained(NonFiniteGuard(capture=StepCapture(tmp_path))), trained())
    assert os.listdir(tmp_path) == []


class WithHiddens(Net):
    def training_step(self, batch: Any, batch_idx: int, hiddens: Any = None) -> Tensor:  # type: ignore[override]
        return super().training_step(batch, batch_idx)


class Lbfgs(Net):
    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters())


class Accumulating(Net):
    def training_step(self, batch: Any, batch_idx: int, optimizer_idx: int) -> Tensor:  # type: ignore[override]
        return super().training_step(batch, batch_idx)

    def configure_optimizers(self) -> Any:
        self.trainer.accumulate_grad_batches = 2
        return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.body, self.head)]


@pytest.mark.parametrize("kind", [WithHiddens, Lbfgs, Accumulating])
def test_steps_that_cannot_be_captured_are_refused_when_training_starts(tmp_path: Path, kind: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"in StepCapture\. Leave"):
        train(kind(), NonFiniteGuard(capture=StepCapture(tmp_path)))


def test_sharded_parameters_are_refused_when_training_starts(tmp_path: Path) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor

    class Sharded(Net):
        def on_fit_start(self) -> None:
            mesh = init_device_mesh("cpu", (1,))
            self.head.weight = nn.Parameter(distribute_tensor(self.head.weight.detach(), mesh))

    torch.distributed.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{tmp_path}/store")
    try:
        with pytest.raises(InvalidArgumentError, match=r"None with sharded parameters \(head.weight, ...\)"):
            train(Sharded(), NonFiniteGuard(capture=StepCapture(tmp_path / "captures")))
    finally:
        torch.distributed.destroy_process_group()


def test_a_capture_that_cannot_be_written_is_a_warning_beside_the_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.warns(UserWarning, match="StepCapture could not write the capture"):
        captured(tmp_path, net(), NonFiniteGuard(capture=StepCapture(tmp_path / "file")))


def test_captures_lie_in_stores_too() -> None:
    pytest.importorskip("fsspec")
    folder = f"memory://captures/{random.random()}"
    captured(Path(), net(), NonFiniteGuard(capture=StepCapture(folder)))
    assert list(captures_in(folder)) == [(10, 0)]
    assert replay_capture(folder, Net).differences == []


def command(*words: object, text: str = "") -> Any:
    """Run the command in a fresh process."""
    line = [sys.executable, "-m", "camshaft.trainer", "replay", *map(str, words)]
    return subprocess.run(line, cwd=PARTS.parent, input=text, capture_output=True, text=True, check=False)


@pytest.mark.processes
def test_a_model_that_becomes_infinite_at_step_1234_is_found_by_a_fresh_process(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError):
        train(Net(at=1234), NonFiniteGuard(capture=StepCapture(tmp_path)), num_batches=1000)
    ended = command(tmp_path, "--module", "capture_parts:Net", "--max-rows", 3)
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert "in epoch 1, batch 233" in lines[0] and lines[1].startswith("step 1,234, epoch 1, rank 0 of 1")
    assert lines[3].startswith("The output of explodes (Explodes) is not finite")
    assert lines[-2:] == ["", "The loss equals the captured one bit for bit."]


@pytest.mark.processes
def test_the_debugger_stops_in_the_step(tmp_path: Path) -> None:
    captured(tmp_path, net(), accumulate_grad_batches=4)
    ended = command(tmp_path, "--module", "capture_parts.net", "--pdb", text="p 'idx', batch_idx\nc\n")
    assert ended.returncode == 0, ended.stderr
    assert "training_step()" in ended.stdout and "('idx', 9)" in ended.stdout
    left = command(tmp_path, "--module", "capture_parts.net", "--pdb", text="q\n")
    assert left.returncode == 1 and "Traceback" not in left.stderr and "name" not in left.stdout


@pytest.mark.processes
def test_each_of_two_ranks_has_its_own_and_the_faulty_one_is_taken(tmp_path: Path) -> None:
    run_ranks(PARTS, 2, args=[tmp_path]).failed()
    paths = captures_in(tmp_path)
    assert list(paths) == [(7, 0), (7, 1)]
    one, other = (read_capture(path) for path in paths.values())
    assert_same(one.parameters, other.parameters)
    assert not torch.equal(one.calls[0].batch["x"], other.calls[0].batch["x"])
    assert not one.has_non_finite_loss and other.has_non_finite_loss

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.distributed, "get_rank", lambda: 1)
        replayed = replay_capture(tmp_path, Net)
    assert replayed.differences == [] and replayed.inspection.first_non_finite is not None
    assert replayed.inspection.first_non_finite.name == "explodes"
    healthy = replay_capture(tmp_path, Net(at=1000), rank=0)
    assert healthy.differences == [] and healthy.inspection.first_non_finite is None


def test_a_module_may_come_from_a_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jsonargparse")
    captured(tmp_path, Net(at=10, width=7))
    config = tmp_path / "config.yaml"
    config.write_text("model:\n  class_path: capture_parts.Net\n  init_args: {at: 10, width: 7}\n")
    assert main([str(tmp_path), "--config", str(config)]) == 0
    assert "The loss equals the captured one bit for bit." in capsys.readouterr().out


def twice() -> Net:
    class Twice(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return 2 * super().training_step(batch, batch_idx)

    return Twice(10, 1e15)


def test_a_departure_has_its_exit_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    captured(
        tmp_path, Net(10, 1e15), SpikeDetection(rtol=1e6, capture=StepCapture(tmp_path), exclude_batches_path=tmp_path)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "__version__", "0.1")
        assert main([str(tmp_path), "--module", "test_replay_capture:twice"]) == 1
    printed = capsys.readouterr().out
    assert "The step differs from the captured one: the loss is" in printed
    assert "  not as captured: torch 0.1 (was " in printed


def test_bad_input_is_told_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def error_of(*words: object) -> str:
        try:
            status: Any = main([*map(str, words)])
        except SystemExit as ended:
            status = ended.code
        assert status == 2
        return capsys.readouterr().err

    captured(tmp_path / "good", net())
    (tmp_path / "damaged").mkdir()
    (tmp_path / "empty").mkdir()
    (path,) = captures_in(tmp_path / "good").values()
    (tmp_path / "damaged" / Path(path).name).write_bytes(Path(path).read_bytes()[:-2000])
    for folder, module, error in (
        ("empty", "capture_parts.Net", "error: `folder` must be a folder with captures of steps"),
        ("missing", "capture_parts.Net", "error: `folder` must be a folder with captures of steps"),
        ("damaged", "capture_parts.Net", "error: `path` must be a whole capture of a step"),
        ("good", "capture_parts.Larger", "error: `module` must be the captured one (a capture_parts:Net), but it has"),
        ("good", "torch.nn.Identity", "error: Identity.training_step: `training_step` must be defined"),
        ("good", "capture_parts.Nothing", "has no attribute 'Nothing'"),
        ("good", "capture_parts", "must be MODULE:NAME"),
    ):
        assert error in error_of(tmp_path / folder, "--module", module)
    assert "it is of a capture_parts:Net" in error_of(tmp_path / "good")
    assert "those of a capture (step 10 of rank 0)" in error_of(tmp_path / "good", "--step", 3)
