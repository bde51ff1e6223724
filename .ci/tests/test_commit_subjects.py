"""Subjects of commits: what the hook and `nox -s lint` accept, and what they print about the others."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from commit_subjects import ROOT, fault


@pytest.mark.parametrize(
    "subject",
    [
        "Move ledgers to forensics",
        "Pass settings whole",
        "Embed names",
        'Revert "Moved"',
        "Merge branch 'a'",
        "Add " + "x" * 68,
    ],
)
def test_an_imperative_of_up_to_72_characters_is_accepted(subject: str) -> None:
    assert fault(subject) is None


@pytest.mark.parametrize(
    ("subject", "message"),
    [
        ("Add " + "x" * 69, "at most 72 characters, but has 73"),
        ("Added a page", "'Added'"),
        ("Adding a page", "'Adding'"),
        ("Adds a page", "'Adds'"),
        ("add a page", "'add'"),
        ("Documentation: a page", "'Documentation:'"),
        ("The page says it", "'The'"),
        ("Add a page.", "full stop"),
        ("", "empty"),
    ],
)
def test_other_subjects_are_refused_with_what_to_do(subject: str, message: str) -> None:
    assert message in str(fault(subject))


def test_the_hook_refuses_a_commit_and_lint_finds_one_that_upstream_lacks(tmp_path: Path) -> None:
    def git(*words: str) -> subprocess.CompletedProcess[str]:
        command = ["git", "-c", "user.name=A", "-c", "user.email=a@example.org", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment)

    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci", ignore=shutil.ignore_patterns("tests", "__pycache__"))
    git("init", "--initial-branch=main")
    git("commit", "--allow-empty", "-m", "Begin")
    git("update-ref", "refs/remotes/origin/main", "HEAD")
    git("config", "core.hooksPath", ".ci/hooks")
    assert "'Added'" in git("commit", "--allow-empty", "-m", "Added it").stderr
    assert git("commit", "--allow-empty", "-m", "Add it", "-m", "Reasons may say what was added.").returncode == 0
    lint = ["python3", ".ci/commit_subjects.py"]
    assert subprocess.run(lint, cwd=tmp_path, check=False).returncode == 0
    git("commit", "--allow-empty", "--no-verify", "-m", "Added it")
    assert subprocess.run(lint, cwd=tmp_path, check=False, capture_output=True).returncode == 1
