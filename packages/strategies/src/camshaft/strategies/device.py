"""Choosing the device by an accelerator's name."""

from __future__ import annotations

import torch

ACCELERATORS = ("auto", "cpu", "cuda", "gpu", "mps")


def choose_device(accelerator: str = "auto", device_idx: int = 0) -> torch.device:
    """The device that a name stands for.

    Args:
        accelerator: "cpu", "cuda", "mps", "gpu" (CUDA or MPS), or "auto" (the best that there is).
        device_idx: Index among the machine's devices of this kind; the CPU has one, numbered 0.

    Returns:
        The device.

    Raises:
        ValueError: If the name is unknown, or there is no device of this index.
        RuntimeError: If this machine has no such accelerator.
    """
    if accelerator not in ACCELERATORS:
        raise ValueError(
            f"`accelerator` must be one of {', '.join(ACCELERATORS)}, but got {accelerator!r} "
            f"({type(accelerator).__name__}) in choose_device. Pass one of these."
        )
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    candidates = {"auto": ("cuda", "mps", "cpu"), "gpu": ("cuda", "mps")}.get(accelerator, (accelerator,))
    kind = next((candidate for candidate in candidates if available[candidate]), None)
    if kind is None:
        raise RuntimeError(
            f"`accelerator` must be present on this machine, but got {accelerator!r} (str), which torch "
            f"{torch.__version__} does not find, in choose_device. Pass 'cpu', or install a torch build for it."
        )
    count = torch.cuda.device_count() if kind == "cuda" else 1
    if not 0 <= device_idx < count:
        raise ValueError(
            f"`device_idx` must be from 0 to {count - 1}, but got {device_idx} ({type(device_idx).__name__}) for "
            f"{kind!r} in choose_device. Pass one of these."
        )
    return torch.device("cpu") if kind == "cpu" else torch.device(kind, device_idx)
