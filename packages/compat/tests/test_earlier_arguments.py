"""The trainer's arguments of earlier releases."""

from __future__ import annotations

import inspect
import warnings
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import pytest
import torch
from compat_parts import Regression, quiet_trainer
from trainer_parts import NO_VALIDATION, ListLogger, RegressionData, assert_same, loader, weights

from camshaft.callbacks import (
    CSVLogger,
    EarlyStopping,
    GradientAccumulationScheduler,
    ModelCheckpoint,
    ModelSummary,
    NonFiniteGuard,
    StochasticWeightAveraging,
)
from camshaft.compat import Trainer
from camshaft.compat.arguments.table import EARLIER_ARGUMENTS
from camshaft.compat.arguments.translation import translate_arguments
from camshaft.hooks_core import Callback, HookFaultWarning
from camshaft.trainer import GradientNorms

pytestmark = pytest.mark.filterwarnings(NO_VALIDATION)

_DEFAULTS = {name: one.default for name, one in inspect.signature(Trainer).parameters.items()}

# Looked up in the sources of the releases; `self` and what today's trainer has under the same name are left out.
_ARGUMENTS_OF_RELEASES = {
    "0.5": "checkpoint_callback early_stop_callback default_save_path gradient_clip process_position nb_gpu_nodes gpus "
    "log_gpu_memory show_progress_bar overfit_pct track_grad_norm max_nb_epochs min_nb_epochs train_percent_check "
    "val_percent_check test_percent_check log_save_interval row_log_interval add_row_log_interval distributed_backend "
    "use_amp print_nan_grads weights_summary weights_save_path amp_level nb_sanity_val_steps accumulate_grad_batches",
    "0.7": "num_processes auto_select_gpus num_tpu_cores progress_bar_refresh_rate resume_from_checkpoint "
    "reload_dataloaders_every_epoch auto_lr_find replace_sampler_ddp progress_bar_callback "
    "terminate_on_nan auto_scale_batch_size",
    "0.8": "tpu_cores prepare_data_per_node",
    "1.0": "amp_backend plugins automatic_optimization flush_logs_every_n_steps accelerator",
    "1.5": "ipus devices strategy stochastic_weight_avg multiple_trainloader_mode move_metrics_to_cpu",
    "1.1": "enable_pl_optimizer",
}


