"""What DistributedDataParallel is told when it wraps a module."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import attrs
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from camshaft.strategies.ddp.communication_hook import register_communication_hook


@attrs.frozen(kw_only=True)
class DDPArguments:
    """The arguments of `DDPStrategy` that are DistributedDataParallel's, under the same names."""

    find_unused_parameters: bool
    static_graph: bool
    gradient_as_bucket_view: bool
    bucket_cap_mb: float
    broadcast_buffers: bool
    comm_hook: Callable[..., Any] | None
    comm_state: Any

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
            find_unused_parameters=self.find_unused_parameters,
            static_graph=self.static_graph,
            gradient_as_bucket_view=self.gradient_as_bucket_view,
            bucket_cap_mb=self.bucket_cap_mb,
            init_sync=broadcasts_weights,
            **arguments,
        )
        if self.comm_hook is not None:
            register_communication_hook(ddp, self.comm_hook, self.comm_state)
        return ddp
