"""docs/how-it-works/life-of-a-step.md names the functions through which each hook is reached."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from camshaft.trainer import Trainer, TrainingModule

PAGE = (Path(__file__).parents[1] / "docs" / "how-it-works" / "life-of-a-step.md").read_text(encoding="utf-8")
STATED = {
    hook: [tuple(line.split()) for line in block.splitlines()]
    for hook, block in re.findall(r"^`(\w+)`\n\n((?: {4}\S.*\n)+)", PAGE, re.MULTILINE)
}


class Recorder(TrainingModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.stacks: dict[str, list[tuple[str, str]]] = {}

    def record(self) -> None:
        frame: Any = sys._getframe(1)
        hook, calls = frame.f_code.co_name, []
        while frame := frame.f_back:
            _, found, path = frame.f_code.co_filename.partition("/src/camshaft/")
            calls += [(path, frame.f_code.co_qualname)] if found else []
        self.stacks.setdefault(hook, calls[::-1])

    def setup(self, stage: str) -> None:
        self.record()

    def configure_optimizers(self) -> Any:
        self.record()
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.record()
        return self.layer(batch).sum()

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.record()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.record()

    def on_train_epoch_end(self) -> None:
        self.record()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.record()


@pytest.fixture(scope="module")
def stacks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[str, str]]]:
    module, loader = Recorder(), DataLoader(torch.randn(8, 4), batch_size=4)
    trainer = Trainer(
        max_epochs=1,
        num_sanity_val_steps=0,
        logger=False,
        enable_progress_bar=False,
        default_root_dir=tmp_path_factory.mktemp("life"),
    )
    trainer.fit(module, loader, loader)
    return module.stacks


def test_the_page_has_a_list_for_each_hook(stacks: dict[str, list[tuple[str, str]]]) -> None:
    assert STATED.keys() == stacks.keys()


@pytest.mark.parametrize("hook", sorted(STATED))
def test_a_hook_is_reached_as_the_page_says(hook: str, stacks: dict[str, list[tuple[str, str]]]) -> None:
    assert STATED[hook] == stacks[hook]


def test_every_file_that_the_page_names_is_there() -> None:
    named = set(re.findall(r"(?<!/)\b(?:trainer|loops|strategies|callbacks|hooks_core)/[\w/]+\.py", PAGE))
    sources = Path(__file__).parents[1].glob("packages/*/src/camshaft/**/*.py")
    assert len(named) > 20 and named <= {path.as_posix().partition("/src/camshaft/")[2] for path in sources}
