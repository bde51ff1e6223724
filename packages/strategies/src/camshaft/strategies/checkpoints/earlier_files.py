"""Reading files of other frameworks and of earlier releases, whose pickles need names.

One rule holds for every name that is not torch's own or declared safe, be it of a class, of `eval` or of `os.system`:
it is neither imported nor called. Something plain stands for it where the meaning is known; anything else is left out,
with a warning that names it. A file is refused, by `UnknownNamesError`, if it is no checkpoint of a release, or if its
weights or optimizers need such a name. Only a caller who trusts a file has its names imported (`read_trusted_file`).
"""

from __future__ import annotations

import io
import pickle
import pickletools
import threading
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import torch
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from camshaft.hooks_core.user_warnings import warn_user
from camshaft.strategies.checkpoints.objects import leave_out
from camshaft.strategies.checkpoints.plain_contents import PlainContents
from camshaft.strategies.checkpoints.plain_values import Keys, name_of
from camshaft.strategies.checkpoints.stand_ins import Shape, Unknown, stand_in
from camshaft.strategies.processes.rank_zero import is_rank_zero

_NUM_LEGACY_HEADERS = 3
"""Pickles before the value in a file that is no archive: a magic number, a version, facts about the machine."""

_NEEDED = ("state_dict", "optimizer_states")
"""What a checkpoint cannot be used without."""

_BLOCKED = ("sys", "os", "posix", "nt")
"""Modules of which torch's reader takes no name, even if something stands for it."""

_RENAMED = "blocked."
"""The prefix of the names of these modules, for a reading in which something stands for them."""

_lock = threading.Lock()  # what is safe to torch is a matter of the process


class UnknownNamesError(ValueError):
    """A file that needs names for which nothing plain stands; it says what it needs, and what can be done.

    Attributes:
        names: The names.
    """

    def __init__(self, message: str, names: list[str]) -> None:
        self.names = names
        super().__init__(message)


def names_in(path: Path) -> list[str]:
    """The names that a file of `torch.save` needs and that neither torch nor the user declared safe, sorted.

    Raises:
        ValueError: If it cannot be looked at (likewise `pickle.UnpicklingError`, `EOFError`).
    """
    if zipfile.is_zipfile(path):
        return sorted(get_unsafe_globals_in_checkpoint(str(path)))
    with path.open("rb") as stream:
        start, end = _legacy_value(stream)
        stream.seek(start)
        value = stream.read(end - start)
    archive = io.BytesIO()  # the same pickle in the format that torch looks at
    with zipfile.ZipFile(archive, "w") as entries:
        entries.writestr("archive/data.pkl", value)
        entries.writestr("archive/version", "3")
    archive.seek(0)
    return sorted(get_unsafe_globals_in_checkpoint(archive))


def _legacy_value(stream: IO[bytes]) -> tuple[int, int]:
    """Where the value begins and ends in a file that is no archive."""
    for _ in range(_NUM_LEGACY_HEADERS):
        _skip_pickle(stream)
    start = stream.tell()
    _skip_pickle(stream)
    return start, stream.tell()


def _skip_pickle(stream: IO[bytes]) -> None:
    try:
        for _ in pickletools.genops(stream):
            pass
    except MemoryError as error:
        raise ValueError("a length in it is too large") from error


def read_earlier_file(path: Path, map_location: Any = "cpu", *, mmap: bool = False) -> dict[str, Any]:
    """Read a checkpoint of another release with plain values in the places of what it names; nothing is imported.

    The rule is told above. The first process warns of what has to be left out, such as objects among the
    hyperparameters; `objects_left_out` tells it too.

    Args:
        path: The file.
        map_location: Where tensors go.
        mmap: Whether tensors of an archive are views of the file.

    Returns:
        The checkpoint, of plain values; its "callbacks" by the names of their classes where they were by the classes.

    Raises:
        UnknownNamesError: If it is no checkpoint of a release, or weights or optimizers need names.
        ValueError: If it cannot be looked at, as `names_in`.
    """
    names = names_in(path)
    try:
        raw = _load_with_stand_ins(path, names, map_location, mmap and zipfile.is_zipfile(path))
    except pickle.UnpicklingError:
        if not names:
            raise
        raw = None  # one is not used as a class is
    if not isinstance(raw, dict) or not {"state_dict", "epoch", "global_step"} <= raw.keys():
        raise _unknown(names, f"needs names that are not imported: {', '.join(names)}")
    if isinstance(raw.get("hparams_type"), type) and issubclass(raw["hparams_type"], Unknown):
        raw["hparams_type"] = raw["hparams_type"].name.rpartition(".")[2]
    contents = PlainContents()
    checkpoint: dict[str, Any] = contents.of(raw)
    _check_needed(contents.left_out)
    leave_out(checkpoint, contents.left_out)
    if contents.left_out and is_rank_zero():
        warn_user(
            f"The checkpoint {str(path)!r} holds objects that are no plain values, and their classes are not imported: "
            f"{_listed(contents.left_out)}. They are left out. Pass those that a constructor needs as its arguments, "
            "or weights_only=False if you trust the file."
        )
    if contents.unresolved and is_rank_zero():
        warn_user(
            f"The checkpoint {str(path)!r} holds configurations with references that stay text: "
            f"{', '.join(contents.unresolved)}. Pass their values as arguments."
        )
    return checkpoint


