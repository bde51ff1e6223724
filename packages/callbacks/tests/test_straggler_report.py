from __future__ import annotations

import warnings

from recording_trainer import RecordingTrainer

from camshaft.callbacks.monitors.straggler_report import PHASES, Straggler, StragglerReport


def test_warns_of_a_rank_once_while_it_stays_slow() -> None:
    report, trainer = StragglerReport(), RecordingTrainer(".")
    samples = [("data", 0.5), ("data", 0.4), ("forward", 0.5), ("forward", 0.01), ("forward", 0.5)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step, (phase, seconds) in enumerate(samples):
            times = {name: [0.0, seconds if name == phase else 0.0] for name in PHASES}
            report._report(trainer, Straggler(step, 1, "host", phase, seconds, 1.0, times))
    steps = [int(str(one.message).rpartition("of step ")[2].partition(".")[0]) for one in caught]
    assert steps == [0, 2, 4]
