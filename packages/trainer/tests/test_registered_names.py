"""Callbacks, loggers, strategies and precisions of an installed distribution, by the names that it registers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from trainer_parts import Regression, loader

from camshaft.callbacks import CSVLogger, LearningRateMonitor, Timer
from camshaft.trainer import Trainer
from camshaft.trainer.added_commands import list_plugins
from camshaft.trainer.cli import TrainerCLI

CODE = """
from camshaft.callbacks import CSVLogger
from camshaft.hooks_core import Callback
from camshaft.strategies import SingleDeviceStrategy
from camshaft.strategies.precision import AutocastPrecision

class Greeter(Callback):
    def __init__(self, word: str = "hello"):
        self.word, self.num_batches = word, 0
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.num_batches += 1

class Tabular(CSVLogger):
    pass

def in_folder(save_dir: str) -> Tabular:
    return Tabular(save_dir, "tabular")

class Slow(SingleDeviceStrategy):
    def __init__(self, accelerator="auto", precision="32-true"):
        super().__init__("cpu", precision=precision)

class Half(AutocastPrecision):
    name = "half"

def none(): return None
def needing(word): return Greeter(word)
"""
ENTRIES = """
[camshaft.callbacks]
greeter = adding_names:Greeter
needing = adding_names:needing
broken = adding_names:gone
Timer = adding_names:Greeter

other = adding_names:Half
green-ter = adding_names:Greeter

[camshaft.loggers]
tabular = adding_names:in_folder

[camshaft.strategies]
slow = adding_names:Slow

[camshaft.precisions]
half = adding_names:Half
nothing = adding_names:none
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the distribution "adding-names", on the path of this process."""
    folder = tmp_path / "site"
    (info := folder / "adding_names-1.2.dist-info").mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: adding-names\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    (folder / "adding_names.py").write_text(CODE)
    monkeypatch.syspath_prepend(folder)
    yield folder
    sys.modules.pop("adding_names", None)


def test_a_trainer_runs_what_is_registered(installed: Path, tmp_path: Path) -> None:
    trainer = Trainer(
        callbacks=["greeter", "LearningRateMonitor", "Timer"],
        logger="tabular",
        strategy="slow",
        precision="half",
        default_root_dir=tmp_path,
        max_epochs=1,
        enable_progress_bar=False,
    )
    trainer.fit(Regression(), loader(3))
    greeter: Any = trainer.callbacks[0]
    assert (type(greeter).__name__, greeter.num_batches) == ("Greeter", 3)
    assert [type(one) for one in trainer.callbacks[1:3]] == [LearningRateMonitor, Timer]  # ours go first
    assert (trainer.logger.name, Path(trainer.logger.save_dir)) == ("tabular", tmp_path)
    assert (type(trainer.strategy).__name__, trainer.precision) == ("Slow", "half")
    assert isinstance(Trainer(logger="CSVLogger", default_root_dir=tmp_path).logger, CSVLogger)


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        (
            {"callbacks": "greter"},
            ValueError,
            r"must be .*'camshaft\.callbacks', but got 'greter'.*'greeter'\?",
        ),
        (
            {"callbacks": "broken"},
            ImportError,
            r"'broken' of .*adding_names:gone of adding-names 1\.2 raised Attr",
        ),
        ({"callbacks": "needing"}, TypeError, r"needs no arguments \(word\), but got 'needing'"),
        ({"logger": "greeter"}, ValueError, r"`logger` must be .*'camshaft\.loggers', but got 'greeter'"),
        ({"strategy": "slow", "devices": 2}, TypeError, r"`devices` must be left out with strategy='slow'"),
        ({"strategy": "fast"}, ValueError, r"a registered name, or a strategy object, but got 'fast'"),
        ({"precision": "nothing"}, TypeError, r"`precision` must be that of a class of precisions"),
        ({"precision": "8"}, ValueError, r"`precision` must be .* that a distribution registers, but got '8'"),
    ],
)
def test_names_that_cannot_be_followed(installed: Path, given: dict[str, Any], kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message):
        Trainer(**{"logger": False, **given})


def test_a_name_that_two_distributions_register_is_refused(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other/also-1.0.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: also\nVersion: 1.0\n")
    (other / "entry_points.txt").write_text("[camshaft.callbacks]\ngreeter = also:Greeter\n")
    monkeypatch.syspath_prepend(other.parent)
    with pytest.raises(ValueError, match=r"`greeter` must be registered once, but .*also 1\.0.*do so"):
        Trainer(callbacks="greeter", logger=False)


@pytest.mark.filterwarnings("ignore:`args` of TrainerCLI", "error:.*broken")
def test_the_command_line_finds_them_with_their_arguments(installed: Path, tmp_path: Path) -> None:
    words = ["--trainer.callbacks+=greeter", "--trainer.callbacks.word=hey", "--trainer.logger=tabular"]
    words += [f"--trainer.logger.save_dir={tmp_path}", "--trainer.strategy=slow", "--trainer.precision=half"]
    trainer = TrainerCLI(Regression, run=False, args=words).trainer
    assert trainer.callbacks[0].word == "hey"
    assert type(trainer.logger).__name__ == "Tabular"
    assert (type(trainer.strategy).__name__, trainer.precision) == ("Slow", "half")


@pytest.mark.filterwarnings("ignore:`args` of TrainerCLI")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("callbacks+=greter", "Did you mean 'greeter'?"),
        ("callbacks+=green-ter", "registers adding_names:Greeter by that name. No Python identifier"),
        ("callbacks+=other", "adding-names 1.2 registers adding_names:Half by that name. It is of another kind."),
        ("strategy=ddp --trainer.strategy.seed=1", "got its argument 'seed' without one. There are: DDPStrategy,"),
    ],
)
def test_a_name_that_the_command_line_cannot_follow_is_told(
    installed: Path, capsys: pytest.CaptureFixture[str], words: str, message: str
) -> None:
    with pytest.raises(SystemExit):
        TrainerCLI(Regression, run=False, args=f"--trainer.{words}".split())
    assert message in capsys.readouterr().err


def test_plugins_are_listed_with_what_is_broken(installed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert list_plugins([]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "camshaft.precisions  half  adding_names:Half  (adding-names 1.2)" in lines
    broken = lines.index("camshaft.callbacks  broken  adding_names:gone  (adding-names 1.2)")
    assert lines[broken + 1].startswith("    broken: AttributeError")
    assert sum(line.startswith("    broken") for line in lines) == 1


def test_nothing_is_read_for_names_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("importlib.metadata.entry_points")
    monkeypatch.syspath_prepend(tmp_path)  # what was read for another path does not count
    Trainer(callbacks="Timer", strategy="ddp", devices=1, accelerator="cpu", precision="bf16-mixed", logger=False)
    with pytest.raises(ImportError, match="entry_points"):
        Trainer(callbacks="Tymer", logger=False)
