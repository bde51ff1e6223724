"""Callbacks that write predictions to durable files, from any number of processes."""

from __future__ import annotations

import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from zipfile import ZIP_STORED, ZipFile

import torch
from torch import Tensor

from camshaft.callbacks.arguments import InvalidArgumentError, check_installed, check_local, check_number
from camshaft.callbacks.monitoring import from_rank_zero
from camshaft.callbacks.predictions.prediction_writer import BasePredictionWriter
from camshaft.hooks_core.protocols import TrainerProtocol
from camshaft.hooks_core.support.durable_files import new_file, remove
from camshaft.hooks_core.support.remote_files import local_path

if TYPE_CHECKING:
    import numpy as np


_PREFIX = "predictions-rank"


class PredictionFiles(BasePredictionWriter, ABC):
    """Writes rows of predictions to files; subclasses define the format.

    Each process writes `predictions-rank00000-of-00002-part00000` and so on, of `rows_per_file` rows each, and at the
    end `predictions-rank00000-of-00002.json` with the number of files. At most the rows of a file and a batch are in
    memory. A file is written beside its target, flushed and renamed, so that every file is complete whenever a
    prediction is interrupted; `read_predictions` refuses an interrupted prediction.

    Every row has columns with its position: `_dataloader_idx`, `_batch_idx` (as one process would count), `_row_idx` in
    the batch, and `_sample_idx`, the index in the dataset, -1 if the loader's order is not fixed or the batch does not
    have one row per sample.

    Args:
        dirpath: The folder; it is made when needed.
        rows_per_file: Rows per file; the last file of a process may have fewer.
        overwrite: Whether a new prediction removes the files of a previous one in the folder. If false, such files are
            an error.

    Raises:
        InvalidArgumentError: If `rows_per_file` is below 1; in prediction, if the columns of a batch differ from those
            of the batches before it, or a prediction cannot be written.
        FileExistsError: When a prediction begins, if there are files of a previous one.
    """

    suffix: ClassVar[str]
    library: ClassVar[str]
    extra: ClassVar[str]
    _records_drawn_orders: ClassVar[bool] = False  # shuffled samples are read back in the order of prediction

    def __init__(self, dirpath: str | os.PathLike[str], rows_per_file: int = 10_000, overwrite: bool = False) -> None:
        super().__init__("batch")
        check_number(self, least=1, rows_per_file=rows_per_file)
        check_installed(self.library, self.extra, self)
        check_local("dirpath", local_path(dirpath), self)
        self.dirpath = Path(local_path(dirpath))
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
        """Write columns of equal length to a file."""

    def on_predict_epoch_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Prepare the folder. Collective."""
        super().on_predict_epoch_start(trainer, module)
        strategy = trainer.strategy
        from_rank_zero(strategy, self._prepare_folder)
        self._rank, self._num_ranks = strategy.data_rank, strategy.num_data_ranks
        # the first of the ranks that share a replica of the model, and so predict the same, writes
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
        """Add a batch's rows, and write a file when there are enough.

        Raises:
            InvalidArgumentError: If the columns differ from those of the batches before.
        """
        if not self._writes:
            return
        columns = columns_of(prediction, self)
        num_rows = len(next(iter(columns.values()), ()))
        if not num_rows:
            return
        place = batch_idx * self._num_ranks + self._rank
        columns |= position_columns(num_rows, batch_indices, dataloader_idx=dataloader_idx, batch_idx=place)
        if self._held and _signature(columns) != _signature(self._held[-1]):
            if columns["_dataloader_idx"][:1] == self._held[-1]["_dataloader_idx"][:1]:
                rule = f"of the same columns, shapes and types as before ({_signature(self._held[-1])})"
                action = "Pad what differs between batches, and return the same keys."
                raise InvalidArgumentError("prediction", rule, _signature(columns), self, action)
            self._write(self._num_held)  # another loader may have other columns, which get separate files
        self._held.append(columns)
        self._num_held += num_rows
        while self._num_held >= self.rows_per_file:
            self._write(self.rows_per_file)

    def on_predict_epoch_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Write the remaining rows, and the file that marks the end."""
        super().on_predict_epoch_end(trainer, module)
        if not self._writes:
            return
        if self._num_held:
            self._write(self._num_held)
        end = {"num_ranks": self._num_ranks, "num_files": self._num_files, "num_rows": self._num_rows}
        with new_file(self.dirpath / f"{self._stem}.json") as fresh:
            fresh.write_text(json.dumps(end))

    @property
    def _stem(self) -> str:
        return f"{_PREFIX}{self._rank:05d}-of-{self._num_ranks:05d}"

    def _prepare_folder(self) -> None:
        self.dirpath.mkdir(parents=True, exist_ok=True)
        own = sorted(path for path in self.dirpath.iterdir() if path.name.lstrip(".").startswith(_PREFIX))
        whole = [path for path in own if not path.name.startswith(".")]
        if whole and not self.overwrite:
            raise FileExistsError(
                f"`dirpath` must hold no predictions of a previous run, but got {str(self.dirpath)!r} with "
                f"{len(whole)} of their files in {type(self).__name__}. Pass another folder, or overwrite=True."
            )
        for path in own:
            remove(path)

    def _write(self, num_rows: int) -> None:
        """Write the first of the rows in memory."""
        import numpy as np

        held = {name: np.concatenate([columns[name] for columns in self._held]) for name in self._held[0]}
        # copies, so that the memory of written rows is freed
        rest = {name: column[num_rows:].copy() for name, column in held.items()}
        with new_file(self.dirpath / f"{self._stem}-part{self._num_files:05d}{self.suffix}") as fresh:
            self.write_file({name: column[:num_rows] for name, column in held.items()}, fresh)
        self._num_files += 1
        self._num_rows += num_rows
        self._num_held -= num_rows
        self._held = [rest] if self._num_held else []


