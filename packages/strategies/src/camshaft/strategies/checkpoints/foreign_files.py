"""Reading files of other frameworks, whose pickles need names.

One rule holds for every name that is not torch's own or declared safe, be it of a class, of `eval` or of `os.system`:
it is neither imported nor called. A plain value replaces it if its meaning is known; anything else is left out, with a
warning that names it. A file is refused, by `CheckpointError`, if it is no checkpoint, or if its weights
or optimizers need such a name. Only for a caller who trusts a file are its names imported (`read_trusted_file`).
"""

from __future__ import annotations

import pickle
import re
import sys
import tarfile
import zipfile
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import SimpleNamespace
from typing import Any, ClassVar

import attrs
import torch
from torch import Tensor, _weights_only_unpickler

from camshaft.hooks_core.support.messages import warn_user
from camshaft.strategies.checkpoints.contents import CheckpointError, Keys, leave_out, name_of, unreadable

# `torch.load` refuses a caller's unpickler where `TORCH_FORCE_WEIGHTS_ONLY_LOAD` is set, but not its parts.
_torch: Any = torch.serialization
_safe: Any = _weights_only_unpickler
_PythonUnpickler: Any = pickle._Unpickler

_REQUIRED = ("state_dict", "optimizer_states")
"""The keys of a checkpoint in which nothing may be left out."""


def read_foreign_file(path: Path, map_location: Any = "cpu", *, mmap: bool = False) -> Any:
    """Read a checkpoint of another framework with plain values in place of its names. Import nothing.

    The module's docstring has the rule. A file that needs no names is read as it is. Rank 0 warns of values that are
    left out, such as objects among the hyperparameters; `objects_left_out` lists them too.

    Args:
        map_location: The device of the tensors.
        mmap: Whether tensors of an archive are views of the file.

    Returns:
        The checkpoint, of plain values; the keys of its "callbacks" are names of classes if they were classes.

    Raises:
        CheckpointError: If it needs names and is no checkpoint, or its weights or optimizers need them.
        pickle.UnpicklingError: If it is damaged; other errors of unpickling likewise.
    """
    # What torch's own unpickler of weights lets a file name: torch's own, and what was declared safe.
    allowed = {**_safe._get_allowed_globals(), **_safe._get_user_allowed_globals(), "builtins.bytes": bytes_of_nothing}
    unpickler: Any = type("Unpickler", (_ImportingNothing,), {"names": {}, "allowed": allowed})
    try:
        raw = _load_by(unpickler, path, map_location, mmap)
    except (pickle.UnpicklingError, TypeError):
        if not unpickler.names:
            raise
        raw = None  # a name is not used as a class is
    except MemoryError as error:
        raise pickle.UnpicklingError("a length in it is too large") from error
    names = sorted(unpickler.names)
    if not names:
        return raw
    if not isinstance(raw, dict) or not {"state_dict", "epoch", "global_step"} <= raw.keys():
        raise _unknown_names(path, names, f"needs names that are not imported: {', '.join(names)}")
    if "hparams_type" in raw:
        raw["hparams_type"] = _class_name(raw["hparams_type"])
    problem = "that are no plain values, and their classes are not imported"
    action = "Pass those that a constructor needs as its arguments, or weights_only=False if you trust the file."
    return _plain_checkpoint(raw, path, problem, action)


