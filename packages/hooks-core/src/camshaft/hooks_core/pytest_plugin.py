"""pytest plugin with which third-party trainers, loops and callbacks prove that they follow the hook protocol.

It offers two fixtures. `hook_trace` is an empty `Trace`. A test that takes `conformance_scenario` runs once for each
scenario of the kit; `@pytest.mark.conformance(verbs=..., features=..., without=...)` chooses among them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from camshaft.hooks_core.conformance import Scenario
    from camshaft.hooks_core.trace import Trace

_FIXTURE = "conformance_scenario"
_MARKER = (
    "conformance(verbs=None, features=None, without=()): run `conformance_scenario` for these verbs and features, "
    "without those that need a hook of `without`"
)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", _MARKER)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes `conformance_scenario` once for each scenario."""
    if _FIXTURE in metafunc.fixturenames:
        scenarios = _chosen(metafunc.definition)
        metafunc.parametrize(_FIXTURE, scenarios, ids=[scenario.name for scenario in scenarios])


@pytest.fixture
def hook_trace() -> Trace:
    """Return a trace without participants; record receivers with it, run, and `check` it."""
    from camshaft.hooks_core.trace import Trace

    return Trace()


def _chosen(test: pytest.Item) -> list[Scenario]:
    from camshaft.hooks_core.conformance import needs_of
    from camshaft.hooks_core.spec import VERBS

    marker = test.get_closest_marker("conformance")
    options = dict(marker.kwargs) if marker else {}
    verbs, features, without = (options.pop(name, None) for name in ("verbs", "features", "without"))
    if options or (marker and marker.args):
        raise pytest.UsageError(
            f"{test.nodeid}: the marker is {_MARKER.partition(':')[0]}. Leave out other arguments, and name each."
        )
    try:
        needs = needs_of(verbs or VERBS, features, without or (), where="the marker `conformance`")
    except ValueError as error:
        raise pytest.UsageError(f"{test.nodeid}: {error}") from error
    return [scenario for scenario, lacking in needs.items() if not lacking]
