"""What `training_step` returns: the loss, and what is left of it once the graph is let go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.transfer import map_nested


def loss_of(outputs: Any, module: nn.Module) -> Tensor | None:
    """The loss in what `training_step` returned, or None if it returned None.

    Raises:
        TypeError: If it is no tensor, no dictionary with a tensor as 'loss', and not None.
    """
    if outputs is None or isinstance(outputs, Tensor):
        return outputs
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else None
    if isinstance(loss, Tensor):
        return loss
    got = f"a dictionary with {sorted(map(str, outputs))}" if isinstance(outputs, Mapping) else repr(outputs)
    raise TypeError(
        f"`training_step` must return a tensor, a dictionary with a tensor as 'loss', or None, but got {got} "
        f"({type(outputs).__name__}) in {type(module).__qualname__}. Return the loss."
    )


class LossError(ValueError, RuntimeError):
    """A loss cannot be differentiated; torch says so by a `RuntimeError`, its cause.

    Attributes:
        shape: The loss's shape.
    """

    def __init__(self, message: str, shape: tuple[int, ...]) -> None:
        super().__init__(message)
        self.shape = shape


def check_loss(loss: Tensor, does: str, where: str) -> None:
    """Raise what was wrong with a loss that torch could not differentiate, if that is its shape or its graph.

    Args:
        loss: The loss.
        does: Who gave it, as the beginning of the message: "`training_step` must return".
        where: The class.

    Raises:
        LossError: If it has several elements, or does not depend on anything that requires gradients.
    """
    shape = tuple(loss.shape)
    if not loss.requires_grad:
        raise LossError(
            f"{does} a loss that depends on parameters which require gradients, but got one without a graph, of shape "
            f"{shape}, in {where}. Compute it from the model's outputs, without `detach()`, `item()` or "
            "`torch.no_grad()`, and leave parameters trainable.",
            shape,
        )
    if loss.numel() != 1:
        raise LossError(
            f"{does} a loss with one element, but got one of shape {shape} in {where}. Reduce it, such as by "
            "`loss.mean()`.",
            shape,
        )


def without_graph(outputs: Any) -> Any:
    """What `on_train_batch_end` gets of what `training_step` returned.

    Args:
        outputs: What the step returned: a loss, a dictionary with it or anything else.

    Returns:
        For a loss a dictionary with it, for a dictionary with a loss a copy of it; the loss no longer holds the graph.
        Other tensors in the dictionary are as they were: a module that keeps none of their graphs detaches them. All
        else as it is, such as None, or the list with an item per optimizer of `PerOptimizerOptimization.run_batch`,
        whose items were made by this already.
    """
    if isinstance(outputs, Tensor):
        return {"loss": outputs.detach()}
    if isinstance(outputs, Mapping) and isinstance(outputs.get("loss"), Tensor):
        return {**outputs, "loss": outputs["loss"].detach()}
    return outputs


def next_hiddens(outputs: Any, hiddens: Any, module: nn.Module) -> Any:
    """The hidden state that the next split begins with, without the graph.

    Args:
        outputs: What `training_step` returned for a split.
        hiddens: The hidden state that it was given; a step that returned None leaves it as it was.
        module: The module, for errors.

    Raises:
        TypeError: If there is no hidden state in the outputs.
    """
    if outputs is None:
        return hiddens
    if not isinstance(outputs, Mapping) or "hiddens" not in outputs:
        rule = "a dictionary with 'hiddens', the state that the next split begins with, or None"
        where = f"{type(module).__qualname__}.training_step"
        got = sorted(map(str, outputs)) if isinstance(outputs, Mapping) else outputs
        action = 'Return {"loss": loss, "hiddens": hiddens}.'
        raise TypeError(must_be("return value", f"{rule}, if batches are split along time", got, where, action))
    hiddens = outputs["hiddens"]
    return hiddens.detach() if isinstance(hiddens, Tensor) else detached(hiddens)


def with_hiddens(outputs: Any, hiddens: Any) -> Any:
    """What `training_step` returned for a split, with the detached hidden state in place of its own; None as it is."""
    return None if outputs is None else {**outputs, "hiddens": hiddens}


def detached(value: Any) -> Any:
    """The same value without its graph: whatever can be detached in collections of any nesting."""
    return map_nested(value, _can_be_detached, _detach)


def _can_be_detached(value: Any) -> bool:
    return isinstance(value, Tensor) or hasattr(value, "detach")


def _detach(value: Any) -> Any:
    return value.detach()
