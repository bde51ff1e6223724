from __future__ import annotations

from typing import Any

import pytest
from old_classes import (
    Classifier07,
    Classifier08,
    Docs12,
    Ema13,
    Gan05,
    Gan13,
    Ignores09,
    Last19,
    Net05,
    Outputs12,
    Passes15,
    Printing09,
    Recent15,
    Vae10,
    Warm09,
    WarmUp08,
)

from camshaft.compat.eras import EraReading, read_era, read_receivers
from camshaft.hooks_core import (
    CATALOGUE,
    Callback,
    DataHooks,
    HookFaultError,
    HookFaultWarning,
    ModelHooks,
    Receiver,
    resolve,
)

WHOLE = "epoch, batch_idx, optimizer, optimizer_idx, optimizer_closure, on_tpu, using_native_amp, using_lbfgs"
"""The arguments of `optimizer_step` from 0.8 on."""


def read(klass: type, kind: Receiver | None = None) -> EraReading:
    if kind is None:
        bases = {Callback: Receiver.CALLBACK, DataHooks: Receiver.DATA}
        kind = next((kind for base, kind in bases.items() if issubclass(klass, base)), Receiver.MODULE)
    return read_era(klass, kind, CATALOGUE)


def call(reading: EraReading, method: str) -> str:
    return ", ".join(str(argument) for argument in reading.methods[method].arguments)


@pytest.mark.parametrize(
    ("klass", "version", "method", "arguments"),
    [
        (Gan05, "0.5", "optimizer_step", "epoch, batch_idx, optimizer, optimizer_idx, optimizer_closure"),
        (Gan05, "0.5", "training_step", "batch, batch_idx, optimizer_idx"),
        (Gan05, "0.5", "on_batch_start", ""),
        (Net05, "0.5", "optimizer_step", "epoch, batch_idx, optimizer, optimizer_idx, optimizer_closure"),
        (Net05, "0.5", "validation_end", "outputs"),
        (Classifier07, "0.7", "backward", "use_amp, loss, optimizer, optimizer_idx"),
        (Classifier07, "0.7", "init_ddp_connection", "global_rank, world_size"),
        (Classifier08, "0.8", "on_batch_start", "batch"),
        (Classifier08, "0.8", "backward", "trainer, loss, optimizer, optimizer_idx"),
        (WarmUp08, "0.8", "optimizer_step", WHOLE),
        (Warm09, "0.9", "on_train_batch_end", "batch, batch_idx, dataloader_idx"),
        (Warm09, "0.9", "training_epoch_end", "outputs"),
        (Vae10, "1.3", "on_train_epoch_end", "outputs"),
        (Gan13, "1.x", "optimizer_step", WHOLE),
        (Docs12, "1.x", "optimizer_step", WHOLE),
        (
            Ignores09,
            "0.8",
            "optimizer_step",
            "epoch, batch_idx, optimizer, optimizer_idx, optimizer_closure, using_native_amp",
        ),
        (Recent15, "1.x", "on_before_optimizer_step", "optimizer, optimizer_idx"),
        (Recent15, "1.x", "optimizer_zero_grad", "epoch, batch_idx, optimizer, optimizer_idx"),
        (Last19, "1.x", "lr_scheduler_step", "scheduler, optimizer_idx, metric"),
        (Passes15, "1.x", "optimizer_step", WHOLE),
        (Ema13, "1.x", "on_train_batch_end", "trainer, module, outputs, batch, batch_idx, dataloader_idx"),
        (Ema13, "1.x", "on_epoch_end", "trainer, module"),
        (Printing09, "1.x", "on_train_batch_end", "trainer, module, batch, batch_idx, dataloader_idx"),
        (Printing09, "1.x", "on_init_end", "trainer"),
        (Outputs12, "1.3", "on_train_epoch_end", "trainer, module, outputs"),
    ],
)
def test_an_old_class_is_of_its_era_and_gets_its_arguments(
    klass: type, version: str, method: str, arguments: str
) -> None:
    reading = read(klass)
    assert (reading.version, call(reading, method)) == (version, arguments)


