"""Sessions that not every contributor runs: other versions and interpreters, releases, peers, planted faults."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import nox
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from distributions import (
    CONSTRAINTS,
    DRAWN_AGAIN,
    PACKAGES,
    PYTEST_NO_TESTS,
    QUICK_AGAIN,
    ROOT,
    STORE_LIBRARIES,
    Package,
    closure,
    constraints_without,
    extras_of_all,
    install,
    isolate,
    pytest,
    quick_jobs,
    run_jobs,
    uninstall_all,
    with_tests,
)
from releases import LastRelease, read_releases

BENCHMARK_PEERS = ("lightning", "pytorch-ignite", "torchtnt", "setuptools<81")  # torchtnt 0.2.4 imports pkg_resources
CERTIFIED = (*BENCHMARK_PEERS, "accelerate", "transformers")
# Frameworks that are certified in an environment of their own: each is installed without its requirements, which
# are at odds with constraints.txt, and what it imports of them beside it.
CERTIFIED_BY_THEMSELVES = {
    "composer": (
        "mosaicml",
        *("backoff", "coolname<3", "importlib-metadata", "mosaicml-cli<0.8", "numpy", "packaging", "pillow", "psutil"),
        *("py-cpuinfo", "pyyaml", "requests", "tabulate", "torchmetrics", "torch-optimizer<0.4", "tqdm"),
    ),
    "torchtitan": (
        "torchtitan",
        *("datasets", "einops", "pillow", "safetensors", "spmd_types==0.2.3", "tensorboard", "tokenizers"),
        *("torch_checkpointing", "triton", "tyro"),
    ),
    "torchtnt_nightly": (
        "torchtnt-nightly",
        *(
            "fsspec",
            "numpy",
            "packaging",
            "psutil",
            "pyre-extensions",
            "setuptools<81",
            "tabulate",
            "tensorboard",
            "tqdm",
        ),
    ),
}
LIBRARIES = {path.stem.removeprefix("use_"): path for path in sorted((ROOT / "ecosystem/scripts").glob("use_*.py"))}
INTERPRETERS = ("3.12", "3.13", "3.14")  # beside the one that runs nox
CUDA_LIBRARY = re.compile(r"(nvidia|cuda)-")


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
    for name in CERTIFIED_BY_THEMSELVES:
        if not session.posargs or name in session.posargs:
            session.notify(f"certify-{name}", posargs=())
    together = [name for name in session.posargs if name not in CERTIFIED_BY_THEMSELVES]
    if together or not session.posargs:
        constraints = constraints_without(session, "setuptools")
        install(session, [PACKAGES["camshaft-trainer"]], *CERTIFIED, constraints=constraints)
        session.run("python", "-m", "certify.run", *together)


def certify_session(name: str, framework: str, needed: tuple[str, ...]) -> Callable[[nox.Session], None]:
    def run(session: nox.Session) -> None:
        constraints = constraints_without(session, "setuptools")
        install(session, [PACKAGES["camshaft-trainer"]], *needed, constraints=constraints)
        session.install("--no-deps", framework)
        session.run("python", "-m", "certify.run", name)
        if name == "torchtitan":
            start = ("python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
            session.run(*start, "-m", "certify.torchtitan_callbacks_run", session.create_tmp())

    run.__doc__ = f"The conformance kit on {framework}, in an environment of its own: see certify/README.md."
    return run


for _name, (_framework, *_needed) in CERTIFIED_BY_THEMSELVES.items():
    nox.session(name=f"certify-{_name}", default=False)(certify_session(_name, _framework, tuple(_needed)))


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
def elastic(session: nox.Session) -> None:
    """Ten thousand simulated chains of stops, kills and numbers of processes, and two hundred real ones, in no gate."""
    install(session, PACKAGES.values(), extras=["test"])
    no_timeout = ("-o", "faulthandler_timeout=0")  # each is one test, which takes minutes
    simulated = "packages/loops/tests/test_elastic_data.py"
    pytest(session, simulated, "-k", "read_once", "--examples-factor=100", *no_timeout)
    pytest(session, "packages/forensics/tests/test_elastic_runs.py", "--examples-factor=200", *no_timeout)


@nox.session
def crashes(session: nox.Session) -> None:
    """Every operation of a save and every collective as the last one, in no gate; `-- sharded` picks a scene."""
    install(session, PACKAGES.values(), *STORE_LIBRARIES, extras=["test"])
    session.run("python", "integration_tests/crash_points.py", *session.posargs, env={"OMP_NUM_THREADS": "1"})


@nox.session
def faults(session: nox.Session) -> None:
    """Plant faults in a copy of the tree and show that tests notice each, in no gate; `-- --list`, `-- accumul`."""
    install(session, PACKAGES.values(), extras=["test"])
    session.run("python", ".ci/planted_faults.py", *session.posargs)


@nox.session
def moves(session: nox.Session) -> None:
    """Kill runs on logical ranks, go on with other numbers of processes, in no gate; `-- --runs 500 --seed 3`."""
    install(session, [PACKAGES["camshaft-forensics"]], extras=["test"])
    session.run("python", "integration_tests/moves.py", *session.posargs, env={"OMP_NUM_THREADS": "1"})


@nox.session
def bench(session: nox.Session) -> None:
    """Overhead per step, next to other frameworks; arguments after `--` go to benchmarks/overhead.py."""
    constraints = constraints_without(session, "setuptools")
    ours = [PACKAGES["camshaft-trainer"], PACKAGES["camshaft-forensics"]]  # callbacks of both
    install(session, ours, *BENCHMARK_PEERS, constraints=constraints)
    session.run("python", "benchmarks/overhead.py", *session.posargs)


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
        session.run("python", "-m", "pytest", "-q", package.tests, "-m", QUICK_AGAIN, *DRAWN_AGAIN)


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


def interpreter_session(version: str) -> Callable[[nox.Session], None]:
    def run(session: nox.Session) -> None:
        packages = list(PACKAGES.values())
        reason = reason_without_torch(session)
        if reason is not None:
            packages = [package for package in packages if not needs_torch(package)]
        install(session, packages, extras=["test"])
        jobs = quick_jobs(session, packages, *DRAWN_AGAIN, marks=QUICK_AGAIN)
        run_jobs(session, jobs, ROOT / ".nox" / "logs" / session.name)
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
            marks = f"{QUICK_AGAIN} and not new_feature"
            pytest(session, "-q", package.tests, "-m", marks, *DRAWN_AGAIN, success_codes=(0, PYTEST_NO_TESTS))
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
