"""Parts of Lightning's trainer that have private names there, with the attributes that libraries read of them."""

from __future__ import annotations

from typing import Any

import attrs
import torch

from camshaft.hooks_core import is_overridden
from camshaft.strategies import ParallelStrategy


@attrs.define
class ConnectorView:
    """Devices and strategy of a trainer; `trainer._accelerator_connector`. The names are those of its counterpart.

    Args:
        _trainer: The trainer.
    """

    _trainer: Any

    @property
    def strategy(self) -> Any:
        """The strategy."""
        return self._trainer.strategy

    @property
    def accelerator(self) -> Any:
        """The kind of device."""
        return self._trainer.accelerator

    @property
    def precision_plugin(self) -> Any:
        """The precision of the strategy."""
        return self._trainer.strategy.precision

    @property
    def is_distributed(self) -> bool:
        """True if the strategy is one for several processes, be it of one at the moment."""
        return is_distributed(self.strategy)

    @property
    def use_distributed_sampler(self) -> bool:
        """True if several processes share the data of loaders. Setting it counts for loaders asked for later."""
        return bool(self._trainer.fit_loop.use_distributed_sampler)

    @use_distributed_sampler.setter
    def use_distributed_sampler(self, value: bool) -> None:
        trainer = self._trainer
        loops = (trainer.fit_loop, trainer.fit_loop.validation)
        for loop in (*loops, trainer.validate_loop, trainer.test_loop, trainer.predict_loop):
            loop.use_distributed_sampler = value

    @property
    def _accelerator_flag(self) -> str:
        return str(self._trainer.strategy.device.type)

    @property
    def _devices_flag(self) -> int | list[int]:
        of_cpu = self._accelerator_flag == "cpu"
        return int(self._trainer.num_devices) if of_cpu else list(self._trainer.device_ids)

    @property
    def _parallel_devices(self) -> list[torch.device]:
        return list(self.accelerator.get_parallel_devices(self._devices_flag))


def is_distributed(strategy: Any) -> bool:
    """Return whether a strategy is one for several processes, be it of one at the moment."""
    return isinstance(strategy, ParallelStrategy) or int(strategy.world_size) > 1


@attrs.frozen
class LoaderSource:
    """The source of a loop's loaders: passed to the verb, or a hook of the data module or the module.

    It is `trainer.fit_loop.epoch_loop.val_loop._data_source`, and likewise in the other loops.

    Args:
        _trainer: The trainer.
        stage: The stage of the loaders.
        name: The hook.
    """

    _trainer: Any
    stage: str
    name: str

    @property
    def instance(self) -> Any:
        """The loaders passed to the verb, else the data module or the module that has the hook; None without any."""
        run = self._trainer.current_run
        if run is None:
            return None
        passed = run.loaders.get(self.stage)
        if passed is not None:
            return passed
        return next((one for one in (run.data, run.module) if one is not None and is_overridden(one, self.name)), None)

    def is_defined(self) -> bool:
        """Return whether there is a source, whatever the limit of batches."""
        return self.instance is not None

    def is_module(self) -> bool:
        """Return whether it is a hook."""
        return self.is_defined() and self._trainer.current_run.loaders.get(self.stage) is None


def attach_sources(trainer: Any) -> None:
    """Give the loops of a trainer their `_data_source`."""
    for loop, stage, hook in (
        (trainer.fit_loop, "train", "train_dataloader"),
        (trainer.fit_loop.validation, "validate", "val_dataloader"),
        (trainer.validate_loop, "validate", "val_dataloader"),
        (trainer.test_loop, "test", "test_dataloader"),
        (trainer.predict_loop, "predict", "predict_dataloader"),
    ):
        vars(loop)["_data_source"] = LoaderSource(trainer, stage, hook)  # the loops take no attributes of others
