"""The trainer's arguments as options of an `argparse` parser, as releases 0.7 to 1.9 had them."""

from __future__ import annotations

import inspect
import re
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from typing import Any, Self

from camshaft.compat.arguments.table import EARLIER_ARGUMENTS
from camshaft.hooks_core.messages import must_be

_WORDS: dict[str, Any] = {
    **dict.fromkeys(("true", "yes", "on"), True),
    **dict.fromkeys(("false", "no", "off"), False),
    "none": None,
}


class ArgparseArguments:
    """Class methods that make a trainer of the options of a script's own parser."""

    @classmethod
    def add_argparse_args(cls, parent_parser: ArgumentParser, **defaults: Any) -> ArgumentParser:
        """Add an option for every argument that the trainer takes, those of earlier releases included.

        An option that the parser has already is left as it is. One without a value means True, where that is allowed.

        Args:
            parent_parser: The parser; it is changed.
            defaults: Defaults other than the trainer's.

        Returns:
            The parser.

        Raises:
            TypeError: If a default is for no argument of the trainer.
        """
        options = dict(_options(cls))
        for name in defaults:
            if name not in options:
                rule = "a default for an argument of the trainer"
                raise TypeError(must_be(name, rule, defaults[name], "Trainer.add_argparse_args", "Check its spelling."))
        present = {option for action in parent_parser._actions for option in action.option_strings}
        group = parent_parser.add_argument_group("Trainer")
        for name, settings in options.items():
            if f"--{name}" not in present:
                default = defaults.get(name, settings["default"])
                group.add_argument(f"--{name}", **{**settings, "default": default})
        return parent_parser

    @classmethod
    def parse_argparser(cls, arg_parser: ArgumentParser | Namespace) -> Namespace:
        """Return the options of a parser, which reads the process's command line, or of a namespace."""
        return arg_parser.parse_args() if isinstance(arg_parser, ArgumentParser) else arg_parser

    @classmethod
    def from_argparse_args(cls, args: ArgumentParser | Namespace, **kwargs: Any) -> Self:
        """Return a trainer made with those options that are its arguments; others are the script's own.

        Args:
            args: What a parser read, or the parser.
            kwargs: Arguments that count before those.

        Raises:
            TypeError, ValueError: As the constructor.
        """
        given = vars(cls.parse_argparser(args))
        own = dict(_options(cls))
        return cls(**{**{name: value for name, value in given.items() if name in own}, **kwargs})


def _options(cls: type) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every argument, with the options of `add_argument` for it."""
    parameters = inspect.signature(cls).parameters
    for name, parameter in parameters.items():
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            yield name, _option(parameter.default, set(re.findall(r"\w+", str(parameter.annotation))))
    for name, row in EARLIER_ARGUMENTS.items():
        if name not in parameters:
            about = f"of releases {' to '.join(dict.fromkeys(row.releases))}: {row.today} today"
            yield name, {**_option(row.default, {"Any"}), "help": about.replace("%", "%%")}


def _option(default: Any, kinds: set[str]) -> dict[str, Any]:
    option: dict[str, Any] = {"default": default, "type": _reader(kinds)}
    if kinds & {"bool", "Any"}:
        option |= {"nargs": "?", "const": True}
    return option


def _reader(kinds: set[str]) -> Callable[[str], Any]:
    """Return a function that converts the text of an option into a value of these kinds."""

    def read(text: str) -> Any:
        if text.lower() in _WORDS and (kinds & {"bool", "Any"} or ("None" in kinds and text.lower() == "none")):
            return _WORDS[text.lower()]
        for kind, convert in (("int", int), ("float", float)):
            if kinds & {kind, "Any"}:
                try:
                    return convert(text)
                except ValueError:
                    continue
        if kinds == {"bool"} and text in ("0", "1"):
            return text == "1"
        if kinds & {"str", "Any", "PathLike", "ZeroGrad", "StatelessLoaders"}:
            return text
        raise ValueError(text)

    read.__name__ = " or ".join(sorted(kinds - {"None"}))  # which `argparse` names where it refuses a text
    return read
