"""Summary of a model: submodules, parameters, shapes and FLOPs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from camshaft.callbacks.arguments import check_installed, check_number
from camshaft.callbacks.module_snapshot import local
from camshaft.callbacks.progress.example_forward import ExampleForward, PartForward, reason_not_to_run, run_example
from camshaft.callbacks.progress.meter import current_output
from camshaft.hooks_core import Callback
from camshaft.hooks_core.support.messages import must_be, warn_user

if TYPE_CHECKING:
    from camshaft.hooks_core.protocols import TrainerProtocol


_SMALL_BYTES = 100_000


class ModelSummary(Callback):
    """Prints the submodules when fit begins: type, parameters, mode, and with an example shapes and FLOPs.

    Rank 0 prints, with rich on a terminal if it is installed, else as plain text. Every rank runs the example, so that
    a forward that communicates works; see `summarize` for when it is skipped.

    Args:
        max_depth: Largest depth of listed submodules; 1 lists the module's children, -1 all, 0 prints nothing.
        example_input_array: Input for the module; None is the module's `example_input_array`, if it has one. See
            `summarize`.

    Attributes:
        summary: The latest `Summary`; None before the first.

    Raises:
        InvalidArgumentError: If `max_depth` is no int, or below -1.
    """

    only_observes = True

    def __init__(self, max_depth: int = 1, *, example_input_array: Any = None) -> None:
        _check_depth(max_depth, "ModelSummary")
        self.max_depth = max_depth
        self.example_input_array = example_input_array
        self.summary: Summary | None = None

    def on_fit_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Print the summary. Collective where the module's forward is."""
        if self.max_depth == 0:
            return
        self.summary = summarize(module, self.max_depth, self.example_input_array)
        if trainer.is_global_zero:
            self.print(self.summary)

    def print(self, summary: Summary) -> None:
        """Print a summary; called on rank 0, to be overridden."""
        if current_output() == "terminal" and find_spec("rich") is not None:
            _print_with_rich(summary, "bold")
        else:
            print(summary, flush=True)


class RichModelSummary(ModelSummary):
    """Prints the submodules with rich, also where the output is no terminal; see `ModelSummary`.

    Args:
        max_depth: As in `ModelSummary`; likewise `example_input_array`.
        header_style: Style of the headings, as rich names them.

    Raises:
        InvalidArgumentError: As `ModelSummary`.
        ModuleNotFoundError: If rich is not installed.
    """

    def __init__(
        self, max_depth: int = 1, *, header_style: str = "bold magenta", example_input_array: Any = None
    ) -> None:
        check_installed("rich", "rich", self)
        super().__init__(max_depth, example_input_array=example_input_array)
        self.header_style = header_style

    def print(self, summary: Summary) -> None:
        """Print a summary; called on rank 0, to be overridden."""
        _print_with_rich(summary, self.header_style)


