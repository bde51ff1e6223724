"""Modules of eras 0.7 and 0.8 that join two real processes, and wrap themselves for them, by themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from compat_parts import Regression, quiet_trainer
from launching import Outcome, run_ranks
from trainer_parts import assert_same, loader

from camshaft.strategies import SingleDeviceStrategy

pytestmark = pytest.mark.processes

Start = Callable[..., Outcome]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    def run(scene: str, launcher: str = "forked") -> Outcome:
        script = Path(__file__).with_name("earlier_processes_scenes.py")
        return run_ranks(script, 2, launcher=launcher, args=[tmp_path, scene], timeout=180)

    return run


def test_overrides_of_0_7_are_called_with_its_arguments_and_train_the_same(start: Start) -> None:
    outcome = start("of_0_7").succeeded()
    for rank, report in enumerate(outcome.named):
        both, again, plain, calls, later_calls = report["of_0_7"]
        assert_same(both, plain)
        assert_same(again, plain)
        joined, wrapped = calls
        assert joined[:3] == ("init_ddp_connection", rank, 2)
        assert (joined[3]["RANK"], joined[3]["WORLD_SIZE"]) == (str(rank), "2")
        assert joined[3]["MASTER_ADDR"] and joined[3]["MASTER_PORT"].isdecimal()
        assert wrapped == ("configure_ddp", ["module.layer.weight", "module.layer.bias"], None)
        assert later_calls == [wrapped]  # the group is there
    first, second = (report["of_0_7"][0] for report in outcome.named)
    assert_same(first, second)
    assert "init_ddp_connection(global_rank, world_size): where several processes run, to join them" in outcome.output


def test_overrides_of_0_8_may_call_super_and_a_bare_start_launches_first(start: Start) -> None:
    for rank, report in enumerate(start("of_0_8", "bare").succeeded().named):
        both, plain, calls = report["of_0_8"]
        assert_same(both, plain)
        assert calls == [
            ("init_ddp_connection", rank, 2, False),
            ("joined", rank, 2),
            ("validated",),
            ("configure_ddp", "DistributedDataParallel", True, None),
        ]


def test_a_wrapper_may_allow_unused_parameters_in_a_group_that_others_initialised(start: Start) -> None:
    reports = [report["unused"] for report in start("unused").succeeded().named]
    (branching, gan, refused, calls), (other_branching, other_gan, _, _) = reports
    assert_same(branching, other_branching)
    assert_same(gan, other_gan)
    assert refused.startswith("RuntimeError: `find_unused_parameters` must be True where a loss does not depend on all")
    assert [name for name, *_ in calls] == ["configure_ddp"]


def test_what_joins_or_wraps_wrongly_is_refused_on_every_process(start: Start) -> None:
    for rank, report in enumerate(start("failures", "torchrun").succeeded().named):
        told, calls = report["failures"]
        joined = f"RuntimeError: `process group` must be initialised by `init_ddp_connection` as rank {rank}"
        assert told["JoinsNothing"].startswith(f"{joined} of 2, but got None")
        assert told["JoinsAnother"].startswith(f"{joined} of 2, but got (0, 1)")
        assert told["CannotJoin"] == "OSError: no network"
        assert told["Both07"] is None
        wrapped = "`return value` must be a"
        assert told["ReturnsNothing"].startswith(f"TypeError: {wrapped} torch.nn.parallel.DistributedDataParallel, but")
        assert told["WrapsAnother"].startswith(f"ValueError: {wrapped} DistributedDataParallel of its argument `model`")
        assert told["WrapsInItsOwn"].startswith("TypeError: `forward` must be one that passes its arguments on")
        assert told["static_graph"].startswith(
            "ValueError: `static_graph` must be False, as `wrap_module` of the strategy"
        )
        assert told["sharded"].startswith("NotImplementedError: `configure_ddp` must be left out with FSDPStrategy")
        assert calls == ["init_ddp_connection", "configure_ddp"] * 2  # after a failure of all, they join anew


def test_a_process_that_cannot_join_ends_the_job(start: Start) -> None:
    outcome = start("one_cannot_join", "bare")
    assert outcome.exit_code != 0
    assert "OSError: no network" in outcome.output


def test_one_process_calls_neither(tmp_path: Path) -> None:
    class Both(Regression):
        hook_era = "0.8"

        def init_ddp_connection(self, global_rank: int, world_size: int) -> None:
            raise AssertionError("there is nobody to join")

        def configure_ddp(self, model: Any, device_ids: Any) -> Any:
            raise AssertionError("there is nothing to wrap for")

    for strategy in (SingleDeviceStrategy("cpu"), "ddp"):
        trainer = quiet_trainer(tmp_path, strategy=strategy, max_epochs=1)
        trainer.fit(Both(), loader(2), loader(1))
        assert trainer.global_step == 2
    dist.destroy_process_group()  # other tests are not to join it
