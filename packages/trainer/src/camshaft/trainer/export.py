"""Export of a module's `forward` to TorchScript and ONNX."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from camshaft.hooks_core.support.messages import must_be
from camshaft.hooks_core.support.remote_files import check_on_disk
from camshaft.hooks_core.support.transfer import move_to_device


def to_torchscript(
    module: Any, file_path: str | os.PathLike[str] | None, method: str, example: Any, options: Mapping[str, Any]
) -> Any:
    """See `TrainingModule.to_torchscript`.

    Returns:
        The exported module.

    Raises:
        ValueError: If there is no such method.
    """
    where = f"{type(module).__qualname__}.to_torchscript"
    if method not in ("script", "trace"):
        raise ValueError(must_be("method", "'script' or 'trace'", method, where, "Pass one of the two."))
    with _for_export(module):
        if method == "script":
            exported = torch.jit.script(module, **options)
        else:
            inputs = _example(module, example, "example_inputs", where)
            named = {"example_kwarg_inputs": inputs} if _is_by_name(module, example) else {"example_inputs": inputs}
            exported = torch.jit.trace(module, **named, **options)  # type: ignore[no-untyped-call]
    if file_path is not None:
        check_on_disk("file_path", os.fspath(file_path), where)
        torch.jit.save(exported, os.fspath(file_path))
    return exported


def to_onnx(module: Any, file_path: str | os.PathLike[str], example: Any, options: Mapping[str, Any]) -> None:
    """See `TrainingModule.to_onnx`."""
    check_on_disk("file_path", os.fspath(file_path), f"{type(module).__qualname__}.to_onnx")
    inputs = _example(module, example, "input_sample", f"{type(module).__qualname__}.to_onnx")
    if _is_by_name(module, example):
        inputs, options = (), {"kwargs": inputs, **options}
    with _for_export(module):
        torch.onnx.export(module, inputs if isinstance(inputs, tuple) else (inputs,), os.fspath(file_path), **options)


@contextmanager
def _for_export(module: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode, without gradients; set a placeholder where there is no trainer.

    TorchScript looks at every attribute, and one that raises anything but `AttributeError` would end it.
    """
    modes = {part: part.training for part in module.modules()}
    alone = [part for part in modes if getattr(part, "_trainer", module) is None]
    for part in alone:
        part.__dict__["_trainer"] = object()
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part in alone:
            del part.__dict__["_trainer"]
        for part, is_training in modes.items():
            part.training = is_training


def _example(module: Any, given: Any, field: str, where: str) -> Any:
    example = module.example_input_array if given is None else given
    if example is None:
        rule = "given, or the module's `example_input_array` set"
        raise ValueError(must_be(field, rule, None, where, "Pass what `forward` takes."))
    return move_to_device(example, module.device)


def _is_by_name(module: Any, given: Any) -> bool:
    """Return whether inputs are arguments by name: a dictionary in `example_input_array`, as summaries take it."""
    return given is None and isinstance(module.example_input_array, Mapping)


def names_not_exported(cls: type) -> list[str]:
    """Return the names that TorchScript must neither compile nor read: properties, and attributes of our classes."""
    found = {name: value for base in reversed(cls.__mro__) for name, value in vars(base).items()}
    ours = [base for base in cls.__mro__ if base.__module__.startswith("camshaft.")]
    annotated = [name for base in ours for name in vars(base).get("__annotations__", ())]
    return [*(name for name, value in found.items() if isinstance(value, property)), *annotated]