def test_what_is_called_as_today_is_no_part_of_a_reading() -> None:
    assert set(read(Last19).methods) == {"configure_gradient_clipping", "lr_scheduler_step"}
    assert set(read(Vae10).methods) == {"on_train_epoch_end", "training_epoch_end"}


def test_a_method_with_names_of_another_era_is_of_the_classs_where_its_arguments_are_the_same() -> None:
    class Mostly08(Classifier08):
        def training_step(self, batch, batch_nb, optimizer_i): ...

    reading = read(Mostly08)
    assert (reading.version, reading.methods["training_step"].era) == ("0.8", "0.8")


def test_moments_are_those_of_the_release() -> None:
    class Declared:
        hook_era = "1.1.8"

        def on_epoch_end(self): ...

    assert read(Declared).methods["on_epoch_end"].moments == ("on_train_epoch_end",)
    declared = type("Later", (Declared,), {"hook_era": "1.5"})
    every = ("on_train_epoch_end", "on_validation_epoch_end", "on_test_epoch_end")
    assert read(declared).methods["on_epoch_end"].moments == every
    assert read(Recent15).methods["validation_epoch_end"].moments == ()


class Model(ModelHooks):
    """A class of today with every way of taking arguments that today's users have."""

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        self.log("log", args)
        return {"loss": args, "progress": kwargs}

    def validation_step(self, batch: Any, batch_nb: int, dataloader_idx: int = 0) -> Any:
        names = ["log", "progress_bar"]
        return {"loss": batch, "names": names, "table": {"log": 1}["log"]}

    def on_train_epoch_end(self, outputs: Any = None) -> None: ...

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None: ...

    def on_train_batch_start(self, batch: Any, _: int) -> None: ...

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None: ...

    def on_before_zero_grad(self, optimizer: Any) -> None: ...

    def transfer_batch_to_device(self, batch: Any, device: Any) -> Any: ...

    def setup(self, stage: str | None = None) -> None: ...

    def summarize(self, mode: str) -> str:
        return mode


class Adversarial(ModelHooks):
    def training_step(self, batch: Any, batch_idx: int, optimizer_idx: int = 0) -> Any: ...

    def tbptt_split_batch(self, batch: Any, split_size: int) -> Any: ...

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None: ...


class Watching(Callback):
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *_: Any) -> None: ...

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None: ...

    def on_train_epoch_end(self, *args: Any) -> None: ...

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None: ...


class Digits(DataHooks):
    def prepare_data(self, *args: Any, **kwargs: Any) -> None: ...

    def train_dataloader(self, *args: Any) -> Any: ...

    def transfer_batch_to_device(self, batch: Any, device: Any) -> Any: ...


class Namesakes(ModelHooks):
    """Methods that happen to be called as hooks of 0.5 were."""

    def validation_end(self) -> bool: ...

    def training_end(self) -> bool: ...


@pytest.mark.parametrize("klass", [Model, Adversarial, Namesakes, Watching, Digits, ModelHooks, Callback, DataHooks])
def test_a_class_of_today_is_of_today(klass: type) -> None:
    reading = read(klass)
    assert reading.is_of_today
    assert (reading.methods, reading.returns_logs) == ({}, False)


@pytest.mark.parametrize("version", ["0.4.9", "0.5", "0.10.0", "1.x", "1.1.8", "1.9", "2.x", "2.0", "2.11"])
def test_a_release_can_be_declared(version: str) -> None:
    reading = read(type("Declared", (), {"hook_era": version, "training_step": Model.training_step}))
    assert reading.is_declared
    assert reading.version == (None if version.startswith("2") else version)


@pytest.mark.parametrize("version", ["0.3", "0.11", "3.0", "1.10", "1", "new", "", "1.5rc1", 0.8, 1, ("0", "8")])
def test_a_release_that_never_was_cannot_be_declared(version: object) -> None:
    with pytest.raises(ValueError, match=r'`hook_era` must be a release from "0.4" to "2.x".* in Declared\. Name the'):
        read(type("Declared", (), {"hook_era": version}))


