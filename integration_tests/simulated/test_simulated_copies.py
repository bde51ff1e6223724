"""Copies between host and device: which kinds there are, and that nothing reads one before it is finished."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_simulated_placement import Net, loader, make_trainer

from camshaft.hooks_core import Callback
from camshaft.hooks_core.support.transfer import move_to_device
from camshaft.strategies import SingleDeviceStrategy, read_checkpoint

pytestmark = pytest.mark.simulated


class Events(Callback):
    """Counts the copies of each batch."""

    def __init__(self) -> None:
        self.kinds: list[str] = []

    def on_train_start(self, trainer: Any, module: Any) -> None:
        import simulated_device

        self._context = simulated_device.recording()
        self._recording = self._context.__enter__()

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        self._context.__exit__(None, None, None)
        self.kinds = [event.kind for event in self._recording.events if "copy" in event.kind]
        trainer.should_stop = True


@pytest.mark.parametrize(("pinned", "kind"), [(True, "copy"), (False, "staged copy")])
def test_batches_are_copied_without_waiting(pinned: bool, kind: str, tmp_path: Path) -> None:
    events = Events()
    trainer = make_trainer(tmp_path, accelerator="sim", devices=1, callbacks=[events], enable_checkpointing=False)
    trainer.fit(Net(), loader(pin_memory=pinned))
    assert events.kinds == [kind] * 8  # two tensors of each of four batches


def train(folder: Path, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the weights after a training, and its last checkpoint."""
    torch.manual_seed(3)
    module = Net()
    strategy = SingleDeviceStrategy("sim", **options)
    trainer = make_trainer(folder, strategy=strategy, gradient_clip_val=0.5)
    trainer.fit(module, loader(pin_memory=True, shuffle=True), loader(pin_memory=True))
    (path,) = folder.rglob("*.ckpt")
    return {name: value.cpu() for name, value in module.state_dict().items()}, read_checkpoint(path)


@pytest.mark.parametrize("options", [{}, {"save_asynchronously": True}, {"precision": "16-mixed"}])
def test_late_copies_change_nothing(options: dict[str, Any], tmp_path: Path) -> None:
    import simulated_device

    weights, checkpoint = train(tmp_path / "usual", **options)
    with simulated_device.late_copies():
        late_weights, late_checkpoint = train(tmp_path / "late", **options)
    torch.testing.assert_close(late_weights, weights, rtol=0, atol=0)
    for key in ("state_dict", "optimizer_states"):
        torch.testing.assert_close(late_checkpoint[key], checkpoint[key], rtol=0, atol=0)


def test_late_copies_show_who_reads_too_early() -> None:
    import simulated_device

    with simulated_device.late_copies():
        pinned = torch.empty(3, pin_memory=True)
        pinned.copy_(torch.ones(3, device="sim"), non_blocking=True)
        assert pinned.tolist() != [1.0, 1.0, 1.0]
        torch.accelerator.current_stream().synchronize()
        assert pinned.tolist() == [1.0, 1.0, 1.0]
        with torch.Stream("sim"):
            on_device = torch.ones(3).pin_memory().to("sim", non_blocking=True)
        assert (on_device * 2).tolist() != [2.0, 2.0, 2.0]


def test_a_batch_that_is_copied_late_arrives() -> None:
    import simulated_device

    with simulated_device.late_copies():
        moved = move_to_device({"x": torch.ones(3).pin_memory()}, torch.device("sim", 0))
        assert moved["x"].tolist() == [1.0, 1.0, 1.0]


def test_a_device_of_its_own_kind_has_pinned_snapshots(tmp_path: Path) -> None:
    import simulated_device

    strategy = SingleDeviceStrategy("sim:1", save_asynchronously=True)
    weights = torch.arange(6.0, device="sim:1")
    with simulated_device.late_copies(), simulated_device.recording() as recorded:
        pending = strategy.save_checkpoint({"weights": weights}, str(tmp_path / "one.ckpt"))
        weights.zero_()
    assert pending is not None
    pending.wait()
    assert read_checkpoint(tmp_path / "one.ckpt")["weights"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert [event.name for event in recorded.events] == ["to pinned memory", "stream.synchronize"]
