"""Predictions in durable files of a bounded number of rows, from any number of processes."""

from __future__ import annotations

import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from camshaft.callbacks.agreement import from_rank_zero
from camshaft.callbacks.errors import InvalidArgumentError
from camshaft.callbacks.extras import check_installed
from camshaft.callbacks.predictions.prediction_columns import (
    ORDER_COLUMNS,
    Columns,
    columns_of,
    in_dataset_order,
    order_of,
)
from camshaft.callbacks.predictions.prediction_writer import BasePredictionWriter
from camshaft.hooks_core.durable_paths import flush, put_in_place, remove

if TYPE_CHECKING:
    from camshaft.hooks_core.protocols import TrainerProtocol

_PREFIX = "predictions-rank"


class PredictionFiles(BasePredictionWriter, ABC):
    """Writes rows of predictions to files; subclasses say in which format.

    Each process writes `predictions-rank00000-of-00002-part00000` and so on, of `rows_per_file` rows each, and at the
    end `predictions-rank00000-of-00002.json`, which says how many files there are. No more rows are held in memory than
    a file and a batch have. A file is written beside its place, flushed and renamed, so what is there under its name is
    whole, whenever a prediction is interrupted; without its end `read_predictions` refuses it.

    Every row has columns that tell where it belongs: `_dataloader_idx`, `_batch_idx` (as one process would count),
    `_row_idx` in the batch, and `_sample_idx`, the index in the dataset, -1 where the loader's order is not a fixed one
    or the batch has not one row for each sample.

    Args:
        dirpath: The folder; it is made when needed.
        rows_per_file: Rows of a file; the last one of a process may have fewer.
        overwrite: Whether the files of an earlier prediction in the folder are removed when another one begins. If
            false that is an error.

    Raises:
        InvalidArgumentError: If `rows_per_file` is below 1; in prediction, if the columns of a batch are not those of
            the batches before it, or what was predicted cannot be written.
        FileExistsError: When a prediction begins, if there are files of an earlier one.
    """

    suffix: ClassVar[str]
    library: ClassVar[str]
    extra: ClassVar[str]
    _notes_drawn_orders: ClassVar[bool] = False  # what is shuffled is read back as it was predicted

    def __init__(self, dirpath: str | os.PathLike[str], rows_per_file: int = 10_000, overwrite: bool = False) -> None:
        super().__init__("batch")
        if rows_per_file < 1:
            where = type(self).__name__
            raise InvalidArgumentError("rows_per_file", "at least 1", rows_per_file, where, "Pass a larger number.")
        check_installed(self.library, self.extra, type(self).__name__)
        self.dirpath = Path(dirpath)
        self.rows_per_file = rows_per_file
        self.overwrite = overwrite
        self._rank, self._num_ranks = 0, 1
        self._writes = True
        self._held: list[Columns] = []
        self._num_held = 0
        self._num_rows = 0
        self._num_files = 0

    @abstractmethod
    def write_file(self, columns: Columns, path: Path) -> None:
        """Write columns of equally many rows to a file."""

    def on_predict_epoch_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Make room in the folder. Collective."""
        super().on_predict_epoch_start(trainer, module)
        strategy = trainer.strategy
        from_rank_zero(strategy, self._make_room)
        self._rank, self._num_ranks = strategy.data_rank, strategy.num_data_ranks
        # of processes that share a replica of the model, and so predict the same, the first writes
        ranks = [self._rank] if strategy.world_size == 1 else strategy.all_gather(self._rank)
        self._writes = ranks.index(self._rank) == strategy.global_rank
        self._held, self._num_held, self._num_rows, self._num_files = [], 0, 0, 0

    def write_on_batch_end(
        self,
        trainer: TrainerProtocol,
        module: Any,
        prediction: Any,
        batch_indices: Sequence[int] | None,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int,
    ) -> None:
        """Take a batch's rows, and write a file when there are enough."""
        if not self._writes:
            return
        columns = columns_of(prediction, type(self).__name__)
        num_rows = len(next(iter(columns.values()))) if columns else 0
        if not num_rows:
            return
        place = batch_idx * self._num_ranks + self._rank
        columns |= order_of(num_rows, batch_indices, dataloader_idx=dataloader_idx, batch_idx=place)
        if self._held and _form(columns) != _form(self._held[-1]):
            if columns["_dataloader_idx"][:1] == self._held[-1]["_dataloader_idx"][:1]:
                rule = f"of the same columns, shapes and types as before ({_form(self._held[-1])})"
                action = "Pad what differs between batches, and return the same keys."
                raise InvalidArgumentError("prediction", rule, _form(columns), type(self).__name__, action)
            self._write(self._num_held)  # another loader may have other columns, in files of its own
        self._held.append(columns)
        self._num_held += num_rows
        while self._num_held >= self.rows_per_file:
            self._write(self.rows_per_file)

    def on_predict_epoch_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Write what is held back, and that it is all."""
        super().on_predict_epoch_end(trainer, module)
        if not self._writes:
            return
        if self._num_held:
            self._write(self._num_held)
        end = {"num_ranks": self._num_ranks, "num_files": self._num_files, "num_rows": self._num_rows}
        partial = self._partial(".json")
        partial.write_text(json.dumps(end))
        self._put(partial, self.dirpath / f"{self._stem}.json")

    @property
    def _stem(self) -> str:
        return f"{_PREFIX}{self._rank:05d}-of-{self._num_ranks:05d}"

    def _partial(self, suffix: str) -> Path:
        return self.dirpath / f".{self._stem}.partial{suffix}"

    def _make_room(self) -> None:
        self.dirpath.mkdir(parents=True, exist_ok=True)
        own = sorted(path for path in self.dirpath.iterdir() if path.name.lstrip(".").startswith(_PREFIX))
        whole = [path for path in own if not path.name.startswith(".")]
        if whole and not self.overwrite:
            raise FileExistsError(
                f"`dirpath` must be without the predictions of an earlier run, but got {str(self.dirpath)!r} with "
                f"{len(whole)} of their files in {type(self).__name__}. Pass another folder, or overwrite=True."
            )
        for path in own:
            remove(path)

    def _write(self, num_rows: int) -> None:
        """Write the first rows that are held back."""
        import numpy as np

        held = {name: np.concatenate([columns[name] for columns in self._held]) for name in self._held[0]}
        # copies, so that what was written is let go
        rest = {name: column[num_rows:].copy() for name, column in held.items()}
        partial = self._partial(self.suffix)
        try:
            self.write_file({name: column[:num_rows] for name, column in held.items()}, partial)
        except BaseException:
            remove(partial)
            raise
        self._put(partial, self.dirpath / f"{self._stem}-part{self._num_files:05d}{self.suffix}")
        self._num_files += 1
        self._num_rows += num_rows
        self._num_held -= num_rows
        self._held = [rest] if self._num_held else []

    def _put(self, partial: Path, target: Path) -> None:
        flush(partial)
        put_in_place(partial, target)


def _form(columns: Columns) -> dict[str, tuple[Any, ...]]:
    """Names, shapes of rows and kinds of numbers; strings may differ in length."""
    return {
        name: (column.shape[1:], column.dtype.kind if column.dtype.kind in "US" else column.dtype.name)
        for name, column in columns.items()
    }


def whole_files(dirpath: str | os.PathLike[str], suffix: str, where: str) -> list[Path]:
    """The files of a prediction that is complete, of all processes.

    Raises:
        FileNotFoundError: If there is none in the folder, or some of its files are missing.
    """
    folder = Path(dirpath)
    ends = {path.name: json.loads(path.read_text()) for path in sorted(folder.glob(f"{_PREFIX}*.json"))}
    started = {match[1] for path in folder.glob(f"{_PREFIX}*") if (match := re.search(r"-of-(\d+)", path.name))}
    num_ranks = int(max(started)) if started else 0
    names = [f"{_PREFIX}{rank:05d}-of-{num_ranks:05d}" for rank in range(num_ranks)]
    unfinished = [name for name in names if f"{name}.json" not in ends]
    paths = [
        folder / f"{name}-part{part:05d}{suffix}"
        for name in names
        if name not in unfinished
        for part in range(ends[f"{name}.json"]["num_files"])
    ]
    missing = [path.name for path in paths if not path.exists()]
    if not names or unfinished or missing:
        found = f"without the end of {unfinished}" if unfinished else f"without {missing}" if missing else "empty"
        raise FileNotFoundError(
            f"`dirpath` must be the folder of a prediction that was completed, but got {str(folder)!r}, {found}, in "
            f"{where}. Predict again, with overwrite=True if it was interrupted."
        )
    return paths


def rows_in_order(order: Columns, dataloader_idx: int) -> Any:
    """Which of the rows of all files belong to a loader, in the order of its dataset."""
    import numpy as np

    own = np.flatnonzero(order[ORDER_COLUMNS[0]] == dataloader_idx)
    return own[in_dataset_order({name: column[own] for name, column in order.items()})]
