"""Files in stores: whole or absent, named and listed as on a disk, and fsspec only where it is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st

from camshaft.hooks_core.support import remote_files
from camshaft.hooks_core.support.remote_files import (
    INDEX_FILE,
    absolute,
    check_store,
    claim,
    copy,
    edit_file,
    entries_of,
    exists,
    files_below,
    is_folder,
    is_url,
    join,
    lies_in,
    local_copy,
    make_folder,
    modified,
    new_file,
    parent_of,
    remove,
    replace_file,
    size_of,
)
from camshaft.hooks_core.trace import Trace

NAMES = st.text("ab.=[]-", min_size=1, max_size=5).filter(lambda name: name not in (".", ".."))


class FailingStore(MemoryFileSystem):  # type: ignore[misc]
    """A store whose connection breaks while a file is uploaded, after its first bytes."""

    protocol = "failing"
    root_marker = "/"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        stripped: str = super()._strip_protocol(path.removeprefix("failing://"))
        return stripped

    def put_file(self, lpath: str, rpath: str, **options: Any) -> None:
        with self.open(rpath, "wb") as file:
            file.write(Path(lpath).read_bytes()[:1])
        raise ConnectionError("the line is dead")


@pytest.fixture(autouse=True)
def empty_store() -> Iterator[None]:
    fsspec.register_implementation("failing", FailingStore, clobber=True)
    yield
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


def write(path: str, text: str) -> None:
    with replace_file(path) as file:
        file.write_text(text)


def read(path: str) -> str:
    with local_copy(path) as file:
        return file.read_text()


@pytest.fixture(params=["disk", "store"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path) if request.param == "disk" else "memory://bucket/run"


@pytest.mark.parametrize("path", ["C:\\runs", "C:/runs", "c://runs", "runs/a:b", "file:///runs", "a::b"])
def test_a_path_of_this_machine_is_no_url(path: str) -> None:
    assert not is_url(path) and not is_url(Path(path))


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("file:///runs/a", "/runs/a"),
        ("file:///C:/runs", os.path.abspath("C:/runs")),
        ("~/runs", os.path.expanduser("~/runs")),
        (Path("runs"), os.path.abspath("runs")),
        ("s3://bucket/run/", "s3://bucket/run"),
        ("memory://", "memory://"),
    ],
)
def test_absolute_paths(given: str | Path, found: str) -> None:
    assert absolute(given) == found


def test_a_path_object_cannot_hold_a_url() -> None:
    with pytest.raises(ValueError, match=r"a string if it is a URL.*s3:/bucket/run.*Pass the string"):
        absolute(Path("s3://bucket/run"))


@given(st.lists(NAMES, min_size=1, max_size=4), st.sampled_from(["memory://", "s3://bucket", "/runs"]))
def test_names_are_joined_and_taken_apart(names: list[str], root: str) -> None:
    path = root
    for name in names:
        folder, path = path, join(path, name)
        assert parent_of(path) == folder
        assert lies_in(path, folder) and lies_in(path, root) and not lies_in(folder, path)
        assert not lies_in(join(folder, "..", name), folder)
        assert not lies_in(f"{path}x", path)
    assert join(root, *names) == path


@given(st.dictionaries(st.lists(NAMES, min_size=1, max_size=2).map(tuple), st.text("xyz"), min_size=1, max_size=4))
def test_a_store_has_the_files_that_a_disk_has(files: dict[tuple[str, ...], str]) -> None:
    folders = {names[:1] for names in files if len(names) == 2}
    files = {names: text for names, text in files.items() if names not in folders}
    remove("memory://bucket")
    for names, text in files.items():
        write(join("memory://bucket", *names), text)
    assert {url: read(url) for url in files_below("memory://bucket")} == {
        join("memory://bucket", *names): text for names, text in files.items()
    }
    assert sorted(set(entries_of("memory://bucket"))) == sorted({names[0] for names in files})
    gone = next(iter(files))[0]
    remove(join("memory://bucket", gone))
    assert sorted(set(entries_of("memory://bucket"))) == sorted({names[0] for names in files} - {gone})


def test_files_are_replaced_edited_and_removed(root: str) -> None:
    path = join(root, "deep", "a[b].txt")
    assert not exists(path) and not is_folder(join(root, "deep"))
    write(path, "one")
    assert exists(path) and not is_folder(path) and is_folder(join(root, "deep"))
    write(path, "two")
    assert read(path) == "two" and size_of(path) == 3 and entries_of(join(root, "deep")) == ["a[b].txt"]
    with edit_file(path) as file:
        file.write_text(file.read_text() + "!")
    assert read(path) == "two!"
    remove(join(root, "deep"))
    remove(path)  # nothing is there
    assert not exists(join(root, "deep")) and entries_of(join(root, "deep")) == []


def test_a_link_that_leads_nowhere_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "last").symlink_to("gone")
    assert not exists(str(tmp_path / "last")) and entries_of(str(tmp_path)) == ["last"]


def test_a_file_without_a_folder_is_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write("a.txt", "a")
    assert entries_of(parent_of("a.txt")) == ["a.txt"] and read("a.txt") == "a"


def test_a_block_that_fails_changes_nothing(root: str) -> None:
    path = join(root, "a.txt")
    write(path, "earlier")
    contexts: list[Callable[[str], Any]] = [replace_file] + [edit_file, new_file] * is_url(root)
    for context in contexts:
        with pytest.raises(ZeroDivisionError), context(path) as file:
            file.write_text("half")
            raise ZeroDivisionError
    assert read(path) == "earlier" and entries_of(root) == ["a.txt"]


def test_an_upload_that_fails_changes_nothing() -> None:
    write("memory://bucket/a.txt", "earlier")
    with pytest.raises(ConnectionError, match="the line is dead") as caught, new_file("failing://bucket/a.txt") as file:
        file.write_text("later")
    assert caught.value.__notes__ == ["Raised for 'failing://bucket/a.txt'."]
    assert read("memory://bucket/a.txt") == "earlier" and entries_of("memory://bucket") == ["a.txt"]


def test_a_folder_is_copied_whole_and_its_index_last(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in ((INDEX_FILE, "of b"), ("b.distcp", "b"), ("z.distcp", "z")):
        write(f"memory://new/{name}", text)
    for name, text in ((INDEX_FILE, "of a"), ("a.distcp", "a")):
        write(f"memory://last/{name}", text)
    put = MemoryFileSystem.put_file
    seen = []

    def put_and_look(self: Any, lpath: str, rpath: str, **options: Any) -> None:
        seen.append((read(f"memory://last/{INDEX_FILE}"), read("memory://last/a.distcp")))
        put(self, lpath, rpath, **options)

    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "put_file", put_and_look)
        copy("memory://new", "memory://last")
    assert seen == [("of a", "a")] * 3
    assert {url.rpartition("/")[2]: read(url) for url in files_below("memory://last")} == {
        INDEX_FILE: "of b",
        "b.distcp": "b",
        "z.distcp": "z",
    }
    copy("memory://new/z.distcp", "memory://last/alone")
    assert read("memory://last/alone") == "z"


def test_a_file_takes_the_place_of_a_folder() -> None:
    write("memory://run/x.ckpt/plain.ckpt", "old")
    write("memory://run/x.ckpt", "new")
    assert files_below("memory://run") == ["memory://run/x.ckpt"] and read("memory://run/x.ckpt") == "new"


def test_a_name_is_claimed_once() -> None:
    assert claim("memory://run/version_0/.claim")
    assert not claim("memory://run/version_0/.claim")


def test_later_files_are_newer() -> None:
    write("memory://run/a", "a")
    write("memory://run/b", "b")
    assert modified("memory://run/a") < modified("memory://run/b")


def test_a_store_that_cannot_be_asked_is_no_empty_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise ConnectionError("the line is dead")

    monkeypatch.setattr(MemoryFileSystem, "info", fail)
    with pytest.raises(ConnectionError):
        exists("memory://run/a")


@pytest.mark.parametrize("url", ["https://host/run", "nowhere://run", "simplecache::s3://bucket/run"])
def test_urls_where_nothing_can_be_written(url: str) -> None:
    with pytest.raises(ValueError, match=r"`dirpath` must be .* in Here\. Pass one such as 's3://bucket/folder'"):
        check_store("dirpath", url, "Here")


def test_a_trace_is_a_local_file() -> None:
    with pytest.raises(ValueError, match=r"`path` must be a path of this machine.*memory://run/trace.* in Trace\.save"):
        Trace().save("memory://run/trace")


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(import_module("fsspec.registry")._registry, "s3", raising=False)
    with pytest.raises(ImportError, match=r"`dirpath` must be a URL whose library is installed.*Install s3fs"):
        check_store("dirpath", "s3://bucket/run", "Here")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ModuleNotFoundError, match=r"'memory://run' needs `fsspec`.*its extra `fsspec`"):
        check_store("dirpath", "memory://run", "Here")


def test_local_paths_need_no_fsspec(tmp_path: Path) -> None:
    program = f"""
