"""Hyperparameters as in Lightning, where an object that another one makes in its `__init__` has its arguments, too."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Mapping
from itertools import dropwhile
from traceback import walk_stack
from types import FrameType
from typing import Any, ClassVar

from camshaft.trainer.hyperparameters import HyperparametersMixin as _HyperparametersMixin
from camshaft.trainer.hyperparameters import arguments_of


class HyperparametersMixin(_HyperparametersMixin):
    """Gives a class `save_hyperparameters` and `hparams`; see `camshaft.trainer.hyperparameters.HyperparametersMixin`.

    The arguments of an object whose `__init__` made this one count as well, if that has hyperparameters, and so on.
    """

    __hook_base__: ClassVar[bool] = True

    def constructor_arguments(self, frame: FrameType | None) -> dict[str, Any] | None:
        """Return the arguments of the object's constructors, and of those around them."""
        arguments = super().constructor_arguments(frame)
        if arguments is None:
            return None
        for around, _ in dropwhile(lambda one: _under_construction(one[0]) is not self, walk_stack(frame)):
            owner = _under_construction(around)
            if not isinstance(owner, _HyperparametersMixin):
                break
            if owner is not self:
                arguments |= arguments_of(owner, around) or {}
        return arguments

    def remove_ignored_hparams(self, ignore_list: Iterable[str]) -> None:
        """Remove hyperparameters; names that there are not are left out."""
        for name in ignore_list:
            self.hparams.pop(name, None)

    def _set_hparams(self, hp: Mapping[str, Any] | Namespace) -> None:
        """Add a dictionary or a namespace to the hyperparameters, or replace them by a configuration of OmegaConf."""
        if isinstance(hp, (dict, Namespace)):
            self._add_hparams(hp, set(), None)
        else:
            self.hparams = hp


def _under_construction(frame: FrameType) -> Any:
    """Return the object whose `__init__` a frame is; None for any other frame."""
    code = frame.f_code
    return frame.f_locals.get(code.co_varnames[0]) if code.co_name == "__init__" and code.co_argcount else None
