"""Hyperparameters: arguments of a constructor, saved so that the object can be built from a checkpoint."""

from __future__ import annotations

import copy
import inspect
import re
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import FrameType
from typing import Any, ClassVar

from torch import Tensor, nn

from camshaft.hooks_core.support.messages import must_be, warn_user

HYPER_PARAMETERS_KEY = "hyper_parameters"
"""Key of the module's hyperparameters in a checkpoint."""

NAME_KEY = "hparams_name"
"""Key of the name of the one argument that held them all, if it was one."""

TYPE_KEY = "hparams_type"
"""Key of the class of a configuration that held them, in checkpoints of Lightning."""

UNSAVED_KEY = "unsaved_hyper_parameters"
"""Key of the hyperparameters that cannot be pickled, with the reasons."""

DATA_PREFIX = "datamodule_"
"""Prefix of these keys for the data module's."""

CLASS_PATH_KEY = "_class_path"
"""Name of the hyperparameter that says the class, where a command line let it be chosen."""

INSTANTIATOR_KEY = "_instantiator"
"""Name of the hyperparameter of a command line whose configuration the others are, with names of classes."""

_configuration: ContextVar[tuple[type, Mapping[str, Any]] | None] = ContextVar("_configuration", default=None)
"""The class that is constructed from a configuration, and that."""

_SCALARS = (bool, int, float, str, type(None))


