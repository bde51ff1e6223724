"""Code for Lightning passes `torch.compile(module)` to the trainer: as there, what its steps compute is compiled."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from import_names_parts import names_of_earlier_code
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SCRIPT = """
import lightning as L
import torch
from torch import nn

class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))

    def training_step(self, batch, batch_idx):
        loss = self.net(batch[0]).square().mean()
        self.log("loss", loss, prog_bar=True, on_epoch=True)
        self.log_dict({"double": 2 * loss})
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val", self.net(batch[0]).mean())

    test_step = validation_step

    def predict_step(self, batch, batch_idx):
        return self.net(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
"""


@pytest.fixture
def model_class(tmp_path: Path) -> Iterator[Any]:
    script = tmp_path / "user_code.py"  # a file: what `exec` defines gets one more frame, and breaks twice
    script.write_text(SCRIPT)
    torch.compiler.reset()
    with names_of_earlier_code():
        yield runpy.run_path(str(script))["Model"]
    torch.compiler.reset()


@pytest.mark.parametrize("way", ["given", "step", "argument"])
def test_a_compiled_module_runs_every_verb(model_class: Any, tmp_path: Path, way: str) -> None:
    import lightning as L
    from torch._dynamo.utils import counters

    data = DataLoader(TensorDataset(torch.randn(8, 3, generator=torch.Generator().manual_seed(1))), batch_size=4)
    ended = []
    for is_compiled in (False, True):
        counters.clear()
        L.seed_everything(1)
        model = given = model_class()
        arguments: dict[str, Any] = {}
        if is_compiled and way == "given":
            given = torch.compile(model, backend="aot_eager")
        elif is_compiled and way == "step":
            model.training_step = torch.compile(model.training_step, backend="aot_eager")
        elif is_compiled:
            arguments = {"compile": {"backend": "aot_eager"}}
        trainer = L.Trainer(accelerator="cpu", max_epochs=2, logger=False, default_root_dir=tmp_path, **arguments)
        trainer.fit(given, data, data)
        num_graphs = counters["stats"]["unique_graphs"]
        assert num_graphs > 0 if is_compiled else num_graphs == 0
        assert sum(counters["graph_break"].values()) == (2 if is_compiled and way == "step" else 0)
        results = trainer.validate(given, data, verbose=False) + trainer.test(given, data, verbose=False)
        predictions = trainer.predict(given, data)
        assert trainer.lightning_module is model
        saved = torch.load(trainer.checkpoint_callback.best_model_path, weights_only=False)["state_dict"]
        assert list(saved) == ["net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias"]
        ended.append((results, torch.cat(predictions), nn.utils.parameters_to_vector(model.parameters()).detach()))
    (results, predictions, weights), (other_results, other_predictions, other_weights) = ended
    assert results == other_results
    assert torch.equal(weights, other_weights) and torch.equal(predictions, other_predictions)
