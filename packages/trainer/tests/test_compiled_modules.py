"""A module that went through `torch.compile` keeps its hooks, and its calls stay compiled."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from trainer_parts import Regression, assert_same, loader, quiet_trainer, weights


class Counting:
    """A backend that compiles nothing and counts."""

    def __init__(self) -> None:
        self.num_graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        self.num_graphs += 1
        return graph.forward


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def test_a_compiled_module_is_trained_by_its_own_hooks_with_compiled_calls(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, backend = Regression(), Counting()
    plain = copy.deepcopy(module)
    compiled = torch.compile(module, backend=backend)
    trainer = quiet_trainer(tmp_path)
    trainer.fit(compiled, loader(), loader())
    quiet_trainer(tmp_path).fit(plain, loader(), loader())
    assert trainer.model is module and module.trainer is trainer
    assert backend.num_graphs >= 1
    assert_same(weights(module), weights(plain))
    trainer.save_checkpoint(tmp_path / "compiled.ckpt")
    assert_same(weights(Regression.load_from_checkpoint(tmp_path / "compiled.ckpt")), weights(plain))


def test_further_verbs_compile_nothing_anew(tmp_path: Path) -> None:
    module, backend = Regression(), Counting()
    compiled = torch.compile(module, backend=backend)
    trainer = quiet_trainer(tmp_path)
    trainer.validate(compiled, loader(), verbose=False)
    num_graphs, call = backend.num_graphs, module._compiled_call_impl
    trainer.validate(compiled, loader(), verbose=False)
    trainer.validate(None, loader(), verbose=False)
    assert (backend.num_graphs, module._compiled_call_impl) == (num_graphs, call)


def test_a_copy_of_a_compiled_module_computes_with_its_own_weights() -> None:
    module = Regression()
    module.compile(backend=Counting())
    other = copy.deepcopy(module)
    nn.init.zeros_(other.layer.weight)
    nn.init.zeros_(other.layer.bias)
    assert float(other(torch.ones(1, 3)).detach()) == 0.0


def test_what_is_compiled_must_be_a_module_that_can_be_trained(tmp_path: Path) -> None:
    class LightningModule(nn.Module): ...

    class Foreign(LightningModule): ...

    with pytest.raises(TypeError, match=r"`model` must be a TrainingModule .*but got 'test_what_is_compiled.*Foreign'"):
        quiet_trainer(tmp_path).fit(torch.compile(Foreign(), backend=Counting()), loader())
