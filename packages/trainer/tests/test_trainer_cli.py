from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("jsonargparse")

from cli_parts import ConfiguredNet, Data, DeepNet, Net, SmallNamingNet, Told
from jsonargparse import Namespace

import camshaft.callbacks as stock
from camshaft.callbacks import CSVLogger, EarlyStopping, LearningRateMonitor, TensorBoardLogger
from camshaft.strategies import DDPStrategy
from camshaft.trainer import Trainer, TrainingModule
from camshaft.trainer.cli import ReduceLROnPlateau, SaveConfigCallback, TrainerArgumentParser, TrainerCLI
from camshaft.trainer.cli.command_line import main

HERE = Path(__file__).parent
QUIET = {"enable_progress_bar": False, "enable_checkpointing": False, "logger": False, "max_epochs": 1}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
    return tmp_path


def cli(words: Any = "", model: Any = Net, data: Any = Data, kind: type[TrainerCLI] = TrainerCLI, **given: Any) -> Any:
    given.setdefault("trainer_defaults", QUIET)
    given.setdefault("run", False)
    return kind(model, data, args=words.split() if isinstance(words, str) else words, **given)


def refusal(capsys: pytest.CaptureFixture[str], words: str, **given: Any) -> str:
    with pytest.raises(SystemExit) as caught:
        cli(words, **given)
    assert caught.value.code == 2
    return capsys.readouterr().err


# what is made


def test_without_a_verb_the_objects_are_made_and_nothing_runs() -> None:
    made = cli("--model.width 5 --data.width 5 --trainer.max_epochs=4")
    assert (made.subcommand, made.model.layer.in_features, made.trainer.max_epochs) == (None, 5, 4)
    assert made.config.data.width == 5
    assert made.config_init.model is made.model
    assert made.datamodule.num_inputs == 5
    assert made.trainer.global_step == 0
    made.trainer.fit(made.model, datamodule=made.datamodule)
    assert made.trainer.global_step == 4


@pytest.mark.parametrize(
    "args",
    [
        ["--model.lr=0.5", "--trainer.logger=false"],
        {"model": {"lr": 0.5}, "trainer": {"logger": False}},
        Namespace(model=Namespace(lr=0.5), trainer=Namespace(logger=False)),
    ],
)
def test_arguments_may_be_words_or_a_configuration(args: Any) -> None:
    made = cli(args)
    assert (made.model.hparams.lr, made.trainer.logger) == (0.5, None)


def test_args_beside_words_of_the_process_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--model.lr=3"])
    with pytest.warns(UserWarning, match="`args` of .* overrides the command line"):
        cli("--model.lr=0.5")


def make_net(width: int = 7) -> Net:
    return Net(width, lr=0.25)


def make_trainer(max_epochs: int = 3, callbacks: Any = None) -> Trainer:
    return Trainer(max_epochs=max_epochs, callbacks=callbacks, enable_progress_bar=False, logger=False)


def test_functions_may_make_module_and_trainer() -> None:
    made = cli("--trainer.callbacks+=Told", make_net, trainer_class=make_trainer, trainer_defaults=None)
    assert (made.model.layer.in_features, made.trainer.max_epochs) == (7, 3)
    assert any(isinstance(one, Told) for one in made.trainer.callbacks)


class NarrowTrainer(Trainer):
    def __init__(self, speed: int, **others: Any) -> None:
        super().__init__(**others)
        self.speed = speed


def test_a_subclass_of_the_trainer_has_the_options_that_it_passes_on() -> None:
    made = cli("--trainer.speed 3 --trainer.callbacks=EarlyStopping --trainer.callbacks.monitor=loss",
               trainer_class=NarrowTrainer)  # fmt: skip
    assert made.trainer.speed == 3
    assert made.trainer.early_stopping_callback.monitor == "loss"


# short names


def test_any_module_and_data_module_may_be_named(folder: Path) -> None:
    (folder / "run.yaml").write_text("model: {class_path: DeepNet, init_args: {depth: 4, width: 3}}")
    made = cli("--config run.yaml --data cli_parts.Data --data.batch_size 2 --model.lr 0.5", None, None)
    assert type(made.model) is DeepNet
    assert (made.model.depth, made.model.hparams.lr, made.datamodule.batch_size) == (4, 0.5, 2)


def test_subclass_mode_refuses_other_classes(capsys: pytest.CaptureFixture[str]) -> None:
    assert type(cli("--model DeepNet", subclass_mode_model=True).model) is DeepNet
    assert "--model" in refusal(capsys, "--model camshaft.trainer.TrainingModule", subclass_mode_model=True)


