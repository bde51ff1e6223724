"""The command `python -m camshaft.trainer compare`: where two runs part, by their ledgers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

EQUAL, PART, BAD_INPUT = 0, 1, 2
"""Exit statuses, as those of `cmp` and `diff`."""

_ABOUT = """Tell the first update at which two runs part, and in what, by the ledgers that RunLedger kept.
Exits with 0 if they are equal, 1 if they part, 2 if they cannot be compared."""


def main(words: Sequence[str]) -> int:
    """Compare two runs, and print a report.

    Args:
        words: The words after `compare`.

    Returns:
        The exit status: 0 if they are equal, 1 if they part or one is longer, 2 if a ledger is missing or damaged, the
        ledgers have no update in common, or the drawing cannot be made.

    Raises:
        SystemExit: With 2 if the words are no arguments of it, with 0 after `--help`.
    """
    parser = argparse.ArgumentParser("python -m camshaft.trainer compare", description=_ABOUT)
    parser.add_argument("runs", nargs=2, metavar="RUN", help="a ledger, or the folder of a run that holds one")
    parser.add_argument(
        "--rtol",
        type=float,
        help="relative distance within which losses and gradient norms are equal (default: compare bits; 0.001 between "
        "runs with different numbers of processes)",
    )
    parser.add_argument("--plot", metavar="FILE", help="draw how far apart they go; needs matplotlib")
    options = parser.parse_args(words)
    from camshaft.callbacks import compare
    from camshaft.callbacks.ledger.comparison import draw

    try:
        one, other = options.runs
        found = compare(one, other, rtol=options.rtol)
        print(found)
        if options.plot is not None:
            draw(found, options.plot)
    except (OSError, ValueError, ModuleNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    return EQUAL if found.is_equal else PART
