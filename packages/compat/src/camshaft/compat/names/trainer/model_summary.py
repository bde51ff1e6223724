"""`ModelSummary` and `RichModelSummary` of the import names, whose subclasses print tables of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from inspect import Parameter, signature
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils.flop_counter import FlopCounterMode

from camshaft.callbacks import ModelSummary as _ModelSummary
from camshaft.callbacks import RichModelSummary as _RichModelSummary
from camshaft.callbacks import summarize as _summarize
from camshaft.callbacks.progress.example_forward import reason_not_to_run, run_example
from camshaft.compat.names.stand_ins import StandIn
from camshaft.hooks_core.support.messages import must_be, warn_user

_Columns = list[tuple[str, list[str]]]
_FACTS = ("total_parameters", "trainable_parameters", "model_size", "total_training_modes")


def _printing(show: Callable[..., None]) -> Callable[..., None]:
    """Return a function that prints columns and totals by another one; an override may call it with other columns."""

    def summarize(
        summary_data: _Columns,
        total_parameters: int,
        trainable_parameters: int,
        model_size: float,
        total_training_modes: Mapping[str, int] | None = None,
        total_flops: int = 0,
        **summarize_kwargs: Any,
    ) -> None:
        count = get_human_readable_count
        totals = {
            "Trainable params": count(trainable_parameters),
            "Non-trainable params": count(total_parameters - trainable_parameters),
            "Total params": count(total_parameters),
            "Total estimated model params size (MB)": get_formatted_model_size(model_size),
            **{f"Modules in {mode} mode": str(num) for mode, num in (total_training_modes or {}).items()},
            "Total FLOPs": count(total_flops),
        }
        show(summary_data, totals, **summarize_kwargs)

    return summarize


def _print_plain(summary_data: _Columns, totals: Mapping[str, str], **_: Any) -> None:
    columns = [[heading, *map(str, cells)] for heading, cells in summary_data]
    widths = [max(map(len, column)) for column in columns]
    rows = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in zip(*columns, strict=True))
    print(*rows, *(f"{label}: {value}" for label, value in totals.items()), sep="\n", flush=True)


def _print_with_rich(
    summary_data: _Columns, totals: Mapping[str, str], header_style: Any = "bold magenta", **_: Any
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
        is_own = type(self)._summary is not ModelSummary._summary
        if not is_own and self.summarize in (ModelSummary.summarize, RichModelSummary.summarize):
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
        return summarize(pl_module, self.max_depth)

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


_UNKNOWN_SIZE = "?"
_DEPTHS = {"top": 1, "full": -1}


class Summary:
    """Summary of a model's layers, to be printed or read.

    A model with an `example_input_array` is called with it once, as in `camshaft.callbacks.summarize`; that changes
    nothing in the model.

    Args:
        model: The model.
        max_depth: Largest depth of layers; 1 means the model's children, -1 all, 0 none.
        mode: In earlier releases: "top" for 1, "full" for -1.

    Attributes:
        named_modules: The layers with their names, as deep as asked for; the model itself is none.

    Raises:
        ValueError: If the depth is no int from -1, or there is no such mode.
        Exception: What the model's forward raises for its example.
    """

    def __init__(self, model: nn.Module, max_depth: int | str = 1, *, mode: str | None = None) -> None:
        depth: Any = _DEPTHS.get(str(mode or max_depth), mode or max_depth)
        if not isinstance(depth, int) or depth < -1:
            rule, action = "an int, -1 or greater", "Pass -1 for all layers, 0 for none."
            raise ValueError(must_be("max_depth", rule, depth, "ModelSummary", action))
        self._model, self._max_depth = model, depth
        layers = [(name, layer) for name, layer in model.named_modules() if name]
        self.named_modules = [(name, layer) for name, layer in layers if depth == -1 or name.count(".") < depth]
        if depth == 1:  # a layer with two names is listed under both
            self.named_modules = list(model.named_children())
        self._flop_counter = FlopCounterMode(display=False)
        self._sizes: dict[str, tuple[Any, Any]] = {}
        if getattr(model, "example_input_array", None) is not None:
            self._run(model.example_input_array)

    def _run(self, example: Any) -> None:
        reason = reason_not_to_run(self._model)
        if reason is not None:
            warn_user(
                f"The summary of {type(self._model).__name__} is without sizes and FLOPs, since {reason}. Make it of a "
                "module with values that is not sharded."
            )
            return
        with ExitStack() as stack, self._flop_counter:
            for name, layer in self.named_modules:
                if not isinstance(layer, torch.jit.ScriptModule):  # such a module takes no hook with keywords
                    handle = layer.register_forward_hook(self._recorder(name), with_kwargs=True)
                    stack.callback(handle.remove)
            run_example(self._model, example)

    def _recorder(self, name: str) -> Callable[..., None]:
        def record(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            given = (*args, *kwargs.values())
            sizes = parse_batch_shape(given[0] if len(given) == 1 else given), parse_batch_shape(output)
            self._sizes.setdefault(name, sizes)

        return record

    @property
    def layer_names(self) -> list[str]:
        """Names of the layers."""
        return [name for name, _ in self.named_modules]

    @property
    def layer_types(self) -> list[str]:
        """Names of the layers' classes."""
        return [type(layer).__name__ for _, layer in self.named_modules]

    @property
    def in_sizes(self) -> list[Any]:
        """Sizes of the layers' inputs, lists; lists of them for several, and "?" where there is none."""
        return [self._sizes.get(name, (_UNKNOWN_SIZE,))[0] or _UNKNOWN_SIZE for name in self.layer_names]

    @property
    def out_sizes(self) -> list[Any]:
        """Sizes of the layers' outputs; see `in_sizes`."""
        return [self._sizes.get(name, (_UNKNOWN_SIZE,))[-1] or _UNKNOWN_SIZE for name in self.layer_names]

    @property
    def param_nums(self) -> list[int]:
        """Number of elements of the layers' parameters."""
        return [_num_elements(layer) for _, layer in self.named_modules]

    @property
    def training_modes(self) -> list[bool]:
        """The mode of each layer, true in training mode."""
        return [layer.training for _, layer in self.named_modules]

    @property
    def total_training_modes(self) -> dict[str, int]:
        """Number of all submodules in mode "train" and "eval"."""
        modes = [layer.training for layer in self._model.modules()][1:]
        return {"train": modes.count(True), "eval": modes.count(False)}

    @property
    def total_parameters(self) -> int:
        """Number of elements of all parameters."""
        return _num_elements(self._model)

    @property
    def trainable_parameters(self) -> int:
        """Number of elements of those that require gradients."""
        return _num_elements(self._model, trainable=True)

    @property
    def total_layer_params(self) -> int:
        """Number of elements of the parameters of the layers."""
        return sum(self.param_nums)

    @property
    def model_size(self) -> float:
        """Size of all parameters in MB (1,000,000 bytes)."""
        return sum(one.numel() * one.element_size() for one in self._model.parameters() if not is_lazy(one)) / 1e6

    @property
    def total_flops(self) -> int:
        """Floating-point operations of the example's forward; 0 without an example."""
        return self._flop_counter.get_total_flops()

    @property
    def flop_counts(self) -> dict[str, dict[Any, int]]:
        """Floating-point operations of each layer by torch's operations."""
        counts = self._flop_counter.get_flop_counts()
        root = type(self._model).__name__
        return {name: dict(counts.get(f"{root}.{name}", {})) for name in self.layer_names}

    def _get_summary_data(self) -> _Columns:
        """Return heading and cells of each column; libraries print tables of their own from it."""
        flops = [sum(counts.values()) for counts in self.flop_counts.values()]
        columns = [
            (" ", [str(idx) for idx in range(len(self.named_modules))]),
            ("Name", self.layer_names),
            ("Type", self.layer_types),
            ("Params", [get_human_readable_count(number) for number in self.param_nums]),
            ("Mode", ["train" if training else "eval" for training in self.training_modes]),
            ("FLOPs", [get_human_readable_count(number) for number in flops]),
        ]
        if getattr(self._model, "example_input_array", None) is not None:
            columns += [("In sizes", [str(size) for size in self.in_sizes])]
            columns += [("Out sizes", [str(size) for size in self.out_sizes])]
        num_left = self.total_parameters - self.total_layer_params
        if num_left > 0:
            known = {" ": " ", "Name": "other params", "Params": get_human_readable_count(num_left)}
            columns = [(heading, [*cells, known.get(heading, "n/a")]) for heading, cells in columns]
        return columns

    def __str__(self) -> str:
        return str(_summarize(self._model, self._max_depth))

    __repr__ = __str__


