"""What a summary of a module says, and how it reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ModuleRow:
    """One part of a module.

    Args:
        name: Dotted name.
        type: Name of its class.
        parameters: Number of elements of its parameters and its parts', whole where they are sharded.
        trainable: "yes", "no", "partly"; "" without parameters.
        mode: "train" or "eval".
        has_lazy: Whether it has parameters without a shape so far, which are not counted.
        local_parameters: The elements of these that this process holds.
        flops: Floating-point operations in the forward of the example; None if it was not called.
        in_shape: The shapes of what it was first called with; "" if it was not.
        out_shape: The shapes of what it then returned.
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
    """What a module consists of; as text it is a table. Shared parameters count once, buffers not at all.

    Args:
        rows: Its parts.
        trainable_parameters: Number of elements of parameters that require gradients.
        non_trainable_parameters: Number of those that do not.
        size_bytes: Bytes of all parameters.
        local_parameters: Number of elements that this process holds; fewer than all where they are sharded.
        local_size_bytes: Their bytes.
        num_lazy_parameters: Number of parameters without a shape so far, which are not counted.
        num_train_modules: Number of parts, without the module itself, in training mode.
        num_eval_modules: Number of those in evaluation mode.
        total_flops: Floating-point operations of a forward of the example that torch can count (matrix products,
            convolutions, attention; a multiplication and an addition are two); None if there was none.
        notes: What else there is to know.
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
        """Size of all parameters in MB: 1,000,000 bytes."""
        return self.size_bytes / 1e6

    def columns(self) -> list[tuple[str, bool, list[str]]]:
        """Heading, whether it is aligned to the right, and cells of each column that has something to say."""
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
        """Values and what they are, as they are shown below the table."""
        lazy = self.num_lazy_parameters > 0
        lines = [
            (_count(self.trainable_parameters, lazy), "trainable parameters"),
            (f"{self.non_trainable_parameters:,}", "non-trainable parameters"),
            (_count(self.total_parameters, lazy), "parameters in total"),
            (f"{self.model_size:,.3f}", "MB of parameters"),
        ]
        if self.local_parameters != self.total_parameters:
            lines.append((f"{self.local_parameters:,}", "parameters on this process"))
            lines.append((f"{self.local_size_bytes / 1e6:,.3f}", "MB of parameters on this process"))
        if self.total_flops is not None:
            lines.append((format_count(self.total_flops), "FLOPs in a forward of the example"))
        lines.append((f"{self.num_train_modules:,}", "modules in train mode"))
        lines.append((f"{self.num_eval_modules:,}", "modules in eval mode"))
        return lines

    def __str__(self) -> str:
        columns = self.columns()
        widths = [max(len(text) for text in (heading, *cells)) for heading, _, cells in columns]
        lines = []
        if self.rows:
            lines.append(_line([heading for heading, _, _ in columns], columns, widths))
            lines.append("  ".join("-" * width for width in widths))
            for row_idx in range(len(self.rows)):
                lines.append(_line([cells[row_idx] for _, _, cells in columns], columns, widths))
            lines.append("")
        totals = self.totals()
        width = max(len(value) for value, _ in totals)
        lines += [f"{value:>{width}}  {what}" for value, what in totals]
        return "\n".join([*lines, *self.notes])


def format_count(count: int) -> str:
    """Such as "512", "1.23 K" or "45.6 G": three significant digits."""
    value, unit = float(count), ""
    for unit in ("", " K", " M", " G", " T", " P"):  # noqa: B007
        if value < 999.5:
            break
        value /= 1000
    digits = 0 if not unit or value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f}{unit}"


def _count(count: int, has_lazy: bool) -> str:
    return f"{count:,}{' + ?' if has_lazy else ''}"


def _line(cells: Sequence[str], columns: Sequence[tuple[str, bool, list[str]]], widths: Sequence[int]) -> str:
    aligned = [
        f"{cell:>{width}}" if is_right else f"{cell:<{width}}"
        for cell, (_, is_right, _), width in zip(cells, columns, widths, strict=True)
    ]
    return "  ".join(aligned).rstrip()