def read_trusted_file(path: Path, map_location: Any = "cpu", *, mmap: bool = False) -> Any:
    """Read any file of `torch.save`, and import and call the names in it.

    Rank 0 warns of names that cannot be imported; their values become plain or are left out, as in
    `read_foreign_file`.

    Args:
        map_location: The device of the tensors.
        mmap: Whether tensors of an archive are views of the file.

    Raises:
        Exception: Any error of unpickling.
    """
    absent: list[str] = []

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str, /) -> Any:
            try:
                return super().find_class(module, name)
            except (ImportError, AttributeError):
                absent.append(f"{module}.{name}")
                return stand_in(absent[-1])

    pickle_module = SimpleNamespace(__name__="pickle", Unpickler=Unpickler, load=pickle.load)
    raw = torch.load(str(path), map_location=map_location, weights_only=False, mmap=mmap, pickle_module=pickle_module)
    if not isinstance(raw, dict):
        return raw
    callbacks = raw.get("callbacks")
    if isinstance(callbacks, dict):
        raw["callbacks"] = {_class_name(key): state for key, state in callbacks.items()}
    if "hparams_type" in raw:
        raw["hparams_type"] = _class_name(raw["hparams_type"])
    if absent:
        raw = _plain_checkpoint(raw, path, "whose classes cannot be imported", "Make the classes importable.")
    return raw


def _plain_checkpoint(raw: dict[Any, Any], path: Path, problem: str, action: str) -> dict[str, Any]:
    """Replace the stand-ins in a checkpoint by plain values, or leave them out with a warning.

    Raises:
        CheckpointError: If weights or optimizers need a value that is left out.
    """
    contents = PlainContents()
    checkpoint: dict[str, Any] = contents.of(raw)
    places = {name_of(keys): name for keys, name in contents.left_out.items()}
    required = {name_of(keys): name for keys, name in contents.left_out.items() if keys and keys[0] in _REQUIRED}
    if required:
        names = sorted(set(required.values()))
        raise _unknown_names(path, names, f"needs {', '.join(names)}, which is not imported, at {', '.join(required)}")
    leave_out(checkpoint, contents.left_out)
    if places:
        listed = ", ".join(f"{place} (a {name})" for place, name in places.items())
        warn_user(f"The checkpoint {str(path)!r} holds objects {problem}: {listed}. They are left out. {action}")
    if contents.unresolved:
        problem = f"configurations with references that stay text: {', '.join(contents.unresolved)}"
        warn_user(f"The checkpoint {str(path)!r} holds {problem}. Pass their values as arguments.")
    return checkpoint


def _unknown_names(path: Path, names: list[str], problem: str) -> CheckpointError:
    action = (
        "Pass weights_only=False if you trust the file, or first import the library whose classes these are, if it "
        "declares them safe, or declare each class or a plain replacement of it, "
        f"`torch.serialization.add_safe_globals([(stand_in, {names[0]!r})])`."
    )
    error = unreadable(path, problem, action=action)
    error.names = tuple(names)
    return error


def _class_name(value: Any) -> Any:
    """Return the name of a class, as it is saved today; any other value as it is."""
    if not isinstance(value, type):
        return value
    return value.name.rpartition(".")[2] if issubclass(value, Unknown) else value.__name__


def _load_by(unpickler: Any, path: Path, map_location: Any, mmap: bool) -> Any:
    """Read a file of `torch.save`, an archive or of before torch 1.6, by an unpickler."""

    def load(file: Any, **options: Any) -> Any:
        return unpickler(file, **options).load()

    module: Any = SimpleNamespace(__name__="pickle", Unpickler=unpickler, load=load)
    with path.open("rb") as file:
        if not zipfile.is_zipfile(file):
            if tarfile.is_tarfile(path):  # of before torch 0.2; torch would unpack it
                raise pickle.UnpicklingError("it is a tar file")
            file.seek(0)
            return _torch._legacy_load(file, map_location, module, encoding="utf-8")
        file.seek(0)
        whole = torch.UntypedStorage.from_file(str(path), False, path.stat().st_size) if mmap else None
        with _torch._open_zipfile_reader(file) as archive:
            return _torch._load(archive, map_location, module, overall_storage=whole, encoding="utf-8")


