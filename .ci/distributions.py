"""The packages of this tree: what each requires, how a session installs and tests them."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import nox
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gate import Gate, Job, Outcome, print_end, print_table

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
PYTEST_NO_TESTS = 5
QUICK = "not processes"
# Where quick tests run again, with other versions around them, a part of them shows the same.
QUICK_AGAIN = f"{QUICK} and not exhaustive"
DRAWN_AGAIN = ("--tests-factor=0.5", "--examples-factor=0.1")
# The environment that others share what is installed with; sessions in a copy of the tree are told that of the tree.
SHARED_VARIABLE = "CAMSHAFT_SHARED_ENVIRONMENT"
SHARED = Path(os.environ.get(SHARED_VARIABLE) or ROOT / ".nox" / "tests")
OF_TORCH = ("mpmath", "sympy", "torch")
STORE_LIBRARIES = ("s3fs", "moto[server]")  # a client and a server of S3, which no package needs for its quick tests


def tree_hash() -> str:
    """Return the name of what is committed, the same for the same files; "" outside of a repository."""
    command = ["git", "rev-parse", "--quiet", "--verify", "HEAD^{tree}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()


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
    siblings, third_party = closure(chosen.values(), extras)
    if any(requirement.name == "torch" for requirement in third_party):
        has_all = chosen.keys() == PACKAGES.keys() and "test" in extras  # as the environment of `tests`
        share_installed(Path(session.bin).parent, None if has_all else OF_TORCH)
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


def share_installed(environment: Path, names: Collection[str] | None = OF_TORCH, source: Path = SHARED) -> None:
    """Give an environment that lacks torch what another of the same Python has of some distributions, by hard links.

    Compiled modules come along: to unpack torch and compile it takes 20 processor seconds, all else as long again. pip
    finds them installed, and replaces what its constraints do not allow.

    Args:
        environment: Where they go.
        names: Of distributions; None for all but this tree's.
        source: The other environment.
    """
    for packages in source.glob("lib/python*/site-packages"):
        target = environment / packages.relative_to(source)
        if target == packages or not target.is_dir() or any(target.glob("torch-*.dist-info")):
            continue
        for distribution in metadata.distributions(path=[str(packages)]):
            name = canonicalize_name(distribution.name)
            if name in (names or {name}) and name not in PACKAGES and name not in ("pip", "setuptools"):
                _link_distribution(distribution.files or [], packages, target)


def _link_distribution(files: Iterable[metadata.PackagePath], packages: Path, target: Path) -> None:
    for file in (file for file in files if file.parts[0] == ".."):  # scripts, which name their Python, and manuals
        copied = (target / file).resolve()
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(packages / file, copied)
        theirs, own = (os.fsencode(one.parents[2] / "bin") for one in (packages, target))
        copied.write_bytes(copied.read_bytes().replace(theirs, own))
    folders = {file.parts[0] for file in files} - {".."}
    for folder in sorted(folders, key=lambda name: name.endswith(".dist-info")):  # which says that all is there
        if (packages / folder).is_dir():
            shutil.copytree(packages / folder, target / folder, copy_function=_link, dirs_exist_ok=True)
        else:
            _link(packages / folder, target / folder)


def _link(source: str | Path, target: str | Path) -> None:
    """Make a hard link, or a copy on another file system, unless the file is there."""
    try:
        os.link(source, target)
    except FileExistsError:
        return
    except OSError:
        shutil.copy2(source, target)


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


every_outcome: list[Outcome] = []


def print_failures_and_tally() -> None:
    failures = [outcome for outcome in every_outcome if outcome.has_failed]
    for outcome in failures:
        print_end(outcome)
    num_skipped = sum(outcome.result == "skipped" for outcome in every_outcome)
    num_passed = len(every_outcome) - num_skipped - len(failures)
    print(f"{num_passed} passed, {num_skipped} skipped, {len(failures)} failed", flush=True)


def run_jobs(session: nox.Session, jobs: Iterable[Job], log_dir: Path) -> None:
    """Run `jobs` side by side, print what came out, and fail if one of them did."""
    outcomes = Gate(ROOT, log_dir).run(list(jobs))
    print_table(outcomes)
    if not every_outcome:  # at exit, since nox itself has more to print and these lines are to be the last
        atexit.register(print_failures_and_tally)
    every_outcome.extend(outcomes)
    failed = [outcome.job for outcome in outcomes if outcome.has_failed]
    if failed:
        session.error(f"{', '.join(failed)}: see the end of the output or {log_dir.relative_to(ROOT)}.")