class Hyperparameters(dict[str, Any]):
    """Values by name, readable as items and as attributes: `hparams["width"]` and `hparams.width`.

    `vars(hparams)` is the same object, so that what was written for a namespace reads it as well.
    """

    is_plain_dict: ClassVar[bool] = True

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the items alone."""
        return type(self), (dict(self),)

    def __str__(self) -> str:
        """Return a line for each value, sorted by name."""
        labels = {name: f'"{name}":' for name in sorted(self)}
        width = max(map(len, labels.values()), default=0)
        return "\n".join(f"{label:{width}} {self[name]}" for name, label in labels.items())

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


@contextmanager
def constructed_with(cls: type, configuration: Mapping[str, Any]) -> Iterator[None]:
    """Let objects of exactly this class save a configuration in place of the arguments of their constructor."""
    token = _configuration.set((cls, configuration))
    try:
        yield
    finally:
        _configuration.reset(token)


class HyperparametersMixin:
    """Gives a class `save_hyperparameters` and `hparams`."""

    def save_hyperparameters(
        self,
        *names: Any,
        ignore: str | Sequence[str] | None = None,
        frame: FrameType | None = None,
        logger: bool = True,
    ) -> None:
        """Add the arguments of `__init__` to `hparams`; call it in `__init__`.

        The arguments of every running `__init__` of the object count, so a base class may call it for its subclasses.
        Values may be anything, and are taken as they are at the call: lists, tuples and dictionaries are copied,
        nothing else is. `*args` are left out. Checkpoints keep what is no plain value as an object, which is unpickled
        only for `weights_only=False`; what cannot be pickled stays out of them, with a warning.

        Args:
            names: Arguments to save; without any, all are saved. Or one namespace, dictionary or configuration, maybe
                among names, which are then of no effect: its values are saved. A configuration of OmegaConf stays one
                if nothing else is saved. None alone saves nothing.
            ignore: Arguments to leave out, also those that were saved before.
            frame: Where to look for the arguments; None looks at the caller.
            logger: If true, loggers get the hyperparameters; the latest call decides for all of them.

        Raises:
            TypeError: If a name is no string.
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
        self.__dict__["_logs_hparams"] = logger
        ignored = {ignore} if isinstance(ignore, str) else set(ignore or ())
        if frame is None:
            current = inspect.currentframe()
            frame = None if current is None else current.f_back
        arguments = self.constructor_arguments(frame)
        configured = _configuration.get()
        if configured is not None and type(self) is configured[0]:
            arguments = {**(arguments or {} if names else {}), **configured[1]}
            names = (*names, INSTANTIATOR_KEY) if names and isinstance(names[0], str) else names
        others = [name for name in names if not isinstance(name, str)]
        if len(names) == len(others) == 1 and (others[0] is None or others[0] in ([], ())):
            return
        if len(others) == 1 and isinstance(others[0], (Namespace, Mapping)):
            self._add_hparams(others[0], ignored, _name_of(others[0], arguments or {}))
            return
        if others:
            rule = "strings, or one namespace or dictionary"
            raise TypeError(must_be("names", rule, others[0], where, "Pass the names of arguments."))
        if arguments is None:
            rule = "called while `__init__` runs"
            raise RuntimeError(must_be("save_hyperparameters", rule, names, where, "Call it in `__init__`."))
        for name in names or arguments:
            if name not in arguments:
                rule = f"arguments of `__init__` ({', '.join(arguments) or 'it has none'})"
                raise ValueError(must_be("names", rule, name, where, "Check its spelling."))
        self._add_hparams({name: arguments[name] for name in names or arguments}, ignored, None)

    def constructor_arguments(self, frame: FrameType | None) -> dict[str, Any] | None:
        """Return the arguments that `save_hyperparameters` saves; None if no `__init__` of the object is running.

        Args:
            frame: Where to look for running calls of `__init__`, outwards.
        """
        return arguments_of(self, frame)

    @property
    def hparams(self) -> Any:
        """Hyperparameters that were saved or assigned; else empty. Changes go into later checkpoints.

        A namespace or a dictionary may be assigned, and takes the place of what was saved.
        """
        # written past `nn.Module.__setattr__`, so that it works before `nn.Module.__init__` too
        hparams: Any = self.__dict__.get("_hparams")
        if hparams is None:
            hparams = self.__dict__["_hparams"] = Hyperparameters()
        return hparams

    @hparams.setter
    def hparams(self, value: Any) -> None:
        where = type(self).__qualname__
        if value is not None and not isinstance(value, (Namespace, Mapping)):
            action = "Assign `vars(value)`, or call `save_hyperparameters`."
            raise TypeError(must_be("hparams", "a namespace or a dictionary", value, where, action))
        self.__dict__.pop("_hparams", None)
        self._add_hparams({} if value is None else value, set(), None)

    @property
    def hparams_initial(self) -> Any:
        """Copy of `hparams` as they were when they were last saved or assigned.

        Modules and tensors in it are not copied, and neither is what cannot be.
        """
        return _copied(self.__dict__.get("_hparams_initial", Hyperparameters()), _copy_of)

    def _add_hparams(self, values: Mapping[str, Any] | Namespace, ignored: set[str], name: str | None) -> None:
        """Add values to the hyperparameters.

        Args:
            values: The values by name.
            ignored: Names that are left out, also those that are there.
            name: The argument that holds them all; None if each is an argument, or it is not known.
        """
        saved = self.hparams
        is_configuration = isinstance(values, MutableMapping) and not isinstance(values, dict)
        if is_configuration and not saved:
            saved = copy.copy(values) if ignored & set(values) else values
        else:
            if not isinstance(saved, Hyperparameters):
                saved = Hyperparameters(saved)  # a configuration cannot hold everything that may be added
            saved.update({key: _copied(value) for key, value in _items(values).items() if key not in ignored})
        for key in ignored & set(saved):
            del saved[key]
        self.__dict__["_hparams"], self.__dict__["_hparams_name"] = saved, name
        self.__dict__["_hparams_initial"] = _copied(saved, _copy_of)
        if isinstance(saved, Hyperparameters):
            _warn_of_modules(saved)
            _unsaved(self, saved)


def _warn_of_modules(hparams: Mapping[str, Any]) -> None:
    """Warn of hyperparameters that are modules, which checkpoints hold twice."""
    modules = [name for name, value in hparams.items() if isinstance(value, nn.Module)]
    if modules:
        warn_user(
            f"The hyperparameters {', '.join(modules)} are instances of `nn.Module`, whose weights are in "
            f"checkpoints already. Leave them out with `save_hyperparameters(ignore={modules})`."
        )


