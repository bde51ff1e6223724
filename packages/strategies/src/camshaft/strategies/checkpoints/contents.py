"""Contents of checkpoints: tensors and plain values, and other objects pickled in a separate part."""

from __future__ import annotations

import ctypes
import io
import os
import pickle
import sys
from argparse import Namespace
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

Keys = tuple[Any, ...]
"""Keys and positions that lead to a value in nested containers."""

OBJECTS_KEY = "camshaft_objects"
"""The key of a checkpoint's objects: a list of parts, one for each save."""

PLACEHOLDER = "__sharded_tensor__"
"""The only key of a dictionary that stands for a sharded tensor; its value is the tensor's name."""

_PLAIN = frozenset((bool, int, float, complex, str, bytes, type(None), torch.Size, torch.dtype, torch.device))

_PLAIN_DICTS = (dict, OrderedDict, defaultdict, Counter)
"""Dictionaries that a checkpoint holds as plain ones."""

_EMPTY_PART: dict[str, Any] = {"places": [], "types": [], "namespaces": [], "pickle": None, "tensors": []}


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be read.

    Attributes:
        path: The file or directory.
        names: Names that the file needs and that are not imported; empty if it is damaged, or another fault.
    """

    names: tuple[str, ...] = ()

    def __init__(self, message: str, path: str) -> None:
        self.path = path
        super().__init__(message)

    def __reduce__(self) -> tuple[type[CheckpointError], tuple[str, str]]:
        return type(self), (str(self), self.path)


def unreadable(
    path: Path | str,
    problem: str,
    rule: str = "a whole checkpoint of tensors and plain values",
    action: str = "Use an earlier checkpoint.",
) -> CheckpointError:
    """Return the error for a checkpoint that cannot be read.

    Args:
        path: The file or directory.
        problem: What is wrong with it, after "which".
        rule: What it must be.
        action: What to do about it, as a sentence.
    """
    file = str(path)
    message = f"`path` must be {rule}, but got {file!r} (str), which {problem}, in read_checkpoint. {action}"
    return CheckpointError(message, file)


class NotPlainError(TypeError):
    """A value that is neither a tensor nor plain.

    Attributes:
        place: Its place in the checkpoint.
        value: The value.
    """

    def __init__(self, message: str, place: str, value: Any) -> None:
        self.place = place
        self.value = value
        super().__init__(message)


class ObjectsError(ValueError):
    """The objects of a checkpoint that are damaged, or that cannot be unpickled."""


def keep_whole(tensor: Tensor, keys: Keys) -> Tensor:
    """Return a tensor as it is; refuse a sharded one with `TypeError`."""
    if is_sharded(tensor):
        raise TypeError(
            f"`{name_of(keys)}` must be a whole tensor where one process writes one file, but got a sharded tensor "
            f"({type(tensor).__name__}) in a checkpoint. Save it with a strategy's `save_checkpoint`."
        )
    return tensor


def separate(
    checkpoint: Mapping[str, Any], replace_tensor: Callable[[Tensor, Keys], Any] = keep_whole
) -> dict[str, Any]:
    """Return a copy of a checkpoint of tensors and plain values, with its other objects pickled in a separate part.

    Args:
        checkpoint: Nested dictionaries and lists of any values.
        replace_tensor: Called with each tensor, those in objects too, and the keys that lead to it; returns the value
            in its place. By default tensors are kept, and sharded ones are refused, since one process has only a part
            of them.

    Raises:
        TypeError: If an object cannot be pickled; the message says where it is.
    """
    separation = _Separation(replace_tensor)
    plain: dict[str, Any] = separation.copy(dict(checkpoint), ())
    if not separation.objects and not separation.namespaces:
        return plain
    parts = plain.get(OBJECTS_KEY, [])
    plain[OBJECTS_KEY] = [*parts, separation.part(len(parts))]
    return ObjectsInPlace(plain) if isinstance(checkpoint, ObjectsInPlace) else plain


class ObjectsInPlace(dict[str, Any]):
    """A checkpoint whose file gives its objects in place to a plain `torch.load(path, weights_only=False)`.

    The file names one function for that, `restored`. Without objects there is no name in it. With objects,
    `torch.load(path, weights_only=True)` reads it without them wherever camshaft was imported, and elsewhere refuses
    it, as it does any file with objects. `read_checkpoint` reads it as any other checkpoint.
    """

    is_plain_dict: ClassVar[bool] = True

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the items; with a separate part of objects, for `restored`."""
        if OBJECTS_KEY in self:
            return restored, (dict(self),)
        return OrderedDict, (), None, None, iter(self.items())


