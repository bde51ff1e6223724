"""Ledgers of real trainings: what they say of each update, and what `compare` says of two that differ in one thing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from trainer_parts import NO_VALIDATION, Regression, dataset, quiet_trainer

from camshaft.callbacks import ModelCheckpoint
from camshaft.forensics import LedgerError, RunLedger, compare
from camshaft.forensics.ledger.digests import digest_of, signed_as_hex
from camshaft.forensics.ledger.ledger_file import read_ledger
from camshaft.hooks_core import Callback
from camshaft.trainer import TrainingModule, seed_everything

pytestmark = [
    pytest.mark.filterwarnings(NO_VALIDATION),
    pytest.mark.filterwarnings("ignore:The checkpoint holds the state of callbacks that this run does not have"),
]


class Drawing(Regression):
    """Draws random numbers, and has an optimizer with a state."""

    def __init__(self) -> None:
        super().__init__(dropout=0.2)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def fit(
    folder: Path, *callbacks: Any, module: Any = None, seed: int = 0, sampler: Any = None, **arguments: Any
) -> list[dict[str, Any]]:
    """Train for three epochs of five batches. Returns the lines of the ledger."""
    seed_everything(seed)
    ledgers = [one for one in callbacks if isinstance(one, RunLedger)]
    others = [one for one in callbacks if one not in ledgers]
    ledger = ledgers[0] if ledgers else RunLedger(folder, weights_every_n_steps=4)
    generator = torch.Generator().manual_seed(seed)
    loader: Any = DataLoader(dataset(20), 4, shuffle=sampler is None, sampler=sampler, generator=generator)
    loader, ckpt_path = arguments.pop("loader", loader), arguments.pop("ckpt_path", None)
    trainer = quiet_trainer(folder, **{"max_epochs": 3, "callbacks": [*others, ledger], **arguments})
    trainer.fit(module or Drawing(), loader, ckpt_path=ckpt_path)
    return read_ledger(ledger.path).lines


class At(Callback):
    """Acts before the update of a step."""

    def __init__(self, step: int, act: Any) -> None:
        self.step, self.act = step, act

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == self.step - 1:
            self.act(module, batch)


def flip_bit(module: Any, batch: Any) -> None:
    module.layer.weight.data.view(torch.int32)[0, 1] ^= 1


def test_a_line_holds_what_the_update_was_made_of(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Watch(Callback):
        def on_before_backward(self, trainer: Any, module: Any, loss: Tensor) -> None:
            seen.append([loss.item()])

        def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
            gradients = [parameter.grad for parameter in module.parameters()]
            seen[-1] += [float(nn.utils.get_total_norm(gradients)), digest_of(module.layer.weight)]
            seen[-1] += [optimizer.state.get(module.layer.bias, {}).get("exp_avg")]
            seen[-1][-1] = seen[-1][-1] if seen[-1][-1] is None else digest_of(seen[-1][-1])

    lines = fit(tmp_path, Watch())
    end = lines.pop()
    assert [line["step"] for line in lines] == [*range(1, 16)] and end["end"] == 15
    assert [(line["epoch"], *line["batches"]) for line in lines] == [divmod(idx, 5) for idx in range(15)]
    for line, (loss, norm, weight, average) in zip(lines, seen, strict=True):
        assert line["loss"] == [["float32:" + format(torch.tensor(loss).view(torch.int32).item(), "08x")]]
        [[found]] = line["norm"]
        assert torch.tensor(int(found[8:], 16)).view(torch.float64).item() == pytest.approx(norm, rel=1e-6)
        if line["step"] % 4 == 1:
            assert line["weights"]["layer.weight"] == signed_as_hex(int(weight))
            assert set(line["random"][0]) >= {"torch", "python"}
            if average is not None:
                assert line["optimizer"]["0.exp_avg.layer.bias"] == signed_as_hex(int(average))
        else:
            assert "weights" not in line and set(line["random"][0]) == {"torch"}
    for epoch in range(3):
        samples = [index for line in lines[5 * epoch : 5 * epoch + 5] for index in line["samples"][0][0]]
        assert sorted(samples) == [*range(20)] and samples != sorted(samples)


def test_two_runs_alike_have_the_same_ledger(tmp_path: Path) -> None:
    for name in ("a", "b"):
        fit(tmp_path / name)
    assert (tmp_path / "a/ledger.jsonl").read_bytes() == (tmp_path / "b/ledger.jsonl").read_bytes()
    assert str(compare(tmp_path / "a", tmp_path / "b")) == "Equal for 15 steps"


def test_one_bit_of_a_weight_is_named(tmp_path: Path) -> None:
    fit(tmp_path / "a")
    fit(tmp_path / "b", At(9, flip_bit))
    found = compare(tmp_path / "a", tmp_path / "b")
    assert (found.step, found.num_equal) == (9, 8) and found.differences[0] == "weights: layer.weight"

    fit(tmp_path / "c", At(7, flip_bit))
    found = compare(tmp_path / "a", tmp_path / "c")
    assert found.step in (7, 8) and all("samples" not in one and "random" not in one for one in found.differences)
    assert found.parameters_step == 9 and "layer.weight" in found.parameters


def test_another_order_of_samples_and_another_seed_are_named(tmp_path: Path) -> None:
    order = [*range(20)]
    other = [*order[:6], order[7], order[6], *order[8:]]
    fit(tmp_path / "a", sampler=order)
    fit(tmp_path / "b", sampler=other)
    found = compare(tmp_path / "a", tmp_path / "b")
    assert found.step == 2 and found.differences[0] == "samples: [[4, 5, 6, 7]] and [[4, 5, 7, 6]]"

    fit(tmp_path / "c", sampler=order, seed=1)
    found = compare(tmp_path / "a", tmp_path / "c")
    assert found.step == 1 and found.header == ["seed: '0' and '1'"]
    assert "random numbers of torch on the CPU" in found.differences

    fit(tmp_path / "d", At(5, lambda module, batch: torch.rand(())), sampler=order)
    found = compare(tmp_path / "a", tmp_path / "d")
    assert found.step == 5 and found.differences[0] == "random numbers of torch on the CPU"


class Given:
    """A loader of a user's own."""

    def __init__(self, *batches: Any) -> None:
        self.batches = batches

    def __iter__(self) -> Any:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


