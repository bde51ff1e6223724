"""Reading checkpoints of earlier releases, whose pickles need names that are not imported."""

from __future__ import annotations

import io
import pickle
import pickletools
import threading
import zipfile
from pathlib import Path
from typing import IO, Any

import torch
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from camshaft.hooks_core.user_warnings import warn_user
from camshaft.strategies.checkpoints.plain_contents import PlainContents
from camshaft.strategies.checkpoints.stand_ins import Shape, Unknown, stand_in
from camshaft.strategies.processes.rank_zero import is_rank_zero

_NUM_LEGACY_HEADERS = 3
"""Pickles before the value in a file that is no archive: a magic number, a version, facts about the machine."""

_NEEDED = ("state_dict", "optimizer_states")
"""What a checkpoint cannot be used without."""

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
        for _ in range(_NUM_LEGACY_HEADERS):
            _skip_pickle(stream)
        start = stream.tell()
        _skip_pickle(stream)
        end = stream.tell()
        stream.seek(start)
        value = stream.read(end - start)
    archive = io.BytesIO()  # the same pickle in the format that torch looks at
    with zipfile.ZipFile(archive, "w") as entries:
        entries.writestr("archive/data.pkl", value)
        entries.writestr("archive/version", "3")
    archive.seek(0)
    return sorted(get_unsafe_globals_in_checkpoint(archive))


def _skip_pickle(stream: IO[bytes]) -> None:
    try:
        for _ in pickletools.genops(stream):
            pass
    except MemoryError as error:
        raise ValueError("a length in it is too large") from error


def read_earlier_file(path: Path, map_location: Any = "cpu", *, mmap: bool = False) -> dict[str, Any]:
    """Read a checkpoint of an earlier release with plain values in the places of what it names; nothing is imported.

    The first process warns of what has to be left out, such as objects among the hyperparameters.

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
        raw = None  # one is of a module that torch blocks, or is not used as a class is
    if not isinstance(raw, dict) or not {"state_dict", "epoch", "global_step"} <= raw.keys():
        raise _unknown(names, f"needs names that are not imported: {', '.join(names)}")
    if isinstance(raw.get("hparams_type"), type) and issubclass(raw["hparams_type"], Unknown):
        raw["hparams_type"] = raw["hparams_type"].name.rpartition(".")[2]
    contents = PlainContents()
    checkpoint: dict[str, Any] = contents.of(raw)
    _check_needed(contents.left_out)
    if contents.left_out and is_rank_zero():
        listed = ", ".join(f"{place} (a {name})" for place, name in contents.left_out.items())
        warn_user(
            f"The checkpoint {str(path)!r} holds objects that are no plain values, and their classes are not imported: "
            f"{listed}. They are left out. Pass those that a constructor needs as its arguments."
        )
    if contents.unresolved and is_rank_zero():
        warn_user(
            f"The checkpoint {str(path)!r} holds configurations with references that stay text: "
            f"{', '.join(contents.unresolved)}. Pass their values as arguments."
        )
    return checkpoint


def _load_with_stand_ins(path: Path, names: list[str], map_location: Any, mmap: bool) -> Any:
    shapes: dict[str, Shape] = {}
    while True:
        stand_ins = {name: stand_in(name, shapes.get(name, "object")) for name in names}
        try:
            with _lock, safe_globals([(what, name) for name, what in stand_ins.items()]):
                return torch.load(str(path), map_location=map_location, weights_only=True, mmap=mmap)
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


def _check_needed(left_out: dict[str, str]) -> None:
    needed = {place: name for place, name in left_out.items() if place.startswith(tuple(_places(_NEEDED)))}
    if needed:
        names = sorted(set(needed.values()))
        raise _unknown(names, f"needs {', '.join(names)}, which is not imported, at {', '.join(needed)}")


def _unknown(names: list[str], what: str) -> UnknownNamesError:
    action = (
        f"Declare something plain that stands for each, `torch.serialization.add_safe_globals([(stand_in, "
        f"{names[0]!r})])`, or load the file where they can be imported, and save its tensors by name."
    )
    return UnknownNamesError(f"{what}, in read_checkpoint. {action}", names)


def _places(keys: tuple[str, ...]) -> list[str]:
    return [f"checkpoint[{key!r}]" for key in keys]