def _signature(columns: Columns) -> dict[str, tuple[Any, ...]]:
    """Return the names, row shapes and dtypes of columns; strings may differ in length."""
    return {
        name: (column.shape[1:], column.dtype.kind if column.dtype.kind in "US" else column.dtype.name)
        for name, column in columns.items()
    }


def complete_files(dirpath: str | os.PathLike[str], suffix: str, where: object) -> list[Path]:
    """Return the files of a complete prediction, of all processes.

    Raises:
        FileNotFoundError: If the folder has no prediction, or one whose files are not all there.
    """
    folder = Path(local_path(dirpath))
    check_local("dirpath", local_path(dirpath), "read_predictions")
    num_files = {path.stem: json.loads(path.read_text())["num_files"] for path in folder.glob(f"{_PREFIX}*.json")}
    started = {match[1] for path in folder.glob(f"{_PREFIX}*") if (match := re.search(r"-of-(\d+)", path.name))}
    num_ranks = int(max(started)) if started else 0
    names = [f"{_PREFIX}{rank:05d}-of-{num_ranks:05d}" for rank in range(num_ranks)]
    unfinished = [name for name in names if name not in num_files]
    parts = [f"{name}-part{part:05d}{suffix}" for name in names for part in range(num_files.get(name, 0))]
    paths = [folder / part for part in parts]
    missing = [path.name for path in paths if not path.exists()]
    if not names or unfinished or missing:
        found = f"without the end of {unfinished}" if unfinished else f"without {missing}" if missing else "empty"
        raise FileNotFoundError(
            f"`dirpath` must be the folder of a complete prediction, but got {str(folder)!r}, {found}, in "
            f"{where}. Predict again, with overwrite=True if it was interrupted."
        )
    return paths


def rows_in_order(order: Columns, dataloader_idx: int) -> Any:
    """Return the indices of a loader's rows in all files, in the order of its dataset."""
    import numpy as np

    own = np.flatnonzero(order[ORDER_COLUMNS[0]] == dataloader_idx)
    batches, rows, samples = (order[name][own] for name in ORDER_COLUMNS[1:])
    if (samples < 0).any():  # in the order of the loader, if a sample is unknown
        return own[np.lexsort((rows, batches))]
    places = np.lexsort((rows, batches, samples))
    is_first = np.ones(len(places), dtype=bool)  # of each sample, which several ranks may have predicted
    is_first[1:] = samples[places][1:] != samples[places][:-1]
    return own[places[is_first]]


Columns = dict[str, "np.ndarray[Any, Any]"]

ORDER_COLUMNS = ("_dataloader_idx", "_batch_idx", "_row_idx", "_sample_idx")
"""Position of a row: loader, batch (as one process would count), row in the batch, and sample, -1 if unknown."""

_ONLY = "prediction"


