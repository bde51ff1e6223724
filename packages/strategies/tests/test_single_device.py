from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple

import pytest
import torch
from torch import nn

from camshaft.hooks_core import is_overridden
from camshaft.strategies import SingleDeviceStrategy, choose_device

Pair = namedtuple("Pair", ["left", "right"])


@pytest.fixture(params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def strategy(request: pytest.FixtureRequest) -> SingleDeviceStrategy:
    return SingleDeviceStrategy(request.param)


def test_auto_takes_the_best_device_there_is() -> None:
    found = torch.accelerator.current_accelerator(check_available=True)
    assert SingleDeviceStrategy().device.type == ("cpu" if found is None else found.type)


def test_an_unknown_accelerator_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`accelerator` must be 'auto', 'cpu', 'gpu' or a type .*, but got 'tpu'"):
        choose_device("tpu")


@pytest.mark.skipif(torch.accelerator.is_available(), reason="this machine has an accelerator")
def test_an_absent_accelerator_is_refused() -> None:
    with pytest.raises(RuntimeError, match="`accelerator` must be present on this machine, but got 'cuda'"):
        SingleDeviceStrategy("cuda")


def test_an_absent_device_of_a_present_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="`device_idx` must be from 0 to 0, but got 1"):
        choose_device("cpu", 1)


def test_batches_of_any_nesting_reach_the_device(strategy: SingleDeviceStrategy) -> None:
    class Own:
        def to(self, device: torch.device) -> str:
            return f"moved to {device.type}"

    x = torch.ones(2)
    batch = {
        "list": [x, (x, 3)],
        "pair": Pair(x, "text"),
        "ordered": OrderedDict(a=x),
        "default": defaultdict(list, a=x),
        "own": Own(),
    }
    moved = strategy.batch_to_device(batch)
    kind = strategy.device.type
    assert moved["list"][0].device.type == kind
    assert moved["list"][1][1] == 3
    assert type(moved["pair"]) is Pair and moved["pair"].left.device.type == kind and moved["pair"].right == "text"
    assert type(moved["ordered"]) is OrderedDict and moved["ordered"]["a"].device.type == kind
    assert type(moved["default"]) is defaultdict and moved["default"].default_factory is list
    assert moved["own"] == f"moved to {kind}"
    assert batch["list"][0] is x


def test_it_trains_as_the_loop_by_hand(strategy: SingleDeviceStrategy) -> None:
    def train(by_hand: bool) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        model = model.to(strategy.device) if by_hand else strategy.setup_module(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if not by_hand:
            (optimizer,) = strategy.setup_optimizers([optimizer])
        for _ in range(3):
            x = torch.randn(8, 4).to(strategy.device)
            optimizer.zero_grad()
            loss = model(x).square().mean()
            if by_hand:
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
            else:
                strategy.backward(loss)
                strategy.clip_gradients(optimizer, 0.1, "norm")
                strategy.optimizer_step(optimizer)
        return model.weight.detach()

    assert torch.equal(train(by_hand=True), train(by_hand=False))


def test_clipping_by_value_bounds_every_gradient(strategy: SingleDeviceStrategy) -> None:
    model = strategy.setup_module(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.full((8, 4), 100.0, device=strategy.device)).square().sum().backward()
    strategy.clip_gradients(optimizer, 0.5, "value")
    assert max(parameter.grad.abs().max().item() for parameter in model.parameters()) == pytest.approx(0.5)


def test_an_unknown_clipping_algorithm_is_refused(strategy: SingleDeviceStrategy) -> None:
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    with pytest.raises(ValueError, match="`algorithm` must be 'norm' or 'value', but got 'max'"):
        strategy.clip_gradients(optimizer, 0.5, "max")


def test_a_closure_is_run_and_its_loss_returned(strategy: SingleDeviceStrategy) -> None:
    weight = nn.Parameter(torch.ones(1, device=strategy.device))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def closure() -> torch.Tensor:
        loss = weight.sum()
        loss.backward()
        return loss

    assert strategy.optimizer_step(optimizer, closure).item() == 1.0
    assert weight.item() == pytest.approx(0.9)


def test_it_receives_hooks_only_where_a_subclass_overrides_them() -> None:
    class Recording(SingleDeviceStrategy):
        def on_train_start(self) -> None: ...

    assert not is_overridden(SingleDeviceStrategy("cpu"), "on_train_start")
    assert is_overridden(Recording("cpu"), "on_train_start")


def test_a_subclass_may_place_the_parts_of_a_module() -> None:
    class Elsewhere(SingleDeviceStrategy):
        def place_module(self, module: nn.Module) -> None:
            module.get_submodule("1").to("meta")

    module = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    Elsewhere("cpu").setup_module(module)
    assert [parameter.device.type for parameter in module.parameters()] == ["cpu", "cpu", "meta", "meta"]
