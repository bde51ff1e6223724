"""Each tutorial prints what its text says: the build of the site ran it, and failed if it did."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from pathlib import Path

import pytest
from browser import SITE

PROGRAMS = Path(__file__).parents[1] / "tutorials_source"
Facts = dict[str, Callable[[str], None]]
FACTS: Facts = {}


def facts(check: Callable[[str], None]) -> Callable[[str], None]:
    """Register a check of what the program of the same name prints."""
    FACTS[check.__name__] = check
    return check


def output_of(name: str) -> str:
    """Return what a program printed, warnings and log among it, as its page shows it."""
    page = (SITE / "tutorials" / f"{name}.html").read_text(encoding="utf-8")
    blocks = re.findall(r'<div class="sphx-glr-script-out.*?<pre>(.*?)</pre>', page, re.DOTALL)
    return "".join(unescape(re.sub("<[^>]+>", "", block)).strip("\n") + "\n" for block in blocks)


def percent(pattern: str, printed: str) -> list[float]:
    """Return the percentages that the groups of a pattern found."""
    found = re.search(pattern, printed)
    assert found is not None, printed
    return [float(group) for group in found.groups()]


@facts
def callback(printed: str) -> None:
    assert re.findall(r"^epoch +(\d+): accuracy 9\d\.\d%$", printed, re.MULTILINE) == ["4", "8", "12"]
    assert "\n540 batches\n" in printed
    assert "no hook has this name. Rename it to `on_train_epoch_end`" in printed


@facts
def logging_and_metrics(printed: str) -> None:
    names = ["loss", "loss_epoch", "loss_step", "train_accuracy", "val_accuracy", "val_loss"]
    values = dict(re.findall(r"^(\w+) +(\d\.\d{4})$", printed, re.MULTILINE))
    assert list(values) == names and values["loss"] == values["loss_epoch"]
    assert f"weighted by samples: {values['val_loss']}\n" in printed
    (each_alike,) = percent(r"each batch alike: +([\d.]+)", printed)
    assert each_alike != float(values["val_loss"])
    assert f"{{'test_loss': {values['val_loss']}}}" in printed


@facts
def custom_evaluation(printed: str) -> None:
    (averaged,) = percent(r"with averaged weights: ([\d.]+)%", printed)
    (trained,) = percent(r"with trained weights: +([\d.]+)%", printed)
    assert averaged > trained > 90


@facts
def k_fold(printed: str) -> None:
    rows = re.findall(
        r"^learning rate ([\d.]+) *: ((?:[\d.]+% +){5})mean ([\d.]+)% ± ([\d.]+)%$", printed, re.MULTILINE
    )
    assert [row[0] for row in rows] == ["0.0003", "0.003", "0.03"]
    for _, folds, mean, _ in rows:
        values = [float(fold) for fold in re.findall(r"[\d.]+", folds)]
        assert abs(sum(values) / 5 - float(mean)) < 0.11
    third = re.findall(r"[\d.]+%", rows[1][1])[2]
    assert printed.endswith(f"fold 2 again: {third}\n")


@facts
def command_line(printed: str) -> None:
    (accuracy,) = percent(r"test_accuracy +(0\.\d+)", printed)
    assert accuracy > 0.9
    assert "\nlogs/camshaft_logs/version_1/config.yaml\n" in printed
    assert "max_epochs" in printed.rpartition("$ ")[2].partition("\n")[2]


@facts
def stop_and_resume(printed: str) -> None:
    first, last = re.findall(r"^228 updates, weights (\w{16})$", printed, re.MULTILINE)
    assert first == last
    assert "ended by signal 9, having printed ''" in printed
    assert "step=120.ckpt" in printed


@facts
def truncated_backpropagation(printed: str) -> None:
    sizes = re.findall(r"^(splits of 64|whole sequences) +(\d+) updates, +([\d.]+) MiB", printed, re.MULTILINE)
    (split, num_split, split_size), (whole, num_whole, whole_size) = sizes
    assert (split, whole) == ("splits of 64", "whole sequences")
    assert int(num_split) == 8 * int(num_whole) and 7 < float(whole_size) / float(split_size) < 9


@facts
def two_processes(printed: str) -> None:
    assert [int(number) for number in re.findall(r"(\d) process\(es\), 135 updates", printed)] == [1, 2, 2]
    held = re.findall(r"^(\w+ \d) +evaluated 359, accuracy 9\d\.\d+%, holds ([\d,]+)$", printed, re.MULTILINE)
    sizes = {name: int(size.replace(",", "")) for name, size in held}
    assert sizes["auto 0"] == sizes["ddp 0"] == sizes["ddp 1"] == 19_210
    assert sizes["sharded 0"] + sizes["sharded 1"] == 19_210
    assert max(sizes["sharded 0"], sizes["sharded 1"]) < 10_000
    assert printed.endswith("sharded.ckpt is a folder\n")


@facts
def nan_and_spikes(printed: str) -> None:
    assert printed.startswith("83 of 114 losses are NaN\n")
    assert "The loss must be finite, but is nan in epoch 0, batch 31." in printed
    assert "\n2 updates were skipped\n" in printed
    for batch_idx in (30, 31, 49, 50):
        assert f"{{'epoch': 0, 'batch_idx': {batch_idx}}}" in printed
    applied, skipped = percent(r"([\d.]+) if its update is applied, ([\d.]+) if it is skipped", printed)
    assert applied > 2 * skipped


@facts
def find_what_is_slow(printed: str) -> None:
    assert re.match(r"HookTimeline wrote \S+\.html, and a trace beside it\.\n", printed)
    assert "\ntimeline-rank0.html\ntimeline-rank0.json\n" in printed
    assert printed.endswith("reports written before: 60\nreports written after:  3\n")


@facts
def own_loop(printed: str) -> None:
    assert "must be training_step on module:SoftmaxRegression, but got on_before_zero_grad" in printed
    assert len(re.findall(r"^passed +fit", printed, re.MULTILINE)) == 9 and "FAILED" not in printed
    first, second = re.findall(r"^accuracy on the 389 others: (9\d\.\d)%$", printed, re.MULTILINE)
    assert first == second


@facts
def own_strategy(printed: str) -> None:
    assert printed.startswith("32 of 32 checks passed")
    whole, sparse = percent(r"OneDevice +450 updates, accuracy ([\d.]+)%\nSparseGradients 450 .* ([\d.]+)%", printed)
    assert whole > 90 and sparse > whole - 3
    (share,) = percent(r"([\d.]+)% of the entries of all gradients", printed)
    assert 4.5 < share < 5.5


@facts
def file_of_2019(printed: str) -> None:
    assert printed.startswith("GAN is taken for a module of era 0.5.")
    assert "\nsteps of generator and discriminator: 750 1500\n" in printed
    nearest, farthest = percent(r"half of the points lie between ([\d.]+) and ([\d.]+) from", printed)
    assert 0.6 < nearest < farthest < 1.4
    assert "To make it a class of era 2.x:" in printed


def test_every_tutorial_has_its_facts() -> None:
    assert sorted(FACTS) == sorted(path.stem for path in PROGRAMS.glob("*.py"))


@pytest.mark.parametrize("name", FACTS)
def test_a_tutorial_prints_what_it_says(name: str) -> None:
    FACTS[name](output_of(name))
