"""The conformance kit for strategies: checks of every promise of the strategy protocol.

All ranks call it, with a folder that all of them see::

    from camshaft.strategies import conformance

    print(conformance.run(MyStrategy, "checks"))

or, check by check, in a test::

    @pytest.mark.parametrize("name", conformance.CHECKS)
    def test_my_strategy_conforms(name, tmp_path):
        conformance.CHECKS[name](MyStrategy, tmp_path)
"""

from camshaft.strategies.conformance.check import CHECKS, Check, ConformanceError, Report, run

__all__ = ["CHECKS", "Check", "ConformanceError", "Report", "run"]
