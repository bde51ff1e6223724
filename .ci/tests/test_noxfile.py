"""What sessions choose: which packages can be mixed, and which interpreters have a torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.requirements import Requirement

import distributions
import occasional_sessions
from distributions import Package


def package(folder: str, version: str, *requirements: str) -> Package:
    return Package(folder, f"camshaft-{folder}", version, {"": tuple(map(Requirement, requirements))})


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> dict[str, Package]:
    """A car that requires an engine, and the engine."""
    tree = [package("engine", "0.2.0"), package("car", "0.1.0", "camshaft-engine>=0.2,<0.3")]
    for name in list(distributions.PACKAGES):
        monkeypatch.delitem(distributions.PACKAGES, name)
    for one in tree:
        monkeypatch.setitem(distributions.PACKAGES, one.distribution, one)
    return {one.folder: one for one in tree}


def test_a_package_is_left_out_of_mixed_as_long_as_what_it_needs_has_no_release(packages: dict[str, Package]) -> None:
    reason = occasional_sessions.reason_not_to_mix
    assert (
        reason(packages["engine"], {"engine": packages["engine"]}) == "no other package has a release in releases.toml"
    )
    assert reason(packages["engine"], {"car": packages["car"]}) is None
    assert reason(packages["car"], {"boat": package("boat", "0.1.0")}) == "engine has no release in releases.toml"
    assert reason(packages["car"], {"engine": package("engine", "0.2.3")}) is None
    older = {"engine": package("engine", "0.1.4")}
    assert reason(packages["car"], older) == "it requires a later engine than the released 0.1.4"


def mixed_with(folder: str, releases: list[Package], packages: dict[str, Package]) -> list[str]:
    session: Any = SimpleNamespace(log=lambda message: None)
    wheels = {one.folder: (one, Path(f"{one.folder}.whl")) for one in releases}
    return list(occasional_sessions.wheels_beside(session, packages[folder], wheels))


def test_released_packages_stand_beside_what_they_accept(packages: dict[str, Package]) -> None:
    accepting = package("car", "0.1.0", "camshaft-engine>=0.1,<0.3")
    excluding = package("car", "0.1.0", "camshaft-engine>=0.1,<0.2")
    assert mixed_with("engine", [accepting], packages) == ["camshaft-car"]
    assert mixed_with("engine", [excluding], packages) == []
    assert mixed_with("car", [accepting, package("engine", "0.2.0")], packages) == ["camshaft-engine"]


def session_with(monkeypatch: pytest.MonkeyPatch, own: list[str] | None, elsewhere: list[str] | None) -> Any:
    session = SimpleNamespace(bin="/somewhere/bin")
    builds = {"/somewhere/bin/python": own, sys.executable: elsewhere}
    monkeypatch.setattr(occasional_sessions, "torch_requirements", builds.__getitem__)
    return session


CPU, CUDA = ["filelock"], ["filelock", "nvidia-cudnn-cu13==9.20.0.48"]


@pytest.mark.parametrize(("own", "elsewhere"), [(CPU, CPU), (CPU, CUDA), (CUDA, CUDA)])
def test_an_interpreter_takes_the_torch_that_others_have(
    monkeypatch: pytest.MonkeyPatch, own: list[str], elsewhere: list[str]
) -> None:
    assert occasional_sessions.reason_without_torch(session_with(monkeypatch, own, elsewhere)) is None


@pytest.mark.parametrize(
    ("own", "message"), [(None, "pip finds no build of the pinned torch"), (CUDA, "only a build of torch with CUDA")]
)
def test_an_interpreter_without_such_a_torch_says_why(
    monkeypatch: pytest.MonkeyPatch, own: list[str] | None, message: str
) -> None:
    assert message in str(occasional_sessions.reason_without_torch(session_with(monkeypatch, own, CPU)))


def test_an_interpreter_is_found_by_what_it_says_of_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    shim = tmp_path / "python3.77"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    assert occasional_sessions.find_interpreter("3.77") is None
    installed = tmp_path / "versions" / "3.77.1" / "bin" / "python"
    installed.parent.mkdir(parents=True)
    installed.write_text("#!/bin/sh\necho 3.77\n")
    installed.chmod(0o755)
    assert occasional_sessions.find_interpreter("3.77") == str(installed)


def test_an_environment_gets_the_torch_of_another_with_what_is_compiled(tmp_path: Path) -> None:
    source, target = (tmp_path / name / "lib" / "python3.11" / "site-packages" for name in ("source", "target"))
    script = f"#!{tmp_path}/source/bin/python\n"
    for path, text in {
        "torch/__init__.py": "",
        "torch/__pycache__/__init__.pyc": "compiled",
        "torch-2.0.dist-info/METADATA": "Name: torch\nVersion: 2.0\n",
        "torch-2.0.dist-info/RECORD": "torch/__init__.py,,\n../../../bin/torchrun,,\ntorch-2.0.dist-info/RECORD,,\n",
        "../../../bin/torchrun": script,
        "other/__init__.py": "",
    }.items():
        (source / path).resolve().parent.mkdir(parents=True, exist_ok=True)
        (source / path).resolve().write_text(text)
    target.mkdir(parents=True)
    distributions.share_installed(tmp_path / "target", source=tmp_path / "source")
    assert {path.name for path in target.iterdir()} == {"torch", "torch-2.0.dist-info"}
    compiled = target / "torch/__pycache__/__init__.pyc"
    assert compiled.samefile(source / compiled.relative_to(target))
    assert (tmp_path / "target/bin/torchrun").read_text() == script.replace("source", "target")
    (target / "torch-2.0.dist-info").rename(target / "torch-3.0.dist-info")
    compiled.unlink()
    distributions.share_installed(tmp_path / "target", source=tmp_path / "source")
    assert not compiled.exists(), "what has a torch keeps it"


def test_a_share_of_the_tests_is_drawn_by_a_seed_that_is_told() -> None:
    def drawn(*options: str) -> tuple[set[str], str]:
        command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "--tests-factor=0.5", *options, __file__]
        done = subprocess.run(command, cwd=distributions.ROOT, capture_output=True, text=True, check=True)
        return {line for line in done.stdout.splitlines() if "::" in line}, done.stdout

    (first, output), (other, _) = drawn("--tests-seed=1"), drawn("--tests-seed=2")
    assert first and other and first != other
    assert f"\n{len(first)}/" in output and "drawn by --tests-factor=0.5 --tests-seed=1\n" in output


def test_every_package_of_this_tree_with_tests_has_a_session() -> None:
    folders = {one.folder for one in distributions.with_tests()}
    assert folders >= {"hooks-core", "loops", "strategies", "callbacks", "trainer", "forensics"}
