"""The command line: `python -m camshaft.trainer {fit,validate,test,predict}`."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from camshaft.hooks_core import Callback, DataHooks, StrategyDefaults
from camshaft.hooks_core.spec import VERBS
from camshaft.trainer.seeding import seed_everything
from camshaft.trainer.trainer import Trainer

try:
    from camshaft.trainer.cli.option_parser import OptionParser
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "The command line needs jsonargparse. Install the extra: camshaft-trainer[cli].", name=error.name
    ) from error


class _Logger(Protocol):
    """The method that identifies a logger's class: the parser compares whole signatures, annotations included."""

    def finalize(self, status: str) -> None: ...


# Types of arguments that take many forms, restricted to those of a command line or a file.
_TRAINER_TYPES: dict[str, Any] = {
    "callbacks": list[Callback] | Callback | None,
    "logger": bool | list[_Logger] | _Logger | None,
    "strategy": StrategyDefaults | str,
    "devices": int | list[int] | str,
    "precision": int | str | None,
}
_GIVEN_OTHERWISE = {"model", "datamodule", "dataloaders", "train_dataloaders", "val_dataloaders", "return_predictions"}
_ALL = "Train and evaluate modules; or `run SCRIPT`, a file that imports pytorch_lightning or lightning, as it is."
_ABOUT = {
    "fit": "Train a module, and save it.",
    "validate": "Run the validation of a module once.",
    "test": "Run the test of a module once.",
    "predict": "Predict every batch, for callbacks that write predictions.",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb of a trainer, configured by words and files.

    Args:
        arguments: The words of the command line; the process's own by default.

    Returns:
        The exit code, 0. Errors of the verb are not caught.

    Raises:
        SystemExit: With 2 if the arguments cannot be carried out, after a message on the standard error; with 0 after
            `--help` and `--print_config`.
    """
    words = sys.argv[1:] if arguments is None else arguments
    parsers = {verb: _parser_of(verb) for verb in VERBS}
    parser = OptionParser(prog="python -m camshaft.trainer", description=_ALL)
    verbs = parser.add_subcommands(required=True)
    for verb, verb_parser in parsers.items():
        verbs.add_subcommand(verb, verb_parser, help=_ABOUT[verb])
    config = parser.parse_args([_with_dots(word) for word in words])
    verb = config.subcommand
    if config[verb].seed is not None:
        seed_everything(config[verb].seed)  # the module draws its first weights
    given = parser.instantiate(config)[verb]
    try:
        trainer = Trainer(**vars(given.trainer))
    except (TypeError, ValueError) as error:
        parser.error(str(error))
    if verb == "fit":
        trainer.callbacks.append(ConfigFile(parsers[verb].dump(config[verb])))
    options = {name: getattr(given, name) for name in vars(given) if name in _options_of(verb)}
    if verb == "predict":
        options["return_predictions"] = False  # no caller takes them
    getattr(trainer, verb)(given.model, datamodule=given.data, **options)
    return 0


class ConfigFile(Callback):
    """Writes the configuration of a run beside its logs, as `config.yaml`, or with a number if there is one.

    Args:
        config: The configuration, in YAML.
    """

    def __init__(self, config: str) -> None:
        self._config = config

    def setup(self, trainer: Trainer, module: Any, stage: str) -> None:
        """Write the file, once there is a folder for this run's logs."""
        log_dir = trainer.logger.log_dir if trainer.is_global_zero and trainer.logger is not None else None
        if log_dir is None or trainer.fast_dev_run:
            return
        folder = Path(log_dir)
        folder.mkdir(parents=True, exist_ok=True)
        path, num_others = folder / "config.yaml", 0
        while path.exists() and path.read_text(encoding="utf-8") != self._config:
            num_others += 1
            path = folder / f"config_{num_others}.yaml"
        path.write_text(self._config, encoding="utf-8")


def _parser_of(verb: str) -> OptionParser:
    parser = OptionParser(description=_ABOUT[verb])
    parser.add_argument("--config", action="config", help="a file in YAML with any of these options")
    parser.add_argument("--seed", type=int | None, default=None, help="seeds Python, NumPy and torch")
    parser.add_class_arguments(Trainer, "trainer", skip=set(_TRAINER_TYPES), fail_untyped=False, instantiate=False)
    for name, kind in _TRAINER_TYPES.items():
        default = "auto" if name in ("strategy", "devices") else None
        parser.add_argument(f"--trainer.{name}", type=kind, default=default, help=f"see Trainer: {name}")
    parser.add_subclass_arguments(nn.Module, "model", required=True, fail_untyped=False)
    parser.add_subclass_arguments(DataHooks, "data", required=False, fail_untyped=False)
    parser.add_method_arguments(Trainer, verb, skip=_GIVEN_OTHERWISE, fail_untyped=False)
    return parser


def _options_of(verb: str) -> set[str]:
    return set(inspect.signature(getattr(Trainer, verb)).parameters) - _GIVEN_OTHERWISE - {"self"}


def _with_dots(word: str) -> str:
    """Return a word with its class path `module:Class`, alone or after an option and "=", as `module.Class`."""
    return re.sub(r"^((?:--[\w.+]+=)?[A-Za-z_][\w.]*):([A-Za-z_]\w*)$", r"\1.\2", word)