def test_a_declared_era_decides_where_signatures_do_not() -> None:
    class Ambiguous:
        def on_batch_start(self): ...

        def validation_epoch_end(self, outputs): ...

    assert read(Ambiguous).version == "1.x"
    assert read(type("Old", (Ambiguous,), {"hook_era": "0.5"})).behaviour.step_zeroes


def test_an_instance_can_declare_its_era() -> None:
    model = Model()
    model.hook_era = "1.4"  # type: ignore[attr-defined]
    assert read_era(model, Receiver.MODULE, CATALOGUE).version == "1.4"


def test_hooks_of_two_eras_are_each_called_as_in_theirs() -> None:
    class Both(ModelHooks):
        def on_epoch_start(self): ...

        def on_train_epoch_start(self): ...

        def validation_epoch_end(self, outputs): ...

        def on_validation_epoch_end(self): ...

    assert set(read(Both).methods) == {"on_epoch_start", "validation_epoch_end"}


def test_a_returned_log_beside_self_log_is_an_output_like_any_other() -> None:
    class Module(ModelHooks):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("loss", batch)  # type: ignore[attr-defined]
            return {"loss": batch, "log": {"part": batch}}

    assert read_era(Module(), Receiver.MODULE, CATALOGUE).is_of_today


def test_a_step_that_logs_by_itself_is_not_of_0_x() -> None:
    class Logging:
        def training_step(self, batch, batch_idx):
            self.log("loss", batch)

        def backward(self, trainer, loss, optimizer, optimizer_idx): ...

        def on_pre_performance_check(self): ...

    class Epochs:
        def on_epoch_end(self): ...

        def training_step(self, batch, batch_nb):
            self.log("loss", batch)

    assert read(Logging).version == "0.8"
    assert read(Epochs).version == "1.x"


def test_an_everyday_name_is_called_as_a_hook_only_in_an_old_class() -> None:
    class Old:
        def summarize(self, mode): ...

        def test_epoch_end(self, outputs): ...

    assert set(read(Old).methods) == {"summarize", "test_epoch_end"}


def test_an_update_whose_closure_only_an_era_would_fill_is_of_that_era() -> None:
    class Optional:
        def optimizer_step(
            self, epoch: int, batch_idx: int, optimizer: Any, opt_idx: int = 0, closure: Any = None
        ) -> None:
            optimizer.step(closure=closure)

    reading = read(Optional, Receiver.MODULE)
    sources = [argument.source for argument in reading.methods["optimizer_step"].arguments]
    assert reading.version == "1.x"
    assert sources == ["epoch", "batch_idx", "optimizer", "optimizer_idx", "optimizer_closure"]


def test_an_update_that_takes_no_closure_at_all_stays_one_of_today() -> None:
    class Without:
        def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any) -> None: ...

    assert read(Without, Receiver.MODULE).is_of_today


def test_a_batch_hook_without_outputs_is_of_0_8_and_0_9() -> None:
    class Nine:
        def on_train_batch_end(self, batch: Any, batch_idx: int, dataloader_idx: int) -> None: ...

    class One:
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int) -> None: ...

    def read(klass: type) -> tuple[str | None, str]:
        reading = read_era(klass, Receiver.MODULE, CATALOGUE)
        return reading.version, reading.methods["on_train_batch_end"].era

    assert read(Nine) == ("0.9", "0.8")
    assert read(One) == ("1.x", "1.x")


@pytest.mark.parametrize("parameters", ["foo, bar", "foo", "state", "options=None, *, foo"])
def test_a_step_with_further_arguments_of_its_own_names_is_of_no_era(parameters: str) -> None:
    klass = stepping(f"batch, batch_idx, {parameters}")
    assert read_era(klass, Receiver.MODULE, CATALOGUE).is_of_today
    with pytest.raises(HookFaultError, match="training_step: its signature"):
        resolve(module=klass(), read=read_receivers)


