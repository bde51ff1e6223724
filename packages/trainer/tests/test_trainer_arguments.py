"""What the constructor and the verbs refuse, and what they say then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from trainer_parts import NO_VALIDATION, ListLogger, Regression, RegressionData, loader, quiet_trainer

from camshaft.callbacks import CSVLogger, EarlyStopping, HookTimeline, ModelCheckpoint, RichProgressBar
from camshaft.hooks_core import Callback, HookFaultError
from camshaft.trainer import TorchSwitches, Trainer, TrainingModule

pytestmark = pytest.mark.filterwarnings(NO_VALIDATION)


class Stateful(Callback):
    def state_dict(self) -> dict[str, Any]:
        return {}


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"logger": 3}, TypeError, r"`logger` must be a logger, a list of them, True or False \(missing: log_metrics"),
    ({"logger": CSVLogger}, TypeError, r"`logger` must be a logger object.*Pass an instance: `CSVLogger\(\.\.\.\)`"),
    ({"logger": [ListLogger(), None]}, TypeError, r"`logger` must be .*but got None \(NoneType\)"),
    ({"callbacks": EarlyStopping}, TypeError, r"`callbacks` must be callback objects.*`EarlyStopping\(\.\.\.\)`"),
    ({"callbacks": 3}, TypeError, r"`callbacks` must be a callback .* got 3 \(int\)"),
    (
        {"callbacks": "early_stopping"},
        ValueError,
        r"must be an object, the class name .* Did you mean 'EarlyStopping'\?",
    ),
    ({"callbacks": [None]}, TypeError, r"`callbacks` must be a callback .* got None"),
    (
        {"callbacks": [Stateful(), Stateful()]},
        ValueError,
        r"`state_key` must be different .*a Stateful has.*'Stateful'",
    ),
    (
        {"callbacks": RichProgressBar(), "enable_progress_bar": False},
        ValueError,
        "`enable_progress_bar=False` cannot be combined with the RichProgressBar in `callbacks`",
    ),
    (
        {"callbacks": [ModelCheckpoint()], "enable_checkpointing": False},
        ValueError,
        "`enable_checkpointing=False` cannot be combined with the ModelCheckpoint in `callbacks`",
    ),
    ({"max_epochs": -2}, ValueError, r"`max_epochs` must be at least -1, but got -2"),
    ({"max_epochs": 1.5}, TypeError, r"`max_epochs` must be an int or None, but got 1.5"),
    ({"max_steps": 2.5}, TypeError, r"`max_steps` must be an int, but got 2.5"),
    ({"min_epochs": -1}, ValueError, r"`min_epochs` must be at least 0, but got -1"),
    ({"limit_train_batches": 1.5}, ValueError, r"`limit_train_batches` must be at least 0, and at most 1.0 as a float"),
    ({"limit_val_batches": -1}, ValueError, r"`limit_val_batches` must be at least 0"),
    ({"limit_test_batches": "all"}, TypeError, r"`limit_test_batches` must be an int or a float, but got 'all'"),
    ({"limit_predict_batches": True}, TypeError, r"`limit_predict_batches` must be an int or a float, but got True"),
    ({"val_check_interval": 0}, ValueError, r"`val_check_interval` must be above 0.*limit_val_batches=0"),
    (
        {"check_val_every_n_epoch": None},
        TypeError,
        r"`val_check_interval` must be an int or a duration if check_val_every_n_epoch is",
    ),
    ({"check_val_every_n_epoch": 0}, ValueError, r"`check_val_every_n_epoch` must be at least 1"),
    ({"num_sanity_val_steps": -2}, ValueError, r"`num_sanity_val_steps` must be at least -1"),
    ({"log_every_n_steps": -1}, ValueError, r"`log_every_n_steps` must be at least 0, but got -1"),
    ({"log_every_n_steps": 0.5}, TypeError, r"`log_every_n_steps` must be an int or None, but got 0.5"),
    ({"accumulate_grad_batches": 0}, ValueError, r"`accumulate_grad_batches` must be at least 1"),
    ({"accumulate_grad_batches": 0.5}, TypeError, r"`accumulate_grad_batches` must be an int, but got 0.5"),
    ({"gradient_clip_val": -0.5}, ValueError, r"`gradient_clip_val` must be at least 0, but got -0.5"),
    (
        {"gradient_clip_algorithm": "l1"},
        ValueError,
        r"`gradient_clip_algorithm` must be 'norm' or 'value', but got 'l1'",
    ),
    ({"zero_grad": "never"}, ValueError, r"`zero_grad` must be .*'before_backward'.*, but got 'never'"),
    ({"truncated_bptt_steps": 0}, ValueError, r"`truncated_bptt_steps` must be at least 1"),
    ({"agree_every_n_batches": 0}, ValueError, r"`agree_every_n_batches` must be at least 1, but got 0"),
    ({"stateless_loaders": "ignore"}, ValueError, r"`stateless_loaders` must be 'refuse' or 'fast_forward'"),
    ({"max_time": "an hour"}, ValueError, r"`max_time` must be .*DD:HH:MM:SS.*, but got 'an hour'"),
    ({"overfit_batches": 1.5}, ValueError, r"`overfit_batches` must be at least 0, and at most 1.0 as a float"),
    ({"reload_dataloaders_every_n_epochs": -1}, ValueError, r"`reload_dataloaders_every_n_epochs` must be at least 0"),
    ({"min_epochs": 3, "max_epochs": 2}, ValueError, r"`min_epochs` must be at most max_epochs \(2\), but got 3"),
    ({"min_steps": 3, "max_steps": 2}, ValueError, r"`min_steps` must be at most max_steps \(2\), but got 3"),
]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    REFUSED,
    ids=[" ".join(f"{n}={v!r:.20}" for n, v in a.items()) for a, _, _ in REFUSED],
)
def test_the_constructor_refuses(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Trainer(**arguments)


@pytest.mark.parametrize("name", ["max_epoch", "gpus"])
def test_what_is_no_argument_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
        Trainer(**{name: 3})


def test_positions_are_refused() -> None:
    with pytest.raises(TypeError, match="positional argument"):
        Trainer(ListLogger())  # type: ignore[misc]


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"profiler": HookTimeline()}, HookTimeline),
        ({"benchmark": True}, TorchSwitches),
    ],
)
def test_what_callbacks_do_is_a_callback_after_those_that_were_passed(given: dict[str, Any], kind: type) -> None:
    own = Callback()
    trainer = Trainer(**given, callbacks=own, logger=False, enable_progress_bar=False)
    assert trainer.callbacks[0] is own
    assert isinstance(trainer.callbacks[1], kind)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"profiler": "slow"}, r"`profiler` must be 'simple', 'advanced', 'pytorch', a profiler, or a callback.*HookT"),
        ({"deterministic": "sometimes"}, r"`deterministic` must be True, False, 'warn' or None"),
    ],
)
def test_what_no_callback_does_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Trainer(**given)


def test_switches_of_torch_hold_while_a_verb_runs_and_are_put_back(tmp_path: Path) -> None:
    def state() -> tuple[bool, bool, bool]:
        return (
            torch.are_deterministic_algorithms_enabled(),
            torch.backends.cudnn.benchmark,
            torch.is_anomaly_enabled(),
        )

    class Looking(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            seen.append(state())
            if fails:
                raise RuntimeError("stop")
            return super().training_step(batch, batch_idx)

    for fails in (False, True):
        seen: list[tuple[bool, bool, bool]] = []
        before = state()
        trainer = quiet_trainer(tmp_path, deterministic=True, benchmark=True, detect_anomaly=True)
        assert state() == before
        if fails:
            with pytest.raises(RuntimeError, match="stop"):
                trainer.fit(Looking(), loader(1))
        else:
            trainer.fit(Looking(), loader(1))
        assert seen == [(True, True, True)]
        assert state() == before


@pytest.mark.parametrize(
    "argument",
    [
        {"logger": True},
        {"logger": [ListLogger()]},
        {"enable_checkpointing": True},
        {"enable_progress_bar": True},
        {"num_sanity_val_steps": 2},
        {"log_every_n_steps": 10},
        {"fast_dev_run": 2},
    ],
    ids=lambda argument: next(iter(argument)),
)
def test_barebones_refuses_what_contradicts_it(argument: dict[str, Any]) -> None:
    (name,) = argument
    with pytest.raises(ValueError, match=rf"`{name}=.*` cannot be combined with barebones=True"):
        Trainer(barebones=True, **argument)


@pytest.mark.parametrize("callback", [ModelCheckpoint(), RichProgressBar(), EarlyStopping("loss")])
def test_barebones_refuses_callbacks_that_need_files_or_logged_values(callback: Callback) -> None:
    rule = rf"`callbacks=\[{type(callback).__name__}\(\)\]` cannot be combined with barebones=True"
    with pytest.raises(ValueError, match=rule):
        Trainer(barebones=True, callbacks=[callback])


@pytest.mark.parametrize("verb", ["fit", "validate", "test", "predict"])
class TestEveryVerb:
    def test_needs_a_module_at_first(self, verb: str, tmp_path: Path) -> None:
        with pytest.raises(TypeError, match=rf"`model` must be a module.*but got None .* in Trainer\.{verb}"):
            getattr(quiet_trainer(tmp_path), verb)(None)

    def test_takes_an_object_not_a_class(self, verb: str, tmp_path: Path) -> None:
        with pytest.raises(TypeError, match=r"`model` must be a module.*Regression"):
            getattr(quiet_trainer(tmp_path), verb)(Regression, loader())

    def test_says_what_to_do_with_a_module_of_lightning(self, verb: str, tmp_path: Path) -> None:
        class LightningModule(nn.Module): ...

        class Mine(LightningModule): ...

        rule = r"`model` must be a TrainingModule .*but got '.*Mine' .*inherit from camshaft.trainer.TrainingModule"
        with pytest.raises(TypeError, match=rule):
            getattr(quiet_trainer(tmp_path), verb)(Mine(), loader())

    def test_refuses_loaders_together_with_a_data_module(self, verb: str, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"`datamodule` must be None if loaders are passed"):
            getattr(quiet_trainer(tmp_path), verb)(Regression(), loader(), datamodule=RegressionData())

    def test_refuses_a_data_module_that_has_no_loader(self, verb: str, tmp_path: Path) -> None:
        with pytest.raises(TypeError, match=r"`datamodule` must be an object with at least one of train_dataloader"):
            getattr(quiet_trainer(tmp_path), verb)(Regression(), datamodule=loader())

    def test_says_that_there_are_no_loaders(self, verb: str, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"loaders?` must be given, or provided by the data module or the module"):
            getattr(quiet_trainer(tmp_path), verb)(Regression())

    @pytest.mark.parametrize("wrong", [torch.ones(4, 3), "loader", b"loader", 1], ids=repr)
    @pytest.mark.parametrize("collect", [lambda wrong: wrong, lambda wrong: {"a": [wrong]}], ids=["alone", "nested"])
    def test_refuses_what_is_no_loader(self, collect: Any, wrong: Any, verb: str, tmp_path: Path) -> None:
        rule = r"loaders.*` must be a loader \(an iterable of batches\).*, but got .*\((Tensor|Size|str|bytes|int)\)"
        with pytest.raises(TypeError, match=rule):
            getattr(quiet_trainer(tmp_path), verb)(Regression(), collect(wrong))

    def test_refuses_a_checkpoint_that_does_not_exist(self, verb: str, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match=r"`path` must be an existing checkpoint, but got .*nowhere.ckpt"):
            getattr(quiet_trainer(tmp_path), verb)(Regression(), loader(), ckpt_path=tmp_path / "nowhere.ckpt")

    def test_refuses_best_when_nothing_was_saved(self, verb: str, tmp_path: Path) -> None:
        with pytest.raises(
            ValueError, match=r"`ckpt_path` must be a path, as no checkpoint was saved yet, but got 'best'"
        ):
            getattr(quiet_trainer(tmp_path), verb)(Regression(), loader(), ckpt_path="best")


@pytest.mark.parametrize(
    ("verb", "missing"),
    [("fit", "training_step"), ("fit", "configure_optimizers"), ("validate", "validation_step"), ("test", "test_step")],
)
def test_a_missing_step_is_found_before_anything_runs(verb: str, missing: str, tmp_path: Path) -> None:
    class Empty(TrainingModule):
        def setup(self, stage: str) -> None:
            raise AssertionError("nothing must run")

    with pytest.raises(HookFaultError, match=rf"Empty.{missing}: `{missing}` must be defined to run this verb"):
        getattr(quiet_trainer(tmp_path), verb)(Empty(), loader())


def test_prediction_needs_a_step_or_a_forward(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"`predict_step` must be defined, or else `forward`, to predict"):
        quiet_trainer(tmp_path).predict(TrainingModule(), loader())


def test_saving_needs_a_module(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"`model` must be attached by fit, validate, test or predict"):
        quiet_trainer(tmp_path).save_checkpoint(tmp_path / "a.ckpt")


def test_several_optimizers_need_manual_optimization_or_a_step_that_names_one(tmp_path: Path) -> None:
    class Two(Regression):
        def configure_optimizers(self) -> Any:
            return [torch.optim.SGD(self.parameters(), 0.1), torch.optim.SGD(self.parameters(), 0.1)]

    rule = r"`number of optimizers` must be 1 under automatic optimization, unless .* names `optimizer_idx`, but got 2"
    with pytest.raises(ValueError, match=rule):
        quiet_trainer(tmp_path).fit(Two(), loader())


def test_manual_optimization_does_its_own_accumulation_and_clipping(tmp_path: Path) -> None:
    class Manual(Regression):
        automatic_optimization = False

    for argument in ({"accumulate_grad_batches": 2}, {"gradient_clip_val": 1.0}):
        with pytest.raises(ValueError, match=f"`{next(iter(argument))}` must be .* under manual optimization"):
            quiet_trainer(tmp_path, **argument).fit(Manual(), loader())


def test_a_loss_that_is_none_of_a_steps_results_is_refused(tmp_path: Path) -> None:
    class Tuple(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.loss(batch), 1

    with pytest.raises(TypeError, match=r"`training_step` must return a tensor, a dictionary .* in .*Tuple"):
        quiet_trainer(tmp_path).fit(Tuple(), loader())


def test_a_share_of_a_stream_is_refused(tmp_path: Path) -> None:
    class Stream(torch.utils.data.IterableDataset[Tensor]):
        def __iter__(self) -> Any:
            yield torch.ones(3), torch.ones(1)

    stream = torch.utils.data.DataLoader(Stream())
    with pytest.raises(ValueError, match=r"`limit_train_batches` must be 1.0 or an int for a loader of unknown length"):
        quiet_trainer(tmp_path, limit_train_batches=0.5).fit(Regression(), stream)
