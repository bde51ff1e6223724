from __future__ import annotations

from typing import Any

import pytest

from camshaft.hooks_core import (
    CATALOGUE,
    Callback,
    HookFaultError,
    HookFaultWarning,
    ModelHooks,
    Receiver,
    not_a_hook,
    resolve,
)
from camshaft.hooks_core.faults import Fault, find_faults


def faults_of(receiver: object, kind: Receiver = Receiver.MODULE) -> list[str]:
    return [str(fault) for fault in find_faults(receiver, kind, CATALOGUE)]


def module_with(**methods: Any) -> Any:
    return type("Model", (ModelHooks,), methods)()


def test_a_module_of_today_has_no_faults() -> None:
    assert faults_of(module_with(on_fit_start=lambda self: None, training_step=lambda self, batch: None)) == []


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("on_fit_begin", "on_fit_start"),
        ("on_train_epoch_ended", "on_train_epoch_end"),
        ("on_valid_start", "on_validation_start"),
    ],
)
def test_an_unknown_hook_is_a_fault_with_the_closest_name(wrong: str, right: str) -> None:
    (fault,) = faults_of(module_with(**{wrong: lambda self: None}))
    assert fault.startswith(
        f"Model.{wrong}: no hook has this name. Rename it to `{right}`, or mark it with `@not_a_hook`"
    )


def test_an_unknown_hook_that_is_close_to_nothing_is_a_fault_too() -> None:
    (fault,) = faults_of(module_with(on_zzz=lambda self: None))
    assert "Rename it so that it does not begin with `on_`" in fault


def test_a_hook_of_another_receiver_is_a_fault_that_names_it() -> None:
    callback = type("Watch", (Callback,), {"on_validation_model_eval": lambda self: None})()
    (fault,) = faults_of(callback, Receiver.CALLBACK)
    assert fault.startswith(
        "Watch.on_validation_model_eval: a callback does not receive this hook; it goes to the module."
    )


def test_a_wrong_arity_is_a_fault_that_shows_both_signatures() -> None:
    (fault,) = faults_of(module_with(validation_step=lambda self, batch, batch_idx, optimizer_idx: None))
    assert "validation_step: its signature (batch, batch_idx, optimizer_idx) requires `optimizer_idx`" in fault
    assert "but the hook has only (batch, batch_idx, dataloader_idx). Take these arguments, or fewer of them." in fault


def test_a_wrong_arity_names_the_optional_arguments_too() -> None:
    (fault,) = faults_of(module_with(training_step=lambda self, batch, batch_idx, state: None))
    assert fault == (
        "Model.training_step: its signature (batch, batch_idx, state) requires `state`, but the hook has only "
        "(batch, batch_idx) and, by these names alone, (optimizer_idx, hiddens). "
        "Take these arguments, or fewer of them."
    )


@pytest.mark.parametrize("name", ["optimizer_idx", "hiddens"])
def test_a_step_that_names_an_optional_argument_is_no_fault(name: str) -> None:
    namespace: dict[str, Any] = {}
    exec(f"def training_step(self, batch, batch_idx, {name}): ...", namespace)
    assert faults_of(module_with(training_step=namespace["training_step"])) == []


def test_splitting_along_time_is_no_fault_though_only_old_documents_have_it() -> None:
    assert faults_of(module_with(tbptt_split_batch=lambda self, batch, split_size: [batch])) == []
    (fault,) = faults_of(module_with(tbptt_split_batch=lambda self, batch, split_size, dim: [batch]))
    assert "requires `dim`, but the hook has only (batch, split_size)." in fault


def test_a_hook_of_an_old_era_is_a_fault_that_names_todays() -> None:
    (fault,) = faults_of(module_with(on_epoch_end=lambda self: None))
    assert "belongs to the eras 0.5, 0.7, 0.8, 1.x, which this run does not call" in fault
    assert "Rename it to `on_train_epoch_end`" in fault


def test_an_old_hook_without_counterpart_is_a_fault_too() -> None:
    (fault,) = faults_of(module_with(training_epoch_end=lambda self, outputs: None))
    assert "Rewrite it with the hooks of era 2.x" in fault


@pytest.mark.parametrize("name", ["summarize", "helper", "_on_fit_begin"])
def test_everyday_methods_are_no_faults(name: str) -> None:
    assert faults_of(module_with(**{name: lambda self, anything: None})) == []


def test_a_marked_method_is_no_fault() -> None:
    assert faults_of(module_with(on_click=not_a_hook(lambda self: None))) == []


def test_an_attribute_of_the_instance_is_checked_as_well() -> None:
    module = module_with()
    module.on_fit_begin = lambda: None
    assert len(faults_of(module)) == 1


def test_properties_are_not_read() -> None:
    def explode(self: object) -> None:
        raise AssertionError("must not be read")

    assert faults_of(module_with(on_click=property(explode))) == []


def test_a_class_has_the_faults_of_its_instances_and_is_not_instantiated() -> None:
    class Model(ModelHooks):
        def __init__(self) -> None:
            raise AssertionError("must not be instantiated")

        def on_fit_begin(self) -> None: ...

        def training_step(self, batch: Any, batch_idx: int, optimizer_i: int) -> None: ...

    assert [fault.method for fault in find_faults(Model, Receiver.MODULE, CATALOGUE)] == [
        "on_fit_begin",
        "training_step",
    ]


def test_all_faults_of_all_receivers_are_in_the_one_error() -> None:
    callback = type("Watch", (Callback,), {"on_fit_begin": lambda self: None})()
    module = module_with(on_epoch_end=lambda self: None, training_stp=lambda self, batch: None)
    with pytest.raises(HookFaultError) as caught:
        resolve(callbacks=[callback], module=module, required=["training_step"])
    assert [(fault.receiver, fault.method) for fault in caught.value.faults] == [
        ("Watch", "on_fit_begin"),
        ("Model", "on_epoch_end"),
        ("Model", "training_step"),
    ]
    assert str(caught.value).count("\n") == 2
    assert "`training_step` must be defined to run this verb, but is missing. Rename `training_stp`." in str(
        caught.value
    )


def test_a_missing_step_without_a_near_name_says_what_to_define() -> None:
    with pytest.raises(HookFaultError, match=r"Define `test_step\(batch, batch_idx, dataloader_idx\)`\."):
        resolve(module=module_with(), required=["test_step"])


def test_without_strictness_faults_are_warnings_and_faulty_methods_are_left_out() -> None:
    calls: list[str] = []
    module = module_with(
        on_fit_begin=lambda self: calls.append("begin"),
        on_fit_start=lambda self, missing: calls.append("start"),
        on_fit_end=lambda self: calls.append("end"),
    )
    with pytest.warns(HookFaultWarning) as caught:
        hooks = resolve(module=module, strict=False)
    assert [str(warning.message).split(":")[0] for warning in caught] == ["Model.on_fit_begin", "Model.on_fit_start"]
    hooks.on_fit_start()
    hooks.on_fit_end()
    assert calls == ["end"]


def test_a_fault_reads_as_one_sentence_about_a_method() -> None:
    assert str(Fault("Model", "on_fit_begin", "no hook has this name.")) == "Model.on_fit_begin: no hook has this name."
