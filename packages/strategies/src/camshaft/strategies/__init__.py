"""Where and how a model computes: devices, precision, and checkpoints on disk."""

from camshaft.strategies.checkpoint_file import CheckpointError, read_checkpoint, write_checkpoint
from camshaft.strategies.device import choose_device
from camshaft.strategies.single_device import SingleDeviceStrategy

__all__ = ["CheckpointError", "SingleDeviceStrategy", "choose_device", "read_checkpoint", "write_checkpoint"]
