"""What modules of earlier releases had beside hooks."""

from __future__ import annotations

import inspect
import os
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch

from camshaft.trainer.attachment import Attached
from camshaft.trainer.export import to_onnx, to_torchscript

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.optim import Optimizer


class FromTrainer:
    """An attribute that a module has from its trainer, until it sets one of its own under the name.

    Args:
        name: Name of the trainer's attribute.
        without: What it is without a trainer.
    """

    def __init__(self, name: str, without: Any) -> None:
        self._name = name
        self._without = without
        self.__doc__ = f"The trainer's `{name}`; {without} without a trainer."

    def __get__(self, module: Any, owner: type | None = None) -> Any:
        if module is None:
            return self
        for store in ("_modules", "_parameters", "_buffers"):
            own = module.__dict__.get(store, {})
            if self._name in own:
                return own[self._name]
        trainer = module._trainer
        return self._without if trainer is None else getattr(trainer, self._name)


class EarlierModule(Attached):
    """The part of a module that has names of earlier releases.

    Attributes:
        example_input_array: What `forward` may be tried with: for summaries, and for export.
    """

    __hook_base__: ClassVar[bool] = True

    example_input_array: Any = None

    # assigned to and shadowed as any attribute: modules of their own may use these names
    use_amp: Any = FromTrainer("use_amp", False)
    use_ddp: Any = FromTrainer("use_ddp", False)
    use_dp: Any = FromTrainer("use_dp", False)
    use_ddp2: Any = FromTrainer("use_ddp2", False)
    on_gpu: Any = FromTrainer("on_gpu", False)
    on_tpu: Any = FromTrainer("on_tpu", False)
    datamodule: Any = FromTrainer("datamodule", None)
    experiment: Any = FromTrainer("experiment", None)

    def get_progress_bar_dict(self) -> dict[str, Any]:
        """What a progress bar shows; an override may change it."""
        trainer = self._trainer
        log = None if trainer is None else trainer._metric_log
        return {} if log is None else dict(log.progress_bar_metrics)

    def get_tqdm_dict(self) -> dict[str, Any]:
        """`get_progress_bar_dict`."""
        return self.get_progress_bar_dict()

    if TYPE_CHECKING:
        load_from_checkpoint: Callable[..., Self]

    @classmethod
    def load_from_metrics(
        cls,
        weights_path: str | os.PathLike[str],
        tags_csv: str | os.PathLike[str],
        map_location: torch.device | str | None = None,
    ) -> Self:
        """`load_from_checkpoint` with hyperparameters from a table, as `meta_tags.csv` is."""
        return cls.load_from_checkpoint(weights_path, map_location, tags_csv=tags_csv)

    # optimization by hand

    def manual_optimizer_step(
        self,
        optimizer: Optimizer,
        *args: Any,
        make_optimizer_step: bool | None = None,
        optimizer_closure: Callable[[], Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Step an optimizer under manual optimization and zero its gradients, as in 1.0.6 to 1.0.8. Collective.

        Hooks: on_before_optimizer_step; around it optimizer_step, if it is overridden.

        Args:
            optimizer: The optimizer.
            make_optimizer_step: False leaves it at calling the closure.
            optimizer_closure: Called for the gradients, if they are not there yet.
            args, kwargs: Further arguments of `optimizer.step`.

        Raises:
            RuntimeError: Under automatic optimization, or without a trainer.
        """
        from camshaft.trainer.earlier.manual_step import step_by_hand

        step_by_hand(self, optimizer, make_optimizer_step, optimizer_closure, args, kwargs)

    # export

    def to_torchscript(
        self,
        file_path: str | os.PathLike[str] | None = None,
        method: str = "script",
        example_inputs: Any = None,
        **kwargs: Any,
    ) -> Any:
        """`forward` as TorchScript, in evaluation mode.

        Args:
            file_path: Where to save it; None saves nothing.
            method: "script" compiles the code, "trace" records a call.
            example_inputs: What the call is made with; None takes `example_input_array`.
            kwargs: Further arguments of `torch.jit.script` or `torch.jit.trace`.

        Returns:
            The `torch.jit.ScriptModule`.

        Raises:
            ValueError: If the method is unknown, or there is nothing to trace with.
        """
        return to_torchscript(self, file_path, method, example_inputs, kwargs)

    def to_onnx(self, file_path: str | os.PathLike[str], input_sample: Any = None, **kwargs: Any) -> None:
        """Save `forward` in the ONNX format, in evaluation mode.

        Args:
            file_path: Where to save it.
            input_sample: What a call is made with: one argument, or a tuple of them; None takes `example_input_array`.
            kwargs: Further arguments of `torch.onnx.export`, which says what has to be installed.

        Raises:
            ValueError: If there is nothing to call it with.
        """
        to_onnx(self, file_path, input_sample, kwargs)


def names_not_exported(cls: type) -> list[str]:
    """What a class reads from its trainer, the trainer itself, and other properties."""
    found = {name: inspect.getattr_static(cls, name) for name in dir(cls)}
    read = [name for name, value in found.items() if isinstance(value, (property, FromTrainer))]
    return [*read, "_trainer", "_metric_log"]
