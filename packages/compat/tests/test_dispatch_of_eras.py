"""Hooks of earlier eras in a run that calls them."""

from __future__ import annotations

from typing import Any

import pytest

from camshaft.compat.eras import read_receivers
from camshaft.hooks_core import Callback, HookFaultError, HookFaultWarning, ModelHooks, Receiver, resolve
from camshaft.hooks_core.eras.hooks import hooks_of_eras
from camshaft.hooks_core.spec import SKIP_EPOCH


class Log:
    """Methods that write down their names and arguments."""

    def __init__(self) -> None:
        self.lines: list[Any] = []

    def method(self, *parameters: str, who: str = "", returns: Any = None) -> Any:
        """A method with these parameters, to be put into a class."""
        lines = self.lines

        def called(name: str) -> Any:
            namespace: dict[str, Any] = {"lines": lines, "returns": returns}
            taken = ", ".join(parameter.partition("=")[0] for parameter in parameters)
            exec(
                f"def {name}({', '.join(['self', *parameters])}):\n"
                f"    lines.append(({f'{who}.{name}'.lstrip('.')!r}, {taken + ',' if taken else ''}))\n"
                "    return returns\n",
                namespace,
            )
            return namespace[name]

        return called

    def class_of(self, base: type, **methods: Any) -> type:
        return type("Old", (base,), {name: method(name) for name, method in methods.items()})

    def names(self) -> list[str]:
        return [line[0] for line in self.lines]


@pytest.fixture
def log() -> Log:
    return Log()


def both(log: Log, *hooks: str) -> dict[str, Any]:
    """A callback and a module that have all of these hooks."""
    callback = log.class_of(Callback, **{hook: log.method("trainer", "pl_module", who="callback") for hook in hooks})
    module = log.class_of(ModelHooks, **{hook: log.method(who="module") for hook in hooks})
    module.hook_era = "1.x"
    return {"callbacks": [callback()], "module": module()}


@pytest.mark.parametrize(
    ("hook", "order"),
    [
        ("on_train_epoch_start", ["on_epoch_start", "on_train_epoch_start"]),
        ("on_train_epoch_end", ["on_train_epoch_end", "on_epoch_end"]),
        ("on_validation_epoch_start", ["on_epoch_start", "on_validation_epoch_start"]),
        ("on_validation_epoch_end", ["on_validation_epoch_end", "on_epoch_end"]),
        ("on_train_batch_end", ["on_train_batch_end", "on_batch_end"]),
        ("on_fit_start", ["on_fit_start", "on_pretrain_routine_start", "on_pretrain_routine_end"]),
    ],
)
def test_old_hooks_begin_before_and_end_after_todays_and_each_reaches_callbacks_first(
    log: Log, hook: str, order: list[str]
) -> None:
    hooks = resolve(**both(log, *order), read=read_receivers)
    getattr(hooks, hook)(*hooks_of_eras()[hook].parameters)
    assert log.names() == [f"{who}.{name}" for name in order for who in ("callback", "module")]


def test_epochs_of_evaluation_are_none_for_a_module_before_1_2_and_for_the_callbacks_in_its_company(log: Log) -> None:
    receivers = both(log, "on_epoch_start", "on_epoch_end")
    type(receivers["module"]).hook_era = "1.1.8"
    hooks = resolve(**receivers, read=read_receivers)
    hooks.on_validation_epoch_start()
    hooks.on_test_epoch_end()
    assert log.names() == []
    hooks.on_train_epoch_start()
    assert log.names() == ["callback.on_epoch_start", "module.on_epoch_start"]


def test_a_callback_that_declares_its_release_keeps_to_it_in_any_company(log: Log) -> None:
    receivers = both(log, "on_epoch_start")
    type(receivers["module"]).hook_era = "0.8"
    type(receivers["callbacks"][0]).hook_era = "1.5"
    hooks = resolve(**receivers, read=read_receivers)
    hooks.on_validation_epoch_start()
    assert log.names() == ["callback.on_epoch_start"]


