from __future__ import annotations

import copy
import math
import pickle
import warnings
from collections import OrderedDict, namedtuple
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recording_trainer import OneProcess, RecordingTrainer
from torch import Tensor, nn

from camshaft.callbacks import NonFiniteGuard, SpikeDetection
from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.forensics.replay import step_capture
from camshaft.forensics.replay.step_capture import (
    CaptureError,
    StepCapture,
    captures_in,
    read_capture,
)
from camshaft.hooks_core.spec import Receiver


class Line(nn.Module):
    automatic_optimization = True

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return {"loss": torch.tensor(math.nan), "batch": batch}


class Recorded:
    """A recorder in a loop of its own."""

    def __init__(self, root: Path, max_captures: int = 1) -> None:
        self.folder = root / "captures"
        self.module = Line()
        self.recorder = StepCapture(self.folder, max_captures)
        strategy = OneProcess()
        strategy.device = torch.device("cpu")
        optimizers = [torch.optim.Adam(self.module.parameters())]
        self.trainer: Any = RecordingTrainer(str(root), strategy=strategy, optimizers=optimizers)
        self.step = self.recorder.wrap_call("training_step", Receiver.MODULE, self.module, self.module.training_step)
        self.recorder.start(self.trainer, self.module)

    def read(self, weights_only: bool | None = None) -> Any:
        ((_, path),) = captures_in(self.folder).items()
        return read_capture(path, weights_only)


Pair = namedtuple("Pair", "a b")
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=3)
    | st.binary(min_size=1),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=2) | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(plain)
@settings(max_examples=30, deadline=None)
def test_plain_batches_are_read_as_they_were_without_unpickling(tmp_path_factory: Any, batch: Any) -> None:
    recorded = Recorded(tmp_path_factory.mktemp("captures"))
    recorded.step(batch, 0)
    recorded.recorder.write(recorded.trainer, "bad")
    assert recorded.read().calls[0].batch == batch and recorded.read().left_out == []


@pytest.mark.parametrize("value", [Pair(1, 2), {1, 2}, torch.nn.utils.rnn.pack_sequence([torch.ones(2)])])
def test_objects_are_left_out_unless_they_are_asked_for(tmp_path: Path, value: Any) -> None:
    recorded = Recorded(tmp_path)
    recorded.step({"x": torch.ones(2), "value": value}, 0)
    recorded.recorder.write(recorded.trainer, "bad")

    found = recorded.read()
    assert "value" not in found.calls[0].batch and [type(value).__qualname__ in kind for kind in found.left_out] == [
        True
    ]
    whole = recorded.read(weights_only=False)
    assert whole.left_out == [] and type(whole.calls[0].batch["value"]) is type(value)


def test_a_batch_that_cannot_be_pickled_is_a_warning(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)
    recorded.step({"value": attrs.make_class("A", ["x"])(1)}, 0)
    with pytest.warns(UserWarning, match="could not write the capture .*object that can be pickled"):
        recorded.recorder.write(recorded.trainer, "bad")


def test_collections_of_tensors_stay_and_weights_come_to_the_cpu(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)
    batch = OrderedDict(x=[torch.ones(2), (torch.zeros(1, dtype=torch.bfloat16), "text")])
    recorded.recorder.begin_batch(3)
    recorded.step(batch, 3)
    recorded.recorder.write(recorded.trainer, "it was bad")
    capture = recorded.read()
    assert (capture.reason, capture.step, capture.has_non_finite_loss) == ("it was bad", 1, True)
    assert [call.batch_idx for call in capture.calls] == [3]
    [call] = capture.calls
    assert torch.equal(call.batch["x"][0], torch.ones(2)) and call.batch["x"][1][0].dtype == torch.bfloat16
    assert call.arguments == (3,)
    assert torch.equal(capture.parameters["layer.weight"], recorded.module.layer.weight)
    assert capture.versions["torch"] == torch.__version__


def test_nothing_is_copied_once_there_are_enough(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)
    recorded.step([torch.ones(1)], 0)
    recorded.recorder.write(recorded.trainer, "bad")
    recorded.recorder.end_update()
    batch = [torch.ones(1)]
    assert recorded.step(batch, 1)["batch"] is batch
    assert recorded.recorder._calls == []
    recorded.recorder.write(recorded.trainer, "bad")
    assert len(captures_in(recorded.folder)) == recorded.recorder.num_captured == 1


