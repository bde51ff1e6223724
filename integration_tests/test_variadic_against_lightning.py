"""Steps and batch hooks that take arguments variadically get on camshaft what they get on Lightning."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

lightning = pytest.importorskip("lightning.pytorch", reason="compares with Lightning")
trainer = pytest.importorskip("camshaft.trainer")
from camshaft import callbacks  # noqa: E402

STEPS = {"validate": "validation_step", "test": "test_step", "predict": "predict_step"}
WORDS = {"validate": "validation", "test": "test", "predict": "predict"}
DATA = DataLoader(torch.arange(2.0).reshape(2, 1))  # type: ignore[arg-type]


def shown(values: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
    """What was received, in plain values."""
    words = [value.tolist() if isinstance(value, torch.Tensor) else value for value in values]
    return [word if isinstance(word, int | list | str | None) else type(word).__name__ for word in words] + [named]


def recording(calls: list[Any], *arguments: Any, **named: Any) -> torch.Tensor:
    calls.append(shown(arguments, named))
    return torch.zeros(1)


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *args, **kwargs: function(self, *args, **kwargs)


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    return functools.wraps(function)(plain(function))


def narrower(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def only_two(self: Any, batch: Any, batch_idx: int) -> Any:
        return function(self, batch, batch_idx)

    return only_two


def forms(calls: list[Any]) -> dict[str, Any]:
    """Steps as people write them."""
    record = functools.partial(recording, calls)

    def two(self: Any, batch: Any, batch_idx: int) -> Any:
        return record(batch, batch_idx)

    def three(self: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        return record(batch, batch_idx, dataloader_idx)

    def perhaps(self: Any, batch: Any, batch_idx: int, dataloader_idx: int | None = None) -> Any:
        return record(batch, batch_idx, dataloader_idx)

    def star(self: Any, *args: Any) -> Any:
        return record(*args)

    def star_and_keywords(self: Any, *args: Any, **kwargs: Any) -> Any:
        return record(*args, **kwargs)

    def batch_and_star(self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        return record(batch, *args, **kwargs)

    def keywords(self: Any, batch: Any, batch_idx: int, **kwargs: Any) -> Any:
        return record(batch, batch_idx, **kwargs)

    def batch_and_keywords(self: Any, batch: Any, **kwargs: Any) -> Any:
        return record(batch, **kwargs)

    def shared(self: Any, batch: Any, batch_idx: int, dataloader_idx: int | None = None, *, stage: str) -> Any:
        return record(batch, batch_idx, dataloader_idx, stage)

    def staged(self: Any, batch: Any, batch_idx: int, stage: str = "val") -> Any:
        return record(batch, batch_idx, stage)

    return {
        "two": two,
        "three": three,
        "perhaps": perhaps,
        "star": star,
        "star and keywords": star_and_keywords,
        "batch and star": batch_and_star,
        "keywords": keywords,
        "batch and keywords": batch_and_keywords,
        "staged": staged,
        "no gradients": torch.no_grad()(perhaps),
        "decorated star": wrapped(star),
        "decorated": plain(two),
        "decorated with names": wrapped(two),
        "decorated with a default": wrapped(perhaps),
        "decorated, perhaps an index": plain(perhaps),
        "narrower decorator": narrower(perhaps),
        "partial method": functools.partialmethod(shared, stage="val"),
    }


def run(framework: ModuleType, callback: type, verb: str, method: Any, num_loaders: int, is_bound: bool) -> str:
    """Run a verb; returns the kind of error that it raised, if any."""
    base = framework.LightningModule if framework is lightning else framework.TrainingModule
    namespace = {"shared_step" if is_bound else STEPS[verb]: method}
    if is_bound:

        def initialize(self: Any) -> None:
            base.__init__(self)
            setattr(self, STEPS[verb], self.shared_step)

        namespace["__init__"] = initialize
    model = type("Model", (base,), namespace)()
    runner = framework.Trainer(
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
        callbacks=[callback()],
    )
    try:
        getattr(runner, verb)(model, [DATA] * num_loaders if num_loaders > 1 else DATA)
    except (RuntimeError, TypeError) as error:
        return type(error).__name__
    return ""


def both(
    verb: str, form: str, num_loaders: int, is_bound: bool = False, callback: str = "", hook: str = ""
) -> list[tuple[list[Any], str]]:
    """What was received on Lightning and on camshaft, and how it ended."""
    found = []
    for framework, base in ((lightning, lightning.Callback), (trainer, callbacks.Callback)):
        calls: list[Any] = []
        of_callback = {hook: forms(calls)[callback]} if callback else {}
        method = forms(calls if not callback else [])[form]
        error = run(framework, type("Watching", (base,), of_callback), verb, method, num_loaders, is_bound)
        found.append((calls, error))
    return found


NAMES = sorted(forms([]))
REFUSED_BY_LIGHTNING = {
    "two": [[[0.0]], 0, {}],
    "staged": [[[0.0]], 0, "val", {}],
    "keywords": [[[0.0]], 0, {"dataloader_idx": 0}],
    "batch and keywords": [[[0.0]], {"dataloader_idx": 0}],
    "narrower decorator": [[[0.0]], 0, None, {}],
    "decorated with names": [[[0.0]], 0, {}],
    "decorated": None,
}
"""Forms that Lightning refuses with several loaders, and what their first call gets on camshaft if it does not fail."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("num_loaders", [1, 2])
@pytest.mark.parametrize("form", NAMES)
@pytest.mark.parametrize("verb", sorted(STEPS))
def test_a_step_gets_the_same(verb: str, form: str, num_loaders: int) -> None:
    theirs, ours = both(verb, form, num_loaders)
    if num_loaders == 1 or form not in REFUSED_BY_LIGHTNING:
        assert theirs[1] == ""
        assert ours == theirs
    else:
        assert theirs[1] != ""
        assert (ours[0][0] if ours[0] else None) == REFUSED_BY_LIGHTNING[form]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", [name for name in NAMES if name != "partial method"])
def test_a_step_that_is_an_attribute_of_the_instance_gets_the_same(form: str) -> None:
    theirs, ours = both("validate", form, 1, is_bound=True)
    assert ours == theirs


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("num_loaders", [1, 2])
@pytest.mark.parametrize("form", ["star", "star and keywords", "batch and star", "decorated star"])
@pytest.mark.parametrize("place", ["start", "end"])
@pytest.mark.parametrize("verb", sorted(STEPS))
def test_a_batch_hook_of_a_callback_gets_the_same(verb: str, form: str, num_loaders: int, place: str) -> None:
    theirs, ours = both(verb, "perhaps", num_loaders, callback=form, hook=f"on_{WORDS[verb]}_batch_{place}")
    assert ours == theirs
    assert theirs[1] == ""
