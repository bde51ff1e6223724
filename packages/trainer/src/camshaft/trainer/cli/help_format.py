"""The help of a command line: a trainer's options by topic, a line each, with the details on request."""

from __future__ import annotations

import argparse
import inspect
import re
import textwrap
from collections.abc import Mapping
from typing import Any

from jsonargparse import DefaultHelpFormatter

from camshaft.trainer.trainer import Trainer

_TOPICS: Mapping[str, str] = {
    "accelerator": "Trainer: devices and processes",
    "max_epochs": "Trainer: length of a run",
    "val_check_interval": "Trainer: validation",
    "accumulate_grad_batches": "Trainer: optimization",
    "reload_dataloaders_every_n_epochs": "Trainer: data",
    "logger": "Trainer: callbacks, logs and files",
    "deterministic": "Trainer: reproducibility and debugging",
}
"""By the argument of `Trainer` with which a topic begins, the topic."""

_OTHER = "Trainer: other options"
_COLUMN = 40
_MANY = 10
"""Options from which on the usage does not list them."""


class TopicFormatter(DefaultHelpFormatter):
    """A formatter that shows options that have a short text in a line each, and keeps usage and types short."""

    def _format_usage(self, usage: Any, actions: Any, *args: Any, **kwargs: Any) -> str:
        actions = list(actions)
        if sum(bool(each.option_strings) for each in actions) <= _MANY:
            return str(super()._format_usage(usage, actions, *args, **kwargs))
        named = [each for each in actions if not each.option_strings]
        text = str(super()._format_usage(usage, named, *args, **kwargs))
        program = self._prog.replace("[options] ", "")
        return text.replace(self._prog, f"{program} [options]", 1)

    def _format_action(self, action: argparse.Action) -> str:
        text = getattr(action, "brief", None)
        if text is None or action.of_parser.default_env:  # type: ignore[attr-defined]
            return str(super()._format_action(action))
        option = f"{' ' * self._current_indent}{action.option_strings[0]} ".ljust(_COLUMN)
        width = max(20, self._width - len(option))
        default = f" [{action.default}]"
        if action.default not in (None, False, argparse.SUPPRESS) and len(text + default) <= width:
            text += default
        return f"{option}{textwrap.shorten(text, width, placeholder=' ...')}\n"

    def _get_help_string(self, action: argparse.Action) -> str:
        return re.sub(r", known subclasses: [^)]*", "", str(super()._get_help_string(action)))


class _ShowDetails(argparse._HelpAction):
    """An option that prints the options with a topic in full, and exits."""

    def __call__(self, parser: Any, *args: Any, **kwargs: Any) -> None:
        """Print them, and exit."""
        parser._action_groups = [group for group in parser._action_groups if group.title in (*_TOPICS.values(), _OTHER)]
        parser.usage, parser.description = argparse.SUPPRESS, None
        for action in parser._actions:
            action.brief = None
        parser.print_help()
        parser.exit()


def show_topics(parser: Any, key: str) -> None:
    """Sort the options of a key by topic, and add `--KEY.help`, which prints their details."""
    group, topics = parser.groups[key], _topics()
    groups = {topic: parser.add_argument_group(topic) for topic in (*_TOPICS.values(), _OTHER)}
    for action in list(group._group_actions):
        prefix, _, name = action.dest.rpartition(".")
        if name == "help":
            action.help = argparse.SUPPRESS  # `--KEY.help` says that there are such options
        elif prefix == key:
            group._group_actions.remove(action)
            groups[topics.get(name, _OTHER)]._group_actions.append(action)
            action.brief, action.of_parser = _beginning(action.help or ""), parser
    text = "these options in full"
    details = group.add_argument(f"--{key}.help", action=_ShowDetails, help=text)
    details.brief, details.of_parser = text, parser


def show_briefly(parser: Any, key: str) -> None:
    """Show the options of a key that takes a class in a line each."""
    for action in parser.groups[key]._group_actions:
        is_help = action.dest.endswith(".help")
        action.brief = "CLASS: its options" if is_help else "CLASS, by its path or name; a file"
        action.of_parser = parser


def _topics() -> dict[str, str]:
    """Return the topics of the trainer's arguments."""
    topics, topic = {}, _OTHER
    for name in inspect.signature(Trainer).parameters:
        topic = topics[name] = _TOPICS.get(name, topic)
    return topics


def _beginning(text: str) -> str:
    """Return a description up to its first full stop or semicolon."""
    return re.split(r"[.;](?:\s|$)", " ".join(text.split()), maxsplit=1)[0]