def test_short_names_serve_callbacks_loggers_and_strategies_in_files_too(folder: Path) -> None:
    (folder / "run.yaml").write_text("""
trainer:
  callbacks:
  - class_path: EarlyStopping
    init_args: {monitor: val_loss}
  - class_path: LearningRateMonitor
  logger:
    class_path: TensorBoardLogger
    init_args: {save_dir: logs}
  strategy:
    class_path: DDPStrategy
    init_args: {find_unused_parameters: true}
""")
    made = cli("--config run.yaml")
    assert {EarlyStopping, LearningRateMonitor} <= {type(one) for one in made.trainer.callbacks}
    assert type(made.trainer.logger) is TensorBoardLogger
    assert type(made.trainer.strategy) is DDPStrategy
    assert made.config.trainer.callbacks[0].class_path == "camshaft.callbacks.EarlyStopping"
    assert cli("--trainer.strategy=single_device").trainer.strategy.world_size == 1


LOGGERS = {
    "CSVLogger": "save_dir=logs",
    "CurveReport": "save_dir=logs",
    "MLFlowLogger": "experiment_name=e",
    "TensorBoardLogger": "save_dir=logs",
    "WandbLogger": "save_dir=logs",
}


@pytest.mark.parametrize("name", LOGGERS)
def test_every_stock_logger_can_be_configured(name: str) -> None:
    made = cli(f"--trainer.logger={name} --trainer.logger.{LOGGERS[name]}")
    assert type(made.trainer.logger).__name__ == name


def test_every_stock_callback_with_defaults_can_be_configured() -> None:
    for name in stock.__all__:
        one = getattr(stock, name)
        if not inspect.isclass(one) or not issubclass(one, stock.Callback) or inspect.isabstract(one):
            continue
        needed = [each for each in inspect.signature(one).parameters.values() if each.default is each.empty]
        if not [each for each in needed if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]:
            parser = TrainerArgumentParser()
            parser.add_class_args(Trainer, "trainer")
            made = parser.instantiate(parser.parse_args([f"--trainer.callbacks+={name}"]))
            assert [type(each).__name__ for each in made.trainer.callbacks] == [name]


class CSVLoggerOfOurs(CSVLogger):
    pass


CSVLoggerOfOurs.__name__ = CSVLoggerOfOurs.__qualname__ = "CSVLogger"


def test_a_class_takes_the_place_of_one_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "CSVLogger", CSVLoggerOfOurs)
    made = cli("--trainer.logger=CSVLogger --trainer.logger.save_dir=logs")
    assert type(made.trainer.logger) is CSVLoggerOfOurs
    CSVLoggerOfOurs.__name__ = "CSVLoggerOfOurs"


# optimizers


def test_an_optimizer_and_a_scheduler_take_the_place_of_the_modules() -> None:
    with pytest.warns(UserWarning, match=r"`Net.configure_optimizers` will be overridden by `TrainerCLI"):
        made = cli("fit --optimizer Adam --optimizer.lr 0.5 --lr_scheduler StepLR --lr_scheduler.step_size 1", run=True)
    (optimizer,) = made.trainer.optimizers
    assert type(optimizer) is torch.optim.Adam
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)  # one step of the scheduler, at the epoch's end


@pytest.mark.filterwarnings("ignore:`Net.configure_optimizers` will be overridden")
def test_reduce_on_plateau_watches_what_monitor_says() -> None:
    words = "fit --optimizer SGD --optimizer.lr 0.1 --lr_scheduler ReduceLROnPlateau --lr_scheduler.monitor val_loss"
    made = cli(words, run=True)
    (config,) = made.trainer.lr_scheduler_configs
    assert isinstance(config.scheduler, ReduceLROnPlateau)
    assert config.monitor == "val_loss"


def test_without_an_optimizer_the_module_keeps_its_own() -> None:
    made = cli("--lr_scheduler StepLR --lr_scheduler.step_size 1")
    assert type(made.model.configure_optimizers()) is torch.optim.SGD
    assert "--optimizer" not in cli(auto_configure_optimizers=False).parser.format_help()


