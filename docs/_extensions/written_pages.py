"""What the extensions share that write pages: titles, tables, and files that change only with their text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path


def write(folder: Path, pages: Mapping[str, Iterable[str]], suffix: str = ".rst") -> None:
    """Write pages by their names, and remove others from the folder.

    A page whose text is the same keeps its time, so that Sphinx does not read it again.
    """
    for path in sorted(folder.rglob(f"*{suffix}")):
        if path.relative_to(folder).as_posix() not in pages:
            path.unlink()
    for name, lines in pages.items():
        path, text = folder / name, "\n".join(lines) + "\n"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def title(text: str, underline: str) -> Iterator[str]:
    yield from (text, underline * len(text), "")


def table(rows: Iterable[tuple[str, ...]], widths: str) -> Iterator[str]:
    yield from (".. list-table::", f"   :widths: {widths}", "")
    for first, *others in rows:
        yield f"   * - {' '.join(first.split())}"
        yield from (f"     - {' '.join(other.split())}" for other in others)
    yield ""


def indented(text: str) -> Iterator[str]:
    yield from (f"   {line}".rstrip() for line in text.splitlines())
    yield ""
