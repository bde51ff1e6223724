"""What DistributedDataParallel is told when it wraps a module."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import attrs
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from camshaft.hooks_core.messages import must_be
from camshaft.strategies.ddp.communication_hook import register_communication_hook


@attrs.frozen(kw_only=True)
class DDPArguments:
    """The arguments of `DDPStrategy` that are DistributedDataParallel's, under the same names."""

    find_unused_parameters: bool | None = None
    static_graph: bool = False
    gradient_as_bucket_view: bool = False
    bucket_cap_mb: float = 25
    broadcast_buffers: bool = True
    comm_hook: Callable[..., Any] | None = None
    comm_state: Any = None

    def for_module(self, module: nn.Module, finds_unused_in: Callable[[nn.Module], bool] | None) -> DDPArguments:
        """Return the same with what is right for a module, where nobody said whether to look for unused parameters."""
        if self.find_unused_parameters is not None or self.static_graph or finds_unused_in is None:
            return self
        return attrs.evolve(self, find_unused_parameters=finds_unused_in(module))

    def wrap(self, module: nn.Module, *, broadcasts_weights: bool) -> DistributedDataParallel:
        """Wrap a module. Collective.

        Args:
            module: What is to be wrapped.
            broadcasts_weights: Whether all processes get the first one's weights and buffers, or have them already.
        """
        arguments: dict[str, Any] = {}
        if not self.broadcast_buffers:
            known = inspect.signature(DistributedDataParallel.__init__).parameters
            # its name since torch 2.13, which warns of the other one
            arguments["forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"] = False
        ddp = DistributedDataParallel(
            module,
            find_unused_parameters=bool(self.find_unused_parameters),
            static_graph=self.static_graph,
            gradient_as_bucket_view=self.gradient_as_bucket_view,
            bucket_cap_mb=self.bucket_cap_mb,
            init_sync=broadcasts_weights,
            **arguments,
        )
        if self.comm_hook is not None:
            register_communication_hook(ddp, self.comm_hook, self.comm_state)
        return ddp

    def check_agrees(self, ddp: DistributedDataParallel) -> None:
        """Raise `ValueError` if one that somebody else made was told otherwise than what is not at its default here."""
        found = {
            "find_unused_parameters": ddp.find_unused_parameters,
            "static_graph": ddp.static_graph,
            "gradient_as_bucket_view": ddp.gradient_as_bucket_view,
            "bucket_cap_mb": ddp.bucket_bytes_cap / 2**20,
            "broadcast_buffers": syncs_buffers(ddp),
        }
        defaults = DDPArguments()
        for name, value in found.items():
            asked = getattr(self, name)
            if asked not in (getattr(defaults, name), value):
                rule = f"{value!r}, as `wrap_module` of the strategy sets it, or left out"
                raise ValueError(must_be(name, rule, asked, "DDPStrategy", "Say it in one of both places."))


def syncs_buffers(ddp: DistributedDataParallel) -> bool:
    """Whether each training step begins with the buffers of the first process."""
    name = "forward_sync_buffers" if hasattr(ddp, "forward_sync_buffers") else "broadcast_buffers"
    return bool(getattr(ddp, name))
