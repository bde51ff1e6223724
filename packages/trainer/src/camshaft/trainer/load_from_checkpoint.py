"""`load_from_checkpoint` of modules and data modules."""

from __future__ import annotations

import ast
import copy
import csv
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from torch import Tensor

from camshaft.hooks_core import is_overridden
from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.hooks_core.support.remote_files import local_copy, local_path
from camshaft.loops.fit.resume import naming_checkpoint, warn_of_other_names
from camshaft.loops.fit.save_only import completed
from camshaft.strategies import objects_left_out, read_checkpoint
from camshaft.trainer.checkpoints import CheckpointFormat, format_of, note_left_out
from camshaft.trainer.hyperparameters import (
    CLASS_PATH_KEY,
    DATA_PREFIX,
    HYPER_PARAMETERS_KEY,
    INSTANTIATOR_KEY,
    NAME_KEY,
    UNSAVED_KEY,
    accepted_by,
    arguments_to_import,
    container_argument,
    parameters_of,
    takes_any,
)

_Path = str | os.PathLike[str]
_Source = _Path | IO[bytes]


def rebuild(
    cls: type[Any],
    path: _Source,
    map_location: Any,
    strict: bool | None,
    weights_only: bool | None,
    hparams_file: _Path | None,
    arguments: Mapping[str, Any],
) -> Any:
    """Build a module; see `TrainingModule.load_from_checkpoint`.

    Raises:
        ValueError: If the checkpoint has no weights.
        RuntimeError: If they do not fit the module.
    """
    where = f"{cls.__qualname__}.load_from_checkpoint"
    checkpoint = _read(path, map_location, weights_only)
    if "state_dict" not in checkpoint:
        action = "Pass a checkpoint of a module."
        raise ValueError(must_be("path", "a checkpoint with a 'state_dict'", sorted(checkpoint), where, action))
    found = format_of(checkpoint, cls.checkpoint_formats)
    module = built(cls, checkpoint, "", hparams_file, arguments, path, found, weights_only)
    strict = _strictness(module, strict, where)
    for hook in ("configure_sharded_model", "configure_model"):
        if is_overridden(module, hook):
            getattr(module, hook)()  # they may create the layers that the weights belong to
    if is_overridden(module, "on_load_checkpoint") and found is None:
        _warn_of_left_out(checkpoint, where)
    try:
        module.on_load_checkpoint(checkpoint)
    except KeyError as error:
        note_left_out(error, checkpoint)
        raise
    weights: Mapping[str, Any] = checkpoint["state_dict"]
    fitting = completed(weights if found is None else found.weights(weights, module), module, checkpoint)
    if not strict:
        warn_of_other_names(module, fitting)
    try:
        with naming_checkpoint("path", path, module, where):
            module.load_state_dict(fitting, strict=strict)
    except RuntimeError as error:
        left_out = [keys[-1] for keys in objects_left_out(checkpoint) if keys[0] == "state_dict"]
        if left_out:
            listed = ", ".join(map(str, left_out))
            error.add_note(f"{listed} are objects, left out by {where}. Pass weights_only=False if you trust the file.")
        raise
    device = next((value.device for value in weights.values() if isinstance(value, Tensor)), None)
    return module if device is None else module.to(device)


def rebuild_data_module(
    cls: type[Any],
    path: _Source,
    map_location: Any,
    weights_only: bool | None,
    hparams_file: _Path | None,
    arguments: Mapping[str, Any],
) -> Any:
    """Build a data module; see `DataModule.load_from_checkpoint`."""
    checkpoint = _read(path, map_location, weights_only)
    found = format_of(checkpoint, cls.checkpoint_formats)
    data = built(cls, checkpoint, DATA_PREFIX, hparams_file, arguments, path, found, weights_only)
    state = checkpoint.get("data") if found is None else found.data_state(checkpoint, cls)
    if state is not None:
        data.load_state_dict(state)
    return data


def _read(path: _Source, map_location: Any, weights_only: bool | None) -> dict[str, Any]:
    return read_checkpoint(
        path, map_location="cpu" if map_location is None else map_location, weights_only=weights_only
    )