def test_minus_one_from_on_batch_start_skips_the_epoch(log: Log) -> None:
    methods = {"on_batch_start": log.method("batch", returns=SKIP_EPOCH), "training_epoch_end": log.method("outputs")}
    module = log.class_of(ModelHooks, **methods)()
    callback = log.class_of(Callback, on_batch_start=log.method("trainer", "pl_module"))()
    hooks = resolve(module=module, callbacks=[callback], trainer="trainer", read=read_receivers)
    assert hooks.on_train_batch_start("batch", 0) == SKIP_EPOCH
    assert log.lines == [("on_batch_start", "trainer", module), ("on_batch_start", "batch")]


def test_a_keyboard_interrupt_is_announced_before_on_exception_and_other_errors_are_not(log: Log) -> None:
    receivers = both(log, "on_exception")
    receivers["callbacks"] = [
        log.class_of(
            Callback,
            on_keyboard_interrupt=log.method("trainer", "pl_module"),
            on_exception=log.method("trainer", "pl_module", "exception"),
            on_train_epoch_end=log.method("trainer", "pl_module", "outputs"),
        )()
    ]
    hooks = resolve(callbacks=receivers["callbacks"], read=read_receivers)
    hooks.on_exception(ValueError())
    assert log.names() == ["on_exception"]
    log.lines.clear()
    hooks.on_exception(KeyboardInterrupt())
    assert log.names() == ["on_keyboard_interrupt", "on_exception"]


def test_arguments_that_only_old_signatures_have_are_fixed_unless_the_caller_passes_them(log: Log) -> None:
    module = log.class_of(
        ModelHooks,
        optimizer_step=log.method(
            "epoch",
            "batch_idx",
            "optimizer",
            "optimizer_idx",
            "optimizer_closure",
            "on_tpu=True",
            "using_native_amp=True",
            "using_lbfgs=True",
        ),
        on_train_batch_end=log.method("outputs", "batch", "batch_idx", "dataloader_idx"),
    )()
    hooks: Any = resolve(module=module, read=read_receivers)
    hooks.optimizer_step(3, 4, "sgd", "closure")
    hooks.optimizer_step(3, 4, "sgd", "closure", optimizer_idx=1, using_lbfgs=True)
    hooks.on_train_batch_end("outputs", "batch", 4)
    assert log.lines == [
        ("optimizer_step", 3, 4, "sgd", 0, "closure", False, False, False),
        ("optimizer_step", 3, 4, "sgd", 1, "closure", False, False, True),
        ("on_train_batch_end", "outputs", "batch", 4, 0),
    ]


def test_the_optimizer_step_of_0_8_gets_mixed_precision_by_name_and_its_closure_fifth(log: Log) -> None:
    five = ("current_epoch", "batch_idx", "optimizer", "opt_idx", "second_order_closure=None")
    module = log.class_of(ModelHooks, optimizer_step=log.method(*five, "using_native_amp=None"))()
    hooks: Any = resolve(module=module, read=read_receivers)
    assert [reading.version for reading in hooks.readings] == ["0.8"]
    hooks.optimizer_step(3, 4, "sgd", "closure", optimizer_idx=1, using_native_amp=True)
    assert log.lines == [("optimizer_step", 3, 4, "sgd", 1, "closure", True)]


@pytest.mark.parametrize("hook", ["on_train_batch_start", "on_train_batch_end"])
def test_the_batch_hooks_of_0_9_are_told_apart_by_their_names(log: Log, hook: str) -> None:
    old = ("batch", "batch_idx", "dataloader_idx")
    module = log.class_of(ModelHooks, **{hook: log.method(*old, who="module")})()
    callback = log.class_of(Callback, **{hook: log.method("trainer", "pl_module", *old, who="callback")})()
    today = log.class_of(ModelHooks, **{hook: log.method("outputs", "batch", "batch_idx", who="today")})()
    arguments = {"outputs": "outputs", "batch": "batch", "batch_idx": 7}
    passed = [arguments[name] for name in hooks_of_eras()[hook].parameters]
    hooks: Any = resolve(callbacks=[callback], module=module, trainer="trainer", read=read_receivers)
    getattr(hooks, hook)(*passed)
    assert log.lines == [(f"callback.{hook}", "trainer", module, "batch", 7, 0), (f"module.{hook}", "batch", 7, 0)]
    log.lines.clear()
    if hook == "on_train_batch_end":
        getattr(resolve(module=today, read=read_receivers), hook)(*passed)
        assert log.lines == [(f"today.{hook}", "outputs", "batch", 7)]


