from __future__ import annotations

import inspect

import attrs
import pytest

from camshaft.hooks_core import CATALOGUE, Callback, CheckpointHooks, DataHooks, ModelHooks, Receiver, StrategyHooks
from camshaft.hooks_core.bases import ModuleSteps, RunHooks
from camshaft.hooks_core.dispatch.implementation import is_overridden
from camshaft.hooks_core.spec import spec_of

BASES = {
    Receiver.CALLBACK: (Callback,),
    Receiver.DATA: (DataHooks, CheckpointHooks),
    Receiver.MODULE: (RunHooks, ModelHooks, DataHooks, CheckpointHooks, ModuleSteps),
    Receiver.STRATEGY: (RunHooks, StrategyHooks),
}
DECLARED_BY_DATA_MODULE = {"state_dict", "load_state_dict", "on_exception"}
NO_HOOKS = {"clip_gradients", "log", "log_dict", "state_key", "monitors", "after_module", "only_observes"}


def declared(base: type) -> dict[str, object]:
    return {name: value for name, value in vars(base).items() if not name.startswith("_") and name not in NO_HOOKS}


STATING = (DataHooks, RunHooks, ModelHooks, CheckpointHooks, ModuleSteps)
AGREEING = {Callback: Receiver.CALLBACK}
BOTH = [
    pytest.param(base, name, id=f"{base.__name__}.{name}") for base in (*STATING, *AGREEING) for name in declared(base)
]
"""The methods that state a hook, and those of callbacks and strategies that agree with one."""


@pytest.mark.parametrize("kind", list(Receiver))
def test_bases_declare_every_hook_of_today_that_their_receiver_may_implement(kind: Receiver) -> None:
    elsewhere = {Receiver.DATA: DECLARED_BY_DATA_MODULE}.get(kind, set())
    names = {name for base in BASES[kind] for name in declared(base)}
    missing = {spec.name for spec in CATALOGUE.received_by(kind)} - names
    assert missing == elsewhere


@pytest.mark.parametrize("base", STATING)
def test_every_method_states_its_hook_for_the_module_first(base: type) -> None:
    for name, method in declared(base).items():
        spec = spec_of(method)
        assert spec is CATALOGUE[name]
        assert Receiver.MODULE in spec.receivers
        assert spec.when.endswith(".")


@pytest.mark.parametrize("base", AGREEING)
def test_methods_of_callbacks_and_strategies_agree_with_the_statement(base: type) -> None:
    kind = AGREEING[base]
    for name, method in declared(base).items():
        if spec_of(method) is not None:
            assert CATALOGUE[name].receivers[0] is Receiver.CALLBACK  # its state, which no module has
            continue
        assert kind in CATALOGUE[name].receivers
        stated = next(vars(one)[name] for one in STATING if name in vars(one))
        expected, found = inspect.signature(stated), inspect.signature(method)  # type: ignore[arg-type]
        parameters = list(found.parameters.values())
        if kind is Receiver.CALLBACK:
            assert [parameter.name for parameter in parameters[1:3]] == ["trainer", "module"]
            del parameters[1:3]
        assert found.replace(parameters=parameters) == expected
        assert inspect.getdoc(method) == (inspect.getdoc(stated) or "").partition("\n\n")[0]


@pytest.mark.parametrize(("base", "name"), BOTH)
def test_what_a_base_declares_does_not_count_as_implemented(base: type, name: str) -> None:
    receiver = type("Receiver", (base,), {})()
    assert not is_overridden(receiver, name)


def test_default_overrides_do_what_their_docstrings_say() -> None:
    calls: list[object] = []

    class Recorder:
        def step(self, *args: object, closure: object = None) -> None:
            calls.append(("step", *args, closure))

        def zero_grad(self) -> None:
            calls.append("zero_grad")

        def backward(self) -> None:
            calls.append("backward")

    hooks, recorder = ModelHooks(), Recorder()
    hooks.optimizer_step(0, 0, recorder, None)
    hooks.optimizer_zero_grad(0, 0, recorder)
    hooks.backward(recorder)
    hooks.lr_scheduler_step(recorder, None)
    hooks.lr_scheduler_step(recorder, 0.5)
    assert calls == [("step", None), "zero_grad", "backward", ("step", None), ("step", 0.5, None)]


def test_clipping_by_nothing_needs_no_torch_and_an_unknown_algorithm_is_an_error() -> None:
    ModelHooks().configure_gradient_clipping(object())
    pytest.importorskip("torch", reason="clipping itself is torch's")
    optimizer = type("Optimizer", (), {"param_groups": []})()
    with pytest.raises(ValueError, match=r"`gradient_clip_algorithm` must be 'norm' or 'value', but got 'max' \(str\)"):
        ModelHooks().configure_gradient_clipping(optimizer, 1.0, "max")


def test_a_callbacks_memory_is_empty_and_kept_under_its_class_by_default() -> None:
    class Counter(Callback):
        pass

    counter = Counter()
    assert counter.state_dict() == {}
    assert counter.state_key == Counter.__qualname__


def test_a_callback_that_is_made_by_attrs_is_no_configuration_to_others() -> None:
    @attrs.define(slots=False)
    class Base(Callback):
        first: int = 1

    @attrs.define(slots=False)
    class Derived(Base):
        second: int = 2

    callback = Derived(second=3)
    assert not attrs.has(callback)  # type: ignore[arg-type]  # as OmegaConf asks
    assert attrs.has(Derived) and attrs.asdict(callback) == {"first": 1, "second": 3}
    assert attrs.evolve(callback, first=4).second == 3
