"""The state of a module's metrics: those of torchmetrics, and whatever has the same methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from camshaft.hooks_core.support.messages import must_be

_COUNTS = ("_update_count", "update_count", "_num_vals_seen")
"""Attributes that count updates; the last is that of torchmetrics' `Running`. There is no public way to set them."""

_BESIDE_STATES = ("min_val", "max_val")
"""Attributes in which torchmetrics' `MinMaxMetric` keeps tensors that are not among its states."""

_JOINED_BY: dict[str | None, Callable[[Tensor, Tensor], Tensor]] = {
    "dim_zero_sum": torch.add,
    "dim_zero_max": torch.maximum,
    "dim_zero_min": torch.minimum,
    "dim_zero_cat": lambda one, other: torch.cat([each if each.ndim else each.reshape(1) for each in (one, other)]),
}
"""How states of two processes become one, by the name of the function by which torchmetrics reduces them."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_SAME = "Build the module as it was when they were saved."

_Copies = dict[int, tuple[Tensor, Tensor]]
"""Tensors and their copies, by the identity of the former; holding them keeps identities from being used again."""


def metric_states(module: nn.Module) -> dict[str, Any]:
    """Return the states of all metrics in a module that have been updated since they were reset.

    A metric is a submodule with `update`, `compute`, `reset` and `metric_state`, whose names are attributes that can be
    set, as in torchmetrics. Which metrics of a `MetricCollection` share their states, and how many there are in a
    `MetricTracker`, is kept too. Metrics in a plain list or dictionary are no submodules and are not found.

    Returns:
        By qualified name, tensors and plain values only. Tensors are detached copies on their devices; one that
        metrics share is copied once.

    Raises:
        TypeError: If a state holds anything but tensors and plain values.
    """
    copies: _Copies = {}
    metrics = {name: metric for name, metric in metrics_of(module).items() if _is_updated(metric)}
    states: dict[str, Any] = {name: _state_of(name, metric, copies) for name, metric in metrics.items()}
    for name, collection in _grouped_collections(module).items():
        if collection._groups_checked:
            groups = [list(members) for members in collection.compute_groups.values()]
            states[name] = {"compute_groups": groups, "is_copied": collection._state_is_copy}
    trackers = _trackers(module).items()
    return states | {name: {"num_steps": tracker.n_steps} for name, tracker in trackers if tracker.n_steps}


def restore_metric_states(module: nn.Module, states: dict[str, Any]) -> None:
    """Put all metrics of a module into the states that `metric_states` gave; those it did not give are reset.

    The states themselves are copied again, so that they can be restored any number of times. Tensors go to the devices
    of the metrics. Batches that were updated with since, such as those of a sanity check, leave nothing behind.

    Args:
        states: The result of `metric_states`, of this module or one of the same structure.

    Raises:
        ValueError: If the module has no metric of a name, or one with other states.
    """
    for name, tracker in _trackers(module).items():
        _restore_tracker(tracker, states.get(name, {"num_steps": 0})["num_steps"])
    metrics, collections = metrics_of(module), _grouped_collections(module)
    known = metrics.keys() | collections.keys() | _trackers(module).keys()
    unknown = sorted(states.keys() - known)
    if unknown:
        rule = f"states of the module's metrics ({', '.join(sorted(known)) or 'none'})"
        raise ValueError(must_be("states", rule, unknown, type(module).__name__, _SAME))
    for name, metric in metrics.items():  # all before any is restored: a metric may reset others, which it wraps
        if name in states or _is_updated(metric):
            _reset(metric)
    copies: _Copies = {}
    for name, metric in metrics.items():
        if name in states:
            _restore(name, metric, states[name], copies)
    for name, collection in collections.items():
        _restore_groups(collection, states.get(name))


@attrs.frozen
class JoinedStates:
    """Metric states inside an epoch for a process that goes on for several others, or for none.

    Args:
        states: What `metric_states` gave in these processes, its own first.
        of_first: That of the first process, of which a process without an own one takes all but the metrics' states.
        are_merged: Whether any process goes on for several.
    """

    states: Sequence[dict[str, Any]]
    of_first: dict[str, Any]
    are_merged: bool

    def of(self, module: nn.Module) -> dict[str, Any]:
        """Return states for `restore_metric_states` of a module, which knows how its metrics reduce them.

        Raises:
            ValueError: If the states of a metric of several processes cannot be made one, or if those of one process
                would count otherwise among other processes.
        """
        metrics = metrics_of(module)
        for name in {**self.of_first, **{name: None for state in self.states for name in state}}:
            if name in metrics:
                _check_joinable(name, metrics[name], are_merged=self.are_merged)
        joined = {name: state for name, state in self.of_first.items() if name not in metrics}
        for states in self.states:
            for name, state in states.items():
                if name in metrics:
                    known = joined.get(name)
                    joined[name] = state if known is None else _joined(metrics[name], known, state)
        return joined


def _check_joinable(name: str, metric: Any, *, are_merged: bool) -> None:
    """Raise `ValueError` if states of a metric cannot be those of other numbers of processes."""
    reductions = getattr(metric, "_reductions", None)
    names = ["states"] if reductions is None and are_merged else []
    for state, reduction in (reductions or {}).items():
        is_list = isinstance(metric._defaults[state], list)
        kind = getattr(reduction, "__name__", None)
        if kind not in _JOINED_BY and not is_list and (reduction is not None or are_merged):
            names.append(state)
    if names:
        rule = f"that of the checkpoint, which was saved inside an epoch: {', '.join(names)} of the metric {name!r} "
        rule += "cannot be added up over processes"
        action = "Use as many processes, or resume from a checkpoint that was saved at an epoch's end."
        raise ValueError(must_be("number of processes", rule, "another one", type(metric).__name__, action))


def _joined(metric: Any, one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a metric with the updates of two processes."""

    def join(name: str, mine: Any, its: Any) -> Any:
        if isinstance(mine, list) or isinstance(its, list):
            return [*(mine if isinstance(mine, list) else [mine]), *(its if isinstance(its, list) else [its])]
        kind = getattr(getattr(metric, "_reductions", {}).get(name), "__name__", "")
        return _JOINED_BY[kind](mine, its.to(mine.device))

    states = {name: join(name, mine, other["states"][name]) for name, mine in one["states"].items()}
    counts = {name: count + other["counts"].get(name, 0) for name, count in one["counts"].items()}
    beside = {**other["beside_states"], **one["beside_states"]}
    for name, fold in (("min_val", torch.minimum), ("max_val", torch.maximum)):
        if name in one["beside_states"] and name in other["beside_states"]:
            beside[name] = fold(beside[name], other["beside_states"][name].to(beside[name].device))
    return {**one, "states": states, "counts": counts, "beside_states": beside}