def built(
    cls: type[Any],
    checkpoint: dict[str, Any],
    prefix: str,
    hparams_file: _Path | None,
    arguments: Mapping[str, Any],
    path: _Source,
    found: CheckpointFormat | None,
    weights_only: bool | None,
) -> Any:
    """Build an object with the hyperparameters of a checkpoint.

    Args:
        checkpoint: The checkpoint, or what one holds of hyperparameters.
        prefix: Prefix of their keys in it; "" for those of a module.
        hparams_file: A file of hyperparameters in place of them, if there is one.
        arguments: Arguments that take the place of hyperparameters.
        path: The checkpoint's file, for errors.
        found: The format of the checkpoint, if it is not ours.
        weights_only: False allows classes that the hyperparameters name to be imported.

    Raises:
        TypeError: If an argument is missing.
        ValueError: If hyperparameters name classes that were not passed.
    """
    where = f"{cls.__qualname__}.load_from_checkpoint"
    missing: Mapping[str, str] = {}
    if hparams_file is not None and "hparams_file" not in parameters_of(cls):
        checkpoint[prefix + HYPER_PARAMETERS_KEY] = _read_hyperparameters(local_path(hparams_file))
    else:
        arguments = arguments if hparams_file is None else {**arguments, "hparams_file": hparams_file}
        missing = _missing(checkpoint, prefix)
    facts = checkpoint
    if prefix:
        of_module = (HYPER_PARAMETERS_KEY, "hparams", NAME_KEY, "hparams_type")
        facts = {key: value for key, value in checkpoint.items() if key not in of_module}
        facts |= {key.removeprefix(prefix): value for key, value in checkpoint.items() if key.startswith(prefix)}
    saved = facts.get(HYPER_PARAMETERS_KEY)
    if isinstance(saved, Mapping) and INSTANTIATOR_KEY in saved:
        named = [name for name in arguments_to_import(cls, saved) if name not in arguments]
        if named and weights_only is False:
            from camshaft.trainer.cli.instantiation import instantiate_module  # needs the extra

            return instantiate_module(cls, {**saved, **arguments})
        if named:
            rule = f"False for the checkpoint {path!s} of a command line, which names classes for {', '.join(named)}"
            action = "Pass it if you trust the file, or pass these arguments."
            raise ValueError(must_be("weights_only", rule, {name: saved[name] for name in named}, where, action))
        own = (INSTANTIATOR_KEY, CLASS_PATH_KEY)
        facts = {**facts, HYPER_PARAMETERS_KEY: {name: saved[name] for name in saved if name not in own}}
    if found is not None:
        passing = found.constructor_arguments(cls, facts, arguments)
        needed = {name: kind for name, kind in missing.items() if name in parameters_of(cls) and name not in passing}
    else:
        passing, needed = _today(cls, facts, arguments, missing)
    if needed:
        raise TypeError(_missing_message(needed, path, where))
    passing = _known(cls, passing, where)
    try:
        return cls(**passing)
    except TypeError as error:
        passed = ", ".join(sorted(passing)) or "no arguments"
        error.add_note(
            f"Raised in {where}, which passed {passed}. Pass what is missing as keyword "
            "arguments, or call `save_hyperparameters` in `__init__`."
        )
        raise


def _read_hyperparameters(path: str) -> dict[str, Any]:
    """Return the hyperparameters in a file of YAML, or of CSV with the columns "key" and "value".

    Raises:
        ValueError: If it is of another kind.
        ModuleNotFoundError: If it is of YAML, and PyYAML is not installed.
    """
    where = "load_from_checkpoint"
    extension = Path(path).suffix.lower()
    if extension == ".csv":
        with local_copy(path) as file, file.open(newline="", encoding="utf-8") as stream:
            return {row["key"]: _value(row["value"]) for row in csv.DictReader(stream)}
    if extension not in (".yaml", ".yml"):
        raise ValueError(must_be("hparams_file", "a file of .yaml, .yml or .csv", path, where, "Pass another."))
    try:
        import yaml  # type: ignore[import-untyped, unused-ignore]
    except ModuleNotFoundError as error:
        action = "Install PyYAML, or pass the hyperparameters as arguments."
        raise ModuleNotFoundError(must_be("hparams_file", "read with PyYAML", path, where, action)) from error

    with local_copy(path) as file, file.open(encoding="utf-8") as stream:
        read = yaml.safe_load(stream)
    if not isinstance(read, dict):
        raise ValueError(must_be("hparams_file", "one of names and values", read, where, "Pass another."))
    return read


