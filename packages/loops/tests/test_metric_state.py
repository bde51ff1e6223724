"""The state of a module's metrics is saved, restored, and reset where there was none."""

from __future__ import annotations

import io
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from camshaft.loops.state.metric_state import metric_states, restore_metric_states


class Mean(nn.Module):
    """A metric as others write them: states are attributes, updates are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.update_count = 0
        self.reset()

    @property
    def metric_state(self) -> dict[str, Any]:
        return {"total": self.total, "values": self.values}

    def update(self, value: Tensor) -> None:
        self.update_count += 1
        self.total += value  # in place, so that a copy is needed
        self.values.append(value)

    def compute(self) -> Tensor:
        return self.total / self.update_count

    def reset(self) -> None:
        self.update_count = 0
        self.total = torch.zeros((), dtype=torch.float64)
        self.values: list[Any] = []


class Uncounted(nn.Module):
    """A metric that does not say whether it was updated."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    @property
    def metric_state(self) -> dict[str, Any]:
        return {"count": self.count}

    def update(self) -> None:
        self.count = self.count + 1

    def compute(self) -> Tensor:
        return self.count

    def reset(self) -> None:
        self.count = torch.zeros(())


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.loss = Mean()
        self.by_stage = nn.ModuleDict({"fit": Mean(), "val": Mean()})


def through_a_file(states: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(states, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


def test_only_metrics_that_were_updated_have_a_state_under_their_qualified_names() -> None:
    model = Model()
    assert metric_states(model) == {}
    model.loss.update(torch.tensor(1.0))
    model.by_stage["val"].update(torch.tensor(2.0))
    assert set(metric_states(model)) == {"loss", "by_stage.val"}


def test_a_metric_itself_has_the_empty_name() -> None:
    metric = Mean()
    metric.update(torch.tensor(1.0))
    other = Mean()
    restore_metric_states(other, through_a_file(metric_states(metric)))
    assert (float(other.compute()), other.update_count) == (1.0, 1)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.data())
def test_stopping_after_any_update_gives_the_same_bits(values: list[float], data: st.DataObject) -> None:
    def update(model: Model, some: list[float]) -> None:
        for value in some:
            model.loss.update(torch.tensor(value, dtype=torch.float64))

    whole, stopped, resumed = Model(), Model(), Model()
    num_before = data.draw(st.integers(0, len(values)))
    update(whole, values)
    update(stopped, values[:num_before])
    states = metric_states(stopped)
    update(stopped, values)  # what comes later is not in the states
    resumed.loss.update(torch.tensor(7.0))  # and what came before restoring leaves nothing
    restore_metric_states(resumed, through_a_file(states))
    update(resumed, values[num_before:])
    assert torch.equal(resumed.loss.compute(), whole.loss.compute())
    assert torch.equal(torch.stack(resumed.loss.values), torch.stack(whole.loss.values))


def test_metrics_without_a_state_are_reset_if_they_were_updated_since() -> None:
    model = Model()
    model.loss.update(torch.tensor(1.0))
    states = metric_states(model)
    for metric in (model.loss, model.by_stage["val"]):
        metric.update(torch.tensor(5.0))
    total = model.by_stage["fit"].total
    for _ in range(2):  # states can be restored again
        restore_metric_states(model, states)
        model.loss.update(torch.tensor(3.0))
        assert (float(model.loss.compute()), len(model.loss.values)) == (2.0, 2)
    assert model.by_stage["val"].update_count == 0 and model.by_stage["val"].values == []
    assert model.by_stage["fit"].total is total, "nothing was to be done for it"


def test_a_metric_that_does_not_count_is_always_saved_and_reset() -> None:
    model = nn.ModuleDict({"metric": Uncounted()})
    model["metric"].update()
    states = metric_states(model)
    model["metric"].update()
    restore_metric_states(model, states)
    assert int(model["metric"].count) == 1 and "metric.count" in model.state_dict()
    restore_metric_states(model, {})
    assert int(model["metric"].count) == 0


def test_copies_are_detached() -> None:
    model = Model()
    model.loss.values.append((torch.ones(2, requires_grad=True), {"name": "x"}))
    model.loss.update_count = 1
    ((tensor, plain),) = metric_states(model)["loss"]["states"]["values"]
    assert not tensor.requires_grad and plain == {"name": "x"}
    restore_metric_states(model, metric_states(model))
    assert model.loss.values[0][1] == {"name": "x"} and not model.loss.values[0][0].requires_grad


def test_a_tensor_that_metrics_share_is_copied_once_and_shared_again() -> None:
    model = Model()
    model.loss.update(torch.tensor(1.0))
    shared = model.loss.values
    model.by_stage["val"].values, model.by_stage["val"].update_count = list(shared), 1
    restore_metric_states(model, through_a_file(metric_states(model)))
    assert model.by_stage["val"].values[0] is model.loss.values[0] is not shared[0]


def test_a_state_that_cannot_be_saved_is_refused() -> None:
    model = Model()
    model.loss.update_count = 1
    model.loss.values.append(Counter("ab"))  # a dictionary of plain values
    assert metric_states(model)["loss"]["states"]["values"] == [{"a": 1, "b": 1}]
    model.loss.values.append({1, 2})
    with pytest.raises(TypeError, match=r"`loss.values` must be made of tensors and plain values, but got \{1, 2\}"):
        metric_states(model)


def test_states_of_another_module_are_refused() -> None:
    model = Model()
    model.loss.update(torch.tensor(1.0))
    states = metric_states(model)
    with pytest.raises(ValueError, match=r"`states` must be states of the module's metrics \(by_stage.*\['lost'\]"):
        restore_metric_states(model, {"lost": states["loss"]})
    states["loss"]["states"]["more"] = torch.zeros(())
    with pytest.raises(ValueError, match=r"`states` must be those of 'loss' \(total, values\), but got \['more', 'tot"):
        restore_metric_states(model, states)


def test_a_module_with_only_some_of_the_methods_is_no_metric() -> None:
    class Updating(nn.Module):
        def update(self) -> None: ...

        def reset(self) -> None: ...

        def compute(self) -> None: ...

    assert metric_states(nn.ModuleList([Updating(), nn.Linear(1, 1)])) == {}