def read_trusted_file(path: Path, map_location: Any = "cpu", *, mmap: bool = False) -> Any:
    """Read whatever `torch.save` wrote, with everything that it names imported and called.

    The first process warns of names that cannot be imported; what they stand for becomes plain or is left out, as in
    `read_earlier_file`.

    Args:
        path: The file.
        map_location: Where tensors go.
        mmap: Whether tensors of an archive are views of the file.

    Raises:
        Exception: What unpickling raises.
    """
    absent: list[str] = []

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str, /) -> Any:
            try:
                return super().find_class(module, name)
            except (ImportError, AttributeError):
                absent.append(f"{module}.{name}")
                return stand_in(absent[-1])

    names = SimpleNamespace(__name__="pickle", Unpickler=Unpickler, load=pickle.load)
    mmap = mmap and zipfile.is_zipfile(path)
    raw = torch.load(str(path), map_location=map_location, weights_only=False, mmap=mmap, pickle_module=names)
    if not isinstance(raw, dict):
        return raw
    callbacks = raw.get("callbacks")
    if isinstance(callbacks, dict):
        raw["callbacks"] = {_class_name(key): state for key, state in callbacks.items()}
    if "hparams_type" in raw:
        raw["hparams_type"] = _class_name(raw["hparams_type"])
    if absent:
        contents = PlainContents()
        raw = contents.of(raw)
        _check_needed(contents.left_out)
        leave_out(raw, contents.left_out)
        if contents.left_out and is_rank_zero():
            warn_user(
                f"The checkpoint {str(path)!r} holds objects whose classes cannot be imported: "
                f"{_listed(contents.left_out)}. They are left out. Make the classes importable."
            )
    return raw


def _class_name(value: Any) -> Any:
    """The name of a class, as which checkpoints of today tell it; anything else as it is."""
    if not isinstance(value, type):
        return value
    return value.name.rpartition(".")[2] if issubclass(value, Unknown) else value.__name__


def _listed(left_out: dict[Keys, str]) -> str:
    return ", ".join(f"{name_of('checkpoint', keys)} (a {name})" for keys, name in left_out.items())


def _load_with_stand_ins(path: Path, names: list[str], map_location: Any, mmap: bool) -> Any:
    shapes: dict[str, Shape] = {}
    blocked = {name for name in names if name.rpartition(".")[0] in _BLOCKED}
    source = _renamed(path) if blocked else str(path)
    while True:
        stand_ins = {name: stand_in(name, shapes.get(name, "object")) for name in names}
        allowed: list[Any] = [(what, _RENAMED + name if name in blocked else name) for name, what in stand_ins.items()]
        try:
            with _lock, safe_globals(allowed):
                return torch.load(source, map_location=map_location, weights_only=True, mmap=mmap and not blocked)
        except pickle.UnpicklingError as error:
            misfit = _misfit(str(error), stand_ins)
            if misfit is None or misfit[0] in shapes:
                raise
            shapes[misfit[0]] = misfit[1]


def _misfit(message: str, stand_ins: dict[str, Any]) -> tuple[str, Shape] | None:
    """Which class turned out to derive from `dict` or `list`, by what torch's reader complained about."""
    for name, what in stand_ins.items():
        if isinstance(what, type) and repr(what) in message:
            if "SETITEM" in message:
                return name, "mapping"
            if "append" in message or "extend" in message:
                return name, "list"
    return None


def _renamed(path: Path) -> io.BytesIO:
    """A copy of a file in which the names of modules that torch blocks are of others, which do not exist."""
    copy = io.BytesIO()
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive, zipfile.ZipFile(copy, "w") as entries:
            for entry in archive.infolist():
                is_pickle = entry.filename.endswith("/data.pkl")
                entries.writestr(entry, _with_names_renamed(archive.read(entry)) if is_pickle else archive.read(entry))
    else:
        content = path.read_bytes()
        start, end = _legacy_value(io.BytesIO(content))
        copy.write(content[:start] + _with_names_renamed(content[start:end]) + content[end:])
    copy.seek(0)
    return copy


def _with_names_renamed(pickled: bytes) -> bytes:
    done, parts = 0, []
    for opcode, argument, position in pickletools.genops(pickled):
        if opcode.name == "GLOBAL" and isinstance(argument, str) and argument.rpartition(" ")[0] in _BLOCKED:
            assert position is not None
            parts += [pickled[done : position + 1], _RENAMED.encode()]
            done = position + 1
    return b"".join([*parts, pickled[done:]])


def _check_needed(left_out: dict[Keys, str]) -> None:
    needed = {name_of("checkpoint", keys): name for keys, name in left_out.items() if keys and keys[0] in _NEEDED}
    if needed:
        names = sorted(set(needed.values()))
        raise _unknown(names, f"needs {', '.join(names)}, which is not imported, at {', '.join(needed)}")


def _unknown(names: list[str], what: str) -> UnknownNamesError:
    action = (
        f"Pass weights_only=False if you trust the file, or declare something plain that stands for each, "
        f"`torch.serialization.add_safe_globals([(stand_in, {names[0]!r})])`."
    )
    return UnknownNamesError(f"{what}, in read_checkpoint. {action}", names)
