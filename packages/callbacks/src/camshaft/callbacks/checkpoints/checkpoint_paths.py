"""How the files of one `ModelCheckpoint` are called, and how they stay apart from those of others."""

from __future__ import annotations

from dataclasses import dataclass

from camshaft.callbacks.checkpoints.checkpoint_names import NameTemplate
from camshaft.callbacks.errors import InvalidArgumentError


@dataclass(frozen=True)
class CheckpointPaths:
    """The names that checkpoints get.

    Args:
        name: Of those that are kept.
        last: Of "last"; None if there is none.
        rescue: Of one that an exception leads to.
        extension: With the dot.
        has_versions: Whether a name that is taken gets one; otherwise the file is replaced.
    """

    name: NameTemplate
    last: NameTemplate | None
    rescue: NameTemplate
    extension: str
    has_versions: bool

    @property
    def uses_metrics(self) -> bool:
        """Return whether a logged metric is in a name."""
        return any(template.metrics for template in (self.name, self.last) if template is not None)

    @property
    def depth(self) -> int:
        """How many folders down checkpoints are."""
        return self.name.template.count("/")

    def may_replace(self, other: CheckpointPaths) -> bool:
        """Whether, in one folder, one of the two could replace a file of the other's."""
        if self.has_versions and other.has_versions:
            return False
        names = [{one.template for one in (paths.name, paths.last) if one is not None} for paths in (self, other)]
        return self.extension == other.extension and bool(names[0] & names[1])


def check_apart(key: str, other_key: str, paths: CheckpointPaths, others_in_folder: CheckpointPaths | None) -> None:
    """Raise if two callbacks of one trainer would take each other's memory or files.

    Args:
        key: The `state_key` of one.
        other_key: That of the other.
        paths: How the first one's files are called.
        others_in_folder: Likewise of the other; None if it saves in another folder.

    Raises:
        InvalidArgumentError: If they would.
    """
    where = "Trainer(callbacks=...)"
    if key == other_key:
        action = "Tell them apart by `filename`, `monitor`, `mode` or rhythm."
        raise InvalidArgumentError("state_key", "different for each ModelCheckpoint of a trainer", key, where, action)
    if others_in_folder is not None and paths.may_replace(others_in_folder):
        rule = "True where two ModelCheckpoints use the same names in one folder"
        action = "Give one of them another `dirpath` or `filename`, and let one save `save_last`."
        raise InvalidArgumentError("enable_version_counter", rule, False, where, action)
