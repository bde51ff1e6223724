"""Sessions of the camshaft monorepo: `nox -l` lists them, plain `nox` runs the quick half of the gate (`tests`).

Packages, their order and what each session installs are read from packages/*/pyproject.toml, so that a new
package needs no change here. Versions come from constraints.txt. Only sessions whose packages need torch
install it.
"""

from __future__ import annotations

import atexit
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import nox
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / ".ci"))

from gate import Gate, Job, print_table  # noqa: E402  (these lie beside .ci/run)
from releases import LastRelease, read_releases  # noqa: E402

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of short processes import the same modules

CONSTRAINTS = ROOT / "constraints.txt"
BENCHMARK_PEERS = ("lightning", "pytorch-ignite", "torchtnt", "setuptools<81")  # torchtnt 0.2.4 imports pkg_resources
CERTIFIED = (*BENCHMARK_PEERS, "accelerate", "transformers")
EXAMPLE_REQUIREMENTS = ("scikit-learn", "matplotlib", "torchmetrics", "rich")
ADAPTED_LIBRARIES = ("accelerate", "lightning")  # examples run the loops on them; tests compare with the second, too
STARTING_LIBRARIES = ("ray[train]",)  # that start the processes in which an example trains
STREAMING_LIBRARIES = ("datasets", "webdataset")  # whose streams are resumed
STORE_LIBRARIES = ("s3fs", "moto[server]")  # a client and a server of S3, which no package needs for its quick tests
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
    "nox",  # whose sessions the commands of pages name
    "playwright",  # drives the Chromium of the machine
)
LIBRARIES = {path.stem.removeprefix("use_"): path for path in sorted((ROOT / "ecosystem/scripts").glob("use_*.py"))}
PYTEST_NO_TESTS = 5
QUICK = "not processes"
# Where quick tests run again, with other versions around them, a few examples of each property test show the same.
FEWER_EXAMPLES = "--examples-factor=0.1"
INTERPRETERS = ("3.12", "3.13", "3.14")  # beside the one that runs nox
CUDA_LIBRARY = re.compile(r"(nvidia|cuda)-")

nox.needs_version = ">=2024.4.15"
nox.options.sessions = ["tests"]
nox.options.reuse_venv = "yes"  # a second local run takes seconds; a clean clone has nothing to reuse


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
    session.install("-c", str(CONSTRAINTS), "hatchling")
    # Python compiles what it imports; that is a fraction of what pip would compile.
    options = ["--no-build-isolation", "--no-compile", "-c", str(constraints)]
    session.install(*options, *editables, *map(str, wheels.values()), *others)


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


def quick_jobs(session: nox.Session, packages: Collection[Package], *arguments: str) -> list[Job]:
    """Return a job for the quick tests of each package, the longest ones first, judged by how much text they are."""
    folders = [ROOT / package.tests for package in with_tests() if package in packages]
    folders.sort(key=lambda folder: sum(file.stat().st_size for file in folder.rglob("*.py")), reverse=True)
    command = (str(Path(session.bin) / "python"), "-m", "pytest", "-q", "-m", QUICK, *arguments)
    environment = job_environment(session)
    codes = (0, PYTEST_NO_TESTS) if session.posargs else (0,)
    return [
        Job(f.parent.name, (*command, str(f.relative_to(ROOT)), *session.posargs), environment, success_codes=codes)
        for f in folders
    ]


