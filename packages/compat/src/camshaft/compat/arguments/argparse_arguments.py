"""Arguments of trainers and data modules as options of an `argparse` parser, as releases 0.7 to 1.9 had them."""

from __future__ import annotations

import inspect
import re
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from camshaft.compat.arguments.today import from_environment
from camshaft.hooks_core.support.messages import must_be

_WORDS: dict[str, Any] = {
    **dict.fromkeys(("true", "yes", "on"), True),
    **dict.fromkeys(("false", "no", "off"), False),
    "none": None,
}
_TEXTS = frozenset({"str", "Any", "PathLike", "ZeroGrad", "StatelessLoaders"})
_KINDS = _TEXTS | {"bool", "int", "float"}
"""Words of annotations that an option can be read as."""


def add_argparse_args(
    cls: Any, /, parent_parser: ArgumentParser, *, use_argument_group: bool = True, **defaults: Any
) -> ArgumentParser:
    """Add an option for every argument of the constructor, those of earlier releases included.

    Arguments whose annotation names nothing that a text can be are left out. An option that the parser has already
    is left as it is. One without a value means True, where that is allowed.

    Args:
        cls: The class.
        parent_parser: The parser; it is changed.
        use_argument_group: Whether the parser itself gets the options, as a group; else a new parser that has its
            options, too.
        defaults: Defaults other than the constructor's.

    Returns:
        The parser with the options.

    Raises:
        TypeError: If a default is for no argument.
    """
    options = dict(_options(cls))
    for name in defaults.keys() - options.keys():
        rule, where = f"a default for an argument of {cls.__name__}", f"{cls.__name__}.add_argparse_args"
        raise TypeError(must_be(name, rule, defaults[name], where, "Check its spelling."))
    parser = parent_parser if use_argument_group else ArgumentParser(parents=[parent_parser], add_help=False)
    present = {option for action in parser._actions for option in action.option_strings}
    group = parser.add_argument_group(cls.__name__)
    for name, settings in options.items():
        if f"--{name}" not in present:
            group.add_argument(f"--{name}", **{**settings, "default": defaults.get(name, settings["default"])})
    return parser


def from_argparse_args(cls: Any, /, args: ArgumentParser | Namespace, **kwargs: Any) -> Any:
    """Return an instance made with those options that are its arguments; others are the script's own.

    Args:
        cls: The class.
        args: What a parser read, or the parser.
        kwargs: Arguments that count before those.

    Raises:
        TypeError, ValueError: As the constructor.
    """
    given = vars(parse_argparser(cls, args))
    return cls(**{**{name: given[name] for name in _names_of(cls) if name in given}, **kwargs})


def parse_argparser(cls: Any, /, arg_parser: ArgumentParser | Namespace) -> Namespace:
    """Return the options of a parser, which reads the process's command line, or of a namespace."""
    return arg_parser.parse_args() if isinstance(arg_parser, ArgumentParser) else arg_parser


def get_init_arguments_and_types(cls: Any) -> list[tuple[str, tuple[Any, ...], Any]]:
    """Return name, types and default of each argument of a class's constructor, or of a function."""
    found = inspect.signature(cls).parameters.items()
    return [(name, getattr(one.annotation, "__args__", (one.annotation,)), one.default) for name, one in found]


def parse_env_variables(cls: Any) -> Namespace:
    """Return the arguments that variables such as `PL_TRAINER_MAX_EPOCHS` set for a class."""
    return Namespace(**from_environment(cls.__name__, _names_of(cls)))


class ArgparseArguments:
    """Class methods that make an instance of the options of a script's own parser."""

    earlier_arguments: ClassVar[Mapping[str, Any]] = {}
    """Arguments that the constructor takes beside those of its signature, by name."""

    add_argparse_args = classmethod(add_argparse_args)
    from_argparse_args = classmethod(from_argparse_args)
    parse_argparser = classmethod(parse_argparser)
    get_init_arguments_and_types = classmethod(get_init_arguments_and_types)


def _names_of(cls: Any) -> list[str]:
    return [*inspect.signature(cls).parameters, *getattr(cls, "earlier_arguments", {})]


def _options(cls: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every argument, with the options of `add_argument` for it."""
    parameters = inspect.signature(cls).parameters
    for name, parameter in parameters.items():
        words = set(re.findall(r"\w+", str(parameter.annotation)))
        kinds = words & _KINDS | ({"None"} if words & {"None", "NoneType", "Optional"} else set())
        if words & _KINDS:
            default = SUPPRESS if parameter.default is parameter.empty else parameter.default
            yield name, _option(default, kinds)
    for name, row in getattr(cls, "earlier_arguments", {}).items():
        if name not in parameters:
            about = f"of releases {' to '.join(dict.fromkeys(row.releases))}: {row.today} today"
            yield name, {**_option(row.default, {"Any"}), "help": about.replace("%", "%%")}


def _option(default: Any, kinds: set[str]) -> dict[str, Any]:
    flag = {"nargs": "?", "const": True} if kinds & {"bool", "Any"} else {}
    return {"default": default, "type": _reader(kinds), **flag}


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
        if kinds & _TEXTS:
            return text
        raise ValueError(text)

    read.__name__ = " or ".join(sorted(kinds - {"None"}))  # which `argparse` names where it refuses a text
    return read
