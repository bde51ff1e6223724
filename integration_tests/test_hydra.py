"""Jobs of Hydra on two processes: one folder for all of them, and paths that hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from launching import run_ranks

pytest.importorskip("hydra", reason="jobs are Hydra's")

pytestmark = pytest.mark.processes

SCRIPT = """
import logging, os, pathlib
import hydra
from hydra.core.hydra_config import HydraConfig
from launching import report
import torch
from torch.utils.data import DataLoader
from camshaft.trainer import Trainer, TrainingModule

class Net(TrainingModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(config):
    folder = HydraConfig.get().runtime.output_dir
    assert pathlib.Path(hydra.utils.to_absolute_path("data.txt")).read_text() == "here"
    trainer = Trainer(
        accelerator="cpu", devices=2, max_epochs=1, default_root_dir=folder, enable_progress_bar=False
    )
    trainer.fit(Net(), DataLoader(torch.ones(4, 1)))
    logging.getLogger("job").info("rank %d of job %s", trainer.global_rank, config.name)
    place = os.path.relpath(folder, hydra.utils.get_original_cwd())
    report(trainer.world_size, config.name, place, os.getcwd() == folder)

main()
"""


@pytest.mark.parametrize(
    ("arguments", "jobs"),
    [
        (["name=one two", "hydra.job.chdir=True"], ["one two"]),
        (["name=a,b", "hydra.job.chdir=False", "--multirun"], ["a", "b"]),
    ],
)
def test_ranks_of_a_job_share_its_folder(
    arguments: list[str], jobs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "it's here"
    (place / "conf").mkdir(parents=True)
    # a folder of each process, if it were not told
    dirs = "  run:\n    dir: runs/${now:%H-%M-%S-%f}\n  sweep:\n    dir: sweeps/${now:%H-%M-%S-%f}\n"
    (place / "conf/config.yaml").write_text("name: none\nhydra:\n" + dirs)
    (place / "data.txt").write_text("here")
    (place / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(place)
    outcome = run_ranks(Path("train.py").absolute(), 2, launcher="bare", args=arguments).succeeded()
    assert outcome.reports[0] == outcome.reports[1]
    assert [one[:2] for one in outcome.reports[0]] == [(2, name) for name in jobs]
    (group,) = [one for one in (place / "runs", place / "sweeps") if one.exists()]
    (folder,) = group.iterdir()  # one for all processes
    for number, (_, name, place_of_job, is_inside) in enumerate(outcome.reports[0]):
        job = folder / str(number) if len(jobs) > 1 else folder
        assert place / place_of_job == job and is_inside == ("hydra.job.chdir=True" in arguments)
        assert sorted(job.joinpath("train.log").read_text().split("INFO] - ")[1:])[0].startswith("rank 0 of job")
        assert (job / ".hydra/config.yaml").read_text() == f"name: {name}\n" and (job / "checkpoints").exists()