def _unsaved(owner: Any, hparams: Mapping[str, Any]) -> dict[str, str]:
    """Return the reasons why hyperparameters cannot be pickled, by name; warn of each once."""
    doubtful = {name: value for name, value in hparams.items() if not _is_plain(value)}
    if not doubtful:
        return {}
    from camshaft.strategies import why_unpicklable

    reasons = {name: why_unpicklable(value) for name, value in doubtful.items()}
    unsaved = {name: reason for name, reason in reasons.items() if reason is not None}
    warned: set[str] = vars(owner).setdefault("_hparams_warned", set())
    new = unsaved.keys() - warned
    if new:
        warned |= new
        listed = ", ".join(f"{name} ({reason})" for name, reason in unsaved.items() if name in new)
        warn_user(
            f"These hyperparameters of {type(owner).__qualname__} cannot be pickled, so checkpoints do not hold them: "
            f"{listed}. Pass them to `load_from_checkpoint`."
        )
    return unsaved


def hyperparameters_for_loggers(owner: object) -> dict[str, Any]:
    """Return the hyperparameters for loggers; empty for an object without, or saved with `logger=False`.

    They are those that were saved, without later changes, which are results of the run.
    """
    hparams = getattr(owner, "hparams_initial", None)
    if not hparams:  # nothing was saved: what the module set by itself
        hparams = getattr(owner, "hparams", None)
    if not isinstance(hparams, Mapping) or not getattr(owner, "_logs_hparams", True):
        return {}
    return {name: value for name, value in _items(hparams).items() if name not in (CLASS_PATH_KEY, INSTANTIATOR_KEY)}


def hyperparameters_for_checkpoints(owner: object, prefix: str = "") -> dict[str, Any]:
    """Return the part of a checkpoint that holds the hyperparameters of an object; empty for one without.

    Args:
        owner: The module or data module.
        prefix: Prefix of the keys.
    """
    hparams = getattr(owner, "hparams", None)
    if not isinstance(hparams, Mapping) or not hparams:
        return {}
    unsaved: dict[str, str] = {}
    facts: dict[str, Any] = {prefix + HYPER_PARAMETERS_KEY: hparams}
    if isinstance(hparams, dict):
        unsaved = _unsaved(owner, hparams)
        facts = {prefix + HYPER_PARAMETERS_KEY: {key: value for key, value in hparams.items() if key not in unsaved}}
    name = getattr(owner, "_hparams_name", None)
    if name is not None:
        facts[prefix + NAME_KEY] = name
    if unsaved:
        facts[prefix + UNSAVED_KEY] = unsaved
    return facts


def accepted_by(cls: type, hparams: Mapping[str, Any], name: str | None = None) -> dict[str, Any]:
    """Return the hyperparameters that a class's constructor takes: all, if it takes `**kwargs`.

    A constructor with one argument that holds them all gets them in this one.

    Args:
        name: The name of such an argument, if it is known.
    """
    own = parameters_of(cls).values()
    container = container_argument(cls, hparams, name)
    if container is not None:
        required = [p.name for p in own if p.default is p.empty]
        others = {key: value for key, value in hparams.items() if key in required and key != container}
        return {**others, container: Hyperparameters(hparams) if isinstance(hparams, dict) else hparams}
    if takes_any(cls):
        return dict(hparams)
    return {key: value for key, value in hparams.items() if key in parameters_of(cls)}


def container_argument(cls: type, hparams: Mapping[str, Any], name: str | None = None) -> str | None:
    """Return the argument of a class's constructor that holds all hyperparameters; None if each is an argument.

    It is the one that is known, or else the one required argument, as `hparams` or under any name that no
    hyperparameter has.
    """
    own = parameters_of(cls).values()
    if name is not None and name in parameters_of(cls):
        return name
    if not hparams or takes_any(cls):
        return None
    required = [p.name for p in own if p.default is p.empty]
    if "hparams" in required and "hparams" not in hparams:
        return "hparams"
    if len(required) == 1 and not any(p.name in hparams for p in own):
        return required[0]
    return None


