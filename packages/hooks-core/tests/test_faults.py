from __future__ import annotations

import warnings
from typing import Any, ClassVar

import pytest

from camshaft.hooks_core import (
    CATALOGUE,
    Callback,
    DataHooks,
    HookFaultError,
    HookFaultWarning,
    ModelHooks,
    Receiver,
    not_a_hook,
    resolve,
)
from camshaft.hooks_core.dispatch.faults import Fault
from camshaft.hooks_core.eras.faults import find_faults


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


def test_a_hook_of_earlier_releases_alone_on_another_receiver_is_a_warning() -> None:
    data = type("Data", (DataHooks,), {"on_train_dataloader": lambda self: None})()
    (fault,) = find_faults(data, Receiver.DATA, CATALOGUE)
    assert fault.is_warning
    assert "a data does not receive this hook; it goes to the module" in str(fault)


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


def method(name: str, parameters: str, body: str = "...") -> Any:
    namespace: dict[str, Any] = {}
    exec(f"def {name}(self{parameters}): {body}", namespace)
    return namespace[name]


@pytest.mark.parametrize(
    ("name", "parameters", "meant"),
    [
        ("training_batch_end", ", outputs, batch, batch_idx", "on_train_batch_end"),
        ("train_batch_end", ", *args", "on_train_batch_end"),
        ("validation_batch_start", ", batch, batch_idx", "on_validation_batch_start"),
        ("val_epoch_start", "", "on_validation_epoch_start"),
        ("validation_start", "", "on_validation_start"),
        ("predict_epoch_end", "", "on_predict_epoch_end"),
        ("test_batch_begin", ", batch, batch_idx", "on_test_batch_start"),
        ("fit_start", "", "on_fit_start"),
        ("before_optimizer_step", ", optimizer", "on_before_optimizer_step"),
        ("after_backward", "", "on_after_backward"),
        ("trainig_batch_end", ", outputs, batch, batch_idx", "on_train_batch_end"),
        ("val_epoch_end", ", outputs", "validation_epoch_end"),
        ("configure_optimizer", "", "configure_optimizers"),
        ("configure_optimisers", "", "configure_optimizers"),
        ("configure_optmizers", "", "configure_optimizers"),
        ("validaton_step", ", batch, batch_idx", "validation_step"),
        ("validation_dataloader", "", "val_dataloader"),
        ("train_data_loader", "", "train_dataloader"),
        ("lr_schedulers_step", ", scheduler, metric", "lr_scheduler_step"),
        ("set_up", ", stage", "setup"),
        ("on_val_batch_end", ", outputs, batch, batch_idx", "on_validation_batch_end"),
    ],
)
def test_a_name_close_to_a_hooks_with_a_signature_that_fits_is_a_fault(name: str, parameters: str, meant: str) -> None:
    (fault,) = find_faults(module_with(**{name: method(name, parameters)}), Receiver.MODULE, CATALOGUE)
    assert fault.message.startswith(f"no hook has this name. Rename it to `{meant}`, or mark it with `@not_a_hook`")
    assert fault.meant == meant


@pytest.mark.parametrize("name", ["training_batch_end", "validation_end", "train_epoch_end", "test_start"])
def test_a_callbacks_name_close_to_a_hooks_is_a_fault(name: str) -> None:
    def of_callback(parameters: str) -> list[str]:
        return faults_of(type("Watch", (Callback,), {name: method(name, parameters)})(), Receiver.CALLBACK)

    assert len(of_callback(", trainer, pl_module")) == 1
    assert of_callback("") == []


OWN_NAMES = [
    "train_step",
    "val_step",
    "valid_step",
    "validate_step",
    "eval_step",
    "test_batch",
    "train_batch",
    "training_loss",
    "validation_loss",
    "validate",
    "test_epoch",
    "train_epoch",
    "epoch_end",
    "epoch_start",
    "batch_end",
    "save_checkpoint",
    "load_checkpoint",
    "configure_optimizer_groups",
    "configure_loss",
    "configure_metrics",
    "configure_scheduler",
    "configure_schedulers",
    "setup_data",
    "setup_model",
    "setup_optimizer",
    "prepare_batch",
    "prepare_dataset",
    "val_dataset",
    "train_dataset",
    "train_loader",
    "val_loader",
    "forward_batch",
    "forward_step",
    "step",
    "shared_step",
    "text_step",
    "last_step",
    "tracing_step",
    "validator_step",
    "generator_step",
    "training_step_generator",
    "optimizer_groups",
    "train_stats",
    "epoch_stats",
    "predict",
    "predict_batch",
    "exception",
    "train_metrics",
    "transfer_batch",
    "before_forward",
    "start",
    "end",
    "training_data",
    "get_train_dataloader",
    "lr_schedule",
    "scheduler_step",
    "clip_gradients",
    "split_batch",
    "validation_epoch_metrics",
    "train_from_start",
    "set_up",
]