@pytest.mark.parametrize(
    ("parameters", "arguments"),
    [
        ("batch_nb, optimizer_i", ["batch", "batch_idx", "optimizer_idx"]),
        ("batch_idx, opt_idx", ["batch", "batch_idx", "optimizer_idx"]),
        ("batch_idx, opt_idx, hidden_state", ["batch", "batch_idx", "optimizer_idx", "hiddens"]),
        ("batch_idx, hidden", ["batch", "batch_idx", "hiddens"]),
        ("_, opt_i", ["batch", "batch_idx", "optimizer_idx"]),
        ("batch_idx, _", ["batch", "batch_idx", "optimizer_idx"]),
        ("batch_idx, opt_idx, foo=1", ["batch", "batch_idx", "optimizer_idx"]),
    ],
)
def test_a_step_with_an_earlier_name_of_a_further_argument_is_of_an_era(parameters: str, arguments: list[str]) -> None:
    reading = read_era(stepping(f"batch, {parameters}"), Receiver.MODULE, CATALOGUE)
    assert not reading.is_of_today
    assert [one.source for one in reading.methods["training_step"].arguments] == arguments


@pytest.mark.parametrize("parameters", ["optimizer_idx=0", "optimizer_idx=None, hiddens=None", "foo=1"])
def test_a_step_whose_further_arguments_have_defaults_is_of_today(parameters: str) -> None:
    assert read_era(stepping(f"batch, batch_idx, {parameters}"), Receiver.MODULE, CATALOGUE).is_of_today


def test_an_era_fills_no_argument_of_another_name() -> None:
    klass = stepping("batch, batch_nb, scale=2.0")
    klass.hook_era = "0.5"  # type: ignore[attr-defined]
    reading = read_era(klass, Receiver.MODULE, CATALOGUE)
    arguments = reading.methods["training_step"].arguments if reading.methods else reading.of_today["training_step"]
    assert [one.source for one in arguments] == ["batch", "batch_idx"]


def stepping(parameters: str) -> type:
    namespace: dict[str, Any] = {}
    exec(f"def training_step(self, {parameters}): ...", namespace)
    return type("Stepping", (), {"training_step": namespace["training_step"]})


def written(**parameters: str) -> type:
    """A class with methods of these parameters."""
    namespace: dict[str, Any] = {}
    exec(
        "class Written:\n" + "\n".join(f"    def {name}(self, {taken}): ..." for name, taken in parameters.items()),
        namespace,
    )
    klass: type = namespace["Written"]
    return klass


STEP = {"training_step": "batch, batch_idx"}
OF_2 = {"lr_scheduler_step": "scheduler, metric"}


@pytest.mark.parametrize(
    ("parameters", "version"),
    [
        ({"on_epoch_start": "", **STEP}, None),
        ({"on_batch_end": "", "on_pretrain_routine_end": "", "on_train_dataloader": "", **STEP}, None),
        ({"get_progress_bar_dict": "", **STEP}, None),
        ({"tng_dataloader": "", **STEP}, "0.5"),
        ({"on_epoch_start": "", "training_step": "batch, batch_idx, optimizer_idx"}, "1.x"),
        ({"on_epoch_start": "", "training_step": "batch, batch_nb"}, "0.5"),
        ({"on_epoch_start": "", "validation_epoch_end": "outputs", **STEP}, "1.x"),
        ({"on_epoch_start": "", "on_train_epoch_end": "outputs", **STEP}, "1.3"),
        ({"training_step_end": "outputs", **STEP}, "1.x"),
        ({"training_step_end": "outputs", "lr_scheduler_step": "*args", **STEP}, "1.x"),
        ({"training_step_end": "outputs", "on_epoch_end": "", **OF_2, **STEP}, None),
        ({"training_step_end": "outputs", "configure_model": "", **STEP}, None),
        ({"training_step_end": "outputs", "test_epoch_end": "outputs", **OF_2, **STEP}, "1.x"),
        ({"on_before_optimizer_step": "optimizer", "validation_end": "outputs", **STEP}, None),
        ({"on_before_optimizer_step": "optimizer, optimizer_idx", "on_epoch_end": "", **STEP}, "1.x"),
    ],
)
def test_a_left_over_hook_does_not_change_the_era(parameters: dict[str, str], version: str | None) -> None:
    reading = read(written(**parameters))
    assert reading.version == version
    assert version is not None or reading.methods == {}


