"""What `configure_optimizers` may return."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import LBFGS, SGD, Adam, Optimizer
from torch.optim.lr_scheduler import ExponentialLR, OneCycleLR, ReduceLROnPlateau, StepLR

from camshaft.hooks_core.support.optimizer_step import needs_closure
from camshaft.loops.optimization.configuration import LRSchedulerConfig, dropping_gradients, read_configuration


def optimizer(**settings: Any) -> SGD:
    return SGD([nn.Parameter(torch.ones(1))], lr=0.1, **settings)


ONE, TWO = optimizer(), optimizer()
FIRST, SECOND = StepLR(ONE, 1), ExponentialLR(TWO, 0.9)


@pytest.mark.parametrize(
    ("returned", "optimizers", "schedulers"),
    [
        (None, [], []),
        (ONE, [ONE], []),
        ([ONE], [ONE], []),
        ((ONE, TWO), [ONE, TWO], []),
        ([], [], []),
        (([ONE], [FIRST]), [ONE], [FIRST]),
        ([[ONE, TWO], [FIRST, SECOND]], [ONE, TWO], [FIRST, SECOND]),
        (([ONE], []), [ONE], []),
        (([ONE, TWO], [{"scheduler": SECOND}]), [ONE, TWO], [SECOND]),
        ({"optimizer": ONE}, [ONE], []),
        ({"optimizer": ONE, "lr_scheduler": None}, [ONE], []),
        ({"optimizer": ONE, "lr_scheduler": FIRST}, [ONE], [FIRST]),
        ({"optimizer": ONE, "lr_scheduler": {"scheduler": FIRST, "interval": "step"}}, [ONE], [FIRST]),
        ([{"optimizer": ONE, "lr_scheduler": FIRST}, {"optimizer": TWO}], [ONE, TWO], [FIRST]),
        (({"optimizer": ONE}, {"optimizer": TWO, "lr_scheduler": SECOND}), [ONE, TWO], [SECOND]),
        (([ONE], FIRST), [ONE], [FIRST]),
        (([ONE], {"scheduler": FIRST, "interval": "step"}), [ONE], [FIRST]),
        ({"optimizer": ONE, "monitor": "val_loss"}, [ONE], []),
    ],
)
def test_every_accepted_form(returned: Any, optimizers: list[Any], schedulers: list[Any]) -> None:
    configuration = read_configuration(returned)
    assert configuration.optimizers == optimizers
    assert [config.scheduler for config in configuration.schedulers] == schedulers


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (3, "`return value` must be an optimizer, a list of optimizers, .* but got 3 .int. in configure_optimizers"),
        ("sgd", "`return value` must be an optimizer"),
        (nn.Linear(1, 1), "`return value` must be an optimizer"),
        ([ONE, 3], "`return value` must be an optimizer, .* but got 3"),
        ([ONE, FIRST], "`return value` must be an optimizer, .* but got <torch.optim.lr_scheduler.StepLR"),
        ([[ONE, 3], []], "`return value` must be an optimizer, .* but got 3"),
        ({"lr_scheduler": FIRST}, r"must be a dictionary with the keys 'optimizer' .* but got \['lr_scheduler'\]"),
        ({"optimizer": 3}, "`return value` must be an optimizer, .* but got 3"),
        ([{"optimizer": ONE}, TWO], "`return value` must be an optimizer, .* but got {'optimizer'"),
        (([ONE], [3]), r"`lr_scheduler` must be a learning-rate scheduler \(with `step`.* but got 3"),
        (
            {"optimizer": ONE, "lr_scheduler": "step"},
            "`lr_scheduler` must be a learning-rate .* but got 'step'",
        ),
        (
            {"optimizer": ONE, "lr_scheduler": {"interval": "step"}},
            r"`lr_scheduler` must be a dictionary with 'scheduler' and any of frequency, .* but got \['interval'\]",
        ),
    ],
)
def test_every_other_form_is_refused(returned: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        read_configuration(returned)


def test_settings_that_nobody_knows_are_left_out_with_a_warning() -> None:
    with pytest.warns(UserWarning, match=r"`keys beside 'lr_scheduler'` must be any of frequency, .* got \['every'\]"):
        configuration = read_configuration({"optimizer": ONE, "lr_scheduler": {"scheduler": FIRST, "every": 2}})
    assert configuration.schedulers[0].scheduler is FIRST
    with pytest.warns(UserWarning, match=r"`keys beside 'optimizer'` must be any of frequency, .* got \['scheduler'\]"):
        assert read_configuration({"optimizer": ONE, "scheduler": FIRST}).schedulers == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"interval": "batch"}, "`interval` must be 'epoch' or 'step', but got 'batch'"),
        ({"frequency": 0}, "`frequency` must be a positive int, but got 0"),
        ({"frequency": 1.5}, r"`frequency` must be a positive int, but got 1\.5"),
    ],
)
def test_settings_of_a_scheduler_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_configuration({"optimizer": ONE, "lr_scheduler": {"scheduler": FIRST, **settings}})


@pytest.mark.parametrize(("frequencies", "expected"), [((2, 1), [2, 1]), ((None, None), []), ((1, 1), [1, 1])])
def test_frequencies_of_optimizers(frequencies: tuple[Any, Any], expected: list[int]) -> None:
    returned = [
        {"optimizer": one, "frequency": frequency} for one, frequency in zip((ONE, TWO), frequencies, strict=True)
    ]
    assert read_configuration(returned).frequencies == expected


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (
            [{"optimizer": ONE, "frequency": 2}, {"optimizer": TWO}],
            r"`frequency` must be given for every optimizer or for none, but got \[2, None\]",
        ),
        (
            [{"optimizer": ONE, "frequency": 0}, {"optimizer": TWO, "frequency": 1}],
            "`frequency` must be a positive int, but got 0",
        ),
        (
            [{"optimizer": ONE, "frequency": 1.0}, {"optimizer": TWO, "frequency": 1}],
            r"`frequency` must be a positive int, but got 1\.0",
        ),
        (
            [{"optimizer": ONE, "frequency": True}, {"optimizer": TWO, "frequency": 1}],
            "`frequency` must be a positive int, but got True",
        ),
        ({"optimizer": ONE, "frequency": 2}, "`frequency` must be left out if there is one optimizer, .* but got 2"),
    ],
)
def test_frequencies_that_make_no_sense_are_refused(returned: Any, message: str) -> None:
    with pytest.raises(ValueError, match=rf"{message} .* in configure_optimizers"):
        read_configuration(returned)


def test_a_scheduler_on_plateau_needs_to_know_what_it_monitors() -> None:
    plateau = ReduceLROnPlateau(ONE)
    with pytest.raises(ValueError, match="`monitor` must be the name of a logged value, but got None"):
        read_configuration({"optimizer": ONE, "lr_scheduler": plateau})
    config = {"scheduler": plateau, "monitor": "val_loss"}
    assert read_configuration(([ONE], [config])).schedulers[0].monitor == "val_loss"


PLATEAU = ReduceLROnPlateau(ONE)


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        ({"optimizer": ONE, "lr_scheduler": PLATEAU, "monitor": "val_loss"}, "val_loss"),
        ({"optimizer": ONE, "lr_scheduler": {"scheduler": PLATEAU}, "monitor": "val_loss"}, "val_loss"),
        ({"optimizer": ONE, "lr_scheduler": {"scheduler": PLATEAU, "monitor": "acc"}, "monitor": "val_loss"}, "acc"),
        ([{"optimizer": ONE, "lr_scheduler": PLATEAU, "monitor": "val_loss"}], "val_loss"),
        (([ONE], [{"scheduler": PLATEAU, "reduce_on_plateau": True, "monitor": "val_loss"}]), "val_loss"),
        ({"optimizer": ONE, "lr_scheduler": FIRST, "monitor": "val_loss"}, None),
        (([ONE], [{"scheduler": FIRST, "monitor": "val_loss"}]), None),
        (([ONE], [{"scheduler": FIRST, "monitor": "val_loss", "reduce_on_plateau": True}]), "val_loss"),
    ],
)
def test_what_is_monitored_stands_beside_the_optimizer_or_the_scheduler_and_is_of_plateaus(
    returned: Any, expected: str | None
) -> None:
    (config,) = read_configuration(returned).schedulers
    assert (config.monitor, config.reduce_on_plateau) == (expected, expected is not None)


def test_one_that_is_to_reduce_on_plateau_needs_to_know_what_it_monitors_unless_the_module_steps_it() -> None:
    for scheduler in (PLATEAU, {"scheduler": FIRST, "reduce_on_plateau": True}):
        with pytest.raises(ValueError, match="`monitor` must be the name of a logged value"):
            read_configuration(([ONE], [scheduler]))
        assert len(read_configuration(([ONE], [scheduler]), steps_schedulers=False).schedulers) == 1
    with pytest.warns(UserWarning, match="`monitor` must be left out under manual optimization, but got 'val_loss'"):
        read_configuration({"optimizer": ONE, "lr_scheduler": PLATEAU, "monitor": "val_loss"}, steps_schedulers=False)


def test_one_cycle_by_epochs_warns() -> None:
    one_cycle = OneCycleLR(ONE, max_lr=0.1, total_steps=10)
    with pytest.warns(UserWarning, match="`interval` must be 'step' for a OneCycleLR that counts updates"):
        read_configuration(([ONE], [one_cycle]))


@pytest.mark.parametrize("is_manual", [False, True])
def test_a_scheduler_of_an_optimizer_that_was_not_returned_is_refused(is_manual: bool) -> None:
    message = "`lr_scheduler` must be one for an optimizer that is returned as well.*'ExponentialLR for another SGD'"
    for returned in (([ONE], [SECOND]), {"optimizer": ONE, "lr_scheduler": {"scheduler": SECOND}}):
        with pytest.raises(ValueError, match=message):
            read_configuration(returned, steps_schedulers=not is_manual)


def test_a_scheduler_of_what_an_optimizer_wraps_sets_its_rate() -> None:
    class Outer(SGD):
        """Shares the groups of another, as wrappers do, or that one's dictionaries alone."""

    inner = optimizer()
    by_list, by_dictionaries = Outer(inner.param_groups), Outer(inner.param_groups)
    by_list.param_groups = inner.param_groups
    for outer in (by_list, by_dictionaries):
        config = read_configuration(([ONE, outer], [StepLR(inner, 1)])).schedulers[0]
        assert config.optimizer_idx == 1


