"""The command line: `python -m camshaft.hooks_core {list,show,check}`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import get_args

from camshaft.hooks_core.eras.hooks import ERAS, catalogue_of, hooks_of_eras
from camshaft.hooks_core.eras.inspection import as_data, inspect_class, inspection_text, load_class
from camshaft.hooks_core.eras.orders import life_cycle
from camshaft.hooks_core.grammar import mermaid, tree
from camshaft.hooks_core.grammar.conditions import Variation
from camshaft.hooks_core.grammar.nodes import without
from camshaft.hooks_core.grammar.present import Optimization
from camshaft.hooks_core.spec import VERBS, ZERO_GRADS, Receiver

_EXIT_FAULTS = 1
_EXIT_USAGE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: The words of the command line; the process's own by default.

    Returns:
        The exit code, which is 0; 1 if `check` found faults; 2 if the command cannot be carried out.
    """
    parsed = _parser().parse_args(arguments)
    try:
        code: int = parsed.command(parsed)
        return code
    except ValueError as error:  # something that cannot be done
        print(f"error: {error}", file=sys.stderr)
        return _EXIT_USAGE
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        sys.stderr.close()
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m camshaft.hooks_core", description="The hook protocol.")
    commands = parser.add_subparsers(required=True, metavar="command")

    listing = commands.add_parser("list", help="list the hooks")
    listing.add_argument("--era", choices=ERAS, help="only the hooks of this era, with its parameters")
    listing.add_argument("--json", action="store_true", help="print a list of objects")
    listing.set_defaults(command=_list)

    showing = commands.add_parser("show", help="print the order in which a verb calls its hooks")
    showing.add_argument("verb", choices=VERBS)
    showing.add_argument("--era", choices=ERAS, help="the order of this era's document; camshaft's own by default")
    showing.add_argument("--format", choices=("tree", "mermaid"), default="tree")
    how = "backward and update in fit: by the loop, by the module, or not at all"
    showing.add_argument("--optimization", choices=get_args(Optimization), default="automatic", help=how)
    place = "where the loop zeroes gradients in fit; the era's own place by default"
    showing.add_argument("--zero-grad", choices=ZERO_GRADS, help=place)
    beside = "what the run has beside one optimizer, one update a batch and a loss in each"
    variations = [variation for variation in Variation if variation != Variation.RARE]
    showing.add_argument("--with", dest="variations", nargs="+", choices=variations, default=[], help=beside)
    showing.add_argument("--all", action="store_true", help="every run, with its rare parts, one hook a line")
    showing.set_defaults(command=_show)

    checking = commands.add_parser("check", help="print how each method of a class is called, and its faults")
    checking.add_argument("target", metavar="MODULE:CLASS")
    kind = "what the class is, if not its base's kind"
    checking.add_argument("--as", dest="kind", choices=tuple(Receiver), help=kind)
    checking.add_argument("--era", choices=ERAS, help="the era as a class of which it is checked; today by default")
    checking.add_argument("--json", action="store_true", help="print an object")
    checking.set_defaults(command=_check)
    return parser


def _list(parsed: argparse.Namespace) -> int:
    era = parsed.era
    hooks = [
        {
            "name": spec.name,
            "parameters": list(spec.parameters_in(era)),
            "optional": list(spec.optional_in(era)),
            "receivers": [str(receiver) for receiver in spec.receivers_in(era)],
            "stage": spec.stage,
            "eras": list(spec.eras),
        }
        for spec in hooks_of_eras().values()
        if era is None or era in spec.eras
    ]
    if parsed.json:
        print(json.dumps(hooks, indent=2))
        return 0
    rows = [("hook", "receivers", "stage", "eras")]
    for hook in hooks:
        optional = [f"[{name}]" for name in hook["optional"]]
        call = f"{hook['name']}({', '.join([*hook['parameters'], *optional])})"
        rows.append((call, " ".join(hook["receivers"]), str(hook["stage"]), " ".join(hook["eras"])))
    _print_table(rows)
    return 0


def _show(parsed: argparse.Namespace) -> int:
    node = life_cycle(parsed.verb, parsed.era, optimization=parsed.optimization, zero_grad=parsed.zero_grad)
    title = f"{parsed.verb} in era {parsed.era}" if parsed.era else parsed.verb
    left_out = frozenset() if parsed.all else frozenset(Variation) - set(parsed.variations)
    shown, catalogue = without(node, left_out), catalogue_of(parsed.era)
    if parsed.format == "mermaid":
        print(mermaid(title, shown, catalogue=catalogue))
        return 0
    print(tree(title, shown, catalogue=catalogue, compact=not parsed.all))
    if node != shown:
        others = [variation for variation in Variation if variation in left_out - {Variation.RARE}]
        adds = f"`--with {' '.join(others)}` adds these, " if parsed.verb == "fit" and others else ""
        print(f"\nThe usual run. {adds}`--all` shows every case.")
    return 0


def _check(parsed: argparse.Namespace) -> int:
    klass = load_class(parsed.target)
    inspection = inspect_class(klass, Receiver(parsed.kind) if parsed.kind else None, parsed.era)
    name = f"{klass.__module__}:{klass.__qualname__}"
    if parsed.json:
        print(json.dumps(as_data(name, inspection), indent=2))
    else:
        print(inspection_text(name, inspection))
    return _EXIT_FAULTS if any(not fault.is_warning for fault in inspection.faults) else 0


def _print_table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in (rows[0], ["-" * width for width in widths], *rows[1:]):
        print("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    sys.exit(main())
