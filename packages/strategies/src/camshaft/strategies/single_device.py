"""The strategy for one process on one device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from camshaft.strategies.checks import arguments_in
from camshaft.strategies.launch.placement import choose_device
from camshaft.strategies.precision import Precision
from camshaft.strategies.torch_strategy import TorchStrategy


class SingleDeviceStrategy(TorchStrategy):
    """Run everything on one device.

    Args:
        device: A `torch.device`, a device string such as "cuda:1", "gpu" (the accelerator of this machine), or "auto",
            the default: that, or else the CPU. It is made the current device when a run begins.
        precision: The number format; see `camshaft.strategies.precision.choose_precision`.
        save_asynchronously: Whether checkpoints are written in the background, while training continues.
        compile: As for `TorchStrategy`.
        copy_stream: Whether batches are copied on a stream of their own; see `TorchStrategy`.

    Raises:
        ValueError, RuntimeError: As `choose_device`, if this machine has no such device.
    """

    __hook_base__: ClassVar[bool] = True

    def __init__(
        self,
        device: torch.device | str = "auto",
        *,
        precision: str | int | Precision = "32-true",
        save_asynchronously: bool = False,
        compile: bool | Mapping[str, Any] = False,
        copy_stream: bool = False,
    ) -> None:
        self.given_arguments = arguments_in(locals())
        if isinstance(device, str) and device in ("auto", "gpu"):
            chosen = choose_device(device)
        else:
            chosen = torch.device(device)
            if hasattr(torch, chosen.type):
                choose_device(chosen.type, chosen.index or 0)  # raises unless it exists
        super().__init__(
            chosen,
            precision=precision,
            save_asynchronously=save_asynchronously,
            compile=compile,
            copy_stream=copy_stream,
        )