@pytest.mark.filterwarnings("ignore:`Net.configure_optimizers` will be overridden")
def test_a_class_of_optimizer_has_its_arguments_as_options_and_its_result_may_be_changed() -> None:
    class OwnCLI(TrainerCLI):
        def add_arguments_to_parser(self, parser: Any) -> None:
            parser.add_optimizer_args(torch.optim.Adam)
            parser.add_lr_scheduler_args(torch.optim.lr_scheduler.ExponentialLR)
            parser.set_defaults({"optimizer.lr": 0.75, "lr_scheduler.gamma": 0.5})

        @staticmethod
        def configure_optimizers(lightning_module: Any, optimizer: Any, lr_scheduler: Any = None) -> Any:
            return {"of": type(lightning_module), "lr": optimizer.defaults["lr"], "gamma": lr_scheduler.gamma}

    assert cli(kind=OwnCLI).model.configure_optimizers() == {"of": Net, "lr": 0.75, "gamma": 0.5}


class TwoOptimizersCLI(TrainerCLI):
    def add_arguments_to_parser(self, parser: Any) -> None:
        parser.add_optimizer_args((torch.optim.Optimizer,), "first", link_to="model.first")
        parser.add_optimizer_args(torch.optim.Adam, "second", link_to="model.second")


class TakesOptimizers(TrainingModule):
    def __init__(self, first: dict[str, Any], second: dict[str, Any]) -> None:
        super().__init__()
        self.names = [first["class_path"], second["class_path"], second["init_args"]["lr"]]


def test_optimizers_are_linked_to_arguments() -> None:
    made = cli("--first SGD --second.lr 0.5", TakesOptimizers, kind=TwoOptimizersCLI)
    assert made.model.names == ["torch.optim.SGD", "torch.optim.adam.Adam", 0.5]


def test_two_optimizers_for_the_module_are_refused() -> None:
    class OwnCLI(TrainerCLI):
        def add_arguments_to_parser(self, parser: Any) -> None:
            parser.add_optimizer_args(torch.optim.Adam, "first")
            parser.add_optimizer_args(torch.optim.Adam, "second")

    with pytest.raises(ValueError, match=r"`link_to` must be given to all but one optimizer and one scheduler"):
        cli(kind=OwnCLI)


# options of one's own


class LinkingCLI(TrainerCLI):
    def add_arguments_to_parser(self, parser: Any) -> None:
        parser.add_argument("--note", default="none")
        parser.link_arguments("data.batch_size", "model.lr", compute_fn=lambda size: size / 10)
        parser.link_arguments("data.num_inputs", "model.width", apply_on="instantiate")
        parser.add_class_args(Told, "told")
        parser.set_defaults({"told.text": "default"})


def test_arguments_are_linked_when_parsed_and_when_made() -> None:
    made = cli("--data.batch_size 5 --data.width 4 --note x --told.text y", kind=LinkingCLI)
    assert (made.model.hparams.lr, made.model.layer.in_features, made.config.note) == (0.5, 4, "x")
    assert [one.text for one in made.trainer.callbacks if isinstance(one, Told)] == ["y"]
    assert made.model.hparams.width == 4


def test_methods_around_a_verb_and_in_its_place_are_called() -> None:
    calls: list[Any] = []

    class OwnCLI(TrainerCLI):
        def before_instantiate_classes(self) -> None:
            calls.append(hasattr(self, "model"))

        def after_instantiate_classes(self) -> None:
            calls.append(hasattr(self, "trainer"))

        def before_fit(self) -> None:
            calls.append("before")

        def after_fit(self) -> None:
            calls.append(self.trainer.global_step)

        def validate(self, **options: Any) -> None:
            calls.append(sorted(options))

    cli("fit", kind=OwnCLI, run=True)
    assert calls == [False, True, "before", 1]
    cli("validate --verbose=false", kind=OwnCLI, run=True)
    assert calls[-1] == ["ckpt_path", "datamodule", "model", "verbose", "weights_only"]


def test_a_verb_of_ones_own_has_its_arguments_as_options() -> None:
    class Exporter(Trainer):
        def export(self, model: Any, to: str, datamodule: Any = None) -> None:
            """Write a file."""
            self.exported = to

    class OwnCLI(TrainerCLI):
        @staticmethod
        def subcommands() -> dict[str, set[str]]:
            return {**TrainerCLI.subcommands(), "export": {"model", "datamodule"}}

    assert cli("export --to x.onnx", kind=OwnCLI, run=True, trainer_class=Exporter).trainer.exported == "x.onnx"