def test_batches_without_a_loss_are_not_kept_for_ever(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)
    step = recorded.recorder.wrap_call("training_step", Receiver.MODULE, recorded.module, lambda batch, batch_idx: None)
    for batch_idx in range(5):
        step([torch.ones(1)], batch_idx)
    assert len(recorded.recorder._calls) == 1


def test_a_batch_that_cannot_be_copied_is_an_error(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)
    with pytest.raises(TypeError, match="`batch` must be one that can be copied, for `capture`"):
        recorded.step((one for one in "ab"), 0)


def test_copies_and_pickles_hold_nothing_of_the_run(tmp_path: Path) -> None:
    guard: Any = NonFiniteGuard(capture=StepCapture(tmp_path))
    guard._capture._module, guard._capture._calls = nn.Linear(1, 1), [lambda: None]
    for copied in (copy.deepcopy(guard), pickle.loads(pickle.dumps(guard))):
        assert copied._capture._module is None and copied._capture._calls == []
        assert copied.wrap_call.__self__ is copied._capture


def test_other_hooks_are_called_as_they_are(tmp_path: Path) -> None:
    recorder = StepCapture(tmp_path)
    assert recorder.wrap_call("validation_step", Receiver.MODULE, None, print) is print
    assert not hasattr(NonFiniteGuard(), "wrap_call")


@pytest.mark.parametrize("kind", [NonFiniteGuard, SpikeDetection])
def test_arguments_are_checked(kind: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="`check_every_n_batches` must be None with"):
        kind(capture=StepCapture(tmp_path), check_every_n_batches=3)
    with pytest.raises(InvalidArgumentError, match=r"`max_captures` must be .*, but got 0"):
        StepCapture(tmp_path, max_captures=0)
    with pytest.raises(InvalidArgumentError, match="`folder` must be"):
        StepCapture("https://example.org/folder")
    with pytest.raises(InvalidArgumentError, match="`capture` must be an object that keeps steps"):
        kind(capture=tmp_path)


def test_damaged_files_and_others_are_told(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)
    recorded.step([torch.ones(1)], 0)
    recorded.recorder.write(recorded.trainer, "bad")
    (path,) = captures_in(recorded.folder).values()
    whole = Path(path).read_bytes()
    for contents in (b"", whole[: len(whole) // 2], whole[:-100], b"text"):
        Path(path).write_bytes(contents)
        with pytest.raises(CaptureError, match="`path` must be a whole capture of a step"):
            read_capture(path)
    for other in ({"format": "another"}, {"state_dict": {}}, [1], torch.ones(1)):
        torch.save(other, path)
        with pytest.raises(CaptureError, match="`path` must be a"):
            read_capture(path)
    with pytest.raises(FileNotFoundError):
        read_capture(str(tmp_path / "nothing"))


def test_folders_without_captures_are_told(tmp_path: Path) -> None:
    (tmp_path / "step-x-rank-0.capture").touch()
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(FileNotFoundError, match="`folder` must be a folder with captures of steps"):
            captures_in(folder)


def test_captures_are_found_in_the_order_of_steps_and_ranks(tmp_path: Path) -> None:
    for step, rank in ((10, 1), (9, 0), (10, 0)):
        (tmp_path / f"step-{step}-rank-{rank}.capture").touch()
    assert list(captures_in(tmp_path)) == [(9, 0), (10, 0), (10, 1)]


def test_a_file_that_runs_code_is_not_unpickled(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return warnings.warn, ("code ran",)

    torch.save({"format": step_capture.FORMAT, "capture": Evil(), "objects": []}, tmp_path / "step-1-rank-0.capture")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(CaptureError):
            read_capture(str(tmp_path / "step-1-rank-0.capture"))


def test_the_loss_of_a_captured_step_is_kept_as_it_was_returned(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)
    loss = torch.tensor(2.0, requires_grad=True) * 1

    def step(batch: Any, batch_idx: int) -> Tensor:
        return loss

    wrapped = recorded.recorder.wrap_call("training_step", Receiver.MODULE, recorded.module, step)
    assert wrapped([1], 0) is loss
    loss.detach().fill_(3.0)
    recorded.recorder.write(recorded.trainer, "bad")
    assert recorded.read().calls[0].loss.item() == 2.0
