"""The logical ranks of a run: data-parallel ranks by which it is defined, one or several of which a process plays.

What a run computes then depends on their number alone, not on that of the processes. See `TrainingEpoch` and its
subclass of logical ranks for the order in which they act.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import attrs
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from camshaft.hooks_core import no_op
from camshaft.hooks_core.protocols import Strategy
from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.loops.optimization.window import window_of_all
from camshaft.loops.state.of_ranks import OfRanks
from camshaft.loops.state.random_state import (
    mixed_seed,
    random_state,
    restore_random_state,
    seed_global_numbers,
)

_STAGES = ("train", "validate", "test", "predict")


@attrs.define(eq=False, repr=False)
class LogicalRanks:
    """The logical ranks of a run, which of them runs now, and the random numbers of each.

    No generator has a state for each rank: what a rank draws in a part of a step is seeded from the base seed, stage,
    epoch, step, part and rank. Outside of these parts all processes have the same, common numbers; those after a part
    are seeded likewise, which costs less than to keep the numbers from before it.

    Args:
        count: Number of logical ranks of all processes.
        own: Those of this process, in order.
        device: Device of this process.
        base_seed: Seed of the run, the same in all processes.

    Attributes:
        current: The rank for which code of users runs now; None outside of steps.
        is_playing: Whether steps run that update by themselves; see `play`.
        metrics: The states of the module's metrics, a `RankMetrics`; None before the module is set up.
        on_enter: Called with the place of a rank among `own` when it begins a part, and with -1 when a part is over.
    """

    count: int
    own: range
    device: torch.device
    base_seed: int = 0
    current: int | None = attrs.field(default=None, init=False)
    is_playing: bool = attrs.field(default=False, init=False)
    metrics: Any = attrs.field(default=None, init=False)
    on_enter: Callable[[int], None] = attrs.field(default=no_op, init=False)
    _seed_of_step: int = attrs.field(default=0, init=False)
    _part: int = attrs.field(default=0, init=False)
    _num_updates: int = attrs.field(default=0, init=False)  # of the part in which steps update by themselves
    _interrupted: tuple[int, dict[str, Any]] | None = attrs.field(default=None, init=False)

    @property
    def place(self) -> int:
        """The place among `own` of the rank for which code of users runs now."""
        assert self.current is not None
        return self.current - self.own.start

    def begin_step(self, stage: str, epoch: int, step: int) -> None:
        """Begin a step of a stage, whose parts follow."""
        self._seed_of_step = mixed_seed(self.base_seed, _STAGES.index(stage), epoch, step)
        self._part = 0

    def each(self) -> Iterator[tuple[int, int]]:
        """Run a part of a step for each rank of this process, one after the other, under its own random numbers.

        Afterwards the common numbers of the part's end are in place.

        Yields:
            The place of the rank among `own`, and its index among all.
        """
        for place, rank in enumerate(self.own):
            self._seed(rank)
            self.current = rank
            self.on_enter(place)
            yield place, rank
        self.current = None
        self.on_enter(-1)
        self.end_part()

    def play(self, strategy: Strategy, step: Callable[[int], Any]) -> OfRanks:
        """Run a part in which the ranks of this process update by themselves, and take turns. Collective.

        Args:
            strategy: A strategy with `play_logical_ranks`.
            step: Runs the step of a rank, given its place among `own`.

        Returns:
            What the steps return.
        """

        def begin(rank: int) -> Any:
            self._seed(rank)
            return step(rank - self.own.start)

        self._num_updates, self.is_playing = 0, True
        try:
            outputs = OfRanks(strategy.play_logical_ranks(begin, self._go_on))  # type: ignore[attr-defined]
        finally:
            self.is_playing, self._interrupted = False, None
        self.current = None
        self.on_enter(-1)
        self.end_part()
        return outputs

    def _go_on(self, rank: int) -> None:
        self.current = rank
        self.on_enter(rank - self.own.start)

    def begin_update(self) -> None:
        """Put common random numbers in place for an update amid the step of a rank, until `end_update`."""
        if self.current is None or not self.is_playing:
            return
        self._interrupted = self.current, self.common_numbers()
        self.current = None
        self.on_enter(-1)
        self._num_updates += 1
        seed = mixed_seed(self._seed_of_step, self._part * (self.count + 1) + self.count, self._num_updates)
        seed_global_numbers(seed, self.device)

    def end_update(self) -> None:
        """Go on with the step of the rank that `begin_update` interrupted."""
        if self._interrupted is not None:
            (rank, numbers), self._interrupted = self._interrupted, None
            restore_random_state(numbers)
            self._go_on(rank)

    def end_part(self) -> None:
        """Put the common numbers of a part's end in place, also of one in which nothing runs."""
        self._seed(self.count)
        self._part += 1

    def split(self, split: Callable[[Any], Sequence[Any]], batches: OfRanks, where: str) -> list[OfRanks]:
        """Split the batches of a step along time.

        Args:
            split: Splits the batch of one rank.
            batches: The batches.
            where: Name of the module's class, for errors.

        Returns:
            For each split those of the ranks.

        Raises:
            ValueError: If the ranks of this process have different numbers of splits.
        """
        splits = [split(batches[place]) for place, _ in self.each()]
        if len(set(map(len, splits))) > 1:
            rule, action = "of as many time steps on all logical ranks, to be split", "Pad them to one length."
            raise ValueError(must_be("batches", rule, list(map(len, splits)), where, action))
        return [OfRanks(of_ranks) for of_ranks in zip(*splits, strict=True)]

    def common_numbers(self, generators: Sequence[torch.Generator] = ()) -> dict[str, Any]:
        """Return the state of the generators that all processes have in common: of devices that of this one's alone."""
        state = random_state(generators)
        if "devices" in state:
            del state["devices"][1:]
            if self.device.type == "cpu":
                del state["devices"]
        return state

    def facts(self) -> dict[str, Any]:
        """Return what a run that goes on must have in common with this one, as plain values."""
        return {"count": self.count, "base_seed": self.base_seed, "num_threads": torch.get_num_threads()}

    def take(self, facts: Mapping[str, Any]) -> None:
        """Go on with a run that had such facts."""
        self.base_seed = facts["base_seed"]
        if facts["num_threads"] != torch.get_num_threads():
            warn_user(
                f"torch computes in {torch.get_num_threads()} threads, the run of the checkpoint in "
                f"{facts['num_threads']}: results of CPUs may differ in their last bits. Set OMP_NUM_THREADS alike.",
                of_rank=True,
            )

    def gathered(self, state: dict[str, Any], strategy: Strategy) -> dict[str, Any]:
        """Return the state of a fit with that of all logical ranks, the same on any number of processes. Collective.

        Args:
            state: "fit" and "rng" of this process.
            strategy: Connects the processes.
        """
        fit = state["fit"]
        logged = fit["metrics"] and fit["metrics"]["of_ranks"]
        parts = strategy.all_gather((logged, fit["metric_states"], fit.get("optimization")))
        fit = {**fit, "metric_states": [one for _, states, _ in parts for one in states]}
        if logged is not None:
            fit["metrics"] = {**fit["metrics"], "of_ranks": [one for logged, *_ in parts for one in logged]}
        if "optimization" in fit:
            fit["optimization"] = window_of_all([one for *_, one in parts])
        return {**state, "fit": fit}

    def own_part(self, fit: dict[str, Any]) -> dict[str, Any]:
        """Return the state of a fit, as `gathered` returns it, with that of this process's ranks alone."""
        own = {**fit, "metric_states": [fit["metric_states"][rank] for rank in self.own]}
        if fit["metrics"] and fit["metrics"]["of_ranks"] is not None:
            of_ranks = fit["metrics"]["of_ranks"]
            own["metrics"] = {**fit["metrics"], "of_ranks": [of_ranks[rank] for rank in self.own]}
        return own

    def of_all(self, values: Sequence[torch.Tensor], strategy: Strategy) -> torch.Tensor:
        """Return a scalar of each logical rank, in their order, given those of this process's. Collective."""
        found = torch.zeros(self.count, dtype=values[0].dtype, device=values[0].device)
        found[self.own.start : self.own.stop] = torch.stack([value.detach().reshape(()) for value in values])
        # to add zeros is exact, and makes 0 of -0
        return found + 0.0 if strategy.world_size == 1 else strategy.reduce(found, "sum")

    def _seed(self, slot: int) -> None:
        seed_global_numbers(mixed_seed(self._seed_of_step, self._part * (self.count + 1) + slot), self.device)

    def seed_of_fetch(self, stage: str, *place: int) -> int:
        """Return the seed under which a batch is made, in whatever process, given its place in the stage."""
        return mixed_seed(self.base_seed, len(_STAGES) + _STAGES.index(stage), *place)


