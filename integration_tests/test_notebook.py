"""A notebook trains on two processes, as a newcomer runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="nbclient runs notebooks")
nbclient = pytest.importorskip("nbclient", reason="nbclient runs notebooks")
pytest.importorskip("ipykernel", reason="nbclient runs notebooks by ipykernel")

pytestmark = pytest.mark.processes

CELLS = [
    """
import torch
from torch.utils.data import DataLoader
from camshaft.trainer import Trainer, TrainingModule

class Net(TrainingModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch, batch_idx):
        loss = (self.layer(batch) - batch.sum(1, keepdim=True)).square().mean()
        self.log("loss", loss, on_epoch=True, prog_bar=True)
        return loss

    validation_step = training_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.2)

net, loader = Net(), DataLoader(torch.randn(64, 2), batch_size=4)
torch.ones(500, 500) @ torch.ones(500, 500)  # by threads, which forks lack
""",
    """
trainer = Trainer(accelerator="cpu", devices=2, max_epochs=4, logger=False)
trainer.fit(net, loader)
""",
    """
print("after", trainer.current_epoch, trainer.world_size, sorted(trainer.callback_metrics))
print("learned", bool((net.layer.weight - 1).abs().max() < 0.05), trainer.checkpoint_callback.best_model_path)
""",
    """
trainer.validate(net, loader, verbose=False);
""",
]


def test_two_processes_train_in_a_notebook_and_the_module_comes_back(tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    options = {"timeout": 120, "kernel_name": "python3", "resources": {"metadata": {"path": str(tmp_path)}}}
    nbclient.NotebookClient(notebook, **options).execute()
    texts = ["".join(str(output) for output in cell["outputs"]) for cell in notebook.cells]
    assert "after 4 2 ['loss', 'loss_epoch', 'loss_step']" in texts[2]
    assert "learned True" in texts[2] and str(tmp_path / "checkpoints") in texts[2]
    assert "loss" in texts[1] and "Validate" in texts[3], texts[1::2]  # the progress of rank 0 is shown
    assert "process.py" not in texts[1], texts[1]  # a warning names the cell, not what forks the ranks
