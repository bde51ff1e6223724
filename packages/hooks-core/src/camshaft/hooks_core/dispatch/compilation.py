"""Compilation of a hook's calls to one function with generated source."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any, Protocol

from camshaft.hooks_core.dispatch.calls import HookCall
from camshaft.hooks_core.spec import SKIP_EPOCH, HookSpec
from camshaft.hooks_core.support.messages import add_note, describe

Position = Callable[[], str]
"""Return the run's position: stage, epoch, batch, rank. Called only when something was raised."""


class Place(Protocol):
    """Reader of the name of the hook that runs, such as the metric log.

    Attributes:
        hook: The name of the innermost hook that runs; None outside of all. Set at each call, so it stays plain.
    """

    hook: str | None


def compile_calls(
    spec: HookSpec,
    calls: Sequence[HookCall],
    trainer: object,
    module: object,
    position: Position,
    place: Place | None = None,
) -> Callable[..., Any]:
    """Return one function that makes the calls of a hook one after the other.

    Its source is generated, because a written-out call is as cheap as one by hand, whatever the receivers' signatures.
    It tells `place`, if there is one, which hook runs: a load and two stores, some 30 nanoseconds.
    """
    defaults = {name: value for call in calls for name, value in call.fixed.items()}
    if spec.kind != "event":  # the receivers of an event need not agree on theirs
        defaults |= calls[-1].defaults
    lines, call_lines = _lines(spec, calls, defaults, tells_place=place is not None)
    source = "\n".join(lines) + "\n"

    def note(error: BaseException) -> None:
        traceback = error.__traceback__
        assert traceback is not None
        call = calls[call_lines.index(traceback.tb_lineno)]
        add_note(error, call.receiver, call.hook, position())

    names: dict[str, Any] = {f"call_{number}": call.function for number, call in enumerate(calls)}
    names |= {f"default_{name}": default for name, default in defaults.items()}
    names |= {"trainer": trainer, "module": module, "note": note, "place": place}
    exec(_code(source, spec.name), names)
    function: Callable[..., Any] = names[spec.name]
    return function


def compile_isolated(
    spec: HookSpec, calls: Sequence[HookCall], trainer: object, module: object, position: Position
) -> Callable[..., Any]:
    """Return one function that makes every call of a hook, whatever the others raise."""
    singles = [compile_calls(spec, [call], trainer, module, position) for call in calls]

    def isolated(*arguments: Any) -> None:
        raised: list[BaseException] = []
        for single in singles:
            try:
                single(*arguments)
            except BaseException as error:
                raised.append(error)
        if raised:
            for further in raised[1:]:
                raised[0].add_note(f"Then {describe(further)}")
            raise raised[0]

    return isolated


def is_compiled_hook(code: CodeType) -> bool:
    """Return whether code is that of a hook, as `compile_calls` makes it; its name is the hook's."""
    return code.co_filename.startswith(_FILENAME)


_FILENAME = "<camshaft "


def _lines(
    spec: HookSpec, calls: Sequence[HookCall], defaults: Collection[str], *, tells_place: bool
) -> tuple[list[str], list[int]]:
    """Return the lines of the function, and the number of the line in which each call is."""
    names = dict.fromkeys([*spec.optional, *defaults])
    optional = [f"{name}=default_{name}" if name in defaults else f"{name}=None" for name in names]
    lines = [f"def {spec.name}({', '.join([*spec.parameters, *optional])}):", "    result = None"]
    lines += ["    outer = place.hook"] if tells_place else []
    lines.append("    try:")
    call_lines: list[int] = []
    hook = None
    for number, one in enumerate(calls):
        if tells_place and one.hook != hook:
            lines.append(f"        place.hook = {one.hook!r}")
            hook = one.hook
        call_lines.append(len(lines) + 1)
        call = f"call_{number}({', '.join(str(argument) for argument in one.arguments)})"
        if one.condition:
            call = f"({call} if {one.condition} else None)"
        if spec.can_skip_epoch:
            lines.append(f"        if {call} == {SKIP_EPOCH}: result = {SKIP_EPOCH}")
        elif spec.kind == "event" or number < len(calls) - 1:
            lines.append(f"        {call}")
        else:
            lines.append(f"        return {call}")
    lines += [
        "    except BaseException as error:",
        "        note(error)",
        "        raise",
    ]
    lines += ["    finally:", "        place.hook = outer"] if tells_place else []
    lines.append("    return result")
    return lines, call_lines


@lru_cache(maxsize=512)
def _code(source: str, name: str) -> CodeType:
    filename = f"{_FILENAME}{name} {hash(source) & 0xFFFFFFFF:08x}>"
    # so that tracebacks and debuggers can show the lines
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    return compile(source, filename, "exec")
