"""Files of hyperparameters, file systems, and the building of modules from checkpoints, as functions."""

from __future__ import annotations

import ast
import csv
import inspect
import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from types import FrameType
from typing import IO, Any

import yaml  # type: ignore[import-untyped, unused-ignore]

from camshaft.compat.data_module import DataModule
from camshaft.compat.module import TrainingModule
from camshaft.hooks_core import is_overridden
from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.hooks_core.support.remote_files import exists, is_url
from camshaft.trainer.hyperparameters import HYPER_PARAMETERS_KEY, NAME_KEY, accepted_by, parameters_of

_Path = str | os.PathLike[str]


def get_filesystem(path: _Path, **kwargs: Any) -> Any:
    """Return the file system of a path, by the package fsspec.

    Args:
        path: A path or a URL.
        kwargs: Options of the file system.

    Raises:
        ModuleNotFoundError: If fsspec, or what it needs for that protocol, is not installed.
    """
    from fsspec.core import url_to_fs  # type: ignore[import-untyped, unused-ignore]

    return url_to_fs(str(path), **kwargs)[0]


def is_dir(fs: Any, path: _Path, strict: bool = False) -> bool:
    """Return whether a path is a directory; in a store of objects, whether it is no file, unless `strict`."""
    is_store = type(fs).__name__ in ("S3FileSystem", "GCSFileSystem", "AzureBlobFileSystem")
    return bool(not fs.isfile(path) if is_store and not strict else fs.isdir(path))


def load_hparams_from_tags_csv(tags_csv: _Path) -> dict[str, Any]:
    """Return the hyperparameters in a table of keys and values; with a warning none, if there is no such file."""
    if not _is_there(tags_csv):
        return {}
    with _open(tags_csv, "r") as file:
        return {row[0]: _value_of(row[1]) for row in list(csv.reader(file))[1:]}


def _value_of(text: str) -> Any:
    with suppress(ValueError, SyntaxError):
        return ast.literal_eval(text)
    return text


def load_hparams_from_yaml(config_yaml: _Path, use_omegaconf: bool = True) -> Any:
    """Return the hyperparameters in a YAML file of plain values; with a warning none, if there is no such file.

    Args:
        config_yaml: The file. It is not to hold objects: names in it are never imported.
        use_omegaconf: If true and OmegaConf is installed, they are a configuration of it.

    Raises:
        yaml.YAMLError: If it cannot be read so.
    """
    if not _is_there(config_yaml):
        return {}
    with _open(config_yaml, "r") as file:
        hparams = yaml.load(file, _PlainLoader)
    configurations = _omegaconf() if use_omegaconf else None
    if configurations is None:
        return hparams
    try:
        return configurations.OmegaConf.create(hparams)
    except (configurations.errors.UnsupportedValueType, configurations.errors.ValidationError):
        return hparams


# They also read and write tuples, which have a tag of Python's.
_PlainLoader: Any = type("_PlainLoader", (yaml.SafeLoader,), {})
_PlainDumper: Any = type("_PlainDumper", (yaml.SafeDumper,), {})
_TUPLE = "tag:yaml.org,2002:python/tuple"
_PlainLoader.add_constructor(_TUPLE, lambda loader, node: tuple(loader.construct_sequence(node, deep=True)))
_PlainDumper.add_representer(tuple, lambda dumper, value: dumper.represent_sequence(_TUPLE, value))


