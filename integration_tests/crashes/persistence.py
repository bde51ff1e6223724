"""What a folder may look like after a crash, given the operations before it.

Two crashes are told apart:

- The *process* is killed. What it asked the operating system for is done, in order; of the last write any part may be.
- The *machine* loses power. Only what was flushed is certain:
  - `fsync` of a file: its data and size, as of then. What was written later, or never flushed, may be there or missing,
    end in the middle, or be zeros of the right length, for each file by itself.
  - `fsync` of a folder: the names in it, as of then. A name of a file is not made certain by `fsync` of the file.
  - Each other change of names (create, link, rename, remove, make or remove a folder) is there or not as a whole, and
    independently of all others: in each order, therefore, that a file system may write them in. A rename between two
    folders is one change; flushing the folder that it leads to makes it certain.

That is less than ext4, XFS, Btrfs and APFS keep, which write names in order: what survives here survives there. It is
the weakest of the models of ALICE (Pillai et al., OSDI 2014), but for renames, which are taken to be atomic as there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, product
from pathlib import Path
from typing import Literal

from crashes.recorder import Operation

NAMES = frozenset(("create", "mkdir", "link", "symlink", "rename", "unlink", "rmdir"))
Fate = Literal["all", "none", "torn", "zeros"]
"""Of data that was written and not flushed."""
FATES: tuple[Fate, ...] = ("all", "none", "torn", "zeros")
MOST_AT_ONCE = 6
"""Up to so many changes of names that are not certain, every subset of them is tried."""


@dataclass(eq=False)
class Node:
    """A file, folder or symbolic link on the disk."""

    kind: Literal["file", "folder", "link"]
    target: str = ""
    names: dict[str, Node] = field(default_factory=dict)
    changes: list[tuple[int, Operation]] = field(default_factory=list)  # of a file's data
    synced: int = -1  # index of the latest flush
    times: list[tuple[int, int]] = field(default_factory=list)  # index of a change, and when
    contents: dict[tuple[Fate, int, int], bytes] = field(default_factory=dict)  # that were computed


@dataclass(frozen=True)
class Entry:
    """What is at a path: contents of a file, target of a link, or neither for a folder, and its time of change."""

    kind: Literal["file", "folder", "link"]
    content: bytes | str
    time_ns: int
    node: int  # the same for names of one file


State = dict[str, Entry]
"""A folder's contents by relative path."""


@dataclass(frozen=True)
class Assignment:
    """A change of names: of a name in a folder to a node, or to nothing; a rename has two."""

    index: int
    time_ns: int
    names: tuple[tuple[Node, str, Node | None], ...]


