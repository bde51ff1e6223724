"""The translation of arguments of earlier releases by the rows of a table, with one warning for all."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.trainer.configuration import listed

_WHERE = "Trainer"


@attrs.frozen(kw_only=True)
class Translation:
    """The translation of an argument of an earlier release.

    Attributes:
        arguments: Today's arguments.
        callbacks: Callbacks that do it.
        settings: What else the trainer is to know: fields of `EarlierSettings`.
        remark: What the note says beside these, or in their place.
    """

    arguments: Mapping[str, Any] = attrs.field(factory=dict)
    callbacks: tuple[Any, ...] = ()
    settings: Mapping[str, Any] = attrs.field(factory=dict)
    remark: str = ""


Translate = Callable[[str, Any, Mapping[str, Any]], Translation | None]
"""From the name, the value, and all arguments that were passed; None for a value that is one of today."""


@attrs.frozen
class EarlierArgument:
    """An argument of earlier releases, or one of today that took other values.

    Attributes:
        name: Its name.
        releases: The first and the last release that had it, or took the values.
        today: What corresponds, for documents.
        translate: Gives what it is today, or raises `ValueError` or `TypeError`.
        nothing: Values that ask for nothing.
        default: The value that command lines have for it.
    """

    name: str
    releases: tuple[str, str]
    today: str
    translate: Translate
    nothing: tuple[Any, ...] = (None,)
    default: Any = None

    def asks_for_nothing(self, value: Any) -> bool:
        """Return whether a value asks for the default."""
        return any(_is_same(value, one) for one in self.nothing)


@attrs.frozen(kw_only=True)
class EarlierSettings:
    """Settings from arguments of earlier releases that a trainer keeps for later.

    Attributes:
        ckpt_path: What every fit resumes from.
        lr_find: What `tune` searches a learning rate with.
        scale_batch_size: What `tune` searches a batch size with.
        of_module: Attributes that the module is to have.
        cluster_environment: The plugin that knows the ranks.
        checkpoint_io: The plugin that writes and reads checkpoints.
    """

    ckpt_path: Any = None
    lr_find: Any = None
    scale_batch_size: Any = None
    of_module: Mapping[str, Any] = attrs.field(factory=dict)
    cluster_environment: Any = None
    checkpoint_io: Any = None


def set_attributes(settings: Mapping[str, Any], trainer: Any, module: Any, stage: str) -> None:
    """Set attributes of the module; the `setup` of a callback.

    Args:
        settings: Their values by name.
        trainer, module, stage: What `setup` gets.
    """
    for name, value in settings.items():
        setattr(module, name, value)


def translate_arguments(
    given: Mapping[str, Any], defaults: Mapping[str, Any], table: Mapping[str, EarlierArgument]
) -> tuple[dict[str, Any], EarlierSettings]:
    """Return today's arguments for the given ones, and the trainer's settings; warn once if any was translated.

    Args:
        given: The arguments.
        defaults: Names and defaults of today's.
        table: The rows, by name.

    Raises:
        TypeError: If a name is none of either.
        ValueError: If nothing corresponds, or two arguments ask for different things.
    """
    arguments = {name: value for name, value in given.items() if name in defaults and name not in table}
    translations: dict[str, Translation] = {}
    for name, value in given.items():
        row = table.get(name)
        if row is None and name not in defaults:
            close = difflib.get_close_matches(name, [*defaults, *table], n=1, cutoff=0.5)
            guess = f"Did you mean {close[0]!r}?" if close else "See the arguments in its documentation."
            raise TypeError(f"Trainer() got an unexpected keyword argument {name!r}. {guess}")
        if row is None or row.asks_for_nothing(value):
            continue
        translation = row.translate(name, value, given)
        if translation is None:
            arguments[name] = value
        else:
            translations[name] = translation
    sources: dict[str, str | None] = dict.fromkeys(arguments)
    settings: dict[str, Any] = {}
    for name, translation in translations.items():
        for today, value in translation.arguments.items():
            other, source = arguments.get(today, value), sources.get(today)
            is_unchosen = source is None and (other is None or _is_same(other, defaults[today]))
            if not (is_unchosen or _is_same(other, value) or (today == "logger" and other is True)):
                beside = f"{today}={other!r}" if source is None else f"{source}, which is {today}={other!r} today"
                rule = f"in agreement with {beside}, and not {today}={value!r}"
                raise ValueError(must_be(name, rule, given[name], _WHERE, f"Pass `{today}` alone."))
            arguments[today], sources[today] = value, name
        for setting, value in translation.settings.items():
            settings[setting] = {**settings.get(setting, {}), **value} if isinstance(value, dict) else value
    callbacks = [callback for translation in translations.values() for callback in translation.callbacks]
    if callbacks:
        arguments["callbacks"] = [*listed(arguments.get("callbacks")), *callbacks]
    notes = [_note(name, given[name], translation) for name, translation in translations.items()]
    if notes:
        told = f" {notes[0]}." if len(notes) == 1 else "".join(f"\n  {note}" for note in notes)
        warn_user(f"Arguments of the trainer with another form today:{told}")
    return arguments, EarlierSettings(**settings)


def _note(name: str, value: Any, translation: Translation) -> str:
    today = [f"`{argument}={one!r}`" for argument, one in translation.arguments.items()]
    if translation.callbacks:
        today.append(f"`callbacks=[{', '.join(f'{type(one).__name__}(...)' for one in translation.callbacks)}]`")
    if not today:
        return f"`{name}={value!r}` {translation.remark}"
    remark = translation.remark and f" ({translation.remark})"
    return f"`{name}={value!r}` is {' with '.join(today)} today{remark}"


def _is_same(value: Any, other: Any) -> bool:
    return value is other or (type(value) is type(other) and bool(value == other))
