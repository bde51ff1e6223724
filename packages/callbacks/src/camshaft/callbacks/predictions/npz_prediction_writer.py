"""Predictions in NumPy's `.npz` files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar
from zipfile import ZIP_STORED, ZipFile

from camshaft.callbacks.extras import check_installed
from camshaft.callbacks.predictions.prediction_columns import ORDER_COLUMNS, Columns
from camshaft.callbacks.predictions.prediction_files import PredictionFiles, rows_in_order, whole_files


class NPZPredictionWriter(PredictionFiles):
    """Writes predictions to `.npz` files, an array for each column; see `PredictionFiles`.

    Args:
        dirpath: The folder; it is made when needed.
        rows_per_file: Rows of a file; the last one of a process may have fewer.
        overwrite: Whether the files of an earlier prediction in the folder are removed when another one begins. If
            false that is an error.

    Example:
        >>> writer = NPZPredictionWriter("predictions")
        >>> trainer.predict(model, loader, return_predictions=False)  # doctest: +SKIP
        >>> NPZPredictionWriter.read_predictions("predictions")["prediction"]  # doctest: +SKIP
    """

    suffix: ClassVar[str] = ".npz"
    library: ClassVar[str] = "numpy"
    extra: ClassVar[str] = "npz"

    def write_file(self, columns: Columns, path: Path) -> None:
        """Write columns to a file that `numpy.load` reads."""
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
            dataloader_idx: Of which loader.

        Returns:
            Arrays by column, with a row for each sample: in the order of the dataset where the samples are known, else
            in the order in which one process would have predicted them. Empty if nothing was predicted.

        Raises:
            FileNotFoundError: If there is no prediction in the folder, or it was interrupted.
        """
        check_installed("numpy", "npz", "read_predictions")
        import numpy as np

        files: list[Columns] = []
        for path in whole_files(dirpath, ".npz", "NPZPredictionWriter.read_predictions"):
            with np.load(path, allow_pickle=False) as archive:
                if (archive["_dataloader_idx"] == dataloader_idx).any():
                    files.append({name: archive[name] for name in archive.files})
        if not files:
            return {}
        columns = {name: np.concatenate([file[name] for file in files]) for name in files[0]}
        rows = rows_in_order({name: columns.pop(name) for name in ORDER_COLUMNS}, dataloader_idx)
        return {name: column[rows] for name, column in columns.items()}