def test_calls_take_arguments_by_todays_names_whatever_a_receiver_calls_them(log: Log) -> None:
    module = log.class_of(
        ModelHooks,
        training_step=log.method("batch", "batch_nb", "optimizer_i"),
        on_batch_start=log.method("batch"),
        validation_end=log.method("outputs"),
    )()
    callback = log.class_of(Callback, on_predict_epoch_end=log.method("trainer", "pl_module", "results"))()
    hooks = resolve(module=module, callbacks=[callback], read=read_receivers)
    assert hooks.takes("training_step", "optimizer_idx")
    assert hooks.takes("training_step", "batch_idx")
    assert not hooks.takes("training_step", "hiddens")
    assert hooks.takes("on_train_batch_start", "batch")
    assert not hooks.takes("on_train_batch_start", "batch_idx")
    assert hooks.takes("validation_epoch_end", "outputs")
    assert hooks.takes("on_predict_epoch_end", "outputs")
    assert not hooks.takes("on_train_epoch_end", "outputs")
    with pytest.raises(AttributeError, match=r"got 'on_lunch' \(str\) in Hooks"):
        hooks.takes("on_lunch", "menu")


def test_what_an_era_has_at_a_moment_of_its_own_is_an_attribute_and_none_where_nobody_has_it(log: Log) -> None:
    module = log.class_of(ModelHooks, training_epoch_end=log.method("outputs", returns={"log": {}}))()
    hooks: Any = resolve(module=module, read=read_receivers)
    assert hooks.training_epoch_end(["one"]) == {"log": {}}
    assert hooks.validation_epoch_end is None
    assert hooks.init_optimizers is None


@pytest.mark.parametrize(
    ("first", "later"),
    [("validation_end", "validation_epoch_end"), ("test_end", "test_epoch_end"), ("training_end", "training_step_end")],
)
def test_a_hook_by_its_first_name_is_called_for_the_later_one(log: Log, first: str, later: str) -> None:
    module = log.class_of(ModelHooks, **{first: log.method("outputs", returns="returned")})()
    hooks = resolve(module=module, read=read_receivers)
    assert getattr(hooks, later)(["one"]) == "returned"
    assert getattr(hooks, first) is None
    assert log.lines == [(first, ["one"])]


def test_a_hook_under_both_of_its_names_is_a_fault(log: Log) -> None:
    methods = {name: log.method("outputs") for name in ("validation_end", "validation_epoch_end")}
    with pytest.raises(
        HookFaultError,
        match=r"Old\.validation_end: it is an earlier name of `validation_epoch_end`, which is defined as well",
    ):
        resolve(module=log.class_of(ModelHooks, **methods)(), read=read_receivers)


def test_what_is_provided_is_announced_first_and_comes_from_its_one_owner(log: Log) -> None:
    module = log.class_of(ModelHooks, on_train_dataloader=log.method(), train_dataloader=log.method(returns="loader"))()
    module.hook_era = "1.5"
    hooks: Any = resolve(module=module, read=read_receivers)
    assert hooks.train_dataloader() == "loader"
    assert log.names() == ["on_train_dataloader", "train_dataloader"]
    alone = log.class_of(ModelHooks, on_val_dataloader=log.method())()
    alone.hook_era = "1.5"
    assert resolve(module=alone, read=read_receivers).val_dataloader is None


