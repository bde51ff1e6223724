from __future__ import annotations

import ast

import pytest

from camshaft.compat.eras import read_era
from camshaft.compat.eras.advice import Advice, advise
from camshaft.hooks_core import CATALOGUE, Callback, ModelHooks, Receiver
from camshaft.hooks_core.dispatch.binding import arguments_of
from camshaft.hooks_core.eras.hooks import EARLIER_ERAS, EraSpec, hooks_of_eras


def advice_of(klass: type, kind: Receiver = Receiver.MODULE) -> list[Advice]:
    return advise(klass, read_era(klass, kind, CATALOGUE))


def one(klass: type, method: str, kind: Receiver = Receiver.MODULE) -> Advice:
    (found,) = [advice for advice in advice_of(klass, kind) if advice.method == method]
    return found


class Gan:
    def training_step(self, batch, batch_nb, optimizer_i): ...

    def validation_step(self, batch, batch_nb): ...

    def optimizer_step(self, current_epoch, batch_nb, opt, optimizer_i, second_order_closure=None):
        if optimizer_i == 0:
            opt.step()
            opt.zero_grad()

    def on_batch_start(self, batch): ...

    def on_before_zero_grad(self, optimizer): ...

    def validation_end(self, outs): ...

    def on_post_performance_check(self): ...


class Watching(Callback):
    def on_train_batch_end(self, trainer, model, outputs, batch, batch_idx, dataloader_idx): ...

    def on_epoch_end(self, trainer, model): ...

    def on_keyboard_interrupt(self, trainer, pl_module): ...


def test_a_hook_by_another_name_is_renamed_and_takes_todays_arguments() -> None:
    assert one(Gan, "on_batch_start") == Advice(
        "on_batch_start",
        "Rename it to `on_train_batch_start`.",
        "def on_train_batch_start(self, batch, batch_idx):",
    )
    assert one(Gan, "on_post_performance_check") == Advice(
        "on_post_performance_check",
        "Rename it to `on_validation_end`. It was called with `on_test_end` as well: do it there too if it matters "
        "there.",
        "def on_validation_end(self):",
    )


def test_names_that_the_owner_chose_stay() -> None:
    assert one(Watching, "on_train_batch_end", Receiver.CALLBACK).sketch == (
        "def on_train_batch_end(self, trainer, model, outputs, batch, batch_idx):"
    )
    assert one(Watching, "on_epoch_end", Receiver.CALLBACK).sketch == "def on_train_epoch_end(self, trainer, model):"


def test_a_condition_is_to_be_asked_for() -> None:
    advice = one(Watching, "on_keyboard_interrupt", Receiver.CALLBACK)
    assert advice.text == "Rename it to `on_exception`. Act only where `isinstance(exception, KeyboardInterrupt)`."


def test_outputs_are_collected() -> None:
    advice = one(Gan, "validation_end")
    assert advice.text == "Rename it to `on_validation_epoch_end`, and collect what the steps return yourself."
    assert advice.sketch.splitlines() == [
        "def __init__(self, ...):",
        "    ...",
        "    self.validation_outputs = []",
        "",
        "def validation_step(self, batch, batch_nb):",
        "    ...",
        "    self.validation_outputs.append(output)  # detached, and only what the end of the epoch needs",
        "    return output",
        "",
        "def on_validation_epoch_end(self):",
        "    outs = self.validation_outputs",
        "    ...",
        "    self.validation_outputs.clear()",
    ]


def test_several_optimizers_are_stepped_by_hand() -> None:
    advice = one(Gan, "training_step")
    assert (
        advice.text == "Take no `optimizer_i`: set `automatic_optimization = False`, and step the optimizers by hand."
    )
    assert (
        "def training_step(self, batch, batch_nb):\n    for optimizer_i, optimizer in enumerate(self" in advice.sketch
    )


def test_a_step_of_today_that_names_the_optimizer_is_advised_too() -> None:
    class Alternating(ModelHooks):
        def training_step(self, batch, batch_idx, optimizer_idx, hiddens): ...

    (advice,) = advice_of(Alternating)
    assert "def training_step(self, batch, batch_idx, hiddens):\n" in advice.sketch


def test_an_update_takes_todays_arguments_and_hands_the_closure_on() -> None:
    advice = one(Gan, "optimizer_step")
    assert advice.sketch == (
        "def optimizer_step(self, current_epoch, batch_nb, opt, optimizer_closure):\n"
        "    ...\n"
        "    opt.step(closure=optimizer_closure)"
    )
    assert advice.text.endswith(
        "What looks at gradients belongs in `on_before_optimizer_step`. Leave `zero_grad()` out. There is no "
        "`optimizer_i`: with several optimizers, do this in `training_step`, by hand."
    )


def test_zeroing_elsewhere_moves_what_needs_the_new_weights() -> None:
    assert "came after the update" in one(Gan, "on_before_zero_grad").text


def test_returned_logs_are_logged() -> None:
    class Classifier:
        hook_era = "0.8"

        def training_step(self, batch, batch_idx):
            return {"loss": batch, "log": {}}

    step, era = advice_of(Classifier)
    assert step.sketch == "self.log_dict(log)\nself.log_dict(progress_bar, prog_bar=True)\nreturn loss"
    assert era == Advice("hook_era", "Remove it when all of this is done.")


def test_the_edits_come_in_the_order_of_the_methods() -> None:
    names = [advice.method for advice in advice_of(Gan)]
    assert names == sorted(names)
    assert {"on_before_zero_grad", "training_step", "validation_end"} <= set(names)


def test_a_class_of_today_is_left_alone() -> None:
    class Model(ModelHooks):
        def training_step(self, batch, batch_idx): ...

        def on_before_zero_grad(self, optimizer): ...

    assert advice_of(Model) == []


@pytest.mark.parametrize("spec", hooks_of_eras().values(), ids=lambda spec: spec.name)
def test_every_hook_of_every_era_that_is_read_as_old_is_advised_on(spec: EraSpec) -> None:
    for kind in spec.receivers:
        for era in EARLIER_ERAS:
            if era not in spec.eras or kind not in spec.receivers_in(era):
                continue
            namespace: dict[str, type] = {}
            names = ", ".join(["self", *arguments_of(spec.as_in(era), kind)])
            source = f"class Old:\n    hook_era = {era!r}\n    def {spec.name}({names}): ..."
            exec(source, namespace)
            reading = read_era(namespace["Old"], kind, CATALOGUE)
            if spec.name not in reading.methods or spec.name == "tbptt_split_batch":
                continue
            advice, *_ = advise(namespace["Old"], reading)
            assert advice.method == spec.name
            assert advice.text.endswith(".")
            ast.parse(advice.sketch.replace("(self, ...)", "(self)") + " ..." * advice.sketch.endswith(":"))
            if spec.kind == "event" and advice.text.startswith("Rename it to"):
                assert advice.text.split("`")[1] in CATALOGUE
