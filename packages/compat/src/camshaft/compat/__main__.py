"""The command line: `python -m camshaft.compat {check,run}`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from camshaft.compat.eras.advice import advise
from camshaft.compat.eras.report import advice_text, as_data, inspect_class, inspection_text
from camshaft.compat.names.table import ROOTS
from camshaft.compat.script import main as run
from camshaft.hooks_core import Receiver
from camshaft.hooks_core.eras.inspection import load_class

_EXIT_FAULTS = 1
_EXIT_USAGE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and return the exit code: 0; 1 if `check` found faults; 2 if the command failed.

    Args:
        arguments: The arguments; those of this process by default.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["run"]:  # the rest are the script's own arguments
        return run(words[1:])
    parsed = _parser().parse_args(words)
    try:
        return int(parsed.command(parsed))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return _EXIT_USAGE
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        sys.stderr.close()
        return 0


def _parser() -> argparse.ArgumentParser:
    description = "Code that was written for Lightning 0.4 to 1.9."
    parser = argparse.ArgumentParser(prog="python -m camshaft.compat", description=description)
    commands = parser.add_subparsers(required=True, metavar="command")
    commands.add_parser("run", help="run a script with the import names of earlier releases", add_help=False)
    checking = commands.add_parser(
        "check", help="print how each method of a class of any era is called, and its faults"
    )
    checking.add_argument("target", metavar="MODULE:CLASS")
    checking.add_argument(
        "--as", dest="kind", choices=tuple(Receiver), help="what the class is, if not its base's kind"
    )
    checking.add_argument("--advise", action="store_true", help="print the edits that make it a class of today")
    checking.add_argument("--json", action="store_true", help="print an object")
    checking.set_defaults(command=_check)
    return parser


def _check(parsed: argparse.Namespace) -> int:
    klass = load_class(parsed.target)
    bases = ((base.__module__.partition(".")[0], base.__name__) for base in klass.__mro__[1:])
    package, base = next((found for found in bases if found[0] in ROOTS), ("", ""))
    if package:  # a base class of an installed Lightning
        print(
            f"note: {klass.__name__} is a {base} of the installed {package}, whose own methods are listed as well. "
            "Put `python -m camshaft.compat run -m` in place of `python -m` to check it as camshaft runs it.",
            file=sys.stderr,
        )
    inspection = inspect_class(klass, Receiver(parsed.kind) if parsed.kind else None)
    advice = advise(klass, inspection.reading) if parsed.advise else None
    name = f"{klass.__module__}:{klass.__qualname__}"
    if parsed.json:
        print(json.dumps(as_data(name, inspection, advice), indent=2))
    else:
        print(inspection_text(name, inspection))
        if advice is not None:
            print(f"\n{advice_text(advice)}")
    return _EXIT_FAULTS if any(not fault.is_warning for fault in inspection.faults) else 0


if __name__ == "__main__":
    sys.exit(main())
