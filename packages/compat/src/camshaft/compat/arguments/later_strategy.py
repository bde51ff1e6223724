"""A strategy in the making, whose devices and precision the trainer gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from camshaft.strategies import DDPStrategy

_OF_THE_TRAINER = ("accelerator", "devices", "num_nodes", "precision")


@frozen
class LaterStrategy:
    """The class and the arguments of a strategy.

    Args:
        kind: The class.
        arguments: Its arguments, without what the trainer is to choose.
    """

    kind: type
    arguments: Mapping[str, Any]

    def make(self, of_trainer: Mapping[str, Any]) -> Any:
        """Return the strategy.

        Args:
            of_trainer: Arguments of the trainer, from which devices and precision are taken where they are given.
        """
        names = (*_OF_THE_TRAINER, "sync_batchnorm") if self.kind is DDPStrategy else _OF_THE_TRAINER
        given = {name: of_trainer[name] for name in names if of_trainer.get(name)}
        return self.kind(**{**given, **self.arguments})
