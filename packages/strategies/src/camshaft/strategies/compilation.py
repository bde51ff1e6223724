"""Compilation in place by `torch.compile`: what a step calls is compiled; names, state and copies stay as they are."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.strategies.checks import require
from camshaft.strategies.sharding.policy import blocks_of, check_policy, class_name

_NUM_WATCHED = 10
_RULE = "a bool or a dictionary of arguments of torch.compile"
_TO_CALL = (
    "Compute in `forward` or in a submodule, and call that in the step: `self(x)` or `self.net(x)`, not `.forward(x)`."
)


class CompiledParts:
    """Modules that are compiled in place, until `revert`.

    `nn.Module.compile` compiles no module whose code is torch's own, such as an `nn.Sequential`, in silence; this does.
    Modules of one structure share their graphs, as the layers of a transformer, and others have a cache of their own.
    Copies and pickles of a module are not compiled.

    Args:
        decorate: A function that compiles another, such as `torch.compile`.
    """

    def __init__(self, decorate: Callable[..., Any]) -> None:
        self._decorate = decorate
        self._functions: dict[Any, tuple[FunctionType, Any]] = {}
        self.parts: list[nn.Module] = []

    def compile_calls(self, parts: Iterable[nn.Module]) -> None:
        """Compile the calls of modules, but of those that are compiled already."""
        for part in parts:
            if part._compiled_call_impl is None:
                part._compiled_call_impl = partial(self._compiled(_call, part), part)
                self.parts.append(part)

    def compile_forwards(self, parts: Iterable[nn.Module]) -> None:
        """Compile the forward of modules for good, but not the hooks around it, such as those that gather parameters.

        Args:
            parts: The modules, which must be such that nobody copies them, as sharded ones are.
        """
        for part in parts:
            part.forward = partial(self._compiled(_forward, part), part.forward)

    def num_graphs(self) -> int:
        """Return the number of compilations of these modules so far, each for other shapes or modes."""
        from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list

        return sum(len(_debug_get_cache_entry_list(function.__code__)) for function, _ in self._functions.values())

    def revert(self) -> None:
        """Undo `compile_calls`; the graphs are kept for the next time."""
        for part in self.parts:
            part._compiled_call_impl = None
        self.parts.clear()

    def _compiled(self, function: Any, part: nn.Module) -> Any:
        kinds = tuple(type(inner) for inner in part.modules())
        shapes = tuple(None if is_lazy(parameter) else parameter.shape for parameter in part.parameters())
        key = (function, kinds, shapes)
        if key not in self._functions:
            # A copy of the code: Dynamo keeps graphs by code, and only a few for each.
            code = function.__code__.replace(co_name=f"{function.__name__}_of_{class_name(part)}")
            own = FunctionType(code, function.__globals__, code.co_name)
            self._functions[key] = own, self._decorate(own)
        return self._functions[key][1]


def _call(part: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a module: a frame that Dynamo takes, unlike those of torch's own modules."""
    return part._call_impl(*args, **kwargs)


def _forward(forward: Any, *args: Any, **kwargs: Any) -> Any:
    return forward(*args, **kwargs)


def parts_to_compile(module: nn.Module) -> list[nn.Module]:
    """Return the modules that a step may call: the module itself if it has a forward, its children, members of lists.

    Modules without parameters, and torchmetrics metrics, are not compiled by themselves.
    """
    metrics = sys.modules.get("torchmetrics")
    of_metrics = {
        id(inner)
        for part in module.modules()
        if metrics is not None and isinstance(part, metrics.Metric)
        for inner in part.modules()
    }
    has_forward = type(module).forward is not nn.Module.forward and next(module.parameters(), None) is not None
    blocks = [part for part in blocks_of(module, None) if id(part) not in of_metrics]
    return [*([module] if has_forward else []), *blocks]


class Compilation:
    """The compilation of a strategy's module, as its argument `compile` asks for it.

    Args:
        setting: True, or arguments of `torch.compile`; and perhaps "policy", which chooses the modules to compile, as
            that of `ShardedStrategy`.
        where: The class with the argument.

    Raises:
        TypeError: If the setting is neither, torch has no such argument, or the policy is none.
        ValueError: If no module can fulfil the policy.
    """

    def __init__(self, setting: bool | Mapping[str, Any], where: str) -> None:
        require(isinstance(setting, bool | Mapping), "compile", _RULE, setting, where, error=TypeError)
        options = dict(setting) if isinstance(setting, Mapping) else {}
        self._policy = options.pop("policy", None)
        check_policy("compile['policy']", self._policy, where)
        try:
            inspect.signature(torch.compile).bind(None, **options)
        except TypeError as error:
            raise TypeError(must_be("compile", _RULE, setting, where, f"Correct it: {error}.")) from error
        self._options = options
        self._compiled: CompiledParts | None = None
        self._name, self._is_used = "", False
        self._num_steps = self._num_before = 0

    def parts(self, module: nn.Module, sharded_blocks: Sequence[nn.Module] | None = None) -> list[nn.Module]:
        """Return the modules that are compiled; see `begin`."""
        if self._policy is not None:
            return blocks_of(module, self._policy, "compile['policy']")
        return parts_to_compile(module) if sharded_blocks is None else list(sharded_blocks)

    def begin(self, module: nn.Module, sharded_blocks: Sequence[nn.Module] | None = None) -> None:
        """Compile a module in place.

        Args:
            module: The module, on its device.
            sharded_blocks: Blocks that are sharded; without a policy they are compiled, for good. None if it is whole.

        Raises:
            ValueError: If a sharded module has nothing to compile, or a module has none of a policy's classes.
            Exception: Any error of `torch.compile`, such as for an unknown backend.
        """
        self._name, self._num_steps = class_name(module), 0
        if self._compiled is None:
            self._compiled = CompiledParts(torch.compile(**self._options))
        parts = self.parts(module, sharded_blocks)
        if sharded_blocks is not None:
            rule, action = "False for a module without sharded blocks", "Pass a policy that chooses some."
            require(bool(parts), "compile", rule, self._options or True, self._name, action)
            self._compiled.compile_forwards(parts)
            return
        self._compiled.compile_calls(parts)
        if not parts:
            self._is_used = True  # said once
            warn_user(
                f"`compile` compiles nothing: {self._name} has no forward or submodule with parameters. {_TO_CALL}"
            )

    def watching(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return the step, with a warning if the first training steps have called nothing that is compiled."""

        def run(*args: Any, **kwargs: Any) -> Any:
            if self._is_used or self._compiled is None or not torch.is_grad_enabled():
                return step(*args, **kwargs)
            if self._num_steps == 0:
                self._num_before = self._compiled.num_graphs()
            result = step(*args, **kwargs)
            self._num_steps += 1
            if self._num_steps == _NUM_WATCHED:
                self._warn_if_unused(self._compiled)
            return result

        return run

    def end(self) -> None:
        """Undo what `begin` did to a module that is whole."""
        if self._compiled is not None:
            if self._num_steps and not self._is_used:
                self._warn_if_unused(self._compiled)
            self._compiled.revert()
        self._num_steps = 0

    def _warn_if_unused(self, compiled: CompiledParts) -> None:
        self._is_used = True
        if compiled.num_graphs() == self._num_before and not torch._dynamo.config.disable:
            warn_user(
                f"`compile` compiled nothing of {self._name} in {self._num_steps} training steps: they call none of "
                "the modules that it compiles, or Dynamo can trace none of these (TORCH_LOGS=graph_breaks says why). "
                + _TO_CALL
            )
