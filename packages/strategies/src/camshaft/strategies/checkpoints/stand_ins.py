"""What stands for names in a pickle that are not imported, and the plain values that it becomes."""

from __future__ import annotations

import struct
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

Shape = Literal["object", "mapping", "list"]
"""What a class whose name is unknown derives from, as far as a pickle shows: something else, `dict` or `list`."""

_KIND = "camshaft_kind"

_NUMBERS = {"b1": "?", "f2": "e", "f4": "f", "f8": "d"} | {
    f"{sign}{size}": code if sign == "i" else code.upper()
    for sign in "iu"
    for size, code in ((1, "b"), (2, "h"), (4, "i"), (8, "q"))
}
"""Formats of `struct` by NumPy's names of its types."""

_DTYPES = {
    "b1": torch.bool,
    **{f"f{bits // 8}": getattr(torch, f"float{bits}") for bits in (16, 32, 64)},
    **{f"i{bits // 8}": getattr(torch, f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"u{bits // 8}": getattr(torch, f"uint{bits}") for bits in (8, 16, 32, 64)},
}


class NamedValues(dict[str, Any]):
    """What was a namespace, or a dictionary whose items are attributes too: both here."""

    is_plain_dict: ClassVar[bool] = True

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Unknown:
    """An object of a class that is not imported: its arguments and its state, which nobody has looked at.

    Each name has a subclass of its own, which stands for the class itself.

    Attributes:
        name: The full name of the class.
        args: What it was made of.
        state: What its attributes were.
    """

    name: ClassVar[str] = ""
    args: tuple[Any, ...]
    state: Any

    def __new__(cls, *args: Any) -> Unknown:
        made = super().__new__(cls)
        made.args, made.state = args, None
        return made

    def __setstate__(self, state: Any) -> None:
        self.state = state


class NumpyType(Unknown):
    """A `numpy.dtype`."""

    name = "numpy.dtype"

    @property
    def code(self) -> str | None:
        """The short name of the type, such as "f4"; None of one that is not of this machine's byte order."""
        order = self.state[1] if isinstance(self.state, tuple) and len(self.state) > 1 else "="
        swapped = ">" if sys.byteorder == "little" else "<"
        return str(self.args[0]).lstrip("<=|") if self.args and order != swapped else None


class NumpyArray(Unknown):
    """A `numpy.ndarray`, as `numpy.core.multiarray._reconstruct` makes it."""

    name = "numpy.ndarray"

    def tensor(self) -> Tensor | None:
        """The same numbers; None if they are none, or of a type that torch does not have."""
        if not isinstance(self.state, tuple) or len(self.state) != 5:
            return None
        _, shape, kind, is_fortran, data = self.state
        dtype = _DTYPES.get(kind.code or "") if isinstance(kind, NumpyType) else None
        if dtype is None or not isinstance(data, (bytes, bytearray)):
            return None
        flat = torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)
        if is_fortran:
            return flat.reshape(tuple(reversed(shape))).permute(*reversed(range(len(shape)))).contiguous()
        return flat.reshape(tuple(shape))


def stand_in(name: str, shape: Shape = "object") -> Any:
    """What a pickle gets where it asks for a name.

    Args:
        name: The full name.
        shape: For a name that is not known: what it derives from.
    """
    if name in _KNOWN:
        return _KNOWN[name]
    made = {"mapping": _mapping_of, "list": _list_of}[shape](name) if shape != "object" else None
    return type("StandIn", (Unknown,), {"name": name, "__module__": "stand-in", "__qualname__": name, **(made or {})})


def origin(mapping: OrderedDict[Any, Any]) -> str | None:
    """The name of the class that a dictionary stands for; None for one that was no more than that."""
    return vars(mapping).get(_KIND)


def plain_path(value: Unknown) -> str:
    """A path as text."""
    kind = PureWindowsPath if "Windows" in value.name else PurePosixPath
    return str(kind(*(str(part) for part in value.args)))


def _mapping_of(name: str) -> dict[str, Any]:
    def new(cls: type, *args: Any) -> OrderedDict[Any, Any]:
        made: OrderedDict[Any, Any] = OrderedDict(args[0] if args and isinstance(args[0], dict) else ())
        vars(made)[_KIND] = name
        return made

    return {"__new__": staticmethod(new)}


def _list_of(name: str) -> dict[str, Any]:
    return {"__new__": staticmethod(lambda cls, *args: list(args[0]) if args and isinstance(args[0], list) else [])}


def _default_dict(*args: Any) -> dict[Any, Any]:
    return dict(args[1]) if len(args) > 1 and isinstance(args[1], dict) else {}


def _numpy_scalar(kind: NumpyType, data: Any = None) -> Any:
    code = _NUMBERS.get(kind.code or "") if isinstance(kind, NumpyType) else None
    if code is not None and isinstance(data, bytes) and len(data) == struct.calcsize("=" + code):
        return struct.unpack("=" + code, data)[0]
    text = kind.code or "" if isinstance(kind, NumpyType) else ""
    if text.startswith("U") and isinstance(data, bytes):
        return data.decode(f"utf-32-{'le' if sys.byteorder == 'little' else 'be'}").rstrip("\0")
    return stand_in("numpy.generic")(kind, data)


def _numpy_array(*args: Any) -> NumpyArray:
    return NumpyArray(*args)


def _attribute_dicts() -> dict[str, Any]:
    places = (
        "pytorch_lightning.utilities.parsing",
        "lightning.pytorch.utilities.parsing",
        "lightning_lite.utilities.data",
        "lightning_fabric.utilities.data",
        "lightning.fabric.utilities.data",
    )
    names = [f"{place}.AttributeDict" for place in places]
    return {name: type("StandIn", (Unknown,), {"name": name, **_mapping_of(name)}) for name in names}


_KNOWN: dict[str, Callable[..., Any]] = {
    **_attribute_dicts(),
    "collections.defaultdict": _default_dict,
    "collections.deque": lambda *args: list(args[0]) if args else [],
    "builtins.bytes": lambda *args: b"",  # so are empty ones pickled; others are written out
    "builtins.frozenset": lambda *args: set(args[0]) if args else set(),
    "numpy.dtype": NumpyType,
    "numpy.ndarray": NumpyArray,
    **{f"numpy.{core}.multiarray.scalar": _numpy_scalar for core in ("core", "_core")},
    **{f"numpy.{core}.multiarray._reconstruct": _numpy_array for core in ("core", "_core")},
}
"""Names that such files have often, and what makes something plain in their places."""