class Disk:
    """The operations of a run up to a moment, resolved to files and folders."""

    def __init__(self) -> None:
        self.root = Node("folder")
        self.assignments: list[Assignment] = []
        self._by_number: dict[int, Node] = {}
        self._count = 0

    def apply(self, operation: Operation) -> None:
        """Take the next operation, as running processes see it."""
        index, self._count = self._count, self._count + 1
        kind = operation.kind
        if kind in NAMES:
            names = tuple(self._names_of(operation))
            for folder, name, node in names:
                if node is None:
                    folder.names.pop(name, None)
                else:
                    folder.names[name] = node
            self.assignments.append(Assignment(index, operation.time_ns, names))
        elif kind in ("write", "truncate") and operation.inode in self._by_number:
            self._by_number[operation.inode].changes.append((index, operation))
        elif kind == "utime":
            self._at(operation.path).times.append((index, operation.offset))
        elif kind == "sync":
            (self._by_number.get(operation.inode) or self._at(operation.path)).synced = index

    def _names_of(self, operation: Operation) -> Iterator[tuple[Node, str, Node | None]]:
        folder, name = self._place(operation.path if operation.kind != "symlink" else operation.other)
        if operation.kind in ("create", "mkdir"):
            node = Node("file" if operation.kind == "create" else "folder")
            self._by_number[operation.inode] = node
            yield folder, name, node
        elif operation.kind == "symlink":
            yield folder, name, Node("link", operation.path)
        elif operation.kind == "link":
            yield *self._place(operation.other), folder.names[name]
        elif operation.kind == "rename":
            yield folder, name, None
            yield *self._place(operation.other), folder.names[name]
        else:
            yield folder, name, None

    def _place(self, path: str) -> tuple[Node, str]:
        folder, _, name = path.rpartition("/")
        return self._at(folder), name

    def _at(self, path: str) -> Node:
        node = self.root
        for name in filter(None, path.split("/")):
            node = node.names[name]
        return node

    def _is_certain(self, change: Assignment) -> bool:
        folder = change.names[-1][0]  # of a rename the one that it leads to
        return folder.synced > change.index

    def uncertain(self) -> list[Assignment]:
        """Return the changes of names that may be missing, without those that later certain ones hide anyway."""
        settled: set[tuple[int, str]] = set()
        found = []
        for change in reversed(self.assignments):
            keys = {(id(folder), name) for folder, name, _ in change.names}
            if self._is_certain(change):
                settled |= keys
            elif not keys <= settled:
                found.append(change)
        return found[::-1]

    def tree(self, missing: frozenset[int], fates: dict[int, Fate]) -> State:
        """Return the folder without some changes of names, and with fates of data that was not flushed.

        Args:
            missing: Indices of the changes.
            fates: By node; of those that are not in it all data is there.
        """
        folders: dict[int, dict[str, Node]] = {id(self.root): {}}
        times: dict[int, int] = {}
        for change in self.assignments:
            if change.index in missing:
                continue
            for folder, name, node in change.names:
                entries = folders.setdefault(id(folder), {})
                times[id(folder)] = change.time_ns
                if node is None:
                    entries.pop(name, None)
                else:
                    entries[name] = node
                    if node.kind == "folder":
                        times.setdefault(id(node), change.time_ns)
        state: State = {}
        self._fill(state, "", self.root, folders, times, fates)
        return state

    def _fill(
        self,
        state: State,
        path: str,
        folder: Node,
        folders: dict[int, dict[str, Node]],
        times: dict[int, int],
        fates: dict[int, Fate],
    ) -> None:
        for name, node in folders.get(id(folder), {}).items():
            below = f"{path}{name}"
            if node.kind == "folder":
                when = node.times[-1][1] if node.times else times.get(id(node), 0)
                state[below] = Entry("folder", b"", when, id(node))
                if below.count("/") < 20:
                    self._fill(state, f"{below}/", node, folders, times, fates)
            elif node.kind == "link":
                state[below] = Entry("link", node.target, 0, id(node))
            else:
                fate = fates.get(id(node), "all")
                key = fate, node.synced, len(node.changes)
                content = node.contents.get(key) or node.contents.setdefault(key, content_of(node, fate))
                when = max([one.time_ns for _, one in node.changes] or [0])
                state[below] = Entry("file", content, node.times[-1][1] if node.times else when, id(node))

    def files(self) -> list[Node]:
        """Return the files with data that is not flushed and that still have a name, or may have one."""
        named = {id(node): node for change in self.assignments for _, _, node in change.names if node is not None}
        return [node for node in named.values() if any(index > node.synced for index, _ in node.changes)]


