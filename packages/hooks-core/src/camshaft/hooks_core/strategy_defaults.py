"""Defaults of the strategy protocol for one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from camshaft.hooks_core.protocols import PendingSave, ReduceOp
from camshaft.hooks_core.support import durable_files, remote_files
from camshaft.hooks_core.support.messages import must_be
from camshaft.hooks_core.support.transfer import move_to_device

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.optim import Optimizer


T = TypeVar("T")


class StrategyDefaults:
    """Defaults of a strategy with one process, whole tensors and no gradient scaler; mix it in.

    `camshaft.hooks_core.protocols.Strategy` documents each method. A strategy sets `device`; one of several processes
    sets `global_rank`, `local_rank` and `world_size` as well, and defines `all_gather`, through which the other
    collectives go, and how gradients are synchronised.
    """

    device: torch.device
    global_rank = 0
    local_rank = 0
    world_size = 1
    has_skipped_step = False

    @property
    def is_global_zero(self) -> bool:
        """True on rank 0."""
        return self.global_rank == 0

    @property
    def data_rank(self) -> int:
        """Index of this process among the data-parallel ones; every process has data of its own."""
        return self.global_rank

    @property
    def num_data_ranks(self) -> int:
        """Number of data-parallel processes, all of them."""
        return self.world_size

    def connect(self) -> None:
        """Do nothing: the processes are connected."""

    def all_gather(self, value: T) -> list[T]:
        """Return a list with the value.

        Raises:
            NotImplementedError: With several processes, where a strategy must define it.
        """
        if self.world_size != 1:
            rule = "defined by a strategy of several processes"
            action = "Define it; broadcast, reduce and barrier go through it."
            raise NotImplementedError(must_be("all_gather", rule, self.world_size, type(self).__qualname__, action))
        return [value]

    def broadcast(self, value: T, src: int = 0) -> T:
        """Return the value of the process `src`."""
        return self.all_gather(value)[src]

    def reduce(self, tensor: Any, op: ReduceOp = "mean") -> Any:
        """Return the reduced tensor on this process's device; means of integers are in double precision.

        Args:
            tensor: The tensor, or a number, of which a number is returned.
            op: "mean", "sum", "max" or "min".

        Raises:
            ValueError: If there is no such reduction.
        """
        from torch import Tensor, amax, amin, as_tensor, mean, stack, sum

        if not isinstance(tensor, Tensor):
            return self.reduce(as_tensor(tensor), op).item()
        functions: dict[str, Any] = {"mean": mean, "sum": sum, "max": amax, "min": amin}
        if op not in functions:
            raise ValueError(must_be("op", f"one of {', '.join(functions)}", op, "reduce", "Pass one of these."))
        values = stack([value.to(tensor.device) for value in self.all_gather(tensor.detach().cpu())])
        if op == "mean" and not values.is_floating_point():
            values = values.double()
        reduced: Tensor = functions[op](values, dim=0)
        return reduced

    def barrier(self, name: str | None = None) -> None:
        """Return when every process has called it, whatever the name."""
        self.all_gather(None)

    def model_context(self, module: nn.Module) -> AbstractContextManager[None]:
        """Return a context that does nothing."""
        return nullcontext()

    def setup_module(self, module: nn.Module) -> nn.Module:
        """Move a module to the device.

        Returns:
            The module.
        """
        return module.to(self.device)

    def setup_optimizers(self, optimizers: Sequence[Optimizer]) -> list[Optimizer]:
        """Return the optimizers as they are."""
        return list(optimizers)

    def batch_to_device(self, batch: Any) -> Any:
        """Move the tensors of a batch to the device.

        Returns:
            The batch on the device, in the same structure.
        """
        return move_to_device(batch, self.device)

    def wrap_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return the step as it is."""
        return step

    def backward(self, loss: Tensor, differentiate: Callable[[Tensor], Any] | None = None) -> None:
        """Differentiate the loss."""
        if differentiate is None:
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            differentiate(loss)

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        """Step the optimizer."""
        return optimizer.step() if closure is None else optimizer.step(closure)

    def clip_gradients(self, optimizer: Optimizer, clip_val: float, algorithm: str) -> None:
        """Clip the gradients on this process by their norm ("norm") or value ("value").

        Args:
            optimizer: The optimizer, whose parameters' gradients are clipped.
            clip_val: The largest norm of them all, or the largest absolute value of each.
            algorithm: "norm" or "value".
        """
        from torch.nn.utils import clip_grad_norm_, clip_grad_value_

        clip: Callable[..., Any] = clip_grad_norm_ if algorithm == "norm" else clip_grad_value_
        clip([parameter for group in optimizer.param_groups for parameter in group["params"]], clip_val)

    def idle_step(self) -> None:
        """Do nothing: evaluation needs no communication."""

    def set_gradient_sync(self, is_on: bool) -> None:
        """Do nothing: gradients are synchronised at every step or never."""

    def unscale_gradients(self, optimizer: Optimizer) -> None:
        """Do nothing: gradients are not scaled."""

    def load_module_state(self, module: nn.Module, state: Mapping[str, Any], strict: bool = True) -> None:
        """Load whole tensors into a module.

        Args:
            module: The module.
            state: Its weights by name.
            strict: Whether names that only one of the two has are errors.
        """
        module.load_state_dict(state, strict=strict)

    def load_optimizer_state(self, optimizer: Optimizer, state: Mapping[str, Any]) -> None:
        """Load whole tensors into an optimizer.

        Args:
            optimizer: The optimizer.
            state: What its `state_dict` returned.
        """
        optimizer.load_state_dict(dict(state))

    def place_like(self, value: Tensor, parameter: Tensor) -> Tensor:
        """Return a copy on the parameter's device.

        Args:
            value: The tensor.
            parameter: The parameter.
        """
        return value.to(parameter.device, copy=True)

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing: there is no state."""

    def save_checkpoint(self, checkpoint: Mapping[str, Any], path: str) -> PendingSave | None:
        """Write a checkpoint with `torch.save` on the first process, durably and atomically, to a path or URL.

        Returns:
            None, since it is durable.

        Raises:
            OSError: If the disk refuses; the file is as it was then.
            RuntimeError: On the other processes, if the first one failed.
        """
        failure: Exception | None = None
        if self.global_rank == 0:
            try:
                _write(dict(checkpoint), remote_files.local_path(path))
            except Exception as error:
                failure = error
        told = self.broadcast(None if failure is None else repr(failure))
        if failure is not None:
            raise failure
        if told is not None:
            raise RuntimeError(f"The first process could not write {path!r}: {told}. See that process's traceback.")
        return None

    def load_checkpoint(self, path: str, weights_only: bool | None = None) -> dict[str, Any]:
        """Read a checkpoint with `torch.load`, onto the CPU; `weights_only=False` unpickles any object in it.

        Args:
            path: The path or URL.
            weights_only: False unpickles any object in it; None is torch's default.
        """
        from torch import load

        with remote_files.local_copy(remote_files.local_path(path)) as file:
            checkpoint: dict[str, Any] = load(file, map_location="cpu", weights_only=weights_only is not False)
        return checkpoint

    def teardown(self) -> None:
        """Do nothing: nothing is held between runs."""

    def note_failure(self, error: BaseException) -> None:
        """Do nothing: no other process waits."""


def _write(checkpoint: dict[str, Any], path: str) -> None:
    from torch import save

    remote_files.make_folder(remote_files.parent_of(path) or ".")
    is_url = remote_files.is_url(path)
    with remote_files.new_file(path) if is_url else durable_files.new_file(Path(path)) as partial:
        save(checkpoint, partial)