def test_batches_whose_indices_are_unknown_have_digests(tmp_path: Path) -> None:
    batches = [[torch.full((2, 3), float(idx)), torch.zeros(2, 1)] for idx in range(3)]

    class Changing(Drawing):
        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            return [part.clone() for part in batch]

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            batch[0] += 1  # after the ledger has seen it
            return super().training_step(batch, batch_idx)

    ledgers = [RunLedger(tmp_path / name) for name in ("a", "b")]
    for ledger, first in zip(ledgers, (batches[0], batches[2]), strict=True):
        loader = Given(first, batches[1], batches[1])
        fit(tmp_path, ledger, module=Changing(), max_epochs=1, loader=loader)
    found = [[line["samples"] for line in read_ledger(ledger.path).lines if "step" in line] for ledger in ledgers]
    assert found[0][1:] == found[1][1:] and found[0][1] == found[0][2] and found[0][0] != found[1][0]
    assert all(isinstance(samples[0][0], str) for samples in found[0])


class ByHand(TrainingModule):
    """Two optimizers that it steps by itself, one of them twice."""

    automatic_optimization = False

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        first, second = self.optimizers()
        for optimizer in (first, second, first):
            loss = nn.functional.mse_loss(self.layer(batch[0]), batch[1])
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD([self.layer.weight], lr=0.1), torch.optim.SGD([self.layer.bias], lr=0.1)]


@pytest.mark.parametrize(
    ("module", "arguments", "batches", "num_losses", "num_norms"),
    [
        (Drawing, {"accumulate_grad_batches": 2}, [[0, 1], [2, 3], [4]], [2, 2, 1], 1),
        (ByHand, {}, [[0], [1], [2], [3], [4]], [3] * 5, 3),
    ],
)
def test_windows_and_several_optimizers_have_a_line_an_update(
    module: Any, arguments: Any, batches: Any, num_losses: Any, num_norms: int, tmp_path: Path
) -> None:
    lines = fit(tmp_path, module=module(), max_epochs=1, **arguments)[:-1]
    assert [line["batches"] for line in lines] == batches
    assert [len(line["loss"][0]) for line in lines] == num_losses
    assert {len(line["norm"][0]) for line in lines} == {num_norms}
    assert [len(line["samples"][0]) for line in lines] == [len(one) for one in batches]


def test_lines_every_few_steps_are_those_of_every_step(tmp_path: Path) -> None:
    every = fit(tmp_path / "a")
    some = fit(tmp_path / "b", RunLedger(tmp_path / "b", every_n_steps=3, weights_every_n_steps=4))
    for lines in (every, some):
        for line in lines:
            del line["chain"]
    wanted = [line for line in every if "end" in line or line["step"] % 3 == 1 or line["step"] % 4 == 1]
    assert some == wanted
    assert compare(tmp_path / "a", tmp_path / "b").num_equal == len(wanted) - 1


def test_groups_are_written_while_an_epoch_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunLedger, "NUM_PER_GROUP", 3)
    lengths: list[int] = []
    path = tmp_path / "ledger.jsonl"
    watch = At(0, None)
    watch.on_train_batch_start = lambda *_: lengths.append(len(path.read_text().splitlines()))  # type: ignore
    lines = fit(tmp_path, watch, max_epochs=1)
    assert lengths == [1, 1, 1, 1, 4] and len(lines) == 6


