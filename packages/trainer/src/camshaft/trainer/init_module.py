"""A context for building a module where it is going to be, in the number format that it is going to have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from camshaft.hooks_core import StrategyDefaults
from camshaft.hooks_core.support.messages import warn_user


@contextmanager
def tensors_created_for(strategy: Any, *, empty_init: bool) -> Iterator[None]:
    """Create tensors on a strategy's device and in its precision, for the length of a `with` statement.

    A strategy that builds parts of the module itself, such as a sharded one, would hold the whole of it first: there it
    warns, and with `empty_init` tensors are created on the meta device.

    Args:
        empty_init: If true, functions of `torch.nn.init` do nothing.
    """
    device, outer = torch.device(strategy.device), torch.get_default_dtype()
    dtype = getattr(getattr(strategy, "precision", None), "param_dtype", None)
    context = getattr(type(strategy), "model_context", StrategyDefaults.model_context)
    if context is not StrategyDefaults.model_context:
        kind = type(strategy).__name__
        warn_user(f"`init_module` builds all of the module, which {kind} shards. Build it in `configure_model`.")
        device = torch.device("meta") if empty_init else torch.device("cpu")
    torch.set_default_dtype(outer if dtype is None else dtype)
    try:
        with _WithoutInit() if empty_init else nullcontext(), device:
            yield
    finally:
        torch.set_default_dtype(outer)


class _WithoutInit(TorchFunctionMode):
    """A mode in which functions of `torch.nn.init` return their tensor as it is."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)
