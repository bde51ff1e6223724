"""On a terminal: an interrupted run gives the cursor back and ends with the error below the bars."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pty", reason="this system has no pseudo-terminals")
from screen import run_on_terminal

PROGRAM = """
import sys
from camshaft import callbacks
from camshaft.trainer import Trainer
from trainer_parts import Regression, loader

class Interrupted(Regression):
    def training_step(self, batch, batch_idx):
        if batch_idx == 2:
            raise KeyboardInterrupt
        return super().training_step(batch, batch_idx)

bar = getattr(callbacks, sys.argv[2])(refresh_rate_seconds=0)
trainer = Trainer(max_epochs=1, default_root_dir=sys.argv[1], callbacks=bar)
try:
    trainer.fit(Interrupted(), loader(), loader())
except KeyboardInterrupt:
    print("interrupted")
trainer.validate(Regression(), loader())
print("done")
"""


@pytest.mark.parametrize("bar", ["RichProgressBar", "TQDMProgressBar"])
def test_the_terminal_is_as_before_after_an_interrupt(tmp_path: Path, bar: str) -> None:
    pytest.importorskip({"RichProgressBar": "rich", "TQDMProgressBar": "tqdm"}[bar])
    output = run_on_terminal(["-c", PROGRAM, str(tmp_path), bar], columns=100, COLUMNS="100")
    hidden, shown = "\x1b[?25l", "\x1b[?25h"
    during_fit, _, afterwards = output.partition("interrupted")
    for part in (during_fit, afterwards):
        assert part.count(hidden) == part.count(shown), output
        if bar == "RichProgressBar":  # tqdm hides no cursor
            assert part.rindex(shown) > part.rindex(hidden)
    assert "Epoch 0" in during_fit and "Validate" in afterwards
    assert "val_loss" in afterwards and afterwards.rstrip().endswith("done")
