"""The last release of each package, as releases.toml at the top of the repository names it."""

from __future__ import annotations

import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class LastRelease:
    """One package's last release; `commit` is a hash or a tag, and "" as long as there was none."""

    folder: str
    version: str
    commit: str

    def is_known(self, root: Path) -> bool:
        """Return whether the repository has the commit; a shallow clone may not."""
        return _git(root, "cat-file", "-e", f"{self.commit}^{{commit}}")

    def is_unchanged(self, root: Path) -> bool:
        """Return whether the package in the tree is the released one: its sources and its pyproject.toml."""
        folder = f"packages/{self.folder}"
        return _git(root, "diff", "--quiet", self.commit, "--", f"{folder}/src", f"{folder}/pyproject.toml")


def _git(root: Path, *arguments: str) -> bool:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, check=False).returncode == 0


def read_releases(root: Path) -> list[LastRelease]:
    """Return the last release of each package. Raises ValueError where the file and packages/ do not agree."""
    entries = tomllib.loads((root / "releases.toml").read_text(encoding="utf-8"))
    releases = [LastRelease(folder, entry["version"], entry["commit"]) for folder, entry in sorted(entries.items())]
    folders = {path.parent.name for path in root.glob("packages/*/pyproject.toml")}
    missing = sorted(folders - entries.keys())
    if missing:
        raise ValueError(
            f"releases.toml must name every package, but lacks {', '.join(missing)}. "
            'Add a table with version = "" and commit = "".'
        )
    return [release for release in releases if release.folder in folders]