def test_a_program_of_an_earlier_release_decides_where_its_classes_do_not() -> None:
    found = [(Receiver.MODULE, written(on_epoch_start="", **STEP)), (Receiver.CALLBACK, written(on_epoch_end="a, b"))]
    assert [one.version for one in read_receivers(found, CATALOGUE)] == [None, None]
    assert [one.version for one in read_receivers(found, CATALOGUE, is_earlier=True)] == ["1.x", "1.x"]
    found[0] = (Receiver.MODULE, written(training_epoch_end="outputs", **STEP))
    assert [one.version for one in read_receivers(found, CATALOGUE)] == ["1.x", "1.x"]


def test_a_left_over_hook_is_told_of_and_not_called() -> None:
    class Left(ModelHooks):
        def on_epoch_start(self) -> None:
            raise AssertionError

        def on_epoch_end(self) -> None: ...

        def on_train_epoch_end(self) -> None:
            self.on_epoch_end()

    match = r"Left\.on_epoch_start: .*it is dead, and never called\. Rename it to `on_train_epoch_start`, declare"
    with pytest.warns(HookFaultWarning, match=match) as caught:
        hooks: Any = resolve(module=Left(), read=read_receivers)
        resolve(module=Left(), read=read_receivers)
    hooks.on_train_epoch_start()
    assert hooks.readings == ()
    assert len(caught) == 1  # once for the class; the other one is called by the class itself


class Base13(Callback):
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx, dataloader_idx):
        self.got = (batch, batch_idx, dataloader_idx)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx): ...


class Passing(Base13):
    def on_train_batch_start(self, *args):
        super().on_train_batch_start(*args)

    def on_train_batch_end(self, *args, **kwargs):
        return Base13.on_train_batch_end(self, *args, **kwargs)


def test_a_hook_that_passes_its_arguments_on_takes_those_of_the_base_class() -> None:
    class Twice(Passing):
        def on_train_batch_start(self, trainer: Any, *args: Any) -> None:
            super().on_train_batch_start(trainer, *args)

    for klass in (Passing, Twice):
        reading = read(klass)
        assert (reading.version, set(reading.methods)) == ("1.x", {"on_train_batch_start"})
        callback: Any = klass()
        hooks: Any = resolve(callbacks=[callback], read=read_receivers)
        hooks.on_train_batch_start("batch", 3)
        hooks.on_train_batch_end("outputs", "batch", 3)
        assert callback.got == ("batch", 3, 0)


def test_a_hook_that_passes_nothing_on_or_to_a_declaration_takes_those_of_today() -> None:
    class Own(Base13):
        def on_train_batch_start(self, *args: Any) -> None: ...

    class Declared(Callback):
        def on_train_batch_start(self, *args: Any) -> None:
            super().on_train_batch_start(*args)

    assert read(Own).is_of_today and read(Declared).is_of_today


def test_a_step_that_passes_its_arguments_on_gets_the_index_that_its_base_class_takes() -> None:
    class Stepping:
        def training_step(self, batch: Any, batch_idx: int, optimizer_idx: int) -> Any:
            return batch, batch_idx, optimizer_idx

    class Timing(Stepping):
        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            return super().training_step(*args, **kwargs)

    hooks: Any = resolve(module=Timing(), read=read_receivers)
    assert hooks.takes("training_step", "optimizer_idx")
    assert hooks.training_step("batch", 2, 1) == ("batch", 2, 1)


@pytest.mark.parametrize("by_hand", [True, False])
def test_a_step_by_hand_with_an_index_is_of_the_last_release_that_took_it(by_hand: bool) -> None:
    klass = stepping("batch, batch_idx, optimizer_idx")
    klass.automatic_optimization = not by_hand  # type: ignore[attr-defined]
    assert read(klass).version == ("1.4" if by_hand else None)