def parameters_of(cls: type) -> dict[str, inspect.Parameter]:
    """Return the named parameters of a class's constructor."""
    parameters = inspect.signature(cls).parameters
    return {name: one for name, one in parameters.items() if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)}


def arguments_to_import(cls: type, configuration: Mapping[str, Any]) -> list[str]:
    """Return the arguments that a configuration of a command line gives by names that must be imported or parsed.

    Args:
        cls: The class that is constructed.
        configuration: Its saved hyperparameters. One of a class of another name has to be imported as well.
    """
    chosen = str(configuration.get(CLASS_PATH_KEY, cls.__name__)).rpartition(".")[2]
    found = [] if chosen == cls.__name__ else [CLASS_PATH_KEY]
    for name, one in parameters_of(cls).items():
        kind = "" if one.annotation is one.empty else inspect.formatannotation(one.annotation)
        takes_text = not kind or re.search(r"\b(str|Literal|Any)\b", kind) is not None
        if name in configuration and not _is_value(configuration[name], takes_text):
            found.append(name)
    return found


def _is_value(value: Any, takes_text: bool) -> bool:
    """Return whether a value of a configuration is the argument itself."""
    if isinstance(value, Mapping):
        return "class_path" not in value and all(_is_value(item, takes_text) for item in value.values())
    if isinstance(value, (list, tuple)):
        return all(_is_value(item, takes_text) for item in value)
    return takes_text or not isinstance(value, str)


def takes_any(cls: type) -> bool:
    """Return whether a class's constructor takes arguments of any name."""
    return any(one.kind is one.VAR_KEYWORD for one in inspect.signature(cls).parameters.values())


def _items(values: Mapping[str, Any] | Namespace) -> Mapping[str, Any]:
    return vars(values) if isinstance(values, Namespace) else values


def arguments_of(instance: object, frame: FrameType | None) -> dict[str, Any] | None:
    """Return the arguments of all running constructors of an object, the outermost first; None without any.

    Args:
        frame: The innermost frame to look at, then those that called it; None for none.
    """
    arguments: dict[str, Any] | None = None
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__init__" and code.co_argcount and frame.f_locals.get(code.co_varnames[0]) is instance:
            info = inspect.getargvalues(frame)
            arguments = {**(arguments or {}), **{name: info.locals[name] for name in info.args[1:]}}
            if info.keywords is not None:
                arguments |= info.locals[info.keywords]
        frame = frame.f_back
    return arguments


def _name_of(values: object, arguments: Mapping[str, Any]) -> str | None:
    """Return the argument that is, or equals, some values; None if there is none."""
    same = [name for name, value in arguments.items() if value is values]
    for name, value in arguments.items() if not same else ():
        with suppress(Exception):  # whatever the code of an object raises, as arrays do
            same += [name] if type(value) is type(values) and value == values else []
    return same[0] if same else None


def _is_plain(value: Any) -> bool:
    """Return whether a value is known to be savable without a look at how it is pickled."""
    kind = type(value)
    if kind is list or kind is tuple:
        return all(_is_plain(item) for item in value)
    if kind is dict:
        return all(_is_plain(item) for item in value.values())
    return kind in _SCALARS or isinstance(value, Tensor)


def _copied(value: Any, leaf: Callable[[Any], Any] | None = None) -> Any:
    """Return a value whose lists, tuples and dictionaries are copied, and for anything else what `leaf` makes of it."""
    kind = type(value)
    if kind is list or kind is tuple:
        return kind(_copied(item, leaf) for item in value)
    if kind is dict or kind is Hyperparameters:
        items = ((key, _copied(item, leaf)) for key, item in value.items())
        return dict(items) if leaf is None else kind(items)
    return value if leaf is None else leaf(value)


def _copy_of(value: Any) -> Any:
    """Return a copy of an object; modules, tensors and objects that cannot be copied stay."""
    if isinstance(value, (Tensor, nn.Module)):
        return value
    try:
        return copy.deepcopy(value)
    except Exception:  # whatever the code of an object raises
        return value