class _ImportingNothing(_PythonUnpickler):  # type: ignore[misc]
    """An unpickler with stand-ins for all names but the allowed ones, and torch's rules for what a file may change.

    Attributes:
        allowed: What a name may stand for.
        names: The stand-ins by name, of the names that the file needed so far.
    """

    allowed: ClassVar[dict[str, Any]]
    names: ClassVar[dict[str, Any]]

    def find_class(self, module: str, name: str) -> Any:
        if self.proto < 3:
            module, name = NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))
        full_name = f"{module}.{name}"
        if full_name in self.allowed:
            return self.allowed[full_name]
        return self.names.setdefault(full_name, stand_in(full_name))

    def get_extension(self, code: int) -> Any:
        raise pickle.UnpicklingError("it has an extension code")

    def load_build(self) -> None:
        kind = type(self.stack[-2])
        if not issubclass(kind, Unknown) and kind not in self.allowed.values():
            raise pickle.UnpicklingError(f"it changes an object of {kind.__qualname__}")
        super().load_build()

    def load_binpersid(self) -> None:
        name = self.stack[-1]
        if isinstance(name, tuple) and name[:1] not in (("storage",), (b"storage",)):
            raise pickle.UnpicklingError("it has the source code of a module")
        super().load_binpersid()

    dispatch: ClassVar[dict[int, Any]] = {
        **_PythonUnpickler.dispatch,
        pickle.BUILD[0]: load_build,
        pickle.BINPERSID[0]: load_binpersid,
    }


_LEFT_OUT = object()

_NAMESPACES = ("argparse.Namespace", "types.SimpleNamespace", "test_tube.argparse_hopt.TTNamespace")

_ATTRIBUTE_DICTS = (
    *("pytorch_lightning.utilities.parsing.AttributeDict", "lightning.pytorch.utilities.parsing.AttributeDict"),
    *("lightning_lite.utilities.data.AttributeDict", "lightning_fabric.utilities.data.AttributeDict"),
    "lightning.fabric.utilities.data.AttributeDict",
)

_REFERENCE = re.compile(r"\$\{([\w.]+)\}")


