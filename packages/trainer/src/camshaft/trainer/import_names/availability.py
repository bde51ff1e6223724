"""What is installed, as flags of earlier releases, and which release this answers as."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import torch

VERSION = "1.9.5"
"""The last release of the line in which all of these names and arguments were taken, so that code that looks at the
version takes the ways that work here."""

LIGHTNING_VERSION = "2.6.0"
"""Likewise for `lightning`, which came with 2.0."""


def _package_available(package_name: str) -> bool:
    """Whether a package can be imported."""
    return _module_available(package_name.partition(".")[0])


def _module_available(module_path: str) -> bool:
    """Whether a module can be imported."""
    try:
        return find_spec(module_path) is not None
    except ImportError:
        return False


APEX_AVAILABLE = _APEX_AVAILABLE = False
TPU_AVAILABLE = _TPU_AVAILABLE = _XLA_AVAILABLE = False
_DEEPSPEED_AVAILABLE = _FAIRSCALE_AVAILABLE = _HOROVOD_AVAILABLE = False
NATIVE_AMP_AVAILABLE = NATIVE_AMP_AVALAIBLE = _NATIVE_AMP_AVAILABLE = True
_HYDRA_AVAILABLE = _module_available("hydra")
_JSONARGPARSE_AVAILABLE = _module_available("jsonargparse")
_MLFLOW_AVAILABLE = _module_available("mlflow")
_OMEGACONF_AVAILABLE = _module_available("omegaconf")
_RICH_AVAILABLE = _module_available("rich")
_TORCHTEXT_AVAILABLE = _module_available("torchtext")
_TORCHVISION_AVAILABLE = _module_available("torchvision")
_WANDB_AVAILABLE = _module_available("wandb")
_IS_INTERACTIVE = hasattr(sys, "ps1")
_TORCH_GREATER_EQUAL_1_6 = _TORCH_GREATER_EQUAL_1_7 = _TORCH_GREATER_EQUAL_1_8 = True
_TORCH_GREATER_EQUAL_1_9 = _TORCH_GREATER_EQUAL_1_10 = True
FLOAT16_EPSILON = torch.finfo(torch.float16).eps
FLOAT32_EPSILON = torch.finfo(torch.float32).eps
FLOAT64_EPSILON = torch.finfo(torch.float64).eps
