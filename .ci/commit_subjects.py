"""Checks the subjects of commits: at most 72 characters, in the imperative, without a full stop.

`.ci/commit_subjects.py FILE` checks a message, as the `commit-msg` hook does; without FILE, the commits that the
upstream of the branch, or origin/main, lacks.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAX_LENGTH = 72
GENERATED = ("Merge ", 'Revert "', "fixup! ", "squash! ", "amend! ")
# First words of subjects that state or name something instead.
NO_VERBS = {
    "The",
    "A",
    "An",
    "Two",
    "Three",
    "Several",
    "Some",
    "All",
    "Each",
    "Under",
    "With",
    "In",
    "On",
    "For",
    "Now",
    "What",
}
# Endings of other forms than the imperative, and imperatives that end like them.
OTHER_FORM = re.compile(r"\w+(ed|ing|s)$")
IMPERATIVES = re.compile(r"(\w*(ss|eed|us|ias|anvas|shed)|bring|embed|ring|sing|string|swing|wed|shred|spring)$", re.I)


def fault(subject: str) -> str | None:
    """Return what is wrong with a subject and what to do, None if nothing is."""
    if subject.startswith(GENERATED):
        return None
    if not subject.strip():
        return "must not be empty. Say what the commit does."
    if len(subject) > MAX_LENGTH:
        return f"must have at most {MAX_LENGTH} characters, but has {len(subject)}. Move reasons to the body."
    if subject.endswith("."):
        return "must not end with a full stop. Remove it."
    first = subject.split()[0]
    is_imperative = first not in NO_VERBS and (not OTHER_FORM.match(first) or IMPERATIVES.match(first))
    if not (is_imperative and first[0].isupper() and first.isalpha()):
        return f"must begin with a capitalized imperative, such as 'Add', but got {first!r}."
    return None


def new_subjects() -> list[str]:
    """Return the subjects of commits that the upstream, or else origin/main, lacks; none where there is neither."""
    for base in ("@{upstream}", "origin/main"):
        command = ["git", "log", "--no-merges", "--format=%s", f"{base}..HEAD"]
        answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            return answer.stdout.splitlines()
    return []


def subject_of(message: str) -> str:
    """Return the first line of a message that is no comment."""
    return next((line for line in message.splitlines() if line.strip() and not line.startswith("#")), "")


def main(arguments: list[str]) -> int:
    """Print what is wrong; return 1 if something is."""
    subjects = [subject_of(Path(name).read_text(encoding="utf-8")) for name in arguments] or new_subjects()
    faults = [f"{subject!r}: the subject {wrong}" for subject in subjects if (wrong := fault(subject)) is not None]
    print("\n".join(faults), file=sys.stderr, end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
