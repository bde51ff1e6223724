"""Which combinations of `ModelCheckpoint`'s arguments make sense."""

from __future__ import annotations

from camshaft.callbacks.errors import InvalidArgumentError


def check_arguments(
    *,
    where: str,
    monitor: str | None,
    save_top_k: int,
    save_last: bool | None,
    every_n_epochs: int | None,
    every_n_train_steps: int | None,
) -> None:
    """Raise on the first argument that cannot be followed.

    Raises:
        InvalidArgumentError: If a number is out of range, two rhythms are given at once, or `save_top_k` needs a
            `monitor` that is not there.
    """
    if save_top_k < -1:
        raise InvalidArgumentError("save_top_k", "-1 (all), 0 (none) or more", save_top_k, where, "Use -1 for all.")
    if monitor is None and save_top_k > 1:
        raise InvalidArgumentError(
            "save_top_k", "-1, 0 or 1 without a `monitor`", save_top_k, where, "Pass the metric to rank by."
        )
    if save_last not in (True, False, None):
        action = "True already shares the checkpoint's data by a hard link."
        raise InvalidArgumentError("save_last", "True, False or None", save_last, where, action)
    rhythms = {"every_n_epochs": every_n_epochs, "every_n_train_steps": every_n_train_steps}
    for field, rhythm in rhythms.items():
        if rhythm is not None and rhythm < 0:
            raise InvalidArgumentError(field, "0 (never) or more", rhythm, where, "Use 0 to switch it off.")
    if every_n_epochs and every_n_train_steps:
        action = "Add a second ModelCheckpoint for the second rhythm."
        raise InvalidArgumentError(
            "every_n_train_steps", "left out beside `every_n_epochs`", every_n_train_steps, where, action
        )