def test_defaults_of_a_scheduler() -> None:
    config = LRSchedulerConfig(FIRST)
    assert (config.interval, config.frequency, config.monitor, config.strict, config.name) == (
        "epoch", 1, None, True, None,
    )  # fmt: skip


def test_any_object_that_behaves_as_a_scheduler_is_one() -> None:
    class Own:
        def step(self) -> None:
            pass

        def state_dict(self) -> dict[str, Any]:
            return {}

    own = Own()
    assert read_configuration(([ONE], [own])).schedulers[0].scheduler is own


def test_only_optimizers_whose_closure_is_required_need_one() -> None:
    parameters = [nn.Parameter(torch.ones(1))]
    assert needs_closure(LBFGS(parameters))
    assert not needs_closure(SGD(parameters, lr=0.1))
    adam = Adam(parameters)
    StepLR(adam, 1)  # it wraps `step`
    assert not needs_closure(adam)
    lbfgs = LBFGS(parameters)
    StepLR(lbfgs, 1)
    assert needs_closure(lbfgs)

    class WithoutClosure(SGD):
        def step(self) -> None:  # type: ignore[override]
            pass

    assert not needs_closure(WithoutClosure(parameters, lr=0.1))


class CountsZeroing(SGD):
    count = 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.count += 1
        super().zero_grad(set_to_none)