def _detached_copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def metrics_of(module: nn.Module) -> dict[str, Any]:
    """Return the metrics in a module by name; see `metric_states`."""
    return {
        name: submodule
        for name, submodule in module.named_modules()
        if not isinstance(submodule, (nn.ModuleDict, nn.ModuleList))  # collections: their members hold the states
        and all(callable(getattr(submodule, method, None)) for method in ("update", "compute", "reset"))
        and hasattr(submodule, "metric_state")
    }


def _grouped_collections(module: nn.Module) -> dict[str, Any]:
    """Return the collections of torchmetrics whose metrics share states from their first update on."""
    dictionaries = {name: each for name, each in module.named_modules() if isinstance(each, nn.ModuleDict)}
    return {name: each for name, each in dictionaries.items() if getattr(each, "_enable_compute_groups", None) is True}


def _trackers(module: nn.Module) -> dict[str, Any]:
    lists = {name: each for name, each in module.named_modules() if isinstance(each, nn.ModuleList)}
    return {name: each for name, each in lists.items() if hasattr(each, "increment") and hasattr(each, "n_steps")}


def _is_updated(metric: Any) -> bool:
    """Return whether a metric differs from a new one."""
    attributes = vars(metric)
    counts = [attributes[count] for count in _COUNTS if count in attributes]
    is_beside = any(isinstance(attributes.get(name), Tensor) for name in _BESIDE_STATES)  # `reset` leaves them
    if any(counts) or is_beside or attributes.get("_forward_cache") is not None:
        return True
    defaults = getattr(metric, "_defaults", None)
    if defaults is None:
        return not counts  # cannot be known
    return not all(_is_default(getattr(metric, name), default) for name, default in defaults.items())


def _is_default(state: Any, default: Any) -> bool:
    if isinstance(state, Tensor) and isinstance(default, Tensor):
        return state.device == default.device and torch.equal(state, default)
    return type(state) is type(default) and not len(state)


