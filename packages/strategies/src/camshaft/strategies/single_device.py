"""The strategy for one process on one device."""

from __future__ import annotations

from typing import ClassVar, Unpack

import torch

from camshaft.strategies.checks import arguments_in
from camshaft.strategies.launch.placement import choose_device
from camshaft.strategies.torch_strategy import TorchArguments, TorchStrategy


class SingleDeviceStrategy(TorchStrategy):
    """Run everything on one device.

    Args:
        device: A `torch.device`, a device string such as "cuda:1", "gpu" (the accelerator of this machine), or "auto",
            the default: that, or else the CPU. It is made the current device when a run begins.
        logical_ranks: The number of ranks of the data-parallel training that this process computes all alone, a power
            of two; see `DDPStrategy`, whose bits it then has.
        **common: As for `TorchStrategy`: `precision`, `save_asynchronously`, `compile` and `copy_stream`.

    Raises:
        ValueError: If `logical_ranks` is not a power of two.
        ValueError, RuntimeError: As `choose_device`, if this machine has no such device.
    """

    __hook_base__: ClassVar[bool] = True

    def __init__(
        self,
        device: torch.device | str = "auto",
        *,
        logical_ranks: int | None = None,
        **common: Unpack[TorchArguments],
    ) -> None:
        self.given_arguments = arguments_in(locals())
        if isinstance(device, str) and device in ("auto", "gpu"):
            chosen = choose_device(device)
        else:
            chosen = torch.device(device)
            if hasattr(torch, chosen.type):
                choose_device(chosen.type, chosen.index or 0)  # raises unless it exists
        super().__init__(chosen, **common)
        if logical_ranks is not None:
            self._play(logical_ranks)
