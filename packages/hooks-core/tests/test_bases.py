from __future__ import annotations

import inspect

import pytest

from camshaft.hooks_core import CATALOGUE, Callback, CheckpointHooks, DataHooks, ModelHooks, Receiver, StrategyHooks
from camshaft.hooks_core.dispatch.binding import arguments_of
from camshaft.hooks_core.dispatch.implementation import is_overridden

BASES = {
    Receiver.CALLBACK: (Callback,),
    Receiver.DATA: (DataHooks, CheckpointHooks),
    Receiver.MODULE: (ModelHooks, DataHooks, CheckpointHooks),
    Receiver.STRATEGY: (StrategyHooks,),
}
WORDS = {
    Receiver.CALLBACK: "callbacks",
    Receiver.DATA: "the data module",
    Receiver.MODULE: "the module",
    Receiver.STRATEGY: "the strategy",
}
DECLARED_BY_TRAINING_MODULE = {
    "configure_callbacks",
    "configure_optimizers",
    "training_step",
    "validation_step",
    "test_step",
    "predict_step",
}
DECLARED_BY_DATA_MODULE = {"state_dict", "load_state_dict", "on_exception"}
NO_HOOKS = {"clip_gradients", "log", "log_dict", "state_key", "monitors", "after_module"}


def declared(base: type) -> dict[str, object]:
    return {name: value for name, value in vars(base).items() if not name.startswith("_") and name not in NO_HOOKS}


def own_kind(base: type) -> Receiver:
    """The receiver from whose point of view a base class is written."""
    return {Callback: Receiver.CALLBACK, StrategyHooks: Receiver.STRATEGY}.get(base, Receiver.MODULE)


METHODS = [
    pytest.param(base, name, id=f"{base.__name__}.{name}")
    for base in (Callback, ModelHooks, DataHooks, CheckpointHooks, StrategyHooks)
    for name in declared(base)
]


@pytest.mark.parametrize("kind", list(Receiver))
def test_bases_declare_every_hook_of_today_that_their_receiver_may_implement(kind: Receiver) -> None:
    elsewhere = {
        Receiver.MODULE: DECLARED_BY_TRAINING_MODULE,
        Receiver.DATA: DECLARED_BY_DATA_MODULE,
    }.get(kind, set())
    names = {name for base in BASES[kind] for name in declared(base)}
    missing = {spec.name for spec in CATALOGUE.received_by(kind) if spec.is_current} - names
    assert missing == elsewhere


@pytest.mark.parametrize(("base", "name"), METHODS)
def test_method_is_a_hook_of_today_with_the_catalogues_arguments(base: type, name: str) -> None:
    spec, kind = CATALOGUE[name], own_kind(base)
    assert spec.is_current
    assert kind in spec.receivers
    parameters = list(inspect.signature(getattr(base, name)).parameters)
    assert tuple(parameters[1:]) == arguments_of(spec, kind)


@pytest.mark.parametrize(("base", "name"), METHODS)
def test_docstring_names_the_other_receivers(base: type, name: str) -> None:
    spec, kind = CATALOGUE[name], own_kind(base)
    text = " ".join((inspect.getdoc(getattr(base, name)) or "").split())
    assert text
    others = [WORDS[receiver] for receiver in spec.receivers if receiver is not kind]
    if spec.kind == "transform":
        assert "A data module's override is taken before a module's." in text
    elif spec.kind == "state":
        assert "Also received" not in text
    elif others:
        listed = " and ".join(filter(None, [", ".join(others[:-1]), others[-1]]))
        assert f"Also received by {listed}." in text
    else:
        assert "Also received" not in text


@pytest.mark.parametrize(("base", "name"), METHODS)
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
