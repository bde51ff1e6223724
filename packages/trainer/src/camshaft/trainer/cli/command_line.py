"""The command line: `python -m camshaft.trainer {fit,validate,test,predict,preflight}`."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.hooks_core.support.messages import must_be
from camshaft.hooks_core.support.remote_files import exists, join, local_copy, local_path
from camshaft.strategies import CheckpointError
from camshaft.trainer.added_commands import added_commands
from camshaft.trainer.cli import SaveConfigCallback, TrainerCLI

_PROG = "python -m camshaft.trainer"
_ABOUT = "Train and evaluate a module."
_SCRIPTS = "A script that imports pytorch_lightning or lightning is run by `python -m camshaft.compat run SCRIPT`."
_FOUND_BY_TRAINER = ("best", "last")


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
    words = sys.argv[1:] if arguments is None else list(arguments)
    others = sorted([*added_commands(), "plugins"])
    commands = [*CommandLine.subcommands(), *others]
    if words and not words[0].startswith("-") and words[0] not in commands:
        [nearest] = difflib.get_close_matches(words[0], commands, n=1, cutoff=0)
        action = _SCRIPTS if words[0] == "run" else f"Did you mean {nearest!r}?"
        refuse(must_be("command", f"one of {', '.join(commands)}", words[0], _PROG, action))
    further = f" Further commands: {', '.join(f'`{name}`' for name in others)}; each has `--help`."
    CommandLine(words, _PROG, f"{_ABOUT} {_SCRIPTS}{further}")
    return 0


class NumberedConfig(SaveConfigCallback):
    """Saves the configuration with a number in its name if another run has left one in the folder."""

    def choose_path(self, log_dir: str) -> str:
        """Return the first path that is free, or has the same configuration."""
        path, num_others = join(log_dir, self.config_filename), 0
        text = self.parser.dump(self.config, skip_unset=False)
        while exists(path) and not _text_of(path).endswith(text):
            num_others += 1
            path = join(log_dir, f"{Path(self.config_filename).stem}_{num_others}.yaml")
        return path


def _text_of(path: str) -> str:
    with local_copy(path) as file:
        return file.read_text(encoding="utf-8")


class CommandLine(TrainerCLI):
    """The command line of any module, whose errors about arguments take one line.

    Args:
        words: The words of the command line; classes may be written `module:Class`.
        prog: The command, for help and errors.
        about: The description in the help.
    """

    def __init__(self, words: Sequence[str], prog: str, about: str) -> None:
        try:
            super().__init__(
                save_config_callback=NumberedConfig,
                save_config_kwargs={"overwrite": True},  # of the same configuration only
                parser_kwargs={"prog": prog, "description": about},
                args=[_with_dots(word) for word in words],
            )
        except CheckpointError as error:
            refuse(" ".join(str(error).split()))

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Return the verbs, and `preflight`."""
        verbs = TrainerCLI.subcommands()
        return {**verbs, "preflight": verbs["fit"]}

    def parse_arguments(self, parser: Any, args: Any) -> None:
        """Parse the words, and check that the checkpoint exists."""
        self.config = parser.parse_args(args)
        path = self.config[self.config.subcommand].get("ckpt_path")
        if path and path not in _FOUND_BY_TRAINER and not exists(local_path(path)):
            action = "Check the path."
            refuse(must_be("--ckpt_path", "an existing checkpoint, 'best' or 'last'", path, "options", action))

    def instantiate_classes(self) -> None:
        """Make the objects; report an argument that a stock callback or logger refuses as an error of the options."""
        if self.subcommand == "preflight":
            self._join_simulated_world()
        try:
            super().instantiate_classes()
        except InvalidArgumentError as error:
            self._parser(self.subcommand).error(str(error))

    def instantiate_trainer(self, **kwargs: Any) -> Any:
        """Return a trainer; report an argument that it refuses as an error of the options."""
        if self.subcommand == "preflight":  # on this machine's CPU, as a rank of the simulated world
            kwargs |= {"accelerator": "cpu", "devices": "auto", "num_nodes": 1}
        try:
            return super().instantiate_trainer(**kwargs)
        except (TypeError, ValueError) as error:
            named = re.match(r"`(\w+)` must be", str(error))
            option = f"--trainer.{named[1]}: " if named and named[1] in self._get(self.config_init, "trainer") else ""
            self._parser(self.subcommand).error(f"{option}{error}")

    def predict(self, **options: Any) -> None:
        """Predict for the callbacks alone, without returning predictions."""
        self.trainer.predict(**{**options, "return_predictions": False})

    def preflight(self, **options: Any) -> None:
        """Print what a fit needs, and leave the simulated world."""
        with self._world:
            self.trainer.preflight(**options)

    def _join_simulated_world(self) -> None:
        from camshaft.trainer.preflight import simulated_world  # slow to import

        config, self._world = self.config_of_run, ExitStack()
        numbers = [config[name] for name in ("world_size", "devices_per_node")]
        try:
            self._world.enter_context(simulated_world(*numbers))
        except ValueError as error:
            self._parser(self.subcommand).error(str(error))
        self.save_config_callback = None


def refuse(message: str) -> NoReturn:
    """Print an error in a line, and exit with 2."""
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(2)


def _with_dots(word: str) -> str:
    """Return a word with its class path `module:Class` as `module.Class`, and with `--an-option` as `--an_option`."""
    word = re.sub(r"^--[a-z][a-z-]*(?==|$)", lambda name: "--" + name[0][2:].replace("-", "_"), word)
    return re.sub(r"^((?:--[\w.+]+=)?[A-Za-z_][\w.]*):([A-Za-z_]\w*)$", r"\1.\2", word)
