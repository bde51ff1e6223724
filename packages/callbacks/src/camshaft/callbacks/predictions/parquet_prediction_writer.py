"""Predictions in Parquet files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

from camshaft.callbacks.extras import check_installed
from camshaft.callbacks.predictions.prediction_columns import ORDER_COLUMNS, Columns
from camshaft.callbacks.predictions.prediction_files import PredictionFiles, rows_in_order, whole_files


class ParquetPredictionWriter(PredictionFiles):
    """Writes predictions to Parquet files; see `PredictionFiles`.

    A column of vectors becomes one of lists of a fixed length, one of matrices lists of such lists, and so on.

    Args:
        dirpath: The folder; it is made when needed.
        rows_per_file: Rows of a file; the last one of a process may have fewer.
        overwrite: Whether the files of an earlier prediction in the folder are removed when another one begins. If
            false that is an error.

    Raises:
        ModuleNotFoundError: If pyarrow is not installed.
    """

    suffix: ClassVar[str] = ".parquet"
    library: ClassVar[str] = "pyarrow"
    extra: ClassVar[str] = "parquet"

    def write_file(self, columns: Columns, path: Path) -> None:
        """Write columns to a Parquet file."""
        import pyarrow as pa  # type: ignore[import-untyped]
        from pyarrow import parquet

        table = pa.table({name: _array(column) for name, column in columns.items()})
        parquet.write_table(table, path)

    @staticmethod
    def read_predictions(dirpath: str | os.PathLike[str], dataloader_idx: int = 0) -> Any:
        """Read the predictions of all processes.

        Args:
            dirpath: The folder.
            dataloader_idx: Of which loader.

        Returns:
            A `pyarrow.Table` with a row for each sample: in the order of the dataset where the samples are known, else
            in the order in which one process would have predicted them. Empty if nothing was predicted.

        Raises:
            FileNotFoundError: If there is no prediction in the folder, or it was interrupted.
            ModuleNotFoundError: If pyarrow is not installed.
        """
        check_installed("pyarrow", "parquet", "read_predictions")
        import pyarrow as pa
        from pyarrow import parquet

        paths = whole_files(dirpath, ".parquet", "ParquetPredictionWriter.read_predictions")
        files = [parquet.ParquetFile(path).read() for path in paths]
        own = [file for file in files if dataloader_idx in file["_dataloader_idx"].unique().to_pylist()]
        if not own:
            return pa.table({})
        table = pa.concat_tables(own)
        rows = rows_in_order({name: table[name].to_numpy() for name in ORDER_COLUMNS}, dataloader_idx)
        return table.drop_columns(list(ORDER_COLUMNS)).take(pa.array(rows))


def _array(column: Any) -> Any:
    """An Arrow array of a column; of complex numbers, which Arrow does not have, pairs of real and imaginary parts."""
    import numpy as np
    import pyarrow as pa

    if column.dtype.kind == "c":
        column = np.stack([column.real, column.imag], axis=-1)
    array = pa.array(np.ascontiguousarray(column).reshape(-1))
    for size in reversed(column.shape[1:]):
        array = pa.FixedSizeListArray.from_arrays(array, size)
    return array