def restored(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Return a checkpoint with its objects in their places; called by plain unpickling alone.

    Files name this function: it stays where it is.

    Raises:
        ObjectsError: If the objects are damaged, or one cannot be unpickled.
    """
    try:
        return restore_objects(checkpoint, unpickle=True)
    except ObjectsError as error:
        raise ObjectsError(
            f"`f` must be a whole checkpoint whose objects can be unpickled, but got one that {error}, in torch.load. "
            "Make their classes importable, or read it with `read_checkpoint`."
        ) from error


def _not_restored(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Return a checkpoint as it is: what `restored` is to `torch.load(weights_only=True)`."""
    return checkpoint


def declare_safe() -> None:
    """Let `torch.load(weights_only=True)` read an `ObjectsInPlace`, without unpickling its objects."""
    torch.serialization.add_safe_globals([(_not_restored, f"{restored.__module__}.{restored.__qualname__}")])


declare_safe()


def is_sharded(value: Any) -> bool:
    """Return whether a value is a `DTensor`."""
    if type(value) is Tensor:
        return False
    tensor = sys.modules.get("torch.distributed.tensor")  # there are none unless it is imported
    return tensor is not None and isinstance(value, tensor.DTensor)


def dense_parts(tensor: Tensor) -> list[Tensor]:
    """Return the tensors that hold a tensor's values: of a quantised one its codes and scales, say; mostly itself."""
    if not is_traceable_wrapper_subclass(tensor):
        return [tensor]
    return [part for name in tensor.__tensor_flatten__()[0] for part in dense_parts(getattr(tensor, name))]


def name_of(keys: Keys, root: str = "checkpoint") -> str:
    """Return the name of a value for an error, from the keys that lead to it."""
    return root + "".join(f"[{key!r}]" for key in keys)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type if that is empty."""
    return (str(error).splitlines() or [""])[0] or type(error).__name__


class _Separation:
    """A copy of nested containers as plain ones, and the objects that were found in them.

    Args:
        replace_tensor: As for `separate`.

    Attributes:
        objects: The objects with the keys that lead to them, and why they are not plain; None if the copy has a plain
            form of it. Without one, an object is left out of the dictionary that it is in; a list or tuple with such
            an item is left out as a whole.
        namespaces: The keys of the dictionaries that were namespaces, outer ones first.
    """

    def __init__(self, replace_tensor: Callable[[Tensor, Keys], Any]) -> None:
        self._replace_tensor = replace_tensor
        self.objects: list[tuple[Keys, Any, NotPlainError | None]] = []
        self.namespaces: list[Keys] = []

    def copy(self, value: Any, keys: Keys, *, is_in_tuple: bool = False, is_inside_object: bool = False) -> Any:
        """Return the copy of a value.

        Args:
            keys: The keys that lead to it.
            is_in_tuple: Whether it is an item of a tuple, which cannot be restored by itself.
            is_inside_object: Whether it is part of an object, which is collected whole.
        """
        kind = type(value)
        if kind in _PLAIN:
            return value
        if isinstance(value, Tensor):
            return self._replace_tensor(value, keys)
        if kind is list or kind is tuple:
            options = {"is_in_tuple": kind is tuple, "is_inside_object": is_inside_object}
            return kind(
                [
                    item if type(item) in _PLAIN else self.copy(item, (*keys, idx), **options)
                    for idx, item in enumerate(value)
                ]
            )
        if kind is OrderedDict and all(isinstance(item, Tensor) for item in value.values()):
            return self._module_state(value, keys)
        is_plain_dict = kind in _PLAIN_DICTS or is_in_tuple or getattr(kind, "is_plain_dict", False) is True
        if isinstance(value, dict) and is_plain_dict:
            return self._dictionary(value, keys, is_inside_object)
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.generic):
            return self.copy(value.item(), keys)
        if kind is Namespace and not is_in_tuple:
            if not is_inside_object:
                self.namespaces.append(keys)
            return self._dictionary(vars(value), keys, is_inside_object)
        view = None if is_in_tuple else _plain_view(value)
        if view is None:
            raise _refused("be a tensor or a plain value (number, string, bytes, None, list, tuple, dict)", value, keys)
        copied = self.copy(view, keys, is_inside_object=True)
        if not is_inside_object and why_unpicklable(value) is None:
            self.objects.append((keys, value, None))
        return copied

    def part(self, idx: int) -> dict[str, Any]:
        """Return the objects as plain values. An object in several places is restored as one.

        Args:
            idx: The index of this part.

        Raises:
            TypeError: If one cannot be pickled.
        """
        tensors: list[Tensor] = []
        stream = io.BytesIO()
        pickler = _Pickler(stream, tensors)
        for keys, value, refused in self.objects:
            try:
                pickler.dump(value)
            except Exception as error:  # an object's own code may raise anything
                place, found = (name_of(keys), value) if refused is None else (refused.place, refused.value)
                rule = f"a tensor or a plain value, or an object that can be pickled ({first_line(error)})"
                raise TypeError(
                    f"`{place}` must be {rule}, but got {found!r:.80} ({type(found).__qualname__}) in a checkpoint. "
                    "Convert it or leave it out before it is saved."
                ) from error
        where = (OBJECTS_KEY, idx, "tensors")
        return {
            "places": [list(keys) for keys, _, _ in self.objects],
            "types": [_type_name(value) for _, value, _ in self.objects],
            "namespaces": [list(keys) for keys in self.namespaces],
            "pickle": torch.frombuffer(bytearray(stream.getbuffer()), dtype=torch.uint8) if self.objects else None,
            "tensors": [self._replace_tensor(tensor, (*where, number)) for number, tensor in enumerate(tensors)],
        }

    def _dictionary(self, value: Mapping[Any, Any], keys: Keys, is_inside_object: bool) -> dict[Any, Any]:
        copied: dict[Any, Any] = {}
        for key, item in value.items():
            name = self._key(key, keys)
            num_objects, num_namespaces = len(self.objects), len(self.namespaces)
            try:
                copied[name] = self.copy(item, (*keys, key), is_inside_object=is_inside_object)
            except NotPlainError as refused:
                del self.objects[num_objects:], self.namespaces[num_namespaces:]
                if not is_inside_object:
                    self.objects.append(((*keys, key), item, refused))
        return copied

    def _module_state(self, state: OrderedDict[Any, Tensor], keys: Keys) -> OrderedDict[Any, Any]:
        copied = OrderedDict(
            (self._key(name, keys), self._replace_tensor(tensor, (*keys, name))) for name, tensor in state.items()
        )
        if "_metadata" in vars(state):  # versions of the submodules, for `torch.nn.Module.load_state_dict`
            vars(copied)["_metadata"] = self.copy(dict(vars(state)["_metadata"]), (*keys, "_metadata"))
        return copied

    def _key(self, key: Any, keys: Keys) -> Any:
        if type(key) in (str, int, float, bool, type(None)):
            return key
        if type(key) is tuple:
            return self.copy(key, keys)
        raise _refused("have strings or numbers as keys", key, keys)


def _refused(rule: str, value: Any, keys: Keys) -> NotPlainError:
    place, found = name_of(keys), f"{value!r:.80} ({type(value).__qualname__})"
    action = "Convert it before it is saved."
    return NotPlainError(f"`{place}` must {rule}, but got {found} in a checkpoint. {action}", place, value)


def _plain_view(value: Any) -> Any:
    """Return the items of a user's dictionary class or of an OmegaConf configuration; None for any other value."""
    if isinstance(value, dict):
        return dict(value)
    omegaconf = sys.modules.get("omegaconf")  # there are none unless it is imported
    if omegaconf is not None and isinstance(value, (omegaconf.DictConfig, omegaconf.ListConfig)):
        view = omegaconf.OmegaConf.to_container(value, resolve=False)
        return view if isinstance(view, (dict, list)) else None
    return None


def _type_name(value: Any) -> str:
    """Return the full name of a class or function, or of the class of any other value."""
    named = value if isinstance(value, (type, FunctionType, BuiltinFunctionType)) else type(value)
    return f"{named.__module__}.{named.__qualname__}"


class _Pickler(pickle.Pickler):
    """A pickler that collects tensors in a list and pickles their numbers."""

    def __init__(self, stream: Any, tensors: list[Tensor], **options: Any) -> None:
        super().__init__(stream, **{"protocol": pickle.DEFAULT_PROTOCOL, **options})
        self._tensors = tensors
        self._numbers: dict[int, int] = {}

    def persistent_id(self, value: Any) -> tuple[int, bool, bool] | None:
        if not isinstance(value, Tensor) or not (type(value) is Tensor or is_sharded(value)):
            return None  # a parameter is pickled as one, with its data under a number
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._tensors)
            self._tensors.append(value)
        is_parameter = type(value) is not Tensor and isinstance(value, nn.Parameter)
        return self._numbers[id(value)], value.requires_grad and value.is_leaf, is_parameter