import sys
sys.modules["fsspec"] = None
from camshaft.hooks_core.support import remote_files as r
path = r.absolute("file://{tmp_path}/deep/a")
with r.replace_file(path) as file: file.write_text("a")
with r.edit_file(path) as file: file.write_text(file.read_text() + "b")
with r.local_copy(path) as file: assert file.read_text() == "ab"
assert r.exists(path) and r.size_of(path) == 2 and r.entries_of(r.parent_of(path)) == ["a"]
r.remove(r.parent_of(path)); r.make_folder(path)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    assert (tmp_path / "deep" / "a").is_dir()


def test_folders_are_made_where_a_store_has_them() -> None:
    make_folder("memory://run/deep")
    assert is_folder("memory://run/deep")


def test_object_stores_are_written_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_files, "_OBJECT_STORES", {"memory"})
    names: list[str] = []
    put = MemoryFileSystem.put_file

    def put_and_note(self: Any, lpath: str, rpath: str, **options: Any) -> None:
        names.append(rpath)
        put(self, lpath, rpath, **options)

    monkeypatch.setattr(MemoryFileSystem, "put_file", put_and_note)
    write("memory://run/a", "a")
    copy("memory://run/a", "memory://run/b")
    assert names == ["/run/a"] and read("memory://run/b") == "a"  # the copy does not pass through this machine
