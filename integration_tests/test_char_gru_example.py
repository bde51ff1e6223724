"""The character-level GRU runs as a newcomer runs it, learns, and writes."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / "char_gru.py"), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=180)


def read_column(path: Path, column: str) -> list[tuple[int, float]]:
    """The step and the value of every row that has one."""
    with path.open(newline="") as file:
        return [(int(row["step"]), float(row[column])) for row in csv.DictReader(file) if row[column]]


def test_one_epoch_beats_the_frequencies_of_characters_by_far_and_writes_what_it_says(tmp_path: Path) -> None:
    arguments = ["--max-epochs", "1", "--sequence-length", "256", "--sample-length", "200", "--output", "out"]
    done = run(*arguments, "--prompt", "An object", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "" and [path.name for path in tmp_path.iterdir()] == ["out"]

    perplexities = re.findall(r"^  (guessing|frequencies|after +\d+).* ([\d.]+)$", done.stdout, re.MULTILINE)
    (_, guessing), (_, frequencies), (after, reached) = perplexities
    assert float(reached) < 10 < float(frequencies) < 40 < float(guessing)

    said = dict(re.findall(r"^  (metrics|picture) +(.+)$", done.stdout, re.MULTILINE))
    assert Path(said["picture"]).read_bytes().startswith(PNG_SIGNATURE)
    train = read_column(Path(said["metrics"]), "train_perplexity")
    [(last_step, validation)] = read_column(Path(said["metrics"]), "val_perplexity")
    assert validation == pytest.approx(float(reached), abs=0.005)
    assert train[-1][1] < train[0][1] / 2
    assert last_step + 1 == int(after.split()[1]) == len(train)  # a value for each update, of which a batch has four
    assert len(train) % 4 == 0

    written = done.stdout.split("The network goes on after 'An object':\n\n")[1]
    assert written.startswith("An object") and len(written) == len("An object") + 200 + len("\n")
    assert len(re.findall(r"\b(?:the|a|of|is|in|to|and|for|an)\b", written)) >= 5


def test_a_prompt_that_the_network_cannot_read_is_refused_before_training(tmp_path: Path) -> None:
    for prompt in ("", "Ж"):
        done = run("--prompt", prompt, cwd=tmp_path)
        assert done.returncode == 2
        assert f"--prompt must be made of characters of the text, but got {prompt!r}" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_training_and_held_out_text_share_no_paragraph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from char_gru import read_text

    paragraphs = read_text().split("\n\n")
    assert len(paragraphs) == len(set(paragraphs)) > 1000


def test_each_character_is_predicted_from_those_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import torch

    from char_gru import make_loader

    [(characters, following)] = make_loader(torch.arange(12), sequence_length=5)
    assert characters.tolist() == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert following.tolist() == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]


def test_the_baseline_is_the_perplexity_of_the_frequencies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from char_gru import unigram_perplexity

    assert unigram_perplexity("abcd", "dcba") == pytest.approx(4)
    assert unigram_perplexity("aaab", "b") == pytest.approx(4)


def test_the_same_seed_writes_the_same_text_and_a_low_temperature_the_likeliest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import torch

    from char_gru import CharGRU

    torch.manual_seed(0)
    model = CharGRU("abcdefgh")
    one, again, other = (model.write("ab", 40, temperature=1.0, seed=seed) for seed in (0, 0, 1))
    assert one == again != other
    text, likeliest = "ab", model.write("ab", 20, temperature=1e-4, seed=0)
    for character in likeliest:
        logits, _ = model(model.encode(text)[None])
        assert character == model.vocabulary[int(logits[0, -1].argmax())]
        text += character


@pytest.mark.filterwarnings("ignore:There is a `validation_step` but no validation loader")
def test_the_hidden_state_goes_from_split_to_split_and_no_gradient_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import torch

    from camshaft.trainer import Trainer
    from char_gru import CharGRU, make_loader

    seen: list[tuple[int, Any]] = []

    class Watched(CharGRU):
        def training_step(self, batch: Any, batch_idx: int, hiddens: Any) -> Any:
            seen.append((batch[0].shape[1], hiddens))
            return super().training_step(batch, batch_idx, hiddens)

    model = Watched("abcdefgh", truncated_bptt_steps=4)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(max_epochs=1, **quiet)
    trainer.fit(model, make_loader(torch.arange(21) % 8, sequence_length=10))
    assert [length for length, _ in seen] == [4, 4, 2] and trainer.global_step == 3
    first, *others = [hiddens for _, hiddens in seen]
    assert first is None
    assert all(hiddens.abs().sum() > 0 and not hiddens.requires_grad for hiddens in others)