def why_unpicklable(value: Any) -> str | None:
    """Return why an object cannot be pickled, in a line; None if it can be. Tensors and arrays are not copied."""
    try:
        with open(os.devnull, "wb") as discarded:
            _Pickler(discarded, [], protocol=5, buffer_callback=lambda buffer: None).dump(value)
    except Exception as error:  # an object's own code may raise anything
        return first_line(error)
    return None


def is_trusted(weights_only: bool | None) -> bool:
    """Return whether `weights_only` allows unpickling.

    As for `torch.load`, `TORCH_FORCE_WEIGHTS_ONLY_LOAD` forbids it, and `TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD` allows it
    where `weights_only` is None.
    """
    if _is_set("TORCH_FORCE_WEIGHTS_ONLY_LOAD"):
        return False
    return weights_only is False or (weights_only is None and _is_set("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"))


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "0").lower() in ("1", "y", "yes", "true")


def restore_objects(checkpoint: dict[str, Any], *, unpickle: bool) -> dict[str, Any]:
    """Restore the namespaces and objects of a checkpoint that was read, in place.

    Args:
        checkpoint: The result of `separate`.
        unpickle: Whether to unpickle objects, which may run any code. Otherwise they stay pickled, and
            `objects_left_out` lists them.

    Raises:
        ObjectsError: If the separate part is damaged, or an object in it cannot be unpickled.
    """
    if OBJECTS_KEY not in checkpoint:
        return checkpoint
    parts = checkpoint[OBJECTS_KEY]
    if not isinstance(parts, list) or not all(map(_is_whole, parts)):
        raise ObjectsError("has a damaged list of objects")
    for part in parts:
        if not unpickle or part["pickle"] is None:  # None: a record of objects left out
            continue
        for keys, value in zip(part["places"], _unpickled(part), strict=True):
            _put(checkpoint, keys, value)
        part.update(places=[], types=[], pickle=None, tensors=[])
    for part in parts:
        for keys in reversed(part["namespaces"]):  # inner ones first
            value = _get(checkpoint, keys)
            if type(value) is dict and all(isinstance(name, str) for name in value):
                _put(checkpoint, keys, Namespace(**value))
        part["namespaces"] = []
    if not any(part["places"] for part in parts):
        del checkpoint[OBJECTS_KEY]
    return checkpoint


