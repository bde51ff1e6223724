"""A run of an old module calls what the document of its era lists, hook by hook, and fits that era's grammar."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from compat_parts import quiet_trainer
from torch import Tensor, nn

from camshaft.compat import Trainer, TrainingModule
from camshaft.hooks_core import Callback, Receiver
from camshaft.hooks_core.check import check
from camshaft.hooks_core.eras.hooks import catalogue_of
from camshaft.hooks_core.trace import Trace

_VALIDATION_0_7 = ["validation_step", "validation_step_end", "validation_epoch_end", "on_post_performance_check"]

_TRANSFER_1_5 = ["on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer"]

_VALIDATION_1_5 = [
    *["on_validation_model_eval", "on_validation_start", "on_epoch_start", "on_validation_epoch_start"],
    *_TRANSFER_1_5,
    *["on_validation_batch_start", "validation_step", "validation_step_end", "on_validation_batch_end"],
    *["validation_epoch_end", "on_validation_epoch_end", "on_epoch_end", "on_validation_end"],
    "on_validation_model_train",
]

GOLDEN: dict[str, dict[str, list[str]]] = {
    "0.5": {
        "fit": [
            *["on_pre_performance_check", "validation_step", "on_post_performance_check"],
            *["on_epoch_start", "on_batch_start"],
            *["training_step", "on_after_backward", "optimizer_step", "on_before_zero_grad"],
            "on_batch_end",
            *["on_pre_performance_check", "validation_step", "on_post_performance_check"],
            "on_epoch_end",
        ],
        "test": ["test_step", "on_post_performance_check"],
    },
    "0.7": {
        "fit": [
            "init_optimizers",
            *_VALIDATION_0_7,
            # The training loop of document 001 in its order, with the update that it writes as `optimizer.step()`.
            *["on_epoch_start", "on_batch_start", "tbptt_split_batch", "training_step", "training_step_end"],
            *["on_before_zero_grad", "backward", "on_after_backward", "optimizer_step", "on_batch_end"],
            *_VALIDATION_0_7,
            *["training_epoch_end", "on_epoch_end"],
        ],
        "test": ["test_step", "test_step_end", "test_epoch_end", "on_post_performance_check"],
    },
    "0.8": {
        "fit": [
            *["prepare_data", "setup", "on_fit_start", "on_train_start", "on_sanity_check_start"],
            *["on_pre_performance_check", *_VALIDATION_0_7],
            *["on_epoch_start", "on_batch_start", "training_step", "training_step_end", "backward"],
            *["on_after_backward", "optimizer_step", "on_before_zero_grad", "on_batch_end"],
            *["on_pre_performance_check", *_VALIDATION_0_7],
            *["training_epoch_end", "on_epoch_end", "on_train_end", "on_fit_end", "teardown"],
        ],
        "test": [
            *["prepare_data", "setup", "test_step", "test_step_end", "test_epoch_end"],
            *["on_post_performance_check", "teardown"],
        ],
    },
    "1.x": {
        "fit": [
            *["prepare_data", "setup", "configure_optimizers", "on_fit_start"],
            *["on_pretrain_routine_start", "on_pretrain_routine_end"],
            *_VALIDATION_1_5,
            *["on_train_start", "on_epoch_start", "on_train_epoch_start"],
            *_TRANSFER_1_5,
            *["on_train_batch_start", "optimizer_step", "training_step", "training_step_end"],
            *["on_before_zero_grad", "optimizer_zero_grad", "on_before_backward", "on_after_backward"],
            *["on_before_optimizer_step", "configure_gradient_clipping", "on_train_batch_end"],
            *_VALIDATION_1_5,
            *["training_epoch_end", "on_train_epoch_end", "on_epoch_end", "on_train_end", "on_fit_end", "teardown"],
        ],
    },
}
"""A run of one epoch of one batch, with a sanity check and validation of one batch each; 1.x as 1.5 was."""


class Recorded:
    """Sees every call of a run by the name that the receiver has for it."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def wrap_call(self, hook: str, kind: Receiver, receiver: object, function: Any) -> Any:
        def called(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((str(kind), hook))
            return function(*args, **kwargs)

        return called

    def of_module(self, names: set[str]) -> list[str]:
        return [hook for kind, hook in self.calls if kind == "module" and hook in names]


class RecordingCallback(Recorded, Callback):
    pass


def ignore(self: Any, *arguments: Any) -> None:
    """Stands for a hook whose call is all that counts."""


def pass_on(self: Any, outputs: Any) -> Any:
    return outputs


class Base(TrainingModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.got: dict[str, Any] = {}

    def training_step(self, batch: Tensor, batch_idx: int) -> Any:
        return {"loss": self.layer(batch).mean()}

    def validation_step(self, batch: Tensor, batch_idx: int) -> Any:
        return {"val_loss": self.layer(batch).mean()}

    def test_step(self, batch: Tensor, batch_idx: int) -> Any:
        return {"test_loss": self.layer(batch).mean()}

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)

    def keep(self, name: str, *values: Any) -> None:
        self.got[name] = values


class Of05(Base):
    """Without a declaration: its signatures tell the era."""

    def training_step(self, batch: Tensor, batch_nb: int) -> Any:
        loss = self.layer(batch).mean()
        return {"loss": loss, "log": {"train_loss": loss}}

    def on_epoch_start(self) -> None: ...

    def on_epoch_end(self) -> None: ...

    def on_batch_start(self) -> None: ...

    def on_batch_end(self) -> None: ...

    def on_pre_performance_check(self) -> None: ...

    def on_post_performance_check(self) -> None: ...

    def on_after_backward(self) -> None: ...

    def optimizer_step(
        self, current_epoch: int, batch_nb: int, optimizer: Any, optimizer_i: int, second_order_closure: Any = None
    ) -> None:
        self.keep("optimizer_step", current_epoch, batch_nb, type(optimizer).__name__, optimizer_i)
        before = self.layer.weight.detach().clone()
        assert self.layer.weight.grad is not None and self.layer.weight.grad.abs().sum() > 0
        optimizer.step()
        assert not torch.equal(before, self.layer.weight)
        optimizer.zero_grad()

    def on_before_zero_grad(self, optimizer: Any) -> None:
        gradient = self.layer.weight.grad
        self.keep("on_before_zero_grad", gradient is not None and bool(gradient.abs().sum() > 0))


class Of07(Base):
    hook_era = "0.7"
    on_epoch_start = on_epoch_end = on_batch_end = on_before_zero_grad = on_after_backward = ignore
    on_post_performance_check = ignore
    training_step_end = validation_step_end = test_step_end = pass_on

    def training_step(self, batch: Tensor, batch_idx: int, hiddens: Any = None) -> Any:
        return {"loss": self.layer(batch).mean(), "hiddens": None}

    def tbptt_split_batch(self, batch: Tensor, split_size: int) -> Any:
        self.keep("tbptt_split_batch", split_size)
        return [batch]

    def training_epoch_end(self, outputs: Any) -> Any:
        self.keep("training_epoch_end", len(outputs), sorted(outputs[0]))
        return {"log": {"epoch_loss": outputs[0]["loss"]}}

    def validation_epoch_end(self, outputs: Any) -> Any:
        return {"val_loss": outputs[0]["val_loss"], "log": {"logged": 1.0}}

    def test_epoch_end(self, outputs: Any) -> Any:
        return {"log": {"test_loss": outputs[0]["test_loss"]}}

    def init_optimizers(self, optimizers: Any) -> Any:
        self.keep("init_optimizers", type(optimizers).__name__)
        return [optimizers], []

    def on_batch_start(self, batch: Tensor) -> None:
        self.keep("on_batch_start", tuple(batch.shape))

    def backward(self, trainer: Any, loss: Tensor, optimizer: Any, optimizer_idx: int) -> None:
        self.keep("backward", trainer is self.trainer, type(optimizer).__name__, optimizer_idx)
        loss.backward()

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_idx: int, second_order_closure: Any = None
    ) -> None:
        optimizer.step()
        optimizer.zero_grad()


