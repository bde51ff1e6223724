"""Errors that say that memory ran out."""

from __future__ import annotations

import gc

import torch

_TEXTS = (
    "out of memory",  # CUDA, MPS, XPU
    "DefaultCPUAllocator",  # torch on the CPU: "can't allocate memory", or "not enough memory" on Windows
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_NOT_SUPPORTED",  # also said for tensors that are not contiguous; github.com/pytorch/pytorch#4107
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error, or what caused it, says that memory ran out."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    if isinstance(error, RuntimeError) and any(text in str(error) for text in _TEXTS):
        return True
    return error.__cause__ is not None and is_out_of_memory(error.__cause__)


def free_memory() -> None:
    """Collect garbage, and give memory back that torch keeps for later."""
    gc.collect()
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()
