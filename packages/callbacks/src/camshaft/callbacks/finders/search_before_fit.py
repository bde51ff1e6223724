"""When a finder searches: once, at the start of a fit that does not resume."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from camshaft.callbacks.finders.trial_steps import check_automatic
from camshaft.hooks_core import Callback
from camshaft.hooks_core.user_warnings import warn_user

if TYPE_CHECKING:
    from camshaft.hooks_core.protocols import TrainerProtocol


class SearchBeforeFit(Callback):
    """Searches when a fit starts; one that resumes takes over what its checkpoint knows."""

    _resumes = False

    def setup(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Check that the module's steps can be made, and that there is an attribute to set."""
        self._resumes = False
        if stage == "fit":
            check_automatic(module, type(self).__name__)
            self._check_attribute(trainer, module)

    def on_load_checkpoint(self, trainer: TrainerProtocol, module: Any, checkpoint: dict[str, Any]) -> None:
        """Take over what was found, before loaders are asked for and optimizers are configured."""
        self._resumes = True
        state = checkpoint.get("callbacks", {}).get(self.state_key)
        if state is not None:
            self._take_over(trainer, module, state)

    def on_fit_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Search, unless the fit resumes. Collective."""
        if self._resumes:
            return
        if trainer.fast_dev_run:
            warn_user(f"{type(self).__name__} does not search under `fast_dev_run`.")
            return
        self._find(trainer, module)

    def _check_attribute(self, trainer: TrainerProtocol, module: Any) -> None:
        """Raise `InvalidArgumentError` if nobody keeps what is to be set."""
        raise NotImplementedError

    def _take_over(self, trainer: TrainerProtocol, module: Any, state: dict[str, Any]) -> None:
        """Set what was found; `state` is what `state_dict` returned."""
        raise NotImplementedError

    def _find(self, trainer: TrainerProtocol, module: Any) -> None:
        """Search, and set what was found. Collective."""
        raise NotImplementedError
