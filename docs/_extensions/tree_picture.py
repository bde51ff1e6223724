"""Draw the life cycle of a fit as an SVG.

`python docs/_extensions/tree_picture.py` writes the README's picture anew.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

from camshaft.hooks_core.grammar import life_cycle, tree
from camshaft.hooks_core.grammar.conditions import Variation
from camshaft.hooks_core.grammar.nodes import without

PICTURE = Path(__file__).parents[1] / "_static" / "fit.svg"
ROW = re.compile(r"(?P<lead>[│├└─ ]*)(?P<text>\S.*?)(?:  +(?P<receivers>\[.+\])(?:  +(?P<note>.+))?)?")
LINE_HEIGHT, INDENT, MARGIN, CHIPS_AT, CHIP_GAP = 21, 20, 16, 550, 6
STYLE = """
svg { font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
.page { fill: #ffffff; stroke: #d0d7de; } .name { fill: #1f2328; } .block { fill: #57606a; font-style: italic; }
.rail { stroke: #c4ccd4; } .note { fill: #57606a; font-size: 11px; } .chip { font-size: 11px; fill: #ffffff; }
.callbacks { fill: #8250df; } .module { fill: #0969da; } .data { fill: #1a7f37; } .strategy { fill: #9a6700; }
@media (prefers-color-scheme: dark) {
  .page { fill: #0d1117; stroke: #30363d; } .name { fill: #e6edf3; } .block, .note { fill: #9198a1; }
  .rail { stroke: #3d444d; }
  .callbacks { fill: #6e40c9; } .module { fill: #1158c7; } .data { fill: #196c2e; } .strategy { fill: #7d4e00; }
}
"""


def picture(lines: list[str]) -> str:
    """Return the SVG of a printed tree: a row per line, a chip per receiver."""
    rows = [_row(line, idx) for idx, line in enumerate(lines)]
    width, height = 1000, MARGIN * 2 + LINE_HEIGHT * len(rows)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
    title = "<title>Which hooks run in a fit, in which order, and who receives them</title>"
    page = f'<rect class="page" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>'
    return "\n".join([head, title, f"<style>{STYLE}</style>", page, *rows, "</svg>", ""])


def _row(line: str, row_idx: int) -> str:
    match = ROW.fullmatch(line)
    assert match is not None, line
    lead, top = match["lead"], MARGIN + row_idx * LINE_HEIGHT
    middle, depth = top + LINE_HEIGHT / 2, len(lead) // 4
    shapes = []
    for level in range(depth):
        part, x = lead[4 * level : 4 * level + 4], MARGIN + 4 + level * INDENT
        if part[0] != " ":
            bottom = middle if part[0] == "└" else top + LINE_HEIGHT
            shapes.append(f'<path class="rail" d="M{x} {top}V{bottom:g}"/>')
        if part[0] in "├└":
            shapes.append(f'<path class="rail" d="M{x} {middle:g}h{INDENT - 8}"/>')
    text, baseline = match["text"], middle + 4
    kind = "block" if text.startswith("[") or depth == 0 else "name"
    shapes.append(
        f'<text class="{kind}" x="{MARGIN + depth * INDENT}" y="{baseline:g}">{escape(text.strip("[]"))}</text>'
    )
    x: float = CHIPS_AT
    for receiver in re.findall(r"\[(.+?)\]", match["receivers"] or ""):
        wide = len(receiver) * 6.7 + 12
        shapes.append(
            f'<rect class="{receiver.split()[0]}" x="{x:g}" y="{top + 2}" width="{wide:g}" height="17" rx="8"/>'
        )
        shapes.append(f'<text class="chip" x="{x + 6:g}" y="{baseline - 0.5:g}">{escape(receiver)}</text>')
        x += wide + CHIP_GAP
    if match["note"]:
        shapes.append(f'<text class="note" x="{x + 4:g}" y="{baseline:g}">{escape(match["note"].lower())}</text>')
    return "".join(shapes)


def picture_of_fit() -> str:
    """Return the picture of the usual fit."""
    return picture(tree("fit", without(life_cycle("fit"), frozenset(Variation)), compact=True).splitlines())


if __name__ == "__main__":
    PICTURE.write_text(picture_of_fit(), encoding="utf-8")