def save_hparams_to_yaml(config_yaml: _Path, hparams: Any, use_omegaconf: bool = True) -> None:
    """Write hyperparameters as YAML; with a warning without those that it cannot have.

    Args:
        config_yaml: The file.
        hparams: The hyperparameters.
        use_omegaconf: If true, configurations of OmegaConf in it are resolved.

    Raises:
        FileNotFoundError: If the folder does not exist.
        TypeError: If the hyperparameters are no dictionary, namespace or configuration.
    """
    values: Any = vars(hparams) if isinstance(hparams, Namespace) else hparams
    if not isinstance(values, Mapping):
        action = "Pass `vars(hparams)`."
        raise TypeError(must_be("hparams", "a dictionary or a namespace", hparams, "save_hparams_to_yaml", action))
    configurations = _omegaconf() if use_omegaconf else None
    kept = {}
    for key, value in dict(values).items():
        if configurations is not None and configurations.OmegaConf.is_config(value):
            value = configurations.OmegaConf.to_container(value, resolve=True)
        value = getattr(value, "name", value) if hasattr(type(value), "__members__") else value
        try:
            yaml.dump(value, Dumper=_PlainDumper)
        except yaml.representer.RepresenterError:
            warn_user(f"The hyperparameter {key!r} is not in {config_yaml}: YAML cannot have it. Save plain values.")
        else:
            kept[key] = value
    with _open(config_yaml, "w") as file:
        yaml.dump(kept, file, _PlainDumper)


def update_hparams(hparams: MutableMapping[str, Any], updates: Mapping[str, Any]) -> None:
    """Update nested hyperparameters in place."""
    for key, value in updates.items():
        if isinstance(value, dict) and key in hparams:
            update_hparams(hparams[key], value)
        else:
            hparams[key] = value


def load_from_checkpoint(
    cls: type, checkpoint_path: Any, map_location: Any = None, hparams_file: Any = None, strict: Any = None, **init: Any
) -> Any:
    """Build a module or a data module from a checkpoint, past an override of its `load_from_checkpoint`.

    Args:
        cls: The class.
        checkpoint_path, map_location, hparams_file, strict, init: As in the method.

    Raises:
        TypeError: If the class is neither.
    """
    base: Any = next((kind for kind in (DataModule, TrainingModule) if issubclass(cls, kind)), None)
    if base is None:
        rule, action = "a subclass of LightningModule or LightningDataModule", "Load its weights with `torch.load`."
        raise TypeError(must_be("cls", rule, cls, "load_from_checkpoint", action))
    if base is TrainingModule:
        init["strict"] = strict
    return base.load_from_checkpoint.__func__(cls, checkpoint_path, map_location, hparams_file, **init)


def load_state(cls: type, checkpoint: dict[str, Any], strict: bool | None = None, **kwargs: Any) -> Any:
    """Build a module or a data module from what `torch.load` read of a checkpoint.

    Hooks: configure_model, on_load_checkpoint, of the new module.

    Args:
        cls: The class.
        checkpoint: The checkpoint.
        strict: If true, the weights must fit exactly; None takes the module's `strict_loading`.
        kwargs: Arguments of `__init__`, before those in the checkpoint.

    Raises:
        RuntimeError: If the weights do not fit.
    """
    hparams: dict[str, Any] = {}
    for key in ("hparams", "module_arguments", HYPER_PARAMETERS_KEY):  # the first two in early releases
        hparams.update(checkpoint.get(key) or {})
    known = {name: value for name, value in kwargs.items() if name in parameters_of(cls)}
    made = cls(**{**accepted_by(cls, {**hparams, **kwargs}, checkpoint.get(NAME_KEY)), **known})
    if isinstance(made, DataModule):
        if cls.__qualname__ in checkpoint:
            made.load_state_dict(checkpoint[cls.__qualname__])
        return made
    if isinstance(made, TrainingModule):
        if is_overridden(made, "configure_model"):
            made.configure_model()
        made.on_load_checkpoint(checkpoint)
    of_module = getattr(made, "strict_loading", True)
    made.load_state_dict(checkpoint["state_dict"], strict=of_module if strict is None else strict)
    return made


@contextmanager
def pl_legacy_patch() -> Iterator[None]:
    """Do nothing: names of earlier releases in a checkpoint are found as they are."""
    yield


