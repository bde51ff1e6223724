"""Losses that are means over numbers of items, and the average of gradients over an accumulation window."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from camshaft.hooks_core.support.devices import widest_float
from camshaft.hooks_core.support.messages import must_be

if TYPE_CHECKING:
    from camshaft.loops.optimization.window import AccumulationWindow
    from camshaft.loops.state.run import Run

_KIND = "of one kind in all batches and on all ranks, WeightedLoss or plain"


class WeightedLoss(dict[str, Any]):
    """A loss that is the mean over a number of items, such as tokens: `training_step` returns it, and `log` takes it.

    Under automatic optimization an update then follows the mean over the items of its accumulation window, of all
    batches and of all ranks, as if they were one large batch. `log` weighs an epoch's mean likewise.

    A batch without items has weight 0, and a finite loss: `cross_entropy(..., reduction="sum") / max(weight, 1)`. In an
    update without any items all gradients are zero; the optimizer steps with them.

    Args:
        loss: The mean over the items, a tensor with one element.
        weight: The number of items of this batch in this process: 0 or more, a number or a tensor with one element. One
            on an accelerator is not read.
        outputs: Further values for `on_train_batch_end`, by name, or "hiddens" where batches are split along time.

    Raises:
        TypeError: If the loss is no tensor, or the weight neither a real number nor a tensor with one.
        ValueError: If the weight has several elements, or is a number that is negative or not finite.

    Example:
        >>> WeightedLoss(torch.tensor(2.5), 640)["weight"]
        640
    """

    def __init__(self, loss: Tensor, weight: float | Tensor, **outputs: Any) -> None:
        super().__init__(outputs, loss=loss, weight=weight)
        where, action = "WeightedLoss", "Pass the mean over the items, and their number."
        if not isinstance(loss, Tensor):
            raise TypeError(must_be("loss", "a tensor", loss, where, action))
        rule = "a finite number or a tensor with one element, 0 or more"
        if isinstance(weight, Tensor):
            if weight.numel() != 1:
                raise ValueError(must_be("weight", rule, tuple(weight.shape), where, action))
            is_number, fits = not weight.is_complex(), True
        else:
            is_number = isinstance(weight, Real) and not isinstance(weight, bool)
            fits = is_number and 0 <= weight < math.inf
        if not is_number:
            raise TypeError(must_be("weight", rule, weight, where, action))
        if not fits:
            raise ValueError(must_be("weight", rule, weight, where, action))

    @property
    def loss(self) -> Tensor:
        """The mean over the items."""
        return self["loss"]  # type: ignore[no-any-return]

    @property
    def weight(self) -> float | Tensor:
        """The number of items."""
        return self["weight"]  # type: ignore[no-any-return]


def _unflattened(values: Iterable[Any], names: Any) -> WeightedLoss:
    made = WeightedLoss.__new__(WeightedLoss)
    made.update(zip(names, values, strict=True))
    return made


# fully_shard finds by it the tensors that a step returns, where its backward begins
pytree.register_pytree_node(WeightedLoss, lambda one: (list(one.values()), list(one)), _unflattened)


class WindowAverage:
    """Makes the gradients of an optimizer's accumulation window their mean over steps, or over items of all ranks.

    Each loss is divided by the window's length when it is differentiated. A weighted one is multiplied by its weight
    relative to that of a usual batch, too. What the sum of the gradients then lacks is one factor at the window's end.

    Args:
        run: The run.
        window: The accumulation window of all optimizers.

    Attributes:
        is_weighted: Whether losses are weighted; None until the first one.
        ratio: Factor of the gradients of an open window that other processes began.
    """

    def __init__(self, run: Run, window: AccumulationWindow) -> None:
        self.is_weighted: bool | None = None
        self.ratio = 1.0
        self._strategy, self._logical, self._window = run.strategy, run.logical, window
        self._where = f"{type(run.module).__qualname__}.training_step"
        # the weights of the open window, for each rank whose part this process has
        self._totals: list[Tensor | None] = [None] * (1 if run.logical is None else len(run.logical.own))
        # The weight of a usual batch, the same on all ranks. Powers of two change the exponents of gradients alone: a
        # run that goes on has the same bits with any.
        self._usual: Tensor | float | None = None

    def differentiable(self, outputs: Any, loss: Tensor) -> Tensor:
        """Return what is differentiated of a step, and add its weight to the window's. Collective for a fit's first.

        Args:
            outputs: What `training_step` returned.
            loss: The loss in it.

        Raises:
            TypeError: If some losses of the fit are weighted and others are not.
        """
        is_weighted = isinstance(outputs, WeightedLoss)
        if is_weighted is not self.is_weighted:
            self._agree(outputs, is_weighted=is_weighted)
        divisor = self._window.divisor
        if not is_weighted:
            return loss if divisor == 1 else loss / divisor
        weight = _on_device(outputs["weight"], loss.device)
        place = 0 if self._logical is None else self._logical.place
        before = self._totals[place]
        self._totals[place] = weight if before is None else before + weight
        assert self._usual is not None
        relative = weight / (self._usual * divisor)
        return loss * relative.to(torch.promote_types(loss.dtype, torch.float32))

    def _agree(self, outputs: Any, *, is_weighted: bool) -> None:
        """Check that all losses of the fit are of one kind, and take the weight of a usual batch from its first."""
        own = float(outputs["weight"]) if is_weighted else None
        of_ranks = [own]
        if self.is_weighted is None and self._strategy.world_size > 1:
            of_ranks = self._strategy.all_gather(own)
        kinds = ["plain" if weight is None else "WeightedLoss" for weight in of_ranks]
        if self.is_weighted is not None:
            kinds = [kinds[0], "WeightedLoss" if self.is_weighted else "plain"]
        if len(set(kinds)) > 1:
            got = f"{kinds[0]} after {kinds[1]}" if self.is_weighted is not None else f"{kinds} on the ranks"
            action = "Return a WeightedLoss always, or never."
            raise TypeError(f"`loss` must be {_KIND}, but got {got} in {self._where}. {action}")
        self.is_weighted = is_weighted
        if is_weighted and self._usual is None:
            weights = [one for one in of_ranks if one is not None]
            if self._logical is not None:
                del weights[1:]  # others' depend on the number of processes
            mean = sum(weights) / len(weights)
            self._usual = 2.0 ** round(math.log2(mean)) if 0 < mean < math.inf else 1.0

    def end_window(self) -> Tensor | float | None:
        """End the window. Collective if losses are weighted. Does not wait for the device.

        Returns:
            The factor that makes its gradients the mean, once they are that over ranks; None for 1.
        """
        window = self._window
        if not self.is_weighted:
            if window.length == 1 or window.real_length == window.divisor:
                return None
            # another length than was known before the epoch's end, or when other processes began it
            return window.divisor / window.real_length
        assert self._usual is not None
        mean = self._mean_over_ranks()
        factors = torch.where(mean == 0, 0.0, self._usual * window.divisor / mean)
        of_step = mean / (1 if window.length == 1 else window.real_length)
        is_usable = (mean > 0) & torch.isfinite(mean)
        self._usual = torch.where(is_usable, torch.exp2(torch.log2(of_step).round()), self._usual)
        self.drop()
        return factors

    def _mean_over_ranks(self) -> Tensor:
        """Return the window's total weight of a rank, the mean over all. Collective with several processes."""
        # Called once gradients are reduced: a rank without a loss in its last step has the same order of collectives.
        device = self._strategy.device
        nothing = torch.zeros((), dtype=widest_float(device), device=device)
        own = [nothing if total is None else total for total in self._totals]
        if self._logical is not None:
            return self._logical.of_all(own, self._strategy).mean()
        return own[0] if self._strategy.world_size == 1 else self._strategy.reduce(own[0], "mean")

    def drop(self) -> None:
        """Forget the weights of a window that no update will end."""
        self._totals = [None] * len(self._totals)

    def state_dict(self) -> dict[str, Any]:
        """Return the weights of the open window, as plain values; empty without."""
        if not self.is_weighted or self._usual is None:
            return {}
        totals = [None if total is None else float(total) for total in self._totals]
        return {"usual": float(self._usual), "totals": totals, "num_ranks": self._num_ranks}

    @property
    def _num_ranks(self) -> int:
        return self._strategy.num_data_ranks if self._logical is None else self._logical.count

    def load_state_dict(self, state: Mapping[str, Any], *, is_inside: bool = True) -> None:
        """Go on inside the window that was open, or, unless `is_inside`, with a new one."""
        self.drop()
        if not state:
            return
        self._usual = float(state["usual"])
        if is_inside:
            self.is_weighted = True
            # the gradients so far are a mean over another number of ranks than those to come
            self.ratio = state["num_ranks"] / self._num_ranks
            totals = state["totals"] if self._logical is None else [state["totals"][rank] for rank in self._logical.own]
            device = self._strategy.device
            self._totals = [None if total is None else _on_device(total * self.ratio, device) for total in totals]


def scale(gradients: Iterable[Tensor], factor: Tensor | float) -> None:
    """Multiply gradients by a factor, in place."""
    with torch.no_grad():
        for gradient in gradients:
            if isinstance(factor, Tensor):
                factor = factor.to(gradient.device)  # of offloaded gradients another one
                if gradient.dtype.itemsize < 4:  # a tensor would be rounded to it
                    gradient.copy_(gradient.float() * factor)
                    continue
            gradient.mul_(factor)


def _on_device(weight: float | Tensor, device: torch.device) -> Tensor:
    """Return a weight as a tensor on a device, without waiting for one."""
    dtype = widest_float(device)
    if isinstance(weight, Tensor) and (weight.device.type != "cpu" or weight.device == device):
        return weight.detach().reshape(()).to(device, dtype, copy=True)
    return torch.full((), float(weight), dtype=dtype, device=device)
