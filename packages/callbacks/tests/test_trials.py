from __future__ import annotations

import copy
from collections import deque
from typing import Any

import pytest
import torch
from recording_trainer import OneProcess
from torch import nn

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.callbacks.finders.trials import find_attribute, get_attribute, restored, set_attribute


class Scaled(OneProcess):
    scale = 4.0

    def state_dict(self) -> dict[str, Any]:
        return {"scale": self.scale}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scale = state["scale"]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("empty", None)
        self.nested: dict[str, Any] = {"list": [1, [torch.ones(2)]], "set": {1}}
        self.recent: deque[int] = deque([1, 2], maxlen=2)
        self.count, self.name = 0, "net"
        self.anything = object()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.nested["list"][1][0] += 1
        self.nested["list"].append(self.count)
        self.nested["new"] = 1
        self.nested["set"].add(2)
        self.recent.append(3)
        self.empty = torch.ones(3)
        self.made_up = torch.ones(3)
        return self.norm(self.layer(inputs))


def state_of(net: Net, optimizer: torch.optim.Optimizer) -> Any:
    values = [net.state_dict(), net.nested, net.recent, net.count, net.empty, optimizer.state_dict()]
    return copy.deepcopy([*values, [parameter.grad for parameter in net.parameters()], set(vars(net))])


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.mark.parametrize("has_stepped", [False, True])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)])
def test_steps_leave_no_trace(kind: Any, has_stepped: bool) -> None:
    torch.manual_seed(0)
    net, strategy = Net().to(torch.bfloat16), Scaled()
    optimizer = kind(net.parameters())
    inputs = torch.randn(4, 2, dtype=torch.bfloat16)
    if has_stepped:
        net(inputs).sum().backward()
        optimizer.step()
        for state in optimizer.state.values():  # as `load_state_dict` would not keep it
            state.update({key: value.double() for key, value in state.items() if isinstance(value, torch.Tensor)})
        net.made_up = torch.zeros(3)
    before, anything, nested = state_of(net, optimizer), net.anything, net.nested
    with pytest.raises(ArithmeticError), restored(net, [optimizer], strategy):
        for state in optimizer.state.values():
            state.clear()
        for _ in range(3):
            optimizer.zero_grad()
            net(inputs).pow(2).sum().backward()
            optimizer.param_groups[0]["lr"] = 7.0
            optimizer.step()
        strategy.scale = 9.0
        assert not same(state_of(net, optimizer), before)
        raise ArithmeticError
    assert same(state_of(net, optimizer), before)
    assert strategy.scale == 4.0
    assert net.anything is anything and net.nested is nested and net.recent.maxlen == 2


class Owner:
    def __init__(self, **hparams: Any) -> None:
        self.hparams = hparams


def test_a_setting_is_found_and_set_wherever_it_is_kept() -> None:
    module, data = Owner(size=2), Owner()
    data.size = 3  # type: ignore[attr-defined]
    owners = [module, data, None]
    assert find_attribute(owners, ["width", "size"], "name", "Finder") == "size"
    assert get_attribute(owners, "size") == 2
    set_attribute(owners, "size", 5)
    assert (module.hparams, data.size, hasattr(module, "size")) == ({"size": 5}, 5, False)  # type: ignore[attr-defined]
    with pytest.raises(InvalidArgumentError, match=r"`name` must be the name .* of Owner or Owner, but got 'width'"):
        find_attribute(owners, ["width"], "name", "Finder")
