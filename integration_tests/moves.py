"""Kill runs on logical ranks at random, go on with other numbers of processes, and compare with runs that were not.

moves.py [--runs 200] [--seed 0] [--seconds 900]

Each case is trained whole on one, two and four processes first. Then chains are drawn: how many processes, at which
update and moment they are killed with SIGKILL, whether batches are read by workers, whether parameters are sharded.
What must be equal: weights, optimizers, logged values, the rows of the logger, updates that were left out for a spike
of the loss, and the ledger, line for line.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "test_support"))

from launching import run_ranks  # noqa: E402

SCRIPT = ROOT / "packages/forensics/tests/moved_runs.py"
CASES = {
    "transformer with dropout, AdamW, accumulation and clipping": ["--model", "transformer"],
    "transformer in bf16-mixed": ["--model", "transformer", "--precision", "bf16-mixed", "--accumulate", "1"],
    "transformer in bf16-mixed, accumulating": ["--model", "transformer", "--precision", "bf16-mixed"],
    "convolutions with batch normalisation": ["--model", "convolutions", "--accumulate", "1"],
    "convolutions, accumulating": ["--model", "convolutions"],
    "truncated backpropagation through time": ["--model", "recurrent", "--accumulate", "1"],
    "the same, accumulating": ["--model", "recurrent"],
    "sharded transformer in bf16-mixed, accumulating": [
        *("--model", "transformer", "--precision", "bf16-mixed", "--strategy", "fsdp"),
    ],
    "adversarial networks": ["--model", "adversarial", "--accumulate", "1", "--clip", "0.1"],
    "the same networks, accumulating": ["--model", "adversarial", "--clip", "0.1"],
    "adversarial networks by hand": ["--model", "adversarial-by-hand", "--accumulate", "1"],
    "adversarial networks by hand in bf16-mixed": [
        *("--model", "adversarial-by-hand", "--accumulate", "1", "--precision", "bf16-mixed")
    ],
    "LBFGS": ["--model", "closures", "--accumulate", "1"],
    "LBFGS by hand": ["--model", "closures-by-hand", "--accumulate", "1"],
}
SHARDED = ("transformer", "convolutions", "recurrent", "adversarial")
PROCESSES = (1, 2, 4)
MOMENTS = ("start", "update", "end")


def run(folder: Path, num_processes: int, arguments: list[str], kill_at: tuple[int, str] | None = None) -> Any:
    """Return what a run gave; None of one that was killed."""
    kill = [] if kill_at is None else ["--kill-at", *map(str, kill_at)]
    outcome = run_ranks(SCRIPT, num_processes, args=[folder, *arguments, *kill], imports=[SCRIPT.stem])
    if kill_at is not None and any(outcome.exit_codes):
        return None
    return outcome.succeeded().reports[0][0]


def chain(
    numbers: random.Random, num_steps: int, *, may_shard: bool
) -> Iterator[tuple[int, list[str], tuple[int, str] | None]]:
    """Draw the runs of a chain: processes, further arguments, and where the run is killed.

    Where sharded runs have bits of their own (in mixed precision) or are refused, the strategy stays.
    """
    steps = sorted(numbers.sample(range(num_steps), k=min(num_steps, numbers.randint(1, 3))))
    for kill_at in (*((step, numbers.choice(MOMENTS)) for step in steps), None):
        workers = ["--workers", str(numbers.choice((0, 0, 0, 1, 2)))]
        sharded = ["--strategy", "fsdp"] if may_shard and numbers.random() < 0.4 else []
        yield numbers.choice(PROCESSES), [*workers, *sharded], kill_at


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200, help="number of runs to make at least")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="time after which no chain is begun")
    given = parser.parse_args()
    numbers, started = random.Random(given.seed), time.monotonic()
    num_runs = num_killed = num_chains = 0
    failures = []
    with tempfile.TemporaryDirectory() as directory:
        whole = {}
        for name, arguments in CASES.items():
            of_processes = [run(Path(directory, f"{name} on {number}"), number, arguments) for number in PROCESSES]
            num_runs += len(PROCESSES)
            whole[name] = of_processes[0]
            is_equal = all(one == of_processes[0] for one in of_processes)
            print(f"{'equal' if is_equal else 'DIFFERS'}: {name}, whole on {PROCESSES} processes", flush=True)
            if not is_equal:
                failures.append(f"{name}: differs on {PROCESSES} processes")
        while num_runs < given.runs and time.monotonic() - started < given.seconds:
            name = numbers.choice(list(CASES))
            num_steps = sum('"batches"' in line for line in whole[name][3])
            told, found = [], None
            folder = Path(directory, f"chain {num_chains}")
            may_shard = "bf16-mixed" not in CASES[name] and CASES[name][1] in SHARDED
            for num_processes, arguments, kill_at in chain(numbers, num_steps, may_shard=may_shard):
                told.append(f"{num_processes} sharded" if "fsdp" in arguments else f"{num_processes}")
                told[-1] += "" if kill_at is None else f" killed at {kill_at[0]} ({kill_at[1]})"
                found = run(folder, num_processes, [*CASES[name], *arguments], kill_at)
                num_runs += 1
                num_killed += found is None
                if found is not None:
                    break
            num_chains += 1
            is_equal = found == whole[name]
            print(f"{'equal' if is_equal else 'DIFFERS'}: {name}: {', '.join(told)}", flush=True)
            if not is_equal:
                failures.append(f"{name}: {told}")
    print(f"{num_runs} runs, {num_killed} killed, {num_chains} chains, {len(failures)} that differ", flush=True)
    sys.exit("\n".join(failures) if failures else 0)


if __name__ == "__main__":
    main()