def columns_of(prediction: Any, where: object) -> Columns:
    """Return a batch's prediction as named columns of equal length.

    A tensor becomes "prediction"; the items of a list or tuple "prediction.0" and so on; the values of a dictionary
    have their keys as names, nested ones all keys joined by dots. A tensor without dimensions and a number are one row.
    A list of strings or numbers is a column.

    Args:
        prediction: What `predict_step` returned.
        where: The class to name in errors.

    Returns:
        NumPy arrays; none if the prediction is None. bfloat16, which NumPy does not have, becomes float32.

    Raises:
        InvalidArgumentError: If it has other contents, or the columns differ in length.
    """
    columns: Columns = {}
    _collect(prediction, "", columns, where)
    num_rows = {name: len(column) for name, column in columns.items()}
    if len(set(num_rows.values())) > 1:
        action = "Return a row for each sample in every column."
        raise InvalidArgumentError("prediction", "columns of equally many rows", num_rows, where, action)
    return columns


def position_columns(
    num_rows: int, batch_indices: Sequence[int] | None, *, dataloader_idx: int, batch_idx: int
) -> Columns:
    """Return the columns with the positions of a batch's rows.

    Args:
        num_rows: Rows of the batch.
        batch_indices: Dataset indices of its samples; used if there is one for each row.
        dataloader_idx: Index of the loader.
        batch_idx: Index of the batch, as one process would count.
    """
    import numpy as np

    is_known = batch_indices is not None and len(batch_indices) == num_rows
    values = (dataloader_idx, batch_idx, np.arange(num_rows), batch_indices if is_known else -1)
    return {name: np.full(num_rows, one, dtype=np.int64) for name, one in zip(ORDER_COLUMNS, values, strict=True)}


def _collect(value: Any, name: str, columns: Columns, where: object) -> None:
    import numpy as np

    if value is None:
        return
    if isinstance(value, Tensor):
        value = value.detach()
        value = (value.float() if value.dtype == torch.bfloat16 else value).cpu().numpy()
    is_row = isinstance(value, (list, tuple)) and all(isinstance(item, (bool, int, float, str)) for item in value)
    if is_row or isinstance(value, (np.ndarray, bool, int, float, str)):
        _add(columns, name or _ONLY, np.atleast_1d(value), where)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _collect(item, f"{name}.{key}" if name else str(key), columns, where)
    elif isinstance(value, (list, tuple)):
        for position, item in enumerate(value):
            _collect(item, f"{name or _ONLY}.{position}", columns, where)
    else:
        rule = "tensors, arrays, numbers or strings, in lists, tuples and dictionaries"
        action = "Return these from `predict_step`, or write a subclass of BasePredictionWriter."
        raise InvalidArgumentError("prediction", rule, value, where, action)


def _add(columns: Columns, name: str, column: Any, where: object) -> None:
    if name in columns or name in ORDER_COLUMNS:
        rule = f"a unique name other than {', '.join(ORDER_COLUMNS)}"
        raise InvalidArgumentError("prediction", rule, name, where, "Rename it.")
    if column.dtype.kind not in "biufcUS":
        rule = "of numbers or strings"
        raise InvalidArgumentError(f"prediction column {name!r}", rule, column.dtype, where, "Convert it.")
    columns[name] = column


