"""The packages of this tree: what each requires, how a session installs and tests them."""

from __future__ import annotations

import atexit
import os
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import nox
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gate import Gate, Job, print_table

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
PYTEST_NO_TESTS = 5
QUICK = "not processes"
# Where quick tests run again, with other versions around them, a part of them shows the same.
QUICK_AGAIN = f"{QUICK} and not exhaustive"
FEWER_EXAMPLES = "--examples-factor=0.1"
STORE_LIBRARIES = ("s3fs", "moto[server]")  # a client and a server of S3, which no package needs for its quick tests


@dataclass(frozen=True)
class Package:
    """One folder of packages/ as its pyproject.toml describes it; `requires[""]` holds what it always needs."""

    folder: str
    distribution: str
    version: str
    requires: dict[str, tuple[Requirement, ...]]

    @property
    def path(self) -> Path:
        return ROOT / "packages" / self.folder

    @property
    def tests(self) -> str:
        return f"packages/{self.folder}/tests"

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
        return cls(path.parent.name, canonicalize_name(project["name"]), project["version"], requires)

    def accepts(self, sibling: Package) -> bool:
        """Return whether the ranges that this package declares include the version of `sibling`."""
        requirements = [one for group in self.requires.values() for one in group]
        of_sibling = [one for one in requirements if canonicalize_name(one.name) == sibling.distribution]
        return all(one.specifier.contains(sibling.version, prereleases=True) for one in of_sibling)


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


def with_tests() -> list[Package]:
    return [package for package in in_dependency_order() if (ROOT / package.tests).exists()]


def extras_of_all() -> set[str]:
    """Return the names of the extras of all packages."""
    return {extra for package in PACKAGES.values() for extra in package.extras}


def isolate(session: nox.Session) -> None:
    """Keeps modules of the caller's environment out of the session."""
    session.env["PYTHONPATH"] = None


def install(
    session: nox.Session,
    packages: Iterable[Package],
    *others: str,
    extras: Iterable[str] = (),
    constraints: Path = CONSTRAINTS,
    built: Mapping[str, Path] | None = None,
) -> None:
    """Installs `packages[extras]`, the siblings they need, all editable, and the requirements `others`.

    A sibling whose distribution is in `built` is installed from the wheel named there.

    The build backend is installed first and used as it is: pip's isolated builds heed no constraints.
    All local paths go into one pip command, since the siblings are to be found nowhere else.
    """
    isolate(session)
    chosen = {package.distribution: package for package in packages}
    siblings, _ = closure(chosen.values(), extras)
    wheels = built or {}
    editables: list[str] = []
    for package in siblings:
        if package.distribution in wheels and package.distribution not in chosen:
            continue
        wanted = [e for e in extras if e in package.extras] if package.distribution in chosen else []
        editables += ["-e", f"packages/{package.folder}" + (f"[{','.join(wanted)}]" if wanted else "")]
    # A library that Hydra needs is published without a wheel.
    backends = ["hatchling", *(["setuptools"] if "hydra-core" in others else [])]
    session.install("-c", str(CONSTRAINTS), *backends)
    # Python compiles what it imports; that is a fraction of what pip would compile.
    options = ["--no-build-isolation", "--no-compile", "-c", str(constraints)]
    session.install(*options, *editables, *map(str, wheels.values()), *others)


def uninstall_all(session: nox.Session, *others: str) -> None:
    """Uninstall all packages of this tree, and `others`."""
    session.run("python", "-m", "pip", "uninstall", "--quiet", "--yes", *PACKAGES, *others, silent=True)


def constraints_without(session: nox.Session, *names: str) -> Path:
    """Return a file with constraints.txt without the pins of some distributions, which a session needs older."""
    lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if line.partition("==")[0] not in names]
    path = Path(session.create_tmp()).resolve() / "constraints.txt"
    path.write_text("\n".join(kept) + "\n", encoding="utf-8")
    return path


def pytest(session: nox.Session, *arguments: str, success_codes: Iterable[int] = (0,)) -> None:
    session.run("python", "-m", "pytest", *arguments, *session.posargs, success_codes=success_codes)


def job_environment(session: nox.Session) -> dict[str, str | None]:
    """Return what makes the session's environment the one in which a job's commands are looked up."""
    path = os.pathsep.join([session.bin, os.environ["PATH"]])
    return {"PATH": path, "VIRTUAL_ENV": str(Path(session.bin).parent), "PYTHONPATH": None}


def quick_jobs(session: nox.Session, packages: Collection[Package], *arguments: str, marks: str = QUICK) -> list[Job]:
    """Return a job for the quick tests of each package, the longest ones first, judged by how much text they are."""
    folders = [ROOT / package.tests for package in with_tests() if package in packages]
    folders.sort(key=lambda folder: sum(file.stat().st_size for file in folder.rglob("*.py")), reverse=True)
    command = (str(Path(session.bin) / "python"), "-m", "pytest", "-q", "-m", marks, *arguments)
    environment = job_environment(session)
    codes = (0, PYTEST_NO_TESTS) if session.posargs else (0,)
    return [
        Job(f.parent.name, (*command, str(f.relative_to(ROOT)), *session.posargs), environment, success_codes=codes)
        for f in folders
    ]


tallies: list[tuple[int, int, int]] = []


def print_tally() -> None:
    passed, skipped, failed = map(sum, zip(*tallies, strict=True))
    print(f"{passed} passed, {skipped} skipped, {failed} failed", flush=True)


def run_jobs(session: nox.Session, jobs: Iterable[Job], log_dir: Path) -> None:
    """Run `jobs` side by side, print what came out, and fail if one of them did."""
    outcomes = Gate(ROOT, log_dir).run(list(jobs))
    print_table(outcomes)
    failed = [outcome.job for outcome in outcomes if outcome.has_failed]
    num_skipped = sum(outcome.result == "skipped" for outcome in outcomes)
    if not tallies:  # at exit, since nox itself has more to print and this line is to be the last
        atexit.register(print_tally)
    tallies.append((len(outcomes) - num_skipped - len(failed), num_skipped, len(failed)))
    if failed:
        session.error(f"{', '.join(failed)}: see the output above or {log_dir.relative_to(ROOT)}.")