def _state_of(name: str, metric: Any, copies: _Copies) -> dict[str, Any]:
    of_batch = vars(metric).get("_forward_cache")
    can_be_logged = of_batch.numel() == 1 if isinstance(of_batch, Tensor) else isinstance(of_batch, (int, float))
    return {
        "states": {state: _copied(value, f"{name}.{state}", copies) for state, value in metric.metric_state.items()},
        "counts": counts_of(metric),
        "of_batch": _copied(of_batch, name, copies) if can_be_logged else None,  # of other uses nothing is known
        "beside_states": _copied(beside_states(metric), name, copies),
    }


def counts_of(metric: Any) -> dict[str, Any]:
    """Return the attributes of a metric that count updates."""
    return {count: vars(metric)[count] for count in _COUNTS if count in vars(metric)}


def beside_states(metric: Any) -> dict[str, Tensor]:
    """Return the tensors that a metric keeps beside its states."""
    return {name: vars(metric)[name] for name in _BESIDE_STATES if isinstance(vars(metric).get(name), Tensor)}


def _reset(metric: Any) -> None:
    """Make a metric as good as new, also in what its `reset` leaves on purpose, such as an FID's real images."""
    metric.reset()
    for name, default in getattr(metric, "_defaults", {}).items():
        if not _is_default(getattr(metric, name), default):
            setattr(metric, name, default.detach().clone() if isinstance(default, Tensor) else [])
    for count in _COUNTS:
        if vars(metric).get(count):
            setattr(metric, count, 0)
    if vars(metric).get("_forward_cache") is not None:
        metric._forward_cache = None


def _restore(name: str, metric: Any, saved: dict[str, Any], copies: _Copies) -> None:
    current = metric.metric_state
    if current.keys() != saved["states"].keys():
        rule = f"those of {name!r} ({', '.join(sorted(current))})"
        raise ValueError(must_be("states", rule, sorted(saved["states"]), type(metric).__name__, _SAME))
    device = getattr(metric, "device", None)
    of_lists = "cpu" if getattr(metric, "compute_on_cpu", False) else device
    for state, value in saved["states"].items():
        target = current[state].device if isinstance(current[state], Tensor) else of_lists
        setattr(metric, state, _placed(value, target, copies))
    for attribute, value in (saved["beside_states"] | saved["counts"]).items():
        setattr(metric, attribute, _placed(value, device, copies))
    if saved["of_batch"] is not None:
        metric._forward_cache = _placed(saved["of_batch"], device, copies)


def _restore_groups(collection: Any, saved: dict[str, Any] | None) -> None:
    if saved is not None:
        collection._groups = dict(enumerate(list(members) for members in saved["compute_groups"]))
        collection._groups_checked, collection._state_is_copy = True, saved["is_copied"]
    elif collection._groups_checked:
        collection._groups = {idx: [name] for idx, name in enumerate(collection.keys(keep_base=True))}
        collection._groups_checked = collection._state_is_copy = False
        for metric in collection.values(copy_state=False):  # which share their states, even after a reset
            for state, value in metric.metric_state.items():
                setattr(metric, state, value.clone() if isinstance(value, Tensor) else list(value))


def _restore_tracker(tracker: Any, num_steps: int) -> None:
    while tracker.n_steps < num_steps:
        tracker.increment()
    for step in range(tracker.n_steps, num_steps, -1):
        delattr(tracker, str(step))  # `del tracker[step]` would rename the metric that it copies
    tracker._increment_called = num_steps > 0


def _copied(value: Any, where: str, copies: _Copies, copy: Callable[[Tensor], Tensor] = _detached_copy) -> Any:
    """Return a copy of tensors and plain values in lists, tuples and dictionaries, which become plain ones."""
    if isinstance(value, Tensor):
        if id(value) not in copies:
            copies[id(value)] = value, copy(value)
        return copies[id(value)][1]
    if isinstance(value, (list, tuple)):
        items = [_copied(item, where, copies, copy) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, dict):
        return {key: _copied(item, where, copies, copy) for key, item in value.items()}
    if type(value) in _PLAIN:
        return value
    rule, action = "made of tensors and plain values", "Keep it as a tensor."
    raise TypeError(must_be(where, rule, value, "metric_states", action))


def _placed(value: Any, device: Any, copies: _Copies) -> Any:
    """Return a copy of a saved value with its tensors on a device; None leaves them where they are."""
    return _copied(value, "state", copies, lambda tensor: tensor.to(device or tensor.device, copy=True))
