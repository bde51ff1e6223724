"""The command `python -m camshaft.trainer replay`: makes a captured training step again, and looks into it."""

from __future__ import annotations

import argparse
import sys
from bdb import BdbQuit
from collections.abc import Sequence
from importlib import import_module
from typing import Any

EQUAL, DIFFERS, BAD_INPUT = 0, 1, 2
"""Exit statuses."""

_ABOUT = """Make the training step again that NonFiniteGuard or SpikeDetection captured, print statistics of what its
submodules computed, and name the first that is not finite. Exits with 0 if its loss equals the captured one bit for
bit, 1 if not, 2 if there is no such capture or no module for it."""


def main(words: Sequence[str]) -> int:
    """Make a captured step again, and print a report.

    Args:
        words: The words after `replay`.

    Returns:
        The exit status: 0 if the loss equals the captured one bit for bit, 1 if not, 2 if the capture is missing or
        damaged, or of another module.

    Raises:
        SystemExit: With 2 if the words are no arguments of it, with 0 after `--help`.
    """
    parser = _parser()
    options = parser.parse_args(words)
    from camshaft.callbacks.inspection.step_capture import CaptureError
    from camshaft.hooks_core import HookFaultError
    from camshaft.trainer.replay.capture import circumstances, find_capture, make_again, module_for

    weights_only = False if options.unpickle else None
    try:
        path, capture = find_capture(options.folder, options.step, options.rank, weights_only)
    except (OSError, CaptureError) as error:
        return _refuse(error)
    if options.config is None and options.module is None:
        parser.error(f"--module or --config is required, as a capture holds no code: it is of a {capture.module}")
    given = _module_of_config(options.config) if options.module is None else _imported(parser, options.module)
    try:
        module = module_for(capture, given, path, weights_only)
    except TypeError as error:
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m camshaft.trainer replay", description=_ABOUT)
    parser.add_argument("folder", metavar="FOLDER", help="the folder (or URL) that the callback got as `capture`")
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
    module_name, _, own_name = name.partition(":") if ":" in name else name.rpartition(".")
    if not module_name or not own_name:
        parser.error(f"argument --module: must be MODULE:NAME, but got {name!r}")
    try:
        found: Any = import_module(module_name)
        for part in own_name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        parser.error(f"argument --module: {error}")
    return found


def _module_of_config(path: str) -> Any:
    """Return the module that a configuration of `fit` describes; errors of it end the process with 2."""
    from camshaft.trainer.cli.trainer_cli import TrainerCLI  # needs the extra

    class ModuleOfConfig(TrainerCLI):
        """Makes the module and the data of a configuration, but no trainer."""

        def parse_arguments(self, parser: Any, args: Any) -> None:
            self.config = parser.parse_args(args)

        def instantiate_trainer(self, **kwargs: Any) -> None:
            return None

        def _run_subcommand(self, subcommand: str) -> None:
            pass

    return ModuleOfConfig(save_config_callback=None, args=["fit", "--config", path]).model


def _refuse(error: Exception) -> int:
    print(f"error: {error}", file=sys.stderr)
    return BAD_INPUT