class Of08(Of07):
    hook_era = "0.8"
    init_optimizers = tbptt_split_batch = None  # type: ignore[assignment]
    training_step = Base.training_step  # type: ignore[assignment]
    on_pre_performance_check = on_fit_start = on_fit_end = on_train_start = on_train_end = ignore
    on_sanity_check_start = ignore

    def prepare_data(self) -> None: ...

    def setup(self, stage: str) -> None:
        self.keep("setup", stage)

    def teardown(self, stage: str) -> None:
        self.keep("teardown", stage)


class Of15(Base):
    hook_era = "1.5"
    setup = teardown = prepare_data = on_fit_start = on_fit_end = on_train_start = on_train_end = ignore
    on_pretrain_routine_start = on_pretrain_routine_end = on_epoch_start = on_epoch_end = ignore
    on_train_epoch_start = on_train_epoch_end = on_validation_start = on_validation_end = ignore
    on_validation_epoch_start = on_validation_epoch_end = ignore
    on_validation_batch_start = on_validation_batch_end = ignore
    on_validation_model_eval = on_validation_model_train = ignore
    on_before_zero_grad = on_before_backward = on_after_backward = configure_gradient_clipping = ignore
    training_step_end = validation_step_end = pass_on

    def validation_step(self, batch: Tensor, batch_idx: int, dataloader_idx: int = 0) -> Any:
        return self.layer(batch).mean()

    def training_epoch_end(self, outputs: Any) -> Any:
        self.keep("training_epoch_end", outputs)

    def validation_epoch_end(self, outputs: Any) -> Any:
        self.keep("validation_epoch_end", outputs)

    def on_train_batch_start(self, batch: Tensor, batch_idx: int, dataloader_idx: int) -> Any:
        self.keep("on_train_batch_start", batch_idx, dataloader_idx)

    def on_train_batch_end(self, outputs: Any, batch: Tensor, batch_idx: int, dataloader_idx: int) -> Any:
        self.keep("on_train_batch_end", sorted(outputs), batch_idx, dataloader_idx)

    def on_before_optimizer_step(self, optimizer: Any, optimizer_idx: int) -> Any:
        self.keep("on_before_optimizer_step", optimizer_idx)

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_idx: int) -> Any:
        optimizer.zero_grad()

    def optimizer_step(
        self,
        epoch: int,
        batch_idx: int,
        optimizer: Any,
        optimizer_idx: int,
        optimizer_closure: Any,
        on_tpu: bool,
        using_native_amp: bool,
        using_lbfgs: bool,
    ) -> Any:
        told = (epoch, batch_idx, type(optimizer).__name__, optimizer_idx, on_tpu, using_native_amp, using_lbfgs)
        self.keep("optimizer_step", *told)
        optimizer.step(closure=optimizer_closure)

    def transfer_batch_to_device(self, batch: Tensor, device: Any, dataloader_idx: int) -> Any:
        return batch.to(device)

    def on_before_batch_transfer(self, batch: Tensor, dataloader_idx: int) -> Any:
        return batch

    def on_after_batch_transfer(self, batch: Tensor, dataloader_idx: int) -> Any:
        return batch


