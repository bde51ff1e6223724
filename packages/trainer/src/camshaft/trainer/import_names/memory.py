"""Memory, as functions of earlier releases."""

from __future__ import annotations

import gc

import torch
from torch import nn


def garbage_collection_cuda() -> None:
    """Free what Python and torch no longer need."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def is_oom_error(exception: BaseException) -> bool:
    """Whether an error says that memory was not enough."""
    return isinstance(exception, (torch.OutOfMemoryError, MemoryError)) or (
        isinstance(exception, RuntimeError)
        and any(text in str(exception) for text in ("out of memory", "can't allocate memory"))
    )


def get_model_size_mb(model: nn.Module) -> float:
    """Size of a model's parameters and buffers in megabytes of 1,000,000 bytes."""
    return sum(tensor.nbytes for tensor in model.state_dict().values() if isinstance(tensor, torch.Tensor)) / 1e6