@pytest.mark.parametrize("name", OWN_NAMES)
@pytest.mark.parametrize(
    "parameters", ["", ", batch", ", batch, batch_idx", ", *args", ", trainer, pl_module", ", a, b, c"]
)
def test_everyday_names_of_research_code_are_no_faults(name: str, parameters: str) -> None:
    if name == "set_up" and "*" in parameters:
        return
    assert faults_of(module_with(**{name: method(name, parameters)})) == []
    callback = type("Watch", (Callback,), {name: method(name, parameters)})()
    assert faults_of(callback, Receiver.CALLBACK) == []


def test_a_close_name_with_a_signature_of_its_own_is_no_fault() -> None:
    assert faults_of(module_with(validation_start=method("validation_start", ", index, size"))) == []


@pytest.mark.parametrize(
    "body",
    [
        "self.train_batch_end(batch)",
        "[self.train_batch_end(one) for one in batch]",
        "getattr(self, f'{stage}_batch_end')(batch)",
        "getattr(self, 'train_batch_end')(batch)",
        "list(map(self.train_batch_end, batch))",
    ],
)
def test_a_close_name_that_the_class_calls_itself_is_no_fault(body: str) -> None:
    own = method("train_batch_end", ", batch")
    assert faults_of(module_with(train_batch_end=own, shared=method("shared", ", batch, stage", body))) == []
    assert (
        faults_of(module_with(on_train_batch_ending=own, shared=method("shared", "", "self.on_train_batch_ending(1)")))
        == []
    )


def test_a_call_of_its_own_super_is_no_call() -> None:
    ending = method("train_batch_end", ", batch", "super().train_batch_end(batch)")
    assert len(faults_of(module_with(train_batch_end=ending))) == 1


def test_a_close_name_beside_the_hook_itself_is_no_fault() -> None:
    methods = {"train_epoch_end": lambda self: None, "on_train_epoch_end": lambda self: None}
    assert faults_of(module_with(**methods)) == []


def test_a_close_name_that_is_marked_or_inherited_from_a_public_base_is_no_fault() -> None:
    assert faults_of(module_with(train_epoch_end=not_a_hook(lambda self: None))) == []
    base = type(
        "Base", (), {"train_epoch_end": lambda self: None, "on_device": lambda self: None, "__module__": "torch.nn"}
    )
    inheriting = type(
        "Model", (ModelHooks, base), {"train_epoch_end": lambda self: None, "on_device": lambda self: None}
    )
    assert faults_of(inheriting()) == []


def test_a_close_name_of_a_hook_that_the_run_does_not_need_is_no_fault() -> None:
    module = module_with(training_dataloader=lambda self: None)
    resolve(module=module, uncalled=["train_dataloader"])
    with pytest.raises(HookFaultError, match="Rename it to `train_dataloader`"):
        resolve(module=module)


def test_a_missing_step_is_one_fault_that_names_the_close_method() -> None:
    module = module_with(trainning_step=lambda self, batch: None)
    with pytest.raises(HookFaultError) as caught:
        resolve(module=module, required=["training_step"])
    assert [fault.method for fault in caught.value.faults] == ["training_step"]
    assert str(caught.value).endswith("is missing. Rename `trainning_step`.")


@pytest.mark.parametrize("base", ["torch.nn.modules", "camshaft.trainer", "lightning.pytorch"])
def test_a_missing_step_is_never_a_method_of_a_public_base_by_another_name(base: str) -> None:
    public = type("Base", (), {"optimizers": lambda self: None, "__module__": base})
    overriding = type("Model", (ModelHooks, public), {"optimizers": lambda self: None})
    for klass in (type("Model", (ModelHooks, public), {}), overriding):
        with pytest.raises(HookFaultError, match=r"is missing. Define `configure_optimizers\(\)`"):
            resolve(module=klass(), required=["configure_optimizers"])


