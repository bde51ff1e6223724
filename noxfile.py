"""Sessions of the camshaft monorepo: `nox -l` lists them, plain `nox` runs the contributor gate (`tests`).

Packages, their order and what each session installs are read from packages/*/pyproject.toml, so that a new
package needs no change here. Versions come from constraints.txt. Only sessions whose packages need torch
install it.
"""

from __future__ import annotations

import atexit
import os
import sys
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import nox
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / ".ci"))

from gate import Gate, print_table  # noqa: E402  (it lies beside .ci/run)

CONSTRAINTS = ROOT / "constraints.txt"
BENCHMARK_PEERS = ("lightning", "pytorch-ignite", "torchtnt", "setuptools<81")  # torchtnt 0.2.4 imports pkg_resources
EXAMPLE_REQUIREMENTS = ("scikit-learn", "matplotlib", "torchmetrics", "rich")
ADAPTED_LIBRARIES = ("accelerate", "lightning")  # examples run the loops on them; tests compare with the second, too
STARTING_LIBRARIES = ("ray[train]",)  # that start the processes in which an example trains
PYTEST_NO_TESTS = 5

nox.needs_version = ">=2024.4.15"
nox.options.sessions = ["tests"]
nox.options.reuse_venv = "yes"  # a second local run takes seconds; a clean clone has nothing to reuse


@dataclass(frozen=True)
class Package:
    """One folder of packages/ as its pyproject.toml describes it; `requires[""]` holds what it always needs."""

    folder: str
    distribution: str
    requires: dict[str, tuple[Requirement, ...]]

    @property
    def path(self) -> Path:
        return ROOT / "packages" / self.folder

    @property
    def module(self) -> str:
        (portion,) = (path.parent.name for path in self.path.glob("src/camshaft/*/py.typed"))
        return f"camshaft.{portion}"

    @property
    def extras(self) -> tuple[str, ...]:
        return tuple(extra for extra in self.requires if extra)

    @classmethod
    def read(cls, path: Path) -> Package:
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        groups = {"": project.get("dependencies", []), **project.get("optional-dependencies", {})}
        requires = {extra: tuple(map(Requirement, lines)) for extra, lines in groups.items()}
        return cls(path.parent.name, canonicalize_name(project["name"]), requires)


PACKAGES = {p.distribution: p for p in map(Package.read, sorted(ROOT.glob("packages/*/pyproject.toml")))}


def closure(packages: Iterable[Package], extras: Iterable[str]) -> tuple[list[Package], list[Requirement]]:
    """The packages of this tree that `packages[extras]` need, dependencies first, and the third-party
    requirements of them all, without those that only an extra named `test` asks for."""
    ordered: dict[str, Package] = {}
    third_party: list[Requirement] = []
    visited: set[tuple[str, str]] = set()

    def visit(package: Package, extras: Iterable[str]) -> None:
        for extra in ("", *sorted(extras)):
            if (package.distribution, extra) in visited:
                continue
            visited.add((package.distribution, extra))
            for requirement in package.requires.get(extra, ()):
                sibling = PACKAGES.get(canonicalize_name(requirement.name))
                if sibling is not None:
                    visit(sibling, requirement.extras)
                elif extra != "test":
                    third_party.append(requirement)
        ordered.setdefault(package.distribution, package)

    for package in packages:
        visit(package, extras)
    return list(ordered.values()), third_party


def in_dependency_order() -> list[Package]:
    return closure(PACKAGES.values(), extras=())[0]


def isolate(session: nox.Session) -> None:
    """Keeps modules of the caller's environment out of the session."""
    session.env["PYTHONPATH"] = None


def install(
    session: nox.Session,
    packages: Iterable[Package],
    *others: str,
    extras: Iterable[str] = (),
    constraints: Path = CONSTRAINTS,
) -> None:
    """Installs `packages[extras]`, the siblings they need, all editable, and the requirements `others`.

    The build backend is installed first and used as it is: pip's isolated builds heed no constraints.
    All local paths go into one pip command, since the siblings are to be found nowhere else.
    """
    isolate(session)
    chosen = {package.distribution: package for package in packages}
    siblings, _ = closure(chosen.values(), extras)
    editables: list[str] = []
    for package in siblings:
        wanted = [e for e in extras if e in package.extras] if package.distribution in chosen else []
        editables += ["-e", f"packages/{package.folder}" + (f"[{','.join(wanted)}]" if wanted else "")]
    session.install("-c", str(CONSTRAINTS), "hatchling")
    session.install("--no-build-isolation", "-c", str(constraints), *editables, *others)


def pytest(session: nox.Session, *arguments: str, success_codes: Iterable[int] = (0,)) -> None:
    session.run("python", "-m", "pytest", *arguments, *session.posargs, success_codes=success_codes)


def package_session(package: Package) -> Callable[[nox.Session], None]:
    def run(session: nox.Session) -> None:
        install(session, [package], extras=["test"])
        pytest(session, f"packages/{package.folder}/tests")

    run.__doc__ = f"Tests of {package.distribution}, installed with the siblings it declares and no others."
    return run


for _package in PACKAGES.values():
    nox.session(name=f"tests-{_package.folder}")(package_session(_package))


@nox.session
def demo(session: nox.Session) -> None:
    """Trains the digits example from start to finish."""
    trainer = PACKAGES["camshaft-trainer"]
    install(session, [trainer], *EXAMPLE_REQUIREMENTS)
    session.run("python", "examples/digits.py", *session.posargs)


@nox.session
def integration(session: nox.Session) -> None:
    """Tests of all packages together, against other frameworks, and of the examples."""
    others = (*ADAPTED_LIBRARIES, *STARTING_LIBRARIES, *EXAMPLE_REQUIREMENTS)
    install(session, PACKAGES.values(), *others, extras=["test"])
    pytest(session, "integration_tests")