def test_defaults_of_the_trainer_and_its_callbacks_are_always_there() -> None:
    told = Told("always")
    listed = {**QUIET, "max_epochs": 7, "callbacks": [told, {"class_path": "cli_parts.Told"}]}
    made = cli("--trainer.callbacks+=EarlyStopping --trainer.callbacks.monitor=x", trainer_defaults=listed)
    assert made.trainer.max_epochs == 7
    assert [type(one) for one in made.trainer.callbacks[:3]] == [EarlyStopping, Told, Told]
    assert made.instantiate_trainer(max_epochs=9).max_epochs == 9


# files and the environment


def test_later_files_and_words_go_before_earlier_ones(folder: Path) -> None:
    (folder / "a.yaml").write_text("model: {lr: 0.1, width: 4}\ntrainer: {max_epochs: 2}")
    (folder / "b.yaml").write_text("model: {lr: 0.2}")
    made = cli("--config a.yaml --config b.yaml --trainer.max_epochs 5")
    assert (made.model.hparams.lr, made.model.hparams.width, made.trainer.max_epochs) == (0.2, 4, 5)


def test_a_file_of_all_verbs_goes_before_the_verb_and_parts_have_files(folder: Path) -> None:
    (folder / "all.yaml").write_text("fit: {model: {lr: 0.3}}\ntest: {model: {lr: 0.4}}")
    (folder / "trainer.yaml").write_text("max_epochs: 2")
    made = cli("--config all.yaml fit --trainer trainer.yaml", run=True)
    assert (made.model.hparams.lr, made.trainer.current_epoch) == (0.3, 2)


def test_what_is_printed_is_read_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli("--model.lr 0.5 --optimizer Adam --trainer.callbacks+=EarlyStopping --trainer.callbacks.monitor x "
            "--print_config")  # fmt: skip
    (folder / "printed.yaml").write_text(capsys.readouterr().out)
    with pytest.warns(UserWarning, match="overridden"):
        made = cli("--config printed.yaml")
    assert (made.model.hparams.lr, made.trainer.early_stopping_callback.monitor) == (0.5, "x")


def test_the_environment_is_read_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAMSHAFT_MODEL__LR", "0.5")
    assert cli().model.hparams.lr == 0.1
    made = cli(parser_kwargs={"default_env": True})
    assert made.model.hparams.lr == 0.5
    assert "CAMSHAFT_TRAINER__MAX_EPOCHS" in made.parser.format_help()


def test_the_configuration_is_saved_once_and_never_overwritten_silently(folder: Path) -> None:
    made = cli("fit --model.lr 0.5 --seed_everything 3", run=True)
    saved = folder / "config.yaml"
    assert "lr: 0.5" in saved.read_text()
    assert "seed_everything: 3" in saved.read_text()
    made.trainer.validate(made.model, datamodule=made.datamodule)  # saves nothing again
    with pytest.raises(RuntimeError, match=r"config.yaml.*Delete it, or pass `save_config_kwargs"):
        cli("fit", run=True)
    cli("fit --model.lr 0.25", run=True, save_config_kwargs={"overwrite": True})
    assert "lr: 0.25" in saved.read_text()
    cli("fit --config config.yaml", run=True, save_config_kwargs={"config_filename": "again.yaml"})
    assert "lr: 0.25" in (folder / "again.yaml").read_text()
    saved.unlink()
    cli("fit", run=True, save_config_callback=None)
    cli("fit --trainer.fast_dev_run=true", run=True)
    assert not saved.exists()


def test_a_configuration_may_be_saved_elsewhere(folder: Path) -> None:
    class Elsewhere(SaveConfigCallback):
        def save_config(self, trainer: Any, pl_module: Any, stage: str) -> None:
            Path("elsewhere.yaml").write_text(self.parser.dump(self.config, skip_unset=False))

    cli("fit", run=True, save_config_callback=Elsewhere, save_config_kwargs={"save_to_log_dir": False})
    assert (folder / "elsewhere.yaml").exists()
    assert not (folder / "config.yaml").exists()
    with pytest.raises(ValueError, match="`save_to_log_dir=False` only makes sense"):
        SaveConfigCallback(None, None, save_to_log_dir=False)