def content_of(node: Node, fate: Fate) -> bytes:
    """Return the contents of a file, given what became of what was not flushed."""
    flushed, full = bytearray(), bytearray()
    for index, change in node.changes:
        for content in (flushed, full) if index < node.synced else (full,):
            if change.kind == "truncate":
                del content[change.offset :]
                content.extend(bytes(change.offset - len(content)))
            else:
                content.extend(bytes(max(0, change.offset - len(content))))
                content[change.offset : change.offset + len(change.data)] = change.data
    if fate == "all" or fate == "none":
        return bytes(full if fate == "all" else flushed)
    pairs = enumerate(zip(flushed, full, strict=False))
    same = next((place for place, (one, other) in pairs if one != other), min(len(flushed), len(full)))
    if fate == "torn":
        return bytes(full[: same + (len(full) - same) // 2])
    return bytes(full[:same]) + bytes(max(0, len(full) - same))


def after_kill(operations: Sequence[Operation]) -> Iterator[tuple[int, State]]:
    """Yield the folder after each operation, and in the middle of each write, with the number of operations begun."""
    disk = Disk()
    for number, operation in enumerate(operations, 1):
        if operation.kind == "mark":
            disk.apply(operation)
            continue
        if operation.kind == "write" and len(operation.data) > 1:
            half = Operation(**{**vars(operation), "data": operation.data[: len(operation.data) // 2]})
            before = Disk()
            for one in [*operations[: number - 1], half]:
                before.apply(one)
            yield number, before.tree(frozenset(), {})
        disk.apply(operation)
        if operation.kind != "sync":
            yield number, disk.tree(frozenset(), {})


def after_power_cut(operations: Sequence[Operation]) -> Iterator[tuple[int, State]]:
    """Yield each folder that a loss of power may leave after each operation, with the number of operations begun."""
    disk = Disk()
    for number, operation in enumerate(operations, 1):
        disk.apply(operation)
        if operation.kind == "mark":
            continue
        changes = [change.index for change in disk.uncertain()]
        # a write changes no name: of the names only the two extremes are tried once more
        several = subsets(changes) if operation.kind != "write" else iter({frozenset[int](), frozenset(changes)})
        torn = disk.files()
        alike: list[dict[int, Fate]] = [{id(file): fate for file in torn} for fate in FATES] if torn else [{}]
        for missing, fates in chain(product(several, alike), product([frozenset[int]()], each_of(torn))):
            yield number, disk.tree(missing, fates)


def subsets(changes: Sequence[int]) -> Iterator[frozenset[int]]:
    """Yield every subset of changes; of many the first ones, the last ones, each alone, and all but each."""
    everything = frozenset(changes)
    if len(changes) <= MOST_AT_ONCE:
        for bits in range(2 ** len(changes)):
            yield frozenset(change for place, change in enumerate(changes) if bits >> place & 1)
        return
    found = dict.fromkeys(everything - frozenset(changes[:place]) for place in range(len(changes) + 1))
    found |= dict.fromkeys(frozenset(changes[:place]) for place in range(len(changes) + 1))
    found |= dict.fromkeys(frozenset((change,)) for change in changes)
    found |= dict.fromkeys(everything - {change} for change in changes)
    yield from found


def each_of(files: Sequence[Node]) -> Iterator[dict[int, Fate]]:
    """Yield what may have become of the data of several files, where it is not the same for all: one has another."""
    if len(files) > 1:
        for common, other, fate in product(FATES, files, FATES):
            if fate != common:
                yield {id(file): common for file in files} | {id(other): fate}


def build(state: State, root: Path) -> None:
    """Make a folder what a state says."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    first_names: dict[int, Path] = {}
    for path, entry in sorted(state.items()):
        place = root / path
        if entry.kind == "folder":
            place.mkdir()
        elif entry.kind == "link":
            place.symlink_to(str(entry.content))
        elif entry.node in first_names:
            os.link(first_names[entry.node], place)
        else:
            assert isinstance(entry.content, bytes)
            place.write_bytes(entry.content)
            first_names[entry.node] = place
    for path, entry in sorted(state.items(), reverse=True):  # what is in a folder before it
        if entry.kind != "link":
            os.utime(root / path, ns=(entry.time_ns, entry.time_ns))


def contents(state: State) -> dict[str, bytes | str]:
    """Return what is at each path of a state."""
    return {path: entry.content for path, entry in state.items()}


def contents_on_disk(root: Path) -> dict[str, bytes | str]:
    """Return what is at each path below a folder."""
    found: dict[str, bytes | str] = {}
    for path in sorted(root.rglob("*")):
        is_file = path.is_file() and not path.is_symlink()
        found[str(path.relative_to(root))] = (
            os.readlink(path) if path.is_symlink() else path.read_bytes() if is_file else b""
        )
    return found
