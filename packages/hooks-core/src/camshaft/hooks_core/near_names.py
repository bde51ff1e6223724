"""Methods whose names are nearly those of hooks: nobody calls them, and their owners believe that a run does."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import lru_cache

from camshaft.hooks_core.binding import BindingError, names_parameter
from camshaft.hooks_core.catalogue import CATALOGUE, Catalogue
from camshaft.hooks_core.implementation import implementation
from camshaft.hooks_core.method_source import mentions_method
from camshaft.hooks_core.methods import bind_hook, is_own_name, own_classes
from camshaft.hooks_core.spec import HookSpec, Receiver

_SYNONYMS = {
    **dict.fromkeys(("training",), "train"),
    **dict.fromkeys(("validate", "validating", "valid", "val"), "validation"),
    **dict.fromkeys(("testing",), "test"),
    **dict.fromkeys(("prediction", "predicting"), "predict"),
    **dict.fromkeys(("begin", "begins", "beginning", "started", "starting"), "start"),
    **dict.fromkeys(("ended", "ending", "finish", "finished"), "end"),
    "batches": "batch",
    "optimiser": "optimizer",
    "optimisers": "optimizer",
}
_FIRST_OF_EVENTS, _LAST_OF_EVENTS = ("before", "after"), ("start", "end")
_ENDS_OF_EARLIER_ERAS = ("_epoch_end", "_step_end")
_MIN_TYPO_LENGTH = 5


def meant_hook(receiver: object, name: str, kind: Receiver, catalogue: Catalogue) -> HookSpec | None:
    """Return the hook that a method of a similar name was meant to be, or None if it is a method of the user's own.

    The name says the same in other words (`training_batch_end`, `val_dataloaders`) or has one typing error, and the
    signature takes the hook's arguments. A method is the user's own if the hook is there as well, if the class's code
    mentions it, or if its name comes from a base class of torch, of Lightning or of camshaft.

    Args:
        receiver: A callback, module or data module, or the class of one.
        name: The method's name, which is no hook of this kind of receiver.
        kind: Which of these it is.
        catalogue: The hooks.
    """
    if kind is Receiver.STRATEGY or name.startswith("_") or not _meaning(name) or not is_own_name(receiver, name):
        return None
    method = implementation(receiver, name)
    near = [spec for spec in catalogue.received_by(kind) if _is_near(name, spec)]
    near.sort(key=lambda spec: not spec.is_current)
    spec = next((spec for spec in near if inspect.isroutine(method) and _fits(method, spec, kind)), None)
    if spec is None or implementation(receiver, spec.name) is not None:
        return None
    return None if mentions_method(own_classes(receiver), name) else spec


def _is_near(name: str, spec: HookSpec) -> bool:
    is_known = spec.is_current or (spec.kind == "override" and spec.name.endswith(_ENDS_OF_EARLIER_ERAS))
    if spec.kind == "state" or not is_known:
        return False
    if spec.kind == "step":  # `train_step` and `val_step` are everyday names
        return _meaning(name, in_other_words=False) == spec.name.replace("_", "")
    if spec.name.startswith("on_") and not (name.startswith("on_") or _is_moment(name)):
        return False  # such as `save_checkpoint`
    return _meaning(name) == _meaning(spec.name)


def _is_moment(name: str) -> bool:
    first, *_, last = name.split("_") if "_" in name else ("", name)
    return first in _FIRST_OF_EVENTS or _SYNONYMS.get(last, last) in _LAST_OF_EVENTS


@lru_cache(maxsize=1024)
def _meaning(name: str, *, in_other_words: bool = True) -> str:
    """Return a name without `on_`, plurals, underscores and a typing error, and in the words of today's hooks.

    It is empty for a name that has other words than hooks have.
    """
    words = _corrected(name.removeprefix("on_").split("_"))
    return "".join(_singular(_SYNONYMS.get(word, word) if in_other_words else word) for word in words)


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def _corrected(words: list[str]) -> list[str]:
    """Return the words with a typing error in one of them corrected; none if they are no words of hooks."""
    known = _vocabulary()
    unknown = [word for word in words if word not in known and _singular(word) not in known]
    if not unknown:
        return words
    meant = next((one for one in sorted(known) if _is_typo(unknown[0], one)), None)
    if len(unknown) == 1 and meant is not None:
        return [meant if word == unknown[0] else word for word in words]
    return words if "".join(words) in known else []  # `set_up`


@lru_cache(maxsize=1)
def _vocabulary() -> frozenset[str]:
    return frozenset({*(word for name in CATALOGUE for word in name.split("_")), *_SYNONYMS, "loader"})


def _is_typo(word: str, meant: str) -> bool:
    """Return whether a word is another with neighbours swapped or, if it is long enough, a letter wrong, left out or
    doubled."""
    if word[:1] != meant[:1]:
        return False
    pairs = enumerate(zip(word, meant, strict=False))
    common = next((place for place, (letter, other) in pairs if letter != other), min(len(word), len(meant)))
    rest, rest_meant = word[common:], meant[common:]
    if rest[1::-1] + rest[2:] == rest_meant:
        return True
    return len(meant) >= _MIN_TYPO_LENGTH and (
        rest[1:] == rest_meant[1:] or rest[1:] == rest_meant or rest == rest_meant[1:]
    )


def _fits(method: object, spec: HookSpec, kind: Receiver) -> bool:
    """Return whether a method takes a hook's arguments in some era, and any at all if it has some."""
    assert callable(method)
    if spec.parameters == ("stage",) and not names_parameter(method, "stage"):
        return False  # `set_up` and `tear_down` are everyday names
    takes_some = bool(spec.parameters) or (kind is Receiver.CALLBACK and spec.kind == "event")
    for era in _eras(spec, kind):
        try:
            arguments = bind_hook(method, spec, kind, era)
        except BindingError:
            continue
        if arguments or not takes_some:
            return True
    return False


def _eras(spec: HookSpec, kind: Receiver) -> Iterator[str | None]:
    if spec.is_current:
        yield None
    yield from (era for era in spec.eras if kind in spec.receivers_in(era))
