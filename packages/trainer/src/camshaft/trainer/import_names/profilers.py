"""Profilers of earlier releases, which are callbacks today."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from camshaft.callbacks import HookTimeline, Profiler
from camshaft.hooks_core import Callback
from camshaft.trainer.import_names.stand_ins import StandIn, refuse_argument


class SimpleProfiler(HookTimeline, metaclass=StandIn):
    """Measures every hook; see `camshaft.callbacks.HookTimeline`.

    Args:
        dirpath: As today.
        filename: As today.
        extended: As in releases 1.1 to 1.9; all of it is reported either way.
        output_filename: Up to 1.4: a path, of which the folder and the name without extension are taken.
    """

    __stands_for__: ClassVar[type] = HookTimeline

    def __init__(
        self,
        dirpath: str | os.PathLike[str] | None = None,
        filename: str | None = None,
        extended: bool = True,
        output_filename: str | os.PathLike[str] | None = None,
    ) -> None:
        if output_filename is not None:
            folder, name = os.path.split(os.fspath(output_filename))
            dirpath, filename = folder or ".", os.path.splitext(name)[0]
        super().__init__(dirpath, "timeline" if filename is None else filename)


class PyTorchProfiler(Profiler, metaclass=StandIn):
    """Profiles with `torch.profiler`; see `camshaft.callbacks.Profiler`.

    Args:
        dirpath: As today.
        filename: None.
        row_limit: `table_rows`; -1 is as many as there are.
        sort_by_key: `sort_by`.
        export_to_chrome: Whether trace files are written, which they always are.
        emit_nvtx: False.
        group_by_input_shapes: False.
        arguments: Today's.

    Raises:
        TypeError: If an argument is none of today's.
        ValueError: If an argument asks for what there is not.
    """

    __stands_for__: ClassVar[type] = Profiler

    def __init__(
        self,
        dirpath: str | os.PathLike[str] | None = None,
        filename: str | None = None,
        *,
        row_limit: int = 20,
        sort_by_key: str | None = None,
        export_to_chrome: bool = True,
        emit_nvtx: bool = False,
        group_by_input_shapes: bool = False,
        **arguments: Any,
    ) -> None:
        where, action = type(self).__name__, "Leave it out; see `camshaft.callbacks.Profiler`."
        refuse_argument("filename", filename, where, "files are called by their stage", action)
        refuse_argument("export_to_chrome", export_to_chrome, where, "traces are always written", action, (True,))
        refuse_argument("emit_nvtx", emit_nvtx, where, "nothing is emitted to other profilers", action, (False,))
        why = "rows are of operators, whatever their shapes"
        refuse_argument("group_by_input_shapes", group_by_input_shapes, where, why, action, (False,))
        rows = 2**31 - 1 if row_limit == -1 else row_limit
        super().__init__(dirpath, table_rows=rows, sort_by=sort_by_key, **arguments)


class PassThroughProfiler(Callback):
    """Measures nothing; for code that profiles by hand and was told not to."""

    @contextmanager
    def profile(self, action_name: str) -> Iterator[str]:
        """Run the body of a `with` statement."""
        yield action_name

    def start(self, action_name: str) -> None:
        """Do nothing."""

    def stop(self, action_name: str) -> None:
        """Do nothing."""

    def describe(self) -> None:
        """Do nothing."""

    def summary(self) -> str:
        """Nothing."""
        return ""
