"""Mixins, wrappers and readers of checkpoints that earlier releases and libraries import."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import nn


class DeviceDtypeModuleMixin(nn.Module):
    """A module that knows where its parameters are, and of which type."""

    @property
    def device(self) -> torch.device:
        """The device of its first parameter or buffer; the CPU without any."""
        return next((one.device for one in chain(self.parameters(), self.buffers())), torch.device("cpu"))

    @property
    def dtype(self) -> torch.dtype:
        """The type of its first parameter or buffer of floating-point numbers; torch's default without any."""
        found = (one.dtype for one in chain(self.parameters(), self.buffers()) if one.is_floating_point())
        return next(found, torch.get_default_dtype())


def unwrap_lightning_module(wrapped_model: nn.Module) -> nn.Module:
    """Return the module inside of DistributedDataParallel and the like."""
    while isinstance(inner := getattr(wrapped_model, "module", None), nn.Module):
        wrapped_model = inner
    return wrapped_model


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
