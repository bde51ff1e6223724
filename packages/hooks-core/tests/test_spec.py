from __future__ import annotations

from typing import get_args

import pytest

from camshaft.hooks_core.spec import ZERO_GRADS, HookSpec, Receiver, ZeroGrad


def spec_of_two_eras() -> HookSpec:
    return HookSpec(
        "on_lunch",
        "At noon.",
        (Receiver.CALLBACK, Receiver.MODULE),
        ("menu", "hour"),
        eras=("0.8", "2.x"),
        signatures={"0.8": ("menu",)},
    )


@pytest.mark.parametrize(
    ("era", "parameters"), [(None, ("menu", "hour")), ("2.x", ("menu", "hour")), ("0.8", ("menu",))]
)
def test_parameters_are_those_of_the_era(era: str | None, parameters: tuple[str, ...]) -> None:
    assert spec_of_two_eras().parameters_in(era) == parameters


@pytest.mark.parametrize("era", ["0.5", "0.7", "0.8"])
def test_eras_before_2_know_the_module_as_only_receiver(era: str) -> None:
    assert spec_of_two_eras().receivers_in(era) == (Receiver.MODULE,)


def test_receivers_of_today_are_those_of_the_record() -> None:
    assert spec_of_two_eras().receivers_in("2.x") == (Receiver.CALLBACK, Receiver.MODULE)
    assert spec_of_two_eras().receivers_in(None) == (Receiver.CALLBACK, Receiver.MODULE)


def test_a_hook_is_current_if_2_x_knows_it() -> None:
    assert spec_of_two_eras().is_current
    assert not HookSpec("on_tea", "At five.", (Receiver.MODULE,), eras=("0.5",)).is_current


def test_a_kept_hook_is_current_although_2_x_does_not_know_it() -> None:
    assert HookSpec("on_tea", "At five.", (Receiver.MODULE,), eras=("0.5",), kept=True).is_current


def test_optional_parameters_are_those_of_today() -> None:
    spec = HookSpec("on_lunch", "At noon.", (Receiver.MODULE,), ("menu",), eras=("0.8", "2.x"), optional=("guest",))
    assert spec.optional_in(None) == ("guest",)
    assert spec.optional_in("0.8") == spec.optional_in("2.x") == ()
    assert spec.parameters_in(None) == ("menu",)


def test_places_of_zeroing_are_the_three_of_the_type() -> None:
    assert get_args(ZeroGrad) == ZERO_GRADS
    assert len(ZERO_GRADS) == 3


def test_specs_can_be_told_apart_in_sets() -> None:
    assert len({spec_of_two_eras(), spec_of_two_eras()}) == 1