def test_a_missing_step_is_no_method_that_the_class_calls_by_itself() -> None:
    groups = {"optimizer_groups": lambda self: [], "shared": lambda self: self.optimizer_groups()}
    with pytest.raises(HookFaultError, match=r"Define `configure_optimizers\(\)`"):
        resolve(module=module_with(**groups), required=["configure_optimizers"])


def test_an_old_hooks_name_with_a_signature_of_no_era_is_the_users_own_and_a_warning() -> None:
    module = module_with(on_epoch_end=lambda self, outputs: None, training_step=lambda self, batch: None)
    with pytest.warns(HookFaultWarning, match=r"Model.on_epoch_end: it is taken for a method of your own: .*`outputs`"):
        hooks = resolve(module=module)
    hooks.on_train_epoch_end()


def test_an_old_hooks_name_that_the_class_calls_itself_is_no_fault() -> None:
    def on_train_epoch_end(self: Any) -> None:
        self.on_epoch_end([])

    module = module_with(on_epoch_end=lambda self, outputs: None, on_train_epoch_end=on_train_epoch_end)
    assert faults_of(module) == []


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
    lines = str(caught.value).splitlines()
    assert [line.partition(":")[0] for line in lines if not line.startswith(" ")] == [
        "Watch.on_fit_begin",
        "Model.on_epoch_end",
        "Model.training_step",
    ]
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


class Stock(Callback):
    _uncalled_methods: ClassVar[dict[str, str]] = {"_swap": "Override `_save`."}

    def _swap(self) -> None:
        """Not called, under a name that another framework calls."""

    def _save(self) -> None: ...


def test_an_override_that_nobody_calls_warns_once_in_use_and_says_what_to_use() -> None:
    class Between(Stock):
        def _swap(self) -> None: ...

    class Mine(Between): ...

    with pytest.warns(HookFaultWarning, match=r"Mine\._swap: this method of Lightning's Stock .*Override `_save`\."):
        resolve(callbacks=[Mine()], module=module_with(), required=())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resolve(callbacks=[Mine()], module=module_with(), required=())


def test_overrides_that_are_called_and_methods_of_ones_own_are_no_faults() -> None:
    class Mine(Stock):
        def _save(self) -> None: ...

        def _other(self) -> None: ...

        @not_a_hook
        def _swap(self) -> None: ...

    class Calling(Stock):
        def on_train_start(self, trainer: Any, module: Any) -> None:
            self._swap()

        def _swap(self) -> None: ...

    class CallsAgain(Stock):
        _uncalled_methods: ClassVar[dict[str, str]] = {"_swap": ""}

    class Swapping(CallsAgain):
        def _swap(self) -> None: ...

    for callback in (Mine(), Calling(), Stock(), Callback(), CallsAgain(), Swapping()):
        assert faults_of(callback, Receiver.CALLBACK) == []


TRAINER = "\n    from camshaft.compat import Trainer"
OLD_STEP = "epoch, batch_idx, optimizer, optimizer_idx, second_order_closure=None"


def with_signatures(base: type = ModelHooks, **signatures: str) -> Any:
    namespace = {name: method(name, f", {taken}" if taken else "") for name, taken in signatures.items()}
    return type("Old", (base,), namespace)()


@pytest.mark.parametrize(
    ("era", "signatures"),
    [
        ("1.x", {"on_epoch_end": ""}),
        ("1.x", {"training_epoch_end": "outputs"}),
        ("1.x", {"on_train_epoch_end": "outputs"}),
        ("1.x", {"training_step": "batch, batch_nb, optimizer_i"}),
        ("1.x", {"on_train_batch_end": "outputs, batch, batch_idx, dataloader_idx"}),
        ("1.x", {"lr_scheduler_step": "scheduler, optimizer_idx, metric"}),
        ("0.8", {"optimizer_step": OLD_STEP, "on_batch_start": "batch"}),
        ("1.x", {"optimizer_step": "epoch, batch_idx, optimizer, optimizer_idx, optimizer_closure, **kwargs"}),
        ("0.8", {"backward": "trainer, loss, optimizer, optimizer_idx"}),
        ("0.8", {"on_epoch_end": "", "on_pre_performance_check": ""}),
        ("1.x", {"on_epoch_end": "", "training_step": "batch, batch_idx, optimizer_idx", "on_fit_start": ""}),
    ],
)
def test_a_module_of_an_earlier_era_is_a_fault_that_names_the_newest_that_fits(
    era: str, signatures: dict[str, str]
) -> None:
    *_, fault = faults_of(with_signatures(**signatures))
    told = f"Old is a module of era {era}. To run it as it is, change its imports to"
    assert fault.endswith(f" {told}{TRAINER}\n    from camshaft.compat import TrainingModule")


