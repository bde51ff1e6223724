"""The commands `compare`, `ledger`, `replay` and `bisect`, which take the words after them and return a status."""

from __future__ import annotations

import argparse
import sys
from bdb import BdbQuit
from collections.abc import Callable, Sequence
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.forensics.compare import compare as compare_runs
from camshaft.forensics.compare import draw
from camshaft.forensics.ledger.ledger_check import DepartureError
from camshaft.forensics.ledger.ledger_file import LedgerError
from camshaft.forensics.replay.step_capture import CaptureError, circumstances, find_capture, make_again, module_for
from camshaft.forensics.samples import compare_data, exactly_once
from camshaft.hooks_core import HookFaultError

EQUAL, DIFFERS, BAD_INPUT = 0, 1, 2
"""Exit statuses, as those of `cmp` and `diff`."""

_COMPARE = """Tell the first update at which two runs part, and in what, by the ledgers that RunLedger kept.
Exits with 0 if they are equal, 1 if they part, 2 if they cannot be compared."""
_LEDGER = """Tell what the ledger that RunLedger kept of a run says of its samples. Exits with 0 if each epoch saw each
sample once (those that fill the last batches apart), 1 if not, 2 if the ledger does not tell."""
_REPLAY = """Make the training step again that NonFiniteGuard or SpikeDetection captured, print statistics of what its
submodules computed, and name the first that is not finite. Exits with 0 if its loss equals the captured one bit for
bit, 1 if not, 2 if there is no such capture or no module for it. With `--to-step NUMBER` make a step of a run again
that was not captured; the options are those of `fit`, see `replay --to-step NUMBER --help`."""
_OF_RUN = """Go back to a step of a run: the options are those of its `fit`. Exits with 0, with 1 if the run departs
from its ledger, and with 2 if the options do not fit it."""
_OTHER_WORDS = {"--to-step": "--to_step", "--pdb": "--debug=true"}


def compare(words: Sequence[str]) -> int:
    """Compare two runs, and print a report.

    Args:
        words: The words after `compare`.

    Returns:
        The exit status, which is 0 if they are equal, 1 if they part or one is longer, 2 if a ledger is missing or
        damaged, the ledgers have no update in common, or the drawing cannot be made.

    Raises:
        SystemExit: With 2 if the words are no arguments of it, with 0 after `--help`.
    """
    parser = argparse.ArgumentParser("python -m camshaft.forensics compare", description=_COMPARE)
    parser.add_argument("runs", nargs=2, metavar="RUN", help="a ledger, or the folder of a run that holds one")
    parser.add_argument(
        "--rtol",
        type=float,
        help="relative distance within which losses and gradient norms are equal (default: compare bits; 0.001 between "
        "runs with different numbers of processes)",
    )
    parser.add_argument("--plot", metavar="FILE", help="draw how far apart they go; needs matplotlib")
    parser.add_argument(
        "--data",
        action="store_true",
        help="compare the samples of each epoch alone, in their order, whatever the numbers of processes",
    )
    options = parser.parse_args(words)
    try:
        one, other = options.runs
        if options.data:
            if options.plot is not None or options.rtol is not None:
                parser.error("argument --data: not allowed with --rtol and --plot, since no numbers are compared")
            data = compare_data(one, other)
            print(data)
            return EQUAL if data.is_equal else DIFFERS
        found = compare_runs(one, other, rtol=options.rtol)
        print(found)
        if options.plot is not None:
            draw(found, options.plot)
    except (OSError, ValueError, ModuleNotFoundError) as error:
        return _refuse(error)
    return EQUAL if found.is_equal else DIFFERS


def ledger(words: Sequence[str]) -> int:
    """Tell what the ledger of a run says of its samples, and print it.

    Args:
        words: The words after `ledger`.

    Returns:
        The exit status, which is 0 if each epoch saw each sample once, 1 if not, 2 if the ledger is missing or damaged,
        or does not note all samples by their indices.

    Raises:
        SystemExit: With 2 if the words are no arguments of it, with 0 after `--help`.
    """
    parser = argparse.ArgumentParser("python -m camshaft.forensics ledger", description=_LEDGER)
    parser.add_argument("run", metavar="RUN", help="a ledger, or the folder of a run that holds one")
    parser.add_argument(
        "--exactly-once",
        action="store_true",
        required=True,
        help="tell for each epoch which samples were missed, or seen more than once",
    )
    options = parser.parse_args(words)
    try:
        epochs = exactly_once(options.run)
    except (OSError, ValueError, ModuleNotFoundError) as error:
        return _refuse(error)
    print("\n".join(map(str, epochs)))
    return EQUAL if all(epoch.is_exact for epoch in epochs) else DIFFERS


def replay(words: Sequence[str]) -> int:
    """Make a captured step, or with `--to-step` a step of a run, again, and print a report.

    Args:
        words: The words after `replay`.

    Returns:
        The exit status, which is 0 if the step equals the captured one or the ledger, 1 if not, 2 if the capture is
        missing or damaged, or of another module.

    Raises:
        SystemExit: With 2 if the words are no arguments of it, with 0 after `--help`.
    """
    if any(word.startswith(("--to-step", "--to_step")) for word in words):
        return _of_run("replay", words)
    parser = _replay_parser()
    options = parser.parse_args(words)
    weights_only = False if options.unpickle else None
    try:
        path, capture = find_capture(options.folder, options.step, options.rank, weights_only)
        if options.config is None and options.module is None:
            parser.error(f"--module or --config is required, as a capture holds no code: it is of a {capture.module}")
        given = _module_of_config(options.config) if options.module is None else _imported(parser, options.module)
        module = module_for(capture, given, path, weights_only)
    except (OSError, CaptureError, TypeError) as error:
        return _refuse(error)
    print(f"{path}: {capture.reason}")
    print(f"step {capture.step:,}, epoch {capture.epoch}, rank {capture.rank} of {capture.world_size}", flush=True)
    try:
        replayed = make_again(capture, module, debug=options.pdb)
    except (CaptureError, HookFaultError) as error:
        return _refuse(error)
    except BdbQuit:
        return DIFFERS
    print(f"\n{replayed.inspection.render(options.max_rows)}\n")
    if not replayed.differences:
        print("The loss equals the captured one bit for bit.")
        return EQUAL
    print(f"The step differs from the captured one: {'; '.join(replayed.differences)}.")
    for one in circumstances(capture):
        print(f"  not as captured: {one}")
    return DIFFERS


