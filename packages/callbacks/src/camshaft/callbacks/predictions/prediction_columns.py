"""Predictions as columns of numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from camshaft.callbacks.errors import InvalidArgumentError

if TYPE_CHECKING:
    import numpy as np

Columns = dict[str, "np.ndarray[Any, Any]"]

ORDER_COLUMNS = ("_dataloader_idx", "_batch_idx", "_row_idx", "_sample_idx")
"""Where a row belongs: the loader; the batch, as one process would count; the row in it; the sample, -1 if unknown."""

_ONLY = "prediction"


def columns_of(prediction: Any, where: str) -> Columns:
    """A batch's prediction as named columns of equally many rows.

    A tensor becomes "prediction"; the items of a list or tuple "prediction.0" and so on; the values of a dictionary go
    by their keys, those of nested ones by all keys with dots between. A tensor without dimensions is one row, and so is
    a number. A list of strings or numbers is a column.

    Args:
        prediction: What `predict_step` returned.
        where: Who writes it, for errors.

    Returns:
        NumPy arrays; none if the prediction is None. bfloat16, which NumPy does not have, becomes float32.

    Raises:
        InvalidArgumentError: If something else is in it, or the columns have different numbers of rows.
    """
    columns: Columns = {}
    _collect(prediction, "", columns, where)
    num_rows = {name: len(column) for name, column in columns.items()}
    if len(set(num_rows.values())) > 1:
        action = "Return a row for each sample in all of them."
        raise InvalidArgumentError("prediction", "columns of equally many rows", num_rows, where, action)
    return columns


def order_of(num_rows: int, batch_indices: Sequence[int] | None, *, dataloader_idx: int, batch_idx: int) -> Columns:
    """The columns that tell where a batch's rows belong.

    Args:
        num_rows: Rows of the batch.
        batch_indices: Its samples; they count if there is one for each row.
        dataloader_idx: Index of the loader.
        batch_idx: Index of the batch, as one process would count.
    """
    import numpy as np

    is_known = batch_indices is not None and len(batch_indices) == num_rows
    samples = np.asarray(batch_indices, dtype=np.int64) if is_known else np.full(num_rows, -1, dtype=np.int64)
    values = (
        np.full(num_rows, dataloader_idx, dtype=np.int64),
        np.full(num_rows, batch_idx, dtype=np.int64),
        np.arange(num_rows, dtype=np.int64),
        samples,
    )
    return dict(zip(ORDER_COLUMNS, values, strict=True))


def in_dataset_order(order: Columns) -> np.ndarray[Any, Any]:
    """Which rows to take in which order, so that they follow the dataset, or else the loader.

    Where every sample is known and some process repeated one, as samplers do to have equally many everywhere, it is
    taken once.

    Args:
        order: The order columns of rows of one loader.
    """
    import numpy as np

    batches, rows, samples = (order[name] for name in ORDER_COLUMNS[1:])
    if len(samples) and (samples >= 0).all():
        places = np.lexsort((rows, batches, samples))
        is_first = np.ones(len(places), dtype=bool)
        is_first[1:] = samples[places][1:] != samples[places][:-1]
        return np.asarray(places[is_first])
    return np.asarray(np.lexsort((rows, batches)))


def _collect(value: Any, name: str, columns: Columns, where: str) -> None:
    import numpy as np

    if value is None:
        return
    if isinstance(value, Tensor):
        value = value.detach()
        value = (value.float() if value.dtype == torch.bfloat16 else value).cpu()
        _add(columns, name, value.reshape(1).numpy() if value.ndim == 0 else value.numpy(), where)
    elif isinstance(value, np.ndarray):
        _add(columns, name, value.reshape(1) if value.ndim == 0 else value, where)
    elif isinstance(value, (bool, int, float, str)):
        _add(columns, name, np.asarray([value]), where)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _collect(item, f"{name}.{key}" if name else str(key), columns, where)
    elif isinstance(value, (list, tuple)) and all(isinstance(item, (bool, int, float, str)) for item in value):
        _add(columns, name, np.asarray(value), where)
    elif isinstance(value, (list, tuple)):
        for position, item in enumerate(value):
            _collect(item, f"{name or _ONLY}.{position}", columns, where)
    else:
        rule = "tensors, arrays, numbers or strings, in lists, tuples and dictionaries"
        action = "Return such from `predict_step`, or write a subclass of BasePredictionWriter."
        raise InvalidArgumentError("prediction", rule, value, where, action)


def _add(columns: Columns, name: str, column: Any, where: str) -> None:
    name = name or _ONLY
    if name in columns or name in ORDER_COLUMNS:
        rule = f"named otherwise than {', '.join(ORDER_COLUMNS)}, and each column once"
        raise InvalidArgumentError("prediction", rule, name, where, "Rename it.")
    if column.dtype.kind not in "biufcUS":
        rule = "of numbers or strings"
        raise InvalidArgumentError(f"prediction column {name!r}", rule, column.dtype, where, "Convert it.")
    columns[name] = column