def translated(**given: Any) -> tuple[dict[str, Any], Any, str]:
    """Today's arguments, what is kept, and the note."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        arguments, settings = translate_arguments(given, _DEFAULTS, EARLIER_ARGUMENTS)
    assert len(caught) <= 1
    return arguments, settings, str(caught[0].message) if caught else ""


@pytest.mark.parametrize("name", sorted({name for names in _ARGUMENTS_OF_RELEASES.values() for name in names.split()}))
def test_every_argument_of_a_release_has_its_row(name: str) -> None:
    assert EARLIER_ARGUMENTS[name].name == name
    assert EARLIER_ARGUMENTS[name].today


@pytest.mark.parametrize("name", sorted(EARLIER_ARGUMENTS))
def test_values_that_ask_for_nothing_say_nothing_and_change_nothing(name: str) -> None:
    for value in EARLIER_ARGUMENTS[name].nothing:
        assert translated(**{name: value})[0] == {}
        assert translated(**{name: value})[2] == ""


RENAMED = [
    ({"max_nb_epochs": 3}, {"max_epochs": 3}),
    ({"min_nb_epochs": 2}, {"min_epochs": 2}),
    ({"nb_sanity_val_steps": 5}, {"num_sanity_val_steps": 5}),
    ({"train_percent_check": 0.5}, {"limit_train_batches": 0.5}),
    ({"val_percent_check": 1}, {"limit_val_batches": 1.0}),
    ({"test_percent_check": 0}, {"limit_test_batches": 0.0}),
    ({"overfit_pct": 0.1}, {"overfit_batches": 0.1}),
    ({"reload_dataloaders_every_epoch": True}, {"reload_dataloaders_every_n_epochs": 1}),
    ({"replace_sampler_ddp": False}, {"use_distributed_sampler": False}),
    ({"gradient_clip": 0.5}, {"gradient_clip_val": 0.5}),
    ({"row_log_interval": 10}, {"log_every_n_steps": 10}),
    ({"add_row_log_interval": 10}, {"log_every_n_steps": 10}),
    ({"show_progress_bar": False}, {"enable_progress_bar": False}),
    ({"progress_bar_refresh_rate": 0}, {"enable_progress_bar": False}),
    ({"weights_summary": None}, {"enable_model_summary": False}),
    ({"print_weights_summary": False}, {"enable_model_summary": False}),
    ({"checkpoint_callback": False}, {"enable_checkpointing": False}),
    ({"checkpoint_callback": True}, {"enable_checkpointing": True}),
    ({"default_save_path": "runs"}, {"default_root_dir": "runs"}),
    ({"use_amp": True}, {"precision": "16-mixed"}),
    ({"gpus": 0}, {"accelerator": "cpu"}),
    ({"gpus": []}, {"accelerator": "cpu"}),
    ({"gpus": 1}, {"accelerator": "gpu", "devices": 1}),
    ({"gpus": "1,"}, {"accelerator": "gpu", "devices": [1]}),
    (
        {"gpus": "0, 2"},
        {"accelerator": "gpu", "devices": [0, 2], "strategy": "ddp_find_unused_parameters_true"},
    ),
    ({"gpus": 2, "strategy": "ddp"}, {"accelerator": "gpu", "devices": 2, "strategy": "ddp"}),
    ({"nb_gpu_nodes": 2}, {"num_nodes": 2}),
    ({"num_processes": 2}, {"accelerator": "cpu", "devices": 2}),
    ({"num_processes": 4, "gpus": 1}, {"accelerator": "gpu", "devices": 1}),
    ({"distributed_backend": "ddp"}, {"strategy": "ddp_find_unused_parameters_true"}),
    (
        {"distributed_backend": "ddp_cpu", "num_processes": 2},
        {"strategy": "ddp_find_unused_parameters_true", "accelerator": "cpu", "devices": 2},
    ),
    ({"distributed_backend": "dp", "gpus": 1}, {"accelerator": "gpu", "devices": 1}),
    ({"accelerator": "ddp_spawn"}, {"strategy": "ddp_find_unused_parameters_true"}),
    (
        {"accelerator": "ddp", "gpus": 1},
        {"strategy": "ddp_find_unused_parameters_true", "accelerator": "gpu", "devices": 1},
    ),
    ({"strategy": "ddp_spawn_find_unused_parameters_false"}, {"strategy": "ddp_find_unused_parameters_false"}),
    ({"strategy": "fsdp_native"}, {"strategy": "sharded"}),
    ({"plugins": ["ddp_sharded"]}, {"strategy": "sharded"}),
]


@pytest.mark.parametrize(("given", "today"), RENAMED, ids=[str(given) for given, _ in RENAMED])
def test_an_argument_becomes_todays_with_one_note(given: dict[str, Any], today: dict[str, Any]) -> None:
    arguments, _, note = translated(**given)
    assert_same(arguments, today)
    assert note.startswith("Arguments of the trainer with another form today:")
    assert all(f"`{name}={value!r}`" in note for name, value in given.items() if name not in _DEFAULTS)


def test_one_note_tells_all_translations_and_points_at_the_call(tmp_path: Path) -> None:
    with pytest.warns(UserWarning) as caught:
        trainer = Trainer(
            **{"max_nb_epochs": 3, "val_percent_check": 0.5, "checkpoint_callback": False, "show_progress_bar": False},
            default_save_path=tmp_path,
        )
    (warning,) = caught
    assert str(warning.message).splitlines()[:3] == [
        "Arguments of the trainer with another form today:",
        "  `max_nb_epochs=3` is `max_epochs=3` today",
        "  `val_percent_check=0.5` is `limit_val_batches=0.5` today",
    ]
    assert warning.filename == __file__
    assert (trainer.max_epochs, trainer.limit_val_batches, trainer.callbacks) == (3, 0.5, [])
    assert trainer.default_root_dir == str(tmp_path)


def test_arguments_of_today_say_nothing() -> None:
    for name, value in _DEFAULTS.items():
        assert translated(**{name: value})[2] == ""
    assert translated(strategy="ddp", accelerator="cpu", accumulate_grad_batches=2, gradient_clip_val=0.5)[0] == {
        "strategy": "ddp",
        "accelerator": "cpu",
        "accumulate_grad_batches": 2,
        "gradient_clip_val": 0.5,
    }


REFUSED = [
    (
        {"max_nb_epochs": 3, "max_epochs": 4},
        r"`max_nb_epochs` must be in agreement with max_epochs=4.*Pass `max_epochs`",
    ),
    (
        {"row_log_interval": 3, "add_row_log_interval": 4},
        r"`add_row_log_interval` must be in agreement with row_log_interval, which is log_every_n_steps=3 today",
    ),
    ({"gpus": 0, "accelerator": "gpu"}, r"`gpus` must be in agreement with accelerator='gpu'"),
    ({"gpus": "3"}, r"`gpus` must be a number of GPUs.*but got '3'.*`devices=3` for three GPUs, `devices=\[3\]`"),
    ({"gpus": True}, r"`gpus` must be a number of GPUs"),
    ({"val_percent_check": 1.5}, r"`val_percent_check` must be a share from 0 to 1"),
    ({"tpu_cores": 8}, r"`tpu_cores` must be left out, because there is no strategy for these devices"),
    ({"ipus": 1}, r"`ipus` must be left out"),
    ({"distributed_backend": "dp", "gpus": 2}, r"`distributed_backend` must be left out, because one process cannot"),
    ({"accelerator": "dp", "gpus": [0, 1]}, r"`accelerator` must be left out, because one process cannot"),
    ({"strategy": "deepspeed_stage_2"}, r"`strategy` must be left out, because there is no strategy for 'deepspeed'"),
    ({"distributed_backend": "horovod"}, r"`distributed_backend` must be left out.*'horovod'"),
    ({"distributed_backend": "dppp"}, r"`distributed_backend` must be one of 'ddp'"),
    ({"plugins": [object]}, r"`plugins` must be left out, because there are no plugins"),
    ({"amp_level": "O3"}, r"`amp_level` must be left out.*'16-true' for 'O3'"),
    ({"amp_backend": "nvidia"}, r"`amp_backend` must be 'native' or 'apex'"),
    ({"auto_select_gpus": True}, r"`auto_select_gpus` must be left out"),
    ({"multiple_trainloader_mode": "min_size"}, r"`multiple_trainloader_mode` must be left out.*CombinedLoader"),
    ({"prepare_data_per_node": False, "num_nodes": 2}, r"`prepare_data_per_node` must be left out"),
    ({"process_position": 1}, r"`process_position` must be left out"),
    ({"weights_summary": "all"}, r"`weights_summary` must be 'top', 'full' or None"),
    ({"weights_save_path": "w", "checkpoint_callback": False}, r"`weights_save_path` must be left out"),
    ({"weights_save_path": "w", "callbacks": [ModelCheckpoint()]}, r"`weights_save_path` must be left out"),
    ({"track_grad_norm": 0}, r"`norm_type` must be a positive number or 'inf'"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED, ids=[str(given)[:40] for given, _ in REFUSED])
def test_what_corresponds_to_nothing_or_contradicts_is_an_error(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Trainer(**given)


def test_an_unknown_name_is_an_error_that_names_the_closest() -> None:
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'max_nb_epoch'. Did you mean 'max_nb_epochs'\?"):
        Trainer(**{"max_nb_epoch": 3})


def test_positions_are_refused_with_a_way_out() -> None:
    message = r"`the first argument` must be an accelerator, as the first by position.*Write `logger=...`"
    with pytest.raises(TypeError, match=message):
        Trainer(ListLogger())  # type: ignore[call-arg]


CALLBACKS = [
    ({"early_stop_callback": True}, EarlyStopping),
    ({"early_stop_callback": EarlyStopping("loss")}, EarlyStopping),
    ({"checkpoint_callback": ModelCheckpoint()}, ModelCheckpoint),
    ({"accumulate_grad_batches": {0: 2, 4: 1}}, GradientAccumulationScheduler),
    ({"track_grad_norm": "inf"}, GradientNorms),
    ({"terminate_on_nan": True}, NonFiniteGuard),
    ({"print_nan_grads": True}, NonFiniteGuard),
    ({"weights_summary": "full"}, ModelSummary),
    ({"weights_save_path": "somewhere"}, ModelCheckpoint),
    ({"stochastic_weight_avg": True}, StochasticWeightAveraging),
]


@pytest.mark.parametrize(("given", "kind"), CALLBACKS, ids=[str(given)[:40] for given, _ in CALLBACKS])
def test_what_callbacks_do_today_is_a_callback_after_those_that_were_passed(given: dict[str, Any], kind: type) -> None:
    own = Callback()
    with pytest.warns(UserWarning, match="another form today"):
        trainer = Trainer(**given, callbacks=own, logger=False, enable_progress_bar=False)
    assert trainer.callbacks[0] is own
    assert isinstance(trainer.callbacks[1], kind)


def test_weights_are_averaged_at_the_rates_that_the_optimizer_has_unless_a_callback_does_it() -> None:
    (averaging,) = translated(stochastic_weight_avg=True)[0]["callbacks"]
    assert averaging.swa_lrs is None and averaging.swa_epoch_start == 0.8
    own = StochasticWeightAveraging(0.1)
    arguments, _, note = translated(stochastic_weight_avg=True, callbacks=[own])
    assert arguments["callbacks"] == [own]
    assert "`stochastic_weight_avg=True` is left out: the given callback does it" in note


def test_the_interval_of_flushing_goes_to_the_logger_that_the_trainer_makes(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="CSVLogger"):
        trainer = Trainer(default_root_dir=tmp_path, enable_checkpointing=False, **{"log_save_interval": 7})
    assert isinstance(trainer.logger, CSVLogger)
    assert trainer.logger.flush_logs_every_n_steps == 7
    assert str(trainer.logger.save_dir) == str(tmp_path)


# what runs with them


@pytest.mark.filterwarnings("ignore:Arguments of the trainer")
class TestRuns:
    def test_norms_of_gradients_are_logged_where_steps_are(self, tmp_path: Path) -> None:
        logger, module = ListLogger(), Regression()
        norms: list[float] = []

        class Reading(Callback):
            def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
                norms.append(float(torch.nn.utils.get_total_norm([one.grad for one in module.parameters()])))

        quiet_trainer(tmp_path, logger=logger, callbacks=Reading(), log_every_n_steps=2, **{"track_grad_norm": 2}).fit(
            module, loader(4)
        )
        logged = [(step, row) for step, row in logger.rows if "grad_2.0_norm_total" in row]
        assert [step for step, _ in logged] == [1, 3]
        assert [row["grad_2.0_norm_total"] for _, row in logged] == pytest.approx(norms[1::2])
        assert {"grad_2.0_norm/layer.weight", "grad_2.0_norm/layer.bias"} <= logged[0][1].keys()

    def test_a_module_changes_the_norms_of_gradients_by_its_own_method(self, tmp_path: Path) -> None:
        class Own(Regression):
            def grad_norm(self, norm_type: float | str) -> dict[str, Any]:
                return {"total": super().grad_norm(norm_type)[f"grad_{norm_type}_norm_total"]}

        logger = ListLogger()
        quiet_trainer(tmp_path, logger=logger, log_every_n_steps=2, **{"track_grad_norm": 2}).fit(Own(), loader(4))
        assert [(step, row["total"].item() > 0) for step, row in logger.rows if "total" in row] == [
            (1, True),
            (3, True),
        ]
        assert not any(name.startswith("grad_") for _, row in logger.rows for name in row)

    def test_a_module_logs_the_norms_of_gradients_by_its_own_method(self, tmp_path: Path) -> None:
        given: list[set[str]] = []

        class Own(Regression):
            def log_grad_norm(self, grad_norm_dict: Any) -> None:
                given.append(set(grad_norm_dict))
                super().log_grad_norm({"total": grad_norm_dict["grad_2.0_norm_total"]})

        logger = ListLogger()
        quiet_trainer(tmp_path, logger=logger, log_every_n_steps=2, **{"track_grad_norm": 2}).fit(Own(), loader(4))
        assert given == [{"grad_2.0_norm/layer.weight", "grad_2.0_norm/layer.bias", "grad_2.0_norm_total"}] * 4
        assert [step for step, row in logger.rows if "total_step" in row] == [1, 3]
        assert [step for step, row in logger.rows if "total_epoch" in row] == [3]

    def test_optimization_by_hand_may_be_asked_for_here(self, tmp_path: Path) -> None:
        class ByHand(Regression):
            def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
                optimizer: Any = self.optimizers()
                optimizer.zero_grad()
                self.manual_backward(self.loss(batch), optimizer)
                optimizer.step()

        module = ByHand()
        before = weights(module)
        trainer = quiet_trainer(tmp_path, **{"automatic_optimization": False})
        trainer.fit(module, loader(2))
        assert trainer.global_step == 2
        assert not torch.equal(before["layer.weight"], module.layer.weight)

    def test_every_fit_resumes_from_the_checkpoint_of_the_constructor(self, tmp_path: Path) -> None:
        whole = Regression()
        first = quiet_trainer(tmp_path, max_epochs=1)
        first.fit(whole, loader())
        first.save_checkpoint(tmp_path / "one.ckpt")
        resumed = Regression()
        trainer = quiet_trainer(tmp_path, max_epochs=2, **{"resume_from_checkpoint": tmp_path / "one.ckpt"})
        assert trainer.resume_from_checkpoint == tmp_path / "one.ckpt"
        trainer.fit(resumed, loader())
        quiet_trainer(tmp_path, max_epochs=2).fit(whole, loader(), ckpt_path=tmp_path / "one.ckpt")
        assert trainer.global_step == 8
        assert_same(weights(resumed), weights(whole))
        with pytest.raises(ValueError, match="`ckpt_path` must be left out, since the trainer was made with"):
            trainer.fit(resumed, loader(), ckpt_path="two.ckpt")

    def test_loaders_may_have_their_names_of_then(self, tmp_path: Path) -> None:
        trainer, module = quiet_trainer(tmp_path), Regression()
        trainer.fit(module, train_dataloader=loader(2), val_dataloaders=loader(1))
        assert trainer.global_step == 2
        assert trainer.validate(module, val_dataloaders=loader(1), verbose=False)[0].keys() == {"val_loss"}
        assert trainer.test(module, test_dataloaders=loader(1), verbose=False)[0].keys() == {"test_loss"}
        with pytest.raises(TypeError, match=r"Trainer.fit\(\) got an unexpected keyword argument 'train_loader'"):
            trainer.fit(module, train_loader=loader(2))
        with pytest.raises(ValueError, match="`train_dataloader` must be left out where the loader is passed"):
            trainer.fit(module, loader(2), train_dataloader=loader(2))

    def test_tuning_finds_a_rate_and_trains_nothing(self, tmp_path: Path) -> None:
        torch.manual_seed(1)
        module, logger = Regression(1e-6), ListLogger()
        before = weights(module)
        trainer = quiet_trainer(tmp_path, logger=logger, max_epochs=2, **{"auto_lr_find": True})
        found = trainer.tune(module, loader(8), lr_find_kwargs={"num_training": 30})
        assert found["lr_find"].suggestion() == module.hparams.learning_rate != 1e-6
        assert len(found["lr_find"].results["lr"]) <= 30
        assert_same(weights(module), before)
        assert (trainer.global_step, trainer.current_epoch, trainer.max_epochs, trainer.tuning) == (0, 0, 2, False)
        assert logger.rows == []
        trainer.fit(module, loader(8))
        assert trainer.global_step == 16

    def test_tuning_finds_a_batch_size(self, tmp_path: Path) -> None:
        class Sized(RegressionData):
            batch_size = 1

            def train_dataloader(self) -> Any:
                return torch.utils.data.DataLoader(loader().dataset, batch_size=self.batch_size)

        data = Sized()
        trainer = quiet_trainer(tmp_path, **{"auto_scale_batch_size": "binsearch"})
        found = trainer.tune(Regression(), datamodule=data, scale_batch_size_kwargs={"max_val": 8})
        assert found == {"scale_batch_size": 8}
        assert data.batch_size == 8

    def test_tuning_needs_something_to_search(self, tmp_path: Path) -> None:
        with pytest.raises(RuntimeError, match="`trainer` must be made with `auto_lr_find` or `auto_scale_batch_size`"):
            quiet_trainer(tmp_path).tune(Regression(), loader())

    def test_callbacks_of_releases_that_had_it_hear_that_the_trainer_is_made(self, tmp_path: Path) -> None:
        class Hearing(Callback):
            def on_init_start(self, trainer: Trainer) -> None:
                heard.append(hasattr(trainer, "fit_loop"))

            def on_init_end(self, trainer: Trainer) -> None:
                heard.append(hasattr(trainer, "fit_loop"))
                super().on_init_end(trainer)

        class Watching(Hearing):
            def on_train_epoch_end(self, trainer: Trainer, pl_module: Any, outputs: Any) -> None: ...

        class Old(Regression):
            def training_epoch_end(self, outputs: Any) -> None: ...

        heard: list[bool] = []
        Trainer(callbacks=[Watching()], logger=False, enable_checkpointing=False)
        assert heard == [False, True]
        Trainer(callbacks=[Hearing()], logger=False, gpus=0)
        assert heard == [False, True] * 2
        trainer = quiet_trainer(tmp_path, callbacks=[Hearing()], max_epochs=1)
        assert heard == [False, True] * 2
        with pytest.warns(HookFaultWarning, match="on_init_start: this hook belongs to"):
            trainer.fit(Regression(), loader(1))
        assert heard == [False, True] * 2
        for _ in range(2):
            trainer.fit(Old(), loader(1))  # in its company the callback is one of 1.x
        assert heard == [False, True] * 2 + [True, True]


class TestArgparse:
    def test_a_parser_reads_arguments_of_today_and_of_then(self, tmp_path: Path) -> None:
        parser = ArgumentParser()
        parser.add_argument("--lr", type=float, default=0.1)
        parser = Trainer.add_argparse_args(parser, max_epochs=7)
        words = "--gpus 0 --limit_val_batches 0.5 --limit_test_batches 3 --fast_dev_run --logger false --lr 0.2 "
        args = parser.parse_args([*words.split(), "--weights_summary", "full", "--default_root_dir", str(tmp_path)])
        assert args.lr == 0.2
        with pytest.warns(UserWarning, match=r"today:\n  `gpus=0` is .*\n  `weights_summary='full'` is"):
            trainer = Trainer.from_argparse_args(args, limit_test_batches=4, enable_progress_bar=False)
        assert (trainer.limit_val_batches, trainer.limit_test_batches) == (1, 1)  # those of a trial
        assert (trainer.fast_dev_run, trainer.loggers, trainer.weights_summary) == (True, [], "full")

    def test_what_nobody_chose_is_as_by_default(self, recwarn: pytest.WarningsRecorder) -> None:
        parser = Trainer.add_argparse_args(ArgumentParser())
        args = parser.parse_args([])
        without = {"catalogue", "save_only"}  # whose annotations have nothing that a text can be
        assert {name: value for name, value in vars(args).items() if name in _DEFAULTS} == {
            name: value for name, value in _DEFAULTS.items() if name not in without
        }
        trainer = Trainer.from_argparse_args(args, enable_progress_bar=False)
        assert trainer.max_epochs is None  # until a fit takes its default
        assert not [one for one in recwarn if "another form today" in str(one.message)]

    @pytest.mark.parametrize(
        ("words", "name", "value"),
        [
            ("--max_epochs 3", "max_epochs", 3),
            ("--max_epochs none", "max_epochs", None),
            ("--overfit_batches 0.1", "overfit_batches", 0.1),
            ("--overfit_batches 2", "overfit_batches", 2),
            ("--fast_dev_run 2", "fast_dev_run", 2),
            ("--barebones", "barebones", True),
            ("--inference_mode 0", "inference_mode", False),
            ("--precision 16", "precision", 16),
            ("--precision bf16-mixed", "precision", "bf16-mixed"),
            ("--accelerator cpu", "accelerator", "cpu"),
            ("--zero_grad after_optimizer_step", "zero_grad", "after_optimizer_step"),
            ("--max_time 00:01:00:00", "max_time", "00:01:00:00"),
            ("--gpus 0,1", "gpus", "0,1"),
            ("--auto_lr_find", "auto_lr_find", True),
            ("--val_percent_check 0.2", "val_percent_check", 0.2),
        ],
    )
    def test_words_become_values_of_the_right_kind(self, words: str, name: str, value: Any) -> None:
        args = Trainer.add_argparse_args(ArgumentParser()).parse_args(words.split())
        assert_same(getattr(args, name), value)

    def test_a_word_of_another_kind_is_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            Trainer.add_argparse_args(ArgumentParser()).parse_args(["--max_epochs", "many"])
        assert "argument --max_epochs: invalid int value: 'many'" in capsys.readouterr().err

    def test_an_option_of_the_script_stays_as_it_is(self) -> None:
        parser = ArgumentParser()
        parser.add_argument("--gpus", default="mine")
        assert Trainer.add_argparse_args(parser).parse_args([]).gpus == "mine"

    def test_a_default_needs_an_argument(self) -> None:
        with pytest.raises(TypeError, match="`max_epoch` must be a default for an argument of Trainer"):
            Trainer.add_argparse_args(ArgumentParser(), max_epoch=3)

    def test_a_parser_may_stand_for_what_it_reads(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sys.argv", ["train.py", "--max_epochs", "5"])
        parser = Trainer.add_argparse_args(ArgumentParser())
        assert Trainer.parse_argparser(parser).max_epochs == 5
        assert Trainer.from_argparse_args(parser, enable_progress_bar=False).max_epochs == 5


def test_a_subclass_takes_them_as_well() -> None:
    class Own(Trainer):
        pass

    with pytest.warns(UserWarning, match="max_nb_epochs"):
        assert Own(**{"max_nb_epochs": 2}).max_epochs == 2


def test_zero_means_that_nothing_is_clipped(tmp_path: Path) -> None:
    assert quiet_trainer(tmp_path, gradient_clip_val=0).gradient_clip_val is None
