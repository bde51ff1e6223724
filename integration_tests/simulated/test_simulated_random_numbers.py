"""A rank gets its own device's random numbers back, also on a device of another index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_simulated_placement import Net, loader, make_trainer

from camshaft.hooks_core import Callback
from camshaft.loops.state.random_state import isolated_randomness, random_state, restore_random_state

pytestmark = pytest.mark.simulated


def seed_devices() -> None:
    torch.manual_seed(0)
    for index in (0, 1):
        torch.sim.set_rng_state(torch.Generator().manual_seed(index).get_state(), index)  # type: ignore[attr-defined]


def drawn_on(index: int) -> list[float]:
    return torch.rand(3, device=torch.device("sim", index)).tolist()


@pytest.mark.parametrize(("saved_on", "restored_on"), [(1, 0), (0, 1), (1, 1)])
def test_the_current_devices_numbers_come_back_to_the_current_device(saved_on: int, restored_on: int) -> None:
    seed_devices()
    torch.accelerator.set_device_index(saved_on)
    state = random_state()
    own, other = drawn_on(saved_on), drawn_on(1 - saved_on)
    seed_devices()
    torch.accelerator.set_device_index(restored_on)
    restore_random_state(state)
    assert drawn_on(restored_on) == own
    assert drawn_on(1 - restored_on) == other


def test_isolated_numbers_come_back_on_every_device() -> None:
    seed_devices()
    with isolated_randomness():
        drawn = drawn_on(0), drawn_on(1)
    assert (drawn_on(0), drawn_on(1)) == drawn


class SaveInside(Callback):
    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.current_epoch == 1 and batch_idx == 1:
            trainer.save_checkpoint(self.path)


def train(folder: Path, index: int, **arguments: Any) -> dict[str, torch.Tensor]:
    seed_devices()
    module = Net()
    callbacks = [SaveInside(folder / "inside.ckpt")] if not arguments else None
    trainer = make_trainer(folder, accelerator="sim", devices=[index], callbacks=callbacks, enable_checkpointing=False)
    trainer.fit(module, loader(shuffle=True), **arguments)
    return {name: value.cpu() for name, value in module.state_dict().items()}


@pytest.mark.parametrize("index", [0, 1])
def test_a_run_resumes_to_the_bit_on_a_device_of_another_index(index: int, tmp_path: Path) -> None:
    weights = train(tmp_path, 1)
    resumed = train(tmp_path, index, ckpt_path=tmp_path / "inside.ckpt")
    torch.testing.assert_close(resumed, weights, rtol=0, atol=0)
