"""Let Composer be imported without torchvision, each build of which fits one build of torch alone.

It imports names from there, of which nothing here uses any: each is an empty class.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torchmetrics  # noqa: F401  first, since it takes more names of torchvision where there is one

NAMES = ("", ".datasets", ".models", ".models.resnet", ".ops", ".transforms", ".transforms.functional", ".utils")


def empty_class(name: str) -> type:
    if name.startswith("__"):  # what Python asks of every module
        raise AttributeError(name)
    return type(name, (), {})


for _name in NAMES:
    module: Any = ModuleType(f"torchvision{_name}")
    module.__spec__ = ModuleSpec(module.__name__, None)
    module.__getattr__ = empty_class
    sys.modules.setdefault(module.__name__, module)