MODULES: dict[str, type[Base]] = {"0.5": Of05, "0.7": Of07, "0.8": Of08, "1.x": Of15}


def run(verb: str, module: Base, root: Path, callbacks: list[Any]) -> Trainer:
    truncated_bptt_steps = 2 if type(module) is Of07 else None
    trainer = quiet_trainer(
        root, callbacks=callbacks, num_sanity_val_steps=1, truncated_bptt_steps=truncated_bptt_steps
    )
    loaders: list[Any] = [torch.utils.data.DataLoader(torch.ones(1, 2)) for _ in range(2 if verb == "fit" else 1)]
    getattr(trainer, verb)(module, *loaders)
    return trainer


CASES = [(era, verb) for era, of_verbs in GOLDEN.items() for verb in of_verbs]


@pytest.mark.parametrize(("era", "verb"), CASES)
def test_a_module_of_an_era_is_called_as_its_document_lists(era: str, verb: str, tmp_path: Path) -> None:
    recording = RecordingCallback()
    module = MODULES[era]()
    run(verb, module, tmp_path, [recording])
    names = {name for of_verb in GOLDEN[era].values() for name in of_verb}
    assert recording.of_module(names) == GOLDEN[era][verb]


@pytest.mark.parametrize(("era", "verb"), CASES)
def test_its_trace_fits_the_grammar_of_the_era(era: str, verb: str, tmp_path: Path) -> None:
    trace = Trace(catalogue_of(era))
    module = trace.record(MODULES[era](), "module")
    run(verb, module, tmp_path, [])
    assert any(event.hook == f"{verb}_step" or event.hook == "training_step" for event in trace)
    check(trace, verb)


def test_the_arguments_are_those_of_the_era(tmp_path: Path) -> None:
    module: Base = Of05()
    run("fit", module, tmp_path, [])
    assert module.got["optimizer_step"] == (0, 0, "SGD", 0)
    assert module.got["on_before_zero_grad"] == (True,), "gradients are there until the hook has seen them"
    module = Of07()
    trainer = run("fit", module, tmp_path, [])
    assert module.got["backward"] == (True, "SGD", 0)
    assert module.got["on_batch_start"] == ((1, 2),)
    assert module.got["init_optimizers"] == ("SGD",)
    assert module.got["tbptt_split_batch"] == (2,)
    number, keys = module.got["training_epoch_end"]
    assert number == 1 and "loss" in keys
    assert {"epoch_loss", "val_loss"} <= set(trainer.callback_metrics)
    module = Of15()
    run("fit", module, tmp_path, [])
    assert module.got["optimizer_step"] == (0, 0, "SGD", 0, False, False, False)
    assert module.got["on_train_batch_start"] == (0, 0) and module.got["on_before_optimizer_step"] == (0,)
    assert module.got["on_train_batch_end"] == (["loss"], 0, 0)
    assert [sorted(one) for one in module.got["training_epoch_end"][0]] == [["loss"]]
    assert [type(one) for one in module.got["validation_epoch_end"][0]] == [Tensor]
    module = Of08()
    run("test", module, tmp_path, [])
    assert module.got["setup"] == module.got["teardown"] == ("test",)
