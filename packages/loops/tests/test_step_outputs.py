"""What is left of a step once its graph is let go."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any

import pytest
import torch
from torch import nn

from camshaft.loops.optimization.update import detached, loss_of, next_hiddens, with_hiddens, without_graph

State = namedtuple("State", "hidden cell")


def graph() -> torch.Tensor:
    return torch.ones(2, requires_grad=True) * 2


def test_whatever_can_be_detached_is_in_any_nesting_and_the_rest_stays() -> None:
    class Own:
        def detach(self) -> str:
            return "detached"

    state = OrderedDict(a=[graph(), (State(graph(), graph()), "text")], b=Own(), c=None)
    result = detached(state)
    assert type(result) is OrderedDict
    assert result["b"] == "detached" and result["c"] is None
    (one, (pair, text)) = result["a"]
    assert type(pair) is State and text == "text"
    assert not any(tensor.requires_grad for tensor in (one, pair.hidden, pair.cell))
    assert state["a"][0].requires_grad


def test_the_hidden_state_is_carried_detached_and_the_outputs_hold_it_so() -> None:
    outputs = {"loss": graph(), "hiddens": (graph(), graph())}
    hiddens = next_hiddens(outputs, "earlier", nn.Identity())
    assert len(hiddens) == 2 and not any(tensor.requires_grad for tensor in hiddens)
    given = with_hiddens(outputs, hiddens)
    assert given["hiddens"] is hiddens and given["loss"] is outputs["loss"] is not given["hiddens"]
    assert outputs["hiddens"] is not hiddens
    assert next_hiddens(None, "earlier", nn.Identity()) == "earlier" and with_hiddens(None, "earlier") is None
    assert next_hiddens({"hiddens": None}, "earlier", nn.Identity()) is None


@pytest.mark.parametrize("outputs", [torch.ones(()), {"loss": torch.ones(())}, "text"])
def test_outputs_without_a_hidden_state_are_an_error(outputs: Any) -> None:
    message = r"`return value` must be a dictionary with 'hiddens', .* in Identity\.training_step\. Return {\"loss\""
    with pytest.raises(TypeError, match=message):
        next_hiddens(outputs, None, nn.Identity())


def test_the_loss_is_found_and_let_go() -> None:
    loss = graph()
    assert loss_of(loss, nn.Identity()) is loss and loss_of({"loss": loss}, nn.Identity()) is loss
    assert loss_of(None, nn.Identity()) is None
    assert not without_graph(loss)["loss"].requires_grad
    assert without_graph({"loss": loss, "extra": 1})["extra"] == 1
    assert without_graph(None) is None


def test_only_the_loss_is_let_go_and_what_was_returned_stays_as_it_was() -> None:
    outputs = {"loss": graph(), "logits": graph(), "states": [graph()]}
    given = without_graph(outputs)
    assert not given["loss"].requires_grad and outputs["loss"].requires_grad
    assert given["logits"] is outputs["logits"] and given["states"] is outputs["states"]
    of_optimizers = [without_graph(graph()), without_graph(outputs)]
    assert without_graph(of_optimizers) is of_optimizers
    assert without_graph({"no loss": 1}) == {"no loss": 1}
