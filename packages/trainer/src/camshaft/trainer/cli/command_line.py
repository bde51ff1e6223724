"""The command line: `python -m camshaft.trainer {fit,validate,test,predict,replay,bisect}`."""

from __future__ import annotations

import os
import re
import sys
from bdb import BdbQuit
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from camshaft.callbacks import LedgerError
from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.remote_files import exists, join, local_copy, local_path
from camshaft.strategies import CheckpointError
from camshaft.trainer.cli import SaveConfigCallback, TrainerCLI

_ABOUT = (
    "Train and evaluate a module, and go back to a step of a run; `compare RUN RUN` compares two runs by their "
    "ledgers, `replay FOLDER` makes a captured step again."
)
_SCRIPTS = "A script that imports pytorch_lightning or lightning is run by `python -m camshaft.compat run SCRIPT`."
_OTHER_WORDS = {"--to-step": "--to_step", "--pdb": "--debug=true"}
_FOUND_BY_TRAINER = ("best", "last")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb of a trainer, configured by words and files.

    Args:
        arguments: The words of the command line; the process's own by default.

    Returns:
        The exit code: 0; 1 if a replay departs from the ledger. Other errors of the verb are not caught.

    Raises:
        SystemExit: With 2 if the arguments cannot be carried out, after a message on the standard error; with 0 after
            `--help` and `--print_config`.
    """
    words = [_with_dots(word) for word in (sys.argv[1:] if arguments is None else arguments)]
    if words[:1] == ["run"]:
        _refuse(f"`run` is no verb of a trainer. {_SCRIPTS}")
    return _CommandLine(words).status


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


class _CommandLine(TrainerCLI):
    """The command line of any module, whose errors about arguments are told in a line."""

    status = 0

    def __init__(self, words: list[str]) -> None:
        parsers = {"prog": "python -m camshaft.trainer", "description": f"{_ABOUT} {_SCRIPTS}"}
        saving = {"overwrite": True}  # of the same configuration only
        super().__init__(
            save_config_callback=NumberedConfig, save_config_kwargs=saving, parser_kwargs=parsers, args=words
        )

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Return the verbs, and those that go back to a step."""
        verbs = TrainerCLI.subcommands()
        return {**verbs, "replay": verbs["fit"], "bisect": verbs["fit"]}

    def parse_arguments(self, parser: Any, args: Any) -> None:
        """Parse the words."""
        self.config = parser.parse_args(args)
        self._check_checkpoint()

    def instantiate_classes(self) -> None:
        """Make the objects; what a stock callback or a logger refuses is an error of the options."""
        try:
            super().instantiate_classes()
        except InvalidArgumentError as error:
            self._parser(self.subcommand).error(str(error))

    def instantiate_trainer(self, **kwargs: Any) -> Any:
        """Return a trainer; what it refuses is an error of the options."""
        try:
            return super().instantiate_trainer(**kwargs)
        except (TypeError, ValueError) as error:
            named = re.match(r"`(\w+)` must be", str(error))
            option = f"--trainer.{named[1]}: " if named and named[1] in self._get(self.config_init, "trainer") else ""
            self._parser(self.subcommand).error(f"{option}{error}")

    def predict(self, **options: Any) -> None:
        """Predict for the callbacks alone, as nobody takes what is returned."""
        self.trainer.predict(**{**options, "return_predictions": False})

    def replay(self, **options: Any) -> None:
        """Replay, and print what the steps of the update computed."""
        with self._replay_errors_in_a_line(), suppress(BdbQuit):
            for step in self.trainer.replay(**options):
                loss = "none" if step.loss is None else f"{step.loss.item():.6g}"
                print(f"Step {step.step:,}, epoch {step.epoch}, batch {step.batch_idx}: the loss is {loss}.")
                print(f"{step.inspection}\n")

    def bisect(self, **options: Any) -> None:
        """Bisect, and print the step that was found."""
        with self._replay_errors_in_a_line():
            found, name = self.trainer.bisect(**options), options["when"].__name__
            print(f"`{name}` holds after step {found:,}, and does not after the step before.")

    @contextmanager
    def _replay_errors_in_a_line(self) -> Iterator[None]:
        from camshaft.callbacks import DepartureError  # slow to import, and rarely needed

        try:
            yield
        except DepartureError as error:
            print("\n".join([f"error: {error}", *error.__notes__]), file=sys.stderr)
            self.status = 1
        except (InvalidArgumentError, LedgerError, FileNotFoundError) as error:
            _refuse(str(error))

    def _take_arguments_of_checkpoint(self) -> None:
        with _checkpoint_errors_in_a_line():
            super()._take_arguments_of_checkpoint()

    def _run_subcommand(self, subcommand: str) -> None:
        with _checkpoint_errors_in_a_line():
            super()._run_subcommand(subcommand)

    def _check_checkpoint(self) -> None:
        config = self.config[self.config.subcommand]
        path = config.get("ckpt_path")
        if self.config.subcommand == "replay" and path:
            from camshaft.trainer.replay.replayed_fit import nearest_checkpoint  # slow to import, and rarely needed

            with self._replay_errors_in_a_line():
                path = config["ckpt_path"] = os.fspath(nearest_checkpoint(path, config["to_step"] - 1) or path)
        if path and path not in _FOUND_BY_TRAINER and not exists(local_path(path)):
            action = "Check the path."
            _refuse(must_be("--ckpt_path", "an existing checkpoint, 'best' or 'last'", path, "options", action))


@contextmanager
def _checkpoint_errors_in_a_line() -> Iterator[None]:
    try:
        yield
    except CheckpointError as error:
        _refuse(" ".join(str(error).split()))


def _refuse(message: str) -> NoReturn:
    """Print an error in a line, and exit with 2."""
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(2)


def _with_dots(word: str) -> str:
    """Return a word with its class path `module:Class`, alone or after an option and "=", as `module.Class`."""
    option, equals, value = word.partition("=")
    word = _OTHER_WORDS.get(option, option) + equals + value
    return re.sub(r"^((?:--[\w.+]+=)?[A-Za-z_][\w.]*):([A-Za-z_]\w*)$", r"\1.\2", word)
