from __future__ import annotations

import os
import re
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from camshaft.hooks_core.conformance import SCENARIOS

pytest_plugins = ["pytester"]

ENTRY_POINT = "camshaft_conformance"
IS_INSTALLED = any(point.name == ENTRY_POINT for point in entry_points(group="pytest11"))
SCENARIOS_OF_FIT = [scenario for scenario in SCENARIOS if scenario.verb == "fit" and not scenario.features]
TESTS = str(Path(__file__).parent)


def run(pytester: pytest.Pytester, source: str, *options: str) -> pytest.RunResult:
    """Run a test file in a process of its own, with the plugin as an installation would load it."""
    pytester.makepyfile(source)
    plugin = ENTRY_POINT if IS_INSTALLED else "camshaft.hooks_core.pytest_plugin"
    path = os.pathsep.join(filter(None, [TESTS, os.environ.get("PYTHONPATH", "")]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        return pytester.runpytest_subprocess("-p", plugin, "--strict-markers", *options)


def test_a_test_runs_once_for_each_scenario(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import handwritten_loop
        from camshaft.hooks_core.conformance import run_scenario

        def test_my_trainer(conformance_scenario):
            run_scenario(handwritten_loop.adapter(), conformance_scenario)
        """,
        "-v",
    )
    result.assert_outcomes(passed=len(SCENARIOS))
    result.stdout.fnmatch_lines(["*::test_my_trainer?fit-accumulation? PASSED*"])


def test_the_test_file_of_the_guide_passes(pytester: pytest.Pytester) -> None:
    guide = Path(__file__).parents[3] / "docs/guides/own-loop.md"
    (program,) = re.findall(r"```python\n(# test_my_loop\.py.*?)```", guide.read_text(), re.DOTALL)
    result = run(pytester, program)
    result.assert_outcomes(passed=len(SCENARIOS_OF_FIT))
    result = run(pytester, program.replace("hooks.on_before_backward(loss)", "pass"))
    result.assert_outcomes(failed=len(SCENARIOS_OF_FIT))


def test_the_marker_chooses_verbs_and_features(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest

        @pytest.mark.conformance(verbs=["fit"], features=["validation"])
        def test_fit(conformance_scenario):
            assert conformance_scenario.verb == "fit"
            assert conformance_scenario.features <= {"validation"}

        @pytest.mark.conformance(verbs=["test", "predict"], features=[])
        def test_the_rest(conformance_scenario):
            assert conformance_scenario.verb in ("test", "predict")
        """,
    )
    result.assert_outcomes(passed=3 + 2)


def test_the_marker_leaves_out_what_needs_a_missing_hook(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest

        @pytest.mark.conformance(verbs=["fit"], features=["exceptions"], without=["on_before_backward"])
        def test_fit(conformance_scenario):
            assert conformance_scenario.name in ("fit", "fit-epochs", "fit-exception-in-epoch")
        """,
    )
    result.assert_outcomes(passed=3)


def test_a_departure_fails_the_test_with_its_message(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest
        from camshaft.hooks_core.conformance import Adapter, run_scenario

        @pytest.mark.conformance(verbs=["test"], features=[])
        def test_lazy(conformance_scenario):
            run_scenario(Adapter(lambda scenario, module, callbacks: None, object_like), conformance_scenario)

        class object_like: ...
        """,
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["E*ConformanceError: `trace?0?` must be *setup on callback:Plain*the end of the trace*"]
    )


def test_hook_trace_is_fresh_for_each_test(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest
        from camshaft.hooks_core import Callback

        @pytest.mark.parametrize("number", [1, 2])
        def test_trace(hook_trace, number):
            callback = hook_trace.record(Callback(), "callback")
            callback.on_fit_start(None, None)
            assert hook_trace.calls() == ["enter on_fit_start callback:Callback", "exit on_fit_start callback:Callback"]
        """,
    )
    result.assert_outcomes(passed=2)


def test_a_wrong_marker_is_an_error(pytester: pytest.Pytester) -> None:
    messages = {
        "verbs=['train']": "*`verbs` must be among fit, validate, *'train'*the marker `conformance`*",
        "features=['magic']": "*`features` must be among validation, *'magic'*",
        "without=['on_lunch']": "*`without` must be names of hooks*'on_lunch'*",
        "verb=['fit']": "*the marker is conformance(verbs=None, features=None, without=())*",
    }
    source = "import pytest\n" + "".join(
        f"""
class Test{idx}:
    @pytest.mark.conformance({marker})
    def test_it(self, conformance_scenario): ...
"""
        for idx, marker in enumerate(messages)
    )
    result = run(pytester, source, "--continue-on-collection-errors")
    result.assert_outcomes(errors=len(messages))
    result.stdout.fnmatch_lines_random(list(messages.values()))


def test_the_plugin_imports_nothing_for_tests_that_do_not_use_it(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import sys

        def test_modules():
            assert "camshaft.hooks_core.pytest_plugin" in sys.modules
            assert "camshaft.hooks_core.conformance" not in sys.modules
            assert "camshaft.hooks_core.grammar" not in sys.modules
            assert "torch" not in sys.modules
        """,
        "-p",
        "no:hypothesispytest",
    )
    result.assert_outcomes(passed=1)
