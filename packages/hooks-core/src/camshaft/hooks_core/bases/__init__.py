"""The classes that people subclass; a test proves that they and the catalogue agree."""

from camshaft.hooks_core.bases.callback import Callback
from camshaft.hooks_core.bases.checkpoint import CheckpointHooks
from camshaft.hooks_core.bases.data import DataHooks
from camshaft.hooks_core.bases.module import ModelHooks
from camshaft.hooks_core.bases.strategy import StrategyHooks

__all__ = ["Callback", "CheckpointHooks", "DataHooks", "ModelHooks", "StrategyHooks"]
