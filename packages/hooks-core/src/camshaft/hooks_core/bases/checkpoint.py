"""The hooks around checkpoints."""

from __future__ import annotations

from typing import Any, ClassVar


class CheckpointHooks:
    """Hooks that add to a checkpoint or read from it; both are optional."""

    __hook_base__: ClassVar[bool] = True

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """When a checkpoint is loaded, before its contents are restored.

        Also received by callbacks and the data module.
        """

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """When a checkpoint is about to be written: add to it or change it.

        Also received by callbacks and the data module.
        """
