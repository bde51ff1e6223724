"""Profilers with the arguments of earlier releases."""

from __future__ import annotations

import os
from typing import Any, ClassVar

from camshaft.callbacks import AdvancedProfiler as _AdvancedProfiler
from camshaft.callbacks import PyTorchProfiler as _PyTorchProfiler
from camshaft.callbacks import SimpleProfiler as _SimpleProfiler
from camshaft.compat.names.stand_ins import StandIn, refuse_argument

_Path = str | os.PathLike[str] | None


def _place(output_filename: _Path, dirpath: _Path, filename: str | None) -> tuple[_Path, str | None]:
    """Return folder and name without extension; up to 1.4 both were one path."""
    if output_filename is None:
        return dirpath, filename
    folder, name = os.path.split(os.fspath(output_filename))
    return folder or ".", os.path.splitext(name)[0]


class SimpleProfiler(_SimpleProfiler, metaclass=StandIn):
    """`camshaft.callbacks.SimpleProfiler`.

    Args:
        dirpath, filename, extended: As today.
        output_filename: Up to 1.4: the path of the report.
    """

    __stands_for__: ClassVar[type] = _SimpleProfiler

    def __init__(
        self,
        dirpath: _Path = None,
        filename: str | None = None,
        extended: bool = True,
        output_filename: _Path = None,
    ) -> None:
        super().__init__(*_place(output_filename, dirpath, filename), extended)


class AdvancedProfiler(_AdvancedProfiler, metaclass=StandIn):
    """`camshaft.callbacks.AdvancedProfiler`.

    Args:
        dirpath, filename, line_count_restriction, dump_stats: As today.
        output_filename: Up to 1.4: the path of the report.
    """

    __stands_for__: ClassVar[type] = _AdvancedProfiler

    def __init__(
        self,
        dirpath: _Path = None,
        filename: str | None = None,
        line_count_restriction: float = 1.0,
        dump_stats: bool = False,
        output_filename: _Path = None,
    ) -> None:
        super().__init__(*_place(output_filename, dirpath, filename), line_count_restriction, dump_stats)


class PyTorchProfiler(_PyTorchProfiler, metaclass=StandIn):
    """`camshaft.callbacks.PyTorchProfiler`.

    Args:
        dirpath, filename: As today.
        args: Further arguments of today, in their order.
        output_filename: Up to 1.4: the path of the report.
        record_functions: None; every hook is a range of the trace.
        profiled_functions: None; likewise.
        arguments: Today's.

    Raises:
        ValueError: If functions are named.
    """

    __stands_for__: ClassVar[type] = _PyTorchProfiler

    def __init__(
        self,
        dirpath: _Path = None,
        filename: str | None = None,
        *args: Any,
        output_filename: _Path = None,
        record_functions: Any = None,
        profiled_functions: Any = None,
        **arguments: Any,
    ) -> None:
        where, why, action = type(self).__name__, "each hook is a range of the trace", "Leave it out."
        refuse_argument("record_functions", record_functions, where, why, action)
        refuse_argument("profiled_functions", profiled_functions, where, why, action)
        super().__init__(*_place(output_filename, dirpath, filename), *args, **arguments)