def checkpoint_of(folder: Path) -> str:
    saving = ModelCheckpoint(folder / "kept", every_n_train_steps=4, save_top_k=-1, filename="{step}")
    fit(folder, saving, enable_checkpointing=True)
    return str(folder / "kept/step=8.ckpt")


def test_a_fit_that_goes_on_cuts_and_one_that_begins_anew_keeps_the_ledger_before(tmp_path: Path) -> None:
    path, checkpoint = tmp_path / "ledger.jsonl", checkpoint_of(tmp_path)
    whole = path.read_bytes()
    fit(tmp_path, ckpt_path=checkpoint)
    assert path.read_bytes() == whole and not (tmp_path / "ledger.previous.jsonl").exists()

    fit(tmp_path, ckpt_path=checkpoint, max_epochs=4)
    lines = read_ledger(path).lines
    assert [line["changed"] for line in lines if "resumed" in line] == [
        {"arguments": [before := read_ledger(path).header["arguments"], {**before, "max_epochs": 4}]}
    ]
    assert [line["step"] for line in lines if "step" in line] == [*range(1, 21)]

    fit(tmp_path)
    assert path.read_bytes() == whole and (tmp_path / "ledger.previous.jsonl").exists()


@pytest.mark.parametrize("batch_idx", [2, 3])
def test_a_fit_that_goes_on_inside_a_window_has_the_ledger_of_a_whole_one(batch_idx: int, tmp_path: Path) -> None:
    class Saving(Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, idx: int) -> None:
            if (trainer.current_epoch, idx) == (1, batch_idx):
                trainer.save_checkpoint(tmp_path / "inside.ckpt")

    fit(tmp_path, Saving(), accumulate_grad_batches=2)
    whole = (tmp_path / "ledger.jsonl").read_text()
    fit(tmp_path, accumulate_grad_batches=2, ckpt_path=str(tmp_path / "inside.ckpt"))
    assert (tmp_path / "ledger.jsonl").read_text().splitlines() == whole.splitlines()


def test_a_second_fit_of_the_same_trainer_goes_on_in_its_ledger(tmp_path: Path) -> None:
    fit(tmp_path / "whole", max_epochs=2)
    seed_everything(0)
    ledger = RunLedger(tmp_path, weights_every_n_steps=4)
    loader: Any = DataLoader(dataset(20), 4, shuffle=True)
    trainer = quiet_trainer(tmp_path, max_epochs=1, callbacks=[ledger])
    trainer.fit(module := Drawing(), loader)
    trainer.fit_loop.max_epochs = 2
    trainer.fit(module, loader)
    lines = read_ledger(ledger.path).lines
    assert [line.get("step", line.get("end")) for line in lines if "resumed" not in line] == [*range(1, 11), 10]


def test_a_checkpoint_without_its_ledger_or_with_another_is_an_error(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(tmp_path / "a")
    fit(tmp_path / "b", seed=1)
    with pytest.raises(FileNotFoundError, match="`path` must be the ledger of the run that the checkpoint is from"):
        fit(tmp_path / "c", ckpt_path=checkpoint)
    with pytest.raises(LedgerError, match="that of the run which the checkpoint is from"):
        fit(tmp_path / "b", ckpt_path=checkpoint)


def test_after_an_error_the_lines_up_to_it_are_there(tmp_path: Path) -> None:
    def fail(module: Any, batch: Any) -> None:
        raise RuntimeError("a fault")

    with pytest.raises(RuntimeError, match="a fault"):
        fit(tmp_path, At(4, fail))
    assert [line["step"] for line in read_ledger(tmp_path / "ledger.jsonl").lines] == [1, 2, 3]


def run_command(*words: Any) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "camshaft.trainer", "compare", *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.processes
def test_the_command_tells_and_exits_as_cmp_does(tmp_path: Path) -> None:
    fit(tmp_path / "a")
    fit(tmp_path / "b", At(9, flip_bit))
    assert run_command(tmp_path / "a", tmp_path / "a") == (0, "Equal for 15 steps\n", "")
    status, told, _ = run_command(tmp_path / "a", tmp_path / "b", "--plot", tmp_path / "apart.png")
    assert status == 1 and "they part at step 9:\n  weights: layer.weight" in told
    assert (tmp_path / "apart.png").exists()
    assert run_command(tmp_path / "a", tmp_path / "b", "--rtol", "0.1")[0] == 0
    status, _, told = run_command(tmp_path / "a", tmp_path / "nowhere")
    assert status == 2 and told.startswith("error: `run` must be a ledger") and len(told.splitlines()) == 1
    assert run_command(tmp_path / "a")[0] == 2
