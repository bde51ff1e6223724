"""`ModelSummary` and `RichModelSummary` of the import names, whose subclasses print tables of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import Any

from camshaft.callbacks import ModelSummary as _ModelSummary
from camshaft.callbacks import RichModelSummary as _RichModelSummary
from camshaft.compat.names.stand_ins import StandIn
from camshaft.compat.names.utilities import model_summaries

_FACTS = ("total_parameters", "trainable_parameters", "model_size", "total_training_modes")


def _printing(show: Callable[..., None]) -> Callable[..., None]:
    """Return a function that prints columns and totals by another one; an override may call it with other columns."""

    def summarize(
        summary_data: list[tuple[str, list[str]]],
        total_parameters: int,
        trainable_parameters: int,
        model_size: float,
        total_training_modes: Mapping[str, int] | None = None,
        total_flops: int = 0,
        **summarize_kwargs: Any,
    ) -> None:
        count = model_summaries.get_human_readable_count
        totals = {
            "Trainable params": count(trainable_parameters),
            "Non-trainable params": count(total_parameters - trainable_parameters),
            "Total params": count(total_parameters),
            "Total estimated model params size (MB)": model_summaries.get_formatted_model_size(model_size),
            **{f"Modules in {mode} mode": str(num) for mode, num in (total_training_modes or {}).items()},
            "Total FLOPs": count(total_flops),
        }
        show(summary_data, totals, **summarize_kwargs)

    return summarize


def _print_plain(summary_data: list[tuple[str, list[str]]], totals: Mapping[str, str], **_: Any) -> None:
    columns = [[heading, *map(str, cells)] for heading, cells in summary_data]
    widths = [max(map(len, column)) for column in columns]
    rows = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in zip(*columns, strict=True))
    print(*rows, *(f"{label}: {value}" for label, value in totals.items()), sep="\n", flush=True)


def _print_with_rich(
    summary_data: list[tuple[str, list[str]]], totals: Mapping[str, str], header_style: Any = "bold magenta", **_: Any
) -> None:
    from rich import get_console
    from rich.table import Table
    from rich.text import Text  # which shows "[8, 3]" as it is

    table = Table(*(heading for heading, _ in summary_data), header_style=header_style)
    for row in zip(*(cells for _, cells in summary_data), strict=True):
        table.add_row(*(Text(str(cell)) for cell in row))
    get_console().print(table, *(f"[bold]{label}[/]: {value}" for label, value in totals.items()), sep="\n")


class ModelSummary(_ModelSummary, metaclass=StandIn):
    """`camshaft.callbacks.ModelSummary`, and the way of Lightning's where a subclass overrides `summarize`.

    Args:
        max_depth: As today.
        example_input_array: As today.
        summarize_kwargs: Arguments for `summarize`.
    """

    def __init__(self, max_depth: int = 1, *, example_input_array: Any = None, **summarize_kwargs: Any) -> None:
        super().__init__(max_depth, example_input_array=example_input_array)
        self._summarize_kwargs = summarize_kwargs

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        """Print the summary, by an override of `summarize` if there is one. Collective where the forward is."""
        if self.summarize in (ModelSummary.summarize, RichModelSummary.summarize) and (
            type(self)._summary is ModelSummary._summary
        ):
            super().on_fit_start(trainer, module)
        elif self.max_depth:
            summary = self._summary(trainer, module)
            facts = (summary._get_summary_data(), *(getattr(summary, name) for name in _FACTS))
            if trainer.is_global_zero:
                self._call_summarize(facts, {"total_flops": summary.total_flops, **self._summarize_kwargs})

    def _call_summarize(self, facts: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Call `summarize` with the arguments that it has; each release added some."""
        parameters = signature(self.summarize).parameters.values()
        kinds = [one.kind for one in parameters]
        if Parameter.VAR_KEYWORD not in kinds:
            keywords = {one.name: keywords[one.name] for one in parameters if one.name in keywords}
        num = len(facts) if Parameter.VAR_POSITIONAL in kinds else kinds.count(Parameter.POSITIONAL_OR_KEYWORD)
        self.summarize(*facts[:num], **keywords)

    def _summary(self, trainer: Any, pl_module: Any) -> Any:
        return model_summaries.summarize(pl_module, self.max_depth)

    summarize = staticmethod(_printing(_print_plain))


class RichModelSummary(ModelSummary, _RichModelSummary, metaclass=StandIn):
    """The same for `camshaft.callbacks.RichModelSummary`.

    Args:
        max_depth, example_input_array, summarize_kwargs: As in `ModelSummary`; "header_style" is the style of headings.
    """

    def __init__(self, max_depth: int = 1, **summarize_kwargs: Any) -> None:
        super().__init__(max_depth, **summarize_kwargs)
        self.header_style = summarize_kwargs.get("header_style", self.header_style)

    summarize = staticmethod(_printing(_print_with_rich))