def _value(text: str) -> Any:
    """Return the Python value of a text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _today(
    cls: type, facts: Mapping[str, Any], given: Mapping[str, Any], missing: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the arguments for the constructor, and those that are missing since they were not unpickled."""
    saved = facts.get(HYPER_PARAMETERS_KEY, {})
    names = {**{name: None for name in saved}, **missing}
    container = container_argument(cls, names, facts.get(NAME_KEY))
    if container is None:
        everything = {*saved, *given, *missing} if takes_any(cls) else parameters_of(cls)
        lacking = dict.fromkeys(saved, missing[""]) if "" in missing else missing
        needed = {name: kind for name, kind in lacking.items() if name in everything and name not in given}
        return {**accepted_by(cls, saved), **given}, needed
    inner = {name: value for name, value in given.items() if name not in parameters_of(cls) and not takes_any(cls)}
    outer = {name: value for name, value in given.items() if name not in inner}
    if inner:
        saved = copy.copy(saved)
        saved.update(inner)
    if container in outer:
        return {**accepted_by(cls, saved, container), **outer, **inner}, {}
    if "" in missing:
        return {}, {container: missing[""]}
    needed = {name: kind for name, kind in missing.items() if name not in inner}
    return {**accepted_by(cls, saved, container), **outer}, needed


def _missing(checkpoint: Mapping[str, Any], prefix: str) -> dict[str, str]:
    """Return the reasons why hyperparameters are not in a checkpoint, by name; under "" if they are one object."""
    missing: dict[str, str] = {}
    for keys, kind in objects_left_out(checkpoint).items():
        if keys[0] == prefix + HYPER_PARAMETERS_KEY:
            missing["" if len(keys) == 1 else str(keys[1])] = f"as an object ({kind})"
    for name, reason in checkpoint.get(prefix + UNSAVED_KEY, {}).items():
        missing[name] = f"not at all, as it could not be pickled ({reason})"
    return missing


def _missing_message(needed: Mapping[str, str], path: _Source, where: str) -> str:
    names = ", ".join(f"`{name}`" for name in needed)
    kept = ", ".join(f"{name} {how}" for name, how in needed.items())
    action = f"Pass what is missing as a keyword argument, `{next(iter(needed))}=...`"
    if any(how.startswith("as an ") for how in needed.values()):
        action += ", or weights_only=False if you trust the file"
    file = repr(path if hasattr(path, "read") else os.fspath(path))
    return f"{names} must be passed, but got a checkpoint {file} that keeps {kept}, in {where}. {action}."


def _known(cls: type, arguments: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the arguments that a constructor takes; warn of the others."""
    if takes_any(cls):
        return arguments
    unknown = [name for name in arguments if name not in parameters_of(cls)]
    if unknown:
        warn_user(
            f"{where} leaves out arguments that `__init__` does not take: {', '.join(unknown)}. Add them to `__init__` "
            "if the module needs them."
        )
    return {name: value for name, value in arguments.items() if name not in unknown}


def _strictness(module: Any, strict: bool | None, where: str) -> bool:
    own = bool(module.strict_loading)
    if strict is not None and vars(module).get("_strict_loading") is not None and strict != own:
        action = "Pass the same, or leave it out."
        raise ValueError(must_be("strict", f"the module's `strict_loading` ({own})", strict, where, action))
    return own if strict is None else strict


def _warn_of_left_out(checkpoint: Mapping[str, Any], where: str) -> None:
    """Warn of objects that `on_load_checkpoint` may look for."""
    keys_of_others = (HYPER_PARAMETERS_KEY, DATA_PREFIX + HYPER_PARAMETERS_KEY, "callbacks", "data")
    left_out = [keys for keys in objects_left_out(checkpoint) if keys[0] not in keys_of_others]
    if left_out:
        listed = ", ".join("".join(f"[{key!r}]" for key in keys) for keys in left_out)
        warn_user(
            f"{where} leaves out objects that `on_save_checkpoint` put into the checkpoint: {listed}. Pass "
            "weights_only=False if you trust the file."
        )
