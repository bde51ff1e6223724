"""The hooks that provide data and move batches."""

from __future__ import annotations

from typing import Any, ClassVar

from camshaft.hooks_core.transfer import move_to_device


class DataHooks:
    """Hooks about data, for a data module or a module; every one is optional."""

    __hook_base__: ClassVar[bool] = True

    def prepare_data(self) -> None:
        """Before anything else, on one process only: download or preprocess to disk; assign no state.

        Also received by the data module.
        """

    def setup(self, stage: str) -> None:
        """At the beginning of every verb, on every process.

        Also received by callbacks and the data module.
        """

    def teardown(self, stage: str) -> None:
        """At the end of every verb, also after an exception, once.

        Also received by callbacks and the data module.
        """

    def train_dataloader(self) -> Any:
        """When training data is first needed. Also received by the data module."""

    def val_dataloader(self) -> Any:
        """When validation data is first needed. Also received by the data module."""

    def test_dataloader(self) -> Any:
        """When test data is first needed. Also received by the data module."""

    def predict_dataloader(self) -> Any:
        """When prediction data is first needed. Also received by the data module."""

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Change a batch before it is moved to its device.

        A data module's override is taken before a module's. Returns: the batch to go on with.
        """
        return batch

    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
        """Move a batch to its device.

        The default moves tensors in any nesting of lists, tuples and dictionaries, and whatever has a `to` method.
        A data module's override is taken before a module's.

        Args:
            batch: The batch as the loader gave it.
            device: The `torch.device` to move it to.
            dataloader_idx: Index of the loader.

        Returns:
            The batch on the device.
        """
        return move_to_device(batch, device)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Change a batch after it was moved to its device.

        A data module's override is taken before a module's. Returns: the batch to go on with.
        """
        return batch
