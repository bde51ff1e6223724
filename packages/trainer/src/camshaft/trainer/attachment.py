"""What a module knows of the run that holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from camshaft.hooks_core.messages import must_be

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from camshaft.loops.metrics import MetricLog, StandaloneLog
    from camshaft.trainer.trainer import Trainer

_NOT_COPIED = ("_trainer", "_metric_log", "_compiled_call_impl")
"""What belongs to a run, or, as `nn.Module` has it, to this very object."""


class Attached:
    """The part of a module that asks the trainer; mix it into an `nn.Module`."""

    # An instance has its own only once a run has held it: written past `nn.Module.__setattr__`, which would look for
    # submodules, and left behind by copies.
    _trainer: Trainer | None = None
    _metric_log: MetricLog | StandaloneLog | None = None

    @property
    def trainer(self) -> Trainer:
        """The trainer of the current or last verb.

        Another one, or None, may be assigned, to the modules in this one as well; deleting it assigns None.

        Raises:
            RuntimeError: If no trainer has run with this module.
        """
        if self._trainer is None:
            action = "Pass the module to a verb of a trainer first."
            raise RuntimeError(must_be("trainer", "attached", None, type(self).__qualname__, action))
        return self._trainer

    @trainer.setter
    def trainer(self, trainer: Any) -> None:
        parts = self.modules() if isinstance(self, nn.Module) and "_modules" in self.__dict__ else [self]
        for part in parts:
            if isinstance(part, Attached):
                part.__dict__["_trainer"] = trainer

    @trainer.deleter
    def trainer(self) -> None:
        self.trainer = None

    @property
    def current_epoch(self) -> int:
        """Index of the training epoch; 0 without a trainer."""
        return 0 if self._trainer is None else self._trainer.current_epoch

    @property
    def global_step(self) -> int:
        """Number of optimizer updates so far; 0 without a trainer."""
        return 0 if self._trainer is None else self._trainer.global_step

    @property
    def global_rank(self) -> int:
        """Index of this process among all; 0 without a trainer."""
        return 0 if self._trainer is None else int(self._trainer.strategy.global_rank)

    @property
    def local_rank(self) -> int:
        """Index of this process on its machine; 0 without a trainer."""
        return 0 if self._trainer is None else int(self._trainer.strategy.local_rank)

    @property
    def device(self) -> torch.device:
        """The device of the first parameter or buffer; of the trainer's strategy if there is none, else the CPU."""
        assert isinstance(self, nn.Module)
        for tensors in (self.parameters(), self.buffers()):
            for tensor in tensors:
                return tensor.device
        return torch.device("cpu") if self._trainer is None else torch.device(self._trainer.strategy.device)

    @property
    def on_gpu(self) -> bool:
        """Whether `device` is a GPU."""
        return self.device.type == "cuda"

    @property
    def device_mesh(self) -> DeviceMesh | None:
        """How a sharded strategy arranges the processes, for `configure_sharded_model`.

        None for any other strategy and without a trainer, as when a module is built from a checkpoint: leave submodules
        whole then.
        """
        mesh: DeviceMesh | None = (
            None if self._trainer is None else getattr(self._trainer.strategy, "device_mesh", None)
        )
        return mesh

    @property
    def logger(self) -> Any:
        """The trainer's first logger; None if it has none or there is no trainer."""
        return None if self._trainer is None else self._trainer.logger

    @property
    def loggers(self) -> list[Any]:
        """The trainer's loggers; empty without a trainer."""
        return [] if self._trainer is None else self._trainer.loggers

    def optimizers(self, use_pl_optimizer: bool = True) -> Optimizer | list[Optimizer]:
        """The optimizer of the fit; a list if `configure_optimizers` returned several or none.

        Args:
            use_pl_optimizer: Has no effect: there is no wrapper, and `step` may be called on what is returned.
        """
        optimizers: list[Optimizer] = list(self.trainer.optimizers)
        return optimizers[0] if len(optimizers) == 1 else optimizers

    def lr_schedulers(self) -> Any:
        """The learning-rate scheduler of the fit; a list if there are several, None if there is none."""
        schedulers = [config.scheduler for config in self.trainer.lr_scheduler_configs]
        if not schedulers:
            return None
        return schedulers[0] if len(schedulers) == 1 else schedulers

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print, on the first process only, by the trainer's progress bar if it shows one; arguments as Python's."""
        if self.global_rank != 0:
            return
        bar = None if self._trainer is None else getattr(self._trainer, "progress_bar_callback", None)
        if bar is not None and bar.is_enabled:
            bar.print(*args, **kwargs)
        else:
            print(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles leave the trainer, the log and what was compiled behind."""
        return {name: value for name, value in self.__dict__.items() if name not in _NOT_COPIED}
