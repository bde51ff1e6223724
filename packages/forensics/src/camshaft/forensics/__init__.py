"""Evidence of training runs: ledgers and their comparison, captured steps, replay, bisection, repeated steps."""

# Not on demand: the functions `bisect`, `compare` and `replay` have the names of the modules that define them.
from camshaft.forensics.bisect import bisect
from camshaft.forensics.compare import Comparison, compare
from camshaft.forensics.hook_comparison import HookComparison, HookDivergenceError
from camshaft.forensics.ledger.ledger_check import DepartureError, LedgerCheck
from camshaft.forensics.ledger.ledger_file import LedgerError
from camshaft.forensics.ledger.run_ledger import RunLedger
from camshaft.forensics.repeated_step import CorruptionError, RepeatedStep
from camshaft.forensics.replay.step import ReplayedStep, replay
from camshaft.forensics.replay.step_capture import CaptureError, StepCapture, replay_capture
from camshaft.forensics.replay.step_inspection import StepInspection, inspect_step
from camshaft.forensics.samples import DataComparison, EpochSamples, compare_data, exactly_once

__all__ = [
    "CaptureError",
    "Comparison",
    "CorruptionError",
    "DataComparison",
    "DepartureError",
    "EpochSamples",
    "HookComparison",
    "HookDivergenceError",
    "LedgerCheck",
    "LedgerError",
    "RepeatedStep",
    "ReplayedStep",
    "RunLedger",
    "StepCapture",
    "StepInspection",
    "bisect",
    "compare",
    "compare_data",
    "exactly_once",
    "inspect_step",
    "replay",
    "replay_capture",
]