class FirstRankBuffers:
    """The buffers of a module, of which those of the first rank count where hooks of several run in turn.

    Args:
        module: The module.
        num_ranks: Number of logical ranks of this process.
    """

    def __init__(self, module: nn.Module, num_ranks: int) -> None:
        self._module, self._is_needed = module, num_ranks > 1
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def follow(self, place: int) -> None:
        """Keep the buffers as the first rank leaves them, before the second one begins."""
        if place == 1 and self._is_needed:
            self._kept = [(buffer, buffer.clone()) for buffer in self._module.buffers()]

    @torch.no_grad()
    def restore(self) -> None:
        """Undo what other ranks changed."""
        for buffer, kept in self._kept:
            buffer.copy_(kept)
        self._kept = []


class MovingParameters:
    """The parameters of a module that code moves by itself, as those of a momentum encoder, where several ranks run.

    These have no gradients. Each rank finds what the first one found; what that one leaves counts. Of many parameters
    without gradients, as of a model that is not trained, only the smaller ones are followed, up to twice the size of
    those with gradients: copies of all would take too much memory.

    Args:
        module: The module.
        num_ranks: Number of logical ranks of this process.
        take_turns: Whether a rank may be entered again, and goes on with what it left.
    """

    def __init__(self, module: nn.Module, num_ranks: int, *, take_turns: bool = False) -> None:
        sized = [one for one in module.parameters() if num_ranks > 1 and not is_lazy(one)]
        limit = 2 * sum(one.numel() for one in sized if one.requires_grad)
        fixed = sorted((one for one in sized if not one.requires_grad), key=torch.Tensor.numel)
        sizes = accumulate(one.numel() for one in fixed)
        self._parameters = [one for one, size in zip(fixed, sizes, strict=True) if size <= limit]
        self._take_turns = take_turns
        self._place = 0
        self._found: list[torch.Tensor] = []
        self._left: dict[int, list[torch.Tensor]] = {}

    def begin(self) -> None:
        """Begin with the first rank."""
        self._place, self._found = 0, self._copies()

    @torch.no_grad()
    def enter(self, place: int) -> None:
        """Go on with another rank."""
        if place == self._place:
            return
        if self._take_turns or self._place == 0:
            self._left[self._place] = self._copies()
        self._place = place
        for parameter, value in zip(self._parameters, self._left.get(place, self._found), strict=True):
            parameter.data.copy_(value)  # graphs that wait may hold it

    def end(self) -> None:
        """End with what the first rank left."""
        self.enter(0)
        self._found, self._left = [], {}

    def _copies(self) -> list[torch.Tensor]:
        return [one.detach().clone() for one in self._parameters]


def logical_ranks_of(strategy: Strategy) -> LogicalRanks | None:
    """Return the logical ranks that a strategy plays; None if it knows none."""
    count: int | None = getattr(strategy, "num_logical_ranks", None)
    if count is None:
        return None
    own: range = strategy.logical_ranks  # type: ignore[attr-defined]
    return LogicalRanks(count, own, strategy.device)


def take_common_numbers(ranks: LogicalRanks, strategy: Strategy, generators: Sequence[torch.Generator] = ()) -> None:
    """Let all processes go on with the random numbers of rank 0. Collective with several.

    Args:
        generators: Further generators, which every process has.
    """
    if strategy.world_size > 1:
        restore_random_state(strategy.broadcast(ranks.common_numbers(generators)), generators)
