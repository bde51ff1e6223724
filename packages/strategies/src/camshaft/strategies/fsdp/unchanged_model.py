"""Seeing whether hooks change a model that they have configured already."""

from __future__ import annotations

from torch import nn
from torch.distributed.fsdp import FSDPModule

from camshaft.hooks_core.messages import must_be


def class_name(module: nn.Module) -> str:
    """The name of a module's class, as its author knows it: `fully_shard` puts another one before it."""
    return next(kind for kind in type(module).__mro__ if not issubclass(kind, FSDPModule)).__qualname__


class ModelParts:
    """The parts of a model at a moment: its modules, parameters and buffers by name.

    Args:
        module: The model.
    """

    def __init__(self, module: nn.Module) -> None:
        self._parts = _parts(module)

    def check_unchanged(self, module: nn.Module) -> None:
        """Raise `RuntimeError` if the model has other parts by now, naming the first."""
        parts = _parts(module)
        for name in [*self._parts, *parts]:
            before, now = self._parts.get(name), parts.get(name)
            if before is now:
                continue
            change = "is new" if before is None else "is gone" if now is None else "was replaced"
            rule = "left as they are where they were configured before: these hooks run in every stage"
            where = f"configure_sharded_model or configure_model of {class_name(module)}"
            action = "Do nothing there if it is done already, as in `if self.layer is None: self.layer = ...`."
            raise RuntimeError(must_be("parts of the model", rule, f"{name} {change}", where, action))


def _parts(module: nn.Module) -> dict[str, object]:
    parts: dict[str, object] = {}
    for prefix, part in module.named_modules(remove_duplicate=False):
        parts[f"module {prefix!r}"] = part
        dot = f"{prefix}." if prefix else ""
        parts |= {f"parameter {dot + name!r}": value for name, value in part._parameters.items() if value is not None}
        parts |= {f"buffer {dot + name!r}": value for name, value in part._buffers.items() if value is not None}
    return parts