def migrate_checkpoint(
    checkpoint: dict[str, Any], target_version: str | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a checkpoint as it is, since those of all releases are read, and that nothing was changed."""
    return checkpoint, {}


def pl_migrate_checkpoint(checkpoint: dict[str, Any], checkpoint_path: Any = None) -> dict[str, Any]:
    """Return a checkpoint as it is, since those of all releases are read."""
    return checkpoint


def _is_there(path: _Path) -> bool:
    if exists(os.fspath(path)):
        return True
    warn_user(f"The file of hyperparameters {os.fspath(path)} does not exist. Check the path.", RuntimeWarning)
    return False


def _open(path: _Path, mode: str) -> IO[str]:
    if not is_url(os.fspath(path)):
        return open(path, mode, newline="", encoding="utf-8")
    opened: IO[str] = get_filesystem(path).open(str(path), mode, newline="", encoding="utf-8")
    return opened


def _omegaconf() -> Any:
    try:
        import omegaconf  # type: ignore[import-not-found, unused-ignore]
    except ModuleNotFoundError:
        return None
    return omegaconf


def get_init_args(frame: FrameType) -> dict[str, Any]:
    """Return the arguments of a running `__init__`, without `*args`; empty for the frame of another function."""
    info = inspect.getargvalues(frame)
    if frame.f_code.co_name != "__init__" or "__class__" not in info.locals:
        return {}
    own = {name: info.locals[name] for name in info.args[1:]}
    return own | (info.locals[info.keywords] if info.keywords else {})


def save_hyperparameters(
    obj: Any,
    *args: Any,
    ignore: Sequence[str] | str | None = None,
    frame: FrameType | None = None,
    given_hparams: dict[str, Any] | None = None,
) -> None:
    """Save the arguments of an object's constructor; see `TrainingModule.save_hyperparameters`.

    Args:
        obj: A module, a data module or another object with `HyperparametersMixin`.
        args: Names of arguments; all without any.
        ignore: Names to leave out.
        frame: Where to look for the arguments; None looks at the caller.
        given_hparams: The arguments, where they need not be looked for; for a dataclass its fields are.
    """
    if len(args) == 1 and not isinstance(args[0], str) and not args[0]:
        return
    if given_hparams is None and is_dataclass(obj):
        given_hparams = {field.name: getattr(obj, field.name) for field in fields(obj) if field.init}
    if given_hparams is not None and all(isinstance(name, str) for name in args):
        args = ({name: given_hparams[name] for name in args or given_hparams},)
    obj.save_hyperparameters(*args, ignore=ignore, frame=frame or sys._getframe(1))


def lightning_hasattr(model: Any, attribute: str) -> bool:
    """Return whether a module, its hyperparameters or its data module have an attribute."""
    return bool(_holders(model, attribute))


def lightning_getattr(model: Any, attribute: str) -> Any:
    """Return an attribute of a module's data module, its hyperparameters or itself, the first of these that has it.

    Raises:
        AttributeError: If none has it.
    """
    holder = _known_holders(model, attribute)[-1]
    return holder[attribute] if isinstance(holder, dict) else getattr(holder, attribute)


def lightning_setattr(model: Any, attribute: str, value: Any) -> None:
    """Set an attribute of all that have it: a module, its hyperparameters, its data module.

    Raises:
        AttributeError: If none has it.
    """
    for holder in _known_holders(model, attribute):
        if isinstance(holder, dict):
            holder[attribute] = value
        else:
            setattr(holder, attribute, value)


def _known_holders(model: Any, attribute: str) -> list[Any]:
    holders = _holders(model, attribute)
    if not holders:
        rule = "an attribute of the module, its hyperparameters or its data module"
        action = "Check its spelling."
        raise AttributeError(must_be("attribute", rule, attribute, type(model).__qualname__, action))
    return holders


def _holders(model: Any, attribute: str) -> list[Any]:
    data: Any = getattr(getattr(model, "_trainer", None), "datamodule", None)
    found = []
    for owner in (model, data):
        if owner is not None and hasattr(owner, attribute):
            found.append(owner)
        if attribute in getattr(owner, "hparams", ()):
            found.append(owner.hparams)
    return found