def process_jobs(session: nox.Session) -> list[Job]:
    """Return a job for the tests marked `processes` of each package, the packages on top of the others first."""
    command = (str(Path(session.bin) / "python"), "-m", "pytest", "-q", "-m", "processes")
    environment = job_environment(session)
    return [
        Job(f"processes-{one.folder}", (*command, one.tests), environment, success_codes=(0, PYTEST_NO_TESTS))
        for one in reversed(with_tests())
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
    """Tests of all packages together, against other frameworks, and of the examples."""
    others = (*ADAPTED_LIBRARIES, *STARTING_LIBRARIES, *STORE_LIBRARIES, *STREAMING_LIBRARIES, *EXAMPLE_REQUIREMENTS)
    install(session, PACKAGES.values(), *others, extras=["test"])
    pytest(session, "integration_tests")


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
def gpu(session: nox.Session) -> None:
    """Tests marked `gpu`; they skip with a reason where torch sees no CUDA device."""
    install(session, PACKAGES.values(), *ADAPTED_LIBRARIES, *EXAMPLE_REQUIREMENTS, extras=["test"])
    folders = [package.tests for package in with_tests()]
    for folder in [*folders, "integration_tests"]:
        pytest(session, folder, "-m", "gpu", "-rs", success_codes=(0, PYTEST_NO_TESTS))


@nox.session(venv_backend="none")
def ecosystem(session: nox.Session) -> None:
    """Libraries built on Lightning, on it and through camshaft, in no gate; `-- chemprop darts` picks some."""
    if "camshaft-compat" not in PACKAGES:
        session.skip("there is no packages/compat")
    unknown = set(session.posargs) - LIBRARIES.keys()
    if unknown:
        session.error(f"The libraries must be among {', '.join(LIBRARIES)}, but got {', '.join(sorted(unknown))}.")
    for library in session.posargs or LIBRARIES:
        session.notify(f"ecosystem-{library}", posargs=())


def library_session(library: str, script: Path) -> Callable[[nox.Session], None]:
    def run(session: nox.Session) -> None:
        constraints = Path(session.create_tmp()).resolve() / "torch.txt"
        pins = [line for line in CONSTRAINTS.read_text(encoding="utf-8").splitlines() if line.startswith("torch==")]
        constraints.write_text("\n".join(pins) + "\n", encoding="utf-8")
        requirements = nox.project.load_toml(script)["dependencies"]
        install(session, PACKAGES.values(), *requirements, constraints=constraints)
        listed = session.run("python", "-m", "pip", "list", "--format=freeze", "--exclude-editable", silent=True)
        versions = ROOT / "ecosystem" / "versions" / f"{library}.txt"
        versions.parent.mkdir(exist_ok=True)
        versions.write_text("".join(f"{line}\n" for line in str(listed).splitlines() if "==" in line), encoding="utf-8")
        session.run("python", "ecosystem/compare.py", str(script))

    run.__doc__ = f"The script of {library} on Lightning and through camshaft: see ecosystem/README.md."
    return run


for _library, _script in LIBRARIES.items():
    nox.session(name=f"ecosystem-{_library}", default=False)(library_session(_library, _script))


@nox.session
def certify(session: nox.Session) -> None:
    """The conformance kit on other frameworks, whose table the docs show, in no gate; `-- ignite fabric` picks some."""
    constraints = constraints_without(session, "setuptools")
    install(session, [PACKAGES["camshaft-trainer"]], *CERTIFIED, constraints=constraints)
    session.run("python", "-m", "certify.run", *session.posargs)


@nox.session
def soak(session: nox.Session) -> None:
    """Property tests of the packages with 50 times as many examples, in no gate; `-- --examples-factor=N -k resume`."""
    install(session, PACKAGES.values(), extras=["test"])
    for package in with_tests():
        pytest(
            session,
            package.tests,
            *("-m", "hypothesis and not processes", "--examples-factor=50"),
            success_codes=(0, PYTEST_NO_TESTS),
        )


@nox.session
def faults(session: nox.Session) -> None:
    """Plant faults in a copy of the tree and show that tests notice each, in no gate; `-- --list`, `-- accumul`."""
    install(session, PACKAGES.values(), extras=["test"])
    session.run("python", ".ci/planted_faults.py", *session.posargs)


@nox.session(reuse_venv=False)
def oldest(session: nox.Session) -> None:
    """Quick tests of each package, alone, with the lowest versions that it declares; `-- loops trainer` picks some.

    Two things stay at the pins of constraints.txt: torch, because its older CPU builds cannot be had
    everywhere, and test tools, because users never install them. Tests that start processes are left out:
    what they try is torch's, and `full` runs them with the pinned versions.
    """
    directory = Path(session.create_tmp())
    every = {requirement.name for requirement in closure(PACKAGES.values(), extras_of_all())[1]}
    folders = [package.folder for package in with_tests()]
    unknown = set(session.posargs) - set(folders)
    if unknown:
        session.error(f"The packages must be among {', '.join(folders)}, but got {', '.join(sorted(unknown))}.")
    for package in with_tests():
        if session.posargs and package.folder not in session.posargs:
            continue
        # What another package was tried with may be older than what this one has, and torchmetrics imports matplotlib
        # where it is installed.
        needed = {requirement.name for requirement in closure([package], ["test"])[1]}
        uninstall_all(session, *sorted(every - needed - {"torch", "pytest"}))
        constraints = directory / f"{package.folder}.txt"
        constraints.write_text("\n".join(lowest_versions(session, package)) + "\n", encoding="utf-8")
        install(session, [package], extras=["test"], constraints=constraints)
        session.run("python", "-m", "pytest", "-q", package.tests, "-m", QUICK, FEWER_EXAMPLES)


def extras_of_all() -> set[str]:
    """Return the names of the extras of all packages."""
    return {extra for package in PACKAGES.values() for extra in package.extras}


def uninstall_all(session: nox.Session, *others: str) -> None:
    """Uninstall all packages of this tree, and `others`."""
    session.run("python", "-m", "pip", "uninstall", "--quiet", "--yes", *PACKAGES, *others, silent=True)


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
    install_for_types(session)
    run_jobs(session, type_jobs(session), ROOT / ".nox" / "logs" / "types")


def install_for_types(session: nox.Session) -> None:
    """Install all packages with whatever they or the scripts may import."""
    install(session, PACKAGES.values(), "mypy", "nox", *EXAMPLE_REQUIREMENTS, extras=sorted(extras_of_all()))


def type_jobs(session: nox.Session) -> list[Job]:
    """Return the jobs that check types; arguments after `--` reach mypy."""
    sources = [str(package.path / "src") for package in PACKAGES.values()]
    scripts = [".ci", "examples", "benchmarks"]  # scripts import what lies beside them
    environment = {**job_environment(session), "MYPYPATH": os.pathsep.join([*sources, *scripts, "ecosystem"])}
    others = ["noxfile.py", "conftest.py", "ecosystem/compare.py", "certify", *scripts]
    mypy = (str(Path(session.bin) / "mypy"), *session.posargs)
    return [
        Job("types", (*mypy, "--strict", "--no-warn-unused-configs", *sources), environment),
        # a cache of its own: mypy's is not made for two at a time
        Job("types-of-scripts", (*mypy, "--cache-dir=.mypy_cache/scripts", *others), environment),
    ]


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
    python = str(clean / "bin" / "python")
    options = ["--quiet", "--no-compile", "-c", str(CONSTRAINTS)]
    session.run(python, "-m", "pip", "install", *options, *wheels, external=True)
    smoke = ROOT / ".ci" / "smoke_wheels.py"
    with session.chdir(directory):
        session.run(python, "-I", str(smoke), *(package.module for package in packages), external=True)


@nox.session
def bench(session: nox.Session) -> None:
    """Overhead per step, next to other frameworks; arguments after `--` go to benchmarks/overhead.py."""
    constraints = constraints_without(session, "setuptools")
    ours = [PACKAGES["camshaft-trainer"], PACKAGES["camshaft-forensics"]]  # callbacks of both
    install(session, ours, *BENCHMARK_PEERS, constraints=constraints)
    session.run("python", "benchmarks/overhead.py", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """The gate of every change, in minutes: lint, import contracts, and all packages' quick tests in one environment.

    Arguments after `--` reach the pytest of each package.
    """
    install(session, PACKAGES.values(), "ruff", "import-linter", "nox", extras=["test"])
    python, environment = str(Path(session.bin) / "python"), job_environment(session)
    sources = os.pathsep.join(str(package.path / "src") for package in PACKAGES.values())
    checks = [
        Job("lint", (python, "-m", "ruff", "check"), environment),
        Job("format", (python, "-m", "ruff", "format", "--check"), environment),
        Job("layers", ("lint-imports", "--no-cache"), {**environment, "PYTHONPATH": sources}),
        Job("public-imports", (python, ".ci/public_imports.py"), environment),
        Job("tooling", (python, "-m", "pytest", "-q", ".ci/tests", "integration_tests/test_imports.py"), environment),
    ]
    run_jobs(session, [*checks, *quick_jobs(session, PACKAGES.values())], ROOT / ".nox" / "logs" / "tests")


def interpreter_session(version: str) -> Callable[[nox.Session], None]:
    def run(session: nox.Session) -> None:
        packages = list(PACKAGES.values())
        reason = reason_without_torch(session)
        if reason is not None:
            packages = [package for package in packages if not needs_torch(package)]
        install(session, packages, extras=["test"])
        run_jobs(session, quick_jobs(session, packages, FEWER_EXAMPLES), ROOT / ".nox" / "logs" / session.name)
        if reason is not None:
            session.skip(f"only {', '.join(package.folder for package in packages)} could be tried: {reason}")

    run.__doc__ = f"Quick tests of all packages on Python {version}."
    return run


def missing_interpreter(version: str) -> Callable[[nox.Session], None]:
    def run(session: nox.Session) -> None:
        session.skip(f"no Python {version} on the PATH or in pyenv's versions")

    run.__doc__ = f"Quick tests of all packages on Python {version}, which is not installed."
    return run


def find_interpreter(version: str) -> str | None:
    """Return a Python of this version, on the PATH or installed by pyenv (whose shims run only what it selected)."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [shutil.which(f"python{version}"), *map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python")))]
    for candidate in filter(None, found):
        probe = [candidate, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"]
        if subprocess.run(probe, capture_output=True, text=True, check=False).stdout.strip() == version:
            return candidate
    return None


def needs_torch(package: Package) -> bool:
    extras = ["test"] if "test" in package.extras else []
    return any(canonicalize_name(requirement.name) == "torch" for requirement in closure([package], extras)[1])


def reason_without_torch(session: nox.Session) -> str | None:
    """Return why the session's Python can have no torch like that of the other sessions, None where it can.

    A build with CUDA libraries counts as none where the Python that runs nox gets one without them.
    """
    own = torch_requirements(str(Path(session.bin) / "python"))
    if own is None:
        return "pip finds no build of the pinned torch"
    if any(map(CUDA_LIBRARY.match, own)) and not any(map(CUDA_LIBRARY.match, torch_requirements(sys.executable) or ())):
        return "pip finds only a build of torch with CUDA libraries, and the other sessions use one without"
    return None


def torch_requirements(python: str) -> list[str] | None:
    """Return what the build of torch requires that pip would install, None where it finds none."""
    command = [python, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--no-deps"]
    command += ["--only-binary", "torch", "--report", "-", "-c", str(CONSTRAINTS), "torch"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        return None
    metadata = json.loads(answer.stdout)["install"][0]["metadata"]
    return list(metadata.get("requires_dist", []))


for _version in INTERPRETERS:
    _python = find_interpreter(_version)
    if _python is None:
        nox.session(name=f"python-{_version}", venv_backend="none")(missing_interpreter(_version))
    else:
        nox.session(name=f"python-{_version}", python=_python)(interpreter_session(_version))


@nox.session
def mixed(session: nox.Session) -> None:
    """Each package at this tree with the others at their last release (releases.toml).

    Imports every module of them all, and runs the package's quick tests without those marked `new_feature`. A package
    that is as it was released is not tried: all packages are their releases then. Tests are left to `oldest` where all
    packages that they need are as released, or where they need none.
    """
    directory = Path(session.create_tmp()).resolve()
    isolate(session)
    session.install("-c", str(CONSTRAINTS), "hatchling")
    made = [one for one in read_releases(ROOT) if one.commit]
    known = [one for one in made if one.is_known(ROOT)]
    left_out = [f"release of {one.folder}: this clone lacks {one.commit}, fetch it" for one in made if one not in known]
    unchanged = {one.folder for one in known if one.is_unchanged(ROOT)}
    left_out += [f"{folder}: as released" for folder in sorted(unchanged)]
    packages = [one for one in with_tests() if one.folder not in unchanged]
    releases = {one.folder: build_release(session, one, directory) for one in known if packages}
    num_tried = 0
    for package in packages:
        reason = reason_not_to_mix(package, {folder: released for folder, (released, _) in releases.items()})
        if reason is not None:
            left_out.append(f"{package.folder}: {reason}")
            continue
        wheels = wheels_beside(session, package, releases)
        uninstall_all(session)
        install(session, [package], extras=["test"], built=wheels)
        session.run("python", "-I", ".ci/import_all.py", package.module, *(PACKAGES[name].module for name in wheels))
        needed = {sibling.folder for sibling in closure([package], ["test"])[0]} - {package.folder}
        if needed - unchanged:
            marks = f"{QUICK} and not new_feature"
            pytest(session, "-q", package.tests, "-m", marks, FEWER_EXAMPLES, success_codes=(0, PYTEST_NO_TESTS))
        num_tried += 1
    for line in left_out:
        session.warn(f"Not tried: {line}")
    if not num_tried:
        session.skip("no package is to be tried, see above")


Releases = dict[str, tuple[Package, Path]]


def build_release(session: nox.Session, release: LastRelease, directory: Path) -> tuple[Package, Path]:
    """Build the wheel of a package at its last release, and return what its pyproject.toml said, and the wheel."""
    command = ["git", "archive", release.commit, f"packages/{release.folder}"]
    archive = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if archive.returncode != 0:
        session.error(
            f"`commit` must be a commit that holds packages/{release.folder}, but got {release.commit!r} in "
            f"releases.toml: {archive.stderr.decode().strip()} Fetch the whole history with its tags, or correct it."
        )
    folder = directory / release.folder
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tree:
        tree.extractall(folder, filter="data")
    project = folder / "packages" / release.folder
    released = Package.read(project / "pyproject.toml")
    if released.version != release.version:
        session.error(
            f"`version` must be that of the commit, {released.version}, but got {release.version!r} for "
            f"{release.folder} in releases.toml. Correct the file."
        )
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    session.run("python", "-m", "pip", "wheel", *options, str(project))
    (wheel,) = folder.glob("*.whl")
    return released, wheel


def reason_not_to_mix(package: Package, released: Mapping[str, Package]) -> str | None:
    """Return why `package` cannot be installed with the last releases of what it needs, None where it can."""
    if not released.keys() - {package.folder}:
        return "no other package has a release in releases.toml"
    for sibling in closure([package], ["test"])[0]:
        if sibling is package:
            continue
        if sibling.folder not in released:
            return f"{sibling.folder} has no release in releases.toml"
        if not package.accepts(released[sibling.folder]):
            return f"it requires a later {sibling.folder} than the released {released[sibling.folder].version}"
    return None


def wheels_beside(session: nox.Session, package: Package, releases: Releases) -> dict[str, Path]:
    """Return the wheels of all other packages, without those whose release excludes what is in this tree."""
    needed = {sibling.folder for sibling in closure([package], ["test"])[0]}
    wheels: dict[str, Path] = {}
    for folder, (released, wheel) in releases.items():
        if folder == package.folder:
            continue
        siblings = closure([PACKAGES[released.distribution]], [])[0]
        complete = all(one.folder in releases or one is package for one in siblings)
        if folder in needed or (complete and released.accepts(package)):
            wheels[released.distribution] = wheel
        else:
            session.log(f"{package.folder}: without {folder} {released.version}, which cannot be installed beside it")
    return wheels


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
    session.run(sys.executable, "-m", "nox", "-f", str(copy / "noxfile.py"), "-s", *sessions, external=True)


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
    first = [job("integration"), job("docs"), *alone]
    others = [job("mixed"), job("build"), *(job(f"python-{version}") for version in INTERPRETERS)]
    with ThreadPoolExecutor(1) as pool:
        installed = pool.submit(install_for_types, session)  # meanwhile the first jobs run, each in its own environment
        here = [replace(one, wait=installed.result) for one in [*process_jobs(session), *type_jobs(session)]]
        run_jobs(session, [*first, *here, *others], log_dir)