@pytest.mark.parametrize(
    ("default", "words", "seed"),
    [
        (True, "", 0),
        (False, "", False),
        (7, "", 7),
        (7, "--seed_everything=false", False),
        (False, "--seed_everything=true", 0),
        (True, "--seed_everything 3", 3),
    ],
)
def test_seeds(default: bool | int, words: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = cli(words, seed_everything_default=default)
    assert made.config["seed_everything"] == seed
    assert type(made.config["seed_everything"]) is type(seed)
    if default is True and not words:
        monkeypatch.setenv("PL_GLOBAL_SEED", "123")
        assert cli(words, seed_everything_default=default).config["seed_everything"] == 123


# checkpoints


SAVING = {**QUIET, "enable_checkpointing": True}


def saved_by(words: str, folder: Path, **given: Any) -> str:
    cli(f"fit {words}", run=True, trainer_defaults=SAVING, save_config_callback=None, **given)
    (path,) = folder.glob("**/*.ckpt")
    return str(path)


def test_a_module_is_loaded_from_a_checkpoint_of_a_command_line(folder: Path) -> None:
    path = saved_by("--model.lr 0.5", folder)
    assert Net.load_from_checkpoint(path).hparams.lr == 0.5
    assert Data.load_from_checkpoint(path).batch_size == 8


def test_classes_that_a_checkpoint_names_are_imported_only_where_it_is_trusted(folder: Path) -> None:
    words = "--model.optimizer Adam --model.optimizer.lr 0.5 --model.activation torch.nn.ReLU"
    path = saved_by(words, folder, model=ConfiguredNet, auto_configure_optimizers=False)
    with pytest.raises(ValueError, match=r"`weights_only` must be False .*optimizer.*torch.optim.Adam"):
        ConfiguredNet.load_from_checkpoint(path)
    module = ConfiguredNet.load_from_checkpoint(path, weights_only=False)
    (optimizer,), _ = module.configure_optimizers()
    assert type(optimizer) is torch.optim.Adam
    assert optimizer.defaults["lr"] == 0.5
    assert type(module.activation) is torch.nn.ReLU
    chosen = {"optimizer": torch.optim.SGD, "scheduler": None, "activation": None}
    assert ConfiguredNet.load_from_checkpoint(path, **chosen).optimizer is torch.optim.SGD


def test_a_module_may_name_what_it_saves() -> None:
    made = cli("--model.optimizer Adam", SmallNamingNet, auto_configure_optimizers=False)
    assert made.model.hparams.depth == 1
    assert made.model.hparams.optimizer["class_path"] == "torch.optim.Adam"
    assert set(made.model.hparams) == {"depth", "optimizer", "_instantiator"}
    plain = SmallNamingNet()
    assert plain.hparams.optimizer is torch.optim.SGD


def test_hyperparameters_may_be_saved_as_they_are() -> None:
    made = cli("--model.activation torch.nn.ReLU", ConfiguredNet, auto_configure_optimizers=False,
               load_from_checkpoint_support=False)  # fmt: skip
    assert type(made.model.hparams.activation) is torch.nn.ReLU


def test_a_checkpoint_decides_on_the_arguments_of_the_module(folder: Path) -> None:
    path = saved_by("--model.lr 0.5", folder)
    with pytest.warns(UserWarning, match=r"override options: model.lr = 0.5 \(was 0.25\)"):
        made = cli(f"test --model.lr 0.25 --ckpt_path {path}", run=True, save_config_callback=None)
    assert made.model.hparams.lr == 0.5


@pytest.mark.filterwarnings("ignore:The hyperparameters in")
def test_a_class_that_only_a_checkpoint_names_is_refused_unless_it_is_trusted(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved_by("--model DeepNet --model.depth 5", folder, subclass_mode_model=True)
    given: dict[str, Any] = {"subclass_mode_model": True, "run": True, "save_config_callback": None}
    assert "Choose them, or pass --weights_only=false" in refusal(
        capsys, f"test --model Net --ckpt_path {path}", **given
    )
    made = cli(f"test --model Net --ckpt_path {path} --weights_only=false", **given)
    assert type(made.model) is DeepNet
    assert made.model.depth == 5


# messages


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--trainer.max_epochs=abc", "--trainer.max_epochs must be int or null, but got 'abc'."),
        ("--trainer.accumulate_grad_batches=x", "--trainer.accumulate_grad_batches must be int, but got 'x'."),
        ("--model.lr=x", "--model.lr must be float, but got 'x'."),
        ("--trainer.logger=TensorBoardLoger", "got 'TensorBoardLoger'. Did you mean 'TensorBoardLogger'?"),
        ("--trainer.callbacks+=Timr", "got 'Timr'. Did you mean 'Timer'?"),
        ("--trainer.callbacks+=Timer --trainer.callbacks.verbose=x", "--trainer.callbacks.verbose must be bool"),
        ("--trainer.logger=TensorBoardLogger", "are required: save_dir"),
        ("--optimizer Adm", "got 'Adm'. Did you mean 'Adam'?"),
        ("--optimizer Adam --optimizer.lr=x", "--optimizer.lr must be float or Tensor, but got 'x'."),
        ("--seed 3", "Did you mean 'seed_everything'?"),
    ],
)
def test_a_bad_value_names_its_option(words: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    message = refusal(capsys, words)
    assert told in message
    assert len(message.splitlines()) <= 3


def test_the_error_of_a_constructor_is_told_as_it_was_raised(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--trainer.callbacks+=Timer --trainer.callbacks.interval=x"
    with pytest.raises(ValueError, match="`interval` must be 'step' or 'epoch'") as raised:
        cli(words)
    assert raised.value.__cause__ is None
    with pytest.raises(SystemExit):
        main(["fit", "--model=cli_parts.Net", *words.split()])
    assert "error: `interval` must be 'step' or 'epoch'" in capsys.readouterr().err


def test_the_help_is_short_and_by_topic(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["fit", "--help"])
    told = capsys.readouterr().out
    assert len(told.splitlines()) <= 120
    for name in inspect.signature(Trainer).parameters:
        assert (f"--trainer.{name}" in told) is (name != "catalogue")  # which has no words
    for text in ("Trainer: length of a run", "--model.help", "--data.help", "--print_config", "--trainer.help"):
        assert text in told
    assert "torch.nn" not in told
    assert "other options" not in told  # every argument has a topic
    with pytest.raises(SystemExit):
        main(["fit", "--trainer.help"])
    assert "`should_stop` does not count before." in " ".join(capsys.readouterr().out.split())
    with pytest.raises(SystemExit):
        main(["fit", "--trainer.callbacks.help=EarlyStopping"])
    assert "--trainer.callbacks.patience" in capsys.readouterr().out


def test_a_missing_checkpoint_and_run_are_told_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["fit", "--model", "cli_parts.Net", "--ckpt_path", "no.ckpt"], ["run", "script.py"]):
        with pytest.raises(SystemExit) as caught:
            main(words)
        message = capsys.readouterr().err
        assert caught.value.code == 2
        assert len(message.splitlines()) == 1
        assert "no.ckpt" in message or "python -m camshaft.compat run SCRIPT" in message


@pytest.mark.processes
@pytest.mark.usefixtures("forked_python")
def test_a_missing_and_a_damaged_checkpoint_end_the_process_with_status_2(folder: Path) -> None:
    (folder / "bad.ckpt").write_bytes(b"nothing")
    for path in ("no.ckpt", "bad.ckpt"):
        words = ["fit", "--model=cli_parts.Net", "--data=cli_parts.Data", "--ckpt_path", path]
        command = [sys.executable, "-m", "camshaft.trainer", *words]
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": str(HERE)}
        )
        assert result.returncode == 2, result.stderr
        assert "Traceback" not in result.stderr
        assert path in result.stderr.splitlines()[-1]


