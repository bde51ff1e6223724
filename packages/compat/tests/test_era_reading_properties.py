from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from camshaft.compat.eras import read_era
from camshaft.hooks_core import CATALOGUE, Receiver
from camshaft.hooks_core.dispatch.binding import arguments_of, bind
from camshaft.hooks_core.eras.hooks import EARLIER_ERAS, EVERYDAY_NAMES, EraSpec, hooks_of_eras


@pytest.mark.parametrize("spec", hooks_of_eras().values(), ids=lambda spec: spec.name)
def test_an_old_signature_alone_is_read_as_old_wherever_today_does_not_know_it(spec: EraSpec) -> None:
    for kind in spec.receivers:
        for era in EARLIER_ERAS:
            if era not in spec.eras or kind not in spec.receivers_in(era):
                continue
            klass = build([(spec, kind, era, False)])
            reading = read_era(klass, kind, CATALOGUE)
            if reading.as_earlier is not None:
                assert spec.kind in ("event", "provide") and not spec.is_current  # a left-over
                reading = reading.as_earlier
            by_today = spec.is_current and _binds(klass, spec, kind, None)
            if not reading.is_of_today:
                assert spec.name in reading.methods or by_today
            else:
                assert by_today or spec.name in EVERYDAY_NAMES


Drawn = tuple[EraSpec, Receiver, str, bool]


@st.composite
def classes_of_an_era(draw: st.DrawFn) -> tuple[str, Receiver, list[Drawn]]:
    era = draw(st.sampled_from(EARLIER_ERAS))
    kind = draw(st.sampled_from([Receiver.MODULE, Receiver.MODULE, Receiver.CALLBACK, Receiver.DATA]))
    known = [
        spec
        for spec in hooks_of_eras().values()
        if era in spec.eras and kind in spec.receivers_in(era) and spec.kind != "state"
    ]
    specs = draw(st.lists(st.sampled_from(known), min_size=1, max_size=6, unique=True)) if known else []
    return era, kind, [(spec, kind, era, draw(st.booleans())) for spec in specs]


@settings(deadline=None, max_examples=300)
@given(classes_of_an_era())
def test_a_class_of_an_eras_hooks_is_read_as_that_era_or_as_one_that_fits_it_as_well(
    drawn: tuple[str, Receiver, list[Drawn]],
) -> None:
    era, kind, methods = drawn
    klass = build(methods)
    reading = read_era(klass, kind, CATALOGUE)
    reading = reading.as_earlier or reading
    for spec, *_ in methods:
        if reading.is_of_today and spec.name in EVERYDAY_NAMES:
            continue
        method = getattr(klass, spec.name).__get__(object())
        expected = bind(method, arguments_of(spec.as_in(era), kind), spec.optional_in(era))
        of_today = bind(method, arguments_of(spec, kind), spec.optional) if spec.name not in reading.methods else ()
        got = reading.methods[spec.name].arguments if spec.name in reading.methods else of_today
        assert [str(one) for one in got] == [str(one.canonical()) for one in expected], spec.name
        chosen = era if reading.is_of_today else reading.behaviour.era
        fits_as_well = chosen in spec.eras and kind in spec.receivers_in(chosen) and _binds(klass, spec, kind, chosen)
        assert chosen == era or fits_as_well, f"{spec.name} is not called in era {chosen}"


def build(methods: list[Drawn]) -> type:
    """A class with these hooks as their era writes them, with the optional arguments where that is asked for."""
    lines = ["class Built:", "    pass"]
    for spec, kind, era, with_optional in methods:
        names = [name.replace("module", "pl_module") for name in arguments_of(spec.as_in(era), kind)]
        names += [f"{name}=None" for name in spec.optional_in(era)] if with_optional else []
        lines.append(f"    def {spec.name}({', '.join(['self', *names])}):")
        lines.append(f"        return {names[4] if spec.name == 'optimizer_step' and era == '1.x' else None}")
    namespace: dict[str, Any] = {}
    exec("\n".join(lines), namespace)
    built: type = namespace["Built"]
    return built


def _binds(klass: type, spec: EraSpec, kind: Receiver, era: str | None) -> bool:
    try:
        bind(getattr(klass, spec.name).__get__(object()), arguments_of(spec.as_in(era), kind), spec.optional_in(era))
    except TypeError:
        return False
    return True
