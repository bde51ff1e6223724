"""Noticing that a backward leaves parameters without gradients, before anybody trains with what it computed."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from camshaft.hooks_core.messages import must_be

_NUM_NAMED = 5


class UnusedParameterCheck:
    """Learns which parameters one backward reaches.

    DistributedDataParallel notices parameters that got no gradient when the next forward begins: the weights have then
    been updated once, with gradients that were not averaged.

    Args:
        module: The module, whose trainable parameters a backward has to reach.
    """

    def __init__(self, module: nn.Module) -> None:
        self._names = {id(value): name for name, value in module.named_parameters() if value.requires_grad}
        self._reached: set[int] = set()
        self._handles: list[Any] = [
            value.register_post_accumulate_grad_hook(self._note)  # type: ignore[no-untyped-call]
            for value in module.parameters()
            if value.requires_grad
        ]

    @property
    def has_seen_any(self) -> bool:
        """Whether a gradient was computed since `begin`."""
        return bool(self._reached)

    def begin(self) -> None:
        """Forget the backwards before."""
        self._reached.clear()

    def end(self) -> None:
        """Stop learning.

        Raises:
            RuntimeError: If some parameters were not reached.
        """
        self.close()
        unused = [name for key, name in self._names.items() if key not in self._reached]
        if unused:
            more = f" and {len(unused) - _NUM_NAMED} more" if len(unused) > _NUM_NAMED else ""
            named = ", ".join(unused[:_NUM_NAMED]) + more
            rule = f"True where a loss does not depend on all trainable parameters (this one does not on {named})"
            action = "Pass find_unused_parameters=True, or freeze what is not trained before the epoch begins."
            raise RuntimeError(must_be("find_unused_parameters", rule, False, "DDPStrategy", action))

    def close(self) -> None:
        """Leave the parameters as they were."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _note(self, parameter: Tensor) -> None:
        self._reached.add(id(parameter))