def test_wrappers_and_notes_know_a_call_by_its_old_name(log: Log) -> None:
    seen: list[tuple[str, str]] = []

    class Watch(Callback):
        def wrap_call(self, hook: str, kind: Receiver, receiver: object, function: Any) -> Any:
            seen.append((hook, str(kind)))
            return function

    class Old(ModelHooks):
        hook_era = "1.x"

        def on_epoch_end(self) -> None:
            raise ValueError("no")

        def on_train_epoch_end(self) -> None: ...

    hooks = resolve(callbacks=[Watch()], module=Old(), position=lambda: "epoch 2", read=read_receivers)
    assert [name for name in seen if name[0].endswith("epoch_end")] == [
        ("on_train_epoch_end", "module"),
        ("on_epoch_end", "module"),
        ("on_epoch_end", "module"),
        ("on_epoch_end", "module"),
    ]
    with pytest.raises(ValueError, match="no") as caught:
        hooks.on_train_epoch_end()
    (note,) = caught.value.__notes__
    assert note.startswith("Raised in hook `on_epoch_end` of ")
    assert note.endswith("Old (epoch 2).")


def test_without_eras_an_old_hook_is_a_fault_and_if_not_strict_left_out(log: Log) -> None:
    module = log.class_of(ModelHooks, on_epoch_end=log.method(), on_train_epoch_end=log.method())()
    with pytest.raises(HookFaultError, match=r"Old\.on_epoch_end: .*which this run does not call"):
        resolve(module=module)
    with pytest.warns(match="which this run does not call"):
        hooks = resolve(module=module, strict=False)
    hooks.on_train_epoch_end()
    assert log.names() == ["on_train_epoch_end"]


def test_a_callback_of_an_earlier_era_leaves_the_module_one_of_today(log: Log) -> None:
    old = {"on_train_epoch_end": log.method("trainer", "pl_module", "outputs")}
    today = log.class_of(ModelHooks, training_step=log.method("batch", "batch_idx"))()
    hooks = resolve(callbacks=[log.class_of(Callback, **old)()], module=today, read=read_receivers)
    assert [(reading.kind, reading.version) for reading in hooks.readings] == [(Receiver.CALLBACK, "1.3")]


def test_contradicting_hooks_of_two_eras_are_faults_of_the_run() -> None:
    class Mixed(ModelHooks):
        hook_era = "2.0"

        def training_epoch_end(self, outputs: Any) -> None: ...

    with pytest.raises(
        HookFaultError, match=r"Mixed\.training_epoch_end: `hook_era` says '2\.0', but this hook belongs"
    ):
        resolve(module=Mixed(), read=read_receivers)


def test_a_hook_of_an_earlier_era_gets_the_index_of_a_single_loader_as_it_did_and_a_step_does_not() -> None:
    class Old(ModelHooks):
        hook_era = "1.5"

        def validation_step(self, *args: Any) -> Any:
            return args

        def on_validation_batch_start(self, *args: Any) -> Any:
            calls.append(args)

        def predict_step(self, *args: Any) -> Any:
            return args

    calls: list[Any] = []
    hooks: Any = resolve(module=Old(), read=read_receivers).for_loaders(1)
    hooks.on_validation_batch_start("batch", 3, 0)
    assert calls == [("batch", 3, 0)]
    assert hooks.validation_step("batch", 3, 0) == ("batch", 3)
    assert hooks.predict_step("batch", 3, 0) == ("batch", 3, 0)


def test_an_old_hooks_name_with_a_signature_of_no_era_is_the_users_own_and_a_warning(log: Log) -> None:
    methods = {"on_epoch_end": log.method("outputs"), "training_step": log.method("batch")}
    module = log.class_of(ModelHooks, **methods)()
    with pytest.warns(HookFaultWarning, match=r"Old.on_epoch_end: it is taken for a method of your own: .*`outputs`"):
        hooks = resolve(module=module, read=read_receivers)
    assert hooks.readings == ()
    hooks.on_train_epoch_end()


def test_an_old_hooks_name_with_a_signature_of_no_era_is_a_fault_in_a_class_of_an_old_era(log: Log) -> None:
    methods = {"on_epoch_end": log.method("outputs"), "training_epoch_end": log.method("outputs")}
    with pytest.raises(HookFaultError, match="on_epoch_end: its signature"):
        resolve(module=log.class_of(ModelHooks, **methods)(), read=read_receivers)