SCRIPT = """
from cli_parts import Data, Net
from camshaft.trainer.cli import TrainerCLI

if __name__ == "__main__":
    quiet = {"enable_progress_bar": False, "enable_checkpointing": False, "accelerator": "cpu", "max_epochs": 1}
    TrainerCLI(Net, Data, trainer_defaults={**quiet, "devices": 2, "logger": False})
"""


@pytest.mark.processes
@pytest.mark.usefixtures("forked_python")
def test_two_processes_save_one_configuration_and_refuse_together(folder: Path) -> None:
    (folder / "train.py").write_text(SCRIPT)

    def run() -> Any:
        return subprocess.run(
            [sys.executable, "train.py", "fit", "--model.lr=0.5"],
            capture_output=True,
            text=True,
            timeout=180,
            env={**os.environ, "PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"},
        )

    first = run()
    assert first.returncode == 0, first.stderr
    assert "lr: 0.5" in (folder / "config.yaml").read_text()
    second = run()
    assert second.returncode != 0
    assert "overwriting" in second.stderr


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("camshaft.trainer.cli")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jsonargparse", None)
    with pytest.raises(ModuleNotFoundError, match=r"camshaft-trainer\[cli\]"):
        import camshaft.trainer.cli  # noqa: F401


class Twice(Told):
    """A callback of the same name as another."""


def test_a_short_name_of_two_classes_is_refused_with_their_paths(capsys: pytest.CaptureFixture[str]) -> None:
    message = refusal(capsys, "--trainer.callbacks+=Twice")
    assert f"{__name__}.Twice" in message
    assert "cli_parts.Twice" in message
