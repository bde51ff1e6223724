"""Printed results: tables of evaluations, summaries of fits."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from shutil import get_terminal_size
from textwrap import TextWrapper
from typing import Any

import camshaft.callbacks as stock  # imports its exports on access


def print_results(results: Sequence[Mapping[str, float]], verb: str) -> None:
    """Print a table with a row per value and a column per loader; nothing if no value was logged.

    A name that ends in its loader's index goes by the name alone, since the column says which loader it is.

    Args:
        results: The values of each loader.
        verb: The verb, for the heading.
    """
    columns = [_without_loader(result, idx) for idx, result in enumerate(results)]
    names = list(dict.fromkeys(name for column in columns for name in column))
    if not names:
        return
    headings = [verb, "value"] if len(columns) == 1 else [verb, *(f"loader {idx}" for idx in range(len(columns)))]
    rows = [[name, *(_format(column.get(name)) for column in columns)] for name in names]
    widths = [max(len(row[position]) for row in [headings, *rows]) for position in range(len(headings))]
    for row in [headings, ["-" * width for width in widths], *rows]:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        print("  ".join(cells).rstrip())


def _without_loader(result: Mapping[str, float], dataloader_idx: int) -> dict[str, float]:
    """Return the values by short names; a name stays long if its short one is taken."""
    short = {name: re.sub(rf"/dataloader_idx_{dataloader_idx}$", "", name) for name in result}
    return {name if short[name] != name and short[name] in result else short[name]: result[name] for name in result}


def _format(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def fit_summary(trainer: Any) -> str:
    """Return a summary of a fit: what it resumed, why it ended, amount and speed, best checkpoints; a line each.

    Lines that are wider than the terminal break between words, and a path that is wider between its folders. A callback
    that stopped it says why in its attribute `stopping_reason_message`, as `EarlyStopping` does.
    """
    resumed = [] if trainer.ckpt_path is None else [("resumed", str(trainer.ckpt_path))]
    rows = [*resumed, ("fit ended", _reason(trainer)), ("trained", _amount(trainer)), *_checkpoints(trainer)]
    width = max(len(label) for label, _ in rows)
    columns = get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    wrap = _PathWrapper(columns, subsequent_indent=" " * (width + 2), break_long_words=False, break_on_hyphens=False)
    return "\n".join(wrap.fill(f"{label:{width}}  {text}") for label, text in rows)


class _PathWrapper(TextWrapper):
    """Breaks words that do not fit into a line, such as paths, behind their slashes."""

    def _split(self, text: str) -> list[str]:
        room = self.width - len(self.subsequent_indent)
        chunks = super()._split(text)
        parts = (re.findall(r"[^/\\]*[/\\]+|[^/\\]+", one) if len(one) > room else [one] for one in chunks)
        return [part for of_chunk in parts for part in of_chunk]


def _reason(trainer: Any) -> str:
    reason: str | None = trainer.fit_loop.stop_reason
    if reason is None:
        return "nothing was left to train"
    for callback in trainer.callbacks:
        text = getattr(callback, "stopping_reason_message", None)
        if isinstance(text, str) and trainer.should_stop:
            return f"{type(callback).__name__}: {text}"
    return reason


def _amount(trainer: Any) -> str:
    from camshaft.callbacks.progress.meter import format_seconds  # needed at the end only

    progress = trainer.fit_loop.progress
    seconds, num_updates = progress.elapsed_seconds, progress.global_step
    rate = f" ({num_updates / seconds:.1f} updates/s, validation included)" if seconds > 0 and num_updates else ""
    epochs = "epoch" if progress.current_epoch == 1 else "epochs"
    return f"{progress.current_epoch} {epochs}, {num_updates} updates in {format_seconds(seconds)}{rate}"


def _checkpoints(trainer: Any) -> Iterator[tuple[str, str]]:
    for callback in trainer.callbacks:
        if not isinstance(callback, stock.ModelCheckpoint) or not callback.best_model_path:
            continue
        if callback.monitor is None or callback.best_model_score is None:
            yield "checkpoint", callback.best_model_path
        else:
            yield f"best {callback.monitor}", f"{float(callback.best_model_score):.6g}, in {callback.best_model_path}"
