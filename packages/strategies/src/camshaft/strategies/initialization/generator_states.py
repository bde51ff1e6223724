"""Following the states of random number generators while nothing is drawn from them."""

from __future__ import annotations

import attrs
import torch
from torch import Generator, Tensor

from camshaft.strategies.initialization.deferred_operations import Entry, GeneratorChange


@attrs.define(eq=False)
class _Track:
    """What is known of one generator.

    Args:
        generator: The generator.
        first_state: Its state when it became known.
        last_state: Its state after the latest operation that was recorded.
        positions: For each state that it had, after which operation.
    """

    generator: Generator
    first_state: Tensor
    last_state: bytes
    positions: dict[bytes, int]


class GeneratorStates:
    """The generators that recorded operations draw from.

    A generator's state is moved on a little with each operation that is recorded. So every later state tells after
    which operation it was read, and a state that somebody sets is known as an earlier one, or as a new one.

    Args:
        entries: Where changes of states are recorded, between the operations.
    """

    def __init__(self, entries: list[Entry]) -> None:
        self._entries = entries
        self._tracks: dict[int, _Track] = {}
        self._track(torch.default_generator)

    def notice(self, generator: Generator) -> None:
        """Record that a generator was seeded, or set back to an earlier state, if it was."""
        track = self._track(generator)
        state = generator.get_state()
        key = _to_bytes(state)
        if key != track.last_state:
            position = track.positions.get(key)
            is_new = position is None
            self._entries.append(
                GeneratorChange(generator, state if is_new else None, -1 if position is None else position)
            )
            track.last_state = key

    def notice_all(self) -> None:
        """Record such changes of all generators."""
        for track in list(self._tracks.values()):
            self.notice(track.generator)

    def move_on(self, generator: Generator) -> None:
        """Give a generator another state, after an operation that draws from it was recorded."""
        track = self._track(generator)
        torch.rand((), generator=generator, device="cpu")
        track.last_state = _to_bytes(generator.get_state())
        track.positions[track.last_state] = len(self._entries) - 1

    def rewind(self) -> None:
        """Set all generators to their first states."""
        self.restore({})

    def first_states(self) -> dict[tuple[int, int], Tensor]:
        """What a `Replay` knows of states before it begins."""
        return {(key, -1): track.first_state for key, track in self._tracks.items()}

    def states(self) -> dict[int, Tensor]:
        """The present states."""
        return {key: track.generator.get_state() for key, track in self._tracks.items()}

    def restore(self, states: dict[int, Tensor]) -> None:
        """Set all generators to states that `states` returned; those that were not known then to their first ones."""
        for key, track in self._tracks.items():
            track.generator.set_state(states.get(key, track.first_state))

    def _track(self, generator: Generator) -> _Track:
        found = self._tracks.get(id(generator))
        if found is None:
            state = generator.get_state()
            key = _to_bytes(state)
            found = self._tracks[id(generator)] = _Track(generator, state, key, {key: -1})
        return found


def _to_bytes(state: Tensor) -> bytes:
    return state.numpy().tobytes()