@pytest.mark.parametrize("optimizer_class", [SGD, Adam, LBFGS])
def test_gradients_are_dropped_as_torch_does_it_also_of_groups_that_came_later(optimizer_class: Any) -> None:
    first, second = (nn.Parameter(torch.ones(2)) for _ in range(2))
    optimizer = optimizer_class([first])
    drop = dropping_gradients(optimizer)
    if optimizer_class is not LBFGS:  # which takes one group
        optimizer.add_param_group({"params": [second]})
    for parameter in (first, second):
        parameter.grad = torch.ones(2)
    drop()
    assert first.grad is None
    assert (second.grad is None) == (optimizer_class is not LBFGS)


def test_a_zeroing_of_the_optimizers_own_is_called() -> None:
    optimizer = CountsZeroing([nn.Parameter(torch.ones(2))], lr=0.1)
    dropping_gradients(optimizer)()
    assert optimizer.count == 1


def test_a_zeroing_that_was_set_on_the_optimizer_or_on_torch_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    optimizer, other = (SGD([nn.Parameter(torch.ones(2))], lr=0.1) for _ in range(2))
    optimizer.zero_grad = lambda set_to_none=True: calls.append("own")
    dropping_gradients(optimizer)()
    monkeypatch.setattr(Optimizer, "zero_grad", lambda self, set_to_none=True: calls.append("torch"))
    dropping_gradients(other)()
    assert calls == ["own", "torch"]


def test_a_scheduler_that_only_the_module_steps_needs_no_step() -> None:
    class Stateful:
        def state_dict(self) -> dict[str, Any]:
            return {}

    assert read_configuration(([ONE], [Stateful()]), steps_schedulers=False).schedulers
    with pytest.raises(TypeError, match="`lr_scheduler` must be one with a `step`"):
        read_configuration(([ONE], [Stateful()]))
