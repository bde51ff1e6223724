"""Logged values and metrics of logical ranks: each rank has its own, and they are combined in the order of ranks."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

from torch import Tensor, nn

from camshaft.hooks_core.protocols import Strategy
from camshaft.hooks_core.support.messages import must_be
from camshaft.loops.metrics.entry import Asked, Entry, gather_states, has_default_sync, states_of
from camshaft.loops.metrics.epoch import EpochLog, StepRow
from camshaft.loops.metrics.exchange import MetricExchange, Record
from camshaft.loops.metrics.log import MetricLog
from camshaft.loops.metrics.values import is_metric, load_nested, save_nested
from camshaft.loops.state.logical_ranks import LogicalRanks
from camshaft.loops.state.metric_state import (
    beside_states,
    counts_of,
    metric_states,
    metrics_of,
    restore_metric_states,
)


class RankMetrics:
    """The states of a module's metrics (torchmetrics), one for each logical rank that a process plays.

    The module has those of the process's first rank, except while another one runs. `compute` outside of steps is of
    the batches of all ranks, in their order, and collective.

    Args:
        module: The module.
        ranks: The ranks.
        strategy: Connects the processes.

    Raises:
        ValueError: If something in the module is like a metric, but none of torchmetrics.
    """

    def __init__(self, module: nn.Module, ranks: LogicalRanks, strategy: Strategy) -> None:
        self._module, self._ranks, self._strategy = module, ranks, strategy
        self._metrics: list[Any] = [part for part in module.modules() if is_metric(part)]
        unknown = [type(one).__qualname__ for one in metrics_of(module).values() if not is_metric(one)]
        if unknown:
            rule, action = "metrics of torchmetrics, with logical ranks", "Subclass `torchmetrics.Metric`."
            raise ValueError(must_be("metrics", rule, unknown, type(module).__qualname__, action))
        self._installed: list[tuple[Any, Any]] = []
        self._place = 0
        self._slots: list[list[dict[str, Any]]] = []  # of each rank, the attributes of each metric
        self._counts = [0] * len(self._metrics)

    def __deepcopy__(self, memo: object) -> RankMetrics:
        """Return itself: a copy of a metric computes of the same ranks."""
        return self

    def install(self) -> None:
        """Let `compute` be of all ranks, until `uninstall`."""
        for metric in filter(has_default_sync, self._metrics):
            self._installed.append((metric, vars(metric).get("distributed_available_fn")))
            vars(metric)["_sync_dist"] = partial(gather_states, metric, self.gather)
            vars(metric)["distributed_available_fn"] = lambda: True

    def uninstall(self) -> None:
        """Leave the metrics as they were."""
        while self._installed:
            metric, is_distributed = self._installed.pop()
            del vars(metric)["_sync_dist"]
            vars(metric)["distributed_available_fn"] = is_distributed

    def enter(self, place: int) -> None:
        """Give the module the states of a rank, by its place among those of this process; of the first one for -1."""
        if not self._metrics or len(self._ranks.own) == 1:
            return
        if place == 0 and self._place == 0:
            self._follow_resets()
        target = max(place, 0)
        if target != self._place:
            slots = self._filled()
            slots[self._place] = self._taken()
            for metric, state in zip(self._metrics, slots[target], strict=True):
                vars(metric).update(state)
            self._place = target
        if place == -1:
            self._counts = [vars(metric)["_update_count"] for metric in self._metrics]

    def _taken(self) -> list[dict[str, Any]]:
        return [{name: vars(metric)[name] for name in _names_of(metric)} for metric in self._metrics]

    def _filled(self) -> list[list[dict[str, Any]]]:
        if not self._slots:
            now = self._taken()
            self._slots = [copy.deepcopy(now) for _ in self._ranks.own]
        return self._slots

    def _follow_resets(self) -> None:
        """Reset the metrics of other ranks that were reset outside of steps, or fill them before the first step."""
        slots = self._filled()
        for idx, metric in enumerate(self._metrics):
            if vars(metric)["_update_count"] < self._counts[idx]:
                own = {name: vars(metric)[name] for name in _names_of(metric)}
                for slot in slots[1:]:
                    slot[idx] = copy.deepcopy(own)

    def gather(self, metric: Any) -> list[tuple[list[Any], bool]]:
        """Return the states of a metric of all logical ranks. Collective.

        Raises:
            RuntimeError: In a step, where the ranks of a process run one after the other.
        """
        if self._ranks.current is not None:
            rule, action = "computed outside of steps, with logical ranks", "Log the metric, or compute it at the end."
            where = f"logical rank {self._ranks.current}"
            raise RuntimeError(must_be("metric", rule, type(metric).__qualname__, where, action))
        states = [vars(metric)]
        if len(self._ranks.own) > 1:
            self._follow_resets()
            idx = next(idx for idx, one in enumerate(self._metrics) if one is metric)
            states += [slot[idx] for slot in self._slots[1:]]
        own = [states_of(state, metric) for state in states]
        return [(each, True) for each in chain.from_iterable(self._strategy.all_gather(own))]

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the states of each rank of this process, as `metric_states` does."""
        states = []
        for place in range(len(self._ranks.own)):
            self.enter(place)
            states.append(metric_states(self._module))
        self.enter(-1)
        return states

    def load_state_dict(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Restore the states of all ranks."""
        for place, rank in enumerate(self._ranks.own):
            self.enter(place)
            restore_metric_states(self._module, dict(states[rank]))
        self.enter(-1)


def _names_of(metric: Any) -> list[str]:
    return [*metric._defaults, *counts_of(metric), *beside_states(metric), *_CACHES]


_CACHES = ("_computed", "_forward_cache")


class LogicalExchange(MetricExchange):
    """Reduces logged values over logical ranks, in their order."""

    def __init__(self, strategy: Strategy, module: nn.Module | None, log: LogicalMetricLog) -> None:
        super().__init__(strategy, module)
        self._log = log

    @property
    def _num_ranks(self) -> int:
        return self._log.ranks.count

    def _is_own(self, rank: int) -> bool:
        return rank in self._log.ranks.own

    def _gather_records(self, of_ranks: Sequence[Sequence[Record]]) -> list[tuple[Sequence[Record], bool]]:
        return [(each, True) for each in chain.from_iterable(self._strategy.all_gather(of_ranks))]

    def gather_states(self, metric: Any) -> list[tuple[list[Any], bool]]:
        """Return the states of a metric of all logical ranks. Collective."""
        return self._log.rank_metrics.gather(metric)


class _UnsentLog(EpochLog):
    """The epoch of a logical rank that is not the first of its process: loggers get nothing of it."""

    def take_step_rows(self) -> list[StepRow]:
        super().take_step_rows()  # which keeps what is reduced over ranks
        return []


class LogicalMetricLog(MetricLog):
    """The metric log of a run on logical ranks; see `MetricLog`.

    Each rank of a process has values of its own. Those of the first one are what is read and, on the first process,
    sent; values of epochs are reduced over all logical ranks. What is logged outside of steps counts for each rank of
    the process alike.
    """

    ranks: LogicalRanks
    rank_metrics: RankMetrics

    def follow_logical_ranks(self, ranks: LogicalRanks, rank_metrics: RankMetrics, module: nn.Module) -> None:
        """Collect for these ranks from now on; before a run's first epoch."""
        self.ranks, self.rank_metrics = ranks, rank_metrics
        self._place = -1
        self._further: dict[str, list[EpochLog]] = {}
        self._batches: list[Any] = [None for _ in ranks.own]
        assert self._strategy is not None
        self._exchange = LogicalExchange(self._strategy, module, self)

    def enter_rank(self, place: int) -> None:
        """Collect for a rank, by its place among those of this process; for all of them alike if it is -1."""
        if self._place >= 0:
            self._batches[self._place] = self.batch
        self.batch = self._batches[place] if place >= 0 else None
        self._place = place
        self._follow(max(place, 0))

    def _follow(self, place: int) -> None:
        stage = self._current.stage
        if stage not in self._epochs:
            return
        self._current = self._epochs[stage] if place == 0 else self._further[stage][place - 1]
        moment = self._moment, self._dataloader_idx
        if self._current.latest_for != moment:
            self._current.latest.clear()
            self._current.latest_for = moment
        self._entries = self._current.latest

    def record(self, name: str, value: Any, asked: Asked, batch_size: float | Tensor | None) -> Entry:
        """Record a value and return its entry; outside of steps for each rank of the process."""
        entry = super().record(name, value, asked, batch_size)
        further = self._further.get(self._current.stage, ()) if self._place < 0 else ()
        for place in range(1, 1 + len(further)):
            self._follow(place)
            try:
                super().record(name, value, asked, batch_size)
            finally:
                self._follow(0)
        return entry

    def start_epoch(self, stage: str, num_dataloaders: int = 1, *, is_trial: bool = False) -> None:
        """Forget the stage's earlier values and collect for its new epoch; see `MetricLog.start_epoch`."""
        super().start_epoch(stage, num_dataloaders, is_trial=is_trial)
        main = self._epochs[stage]
        settings = {"is_shared": True, "takes_options": self.takes_options, "sends_steps": main.sends_steps}
        self._further[stage] = [
            _UnsentLog(stage, num_dataloaders, **settings, num_steps=dict(main.num_steps)) for _ in self.ranks.own[1:]
        ]
        self._batches = [None for _ in self.ranks.own]

    def end_train_batch(self, is_update: bool) -> None:
        """Send what training steps logged, if that is due; `is_update`: whether the batch or split has updated."""
        sender = self._sender
        if is_update and sender.step >= sender.next_send:
            of_ranks = [epoch.take_step_values() for epoch in self._of_ranks("train")]
            sender.schedule()
            values = {entry.step_name: value for entry, value in of_ranks[0]}
            assert self._exchange is not None
            shared = [[each for each in taken if each[0].options.sync_dist is True] for taken in of_ranks]
            values |= self._exchange.reduce_step(*shared)
            sender.send(values, in_training=True)

    def _of_ranks(self, stage: str) -> list[EpochLog]:
        return [self._epochs[stage], *self._further[stage]]

    def reduce_epoch(self) -> None:
        """Reduce the values of the stage's epoch over all logical ranks before it ends, for readers. Collective."""
        if self._current.stage:
            assert self._exchange is not None
            main, *further = self._of_ranks(self._current.stage)
            for epoch in further:
                epoch.take_step_rows()
            main.reduced = self._exchange.reduce_epoch(main, further)
            if main.stage != "train" and self._strategy is not None and self._strategy.world_size > 1:
                main.num_steps = self._strategy.broadcast(main.num_steps)

    def discard(self) -> None:
        """Forget the values of the stage's epoch unpublished: a trial leaves no trace."""
        self._further.pop(self._current.stage, None)
        super().discard()

    def clear(self, module: nn.Module | None = None) -> None:
        """Forget everything; see `MetricLog.clear`."""
        self._further, self._place = {}, -1
        super().clear(module)

    def state_dict(self) -> dict[str, Any]:
        """Return what `MetricLog.state_dict` does, with the training epoch of each rank as "of_ranks"."""
        state = super().state_dict()
        of_ranks = None if state["train"] is None else [epoch.state_dict() for epoch in self._of_ranks("train")]
        return {**state, "train": None, "of_ranks": save_nested(of_ranks)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue as if the run had not stopped; see `MetricLog.load_state_dict`.

        Args:
            state: The state, in which "of_ranks" is that of all logical ranks.
        """
        of_ranks = state["of_ranks"]
        own = None if of_ranks is None else [of_ranks[rank] for rank in self.ranks.own]
        super().load_state_dict({**state, "train": None if own is None else own[0]})
        for epoch, saved in zip(self._further.get("train", ()), (own or [])[1:], strict=False):
            epoch.load_state_dict(load_nested(saved))
