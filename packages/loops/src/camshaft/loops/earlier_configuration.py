"""What `configure_optimizers` returned in earlier eras, brought into a form of today."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from camshaft.hooks_core.eras import Behaviour

_FIRST_WITHOUT_DEFAULT_MONITOR = (1, 0)
_FIRST_THAT_ASKS_SETTINGS = (1, 6)
_OF_EARLIER_SCHEDULERS = ("reduce_on_plateau", "opt_idx")


def in_form_of_today(returned: Any, behaviour: Behaviour) -> Any:
    """Bring what a module of an earlier era returned into a form that `read_configuration` knows.

    - A scheduler gets a value only if it is a `ReduceLROnPlateau` or, from 1.6 on, its settings say
      `reduce_on_plateau`; for others `monitor` made no difference. Before 1.0 the value was "val_loss" unless `monitor`
      said otherwise.
    - Beside an optimizer, `monitor` is that of its scheduler, and an empty `lr_scheduler` is none.
    - The frequency of a single optimizer made no difference.

    Args:
        returned: What the module returned.
        behaviour: What its era did.

    Returns:
        The same for today; forms that no era had are left for `read_configuration` to refuse.
    """
    reading = _Reading(behaviour)
    if isinstance(returned, Mapping):
        return reading.without_frequency(reading.dictionary(returned))
    if not isinstance(returned, (list, tuple)):
        return returned
    if len(returned) == 2 and isinstance(returned[0], (list, tuple)):
        optimizers, schedulers = returned
        schedulers = schedulers if isinstance(schedulers, (list, tuple)) else [schedulers]
        return list(optimizers), [reading.scheduler(one) for one in schedulers]
    if returned and all(isinstance(one, Mapping) for one in returned):
        dictionaries = [reading.dictionary(one) for one in returned]
        return dictionaries if len(dictionaries) > 1 else [reading.without_frequency(dictionaries[0])]
    return list(returned)


class _Reading:
    def __init__(self, behaviour: Behaviour) -> None:
        self._default_monitor = "val_loss" if behaviour.since < _FIRST_WITHOUT_DEFAULT_MONITOR else None
        self._asks_settings = behaviour.since >= _FIRST_THAT_ASKS_SETTINGS

    def dictionary(self, given: Mapping[str, Any]) -> dict[str, Any]:
        settings = dict(given)
        monitor = settings.pop("monitor", None)
        scheduler = settings.pop("lr_scheduler", None)
        is_empty = scheduler is None or (isinstance(scheduler, (list, tuple, Mapping)) and not scheduler)
        if not is_empty:
            settings["lr_scheduler"] = self.scheduler(scheduler, monitor)
        return settings

    def without_frequency(self, settings: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in settings.items() if name != "frequency"}

    def scheduler(self, given: Any, monitor_of_optimizer: str | None = None) -> Any:
        settings = dict(given) if isinstance(given, Mapping) else {"scheduler": given}
        if "scheduler" not in settings:
            return settings
        scheduler = settings["scheduler"]
        takes_value = isinstance(scheduler, ReduceLROnPlateau)
        takes_value |= self._asks_settings and bool(settings.get("reduce_on_plateau"))
        monitor = settings.pop("monitor", None) or monitor_of_optimizer or self._default_monitor
        for name in _OF_EARLIER_SCHEDULERS:
            settings.pop(name, None)
        if not takes_value:
            return settings
        return {**settings, "monitor": monitor, "reduce_on_plateau": True}