@attrs.define
class PlainContents:
    """A conversion of nested values to plain ones, with a record of the values that are left out.

    Namespaces become `NamedValues`, paths text, NumPy's numbers and arrays numbers and tensors, OmegaConf's
    configurations dictionaries and lists. Any other value whose class is not imported is left out of the dictionary
    that it is in; a list with such an item is left out itself.

    Attributes:
        left_out: Names of classes by the keys of their places.
        unresolved: Places of references within configurations that stay text.
    """

    left_out: dict[Keys, str] = attrs.field(factory=dict)
    unresolved: list[str] = attrs.field(factory=list)
    _done: dict[int, tuple[Any, Any]] = attrs.field(factory=dict, init=False)

    def of(self, value: Any) -> Any:
        """Return the plain value. Dictionaries are changed in place."""
        plain = self._of(value, ())
        return {} if plain is _LEFT_OUT else plain

    def _of(self, value: Any, keys: Keys) -> Any:
        if isinstance(value, Tensor) or not isinstance(value, (dict, list, tuple, set, type, Unknown)):
            return value
        if id(value) not in self._done:
            if isinstance(value, dict):
                self._done[id(value)] = value, value  # it may contain itself
            self._done[id(value)] = value, self._convert(value, keys)
        elif self._done[id(value)][1] is _LEFT_OUT:
            self._convert(value, keys)  # to record this place as well
        return self._done[id(value)][1]

    def _convert(self, value: Any, keys: Keys) -> Any:
        if isinstance(value, Unknown):
            return self._from_unknown(value, keys)
        if isinstance(value, type):
            return self._leave_out(value.name, keys) if issubclass(value, Unknown) else value
        if isinstance(value, dict):
            return self._mapping(value, keys)
        items = [self._of(item, (*keys, idx)) for idx, item in enumerate(value)]
        if any(item is _LEFT_OUT for item in items):
            return _LEFT_OUT
        return items if type(value) is list else type(value)(items) if type(value) in (tuple, set) else value

    def _mapping(self, value: dict[Any, Any], keys: Keys) -> dict[Any, Any]:
        for key in list(value):
            label = _label(key)
            item = self._of(value.pop(key), (*keys, label))
            if item is not _LEFT_OUT:
                value[label] = item
        if isinstance(value, OrderedDict):
            self._mapping(vars(value), keys)  # such as the versions of submodules, "_metadata"
        return value

    def _from_unknown(self, value: Unknown, keys: Keys) -> Any:
        name, state, args = value.name, value.state, value.args
        if name in _NAMESPACES and isinstance(state, dict):
            return NamedValues(self._mapping(state, keys))
        if value.items or name in _ATTRIBUTE_DICTS:
            return NamedValues(self._mapping(value.items, keys))
        if value.members:
            return self._of(value.members, keys)
        if name.startswith("pathlib.") and name.endswith("Path"):
            kind = PureWindowsPath if "Windows" in name else PurePosixPath
            return str(kind(*(str(part) for part in args)))
        if isinstance(value, NumpyArray) and (tensor := value.tensor()) is not None:
            return tensor
        if _is_configuration(value):
            plain = self._of(_configuration(value), keys)
            return self._resolved(plain, plain, keys) if state.get("_parent") is None else plain
        is_text = len(args) == 1 and isinstance(args[0], str)
        if name.startswith(("pytorch_lightning.", "lightning.")) and state is None and is_text:
            return args[0]  # an enumeration
        return self._leave_out(name, keys)

    def _resolved(self, value: Any, root: Any, keys: Keys) -> Any:
        """Replace references such as "${model.width}" by their values. Other interpolations stay text."""
        if isinstance(value, dict):
            for key in value:
                value[key] = self._resolved(value[key], root, (*keys, key))
        elif isinstance(value, list):
            value[:] = [self._resolved(item, root, (*keys, idx)) for idx, item in enumerate(value)]
        elif isinstance(value, str) and "${" in value:
            found, names = root, _REFERENCE.fullmatch(value)
            for name in names[1].split(".") if names else ():
                found = found.get(name, _LEFT_OUT) if isinstance(found, Mapping) else _LEFT_OUT
            if names is None or found is _LEFT_OUT or (isinstance(found, str) and "${" in found):
                self.unresolved.append(name_of(keys, root=""))
                return value
            return found
        return value

    def _leave_out(self, name: str, keys: Keys) -> Any:
        self.left_out[keys] = name
        return _LEFT_OUT


def _is_configuration(value: Any) -> bool:
    """Return whether a value is a node of OmegaConf."""
    is_node = isinstance(value, Unknown) and value.name.startswith("omegaconf.") and isinstance(value.state, dict)
    return is_node and ("_content" in value.state or "_val" in value.state)


def _configuration(value: Any) -> Any:
    """Return the content of a node of OmegaConf, with `NamedValues` for dictionaries; other values as they are."""
    if not _is_configuration(value):
        return value
    if "_content" not in value.state:
        return value.state["_val"]
    content = value.state["_content"]
    if isinstance(content, dict):
        return NamedValues({_configuration(key): _configuration(item) for key, item in content.items()})
    return [_configuration(item) for item in content] if isinstance(content, list) else content


def _label(key: Any) -> Any:
    """Return a key as text if it is a class or an object that is not imported."""
    if isinstance(key, type) and issubclass(key, Unknown):
        return key.name.rpartition(".")[2]
    if isinstance(key, Unknown):
        return str(key.args[0]) if key.args else key.name
    return key


_KINDS = {"f": "float", "i": "int", "u": "uint", "c": "complex"}
"""The beginnings of torch's names of dtypes, by NumPy's."""


