"""Makes a release of one package: python .ci/release.py loops 0.2.0 [--lower-bound trainer ...] [--dry-run]

Checks that it can be made; sets the version, turns the changelog's "Unreleased" into it, enters it in releases.toml,
and raises what the packages behind `--lower-bound` require of it. It prints the commands that remain.
"""

from __future__ import annotations

import argparse
import datetime
import difflib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from releases import read_releases

ROOT = Path(__file__).resolve().parent.parent
UNRELEASED = "## Unreleased"
NEW_FEATURE = re.compile(r"new_feature\(\s*[\"'](?P<package>[\w-]+)[\"']")


class ReleaseError(ValueError):
    """The release cannot be made; the message has a line for each reason."""


@dataclass(frozen=True)
class Project:
    """What pyproject.toml of one package says."""

    path: Path
    distribution: str
    version: Version
    requirements: tuple[Requirement, ...]

    @property
    def folder(self) -> str:
        return self.path.parent.name

    @classmethod
    def read(cls, path: Path) -> Project:
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        extras = project.get("optional-dependencies", {})
        lines = [*project.get("dependencies", []), *(line for extra in extras.values() for line in extra)]
        return cls(
            path,
            canonicalize_name(project["name"]),
            Version(project["version"]),
            tuple(map(Requirement, lines)),
        )

    def ranges_of(self, other: Project) -> list[Requirement]:
        """Return what is required of `other`, as far as it names versions."""
        named = [one for one in self.requirements if canonicalize_name(one.name) == other.distribution]
        return [one for one in named if one.specifier]


@dataclass(frozen=True)
class Release:
    """A release to be made: the package, its version and date, and the folders whose lower bound is raised."""

    root: Path
    project: Project
    version: Version
    date: datetime.date
    raised: tuple[str, ...]

    @property
    def tag(self) -> str:
        return f"{self.project.distribution}-v{self.version}"

    @property
    def title(self) -> str:
        return f"Release {self.project.distribution} {self.version}"

    @property
    def changelog(self) -> Path:
        return self.project.path.with_name("CHANGELOG.md")

    def others(self) -> list[Project]:
        return [one for one in projects(self.root).values() if one.folder != self.project.folder]


def projects(root: Path) -> dict[str, Project]:
    return {path.parent.name: Project.read(path) for path in sorted(root.glob("packages/*/pyproject.toml"))}


def problems(release: Release) -> Iterator[str]:
    """Yield a line for each reason why the release cannot be made."""
    status = subprocess.run(
        ["git", "status", "--porcelain"], cwd=release.root, check=True, capture_output=True, text=True
    ).stdout
    if status:
        yield f"The tree must be clean, but git sees {len(status.splitlines())} changes. Commit or stash them."
    yield from version_problems(release)
    changelog = release.changelog.read_text(encoding="utf-8")
    if not unreleased_text(changelog).strip():
        yield f'"Unreleased" must have an entry, but {release.changelog.name} has none. Say what users notice.'
    if re.search(rf"^## {re.escape(str(release.version))}\b", changelog, re.MULTILINE):
        yield f"{release.changelog.name} has a section {release.version} already. Choose a later version."
    yield from sibling_problems(release)


def version_problems(release: Release) -> Iterator[str]:
    released = {one.folder: one.version for one in read_releases(release.root)}[release.project.folder]
    if released and release.version <= Version(released):
        yield f"`version` must be greater than the last release's, {released}, but got {release.version}."
    elif release.version < release.project.version:
        yield (
            f"`version` must not be below that of pyproject.toml, {release.project.version}, but got {release.version}."
        )


def sibling_problems(release: Release) -> Iterator[str]:
    """Yield what other packages lack: a release that this one requires, a range to raise."""
    released = {one.folder: one.version for one in read_releases(release.root)}
    known = projects(release.root)
    for other in release.others():
        for requirement in release.project.ranges_of(other):
            version = released[other.folder]
            if not version or not requirement.specifier.contains(version, prereleases=True):
                last = f"the last release is {version}" if version else "it has no release"
                yield f"{other.folder} must be released first: `{requirement}` is required, but {last}."
    for file, needed in new_feature_tests(release.root):
        if file.relative_to(release.root / "packages").parts[0] == release.project.folder:
            yield f"{needed} must be released first: {file.relative_to(release.root)} needs a new feature of it."
    for folder in release.raised:
        if folder not in known or not known[folder].ranges_of(release.project):
            required = release.project.folder
            yield f"`--lower-bound` must name packages that require {required} in a range, but got {folder!r}."