@nox.session
def gpu(session: nox.Session) -> None:
    """Tests marked `gpu`; they skip with a reason where torch sees no CUDA device."""
    install(session, PACKAGES.values(), *ADAPTED_LIBRARIES, *EXAMPLE_REQUIREMENTS, extras=["test"])
    folders = [f"packages/{package.folder}/tests" for package in in_dependency_order()]
    for folder in [*folders, "integration_tests"]:
        pytest(session, folder, "-m", "gpu", "-rs", success_codes=(0, PYTEST_NO_TESTS))


@nox.session
def soak(session: nox.Session) -> None:
    """Property tests of the packages with 50 times as many examples, in no gate; `-- --examples-factor=N -k resume`."""
    install(session, PACKAGES.values(), extras=["test"])
    for package in in_dependency_order():
        pytest(
            session,
            f"packages/{package.folder}/tests",
            *("-m", "hypothesis and not processes", "--examples-factor=50"),
            success_codes=(0, PYTEST_NO_TESTS),
        )


@nox.session(reuse_venv=False)
def oldest(session: nox.Session) -> None:
    """Package tests with the lowest versions that the packages declare for what they run on.

    Two things stay at the pins of constraints.txt: torch, because its older CPU builds cannot be had
    everywhere, and test tools, because users never install them. Tests that start processes are left out:
    what they try is torch's.
    """
    directory = Path(session.create_tmp())
    for package in in_dependency_order():
        session.run("python", "-m", "pip", "uninstall", "--quiet", "--yes", *PACKAGES, silent=True)
        constraints = directory / f"{package.folder}.txt"
        constraints.write_text("\n".join(lowest_versions(session, package)) + "\n", encoding="utf-8")
        install(session, [package], extras=["test"], constraints=constraints)
        pytest(session, f"packages/{package.folder}/tests", "-m", "not processes")


def lowest_versions(session: nox.Session, package: Package) -> list[str]:
    """The lines of constraints.txt, what `package` and its siblings require being at its lower bound."""
    lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    pins: dict[str, str] = {
        canonicalize_name(Requirement(line).name): line for line in lines if line and line[0].isalpha()
    }
    floors: dict[str, Version] = {}
    for requirement in closure([package], ["test"])[1]:
        name = canonicalize_name(requirement.name)
        bounds = [Version(s.version) for s in requirement.specifier if s.operator in (">=", "~=", "==")]
        if not bounds:
            session.error(f"`{requirement}` of {package.distribution} must declare a lower bound.")
        floors[name] = max([*bounds, *([floors[name]] if name in floors else [])])
    floors.pop("torch", None)
    for required, floor in floors.items():
        session.log(f"{package.distribution}: {required} {floor}")
        pins[required] = f"{required}=={floor}"
    return list(pins.values())


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff's rules and formatting."""
    session.install("-c", str(CONSTRAINTS), "ruff")
    session.run("ruff", "check", *session.posargs)
    session.run("ruff", "format", "--check", *session.posargs)


@nox.session
def types(session: nox.Session) -> None:
    """mypy: strict on the packages, plain on the code around them."""
    extras = sorted({extra for package in PACKAGES.values() for extra in package.extras})
    install(session, PACKAGES.values(), "mypy", "nox", *EXAMPLE_REQUIREMENTS, extras=extras)
    sources = [str(package.path / "src") for package in PACKAGES.values()]
    scripts = [".ci", "examples", "benchmarks"]  # scripts import what lies beside them
    session.env["MYPYPATH"] = os.pathsep.join([*sources, *scripts])
    session.run("mypy", "--strict", "--no-warn-unused-configs", *sources, *session.posargs)
    session.run("mypy", "noxfile.py", "conftest.py", *scripts, *session.posargs)


@nox.session
def imports(session: nox.Session) -> None:
    """The import contracts of pyproject.toml. Static: nothing of the packages is installed."""
    session.install("-c", str(CONSTRAINTS), "import-linter")
    session.env["PYTHONPATH"] = os.pathsep.join(str(package.path / "src") for package in PACKAGES.values())
    session.run("lint-imports", "--no-cache", *session.posargs)


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
    python = str(clean / "bin" / "python")
    session.run(python, "-m", "pip", "install", "--quiet", "-c", str(CONSTRAINTS), *wheels, external=True)
    smoke = ROOT / ".ci" / "smoke_wheels.py"
    with session.chdir(directory):
        session.run(python, "-I", str(smoke), *(package.module for package in packages), external=True)


@nox.session
def bench(session: nox.Session) -> None:
    """Overhead per step, next to other frameworks; arguments after `--` go to benchmarks/overhead.py."""
    install(session, [PACKAGES["camshaft-trainer"]], *BENCHMARK_PEERS)
    session.run("python", "benchmarks/overhead.py", *session.posargs)


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """The contributor gate: every check of this file but `gpu`, `soak` and `bench`, two sessions at a time."""
    if session.posargs:
        session.error("`tests` passes no arguments on. Give them to one session, such as tests-loops.")
    of_packages = [f"tests-{package.folder}" for package in in_dependency_order()]
    # the longest ones early, so that neither is left alone at the end
    jobs = ["lint", "imports", "types", "oldest", "integration", *of_packages, "build", "demo"]
    outcomes = Gate(Path(__file__), log_dir=ROOT / ".nox" / "logs").run(jobs)
    print_table(outcomes)
    failed = [outcome.session for outcome in outcomes if not outcome.passed]
    # At exit, since nox itself has more to print and this line is to be the last.
    atexit.register(print, f"{len(jobs) - len(failed)} passed, {len(failed)} failed", flush=True)
    if failed:
        session.error(f"{', '.join(failed)}: see the output above or .nox/logs.")