def test_an_era_is_named_once_for_all_that_belongs_to_it() -> None:
    module = with_signatures(on_epoch_end="", training_epoch_end="outputs", on_fit_begin="", on_zzz="")
    faults = find_faults(module, Receiver.MODULE, CATALOGUE)
    assert [fault.method for fault in faults] == ["on_epoch_end", "on_fit_begin", "on_zzz", "training_epoch_end"]
    assert ["camshaft.compat" in fault.message for fault in faults] == [False, False, False, True]


def test_a_wrong_signature_of_a_hook_of_today_says_of_which_eras_it_is() -> None:
    (fault,) = faults_of(with_signatures(on_train_epoch_end="outputs"))
    assert fault.startswith(
        "Old.on_train_epoch_end: its signature (outputs) requires `outputs`, but the hook has only (). Take these "
        "arguments, or fewer of them. Its arguments are those of the eras 1.x. Old is a module of era 1.x. To run it"
    )


def test_an_update_that_gets_its_closure_in_an_earlier_era_alone_is_none_of_today() -> None:
    (fault,) = faults_of(with_signatures(optimizer_step="epoch, batch_idx, optimizer, *, second_order_closure=None"))
    assert fault.startswith("Old.optimizer_step: it does not take the closure, which runs training_step and backward.")
    assert "Old is a module of era 0.8." in fault
    assert faults_of(with_signatures(optimizer_step="epoch, batch_idx, optimizer")) == []


def test_a_callback_and_a_data_module_of_an_earlier_era_are_told_their_own_base() -> None:
    callback = with_signatures(Callback, on_epoch_end="trainer, pl_module")
    (fault,) = faults_of(callback, Receiver.CALLBACK)
    assert fault.endswith(
        f"Old is a callback of era 1.x. To run it as it is, change its imports to{TRAINER}\n"
        "    from camshaft.compat import Callback"
    )
    declared = type("Old", (), {"hook_era": "1.5"})()
    (fault,) = faults_of(declared, Receiver.DATA)
    assert fault.endswith(
        f"a data module of era 1.5. To run it as it is, change its imports to{TRAINER}\n"
        "    from camshaft.compat import DataModule"
    )


def test_a_declared_release_is_believed() -> None:
    (fault,) = find_faults(type("Old", (), {"hook_era": "1.1.8"}), Receiver.MODULE, CATALOGUE)
    assert fault.method == "hook_era"
    assert fault.message.startswith(
        "this run calls today's hooks alone. Old is a module of era 1.1.8. To run it as it is"
    )
    (fault,) = faults_of(type("Old", (), {"hook_era": "0.9", "on_epoch_end": lambda self: None}))
    assert fault.startswith("Old.on_epoch_end: ") and "Old is a module of era 0.9." in fault


@pytest.mark.parametrize("release", ["2.0", "2.1", "2.x"])
def test_a_declared_release_of_today_is_no_fault(release: str) -> None:
    module = type("New", (ModelHooks,), {"hook_era": release})()
    assert faults_of(module) == []
    assert resolve(module=module).readings == ()


def test_a_declared_release_that_never_was_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"`hook_era` must be a release from \"0\.4\" to \"2\.x\""):
        resolve(module=type("Never", (), {"hook_era": "7.0"})())


def test_a_hook_that_the_run_does_not_call_tells_no_era() -> None:
    module = with_signatures(on_train_epoch_end="outputs")
    resolve(module=module, uncalled=["on_train_epoch_end"])
    with pytest.raises(HookFaultError, match="is a module of era 1"):
        resolve(module=module)


def test_without_strictness_what_belongs_to_an_era_is_left_out() -> None:
    module = with_signatures(on_train_epoch_end="outputs", on_epoch_end="")
    with pytest.warns(HookFaultWarning) as caught:
        hooks = resolve(module=module, strict=False)
    assert [str(one.message).partition(":")[0] for one in caught] == ["Old.on_epoch_end", "Old.on_train_epoch_end"]
    hooks.on_train_epoch_end()