def bisect(words: Sequence[str]) -> int:
    """Find the first update after which something holds, and print it.

    Args:
        words: The words after `bisect`: the options of a fit, and those of `camshaft.forensics.bisect`.

    Returns:
        The exit status, which is 0, or 1 if a replay departs from the ledger.

    Raises:
        SystemExit: With 2 if the words are no arguments of it, with 0 after `--help`.
    """
    return _of_run("bisect", words)


def _replay_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m camshaft.forensics replay", description=_REPLAY)
    parser.add_argument("folder", metavar="FOLDER", help="the folder (or URL) that `StepCapture` got")
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--module",
        metavar="MODULE:NAME",
        help="the captured module's class, which is built with the captured hyperparameters, or a function without "
        "arguments that returns the module",
    )
    source.add_argument("--config", metavar="FILE", help="a configuration of `fit`, whose `model` is the module")
    parser.add_argument("--step", type=int, help="number of the captured update (default: the first)")
    parser.add_argument("--rank", type=int, help="the process (default: the first one whose loss was not finite)")
    parser.add_argument("--max-rows", type=int, help="largest number of rows of the table (default: all)")
    parser.add_argument(
        "--unpickle",
        action="store_true",
        help="unpickle objects, such as batches of classes of one's own, which can run any code: only if you trust it",
    )
    parser.add_argument("--pdb", action="store_true", help="stop in `training_step` with Python's debugger")
    return parser


def _imported(parser: argparse.ArgumentParser, name: str) -> Any:
    """Return what MODULE:NAME names; also as MODULE.NAME."""
    try:
        found = resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        parser.error(f"argument --module: {error}")
    if isinstance(found, ModuleType):
        parser.error(f"argument --module: must be MODULE:NAME, but got {name!r}")
    return found


def _module_of_config(path: str) -> Any:
    """Return the module that a configuration of `fit` describes; errors of it end the process with 2."""
    from camshaft.trainer.cli import TrainerCLI  # needs the extra

    class ModuleOfConfig(TrainerCLI):
        """Makes the module and the data of a configuration, but no trainer."""

        def parse_arguments(self, parser: Any, args: Any) -> None:
            self.config = parser.parse_args(args)

        def instantiate_trainer(self, **kwargs: Any) -> None:
            return None

        def _run_subcommand(self, subcommand: str) -> None:
            pass

    return ModuleOfConfig(save_config_callback=None, args=["fit", "--config", path]).model


def _of_run(command: str, words: Sequence[str]) -> int:
    """Run `replay` or `bisect` with the options of a fit."""
    try:
        from camshaft.trainer.cli.command_line import CommandLine
    except ModuleNotFoundError as error:
        return _refuse(error)
    from camshaft.forensics.bisect import bisect as bisect_run
    from camshaft.forensics.replay.step import nearest_checkpoint
    from camshaft.forensics.replay.step import replay as replay_step

    class ReplayLine(CommandLine):
        """A command line with the subcommands `replay` and `bisect`."""

        @staticmethod
        def subcommands() -> dict[str, set[str]]:
            """Return the subcommands, each with the arguments that are no options."""
            given = {"trainer", *CommandLine.subcommands()["fit"]}
            return {"replay": given, "bisect": given}

        def function_of(self, subcommand: str) -> Callable[..., Any]:
            """Return the function of a subcommand."""
            return replay_step if subcommand == "replay" else bisect_run

        def parse_arguments(self, parser: Any, args: Any) -> None:
            """Parse the words, and check that the checkpoint exists; of a folder take the nearest."""
            super().parse_arguments(parser, args)
            config = self.config[self.config.subcommand]
            if config.get("ckpt_path") and "to_step" in config:
                config["ckpt_path"] = str(nearest_checkpoint(config["ckpt_path"], config["to_step"] - 1))

        def replay(self, **options: Any) -> None:
            """Replay, and print what the steps of the update computed."""
            for step in replay_step(self.trainer, **options):
                loss = "none" if step.loss is None else f"{step.loss.item():.6g}"
                print(f"Step {step.step:,}, epoch {step.epoch}, batch {step.batch_idx}: the loss is {loss}.")
                print(f"{step.inspection}\n")

        def bisect(self, **options: Any) -> None:
            """Bisect, and print the step that was found."""
            found, name = bisect_run(self.trainer, **options), options["when"].__name__
            print(f"`{name}` holds after step {found:,}, and does not after the step before.")

    options = [word.partition("=") for word in words]
    chosen = [_OTHER_WORDS.get(option, option) + equals + value for option, equals, value in options]
    try:
        ReplayLine([command, *chosen], "python -m camshaft.forensics", _OF_RUN)
    except DepartureError as error:
        print("\n".join([f"error: {error}", *error.__notes__]), file=sys.stderr)
        return DIFFERS
    except (InvalidArgumentError, LedgerError, FileNotFoundError) as error:
        sys.exit(_refuse(error))
    except BdbQuit:
        pass
    return EQUAL


def _refuse(error: Exception) -> int:
    print(f"error: {error}", file=sys.stderr)
    return BAD_INPUT
