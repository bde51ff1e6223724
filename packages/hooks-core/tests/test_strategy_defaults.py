"""What a strategy inherits: nothing to do with one process, and collectives by way of `all_gather` with several."""

from __future__ import annotations

from typing import Any

import pytest

from camshaft.hooks_core import StrategyDefaults

torch = pytest.importorskip("torch")


class Alone(StrategyDefaults):
    global_rank, world_size = 0, 1


class OneOfThree(StrategyDefaults):
    """The second process; what the others say is known."""

    global_rank, world_size = 1, 3

    def __init__(self, first: Any = None, last: Any = None) -> None:
        self.first, self.last = first, last

    def all_gather(self, value: Any) -> list[Any]:
        return [self.first, value, self.last]


def test_one_process_agrees_with_itself() -> None:
    strategy = Alone()
    assert strategy.broadcast("a") == "a"
    assert strategy.all_gather({"a": 1}) == [{"a": 1}]
    strategy.barrier()
    tensor = torch.tensor([1, 2])
    assert torch.equal(strategy.reduce(tensor, "max"), tensor)
    assert (strategy.data_rank, strategy.num_data_ranks) == (0, 1)


def test_several_processes_go_through_all_gather() -> None:
    strategy = OneOfThree(torch.tensor([1, 9]), torch.tensor([3, 0]))
    tensor = torch.tensor([2, 5])
    expected = {"sum": [6, 14], "max": [3, 9], "min": [1, 0], "mean": [2.0, 14 / 3]}
    for op, values in expected.items():
        reduced = strategy.reduce(tensor, op)  # type: ignore[arg-type]
        assert torch.equal(reduced, torch.tensor(values, dtype=torch.float64 if op == "mean" else torch.int64))
    assert torch.equal(tensor, torch.tensor([2, 5]))
    assert OneOfThree("a", "c").broadcast("b", src=2) == "c"
    assert (strategy.data_rank, strategy.num_data_ranks) == (1, 3)


def test_an_unknown_reduction_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`op` must be one of mean, sum, max, min, but got .median. \(str\)"):
        Alone().reduce(torch.ones(1), "median")  # type: ignore[arg-type]


@pytest.mark.parametrize("collective", ["all_gather", "broadcast", "barrier", "reduce"])
def test_several_processes_that_cannot_gather_are_told_what_to_define(collective: str) -> None:
    class Several(StrategyDefaults):
        global_rank, world_size = 0, 2

    arguments = {"barrier": (), "reduce": (torch.ones(1),)}.get(collective, ("value",))
    with pytest.raises(NotImplementedError, match=r"`all_gather` must be defined by .* got 2 \(int\) in .*Several"):
        getattr(Several(), collective)(*arguments)


def test_weights_and_optimizers_take_whole_tensors() -> None:
    strategy = Alone()
    one, other = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    strategy.load_module_state(other, one.state_dict())
    assert torch.equal(other.weight, one.weight)
    placed = strategy.place_like(one.weight.detach(), other.weight)
    assert torch.equal(placed, one.weight) and placed.data_ptr() != one.weight.data_ptr()
    optimizers = [torch.optim.SGD(module.parameters(), lr=rate) for module, rate in ((one, 0.1), (other, 0.2))]
    strategy.load_optimizer_state(optimizers[1], optimizers[0].state_dict())
    assert optimizers[1].param_groups[0]["lr"] == 0.1
    with strategy.model_context(one):
        assert not strategy.has_skipped_step
    assert strategy.state_dict() == {}
