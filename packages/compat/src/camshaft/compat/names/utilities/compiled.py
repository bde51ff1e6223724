"""Compiled modules that are modules of their class, and the way back."""

from __future__ import annotations

from typing import Any

from torch import nn

from camshaft.hooks_core.messages import must_be

_STEPS = ("forward", "training_step", "validation_step", "test_step", "predict_step")


def from_compiled(model: Any) -> nn.Module:
    """Return the module of a compiled one, changed in place so that its forward and steps run compiled.

    Args:
        model: What `torch.compile(module)` returned, for a module with steps.

    Raises:
        ValueError: If it is something else.
    """
    module = getattr(model, "_orig_mod", None)
    if module is None or not hasattr(module, "training_step"):
        action = "Pass what `torch.compile(module)` returned."
        raise ValueError(must_be("model", "a compiled LightningModule", model, "from_compiled", action))
    if _own_steps(module) is None:
        steps = {name: getattr(module, name) for name in _STEPS if hasattr(module, name)}
        module._compiler_ctx = {
            "compiler": "dynamo",
            "dynamo_ctx": model.dynamo_ctx,
            **{f"original_{name}": step for name, step in steps.items()},
        }
        for name, step in steps.items():
            setattr(module, name, model.dynamo_ctx(step))
    return module  # type: ignore[no-any-return]


def to_uncompiled(model: Any) -> nn.Module:
    """Return the module of a compiled one, changed in place so that nothing of it runs compiled.

    Args:
        model: What `torch.compile(module)` or `from_compiled` returned.

    Raises:
        ValueError: If it is something else.
    """
    module = getattr(model, "_orig_mod", model)
    steps = _own_steps(module)
    if steps is None and module is model:
        action = "Pass what `torch.compile(module)` or `from_compiled` returned."
        raise ValueError(must_be("model", "a compiled LightningModule", model, "to_uncompiled", action))
    for name in _STEPS:
        if steps is not None and f"original_{name}" in steps:
            vars(module).pop(name, None)
    module._compiler_ctx = None
    module._compiled_call_impl = None  # where a trainer got the compiled one
    return module  # type: ignore[no-any-return]


def _own_steps(module: Any) -> dict[str, Any] | None:
    """Return what `from_compiled` left in a module; None if it has not been there."""
    found: dict[str, Any] | None = getattr(module, "_compiler_ctx", None)
    return found
