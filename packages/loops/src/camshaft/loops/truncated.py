"""Truncated backpropagation through time: a batch is trained on in splits along time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from camshaft.hooks_core.implementation import implementation
from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.splits import split_along_time
from camshaft.loops.run import Run


def split_size_of(run: Run, truncated_bptt_steps: int | None) -> int | None:
    """Time steps of a split, as the loop's argument or the module's attribute `truncated_bptt_steps` has it.

    Args:
        run: The run; an attribute of its module of None or 0 asks for nothing.
        truncated_bptt_steps: The loop's argument.

    Returns:
        The number, or None if batches stay whole.

    Raises:
        TypeError: If the attribute is neither an int nor None.
        ValueError: If the attribute is negative, or both are given and differ, or `training_step` does not name
            `hiddens` although batches are to be split.
    """
    module = run.module
    where = type(module).__qualname__
    of_module = getattr(module, "truncated_bptt_steps", None)
    if of_module is not None and (isinstance(of_module, bool) or not isinstance(of_module, int)):
        raise TypeError(must_be("truncated_bptt_steps", "an int or None", of_module, where, "Set an int."))
    if of_module is not None and of_module < 0:
        raise ValueError(must_be("truncated_bptt_steps", "at least 0", of_module, where, "Set 0 for no splits."))
    if of_module and truncated_bptt_steps is not None and of_module != truncated_bptt_steps:
        rule = f"that of the fit ({truncated_bptt_steps}) or not set"
        raise ValueError(must_be("truncated_bptt_steps", rule, of_module, where, "Leave one of the two out."))
    split_size = truncated_bptt_steps or of_module or None
    if split_size is not None and not run.hooks.takes("training_step", "hiddens"):
        step = implementation(module, "training_step")
        rule = f"one that names `hiddens`, since batches are split into {split_size} time steps each"
        action = "Take `hiddens` (None at a batch's start) and return it beside the loss, or do not split."
        raise ValueError(must_be("training_step", rule, step, where, action))
    return split_size


class BatchSplitter:
    """Splits batches along time, as the module's `tbptt_split_batch` does it or else by dimension 1 of every tensor.

    Args:
        run: The run.
        split_size: Time steps of a split.
    """

    def __init__(self, run: Run, split_size: int) -> None:
        self._override = run.hooks.tbptt_split_batch
        self._module = run.module
        self._split_size = split_size

    def __call__(self, batch: Any) -> Sequence[Any]:
        """Split a batch. Hooks: tbptt_split_batch.

        Raises:
            ValueError: If the batch cannot be split along time, or there is no split.
            TypeError: If the override returned something other than a list or tuple.
        """
        if self._override is None:
            return split_along_time(batch, self._split_size, "the default split of a batch")
        splits = self._override(batch, self._split_size)
        where = f"{type(self._module).__qualname__}.tbptt_split_batch"
        if not isinstance(splits, (list, tuple)):
            raise TypeError(must_be("return value", "a list of splits", splits, where, "Return a list."))
        if not splits:
            raise ValueError(must_be("return value", "at least one split", splits, where, "Return one or more."))
        return splits
