"""Copies of batches to a device on a stream of their own, while the step before is still computed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from camshaft.hooks_core.support.messages import must_be
from camshaft.hooks_core.support.transfer import map_nested


class CopyStream:
    """A stream on which tensors of the host are copied to a device.

    The host runs ahead of the device, so the copy for a step is on its way while the device computes the one before.
    The step itself waits for it, on the device.

    Args:
        device: The device.
        where: The caller, for errors.

    Raises:
        ValueError: If the device has no streams.
    """

    def __init__(self, device: torch.device, where: str) -> None:
        self._device = device
        try:
            self._stream = torch.Stream(device)
            torch.accelerator.current_stream(device)
        except (RuntimeError, ValueError) as error:
            rule = f"False on {device.type}, which has no streams"
            raise ValueError(must_be("copy_stream", rule, True, where, "Leave it out.")) from error

    def copy(self, batch: Any) -> Any:
        """Return a batch with its plain tensors on the device; whatever else is in it stays as it is."""
        current = torch.accelerator.current_stream(self._device)

        def copied(item: Any) -> Any:
            # The memory of a copy is this stream's, and is used again too early unless its other stream is recorded,
            # which is not possible for what an object hides.
            is_plain = type(item) is Tensor and item.layout is torch.strided and not item.is_nested
            if not is_plain or item.device.type != "cpu":
                return item
            moved = item.to(self._device, non_blocking=True)
            moved.record_stream(current)
            return moved

        with self._stream:
            batch = map_nested(batch, lambda item: hasattr(item, "to"), copied)
        current.wait_stream(self._stream)
        return batch