class NPZPredictionWriter(PredictionFiles):
    """Writes predictions to `.npz` files, an array for each column; see `PredictionFiles`.

    Args:
        dirpath: The folder; it is made when needed.
        rows_per_file: Rows per file; the last file of a process may have fewer.
        overwrite: Whether a new prediction removes the files of a previous one in the folder. If false, such files are
            an error.

    Example:
        >>> from camshaft.trainer import Trainer, TrainingModule
        >>> class Doubling(TrainingModule):
        ...     def predict_step(self, batch, batch_idx):
        ...         return {"double": 2 * batch}
        >>> trainer = Trainer(callbacks=[NPZPredictionWriter("predictions")], logger=False, enable_progress_bar=False)
        >>> loader = torch.utils.data.DataLoader(torch.arange(4), batch_size=2)
        >>> trainer.predict(Doubling(), loader, return_predictions=False)
        >>> NPZPredictionWriter.read_predictions("predictions")["double"].tolist()
        [0, 2, 4, 6]
    """

    suffix: ClassVar[str] = ".npz"
    library: ClassVar[str] = "numpy"
    extra: ClassVar[str] = "npz"

    def write_file(self, columns: Columns, path: Path) -> None:
        """Write columns to a file that `numpy.load` reads.

        Args:
            columns: An array for each column.
            path: The file.
        """
        from numpy.lib import format as npy

        with ZipFile(path, "w", ZIP_STORED) as archive:  # `numpy.savez` cannot name a column "file"
            for name, column in columns.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    npy.write_array(file, column, allow_pickle=False)

    @staticmethod
    def read_predictions(dirpath: str | os.PathLike[str], dataloader_idx: int = 0) -> Columns:
        """Read the predictions of all processes.

        Args:
            dirpath: The folder.
            dataloader_idx: Index of the loader.

        Returns:
            Arrays by column, with a row for each sample, in the order of the dataset if the samples are known, else in
            the order in which one process would have predicted them. Empty if nothing was predicted.

        Raises:
            FileNotFoundError: If there is no prediction in the folder, or it was interrupted.
        """
        check_installed("numpy", "npz", "read_predictions")
        import numpy as np

        files: list[Columns] = []
        for path in complete_files(dirpath, ".npz", "NPZPredictionWriter.read_predictions"):
            with np.load(path, allow_pickle=False) as archive:
                if (archive["_dataloader_idx"] == dataloader_idx).any():
                    files.append({name: archive[name] for name in archive.files})
        if not files:
            return {}
        columns = {name: np.concatenate([file[name] for file in files]) for name in files[0]}
        rows = rows_in_order({name: columns.pop(name) for name in ORDER_COLUMNS}, dataloader_idx)
        return {name: column[rows] for name, column in columns.items()}


class ParquetPredictionWriter(PredictionFiles):
    """Writes predictions to Parquet files; see `PredictionFiles`.

    A column of vectors becomes one of lists of a fixed length, one of matrices lists of such lists, and so on.

    Args:
        dirpath: The folder; it is made when needed.
        rows_per_file: Rows per file; the last file of a process may have fewer.
        overwrite: Whether a new prediction removes the files of a previous one in the folder. If false, such files are
            an error.

    Raises:
        ModuleNotFoundError: If pyarrow is not installed.
    """

    suffix: ClassVar[str] = ".parquet"
    library: ClassVar[str] = "pyarrow"
    extra: ClassVar[str] = "parquet"

    def write_file(self, columns: Columns, path: Path) -> None:
        """Write columns to a Parquet file.

        Args:
            columns: An array for each column.
            path: The file.
        """
        import pyarrow as pa  # type: ignore[import-untyped]
        from pyarrow import parquet

        table = pa.table({name: _array(column) for name, column in columns.items()})
        parquet.write_table(table, path)

    @staticmethod
    def read_predictions(dirpath: str | os.PathLike[str], dataloader_idx: int = 0) -> Any:
        """Read the predictions of all processes.

        Args:
            dirpath: The folder.
            dataloader_idx: Index of the loader.

        Returns:
            A `pyarrow.Table` with a row for each sample, in the order of the dataset if the samples are known, else in
            the order in which one process would have predicted them. Empty if nothing was predicted.

        Raises:
            FileNotFoundError: If there is no prediction in the folder, or it was interrupted.
            ModuleNotFoundError: If pyarrow is not installed.
        """
        check_installed("pyarrow", "parquet", "read_predictions")
        import pyarrow as pa
        from pyarrow import parquet

        paths = complete_files(dirpath, ".parquet", "ParquetPredictionWriter.read_predictions")
        files = [parquet.ParquetFile(path).read() for path in paths]
        own = [file for file in files if dataloader_idx in file["_dataloader_idx"].unique().to_pylist()]
        if not own:
            return pa.table({})
        table = pa.concat_tables(own)
        rows = rows_in_order({name: table[name].to_numpy() for name in ORDER_COLUMNS}, dataloader_idx)
        return table.drop_columns(list(ORDER_COLUMNS)).take(pa.array(rows))


def _array(column: Any) -> Any:
    """Return an Arrow array of a column; complex numbers become pairs of real and imaginary parts."""
    import numpy as np
    import pyarrow as pa

    if column.dtype.kind == "c":
        column = np.stack([column.real, column.imag], axis=-1)
    array = pa.array(np.ascontiguousarray(column).reshape(-1))
    for size in reversed(column.shape[1:]):
        array = pa.FixedSizeListArray.from_arrays(array, size)
    return array
