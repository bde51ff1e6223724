"""Sessions of the camshaft monorepo: `nox -l` lists them, plain `nox` runs the quick half of the gate (`tests`).

Packages, their order and what each session installs are read from packages/*/pyproject.toml, so that a new
package needs no change here. Versions come from constraints.txt. Only sessions whose packages need torch
install it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import nox

sys.path.insert(0, str(Path(__file__).resolve().parent / ".ci"))

from distributions import (
    CONSTRAINTS,
    PACKAGES,
    PYTEST_NO_TESTS,
    ROOT,
    SHARED,
    SHARED_VARIABLE,
    STORE_LIBRARIES,
    Package,
    extras_of_all,
    in_dependency_order,
    install,
    isolate,
    job_environment,
    pytest,
    quick_jobs,
    run_jobs,
    share_installed,
    tree_hash,
    with_tests,
)
from gate import Job

# what draws a share of the tests: a tree draws the same in every run, and the next one others
os.environ.setdefault("CAMSHAFT_TESTS_SEED", tree_hash())
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of short processes import the same modules
EXAMPLE_REQUIREMENTS = ("scikit-learn", "matplotlib", "torchmetrics", "rich")
ADAPTED_LIBRARIES = ("accelerate", "lightning")  # examples run the loops on them; tests compare with the second, too
# that start the processes in which an example or a test trains: workers, kernels of notebooks, trials and jobs
STARTING_LIBRARIES = ("ray[train]", "ipykernel", "nbclient", "optuna", "optuna-integration", "hydra-core")
# a library of streams that asks for older releases of what it imports than others do, and what it imports
STREAMING_BY_ITSELF = "mosaicml-streaming"
_OF_STREAMING = ("brotli", "catalogue", "python-snappy", "transformers", "xxhash", "zstd")
STREAMING_LIBRARIES = ("datasets", "webdataset", *_OF_STREAMING)  # whose streams are resumed
WEIGHT_LIBRARIES = ("peft", "torchao")  # whose adapters, number formats and optimizers are trained and resumed
INTEGRATION_REQUIREMENTS = (
    *ADAPTED_LIBRARIES,
    *WEIGHT_LIBRARIES,
    *STARTING_LIBRARIES,
    *STORE_LIBRARIES,
    *STREAMING_LIBRARIES,
    *EXAMPLE_REQUIREMENTS,
)
HALF_THE_EXAMPLES = "--examples-factor=0.5"
DOCS_REQUIREMENTS = (
    "sphinx",
    "furo",
    "myst-parser",
    "sphinx-copybutton",
    "sphinx-design",
    "sphinx-gallery",
    "sphinx-argparse",
    "sybil",
    "codespell",
    "hydra-core",  # whose jobs a page shows
    "optuna",  # likewise
    "onnx",  # in which a page exports
    "onnxscript",
    "datasets",  # on which a page trains
    *WEIGHT_LIBRARIES,  # likewise
    "nox",  # whose sessions the commands of pages name
    "playwright",  # drives the Chromium of the machine
)

nox.needs_version = ">=2024.4.15"
nox.options.sessions = ["tests"]
nox.options.reuse_venv = "yes"  # a second local run takes seconds; a clean clone has nothing to reuse


def process_jobs(session: nox.Session) -> list[Job]:
    """Return a job for the tests marked `processes` of each package, the packages on top of the others first."""
    command = (str(Path(session.bin) / "python"), "-m", "pytest", "-q", "-m", "processes")
    environment = job_environment(session)
    return [
        Job(f"processes-{one.folder}", (*command, one.tests), environment, success_codes=(0, PYTEST_NO_TESTS))
        for one in reversed(with_tests())
    ]


def install_for_integration(session: nox.Session, *others: str, extras: Iterable[str]) -> None:
    install(session, PACKAGES.values(), *INTEGRATION_REQUIREMENTS, *others, extras=extras)
    session.install("--no-deps", "-c", str(CONSTRAINTS), STREAMING_BY_ITSELF)


def integration_jobs(session: nox.Session) -> list[Job]:
    """Return three jobs for the tests of `integration`: against Lightning, those of processes, and all others."""
    command = (str(Path(session.bin) / "python"), "-m", "pytest", "-q", HALF_THE_EXAMPLES)
    pattern = "integration_tests/*_against_lightning.py"
    peers = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(pattern))
    others = ("integration_tests", f"--ignore-glob={pattern}", "-m")
    environment = job_environment(session)
    return [
        Job("integration", (*command, *others, "not processes"), environment),
        Job("processes-integration", (*command, *others, "processes"), environment),
        Job("integration-against-lightning", (*command, *peers), environment),
    ]


def package_session(package: Package) -> Callable[[nox.Session], None]:
    def run(session: nox.Session) -> None:
        install(session, [package], extras=["test"])
        pytest(session, package.tests, success_codes=(0, PYTEST_NO_TESTS) if session.posargs else (0,))

    run.__doc__ = f"Tests of {package.distribution}, installed with the siblings it declares and no others."
    return run


for _package in with_tests():
    nox.session(name=f"tests-{_package.folder}")(package_session(_package))


@nox.session
def demo(session: nox.Session) -> None:
    """Trains the digits example from start to finish."""
    trainer = PACKAGES["camshaft-trainer"]
    install(session, [trainer], *EXAMPLE_REQUIREMENTS)
    session.run("python", "examples/digits.py", *session.posargs)


@nox.session
def integration(session: nox.Session) -> None:
    """Tests of all packages together, against other frameworks, and of the examples.

    Half as many examples as usual of each property test; `-- --examples-factor=1` draws all.
    """
    install_for_integration(session, extras=["test"])
    pytest(session, HALF_THE_EXAMPLES, "integration_tests")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the site, and test it; `-- --serve` shows it."""
    others = (*ADAPTED_LIBRARIES, "pytorch-ignite", *EXAMPLE_REQUIREMENTS, *DOCS_REQUIREMENTS)
    install(session, PACKAGES.values(), *others, extras=["test"])
    site = ROOT / ".nox" / "site"
    session.run("python", "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "docs", str(site))
    if "--serve" in session.posargs:
        session.run("python", "-m", "http.server", "--directory", str(site), "--bind", "127.0.0.1")
        return
    pages = [*ROOT.glob("*.md"), ROOT / "docs", *ROOT.glob("packages/*/*.md"), *ROOT.glob("packages/*/src")]
    session.run("codespell", *(str(path.relative_to(ROOT)) for path in pages))
    pytest(session, "docs/tests")


@nox.session
def simulated(session: nox.Session) -> None:
    """Tests of devices on a simulated accelerator, which is compiled; those marked `gpu` as far as they can."""
    if shutil.which("c++") is None:
        session.skip("there is no C++ compiler (c++)")
    install(session, PACKAGES.values(), "ninja", *EXAMPLE_REQUIREMENTS, extras=["test"])
    session.run(*simulated_command())


def simulated_command() -> list[str]:
    paths = [path for package in with_tests() for path in sorted((ROOT / package.tests).glob("test_*.py"))]
    marks = re.compile(r"mark\.(gpu|simulated)")
    marked = [str(path.relative_to(ROOT)) for path in paths if marks.search(path.read_text(encoding="utf-8"))]
    options = ["--simulated-device", "-m", "simulated or gpu", "-rs"]
    return ["python", "-m", "pytest", *options, *marked, "integration_tests/simulated"]


@nox.session
def gpu(session: nox.Session) -> None:
    """Tests marked `gpu`, and what else is shown and measured on CUDA devices; arguments go to benchmarks/gpu.py."""
    install(session, PACKAGES.values(), *ADAPTED_LIBRARIES, *EXAMPLE_REQUIREMENTS, extras=["test"])
    session.run("python", "benchmarks/gpu.py", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff's rules and formatting, and the subjects of commits that origin/main lacks."""
    session.install("-c", str(CONSTRAINTS), "ruff")
    session.run("ruff", "check", *session.posargs)
    session.run("ruff", "format", "--check", *session.posargs)
    session.run("python", ".ci/commit_subjects.py")


@nox.session
def types(session: nox.Session) -> None:
    """mypy: strict on the packages, plain on the code around them."""
    # with whatever packages or scripts may import
    install(session, PACKAGES.values(), "mypy", "nox", *EXAMPLE_REQUIREMENTS, extras=sorted(extras_of_all()))
    run_jobs(session, [type_job(session)], ROOT / ".nox" / "logs" / "types")


def install_for_full(session: nox.Session) -> None:
    """Install what the jobs share: of types, of integration, and what compiles the simulated device."""
    install_for_integration(session, "mypy", "nox", "ninja", extras=sorted(extras_of_all()))


def type_job(session: nox.Session) -> Job:
    """Return the job that checks types; arguments after `--` reach mypy."""
    sources = [str(package.path / "src") for package in PACKAGES.values()]
    scripts = [".ci", "examples", "benchmarks"]  # scripts import what lies beside them
    environment = {**job_environment(session), "MYPYPATH": os.pathsep.join([*sources, *scripts, "ecosystem"])}
    others = ["noxfile.py", "conftest.py", "ecosystem/compare.py", "certify", *scripts]
    return Job("types", (str(Path(session.bin) / "mypy"), *session.posargs, *sources, *others), environment)


@nox.session
def imports(session: nox.Session) -> None:
    """The import contracts: layers (pyproject.toml) and public surfaces (READMEs). Nothing is imported."""
    session.install("-c", str(CONSTRAINTS), "import-linter")
    session.env["PYTHONPATH"] = os.pathsep.join(str(package.path / "src") for package in PACKAGES.values())
    session.run("lint-imports", "--no-cache", *session.posargs)
    session.run("python", ".ci/public_imports.py")


@nox.session(reuse_venv=False)
def build(session: nox.Session) -> None:
    """Builds every sdist and wheel, and tries the wheels in an environment without the source tree."""
    isolate(session)
    session.install("-c", str(CONSTRAINTS), "build", "hatchling")
    directory = Path(session.create_tmp()).resolve()
    packages = in_dependency_order()
    for package in packages:
        session.run("python", "-m", "build", "--no-isolation", "--outdir", str(directory), str(package.path))
    wheels = sorted(str(path) for path in directory.glob("*.whl"))
    clean = directory / "clean"
    session.run("python", "-m", "venv", str(clean))
    share_installed(clean)
    python = str(clean / "bin" / "python")
    options = ["--quiet", "--no-compile", "-c", str(CONSTRAINTS)]
    session.run(python, "-m", "pip", "install", *options, *wheels, external=True)
    smoke = ROOT / ".ci" / "smoke_wheels.py"
    with session.chdir(directory):
        session.run(python, "-I", str(smoke), *(package.module for package in packages), external=True)


@nox.session
def tests(session: nox.Session) -> None:
    """The gate of every change, in minutes: lint, import contracts, and all packages' quick tests in one environment.

    Arguments after `--` reach the pytest of each package.
    """
    install(session, PACKAGES.values(), "ruff", "import-linter", "nox", extras=["test"])
    session.run("python", "-c", "import torch._dynamo, torch.distributed")  # compiles it once rather than in each job
    python, environment = str(Path(session.bin) / "python"), job_environment(session)
    sources = os.pathsep.join(str(package.path / "src") for package in PACKAGES.values())
    checks = [
        Job("lint", (python, "-m", "ruff", "check"), environment),
        Job("format", (python, "-m", "ruff", "format", "--check"), environment),
        Job("commits", (python, ".ci/commit_subjects.py"), environment),
        Job("layers", ("lint-imports", "--no-cache"), {**environment, "PYTHONPATH": sources}),
        Job("tooling", (python, "-m", "pytest", "-q", ".ci/tests", "integration_tests/test_imports.py"), environment),
    ]
    run_jobs(session, [*checks, *quick_jobs(session, PACKAGES.values())], ROOT / ".nox" / "logs" / "tests")


def without_compat(session: nox.Session) -> None:
    """The other packages' tests, each alone, the import contracts and the demo, in a copy without packages/compat.

    Here `oldest` runs for all packages but compat: it shows with one run that a package needs no more than it declares,
    no later versions than it declares, and no folder of compat. `full` runs it for compat in the tree itself.
    """
    # Outside .nox, which git and ruff ignore. `create_tmp` would also set TMPDIR, to a path too long for sockets.
    copy = Path(tempfile.gettempdir()) / f"camshaft-{hashlib.sha256(str(ROOT).encode()).hexdigest()[:8]}"
    copy.mkdir(mode=0o700, exist_ok=True)
    for path in copy.iterdir():
        if path.name != ".nox":  # its environments are used again
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0"):
        if name and not name.startswith("packages/compat/") and (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    sessions = ["imports", "demo", "oldest"]
    command = [sys.executable, "-m", "nox", "-f", str(copy / "noxfile.py"), "-s", *sessions]
    session.run(*command, external=True, env={SHARED_VARIABLE: str(SHARED)})


if (ROOT / "packages" / "compat").exists():
    nox.session(name="without-compat", venv_backend="none")(without_compat)


@nox.session
def full(session: nox.Session) -> None:
    """What `tests` leaves out, several jobs at a time: see CONTRIBUTING.md for what runs where, and why."""
    if session.posargs:
        session.error("`full` passes no arguments on. Give them to one session, such as tests-loops.")
    log_dir = ROOT / ".nox" / "logs"
    log_dir.mkdir(parents=True, exist_ok=True)

    def job(session_name: str, *arguments: str) -> Job:
        return Job.of_session(Path(__file__), log_dir, session_name, *arguments)

    alone = [job("oldest")]
    if (ROOT / "packages" / "compat").exists():
        alone = [job("without-compat"), job("oldest", "compat")]
    # the longest ones early, so that neither lane is left alone at the end
    first = [job("docs"), *alone]
    others = [job("mixed"), job("build"), *(job(f"python-{version}") for version in occasional_sessions.INTERPRETERS)]
    with ThreadPoolExecutor(1) as pool:
        installed = pool.submit(install_for_full, session)  # meanwhile the first jobs run, each in its own environment
        in_own = [*integration_jobs(session), *process_jobs(session), type_job(session)]
        if shutil.which("c++"):
            in_own.append(Job("simulated", tuple(simulated_command()), job_environment(session)))
        else:
            others.append(job("simulated"))  # which says why it is skipped
        here = [replace(one, wait=installed.result) for one in in_own]
        run_jobs(session, [*first, *here, *others], log_dir)


import occasional_sessions  # noqa: E402  (last, since `nox -l` lists sessions in this order)
