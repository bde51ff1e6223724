"""Hooks that provide data and move batches."""

from __future__ import annotations

from camshaft.hooks_core.spec import HookSpec, Receiver

_DATA_THEN_MODULE = (Receiver.DATA, Receiver.MODULE)
_ALL_ERAS = ("0.5", "0.7", "0.8", "1.x", "2.0", "2.x")
_A_LOADER = "a loader or a list of loaders"

HOOKS = (
    HookSpec(
        "train_dataloader",
        "When training data is first needed.",
        _DATA_THEN_MODULE,
        kind="provide",
        stage="data",
        returns=_A_LOADER,
        eras=_ALL_ERAS,
    ),
    HookSpec(
        "val_dataloader",
        "When validation data is first needed.",
        _DATA_THEN_MODULE,
        kind="provide",
        stage="data",
        returns=_A_LOADER,
        eras=_ALL_ERAS,
    ),
    HookSpec(
        "test_dataloader",
        "When test data is first needed.",
        _DATA_THEN_MODULE,
        kind="provide",
        stage="data",
        returns=_A_LOADER,
        eras=_ALL_ERAS,
    ),
    HookSpec(
        "predict_dataloader",
        "When prediction data is first needed.",
        _DATA_THEN_MODULE,
        kind="provide",
        stage="data",
        returns=_A_LOADER,
    ),
    HookSpec(
        "on_before_batch_transfer",
        "Before a batch is moved to its device.",
        _DATA_THEN_MODULE,
        ("batch", "dataloader_idx"),
        kind="transform",
        stage="data",
        returns="the batch to go on with",
    ),
    HookSpec(
        "transfer_batch_to_device",
        "To move a batch to its device, in place of the default.",
        _DATA_THEN_MODULE,
        ("batch", "device", "dataloader_idx"),
        kind="transform",
        stage="data",
        returns="the batch on the device",
        eras=("0.8", "1.x", "2.0", "2.x"),
        signatures={"0.8": ("batch", "device")},
    ),
    HookSpec(
        "on_after_batch_transfer",
        "After a batch was moved to its device.",
        _DATA_THEN_MODULE,
        ("batch", "dataloader_idx"),
        kind="transform",
        stage="data",
        returns="the batch to go on with",
    ),
)
