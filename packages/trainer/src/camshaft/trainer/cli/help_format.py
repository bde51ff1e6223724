"""The help of a command line: a trainer's options by topic, a line each, with the details on request."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from jsonargparse import DefaultHelpFormatter

_TOPICS: Mapping[str, str] = {
    "Trainer: devices and processes": """
        accelerator: cpu, cuda, mps, gpu or auto
        strategy: ddp, sharded, auto, or a class
        devices: processes per machine, or indexes
        num_nodes: machines
        precision: 32-true, bf16-mixed, 16-mixed, ...
        plugins: of Lightning
        use_distributed_sampler: share samples among processes
        sync_batchnorm: batch norm over all processes
        agree_every_n_batches: batches between agreements to stop""",
    "Trainer: length of a run": """
        max_epochs: epochs in all; -1: no limit
        min_epochs: epochs that nothing cuts short
        max_steps: updates in all; -1: no limit
        min_steps: updates that nothing cuts short
        max_time: DD:HH:MM:SS in all
        fast_dev_run: trial of one batch, or so many
        overfit_batches: the same batches in every epoch
        limit_train_batches: batches of an epoch, or a share
        limit_val_batches: likewise, of validation
        limit_test_batches: likewise, of test
        limit_predict_batches: likewise, of prediction""",
    "Trainer: validation": """
        val_check_interval: batches between, or a share of one
        check_val_every_n_epoch: epochs between
        num_sanity_val_steps: batches tried before training
        inference_mode: evaluate in torch.inference_mode""",
    "Trainer: optimization": """
        accumulate_grad_batches: batches of one update
        gradient_clip_val: largest norm or value
        gradient_clip_algorithm: norm or value
        zero_grad: moment when gradients are zeroed
        truncated_bptt_steps: time steps of a split""",
    "Trainer: data": """
        reload_dataloaders_every_n_epochs: 0: never
        stateless_loaders: refuse or fast_forward, on resuming""",
    "Trainer: callbacks, logs and files": """
        callbacks: classes; += adds one
        logger: classes, or true, false
        log_every_n_steps: updates between logged values
        enable_checkpointing: save checkpoints
        enable_progress_bar: show a progress bar
        enable_model_summary: show a summary of the module
        report: folder for curves
        default_root_dir: folder for everything
        enable_autolog_hparams: log hyperparameters
        model_registry: of Lightning""",
    "Trainer: reproducibility and debugging": """
        deterministic: true, false or warn
        benchmark: let cuDNN search algorithms
        detect_anomaly: name what makes NaN in backward
        profiler: simple, pytorch, or a class
        barebones: attach nothing, for measuring
        strict_hooks: refuse methods like hooks""",
}
"""By topic, the trainer's options in a few words; their documentation is in `Trainer`."""

_WORDS: dict[str, tuple[str, str]] = {}
for _topic, _lines in _TOPICS.items():
    for _name, _, _text in (line.strip().partition(": ") for line in _lines.strip().splitlines()):
        _WORDS[_name] = (_topic, _text)
_OTHER = "Trainer: other options"
_COLUMN = 40
_MANY = 10
"""Options from which on the usage does not list them."""


class TopicFormatter(DefaultHelpFormatter):
    """A formatter that lists a trainer's options by topic, a line each, and keeps usage and types short."""

    is_detailed = False

    def add_arguments(self, actions: Iterable[argparse.Action]) -> None:
        """Add the options of a section; those with a topic in a section of that."""
        actions = list(actions)
        super().add_arguments([each for each in actions if not hasattr(each, "topic")])
        for topic in (*_TOPICS, _OTHER):
            of_topic = [each for each in actions if getattr(each, "topic", None) == topic]
            if of_topic:
                self.end_section()
                self.start_section(topic)
                super().add_arguments(of_topic)

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
        parser = getattr(action, "of_parser", None)
        if text is None or self.is_detailed or getattr(parser, "default_env", False):
            return str(super()._format_action(action))
        option = f"{' ' * self._current_indent}{action.option_strings[0]} ".ljust(_COLUMN)
        width = max(20, self._width - len(option))
        default = f" [{action.default}]"
        is_told = hasattr(action, "topic") and action.default not in (None, False, argparse.SUPPRESS)
        if is_told and len(text + default) <= width:
            text += default
        return f"{option}{textwrap.shorten(text, width, placeholder=' ...')}\n"

    def _get_help_string(self, action: argparse.Action) -> str:
        return re.sub(r", known subclasses: [^)]*", "", str(super()._get_help_string(action)))


class _DetailsFormatter(TopicFormatter):
    """A formatter of the options with a topic alone, in full."""

    is_detailed = True

    def add_usage(self, *args: Any, **kwargs: Any) -> None:
        """Add nothing."""

    def add_text(self, text: str | None) -> None:
        """Add nothing."""

    def add_arguments(self, actions: Iterable[argparse.Action]) -> None:
        """Add the options with a topic."""
        super().add_arguments([each for each in actions if hasattr(each, "topic")])


class _ShowDetails(argparse._HelpAction):
    """An option that prints the options with a topic in full, and exits."""

    def __call__(self, parser: Any, *args: Any, **kwargs: Any) -> None:
        """Print them, and exit."""
        parser.formatter_class = _DetailsFormatter
        parser.print_help()
        parser.exit()


def show_topics(parser: Any, key: str) -> None:
    """Sort the options of a key by topic, and add `--KEY.help`, which prints their details."""
    group = parser.groups[key]
    for action in group._group_actions:
        prefix, _, name = action.dest.rpartition(".")
        if name == "help":
            action.help = argparse.SUPPRESS  # `--KEY.help` says that there are such options
        elif prefix == key:
            action.topic, action.brief = _WORDS.get(name, (_OTHER, _first_sentence(action.help or "")))
            action.of_parser = parser
    text = "these options in full"
    details = group.add_argument(f"--{key}.help", action=_ShowDetails, help=text)
    details.brief, details.of_parser = text, parser


def show_briefly(parser: Any, key: str) -> None:
    """Show the options of a key that takes a class in a line each."""
    for action in parser.groups[key]._group_actions:
        is_help = action.dest.endswith(".help")
        action.brief = "CLASS: its options" if is_help else "CLASS, by its path or name; a file"
        action.of_parser = parser


def _first_sentence(text: str) -> str:
    """Return the first sentence of a description, without the full stop."""
    return re.split(r"(?<=[^.][^.])\.(?:\s|$)|;\s", " ".join(text.split()), maxsplit=1)[0]
