"""Profilers with the arguments of earlier releases."""

from __future__ import annotations

import os
from typing import Any

from camshaft.callbacks import AdvancedProfiler as _AdvancedProfiler
from camshaft.callbacks import PyTorchProfiler as _PyTorchProfiler
from camshaft.callbacks import SimpleProfiler as _SimpleProfiler
from camshaft.compat.names.stand_ins import StandIn, has_arguments_of, refuse_argument

_NAMED = ("each hook is a range of the trace", "Leave it out.")


class _OneFile:
    """Arguments that profilers had up to 1.4.

    Args:
        args: Today's arguments.
        output_filename: The path of the report.
        record_functions, profiled_functions: None; every hook is a range of the trace.
        arguments: Today's.

    Raises:
        ValueError: If functions are named.
    """

    def __init__(
        self,
        *args: Any,
        output_filename: str | os.PathLike[str] | None = None,
        record_functions: Any = None,
        profiled_functions: Any = None,
        **arguments: Any,
    ) -> None:
        refuse_argument("record_functions", record_functions, type(self).__name__, *_NAMED)
        refuse_argument("profiled_functions", profiled_functions, type(self).__name__, *_NAMED)
        if output_filename is not None:
            folder, name = os.path.split(os.fspath(output_filename))
            arguments |= {"dirpath": folder or ".", "filename": os.path.splitext(name)[0]}
        super().__init__(*args, **arguments)


@has_arguments_of(_SimpleProfiler)
class SimpleProfiler(_OneFile, _SimpleProfiler, metaclass=StandIn):
    """`camshaft.callbacks.SimpleProfiler`."""


@has_arguments_of(_AdvancedProfiler)
class AdvancedProfiler(_OneFile, _AdvancedProfiler, metaclass=StandIn):
    """`camshaft.callbacks.AdvancedProfiler`."""


@has_arguments_of(_PyTorchProfiler)
class PyTorchProfiler(_OneFile, _PyTorchProfiler, metaclass=StandIn):
    """`camshaft.callbacks.PyTorchProfiler`."""
