"""Saving after an exception: when there is something to save, and nobody to wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from camshaft.hooks_core.user_warnings import warn_user

if TYPE_CHECKING:
    from camshaft.hooks_core.protocols import TrainerProtocol


def can_rescue(trainer: TrainerProtocol, exception: BaseException, where: str) -> bool:
    """Whether this process can save by itself what an exception interrupted; warns if it cannot.

    What several processes have trained is saved by all of them together. After an exception the others may be in the
    middle of anything, or gone, so that nobody is waited for and nothing is written.

    Args:
        trainer: Who trains.
        exception: What ended it.
        where: The callback's class, for the warning.
    """
    strategy = trainer.strategy
    if strategy.world_size == 1:
        return True
    warn_user(
        f"{where} saved nothing after the {type(exception).__name__} on rank {strategy.global_rank}: the "
        f"{strategy.world_size} processes can only save together, and the others may not have failed. Go on from the "
        "newest checkpoint of a ModelCheckpoint; for signals, PreemptionCheckpoint saves on all ranks."
    )
    return False