def objects_left_out(checkpoint: Mapping[str, Any]) -> dict[Keys, str]:
    """Return the types of the objects that a checkpoint was read without, by the keys that lead to their places."""
    left_out: dict[Keys, str] = {}
    for part in checkpoint.get(OBJECTS_KEY, ()):
        left_out.update(zip((tuple(keys) for keys in part["places"]), part["types"], strict=True))
    return left_out


def leave_out(checkpoint: dict[str, Any], objects: Mapping[Keys, str]) -> None:
    """Record objects that were left out of a checkpoint, for `objects_left_out`."""
    if objects:
        part = {**_EMPTY_PART, "places": [list(keys) for keys in objects], "types": list(objects.values())}
        checkpoint[OBJECTS_KEY] = [*checkpoint.get(OBJECTS_KEY, ()), part]


def _is_whole(part: Any) -> bool:
    """Return whether a value has the format of `_Separation.part`. No object is unpickled."""
    return (
        isinstance(part, dict)
        and part.keys() == _EMPTY_PART.keys()
        and all(isinstance(part[name], list) for name in _EMPTY_PART if name != "pickle")
        and all(isinstance(keys, list) and keys for keys in part["places"] + part["namespaces"])
        and len(part["places"]) == len(part["types"])
        and all(isinstance(kind, str) for kind in part["types"])
        and isinstance(part["pickle"], Tensor | None)
    )


