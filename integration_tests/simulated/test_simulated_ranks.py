"""Two ranks, each on a simulated device of its own, whose process group hands on to gloo."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from launching import run_ranks

sys.path.insert(0, str(Path(__file__).parents[1]))

from matrix.cases import Case, cases

pytestmark = pytest.mark.simulated

MATRIX = Path(__file__).parents[1] / "matrix" / "ranks.py"
NAMES = [
    "ddp-32-true-4-norm",
    "ddp-16-mixed-4-norm",
    "sharded-32-true-4-norm",
    "sharded-16-mixed-4-norm",
    "sharded-bf16-mixed-1-unclipped",
    "sharded-offloaded-32-true-1-norm",
]
CASES = {case.name: case for case in cases(2, "sim") if case.name in NAMES}


@cache
def results() -> list[dict[str, Any]]:
    """By rank: what came of each case."""
    return [dict(found) for found in run_ranks(MATRIX, 2, args=["sim", *NAMES], timeout=300).succeeded().reports]


@pytest.mark.parametrize("name", NAMES)
def test_the_weights_are_those_of_one_device_and_a_resumed_run_ends_with_the_same_bits(name: str) -> None:
    case: Case = CASES[name]
    for result in (by_case[name] for by_case in results()):
        assert result["names"] and result["same on all ranks"] and result["resumed to the bit"]
        assert result["error"] <= case.tolerance


STRATEGY = """
import torch
from launching import report
from torch import nn
from camshaft.strategies import DDPStrategy, ShardedStrategy
from camshaft.trainer import Trainer, TrainingModule
from torch.utils.data import DataLoader, TensorDataset

class Net(TrainingModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    def training_step(self, batch, batch_idx):
        self.made = torch.zeros((), device="sim").device
        loss = self.net(batch[0]).square().mean()
        self.log("loss", loss, on_epoch=True, sync_dist=True)
        return loss
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())

strategy = {kind}(accelerator="gpu", devices=2, save_asynchronously=True)
module = Net()
trainer = Trainer(strategy=strategy, max_epochs=1, logger=False, enable_progress_bar=False, default_root_dir={folder!r})
trainer.fit(module, DataLoader(TensorDataset(torch.randn(16, 4)), batch_size=4))
local = lambda tensor: tensor.to_local() if hasattr(tensor, "to_local") else tensor
states = [value for state in trainer.optimizers[0].state.values() for value in state.values()]
tensors = [*module.parameters(), *(one for one in states if one.dim() > 0)]
report((str(strategy.device), str(module.made), {{str(local(tensor).device) for tensor in tensors}}))
report((strategy.reduce(torch.ones((), device=strategy.device), "sum").item(), strategy._backend))
"""


@pytest.mark.parametrize("kind", ["DDPStrategy", "ShardedStrategy"])
def test_each_rank_has_a_device_and_the_backend_that_torch_has_for_it(kind: str, tmp_path: Path) -> None:
    reports = run_ranks(STRATEGY.format(kind=kind, folder=str(tmp_path)), 2).succeeded().reports
    for rank, found in enumerate(reports):
        device = f"sim:{rank}"
        assert found == [(device, device, {device}), (2.0, "cpu:gloo,sim:simulated")]
