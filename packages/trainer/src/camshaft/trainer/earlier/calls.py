"""Calls of a trainer's verbs as earlier releases had them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from camshaft.hooks_core.messages import must_be

_NAMES: Mapping[str, Mapping[str, str]] = {
    "fit": {"train_dataloader": "train"},
    "validate": {"val_dataloaders": "validate"},
    "test": {"test_dataloaders": "test"},
    "predict": {},
}
"""Names that loaders had then, by verb, with the stage that they are for."""

Path = str | os.PathLike[str]


def given_loaders(verb: str, loaders: dict[str, Any], earlier: Mapping[str, Any]) -> dict[str, Any]:
    """The loaders by stage, those among them that were passed under the name of earlier releases.

    Args:
        verb: The verb.
        loaders: Those that were passed under today's names.
        earlier: What else was passed by keyword.

    Raises:
        TypeError: If anything else was.
        ValueError: If one was passed under both names.
    """
    for name, value in earlier.items():
        stage = _NAMES[verb].get(name)
        if stage is None:
            raise TypeError(f"Trainer.{verb}() got an unexpected keyword argument {name!r}.")
        if loaders[stage] is not None and value is not None:
            rule = "left out where the loader is passed under its name of today"
            raise ValueError(must_be(name, rule, value, f"Trainer.{verb}", "Leave one of the two out."))
        loaders = {**loaders, stage: loaders[stage] if value is None else value}
    return loaders


def choose_ckpt_path(given: Path | None, resume_from_checkpoint: Path | None) -> Path | None:
    """What fit resumes from: what it was passed, or what the constructor was.

    Raises:
        ValueError: If these are two.
    """
    if given is None or resume_from_checkpoint is None or os.fspath(given) == os.fspath(resume_from_checkpoint):
        return resume_from_checkpoint if given is None else given
    rule = f"left out, since the trainer was made with resume_from_checkpoint={resume_from_checkpoint!r}"
    raise ValueError(must_be("ckpt_path", rule, given, "Trainer.fit", "Leave one of the two out."))
