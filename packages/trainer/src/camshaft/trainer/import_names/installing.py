"""Turning the import names of earlier code on and off in this process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from camshaft.hooks_core.messages import must_be
from camshaft.trainer.import_names.finder import AliasFinder, is_alias
from camshaft.trainer.import_names.table import ROOTS

_finder = AliasFinder()


def install_aliases() -> None:
    """Let the imports of earlier code find ours, in this process, until `remove_aliases`.

    `pytorch_lightning`, `lightning`, `lightning.pytorch`, `lightning_fabric` and the modules below them, with the names
    that code of 2019 to 2024 imports from them. Installed packages of these names are not looked at meanwhile. A name
    for which nothing stands raises `ImportError` (`AttributeError` where it is an attribute), with what to use instead.

    Call it before the first of these imports; a second call changes nothing. Processes that are started afresh, such as
    workers of a `DataLoader` with the start method "spawn", have to call it as well.

    Raises:
        RuntimeError: If an installed package of one of these names has been imported already.

    Example:
        >>> install_aliases()
        >>> import pytorch_lightning as pl
        >>> from camshaft.trainer import TrainingModule
        >>> pl.LightningModule is TrainingModule
        True
        >>> remove_aliases()
    """
    if _finder in sys.meta_path:
        return
    for root in ROOTS:
        module = sys.modules.get(root)
        if module is not None:
            rule = f"called before `{root}` is imported"
            where = getattr(module, "__file__", None) or root
            action = "Call it at the start of the script, or run that with `python -m camshaft.trainer run`."
            raise RuntimeError(must_be("install_aliases", rule, "imported already", where, action))
    sys.meta_path.insert(0, _finder)


def remove_aliases() -> None:
    """Put imports back as they were; what has been imported stays usable. Without `install_aliases` nothing changes."""
    if _finder not in sys.meta_path:
        return
    sys.meta_path.remove(_finder)
    for name in [name for name, module in sys.modules.items() if is_alias(module)]:
        del sys.modules[name]


@contextmanager
def aliases_installed() -> Iterator[None]:
    """The import names for the length of a `with` statement; see `install_aliases`."""
    was_installed = _finder in sys.meta_path
    install_aliases()
    try:
        yield
    finally:
        if not was_installed:
            remove_aliases()
