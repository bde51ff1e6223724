"""`python -m camshaft.forensics {compare,ledger,replay,bisect}`."""

import argparse
import sys

from camshaft.forensics import commands

if __name__ == "__main__":
    about = {
        "compare": "tell the first update at which two runs part, by their ledgers",
        "ledger": "tell which samples of each epoch of a run were missed, or seen more than once",
        "replay": "make a captured step, or a step of a run, again, and look into it",
        "bisect": "find the first update of a run after which something holds",
    }
    if "".join(sys.argv[1:2]) in about:
        sys.exit(getattr(commands, sys.argv[1])(sys.argv[2:]))
    parser = argparse.ArgumentParser("python -m camshaft.forensics", description="Look into training runs.")
    subparsers = parser.add_subparsers(metavar="{compare,ledger,replay,bisect}", required=True)
    for command, text in about.items():
        subparsers.add_parser(command, help=text)
    parser.parse_args()
