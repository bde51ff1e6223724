"""Releases of packages in a small repository."""

from __future__ import annotations

import datetime
import subprocess
from pathlib import Path

import pytest
from packaging.version import Version

from release import ROOT, ReleaseError, edits, main, plan, projects, range_from
from releases import LastRelease, read_releases

TODAY = datetime.date(2026, 11, 22)
ENTRY = '[{folder}]\nversion = "{version}"\ncommit = "{commit}"\n'
PROJECT = '[project]\nname = "camshaft-{folder}"\nversion = "0.1.0"\ndependencies = [{dependencies}]\n'


def git(root: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two packages: engine, and car, which requires it; engine 0.1.0 is released."""
    requirement = '"attrs>=23", "camshaft-engine[oil]>=0.1,<0.2"'
    for folder, dependencies in {"engine": "", "car": requirement}.items():
        package = tmp_path / "packages" / folder
        (package / "tests").mkdir(parents=True)
        (package / "pyproject.toml").write_text(PROJECT.format(folder=folder, dependencies=dependencies))
        (package / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n\n- It is new.\n\n## 0.1.0\n\n- First.\n")
    car = ENTRY.format(folder="car", version="", commit="")
    engine = ENTRY.format(folder="engine", version="0.1.0", commit="camshaft-engine-v0.1.0")
    (tmp_path / "releases.toml").write_text(f"# why\n\n{car}\n{engine}")
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def commit(repository: Path) -> None:
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message", "work")


def release(repository: Path, *arguments: str) -> int:
    return main(list(arguments), repository, TODAY)


def test_a_release_sets_version_changelog_and_entry(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert release(repository, "engine", "0.1.1") == 0
    package = repository / "packages" / "engine"
    assert 'version = "0.1.1"' in (package / "pyproject.toml").read_text()
    assert (package / "CHANGELOG.md").read_text() == (
        "# Changelog\n\n## Unreleased\n\n## 0.1.1 (2026-11-22)\n\n- It is new.\n\n## 0.1.0\n\n- First.\n"
    )
    entries = {one.folder: (one.version, one.commit) for one in read_releases(repository)}
    assert entries == {"car": ("", ""), "engine": ("0.1.1", "camshaft-engine-v0.1.1")}
    assert (repository / "releases.toml").read_text().startswith("# why\n\n[car]\n")
    printed = capsys.readouterr().out
    assert "Release camshaft-engine 0.1.1: its tag is camshaft-engine-v0.1.1\n" in printed
    assert 'git commit --all --message "Release camshaft-engine 0.1.1"\ngit tag camshaft-engine-v0.1.1\n' in printed
    assert "excludes this version" not in printed


def test_a_dry_run_prints_the_diff_and_changes_nothing(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert release(repository, "camshaft-engine", "0.2.0", "--lower-bound", "car", "--dry-run") == 0
    git(repository, "diff", "--exit-code")
    printed = capsys.readouterr().out
    assert "--- a/packages/engine/pyproject.toml\n+++ b/packages/engine/pyproject.toml\n" in printed
    assert '-version = "0.1.0"\n+version = "0.2.0"\n' in printed
    assert '+dependencies = ["attrs>=23", "camshaft-engine[oil]>=0.2,<0.3"]\n' in printed


def test_a_package_that_excludes_the_version_is_named_unless_its_bound_is_raised(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert release(repository, "engine", "0.2.0", "--dry-run") == 0
    assert "# car excludes this version (`camshaft-engine[oil]<0.2,>=0.1`)" in capsys.readouterr().out
    assert release(repository, "engine", "0.2.0", "--lower-bound", "car") == 0
    assert "excludes" not in capsys.readouterr().out
    assert '"camshaft-engine[oil]>=0.2,<0.3"' in (repository / "packages" / "car" / "pyproject.toml").read_text()


def failure(repository: Path, package: str, version: str, *raised: str) -> str:
    with pytest.raises(ReleaseError) as caught:
        plan(repository, package, version, raised, TODAY)
    return str(caught.value)


def test_changes_that_are_not_committed_are_refused(repository: Path) -> None:
    (repository / "stray").write_text("")
    assert failure(repository, "engine", "0.1.1").startswith("The tree must be clean, but git sees 1 changes.")


@pytest.mark.parametrize("version", ["0.1.0", "0.0.9", "0.1.0rc1"])
def test_a_version_that_is_not_greater_is_refused(repository: Path, version: str) -> None:
    assert "`version` must be greater than the last release's, 0.1.0, but got" in failure(repository, "engine", version)


def test_a_first_release_may_have_the_version_that_stands_there(repository: Path) -> None:
    changelog = repository / "packages" / "car" / "CHANGELOG.md"
    changelog.write_text("# Changelog\n\n## Unreleased\n\n- First.\n")
    commit(repository)
    assert plan(repository, "car", "0.1.0", (), TODAY).tag == "camshaft-car-v0.1.0"
    assert "must not be below that of pyproject.toml, 0.1.0" in failure(repository, "car", "0.0.1")


def test_an_empty_unreleased_and_a_version_that_the_changelog_has_are_refused(repository: Path) -> None:
    changelog = repository / "packages" / "engine" / "CHANGELOG.md"
    changelog.write_text("# Changelog\n\n## Unreleased\n\n## 0.1.1 (2026-01-01)\n\n- There.\n")
    commit(repository)
    assert failure(repository, "engine", "0.1.1").splitlines() == [
        '"Unreleased" must have an entry, but CHANGELOG.md has none. Say what users notice.',
        "CHANGELOG.md has a section 0.1.1 already. Choose a later version.",
    ]


@pytest.mark.parametrize(
    ("package", "version", "message"),
    [("boat", "0.2.0", "`package` must be one of car, engine"), ("car", "soon", "`version` must be a version such as")],
)
def test_an_unknown_package_and_a_word_for_a_version_are_refused(
    repository: Path, package: str, version: str, message: str
) -> None:
    assert message in failure(repository, package, version)


def test_a_package_waits_for_the_release_that_it_requires(repository: Path) -> None:
    project = repository / "packages" / "car" / "pyproject.toml"
    project.write_text(project.read_text().replace(">=0.1,<0.2", ">=0.2,<0.3"))
    commit(repository)
    assert (
        "engine must be released first: `camshaft-engine[oil]<0.3,>=0.2` is required, but the last release is 0.1.0."
        in (failure(repository, "car", "0.2.0"))
    )


def test_a_mark_for_a_new_feature_holds_its_own_package_back_and_goes_with_the_others_release(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test = repository / "packages" / "car" / "tests" / "test_drive.py"
    test.write_text('@pytest.mark.new_feature("engine")\ndef test_drive(): ...\n')
    commit(repository)
    assert "engine must be released first: packages/car/tests/test_drive.py needs a new feature of it." in (
        failure(repository, "car", "0.2.0")
    )
    assert release(repository, "engine", "0.1.1", "--dry-run") == 0
    assert "# packages/car/tests/test_drive.py: the mark `new_feature` for engine can go\n" in capsys.readouterr().out


def test_a_lower_bound_is_raised_only_where_there_is_one(repository: Path) -> None:
    assert "`--lower-bound` must name packages that require car in a range, but got 'engine'." in (
        failure(repository, "car", "0.2.0", "engine")
    )


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.2.0", ">=0.2,<0.3"),
        ("0.2.1", ">=0.2.1,<0.3"),
        ("1.0.0", ">=1.0,<2"),
        ("1.4.2", ">=1.4.2,<2"),
        ("0.3", ">=0.3,<0.4"),
    ],
)
def test_ranges_end_where_a_version_may_break(version: str, expected: str) -> None:
    assert range_from(Version(version)) == expected


@pytest.mark.parametrize("folder", sorted(projects(ROOT)))
def test_every_package_of_this_tree_has_what_a_release_edits(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("release.problems", lambda release: [])
    planned = plan(ROOT, folder, "99.0.0", (), TODAY)
    texts = edits(planned)
    assert [path.name for path in texts] == ["pyproject.toml", "CHANGELOG.md", "releases.toml"]
    assert all(text != path.read_text(encoding="utf-8") for path, text in texts.items())


def test_a_package_that_releases_toml_lacks_is_an_error(repository: Path) -> None:
    (repository / "releases.toml").write_text(ENTRY.format(folder="engine", version="", commit=""))
    with pytest.raises(ValueError, match=r"releases\.toml must name every package, but lacks car\."):
        read_releases(repository)


def test_a_package_is_unchanged_as_long_as_its_sources_and_its_project_are_the_released_ones(repository: Path) -> None:
    def engine() -> LastRelease:
        return next(one for one in read_releases(repository) if one.folder == "engine")

    assert not engine().is_known(repository)  # as in a shallow clone
    git(repository, "tag", "camshaft-engine-v0.1.0")
    package = repository / "packages" / "engine"
    (package / "tests" / "test_engine.py").write_text("x = 1\n")
    assert engine().is_known(repository) and engine().is_unchanged(repository)
    (package / "src").mkdir()
    (package / "src" / "engine.py").write_text("x = 1\n")
    commit(repository)
    assert not engine().is_unchanged(repository)
