"""Run a script on Lightning and through camshaft, compare what it hands over, and keep a row of the table.

`python compare.py scripts/use_chemprop.py`, in an environment that has the library, Lightning and camshaft;
`nox -s ecosystem` makes one for each library.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy
from scripts.results import RANDOM_STATE, VARIABLE

FOLDER = Path(__file__).resolve().parent
TABLE = FOLDER / "table.md"
TIMEOUT_SECONDS = 600
SETTINGS = {
    **{"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore", "MPLBACKEND": "agg"},
    "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1",  # darts relies on releases that unpickled by default
}
ROUNDING = 1e-6  # of the largest value: a few units in the last place of float32
SIMILAR = 1e-3  # of the largest value, where the random numbers were not the same
ERROR = re.compile(r"^[\w.]*(?:Error|Exception|Interrupt|Exit|Warning)\b.*")
HEAD = """| library | with | what runs | through camshaft | CPU seconds: Lightning | camshaft |
| --- | --- | --- | --- | --- | --- |
"""

Numbers = dict[str, numpy.ndarray]


@dataclass(frozen=True)
class Outcome:
    """What came of one run; `numbers` is None where it failed, and `error` then its first line."""

    numbers: Numbers | None
    cpu_seconds: float
    error: str = ""


def main() -> int:
    """Compare one script, print its row and put it into the table. Return 0 if the runs ended alike, or 1."""
    script = Path(sys.argv[1]).resolve()
    lightning = run(script)
    camshaft = run(script, "-m", "camshaft.compat", "run")
    if lightning.numbers is None:
        is_alike, verdict = False, f"not tried: fails on Lightning with {lightning.error}"
    elif camshaft.numbers is None:
        is_alike, verdict = False, f"fails: {camshaft.error}"
    else:
        is_alike, verdict = judge(lightning.numbers, camshaft.numbers)
    library, what = what_it_is(script)
    seconds = [f"{outcome.cpu_seconds:.0f}" for outcome in (lightning, camshaft)]
    row = [library, versions(script), what, verdict.replace("|", "/"), *seconds]
    keep(f"| {' | '.join(row)} |\n")
    return 0 if is_alike else 1


def run(script: Path, *launcher: str) -> Outcome:
    """Run the script in a folder of its own, by Python or a launcher; echo what it prints if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "results.npz")
        environment = {**os.environ, **SETTINGS, VARIABLE: str(path)}
        command = [sys.executable, *launcher, str(script)]
        before = sum(os.times()[2:4])
        try:
            ended = subprocess.run(
                command,
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Outcome(None, sum(os.times()[2:4]) - before, f"no end after {TIMEOUT_SECONDS} seconds")
        cpu_seconds = sum(os.times()[2:4]) - before
        if ended.returncode == 0 and path.exists():
            with numpy.load(path) as numbers:
                return Outcome(dict(numbers), cpu_seconds)
    print(ended.stdout, ended.stderr, sep="\n", file=sys.stderr)
    errors = [line for line in ended.stderr.splitlines() if ERROR.match(line)]
    return Outcome(None, cpu_seconds, errors[-1] if errors else f"exit code {ended.returncode}")


def judge(lightning: Numbers, camshaft: Numbers) -> tuple[bool, str]:
    """Return whether the results agree, and in words how far."""
    names = lightning.keys() - {RANDOM_STATE}
    unmatched = sorted(names ^ (camshaft.keys() - {RANDOM_STATE}))
    if unmatched:
        return False, f"differs: {len(unmatched)} values on one side only, such as `{unmatched[0]}`"
    same_draws = numpy.array_equal(lightning[RANDOM_STATE], camshaft[RANDOM_STATE])
    distances = {name: distance(lightning[name], camshaft[name]) for name in names}
    elsewhere = {name for name in names if "other draws" in name.split(".")}
    rounded = {name for name in names - elsewhere if 0 < distances[name] <= ROUNDING and "logged" in name.split(".")}
    limit = 0.0 if same_draws else SIMILAR
    wrong = {name for name in names - elsewhere - rounded if not distances[name] <= limit}
    wrong |= {name for name in elsewhere if not numpy.isfinite(distances[name])}
    if wrong:
        worst = max(wrong, key=distances.__getitem__)
        return (
            False,
            f"differs: {len(wrong)} of {len(names)} values, `{worst}` by {distances[worst]:.1g} (relative)",
        )
    parts = [f"{len(names) - len(rounded) - len(elsewhere)} values {'equal' if same_draws else 'similar'}"]
    if rounded:
        parts.append(f"{len(rounded)} logged means up to {max(distances[name] for name in rounded):.0e}")
    if elsewhere:
        parts.append(f"{len(elsewhere)} with other random numbers, see the README")
    if not same_draws:
        parts.append("the random numbers end elsewhere")
    return True, "; ".join(parts)


def distance(one: numpy.ndarray, other: numpy.ndarray) -> float:
    """Return the largest difference relative to the largest value; infinite where shapes or NaNs differ."""
    if one.shape != other.shape:
        return float("inf")
    one, other = one.astype(float), other.astype(float)
    if not numpy.array_equal(numpy.isfinite(one), numpy.isfinite(other)):
        return float("inf")
    difference = numpy.abs(numpy.nan_to_num(one) - numpy.nan_to_num(other)).max(initial=0.0)
    return float(difference / max(numpy.abs(numpy.nan_to_num(one)).max(initial=0.0), 1e-30)) if difference else 0.0


def what_it_is(script: Path) -> tuple[str, str]:
    """Return the library's name and what the script does, from its docstring."""
    library, _, what = (ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or "").partition(": ")
    return library, " ".join(what.split()).rstrip(".")


def versions(script: Path) -> str:
    """Return the versions of what the script's header requires, and of Lightning and torch."""
    (header,) = re.findall(r"(?m)^# /// script$\n((?:^# .*$\n)+?)^# ///$", script.read_text(encoding="utf-8"))
    required = tomllib.loads(re.sub(r"(?m)^# ", "", header))["dependencies"]
    names = [re.split(r"[^\w-]", requirement)[0] for requirement in required]
    return ", ".join(f"{name} {version(name)}" for name in dict.fromkeys([*names, "pytorch-lightning", "torch"]))


def keep(row: str) -> None:
    """Print the row, and put it into the table in place of the library's last one."""
    print(row, end="")
    rows = TABLE.read_text(encoding="utf-8").splitlines(keepends=True)[2:] if TABLE.exists() else []
    others = [one for one in rows if one.split("|")[1] != row.split("|")[1]]
    TABLE.write_text(HEAD + "".join(sorted([*others, row], key=str.lower)), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
