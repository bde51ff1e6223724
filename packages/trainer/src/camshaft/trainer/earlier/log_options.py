"""Options of `log` in releases 1.0 to 1.5."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from camshaft.hooks_core.messages import must_be
from camshaft.trainer.reduce_functions import reduction_name


def check_earlier_options(name: str, reduce_fx: object, sync_dist: bool | None, options: Mapping[str, Any]) -> None:
    """Refuse what asks for something else than `reduce_fx`, which reduces over splits and processes as well.

    Args:
        name: The name that is logged.
        reduce_fx: How values are reduced.
        sync_dist: As in `log`.
        options: The options, by name.

    Raises:
        TypeError: If there is no such option.
        ValueError: If one asks for something else.
    """
    where = f"log({name!r})"
    for option, value in options.items():
        if option in ("sync_dist_op", "tbptt_reduce_fx"):
            has_effect = option != "sync_dist_op" or bool(sync_dist)
            if value is None or not has_effect or _is_same(value, reduce_fx):
                continue
            rule = f"left out, or what `reduce_fx` is ({reduce_fx!r})"
            raise ValueError(must_be(option, rule, value, where, "Choose the reduction by `reduce_fx`."))
        if option == "tbptt_pad_token":
            if value not in (None, 0):
                rule = "left out, since nothing is padded"
                raise ValueError(must_be(option, rule, value, where, "Leave it out."))
        elif option == "sync_dist_group":
            if value is not None:
                rule = "left out: all processes reduce together"
                raise ValueError(must_be(option, rule, value, where, "Reduce the value before it is logged."))
        else:
            raise TypeError(f"log() got an unexpected keyword argument {option!r}")


def _is_same(value: object, reduce_fx: object) -> bool:
    known = reduction_name(value)
    return value is reduce_fx or (known is not None and known == reduction_name(reduce_fx))