class NamedValues(dict[str, Any]):
    """A dictionary whose items are attributes too, in place of a namespace or a dictionary of that kind."""

    is_plain_dict: ClassVar[bool] = True

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Unknown:
    """An object of a class that is not imported, with its arguments and state as they were pickled.

    Each class has a subclass of its own, which stands for the class itself.

    Attributes:
        name: The full name of the class.
        args: The arguments of its constructor.
        state: Its state, such as its attributes.
        items: Its items, if it derives from `dict`.
        members: Its items, if it derives from `list`.
    """

    name: ClassVar[str] = ""
    args: tuple[Any, ...]
    state: Any
    items: dict[Any, Any]
    members: list[Any]

    def __new__(cls, *args: Any) -> Unknown:
        made = super().__new__(cls)
        made.args, made.state, made.items, made.members = args, None, {}, []
        return made

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, item: Any) -> None:
        self.items[key] = item

    def append(self, item: Any) -> None:
        """Add an item of a list, as pickle does."""
        self.members.append(item)


class NumpyType(Unknown):
    """A `numpy.dtype`."""

    name = "numpy.dtype"

    @property
    def code(self) -> str:
        """The type code, such as "f4"; empty for another byte order than this machine's."""
        order = self.state[1] if isinstance(self.state, tuple) and len(self.state) > 1 else "="
        swapped = ">" if sys.byteorder == "little" else "<"
        return str(self.args[0]).lstrip("<=|") if self.args and order != swapped else ""

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype in torch; None if it has none."""
        kind, size = _KINDS.get(self.code[:1], ""), self.code[1:]
        name = "bool" if self.code == "b1" else f"{kind}{8 * int(size)}" if kind and size.isdecimal() else ""
        dtype = getattr(torch, name, None)
        return dtype if isinstance(dtype, torch.dtype) else None


class NumpyArray(Unknown):
    """A `numpy.ndarray`, as `numpy.core.multiarray._reconstruct` makes it."""

    name = "numpy.ndarray"

    def tensor(self) -> Tensor | None:
        """Return the array as a tensor; None if torch has no such dtype."""
        if not isinstance(self.state, tuple) or len(self.state) != 5:
            return None
        _, shape, kind, is_fortran, data = self.state
        dtype = kind.dtype if isinstance(kind, NumpyType) else None
        if dtype is None or not isinstance(data, (bytes, bytearray)):
            return None
        flat = torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)
        if is_fortran:
            return flat.reshape(tuple(reversed(shape))).permute(*reversed(range(len(shape)))).contiguous()
        return flat.reshape(tuple(shape))


def stand_in(name: str) -> Any:
    """Return the class or function that takes the place of a name in a pickle."""
    made: dict[str, Any] = {"name": name, "__module__": "stand-in", "__qualname__": name}
    return _KNOWN[name] if name in _KNOWN else type("StandIn", (Unknown,), made)


def bytes_of_nothing() -> bytes:
    """Return what `bytes` stands for in a pickle of protocol 2: the empty one."""
    return b""


def _numpy_scalar(kind: NumpyType, data: Any = None) -> Any:
    if isinstance(kind, NumpyType) and isinstance(data, bytes):
        dtype = kind.dtype
        if dtype is not None and len(data) == dtype.itemsize:
            return torch.frombuffer(bytearray(data), dtype=dtype).item()
        if kind.code.startswith("U"):
            return data.decode(f"utf-32-{'le' if sys.byteorder == 'little' else 'be'}").rstrip("\0")
    return stand_in("numpy.generic")(kind, data)


_KNOWN: dict[str, Callable[..., Any]] = {
    "collections.defaultdict": lambda *args: dict(args[1]) if len(args) > 1 and isinstance(args[1], dict) else {},
    "collections.deque": lambda *args: list(args[0]) if args else [],
    "builtins.frozenset": lambda *args: set(args[0]) if args else set(),
    "numpy.dtype": NumpyType,
    "numpy.ndarray": NumpyArray,
    **{f"numpy.{core}.multiarray.scalar": _numpy_scalar for core in ("core", "_core")},
    **{f"numpy.{core}.multiarray._reconstruct": NumpyArray for core in ("core", "_core")},
}
"""Replacements of names that such files often have."""
