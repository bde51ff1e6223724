"""What a strategy inherits: nothing to do with one process, and collectives by way of `all_gather` with several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from camshaft.hooks_core import StrategyDefaults
from camshaft.hooks_core.protocols import check_strategy

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


class OnCpu(StrategyDefaults):
    device = torch.device("cpu")


def test_a_device_is_all_that_a_strategy_of_one_process_needs(tmp_path: Path) -> None:
    strategy = OnCpu()
    check_strategy(strategy, "here")
    strategy.connect()
    module = strategy.setup_module(torch.nn.Linear(2, 1, bias=False))
    (optimizer,) = strategy.setup_optimizers([torch.optim.SGD(module.parameters(), lr=1.0)])
    batch = strategy.batch_to_device({"x": torch.tensor([3.0, 4.0])})
    before = module.weight.detach().clone()
    strategy.backward(strategy.wrap_step(module)(batch["x"]).sum())
    strategy.clip_gradients(optimizer, 1.0, "norm")
    strategy.optimizer_step(optimizer)
    torch.testing.assert_close(before - module.weight, torch.tensor([[0.6, 0.8]]))
    strategy.backward(torch.ones((), requires_grad=True), lambda loss: module.weight.grad.fill_(5.0))
    strategy.clip_gradients(optimizer, 2.0, "value")
    assert module.weight.grad.tolist() == [[2.0, 2.0]]
    assert strategy.optimizer_step(optimizer, lambda: torch.tensor(7.0)).item() == 7.0
    path = str(tmp_path / "new" / "a.ckpt")
    strategy.save_checkpoint({"state_dict": module.state_dict(), "step": 2}, path)
    assert strategy.load_checkpoint(path)["state_dict"]["weight"].equal(module.weight)
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["a.ckpt"]


def test_a_write_that_fails_on_the_first_process_raises_on_all_and_leaves_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    OnCpu().save_checkpoint({"step": 1}, str(path))
    with pytest.raises(Exception, match="pickle"):
        OnCpu().save_checkpoint({"step": lambda: 2}, str(path))
    assert OnCpu().load_checkpoint(str(path)) == {"step": 1} and len(list(tmp_path.iterdir())) == 1
    with pytest.raises(RuntimeError, match=r"The first process could not write .*a.ckpt.: OSError\(28\)"):
        OneOfThree("OSError(28)").save_checkpoint({"step": 2}, str(path))
    with pytest.raises(Exception, match="Weights only"):
        torch.save({"path": path}, path)
        OnCpu().load_checkpoint(str(path))
    assert OnCpu().load_checkpoint(str(path), weights_only=False) == {"path": path}
