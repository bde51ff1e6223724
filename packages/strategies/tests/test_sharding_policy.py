from __future__ import annotations

import pytest
from torch import nn

from camshaft.strategies.sharding.policy import Policy, blocks_of, shardable


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(4)])
        self.linear = nn.Linear(4, 4)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 4)
        self.body = nn.Module()
        self.body.layers = nn.ModuleList([Layer(), Layer()])
        self.body.by_name = nn.ModuleDict({"a": nn.Linear(4, 4)})
        self.dropout = nn.Dropout()
        self.head = nn.Linear(4, 9, bias=False)


def names_of(model: nn.Module, policy: Policy | None) -> list[str]:
    names = {id(module): name for name, module in model.named_modules()}
    return [names[id(block)] for block in blocks_of(model, policy)]


MEMBERS = ["body.layers.0", "body.layers.1", "body.by_name.a"]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (None, ["embedding", *MEMBERS, "body", "head"]),
        (Layer, MEMBERS[:2]),
        ((nn.Embedding, nn.LayerNorm), ["embedding", "body.layers.0.norms.0", "body.layers.1.norms.0"]),
        ({Layer}, MEMBERS[:2]),
        (lambda module: isinstance(module, nn.Linear) and module.bias is None, ["head"]),
        (lambda module: False, []),
        (36, ["embedding", "body", "head"]),  # 36, 76 and 36 parameters
        (28, ["embedding", *MEMBERS[:2], "head"]),  # of the body's 76, 20 are left
        (40, ["body"]),
        (1000, []),
    ],
)
def test_blocks_are_chosen_inner_ones_first(policy: Policy | None, expected: list[str]) -> None:
    assert names_of(Model(), policy) == expected


def test_modules_that_share_a_parameter_with_one_outside_are_left_to_what_is_around_them() -> None:
    model = Model()
    model.head.weight = model.embedding.weight
    blocks = shardable(model, blocks_of(model, None))
    assert model.head not in blocks and model.embedding not in blocks
    assert model.body in blocks
    inner = Model()
    inner.body.layers[0].linear.weight = inner.body.layers[1].linear.weight
    blocks = shardable(inner, blocks_of(inner, None))
    assert inner.body in blocks and inner.body.layers[0] not in blocks
    assert inner.body.by_name["a"] in blocks


def test_modules_that_occur_twice_are_one_block() -> None:
    model = nn.Sequential(Layer(), Layer())
    model.append(model[0])
    assert shardable(model, blocks_of(model, Layer)) == [model[0], model[1]]
