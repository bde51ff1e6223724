"""Jobs of Hydra on two processes: one folder for all of them, and paths that hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from launching import run_ranks

from camshaft.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint, Timer

pytest.importorskip("hydra", reason="jobs are Hydra's")

pytestmark = pytest.mark.processes

SCRIPT = """
import logging, os, pathlib
import hydra
from hydra.core.hydra_config import HydraConfig
from launching import report
from camshaft.strategies import DDPStrategy

@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(config):
    folder = HydraConfig.get().runtime.output_dir
    assert pathlib.Path(hydra.utils.to_absolute_path("data.txt")).read_text() == "here"
    # with restarts, one process is started by another, too
    number = int(os.environ["NUM_PROCESSES"])
    strategy = DDPStrategy(accelerator="cpu", devices=number, max_restarts=int(number == 1))
    strategy.connect()
    logging.getLogger("job").info("rank %d of job %s", strategy.global_rank, config.name)
    place = os.path.relpath(folder, hydra.utils.get_original_cwd())
    report(strategy.world_size, config.name, place, os.getcwd() == folder)

main()
"""


@pytest.mark.parametrize(
    ("num_ranks", "arguments", "jobs"),
    [
        (2, ["name=one two", "hydra.job.chdir=True"], ["one two"]),
        (1, ["name=a,b", "hydra.job.chdir=False", "--multirun"], ["a", "b"]),
    ],
)
def test_ranks_of_a_job_share_its_folder(
    num_ranks: int, arguments: list[str], jobs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "it's here"
    (place / "conf").mkdir(parents=True)
    # a folder of each process, if it were not told
    dirs = "  run:\n    dir: runs/${now:%H-%M-%S-%f}\n  sweep:\n    dir: sweeps/${now:%H-%M-%S-%f}\n"
    (place / "conf/config.yaml").write_text("name: none\nhydra:\n" + dirs)
    (place / "data.txt").write_text("here")
    (place / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(place)
    outcome = run_ranks(Path("train.py").absolute(), num_ranks, launcher="bare", args=arguments).succeeded()
    assert outcome.reports == [outcome.reports[0]] * num_ranks
    assert [one[:2] for one in outcome.reports[0]] == [(num_ranks, name) for name in jobs]
    (group,) = [one for one in (place / "runs", place / "sweeps") if one.exists()]
    (folder,) = group.iterdir()  # one for all processes
    for number, (_, name, place_of_job, is_inside) in enumerate(outcome.reports[0]):
        job = folder / str(number) if len(jobs) > 1 else folder
        assert place / place_of_job == job and is_inside == ("hydra.job.chdir=True" in arguments)
        assert all(f"rank {rank} of job {name}" in (job / "train.log").read_text() for rank in range(num_ranks))
        assert (job / ".hydra/config.yaml").read_text() == f"name: {name}\n"


def test_objects_that_are_passed_to_a_node_stay_themselves(tmp_path: Path) -> None:
    from hydra.utils import instantiate

    node = {"_target_": "camshaft.trainer.Trainer", "logger": False, "default_root_dir": str(tmp_path)}
    passed = [EarlyStopping("val_loss", 0.1), LearningRateMonitor(), ModelCheckpoint(tmp_path), Timer("00:01:00:00")]
    trainer = instantiate(node, callbacks=passed)
    assert all(one is other for one, other in zip(trainer.callbacks, passed, strict=False))
