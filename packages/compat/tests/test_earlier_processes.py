"""How a module's `init_ddp_connection` and `configure_ddp` get into the places that a strategy has for them."""

from __future__ import annotations

from typing import Any

import pytest
from bare_parts import BareStrategy, Net
from torch import nn

from camshaft.compat.eras import read_receivers
from camshaft.compat.eras.processes import default_of, delegate, delegate_early
from camshaft.hooks_core import resolve


class Places(BareStrategy):
    """One process of two, with a place for both."""

    world_size, global_rank = 2, 1
    join_processes: Any = None
    wrap_module: Any = None


class Overriding(Net):
    hook_era = "0.8"

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def init_ddp_connection(self, proc_rank: int, world_size: int, is_slurm_managing_tasks: bool = True) -> None:
        self.calls.append((proc_rank, world_size, is_slurm_managing_tasks))
        default_of("init_ddp_connection")()

    def configure_ddp(self, model: Any, device_ids: Any) -> Any:
        assert default_of("init_ddp_connection") is None
        self.calls.append((model, device_ids))
        return default_of("configure_ddp")(model)


def delegate_for(module: nn.Module, strategy: Any) -> None:
    delegate_early(module, strategy, None)


def test_overrides_are_called_in_place_of_what_the_strategy_does_and_may_call_that() -> None:
    module, strategy = Overriding(), Places()
    delegate_for(module, strategy)
    joined: list[str] = []
    strategy.join_processes(lambda: joined.append("joined"), is_started_by_slurm=False)
    model = nn.Linear(1, 1)
    assert strategy.wrap_module(lambda given: (given, "wrapped"), model, [0]) == (model, "wrapped")
    assert joined == ["joined"]
    assert module.calls == [(1, 2, False), (model, [0])]
    assert default_of("configure_ddp") is None


def test_a_run_of_another_module_takes_them_back_and_what_was_there_before_counts_again() -> None:
    def own(join: Any, *, is_started_by_slurm: bool) -> None: ...

    strategy = Places()
    strategy.join_processes = own
    for _ in range(2):
        delegate_for(Overriding(), strategy)
        assert strategy.join_processes is not own and strategy.wrap_module is not None
    delegate_for(Net(), strategy)
    assert strategy.join_processes is own and strategy.wrap_module is None


def test_with_one_process_nothing_is_asked_of_the_strategy() -> None:
    delegate_for(Overriding(), BareStrategy())


class Lacking(BareStrategy):
    world_size = 2


@pytest.mark.parametrize(
    ("lacking", "message"),
    [
        ("join_processes", "`init_ddp_connection` must be left out with Lacking, where the processes are joined in an"),
        ("wrap_module", "`configure_ddp` must be left out with Lacking, where the model is distributed in another way"),
    ],
)
def test_a_strategy_without_a_place_refuses_an_override(lacking: str, message: str) -> None:
    strategy = Lacking()
    for name in {"join_processes", "wrap_module"} - {lacking}:
        setattr(strategy, name, None)
    delegate(resolve(module=Net(), read=read_receivers), strategy)
    with pytest.raises(NotImplementedError, match=message):
        delegate(resolve(module=Overriding(), read=read_receivers), strategy)