def new_feature_tests(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield each test file that has the mark `new_feature`, with the package that the mark names."""
    for file in sorted(root.glob("packages/*/tests/**/*.py")):
        for mark in NEW_FEATURE.finditer(file.read_text(encoding="utf-8")):
            yield file, mark["package"]


def unreleased_text(changelog: str) -> str:
    """Return what stands between the heading "Unreleased" and the next one."""
    _, found, rest = changelog.partition(f"\n{UNRELEASED}\n")
    return rest.partition("\n## ")[0] if found else ""


def edits(release: Release) -> dict[Path, str]:
    """Return the new text of each file that the release changes."""
    own, changelog, releases = release.project.path, release.changelog, release.root / "releases.toml"
    texts = {path: path.read_text(encoding="utf-8") for path in (own, changelog, releases)}
    texts[own] = substitute(r'^version = "[^"]*"$', f'version = "{release.version}"', texts[own])
    heading = f"{UNRELEASED}\n\n## {release.version} ({release.date.isoformat()})"
    texts[changelog] = substitute(f"^{UNRELEASED}$", heading, texts[changelog])
    entry = rf'^\[{release.project.folder}\]\nversion = "[^"]*"\ncommit = "[^"]*"$'
    filled = f'[{release.project.folder}]\nversion = "{release.version}"\ncommit = "{release.tag}"'
    texts[releases] = substitute(entry, filled, texts[releases])
    for folder in release.raised:
        path = release.root / "packages" / folder / "pyproject.toml"
        text = path.read_text(encoding="utf-8")
        pattern = rf'("{re.escape(release.project.distribution)}(?:\[[^\]]*\])?)[<>=~!][^"]*"'
        texts[path] = re.sub(pattern, rf'\g<1>{range_from(release.version)}"', text)
    return texts


def substitute(pattern: str, replacement: str, text: str) -> str:
    new, count = re.subn(pattern, lambda _: replacement, text, count=1, flags=re.MULTILINE)
    if not count:
        raise ReleaseError(f"Nothing matches {pattern!r}. Restore the form that the file had.")
    return new


def range_from(version: Version) -> str:
    """Return the range of versions that work as this one does: before 1.0 a minor version may break."""
    upper = f"0.{version.minor + 1}" if version.major == 0 else str(version.major + 1)
    lower = str(version).removesuffix(".0") if len(version.release) == 3 else str(version)
    return f">={lower},<{upper}"


def diff(texts: dict[Path, str], root: Path) -> str:
    lines: list[str] = []
    for path, new in texts.items():
        name = str(path.relative_to(root))
        old = path.read_text(encoding="utf-8").splitlines(keepends=True)
        lines += difflib.unified_diff(old, new.splitlines(keepends=True), f"a/{name}", f"b/{name}")
    return "".join(lines)


def remaining(release: Release) -> Iterator[str]:
    """Yield what is left to do, as commands, and what to look at before."""
    for other in release.others():
        excluding = [
            one
            for one in other.ranges_of(release.project)
            if not one.specifier.contains(str(release.version), prereleases=True)
        ]
        if excluding and other.folder not in release.raised:
            yield f"# {other.folder} excludes this version (`{excluding[0]}`): see `--lower-bound {other.folder}`"
    for file, needed in new_feature_tests(release.root):
        if needed == release.project.folder:
            yield f"# {file.relative_to(release.root)}: the mark `new_feature` for {needed} can go"
    yield "nox -s tests"
    yield f'git commit --all --message "{release.title}"'
    yield f"git tag {release.tag}"
    yield "nox -s mixed"
    yield f"git push origin HEAD {release.tag}"
    yield f"python -m build packages/{release.project.folder}"


def plan(root: Path, package: str, version: str, raised: Sequence[str], date: datetime.date) -> Release:
    """Return the release that was asked for. Raises ReleaseError where it cannot be made."""
    known = projects(root)
    folder = package.removeprefix("camshaft-")
    if folder not in known:
        raise ReleaseError(f"`package` must be one of {', '.join(known)}, but got {package!r}.")
    try:
        release = Release(root, known[folder], Version(version), date, tuple(raised))
    except InvalidVersion as error:
        raise ReleaseError(f"`version` must be a version such as 0.2.0, but got {version!r}.") from error
    found = list(problems(release))
    if found:
        raise ReleaseError("\n".join(found))
    return release


def main(arguments: list[str] | None = None, root: Path = ROOT, date: datetime.date | None = None) -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("package", help="its folder or distribution, such as loops or camshaft-loops")
    parser.add_argument("version")
    bound_help = "let these packages require this version or a later one"
    parser.add_argument("--lower-bound", nargs="+", default=[], metavar="PACKAGE", help=bound_help)
    parser.add_argument("--dry-run", action="store_true", help="print the changes as a diff and make none")
    chosen = parser.parse_args(arguments)
    try:
        release = plan(root, chosen.package, chosen.version, chosen.lower_bound, date or datetime.date.today())
        texts = edits(release)
    except ReleaseError as error:
        print(error, file=sys.stderr)
        return 1
    if chosen.dry_run:
        print(diff(texts, root))
    else:
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
    print(f"{release.title}: its tag is {release.tag}")
    print("\n".join(remaining(release)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