def _num_elements(module: nn.Module, trainable: bool = False) -> int:
    parameters = [one for one in module.parameters() if one.requires_grad or not trainable]
    counted = [one for one in parameters if not is_lazy(one)]
    if len(counted) < len(parameters):
        warn_user(
            "The total number of parameters may be inaccurate, since some have no shape yet. Call the model once."
        )
    return sum(one.numel() for one in counted)


def summarize(lightning_module: nn.Module, max_depth: int = 1, mode: str | None = None) -> Summary:
    """Return `Summary(lightning_module, max_depth, mode=mode)`."""
    return Summary(lightning_module, max_depth, mode=mode)


def parse_batch_shape(batch: Any) -> Any:
    """Return the shape of a tensor as a list, lists of them for a list or tuple, and "?" for anything else."""
    if hasattr(batch, "shape"):
        return list(batch.shape)
    return [parse_batch_shape(part) for part in batch] if isinstance(batch, (list, tuple)) else _UNKNOWN_SIZE


def get_formatted_model_size(total_model_size: float) -> str:
    """Return a size in MB with three places."""
    return f"{total_model_size:,.3f}"


def get_human_readable_count(number: int) -> str:
    """Return a number in short form: "1.2 K", "2.0 M", "400 T"; below a thousand with two blanks behind."""
    units = " KMBT"
    power = min((len(str(int(number))) - 1) // 3, len(units) - 1)
    shown = number * 10 ** (-3 * power)  # rounds as in Lightning
    return f"{int(shown):,d} {units[power]}" if power == 0 or shown >= 100 else f"{shown:,.1f} {units[power]}"
