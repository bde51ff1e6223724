"""Which metric is watched, and in which direction, where earlier code leaves it open."""

from __future__ import annotations

from typing import Any, Final

from camshaft.hooks_core.messages import must_be
from camshaft.trainer.import_names.stand_ins import note

UNSET: Final[Any] = type("Unset", (), {"__repr__": lambda self: "left out"})()
"""The default of an argument for which None means something."""


def chosen_mode(mode: str | None, monitor: str | None, where: str, *, is_auto_by_default: bool) -> str:
    """The direction: what is given, or what earlier releases took.

    Args:
        mode: "min", "max", "auto", or None for what was left out.
        monitor: The metric.
        where: The class, for messages.
        is_auto_by_default: Whether up to 1.2 the default went by any name with "acc" in it, and not by "acc" alone.

    Raises:
        ValueError: If releases differed, or took the wrong one.
    """
    if mode not in (None, "auto"):
        return str(mode)
    name = monitor or ""
    looks_like_accuracy = "acc" in name or name.startswith("fmeasure")
    action = "Pass mode='max' if more is better."
    if mode is None:
        if looks_like_accuracy and (is_auto_by_default or name == "acc"):
            rule = f"given for monitor={name!r}, for which releases up to 1.2 took 'max' and later ones 'min'"
            raise ValueError(must_be("mode", rule, mode, where, action))
        return "min"
    if looks_like_accuracy and not is_auto_by_default and name != "acc":
        rule = f"'min' or 'max' for monitor={name!r}, for which 'auto' was 'min'"
        raise ValueError(must_be("mode", rule, mode, where, action))
    chosen = "max" if looks_like_accuracy else "min"
    note(where, "mode='auto'", f"`mode={chosen!r}` for {name!r}")
    return chosen
