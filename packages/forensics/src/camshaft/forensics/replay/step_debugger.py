"""Python's debugger, made to stop in a training step."""

from __future__ import annotations

import inspect
import pdb
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from camshaft.hooks_core.dispatch.implementation import implementation
from camshaft.loops.lifecycle import EndOfVerb


class StepDebugger(pdb.Pdb):
    """Python's debugger, which first stops in the `training_step` of a module.

    Attributes:
        has_quit: Whether the user left the debugger.
    """

    def __init__(self) -> None:
        super().__init__()
        self._code: CodeType | None = None
        self._is_there = self.has_quit = False

    def run_step(self, module: Any, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Return what a function returns that calls a module's `training_step`.

        Raises:
            EndOfVerb: If the user leaves.
        """
        step: Any = implementation(module, "training_step")
        self._code = inspect.unwrap(getattr(step, "__func__", step)).__code__
        outputs = self.runcall(function, *arguments, **keywords)
        if self.has_quit:
            raise EndOfVerb
        return outputs

    def user_call(self, frame: FrameType, argument_list: Any) -> None:
        """Stop at a call, once the function is reached."""
        if self._is_there:
            super().user_call(frame, argument_list)

    def user_line(self, frame: FrameType) -> None:
        """Stop at a line, from the first of the function on."""
        self._is_there |= frame.f_code is self._code
        if self._is_there:
            super().user_line(frame)

    def user_return(self, frame: FrameType, return_value: Any) -> None:
        """Stop at a return, once the function is reached."""
        if self._is_there:
            super().user_return(frame, return_value)

    def user_exception(self, frame: FrameType, exc_info: Any) -> None:
        """Stop at an error, once the function is reached."""
        if self._is_there:
            super().user_exception(frame, exc_info)

    def set_quit(self) -> None:
        """Note that the user leaves."""
        self.has_quit = True
        super().set_quit()
