"""Several optimizers that step together, on one loss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from itertools import chain
from typing import Any, ClassVar

import attrs
import torch
from torch import nn
from torch.optim import Optimizer

from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.hooks_core.support.optimizer_step import needs_closure

_WHERE = "JointOptimizer"


class JointOptimizer(Optimizer):
    """One optimizer made of several that each update some of a model's parameters, from one loss.

    The usual case is Muon for matrices and AdamW for all other parameters. Loops, strategies and callbacks see one
    optimizer with the groups of all: gradients are clipped over all parameters, hooks are called once per update, a
    scheduler over it sets all learning rates (one over a part sets that part's). `step` steps the optimizers in turn.

    State dicts have torch's form, with parameters numbered through all groups, so checkpoints of a `JointOptimizer` are
    sharded and read as those of any optimizer. `param_groups` and `state` are views of what the parts hold.

    Args:
        *optimizers: The optimizers, in the order in which they step.

    Attributes:
        optimizers: The optimizers. A parameter group is added to one of them, by its `add_param_group`.

    Raises:
        TypeError: If one is no `torch.optim.Optimizer`, or its `step` needs a closure.
        ValueError: If there is none, or two of them update the same parameter.

    Example:
        >>> from torch import nn
        >>> layer = nn.Linear(4, 4)
        >>> muon = torch.optim.Muon([layer.weight], lr=0.02)
        >>> adamw = torch.optim.AdamW([layer.bias], lr=3e-4)
        >>> [group["lr"] for group in JointOptimizer(muon, adamw).param_groups]
        [0.02, 0.0003]
    """

    optimizers: tuple[Optimizer, ...]
    calls_closure_first: ClassVar[bool] = True  # loops need not hand it one
    _num_groups = 0  # as they were checked

    def __init__(self, *optimizers: Optimizer) -> None:
        _check_parts(optimizers)
        first, *others = (one.defaults for one in optimizers)
        shared = {name: first[name] for name in first if all(name in other for other in others)}
        # what torch's constructor does, but that it makes groups and a state of its own
        self.__setstate__({"optimizers": optimizers, "defaults": shared})

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The parameter groups of all parts, in order."""
        return [group for one in self.optimizers for group in one.param_groups]

    @property
    def state(self) -> MutableMapping[Any, Any]:  # type: ignore[override]
        """The states of all parameters, which the parts hold."""
        return _States(self.optimizers)

    def __getstate__(self) -> dict[str, Any]:
        return {"optimizers": self.optimizers, "defaults": self.defaults}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raise `ValueError`, as it is open which part is to update the group."""
        action = "Call `add_param_group` of one of its `optimizers`."
        raise ValueError(must_be("param_group", "added to one of the optimizers", sorted(param_group), _WHERE, action))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Zero the gradients of all parts; see `torch.optim.Optimizer.zero_grad`."""
        for one in self.optimizers:
            one.zero_grad(set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step the optimizers in turn.

        Args:
            closure: Computes the loss and its gradients, once, before the first of them steps.

        Returns:
            What the closure returned; None without one.

        Raises:
            ValueError: If a group was added to one of the optimizers with a parameter of another.
        """
        num_groups = sum(len(one.param_groups) for one in self.optimizers)
        if num_groups != self._num_groups:
            _check_parts(self.optimizers)
            self._num_groups = num_groups
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for one in self.optimizers:
            one.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return groups and states of all parts in torch's form; what else a part has is under `"parts"`, by index."""
        for before in self._optimizer_state_dict_pre_hooks.values():
            before(self)
        joined: dict[str, Any] = {"state": {}, "param_groups": []}
        further, num_parameters = {}, 0
        for idx, one in enumerate(self.optimizers):
            own = one.state_dict()
            further[idx] = {key: value for key, value in own.items() if key not in joined}
            for group in own["param_groups"]:
                joined["param_groups"].append({**group, "params": [num_parameters + at for at in group["params"]]})
            joined["state"].update({num_parameters + at: value for at, value in own["state"].items()})
            num_parameters += sum(len(group["params"]) for group in own["param_groups"])
        if any(further.values()):
            joined["parts"] = further
        for after in self._optimizer_state_dict_post_hooks.values():
            joined = after(self, joined) or joined
        return joined

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what `state_dict` returned, each part its own.

        Raises:
            ValueError: If the number of parameter groups is another, or the size of one.
        """
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = before(self, state_dict) or state_dict  # type: ignore[arg-type]
        groups = list(state_dict["param_groups"])
        if len(groups) != len(self.param_groups):
            rule, action = f"as many as there are parameter groups, {len(self.param_groups)}", "Load its own state."
            raise ValueError(must_be("param_groups", rule, len(groups), f"{_WHERE}.load_state_dict", action))
        for idx, one in enumerate(self.optimizers):
            own, groups = groups[: len(one.param_groups)], groups[len(one.param_groups) :]
            numbers = set(chain.from_iterable(group["params"] for group in own))
            states = {at: value for at, value in state_dict["state"].items() if at in numbers}
            one.load_state_dict({"state": states, "param_groups": own, **state_dict.get("parts", {}).get(idx, {})})
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def warn_of_left_out(self, module: nn.Module) -> None:
        """Warn of parameters of a module that require gradients and that no part updates. Not collective."""
        own = {id(parameter) for group in self.param_groups for parameter in group["params"]}
        left_out = [name for name, one in module.named_parameters() if one.requires_grad and id(one) not in own]
        if left_out:
            shown = ", ".join(left_out[:3]) + (f" and {len(left_out) - 3} more" if len(left_out) > 3 else "")
            warn_user(
                f"No part of the {_WHERE} updates {shown}, which require gradients. Give them to one, or call"
                " `requires_grad_(False)` on them."
            )


def _check_parts(optimizers: tuple[Optimizer, ...]) -> None:
    if not optimizers:
        raise ValueError(must_be("optimizers", "at least one optimizer", optimizers, _WHERE, "Pass the optimizers."))
    for one in optimizers:
        if not isinstance(one, Optimizer):
            action = "Pass each as an argument of its own: JointOptimizer(muon, adamw)."
            raise TypeError(must_be("optimizers", "torch.optim.Optimizer objects", type(one), _WHERE, action))
        if needs_closure(one):
            rule, action = "optimizers whose `step` needs no closure", "Leave it out, or optimize by hand."
            raise TypeError(must_be("optimizers", rule, one, _WHERE, action))
    parts = [{id(each): each for group in one.param_groups for each in group["params"]} for one in optimizers]
    counts = Counter(chain.from_iterable(parts))
    for part in parts:
        shared = [tuple(parameter.shape) for key, parameter in part.items() if counts[key] > 1]
        if shared:
            rule, action = "optimizers of different parameters", "Give each parameter to one of them."
            got = f"{len(shared)} in two of them, the first of shape {shared[0]}"
            raise ValueError(must_be("optimizers", rule, got, _WHERE, action))


@attrs.frozen(eq=False)
class _States(MutableMapping[Any, Any]):
    """The states of several optimizers by parameter, each held by the optimizer of the parameter."""

    optimizers: tuple[Optimizer, ...]

    def __getitem__(self, key: Any) -> Any:
        return self._held_by(key)[key]

    def get(self, key: Any, default: Any = None) -> Any:
        """Return a parameter's state, or the default, without beginning one as `[key]` does."""
        return self[key] if key in self else default  # noqa: SIM401

    def __setitem__(self, key: Any, value: Any) -> None:
        self._held_by(key)[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._held_by(key)[key]

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(one.state for one in self.optimizers)

    def __len__(self) -> int:
        return sum(len(one.state) for one in self.optimizers)

    def __contains__(self, key: object) -> bool:
        return any(key in one.state for one in self.optimizers)

    def _held_by(self, key: Any) -> MutableMapping[Any, Any]:
        for one in self.optimizers:
            if key in one.state or any(key is each for group in one.param_groups for each in group["params"]):
                return one.state
        raise KeyError(key)