def _unpickled(part: dict[str, Any]) -> list[Any]:
    data = part["pickle"].cpu().contiguous()
    stream = io.BytesIO(ctypes.string_at(data.data_ptr(), data.nbytes))
    unpickler = _Unpickler(stream, part["tensors"])
    values: list[Any] = []
    for keys, kind in zip(part["places"], part["types"], strict=True):
        try:
            values.append(unpickler.load())
        except Exception as error:  # an object's own code may raise anything
            raise ObjectsError(
                f"holds an object that cannot be unpickled at {name_of(tuple(keys))}, of {kind} ({first_line(error)})"
            ) from error
    return values


class _Unpickler(pickle.Unpickler):
    """An unpickler for the output of `_Pickler`."""

    def __init__(self, stream: Any, tensors: list[Tensor]) -> None:
        super().__init__(stream)
        self._tensors = tensors
        self._parameters: dict[int, nn.Parameter] = {}

    def persistent_load(self, number: tuple[int, bool, bool]) -> Tensor:
        idx, requires_grad, is_parameter = number
        if not is_parameter:
            return self._tensors[idx].requires_grad_(requires_grad) if requires_grad else self._tensors[idx]
        if idx not in self._parameters:
            self._parameters[idx] = nn.Parameter(self._tensors[idx], requires_grad)
        return self._parameters[idx]


def _get(checkpoint: Any, keys: list[Any]) -> Any:
    value = checkpoint
    for key in keys:
        try:
            value = value[key]
        except (LookupError, TypeError) as error:
            raise ObjectsError(f"has nothing at {name_of(tuple(keys))}, the place of an object") from error
    return value


def _put(checkpoint: Any, keys: list[Any], value: Any) -> None:
    owner = _get(checkpoint, keys[:-1])
    if not isinstance(owner, (dict, list)):
        raise ObjectsError(f"has no dictionary around {name_of(tuple(keys))}, the place of an object")
    try:
        owner[keys[-1]] = value
    except (LookupError, TypeError) as error:
        raise ObjectsError(f"has no place {name_of(tuple(keys))} for an object") from error
