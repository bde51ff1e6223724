"""Several optimizers that step together, on one loss."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from bare_parts import BareTrainer, Net, Sized, Unsized, hooked, make_batches, same_bits, seeded, weights
from torch import nn
from torch.optim.lr_scheduler import StepLR

from camshaft.loops import JointOptimizer

pytestmark = pytest.mark.filterwarnings("ignore:There is a `validation_step`")


def parts(net: nn.Module) -> list[torch.optim.Optimizer]:
    matrices = [parameter for parameter in net.parameters() if parameter.ndim == 2]
    others = [parameter for parameter in net.parameters() if parameter.ndim != 2]
    return [torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW([{"params": others}], lr=0.01)]


def joint(net: nn.Module) -> JointOptimizer:
    return JointOptimizer(*parts(net))


def scheduled(net: nn.Module) -> Any:
    optimizer = joint(net)
    return [optimizer], [{"scheduler": StepLR(optimizer, 2, gamma=0.5), "interval": "step"}]


def by_hand(batches: Any, window: int, clip_val: float) -> list[torch.Tensor]:
    net = seeded()
    optimizers = parts(net)
    schedulers = [StepLR(one, 2, gamma=0.5) for one in optimizers]
    for start in range(0, len(batches), window):
        net.zero_grad()
        for batch in batches[start : start + window]:
            (net.loss(batch) / window).backward()
        nn.utils.clip_grad_norm_([p for one in optimizers for g in one.param_groups for p in g["params"]], clip_val)
        for one in [*optimizers, *schedulers]:
            one.step()
    return weights(net)


@pytest.mark.parametrize("overrides", [False, True])
def test_parts_step_once_per_update_with_one_clipping_and_one_scheduler(overrides: bool) -> None:
    class Overriding(Net):
        def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any) -> None:
            optimizer.step(closure=optimizer_closure)

    told: list[Any] = []
    callback = hooked(on_before_optimizer_step=lambda trainer, module, optimizer: told.append(optimizer))
    net = seeded(Overriding if overrides else Net, scheduled)
    settings = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.05, "max_epochs": 1}
    trainer = BareTrainer(net, callbacks=[callback], **settings).fit(Sized(make_batches(8)))
    assert same_bits(weights(net), by_hand(make_batches(8), 2, 0.05))
    assert trainer.global_step == 4 and [type(one) for one in told] == [JointOptimizer] * 4


def test_a_fit_goes_on_with_the_states_of_all_parts() -> None:
    def fit(net: Any, max_epochs: int, checkpoint: Any = None) -> BareTrainer:
        callback = hooked(on_train_epoch_end=lambda trainer, _: trainer.save_checkpoint("epoch"))
        trainer = BareTrainer(net, callbacks=[callback], max_epochs=max_epochs)
        return trainer.fit(Sized(make_batches(3)), checkpoint=checkpoint)

    whole, first, second = (seeded(Net, scheduled) for _ in range(3))
    fit(whole, 3)
    checkpoint = fit(first, 1).load("epoch")
    fit(second, 3, checkpoint)
    assert same_bits(weights(whole), weights(second))


@pytest.mark.parametrize("joins", [True, False])
def test_a_fit_that_gives_groups_in_another_order_is_refused(joins: bool) -> None:
    """Each takes the settings of the one in its place, such as its learning rate."""

    def fit(order: slice, checkpoint: Any = None) -> BareTrainer:
        def configure(module: nn.Module) -> torch.optim.Optimizer:
            parts = [torch.optim.SGD(one.parameters(), lr=lr) for one, lr in ((module.layer, 0.1), (module.head, 0.01))]
            groups = [group for one in parts for group in one.param_groups]
            return JointOptimizer(*parts[order]) if joins else torch.optim.SGD(groups[order])

        callback = hooked(on_train_epoch_end=lambda trainer, _: trainer.save_checkpoint("epoch"))
        trainer = BareTrainer(seeded(Net, configure), callbacks=[callback], max_epochs=1)
        return trainer.fit(Sized(make_batches(1)), checkpoint=checkpoint)

    message = r"must be in the order of the checkpoint.*'head\.weight in the place of group 0, .* was in group 1'"
    with pytest.raises(ValueError, match=message):
        fit(slice(None, None, -1), fit(slice(None)).load("epoch"))


@pytest.mark.parametrize("again", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_has_parts_of_its_own_and_their_states(again: Any) -> None:
    net = seeded()
    optimizer = joint(net)
    net.loss(make_batches(1)[0]).backward()
    optimizer.step()
    copied, before = again(optimizer), [one.clone() for one in net.parameters()]
    assert copied.state_dict()["state"].keys() == optimizer.state_dict()["state"].keys() == {0, 1, 2, 3}
    for group in copied.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    copied.step()
    assert all(copied.state[one]["step"] == 2 for one in copied.optimizers[1].state)
    assert same_bits(before, list(net.parameters()))


def test_states_have_the_form_of_torch_and_each_part_loads_its_own() -> None:
    class Counting(torch.optim.SGD):
        num_steps = 0

        def step(self, closure: Any = None) -> Any:
            self.num_steps += 1
            return super().step(closure)

        def state_dict(self) -> dict[str, Any]:
            return {**super().state_dict(), "num_steps": self.num_steps}

        def load_state_dict(self, state_dict: Any) -> None:
            self.num_steps = state_dict["num_steps"]
            super().load_state_dict({name: state_dict[name] for name in ("state", "param_groups")})

    def make() -> tuple[Any, JointOptimizer]:
        net = seeded()
        counting = Counting(net.head.parameters(), lr=0.1, momentum=0.9)
        return net, JointOptimizer(torch.optim.AdamW(net.layer.parameters()), counting)

    net, optimizer = make()
    net.loss(make_batches(1)[0]).backward()
    optimizer.step()
    state = optimizer.state_dict()
    assert [group["params"] for group in state["param_groups"]] == [[0, 1], [2, 3]]
    assert "exp_avg" in state["state"][1] and "momentum_buffer" in state["state"][2]
    other_net, other = make()
    other.load_state_dict(state)
    assert other.optimizers[1].num_steps == 1  # type: ignore[attr-defined]
    assert same_bits([other.state[other_net.head.weight]["momentum_buffer"]], [state["state"][2]["momentum_buffer"]])
    assert set(other.state) == set(other_net.parameters()) and len(other.state) == 4
    assert other.state.get(other_net.head.weight) is other.state[other_net.head.weight]
    other.state.clear()
    assert other.state.get(other_net.head.weight) is None
    assert not any(one.state for one in other.optimizers)
    with pytest.raises(ValueError, match=r"`param_groups` must be as many as there are parameter groups, 2, but got 1"):
        other.load_state_dict(torch.optim.SGD(net.parameters()).state_dict())


def test_what_cannot_be_joined_is_refused() -> None:
    net = seeded()
    muon, adamw = parts(net)
    with pytest.raises(ValueError, match=r"but got '2 in two of them, the first of shape \(2, 3\)"):
        JointOptimizer(torch.optim.SGD(net.parameters()), muon)
    with pytest.raises(ValueError, match="at least one optimizer"):
        JointOptimizer()
    with pytest.raises(
        TypeError, match=r"torch\.optim\.Optimizer objects, but got <class 'list'> \(type\).*JointOptimizer\(muon"
    ):
        JointOptimizer(muon, [adamw])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="whose `step` needs no closure"):
        JointOptimizer(torch.optim.LBFGS(net.parameters()))
    with pytest.raises(ValueError, match="`param_group` must be added to one of the optimizers"):
        JointOptimizer(muon, adamw).add_param_group({"params": [torch.zeros(1)]})
    (optimizer := JointOptimizer(muon, adamw)).step()
    adamw.add_param_group({"params": [net.head.weight]})
    with pytest.raises(ValueError, match="different parameters, but got '1 in two of them"):
        optimizer.step()


def test_parameters_that_no_part_updates_are_named() -> None:
    net = seeded(Net, lambda module: JointOptimizer(parts(module)[0]))
    with pytest.warns(UserWarning, match=r"No part of the JointOptimizer updates layer\.bias, head\.bias, which"):
        BareTrainer(net, max_epochs=1).fit(Unsized(make_batches(1)))
