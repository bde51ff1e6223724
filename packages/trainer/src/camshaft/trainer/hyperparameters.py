"""The arguments of a constructor, remembered so that a checkpoint can rebuild the object."""

from __future__ import annotations

import inspect
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

from torch import Tensor

from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.user_warnings import warn_user

HYPER_PARAMETERS_KEY = "hyper_parameters"
"""Where a checkpoint keeps them."""

_SCALARS = (bool, int, float, str, type(None))
_RULE = "a plain value (number, string, bool, None, tensor, or lists, tuples and dictionaries of these)"


class Hyperparameters(dict[str, Any]):
    """Values by name, readable as items and as attributes: `hparams["width"]` and `hparams.width`.

    `vars(hparams)` is the same object, so that what was written for a namespace reads it as well.
    """

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Its items alone."""
        return type(self), (dict(self),)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            rule = f"a saved hyperparameter ({', '.join(self) or 'none was saved'})"
            action = "Save it with `save_hyperparameters`."
            raise AttributeError(must_be("name", rule, name, "hparams", action)) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        try:
            del self[name]
        except KeyError as error:
            raise AttributeError(name) from error


class HyperparametersMixin:
    """Gives a class `save_hyperparameters` and `hparams`."""

    def save_hyperparameters(
        self, *names: Any, ignore: str | Sequence[str] | None = None, frame: FrameType | None = None
    ) -> None:
        """Remember the arguments of `__init__` in `hparams`; call it in `__init__`.

        The arguments of every running `__init__` of the object count, so a base class may call it for its subclasses.
        Values are taken as they are at the call: containers are copied, tensors are not. `*args` are left out.

        Args:
            names: Arguments to save; without any, all are saved. Or a namespace or dictionary alone, whose values are
                saved; those that are not plain stay out of checkpoints and loggers, with a warning.
            ignore: Arguments to leave out, also those that were saved before.
            frame: Where to look for the arguments; None looks at the caller.

        Raises:
            TypeError: If a value is not plain, so that a checkpoint could not hold it, or a name is no string.
            ValueError: If a name is no argument.
            RuntimeError: If no `__init__` of the object is running.

        Example:
            >>> class Layer(HyperparametersMixin):
            ...     def __init__(self, width, activation="relu"):
            ...         self.save_hyperparameters()
            >>> Layer(3).hparams
            {'width': 3, 'activation': 'relu'}
        """
        where = f"{type(self).__qualname__}.save_hyperparameters"
        if len(names) == 1 and isinstance(names[0], (Namespace, Mapping)):
            ignored = {ignore} if isinstance(ignore, str) else set(ignore or ())
            self.hparams = {name: value for name, value in _items(names[0]).items() if name not in ignored}
            return
        for name in names:
            if not isinstance(name, str):
                rule = "strings, or one namespace or dictionary"
                raise TypeError(must_be("names", rule, name, where, "Pass the names of arguments."))
        if frame is None:
            current = inspect.currentframe()
            frame = None if current is None else current.f_back
        arguments = _arguments_of(self, frame)
        if arguments is None:
            rule = "called while `__init__` runs"
            raise RuntimeError(must_be("save_hyperparameters", rule, names, where, "Call it in `__init__`."))
        ignored = {ignore} if isinstance(ignore, str) else set(ignore or ())
        for name in names or arguments:
            if name not in arguments:
                rule = f"arguments of `__init__` ({', '.join(arguments) or 'it has none'})"
                raise ValueError(must_be("names", rule, name, where, "Check its spelling."))
        saved = {name: _plain(arguments[name], name, name, where) for name in names or arguments if name not in ignored}
        self.hparams.update(saved)
        for name in ignored:
            self.hparams.pop(name, None)

    @property
    def hparams(self) -> Hyperparameters:
        """What `save_hyperparameters` saved, or what was assigned; else empty. Changes go into later checkpoints.

        A namespace or a dictionary may be assigned. Of its values those that are not plain stay out of checkpoints and
        loggers, with a warning.
        """
        # written past `nn.Module.__setattr__`, so that it works before `nn.Module.__init__` too
        hparams: Hyperparameters = self.__dict__.setdefault("_hparams", Hyperparameters())
        return hparams

    @hparams.setter
    def hparams(self, value: Mapping[str, Any] | Namespace | None) -> None:
        where = type(self).__qualname__
        if value is not None and not isinstance(value, (Namespace, Mapping)):
            action = "Assign `vars(value)`, or call `save_hyperparameters`."
            raise TypeError(must_be("hparams", "a namespace or a dictionary", value, where, action))
        taken = Hyperparameters()
        left_out: list[str] = []
        for name, one in _items({} if value is None else value).items():
            try:
                taken[name] = _plain(one, name, name, where)
            except TypeError:
                taken[name] = one
                left_out.append(name)
        self.__dict__["_hparams"], self.__dict__["_hparams_left_out"] = taken, frozenset(left_out)
        if left_out:
            warn_user(
                f"Checkpoints and loggers of {where} go without these hyperparameters, which are no plain values: "
                f"{', '.join(left_out)}."
            )


def saved_hyperparameters(owner: object) -> dict[str, Any]:
    """The hyperparameters that checkpoints hold and loggers get; empty for an object without."""
    hparams = getattr(owner, "hparams", None)
    if not isinstance(hparams, Mapping):
        return {}
    left_out: frozenset[str] = getattr(owner, "_hparams_left_out", frozenset())
    return {name: value for name, value in hparams.items() if name not in left_out}


def accepted_by(cls: type, hparams: Mapping[str, Any]) -> dict[str, Any]:
    """Those hyperparameters that a class's constructor takes: all, if it takes `**kwargs`.

    A constructor whose one required argument holds them all, as `hparams` or under any name that no hyperparameter has,
    gets them in this one.
    """
    parameters = inspect.signature(cls).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return dict(hparams)
    own = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    takes = {p.name for p in own}
    required = [p.name for p in own if p.default is p.empty]
    accepted = {name: value for name, value in hparams.items() if name in takes}
    if hparams and "hparams" in required and "hparams" not in hparams:
        return {**accepted, "hparams": Hyperparameters(hparams)}
    if hparams and not accepted and len(required) == 1:
        return {required[0]: Hyperparameters(hparams)}
    return accepted


def _items(values: Mapping[str, Any] | Namespace) -> Mapping[str, Any]:
    return vars(values) if isinstance(values, Namespace) else values


def _arguments_of(instance: object, frame: FrameType | None) -> dict[str, Any] | None:
    """The arguments of all running constructors of an object, the outermost before others; None without any."""
    constructors = list(_constructor_frames(instance, frame))
    if not constructors:
        return None
    arguments: dict[str, Any] = {}
    for constructor in constructors:
        info = inspect.getargvalues(constructor)
        arguments |= {name: info.locals[name] for name in info.args[1:]}
        if info.keywords is not None:
            arguments |= info.locals[info.keywords]
    return arguments


def _constructor_frames(instance: object, frame: FrameType | None) -> Iterator[FrameType]:
    """Frames of `__init__` on this very object, innermost first."""
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__init__" and code.co_argcount and frame.f_locals.get(code.co_varnames[0]) is instance:
            yield frame
        frame = frame.f_back


def _plain(value: Any, argument: str, path: str, where: str) -> Any:
    """A value whose containers are copied.

    Raises:
        TypeError: If it is not plain.
    """
    if isinstance(value, Namespace):
        value = vars(value)
    kind = type(value)
    if kind in _SCALARS or isinstance(value, Tensor):
        return value
    if kind is list or kind is tuple:
        return kind(_plain(item, argument, f"{path}[{position}]", where) for position, item in enumerate(value))
    if kind is dict or kind is Hyperparameters:
        for key in value:
            if type(key) not in _SCALARS:
                rule = "a dictionary whose keys are numbers or strings"
                raise TypeError(must_be(path, rule, key, where, f"Convert it, or pass ignore=[{argument!r}]."))
        return {key: _plain(item, argument, f"{path}[{key!r}]", where) for key, item in value.items()}
    raise TypeError(must_be(path, _RULE, value, where, f"Convert it, or pass ignore=[{argument!r}]."))