def summarize(module: nn.Module, max_depth: int = 1, example_input_array: Any = None) -> Summary:
    """Return a summary of a module, to be printed: `print(summarize(module))`.

    With an example, one forward is run in evaluation mode, without gradients; the module and random number generators
    are restored. It is skipped, with a note, if parameters are sharded (which all ranks would have to run together),
    have no shape yet or are on the meta device. If it raises, that is a warning.

    Args:
        max_depth: Largest depth of listed submodules; 1 lists the module's children, -1 all, 0 only totals.
        example_input_array: A tensor; a tuple or list of positional arguments; a dictionary of keyword arguments.
            Tensors are moved to the module's device and dtype. None is the module's attribute of this name, if any.

    Returns:
        The summary.

    Raises:
        TypeError: If `module` is not a `torch.nn.Module`.
        InvalidArgumentError: If `max_depth` is no int, or below -1.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(must_be("module", "a torch.nn.Module", module, "summarize", "Pass the module itself."))
    _check_depth(max_depth, "summarize")
    example = getattr(module, "example_input_array", None) if example_input_array is None else example_input_array
    parameters = list(module.parameters())
    notes: list[str] = []
    forward = _try_example(module, example, parameters, notes)
    counted = [parameter for parameter in parameters if not is_lazy(parameter)]
    locals_ = [local(parameter) for parameter in counted]
    modes = [part.training for part in module.modules()][1:]
    return Summary(
        rows=tuple(_rows(module, max_depth, forward)),
        trainable_parameters=sum(parameter.numel() for parameter in counted if parameter.requires_grad),
        non_trainable_parameters=sum(parameter.numel() for parameter in counted if not parameter.requires_grad),
        size_bytes=_size_bytes(counted),
        local_parameters=sum(parameter.numel() for parameter in locals_),
        local_size_bytes=_size_bytes(locals_),
        num_lazy_parameters=len(parameters) - len(counted),
        num_train_modules=sum(modes),
        num_eval_modules=len(modes) - sum(modes),
        total_flops=None if forward is None else forward.total_flops,
        notes=tuple(notes),
    )


def _check_depth(max_depth: int, where: str) -> None:
    check_number(where, "Pass -1 to list all submodules.", least=-1, is_int=True, max_depth=max_depth)


def _rows(module: nn.Module, max_depth: int, forward: ExampleForward | None) -> Iterator[ModuleRow]:
    seen = {} if forward is None else forward.parts
    for name, part in module.named_modules():
        if name and (max_depth == -1 or name.count(".") < max_depth):
            yield _row(name, type(part).__name__, part, list(part.parameters()), seen.get(part))
    own = dict(module.named_parameters(recurse=False))
    if own and max_depth != 0:
        yield _row(", ".join(own), "(parameters)", module, list(own.values()), None)


def _row(
    name: str, type_name: str, part: nn.Module, parameters: list[nn.Parameter], seen: PartForward | None
) -> ModuleRow:
    counted = [parameter for parameter in parameters if not is_lazy(parameter)]
    needs = {parameter.requires_grad for parameter in parameters}
    return ModuleRow(
        name=name,
        type=type_name,
        parameters=sum(parameter.numel() for parameter in counted),
        trainable="" if not needs else "partly" if len(needs) == 2 else "yes" if True in needs else "no",
        mode="train" if part.training else "eval",
        has_lazy=len(counted) < len(parameters),
        local_parameters=sum(local(parameter).numel() for parameter in counted),
        **({} if seen is None else vars(seen)),
    )


def _try_example(
    module: nn.Module, example: Any, parameters: list[nn.Parameter], notes: list[str]
) -> ExampleForward | None:
    """Run the example, if there is one and it can be run; else add the reason to `notes`."""
    if any(is_lazy(parameter) for parameter in parameters):
        notes.append("? stands for parameters that get their shape in the first forward.")
    if example is None:
        return None
    reason = reason_not_to_run(module)
    if reason is not None:
        notes.append(f"No shapes and FLOPs: the example is not run, since {reason}.")
        return None
    try:
        return run_example(module, example)
    except Exception as error:
        raised = " ".join(f"{type(error).__name__}: {error}".split())
        warn_user(
            f"The summary of {type(module).__name__} is without shapes and FLOPs, since its forward of"
            f" `example_input_array` raised {raised.rstrip('.')}. Make the example fit the forward, or leave it out."
        )
        notes.append("No shapes and FLOPs: the forward of the example raised.")
        return None


def _size_bytes(parameters: Iterable[Tensor]) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in parameters)


def _print_with_rich(summary: Summary, header_style: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text  # which shows "[8, 3]" as it is

    table = Table(header_style=header_style, show_edge=False, pad_edge=False)
    for heading, is_right, _ in summary.columns():
        table.add_column(heading, justify="right" if is_right else "left", overflow="fold")
    for cells in zip(*(cells for _, _, cells in summary.columns()), strict=True):
        table.add_row(*map(Text, cells))
    totals = Table.grid(padding=(0, 1))
    totals.add_column(justify="right")
    totals.add_column()
    for value, what in summary.totals():
        totals.add_row(f"[bold]{value}", what)
    Console().print(table, totals, *map(Text, summary.notes), sep="\n")


@dataclass(frozen=True)
class ModuleRow:
    """A row of the summary: one submodule.

    Args:
        name: Dotted name.
        type: Name of its class.
        parameters: Number of elements of its parameters, of all ranks if they are sharded.
        trainable: "yes", "no", "partly"; "" without parameters.
        mode: "train" or "eval".
        has_lazy: Whether it has parameters without a shape yet, which are not counted.
        local_parameters: Number of these elements on this rank.
        flops: Floating-point operations in the forward of the example; None if it was not called.
        in_shape: Shapes of its first input; "" if it was not called.
        out_shape: Shapes of its first output.
    """

    name: str
    type: str
    parameters: int
    trainable: str
    mode: str
    has_lazy: bool
    local_parameters: int
    flops: int | None = None
    in_shape: str = ""
    out_shape: str = ""


@dataclass(frozen=True)
class Summary:
    """Summary of a module; its `str` is a table. Shared parameters count once, buffers not at all.

    Args:
        rows: The listed submodules.
        trainable_parameters: Number of elements of parameters that require gradients.
        non_trainable_parameters: Number of those that do not.
        size_bytes: Bytes of all parameters.
        local_parameters: Number of elements on this rank; fewer if parameters are sharded.
        local_size_bytes: Bytes of these.
        num_lazy_parameters: Number of parameters without a shape yet, which are not counted.
        num_train_modules: Number of submodules in training mode.
        num_eval_modules: Number of submodules in evaluation mode.
        total_flops: Floating-point operations of the example's forward that torch can count (matrix products,
            convolutions, attention; a multiplication and an addition are two); None without one.
        notes: Further remarks.
    """

    rows: tuple[ModuleRow, ...]
    trainable_parameters: int
    non_trainable_parameters: int
    size_bytes: int
    local_parameters: int
    local_size_bytes: int
    num_lazy_parameters: int
    num_train_modules: int
    num_eval_modules: int
    total_flops: int | None
    notes: tuple[str, ...]

    @property
    def total_parameters(self) -> int:
        """Number of elements of all parameters."""
        return self.trainable_parameters + self.non_trainable_parameters

    @property
    def model_size(self) -> float:
        """Size of all parameters in MB (1,000,000 bytes)."""
        return self.size_bytes / 1e6

    def columns(self) -> list[tuple[str, bool, list[str]]]:
        """Return heading, whether to align right, and cells of each column with content."""
        rows = self.rows
        columns = [
            ("Name", False, [row.name for row in rows]),
            ("Type", False, [row.type for row in rows]),
            ("Parameters", True, [_count(row.parameters, row.has_lazy) for row in rows]),
        ]
        if self.local_parameters != self.total_parameters:
            columns.append(("Here", True, [f"{row.local_parameters:,}" for row in rows]))
        columns += [
            ("Trainable", False, [row.trainable for row in rows]),
            ("Mode", False, [row.mode for row in rows]),
        ]
        if self.total_flops is not None:
            columns += [
                ("FLOPs", True, ["" if row.flops is None else format_count(row.flops) for row in rows]),
                ("Input shape", False, [row.in_shape for row in rows]),
                ("Output shape", False, [row.out_shape for row in rows]),
            ]
        return columns

    def totals(self) -> list[tuple[str, str]]:
        """Return values and their labels, as shown below the table, without those that say nothing.

        A total that equals the trainable parameters, a size below 0.1 MB and modes that are all "train" are left out.
        """
        lazy = self.num_lazy_parameters > 0
        lines = [(_count(self.trainable_parameters, lazy), "trainable parameters")]
        if self.non_trainable_parameters:
            lines.append((f"{self.non_trainable_parameters:,}", "non-trainable parameters"))
            lines.append((_count(self.total_parameters, lazy), "parameters in total"))
        if self.size_bytes >= _SMALL_BYTES:
            lines.append((f"{self.model_size:,.3f}", "MB of parameters"))
        if self.local_parameters != self.total_parameters:
            lines.append((f"{self.local_parameters:,}", "parameters on this process"))
            lines.append((f"{self.local_size_bytes / 1e6:,.3f}", "MB of parameters on this process"))
        if self.total_flops is not None:
            lines.append((format_count(self.total_flops), "FLOPs in a forward of the example"))
        if self.num_eval_modules:
            lines.append((f"{self.num_train_modules:,}", "modules in train mode"))
            lines.append((f"{self.num_eval_modules:,}", "modules in eval mode"))
        return lines

    def __str__(self) -> str:
        lines = []
        if self.rows:
            padded = []
            for heading, is_right, cells in self.columns():
                width = max(len(text) for text in (heading, *cells))
                padded.append([f"{one:{'>' if is_right else '<'}{width}}" for one in (heading, "-" * width, *cells)])
            lines = [*("  ".join(row).rstrip() for row in zip(*padded, strict=True)), ""]
        totals = self.totals()
        width = max(len(value) for value, _ in totals)
        lines += [f"{value:>{width}}  {what}" for value, what in totals]
        return "\n".join([*lines, *self.notes])


def format_count(count: int) -> str:
    """Return a text with three significant digits, such as "512", "1.23 K" or "45.6 G"."""
    value, unit = float(count), ""
    for unit in ("", " K", " M", " G", " T", " P"):  # noqa: B007
        if value < 999.5:
            break
        value /= 1000
    digits = 0 if not unit or value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f}{unit}"


def _count(count: int, has_lazy: bool) -> str:
    return f"{count:,}{' + ?' if has_lazy else ''}"
